//! Reentrant Redis locks, wire-compatible with Java's Redisson: renewed, with notice of a loss.
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
//! When the [`scope`](LockClient::scope) ends, even through `?`, the client releases what it holds. A program that ends
//! without that, or without [`close`](LockClient::close), leaves its locks to their leases.
//!
//! # What is promised, and what is not
//!
//! *Exactly-once holds*: a lost reply, a retry or a reconnect never leaves a hold count too high or
//! too low. *Dropping a future is safe* at any await point. *Loss is reported* no later than a
//! local deadline, which always precedes the server-side expiry. *No polling*: waiting costs one
//! subscription, except for spin and string locks, whose waiters poll.
//!
//! Not promised: exclusion across the failover of a primary whose replicas lack the lock, or across jumps of the
//! server's clock; fencing of a resource that does not compare [tokens](FencedLock); the release of a
//! forgotten guard. [`guide::guarantees`] has both lists with their tests.
//!
//! # Features
//!
//! `blocking` adds the module `blocking`: the same locks for programs without an async runtime, whose
//! calls wait on the calling thread.
//!
//! `macros` adds the attribute [`#[locked]`](https://docs.rs/redisson-lock-macros), which takes a lock
//! around an async function, and `LockClient::as_default`, which gives such functions their client.
//!
//! `metrics` records wait and hold times, by class (`Lock::class`), and losses through the crate `metrics`.
//!
//! `serde` makes statistics, holders and reports serialisable, and has a builder read from a configuration.
//!
//! `tls-rustls` connects by TLS to addresses that begin with `rediss://` or `valkeys://`: see `Tls`.
//!
//! `test-util` opens what the crate `redisson-lock-test` and the tests of this crate are built on:
//! a hidden module, which changes without notice and is outside of semantic versioning.
//!
//! # Where to look next
//!
//! [`LockClient`] connects, [`Lock`] has the methods, [`LockGuard`] is a hold, [`DistributedLock`] is any lock for code that
//! does not care which, [`Owner`] says who
//! holds a lock: read it before locking inside `join!` or `select!`. [`Error`] lists everything
//! that can go wrong. The [`guide`] has the pages about permissions, events, migrating from Java,
//! benchmarks, and how all of this is built and tested.

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
pub use error::{Error, Operation, RefusedKind};
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
