//! Distributed locks on Redis that Rust and Java services share: reentrant, renewed automatically, safe to cancel, and
//! compatible with Redisson.
//!
//! ```no_run
//! # async fn sell() -> Result<(), redisson_lock::Error> { Ok(()) }
//! use redisson_lock::{Error, LockClient};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     LockClient::scope("redis://127.0.0.1:6379", async |client| {
//!         let stock = client.lock("stock:42");
//!
//!         let guard = stock.lock().await?;
//!         // No other owner holds `stock:42` now, in this process or in any JVM.
//!         sell().await?;
//!         guard.unlock().await
//!     })
//!     .await
//! }
//! ```
//!
//! # Kinds of locks
//!
//! | lock | for |
//! |---|---|
//! | [`lock`](LockClient::lock) | the default, if no row below fits better |
//! | [`fenced_lock`](LockClient::fenced_lock) | storage that compares [tokens](FencedLock) and rejects a stale holder |
//! | [`fair_lock`](LockClient::fair_lock) | serving waiting owners of all processes in the order in which they asked |
//! | [`rw_lock`](LockClient::rw_lock) | many readers or one writer: [`RwLock`] |
//! | [`spin_lock`](LockClient::spin_lock) | users without channel permissions; waiters poll |
//! | [`string_lock`](LockClient::string_lock) | `SET NX PX` locks of redis-py, redsync and others, on the same key |
//! | [`non_reentrant`](Lock::non_reentrant) | failing instead of re-entering |
//! | [`MultiLock`] | several locks together, in any order, without a deadlock |
//! | [`RedLock`] | one lock across three or more independent servers |
//! | [`eval`](HoldHandle::eval) | a guarded write: a script that runs only while the lock is held |
//!
//! All have the methods of [`Lock`], and [`DistributedLock`] is any of them for code that does not care which.
//!
//! # What you must do
//!
//! - **End the client**: use [`scope`](LockClient::scope), which releases what is held even after `?`, or call
//!   [`close`](LockClient::close). A program that ends without either leaves its locks to their leases.
//! - **Give each branch of a `join!` or `select!` an owner of its own** ([`owner`](LockClient::owner),
//!   [`Owner::scope`]). Branches of one task are one owner, and re-enter the lock together.
//! - **Poll a call, or drop it.** One that is kept and not polled delays others of its client.
//! - **Watch for a loss**: use [`run`](Lock::run), or look at [`lost`](LockGuard::lost) in long critical sections.
//! - **Use each name for one kind of lock.**
//!
//! # What is promised
//!
//! A lost reply, a retry or a reconnect never leaves a hold count too high or too low. Every future may be dropped at any
//! await point. A loss is reported no later than [`valid_until`](LockGuard::valid_until), which precedes the expiry on the
//! server. Waiting costs one subscription, and no polling except for spin and string locks.
//!
//! Not promised: exclusion across the failover of a primary whose replicas lack the lock, or across jumps of the
//! server's clock; fencing of a resource that does not compare tokens. [`guide::guarantees`] has both lists with their tests.
//!
//! # Runtimes
//!
//! The client needs tokio, with timers and I/O enabled, on either scheduler. Threads, and programs on smol or async-std, use
//! the feature `blocking` (smol: `smol::unblock`). Under `async-compat` it works too, but each call has an owner of its own
//! there, so a nested [`lock`](Lock::lock) waits for itself: give the calls one [`Owner`].
//!
//! # Glossary
//!
//! - **Owner**: whoever holds a lock and may re-enter it. Default: the task that calls.
//! - **Hold**: one acquisition. An owner that re-enters has several, which Redis counts.
//! - **Lease**: how long Redis keeps a hold without a renewal.
//! - **Watchdog**: what renews the leases of all holds, at a third of the [watchdog
//!   timeout](LockClientBuilder::watchdog_timeout).
//! - **Fencing token**: a number that grows with each holder, for a storage to compare.
//! - **Connection fence**: a client kills its own dead connections before it uses new ones, so that no delayed command of
//!   theirs runs.
//! - **Hand-off**: an unlock that passes the lock to the next caller of the same client.
//! - **At risk**: renewals are overdue, and the lease is not over.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `blocking` | the module `blocking`: the same locks for programs without an async runtime |
//! | `macros` | [`#[locked]`](https://docs.rs/redisson-lock-macros) around an async function, `LockClient::as_default` |
//! | `metrics` | wait and hold times, gauges and losses through the crate `metrics`, by class (`Lock::class`) |
//! | `serde` | serialisable statistics, holders and reports; a builder from a configuration |
//! | `tls-rustls` | TLS for URLs that begin with `rediss://` or `valkeys://`: `Tls` |
//! | `test-util` | what `redisson-lock-test` is built on: hidden, and outside of semantic versioning |
//!
//! # Where to look next
//!
//! [`LockClient`] connects, [`Lock`] has the methods, [`LockGuard`] is a hold, and [`Error`] lists what can go wrong. The
//! [`guide`] has the pages about permissions, events, migrating from Java, benchmarks, and how all of this is built and
//! tested.

#![deny(clippy::disallowed_methods)]

#[cfg(test)]
#[macro_use]
extern crate test_support;

// The code on these pages compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Pages;

mod api;
mod base;
#[cfg(feature = "blocking")]
pub mod blocking;
mod core;
mod error;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod kind;
mod lock;
mod names;
mod redis;
mod script;
mod state;

/// The client library whose settings [`LockClient::from_fred`] takes, in the version it takes them from.
pub use fred;

pub use api::any_lock::{AnyGuard, AnyLock, DistributedLock, HeldLock};
pub use api::builder::LockClientBuilder;
pub use api::client::{ClientStats, LockClient};
#[cfg(feature = "macros")]
#[doc(hidden)]
pub use api::macro_support;
pub use api::multi::{MemberLoss, MultiGuard, MultiHold, MultiLock, MultiLost};
pub use api::red::{RedGuard, RedHold, RedLock, RedLost};
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use api::test_util;
pub use core::{HeldBy, LossReason};
pub use error::{Error, ErrorKind, Operation, RefusedKind};
pub use kind::{Fenced, LockKind, Unfenced};
pub use lock::guarded::{GuardedWrite, Once, OnceWrite, Script, Value};
pub use lock::hold_handle::{Ended, Hold, HoldHandle, HoldState, Lost};
pub use lock::{FencedGuard, FencedLock, Holder, Lock, LockGuard, QueuedOwner, RwHolders, RwLock};
pub use names::owner::Owner;
pub use names::try_lock::TryLock;
pub use names::wire::Announce;
pub use redis::ConnectionFence;
#[cfg(feature = "tls-rustls")]
pub use redis::Tls;
#[cfg(feature = "macros")]
pub use redisson_lock_macros::locked;
pub use state::client_handle::{AbandonedHold, CloseReport};
