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
//! | [`fair_lock`](LockClient::fair_lock) | serving waiting owners of all processes in order of arrival |
//! | [`rw_lock`](LockClient::rw_lock) | many readers or one writer: [`RwLock`] |
//! | [`spin_lock`](LockClient::spin_lock) | users without channel permissions; waiters poll |
//! | [`string_lock`](LockClient::string_lock) | `SET NX PX` locks of redis-py, redsync and others, on the same key |
//! | [`non_reentrant`](Lock::non_reentrant) | failing instead of re-entering |
//! | [`MultiLock`] | several locks together, in any order, without a deadlock |
//! | [`RedLock`] | one lock across three or more independent servers |
//! | [`eval`](HoldHandle::eval) | a guarded write: a script that runs only while the lock is held |
//!
//! Each lock has `lock`, `try_lock…`, `run…`, `lead` and `lease`; all but the last two are a [`Lock`], and have all its
//! methods. Code that works with any lock can take a [`DistributedLock`].
//!
//! # Tasks
//!
//! | task | with |
//! |---|---|
//! | change one record per request | [`run`](Lock::run), or `lock` and `unlock`, on a name with the record's id |
//! | run a job on one of many hosts, once a period | [`once_per`](Lock::once_per) |
//! | migrate a schema when instances start | [`run`](Lock::run) in each; its body checks first whether the migration is done |
//! | refill a cache once | [`try_lock_for`](Lock::try_lock_for), then read the cache again before filling it |
//! | share jobs between workers | [`try_lock`](Lock::try_lock) on a name with the job's id; on `None` take the next job |
//! | have one leader among instances | [`lead`](Lock::lead) |
//! | reject the writes of a stale holder | a [token](FencedLock) that storage compares, or [`eval`](HoldHandle::eval) in Redis |
//!
//! # What you must do
//!
//! - **End the client**: use [`scope`](LockClient::scope), which releases all holds even after `?`, or call
//!   [`close`](LockClient::close). A program that ends without either leaves its locks held until their leases end.
//! - **Give each branch of a `join!` or `select!` its own owner** ([`owner`](LockClient::owner), [`Owner::scope`]).
//!   Branches of one task share its owner, and re-enter the same lock.
//! - **Poll a call, or drop it.** A call that is kept without being polled delays other calls of its client.
//! - **Watch for a loss**: use [`run`](Lock::run), or watch [`lost`](HoldHandle::lost) in long critical sections.
//! - **Use each name for one kind of lock.**
//!
//! # What is promised
//!
//! A lost reply, a retry or a reconnect never leaves a hold count too high or too low. Every future may be dropped at
//! any await point. A loss is reported no later than [`valid_until`](Hold::valid_until), which precedes the expiry
//! on the server. Waiting costs one subscription and no polling, except on spin and string locks.
//!
//! Not promised are exclusion across the failover of a primary whose replicas lack the lock or across jumps of the
//! server's clock, and fencing of a resource that does not compare tokens. [`guide::guarantees`] has both lists with
//! their tests.
//!
//! # Runtimes
//!
//! The client needs tokio, with timers and I/O enabled, on either scheduler. Threads, and programs on smol or
//! async-std, use the feature `blocking` (smol: `smol::unblock`). It also works under `async-compat`, but there each
//! call has its own owner, so a nested [`lock`](Lock::lock) waits for itself: give the calls one [`Owner`].
//!
//! # Glossary
//!
//! - **Owner**: the task or thread that holds a lock and may re-enter it, or an explicit [`Owner`]. Default: the
//!   calling task.
//! - **Hold**: one acquisition. An owner that re-enters has several, which Redis counts.
//! - **Lease**: how long Redis keeps a hold without a renewal.
//! - **Watchdog**: the task that renews the leases of all holds, at every third of the [watchdog
//!   timeout](LockClientBuilder::watchdog_timeout).
//! - **Fencing token**: a number that grows with each holder, for storage to compare.
//! - **Connection fence**: a client kills its own dead connections before it uses new ones, so that none of their
//!   delayed commands runs.
//! - **Hand-off**: an unlock that passes the lock to the next caller of the same client.
//! - **At risk**: renewals are overdue, but the lease has not ended.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `blocking` | the module `blocking`: the same locks for programs without an async runtime |
//! | `fred` (default) | `from_fred`: the settings of a client of the crate `fred`; half of all packages are without it |
//! | `macros` | [`#[locked]`](https://docs.rs/redisson-lock/latest/redisson_lock/attr.locked.html) around an async function, `LockClient::as_default` |
//! | `metrics` | wait and hold times, gauges and losses through the crate `metrics`, by class (`Lock::class`) |
//! | `redisson-config` | a client with the settings of a Redisson configuration file, YAML or JSON: `RedissonConfig` |
//! | `serde` | serialisable statistics, holders and reports; a builder from a configuration |
//! | `tls-rustls` | TLS for URLs that begin with `rediss://` or `valkeys://`: `Tls` |
//! | `test-util` | what `redisson-lock-test` is built on: hidden, and outside of semantic versioning |
//!
//! # Where to look next
//!
//! [`LockClient`] connects, [`Lock`] has the methods, [`LockGuard`] is a hold, and [`Error`] lists what can go wrong.
//! The [`guide`] covers permissions, events, migrating from Java, benchmarks, and how the crate is built and tested.

#![deny(clippy::disallowed_methods)]

#[cfg(test)]
#[macro_use]
extern crate test_support;

// The code on these pages compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Pages;
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../crates/redisson-lock-macros/README.md")]
struct PageOfLocked;
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/migrating.md")]
struct Migrating;

mod api;
mod base;
#[cfg(feature = "blocking")]
pub mod blocking;
mod error;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod kind;
mod lock;
mod names;
mod redis;
mod script;
mod state;

/// The version of the client library whose settings [`LockClient::from_fred`] takes.
#[cfg(feature = "fred")]
pub use fred;

pub use api::any_lock::{AnyGuard, AnyLock, DistributedLock, HeldLock};
pub use api::builder::LockClientBuilder;
pub use api::client::{ClientStats, LockClient};
pub use api::find::FoundLock;
#[cfg(feature = "macros")]
pub use api::locked::locked;
#[cfg(feature = "macros")]
#[doc(hidden)]
pub use api::macro_support;
pub use api::multi::{MemberLoss, MultiGuard, MultiHold, MultiLock, MultiLost};
pub use api::red::{RedGuard, RedHold, RedLock, RedLost};
#[cfg(feature = "redisson-config")]
pub use api::redisson_config::RedissonConfig;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use api::test_util;
pub use error::{Error, ErrorKind, HeldBy, Operation, RefusedKind};
pub use kind::{Fenced, LockKind, Unfenced};
pub use lock::guarded::{GuardedWrite, Once, OnceWrite, Script, Value};
pub use lock::hold_handle::{Ended, Hold, HoldHandle, HoldState, Lost};
pub use lock::{FencedGuard, FencedLock, Holder, Lock, LockGuard, QueuedOwner, RwHolders, RwLock};
pub use names::owner::Owner;
pub use names::try_lock::TryLock;
pub use names::wire::Announce;
#[cfg(feature = "tls-rustls")]
pub use redis::Tls;
pub use redis::{ConnectionFence, Credentials, CredentialsProvider};
#[doc(inline)]
pub use redisson_lock_core::LossReason;
pub use state::client_handle::{AbandonedHold, CloseReport};
