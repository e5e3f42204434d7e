//! A holder that is no client of the fake: a JVM, as far as anybody can see.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock::LockKind;
use redisson_lock::test_util::{self, Reply};
use uuid::Uuid;

use crate::sim::{Server, WATCHDOG_TIMEOUT_MS};

/// Another client that holds a lock, from
/// [`FakeRedis::taken_by_another`](crate::FakeRedis::taken_by_another).
///
/// It renews its lease, so it holds the lock however long a test takes. Dropped, it is like a
/// process that crashed: the lock stays held until the lease is over, 20 to 30 s later.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), redisson_lock::Error> {
/// # let fake = redisson_lock_test::FakeRedis::start();
/// # let client = fake.client().await;
/// let other = fake.taken_by_another("stock:42");
/// drop(other);
/// // It waits for the rest of the lease.
/// let guard = client.lock("stock:42").lock().await?;
/// # guard.unlock().await }
/// ```
#[must_use = "dropped, it crashes: it renews its lease no more"]
pub struct OtherHolder {
    server: Arc<Server>,
    kind: LockKind,
    name: String,
    /// Without the ending of a field that writes.
    owner: String,
    field: String,
}

impl OtherHolder {
    pub(crate) fn take(server: &Arc<Server>, kind: LockKind, name: &str) -> Self {
        let id = Uuid::new_v4();
        let owner = match kind {
            // As redis-py writes it.
            LockKind::String => id.simple().to_string(),
            _ => format!("{id}:1"),
        };
        let field = match kind {
            LockKind::Write => format!("{owner}:write"),
            _ => owner.clone(),
        };
        let acquire = test_util::acquire_of(kind, name, &owner, 1, LEASE);
        let acquire = acquire.unwrap_or_else(|error| panic!("{error}"));
        // The key of a read hold is renewed with it.
        let covering = acquire.keys.get(1).filter(|_| kind == LockKind::Read);
        server.take(name, &field, covering, &acquire);
        Self {
            server: Arc::clone(server),
            kind,
            name: name.to_owned(),
            owner,
            field,
        }
    }

    /// Its field in the lock hash, `<uuid>:1`, or `<uuid>:1:write`; the value of a string lock, 32 hexadecimal digits.
    ///
    /// # Examples
    ///
    /// ```
    /// let fake = redisson_lock_test::FakeRedis::start();
    /// let other = fake.taken_by_another("stock:42");
    /// let holder = fake.holder("stock:42").expect("it is held");
    /// assert_eq!(holder.owner, other.field());
    /// ```
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Releases the lock, and publishes the message that wakes a waiter, if its kind has one. Returns `false` if it had
    /// lost the lock before.
    ///
    /// # Examples
    ///
    /// ```
    /// let fake = redisson_lock_test::FakeRedis::start();
    /// assert!(fake.taken_by_another("stock:42").release());
    /// assert!(fake.holder("stock:42").is_none());
    /// ```
    pub fn release(self) -> bool {
        let Ok(release) = test_util::release_of(self.kind, &self.name, &self.owner, 0, LEASE)
        else {
            return false;
        };
        // One more than have heard the message.
        let released = self.server.run_for_another(&release);
        matches!(released, Ok(Reply::Number(1..)))
    }
}

impl Drop for OtherHolder {
    fn drop(&mut self) {
        self.server.stop_renewing(&self.name, &self.field);
    }
}

impl fmt::Debug for OtherHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherHolder")
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("field", &self.field)
            .finish()
    }
}

const LEASE: Duration = Duration::from_millis(WATCHDOG_TIMEOUT_MS);
