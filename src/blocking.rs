//! The locks for programs without an async runtime: every call waits on the thread that makes it.
//!
//! Needs the feature `blocking`. The locks are the same as those of the async client, on the same keys: each method
//! does the same as the async method of its name, fails in the same way, and returns when it is done. Both clients have
//! the same builder: [`LockClientBuilder::connect_blocking`](crate::LockClientBuilder::connect_blocking).
//!
//! ```no_run
//! # fn sell() {}
//! # fn run() -> Result<(), redisson_lock::Error> {
//! use redisson_lock::blocking::LockClient;
//!
//! let client = LockClient::connect("redis://127.0.0.1:6379")?;
//! let stock = client.lock("stock:42");
//!
//! let guard = stock.lock()?;
//! // No other thread holds `stock:42` now, in this process or in any JVM.
//! sell();
//! guard.unlock()?;
//! # Ok(()) }
//! ```
//!
//! # Owners
//!
//! A call belongs to the thread that makes it, as in Java: nested calls of one thread re-enter, two threads exclude
//! each other, and [`Lock::owned_by`] overrides that. A guard remembers its owner: even on another thread it is a hold
//! of the thread that acquired it, and is released as such wherever it is dropped. A detached hold is released by the
//! thread that acquired it, or by an owner that both threads name. The number of a thread is unique in the process,
//! even after the thread has ended.
//!
//! Two jobs on one thread are one owner. In a pool that runs other jobs on a thread while one of its
//! jobs waits there (a nested `join` of a work-stealing pool does), give each job its own
//! [`owner`](LockClient::owner).
//!
//! # The end of a program
//!
//! A dropped guard is released in the background. Dropping the last handle of a client (the last of
//! its clients, locks and guards) waits until Redis has answered the releases that were started, so
//! that they are done when `main` returns, even through `?` or a panic that unwinds. The wait ends
//! when no release was answered for two command timeouts (6 s by default), and after the watchdog
//! timeout (30 s by default) in any case. What is left stays locked until its lease expires.
//!
//! Nothing is dropped by [`std::process::exit`], in a `static`, or in a thread that still runs when `main` returns.
//! Call [`LockGuard::unlock`] there, which returns when the lock is released, or [`LockClient::close`].
//!
//! # Inside of a tokio runtime
//!
//! A call that waits would block the tasks of a runtime that polls it, so in an `async fn` run by tokio every method
//! that talks to Redis fails with [`Error::InsideRuntime`](crate::Error::InsideRuntime): use the async client there. A
//! guard is then released in the background. Other executors are not recognised, nor is [`tokio::task::unconstrained`];
//! a call blocks their thread. Dropping never fails: where the thread may not wait, a separate thread ends the client
//! when its last handle is dropped.
//!
//! Calls work, and may wait, in [`tokio::task::spawn_blocking`] and in [`tokio::task::block_in_place`]. The owner is
//! the pool's thread, which runs other closures later: keep no guard past the end of its closure, or give it an
//! [`owner`](LockClient::owner).
//!
//! Each client has its own runtime with one thread, `redisson-lock`, which renews the holds. A forked process has no
//! such thread, so connect after the fork.

// What fails, and how, is at the async methods and in the module's text.
#![allow(clippy::missing_errors_doc)]

mod client;
mod guard;
mod lock;
mod own_runtime;
mod rw;
mod several;
mod verbs;

pub use client::LockClient;
pub use guard::LockGuard;
pub use lock::Lock;
pub use rw::RwLock;
pub use several::{MultiGuard, MultiLock, RedGuard, RedLock};
pub use verbs::{Blocking, BlockingGuard, DistributedLock, HeldLock};
