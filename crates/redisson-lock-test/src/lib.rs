//! A fake Redis for the tests of services that use `redisson-lock`.
//!
//! A [`FakeRedis`] lives inside the test. Its clients are real [`LockClient`]s: only their sockets
//! are replaced. It runs the very scripts that they send to a real server, with a Lua interpreter.
//! A test can lose replies, cut connections, pause the server, and end or take a lock.
//!
//! ```
//! use redisson_lock_test::FakeRedis;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), redisson_lock::Error> {
//! let fake = FakeRedis::start();
//! let (one, other) = (fake.client().await, fake.client().await);
//!
//! let guard = one.lock("stock:42").lock().await?;
//! assert!(other.lock("stock:42").try_lock().await?.is_none());
//!
//! guard.unlock().await?;
//! assert!(other.lock("stock:42").try_lock().await?.is_some());
//! # Ok(()) }
//! ```
//!
//! # Time
//!
//! A fake measures leases with tokio's clock. Under `#[tokio::test(start_paused = true)]` a lease of
//! 30 seconds passes immediately, when every task waits. In real time a fake works on every runtime.
//! Each reply takes one millisecond.
//!
//! Paused time belongs to one runtime. So each test starts its own fake, and calls it from inside
//! the test.
//!
//! # A lock without a server
//!
//! For code that is handed any lock there is [`FakeLock`], which needs no client.
//!
//! # What it is not
//!
//! A fake knows the commands that `redisson-lock` sends, and no others. It is for tests of what a
//! service does with its locks. Whether the service reaches its real server, with the right address
//! and permissions, needs a test with a real server.
//!
//! The README of this crate has tests as a user would write them.
//!
//! [`LockClient`]: redisson_lock::LockClient

mod fake;
mod fake_lock;
mod other_holder;
#[doc(hidden)]
pub mod sim;

pub use fake::FakeRedis;
pub use fake_lock::{FakeGuard, FakeLock};
pub use other_holder::OtherHolder;
