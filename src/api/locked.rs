//! The attribute `#[locked]`. Its documentation is here and not in its own crate, because examples there would have the
//! library, and all that it uses, compiled a second time for the host.

/// Takes a lock around an async function: its body runs with the lock held.
///
/// ```no_run
/// use redisson_lock::{Error, LockClient, locked};
///
/// struct Order {
///     id: u64,
/// }
///
/// struct Shop {
///     locks: LockClient,
/// }
///
/// impl Shop {
///     /// No other call pays or cancels the same order meanwhile, in this process or in any JVM.
///     #[locked(name = "order:{order.id}", client = self.locks)]
///     async fn pay(&self, order: &Order) -> Result<(), Error> {
///         // …
///         Ok(())
///     }
/// }
/// ```
///
/// # Options
///
/// | option | default | meaning |
/// |---|---|---|
/// | `name = "order:{order.id}"` | required | the lock's name: text with arguments of the function and their fields |
/// | `prefix = "shop:"` | none | text or a constant, put before the name as it is |
/// | `wait = "5s"` | no limit | how long to wait for the lock at most; `"0s"` makes one attempt, as `try_lock` |
/// | `busy = "error"` or `"skip"` | `"error"` | what to do if the lock is not free within `wait` |
/// | `lease = "10s"` | the watchdog | a fixed lease, as `Lock::lease` |
/// | `kind = "fenced"` | `plain` | the kind of lock: `plain`, `fenced`, `spin`, `string` or `fair`, or a part of a read-write lock, `read` or `write`; the function sees no token |
/// | `retry_for = "60s"` | that of the client | how long to keep retrying an attempt that Redis did not answer; with `wait` that is done until then |
/// | `client = self.locks` | see below | an expression: the `LockClient`, or a reference to it |
///
/// A duration is a whole number and `ms`, `s`, `m`, `h` or `d`.
///
/// **The name** is checked by the compiler. In braces stands an argument, one of its fields
/// (`{order.id}`, `{pair.0}`, `{self.shop}`) or a constant (`{Self::KIND}`), with a format if needed
/// (`{id:08}`), but no call. `{{` is a brace. It is formatted before the function waits.
///
/// **The client.** Without `client` the function takes the client of the innermost
/// `LockClient::as_default` around the call. If there is none, it returns `Error::Misuse`
/// and does not run. `tokio::spawn` does not inherit a default client.
///
/// **`busy`** needs `wait`. With `"error"` the function returns `Error::Busy`, which says who held
/// the lock, if an attempt found that. With `"skip"` it returns `Ok(None)`, so its return type is
/// `Result<Option<T>, E>`, and its body ends with `Ok(Some(…))`.
///
/// # What the function returns
///
/// `Result<T, E>` with `E: From<redisson_lock::Error>`. The body's value is returned, except:
///
/// - The lock could not be acquired: that error, and the body did not run.
/// - The lock was lost while the body ran: the body is dropped at its next await point, and the
///   function returns `Error::Lost`.
/// - The body succeeded, and the unlock says that the lock was lost before: `Error::Lost` too. As with
///   `Lock::run`, an unlock that fails otherwise does not discard the value: its release continues in
///   the background.
///
/// So `Error::Lost` says that the body ran, in part or to its end, and every other error of the lock
/// that it did not run. One exception: in a nested call `Error::Lost` may be about the outer hold, lost
/// before this body could begin.
///
/// If the body fails, its own error is returned, whatever the unlock says. If it panics, the lock is
/// released and the panic propagates.
///
/// # Cancel safety
///
/// As `Lock::run`: dropping the future drops the body and releases the lock in the background.
///
/// # Owners
///
/// A nested call with the same name in the same task re-enters, as with `Lock::lock`. So the
/// branches of one `join!` or `select!` do not exclude each other: give each an owner with
/// `Owner::scope`.
///
/// # Examples
///
/// A job that one instance does, and the others skip:
///
/// ```no_run
/// use redisson_lock::{Error, LockClient, locked};
///
/// #[locked(name = "report:{day}", wait = "0s", busy = "skip", client = locks)]
/// async fn report(locks: &LockClient, day: u32) -> Result<Option<String>, Error> {
///     Ok(Some(format!("the report of day {day}")))
/// }
/// ```
///
/// An error type of the service, and the client of the task:
///
/// ```no_run
/// use redisson_lock::{LockClient, locked};
///
/// #[derive(Debug, thiserror::Error)]
/// enum SaleError {
///     #[error("sold out")]
///     SoldOut,
///     #[error(transparent)]
///     Lock(#[from] redisson_lock::Error),
/// }
///
/// #[locked(name = "stock:{id}", prefix = "shop:", wait = "5s", lease = "10s")]
/// async fn sell(id: u64) -> Result<u32, SaleError> {
///     Err(SaleError::SoldOut)
/// }
///
/// # async fn run(client: LockClient) {
/// let sold = client.as_default(sell(42)).await;
/// # }
/// ```
///
/// # Where it can be used
///
/// On async functions, and on async methods of `impl` blocks, also of traits. Not below
/// `#[async_trait]`, which makes its methods plain functions first: call a locked function from
/// there.
pub use redisson_lock_macros::locked;
