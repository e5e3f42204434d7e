//! The fake as a test sees it: clients, what befalls them, and a look at the data.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock::test_util;
use redisson_lock::{Error, Holder, LockClient, LockClientBuilder, LockKind};

use crate::other_holder::OtherHolder;
use crate::sim::{Access, Server};

/// A Redis inside the test. Cheap to clone; all clones are one server.
///
/// Every name that its methods take is the key in Redis: with the client's key prefix, if it has
/// one.
///
/// No method but [`client`](Self::client) and [`connect`](Self::connect) waits for anything. The
/// others can be called from any thread, and paused time does not move meanwhile.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), redisson_lock::Error> {
/// let fake = redisson_lock_test::FakeRedis::start();
/// let guard = fake.client().await.lock("stock:42").lock().await?;
/// assert!(fake.holder("stock:42").is_some());
/// # guard.unlock().await }
/// ```
#[derive(Clone)]
pub struct FakeRedis {
    server: Arc<Server>,
}

impl FakeRedis {
    /// Starts an empty server. It needs no runtime and no port, and ends with its last client.
    ///
    /// # Examples
    ///
    /// ```
    /// let fake = redisson_lock_test::FakeRedis::start();
    /// ```
    #[must_use]
    pub fn start() -> Self {
        let server = Server::without_task();
        server.report();
        Self { server }
    }

    /// Connects a client with default settings. Each call makes a client of its own.
    ///
    /// # Panics
    ///
    /// If it cannot connect: on a runtime without timers, or while the server is
    /// [paused](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock_test::FakeRedis::start().client().await;
    /// # client.lock("stock:42").lock().await?.unlock().await }
    /// ```
    pub async fn client(&self) -> LockClient {
        match self.connect(self.builder()).await {
            Ok(client) => client,
            Err(error) => panic!("a client cannot connect to the fake: {error}"),
        }
    }

    /// Settings to change before [`connect`](Self::connect): the same as
    /// [`LockClient::builder`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// let fake = redisson_lock_test::FakeRedis::start();
    /// let builder = fake.builder().key_prefix("shop:").watchdog_timeout(Duration::from_secs(10));
    /// let client = fake.connect(builder).await?;
    ///
    /// let guard = client.lock("stock:42").lock().await?;
    /// assert!(fake.holder("shop:stock:42").is_some());
    /// # guard.unlock().await }
    /// ```
    pub fn builder(&self) -> LockClientBuilder {
        LockClient::builder()
    }

    /// Connects a client with its own settings.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] and [`Error::InvalidDuration`] for a setting out of bounds;
    /// [`Error::NoAnswer`] while the server is [paused](Self::pause), after the command timeout;
    /// [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    ///
    /// # Examples
    ///
    /// See [`builder`](Self::builder).
    pub async fn connect(&self, builder: LockClientBuilder) -> Result<LockClient, Error> {
        let access = Access::new(&self.server, 0);
        builder.connect_over(Arc::new(access)).await
    }

    /// Executes the next script that any client sends, and loses its reply: the connection is cut
    /// in between. Called twice, it loses the replies of the next two.
    ///
    /// Scripts acquire, release, renew and inspect locks. The client replaces the connection and
    /// asks again: the call takes a little longer, succeeds, and counts once.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// fake.lose_reply();
    /// let guard = client.lock("stock:42").lock().await?;
    /// assert_eq!(fake.holder("stock:42").map(|holder| holder.hold_count), Some(1));
    /// # guard.unlock().await }
    /// ```
    pub fn lose_reply(&self) {
        self.server.lose_reply();
    }

    /// Cuts every connection. Clients reconnect immediately, and hold what they held.
    ///
    /// What was sent and is not executed yet, because the server is [paused](Self::pause), is never
    /// executed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let guard = client.lock("stock:42").lock().await?;
    /// fake.cut();
    /// guard.unlock().await
    /// # }
    /// ```
    pub fn cut(&self) {
        self.server.cut_everyone();
    }

    /// Stops the server, as an outage does: from now on it executes nothing and sends nothing.
    /// Connections stay open, new ones can be opened, and leases run out.
    ///
    /// A call fails with [`Error::NoAnswer`] after its command timeout, 3 s by default. A hold that
    /// cannot be renewed is lost with [`LossReason::NotRenewed`](redisson_lock::LossReason), within
    /// the watchdog timeout, 30 s by default.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::{Error, LossReason};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let guard = client.lock("stock:42").lock().await?;
    /// fake.pause();
    /// assert!(matches!(client.lock("other").lock().await, Err(Error::NoAnswer { .. })));
    /// assert_eq!(guard.lost().await, LossReason::NotRenewed);
    /// # Ok(()) }
    /// ```
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Ends a [`pause`](Self::pause). What clients sent meanwhile is executed now, also what nobody
    /// waits for any more. Does nothing if the server is not paused.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let guard = client.lock("stock:42").lock().await?;
    /// fake.pause();
    /// tokio::time::sleep(Duration::from_secs(15)).await;
    /// fake.resume();
    /// // Shorter than the lease: nothing is lost.
    /// guard.unlock().await
    /// # }
    /// ```
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Deletes all locks, as `FLUSHALL` does. Nobody is told: a holder finds out at its next
    /// renewal, within a third of its watchdog timeout (10 s by default).
    ///
    /// # Examples
    ///
    /// ```
    /// # use redisson_lock::LossReason;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let guard = client.lock("stock:42").lock().await?;
    /// fake.wipe();
    /// assert_eq!(guard.lost().await, LossReason::Gone);
    /// # Ok(()) }
    /// ```
    pub fn wipe(&self) {
        self.server.between_scripts(|keyspace| keyspace.clear());
    }

    /// Ends the lease of a lock now. Returns whether it was held.
    ///
    /// As in Redis, nobody is told. A holder finds out at its next renewal, within a third of its
    /// watchdog timeout (10 s by default); a waiter when the lease that it knows of is over.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redisson_lock::LossReason;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let guard = client.lock("stock:42").lock().await?;
    /// assert!(fake.expire("stock:42"));
    /// assert_eq!(guard.lost().await, LossReason::Gone);
    /// # Ok(()) }
    /// ```
    pub fn expire(&self, name: &str) -> bool {
        self.server.between_scripts(|keyspace| {
            let was_held = keyspace.holder(name).is_some();
            keyspace.delete_lock(name);
            was_held
        })
    }

    /// Has another client take the lock, as a JVM would: with a field `<uuid>:1`, and a lease of 30
    /// s that is renewed until the returned [`OtherHolder`] is released or dropped.
    ///
    /// Any other hold ends immediately, as if its lease had expired and the other client were faster.
    /// The former holder finds out at its next renewal, with
    /// [`LossReason::Taken`](redisson_lock::LossReason).
    ///
    /// # Panics
    ///
    /// If the name is no lock name: empty, or longer than 65536 bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let other = fake.taken_by_another("stock:42");
    /// assert!(client.lock("stock:42").try_lock().await?.is_none());
    ///
    /// other.release();
    /// assert!(client.lock("stock:42").try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn taken_by_another(&self, name: &str) -> OtherHolder {
        self.taken_by_another_of(LockKind::Plain, name)
    }

    /// The same with a lock of another kind: the other client raises the token of a fenced lock, releases a spin lock
    /// without a message, writes a string as redis-py does, and reads or writes alone.
    ///
    /// # Panics
    ///
    /// As [`taken_by_another`](Self::taken_by_another), and if the key of a fenced lock's token has no number.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::LockKind;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let first = client.fenced_lock("ledger").lock().await?;
    /// let other = fake.taken_by_another_of(LockKind::Fenced, "ledger");
    /// first.lost().await;
    ///
    /// other.release();
    /// let later = client.fenced_lock("ledger").owned_by(&client.owner()).lock().await?;
    /// assert_eq!(later.token(), first.token() + 2);
    /// # later.unlock().await }
    /// ```
    pub fn taken_by_another_of(&self, kind: LockKind, name: &str) -> OtherHolder {
        OtherHolder::take(&self.server, kind, name)
    }

    /// Sets how many replicas the server has. Default: none.
    ///
    /// Each has what is written as soon as it is written, so a lock with
    /// [`sync_replicas`](redisson_lock::Lock::sync_replicas) of up to this many is granted. One of
    /// more fails with [`Error::TooFewReplicas`] after its time limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let lock = client.lock("stock:42").sync_replicas(2, Duration::from_millis(100));
    /// assert!(lock.try_lock().await.is_err());
    ///
    /// fake.set_replicas(2);
    /// let guard = lock.lock().await?;
    /// # guard.unlock().await }
    /// ```
    pub fn set_replicas(&self, count: u32) {
        self.server.set_replicas(count);
    }

    /// Changes what the clients may do, by rules as `ACL SETUSER` takes them. At first they may do
    /// everything.
    ///
    /// The rules are `-command` and `+command` (`-client` takes all its subcommands away,
    /// `-client|kill` takes one, `-@all` all commands), `resetchannels`, `allchannels`, and
    /// `&channel`, which may end with `*` and grants channels after `resetchannels`. They hold for
    /// open connections too; one that is subscribed to a channel without a grant ends, as in Redis.
    ///
    /// # Panics
    ///
    /// If a rule is none of these, such as one for keys or for another category of commands.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::Error;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let guard = client.lock("stock:42").lock().await?;
    /// fake.acl("-publish");
    /// match guard.unlock().await {
    ///     Err(Error::PermissionDenied { permission, .. }) => assert_eq!(permission, "+publish"),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn acl(&self, rules: &str) {
        self.server.acl(0, rules);
    }

    /// Who holds a lock, or `None`: the owner's field, its hold count, and the time left on the
    /// lease. Read from the data itself, also while the server is [paused](Self::pause).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redisson_lock::Error> {
    /// # let fake = redisson_lock_test::FakeRedis::start();
    /// # let client = fake.client().await;
    /// let guard = client.lock("stock:42").lease(Duration::from_secs(60)).lock().await?;
    /// let holder = fake.holder("stock:42").expect("it is held");
    /// assert_eq!(holder.owner, guard.owner().to_string());
    /// assert_eq!(holder.hold_count, 1);
    /// assert!(holder.lease_left > Some(Duration::from_secs(59)));
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<Holder> {
        self.server.between_scripts(|keyspace| {
            let (field, count) = keyspace.holder(name)?;
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let lease_left = keyspace
                .expires_at(name)
                .map(|at| Duration::from_millis(at.saturating_sub(keyspace.now)));
            Some(test_util::holder(field.to_owned(), count, lease_left))
        })
    }
}

impl fmt::Debug for FakeRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks: Vec<String> = self
            .server
            .between_scripts(|keyspace| keyspace.keys().map(str::to_owned).collect());
        f.debug_struct("FakeRedis").field("locks", &locks).finish()
    }
}
