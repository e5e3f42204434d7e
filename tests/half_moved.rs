//! A slot of a cluster that is on its way, with some of a lock's keys at each of its two nodes: every kind, every verb,
//! every set of keys that have moved. No second owner gets in, no hold is lost, the move can be finished, and nothing is left
//! behind.

use std::time::Duration;

use redisson_lock::{Error, HoldState, LockClient, LockKind};
use test_support::kinds::is_token;
use test_support::{Cluster, eventually, ms, slot, tokio};

/// No renewal is due for twenty seconds.
async fn connect(cluster: &Cluster) -> LockClient {
    LockClient::builder()
        .watchdog_timeout(ms(60_000))
        .command_timeout(ms(900))
        .connect(&cluster.url())
        .await
        .expect("it answers")
}

/// A slot that moves from the first primary to the second, key by key.
struct Move<'a> {
    cluster: &'a Cluster,
    slot: u16,
}

impl<'a> Move<'a> {
    fn begin(cluster: &'a Cluster, lock: &str) -> Self {
        let slot = slot(lock);
        cluster.begin_to_move(slot, 0, 1);
        Self { cluster, slot }
    }

    /// The keys of the slot that are still at the first primary.
    fn keys(&self) -> Vec<String> {
        let words = ["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "1000"];
        let keys = self.cluster.control(0).run(&words);
        let keys = keys.split(' ').filter(|key| !key.is_empty());
        keys.map(str::to_owned).collect()
    }

    fn take(&self, key: &str) {
        let port = self.cluster.port(1).to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        self.cluster.control(0).run(&words);
    }

    /// The rest follows, and the slot is handed over. A key that is at both nodes fails this.
    fn finish(self) {
        self.cluster.move_keys(self.slot, 0, 1);
        self.cluster.end_move(self.slot, 0, 1);
    }
}

async fn nothing_is_left(cluster: &Cluster, clients: impl IntoIterator<Item = LockClient>) {
    let is_left = || cluster.keys().iter().any(|key| !is_token(key));
    eventually("no key but tokens is left", ms(10_000), || !is_left()).await;
    for client in clients {
        let report = client.close(Duration::ZERO).await;
        assert!(report.abandoned.is_empty(), "{report:?}");
    }
}

/// Neither has it, or it is not known yet.
fn is_kept_out<T>(attempt: Result<Option<T>, Error>) -> bool {
    match attempt {
        Ok(attempt) => attempt.is_none(),
        Err(error) => error.is_retryable(),
    }
}

/// The last key that covers the other reader is still at the source when this one releases at the target.
#[tokio::test]
async fn a_reader_whose_key_has_not_moved_yet_keeps_writers_out() {
    let cluster = Cluster::start(false).await;
    let [a, b, c] = [
        connect(&cluster).await,
        connect(&cluster).await,
        connect(&cluster).await,
    ];
    let key = cluster.key_at(0, "lock");
    let reads = |client: &LockClient| client.lock_of(LockKind::Read, key.clone());
    let (leaves, stays) = (reads(&a).lock().await, reads(&b).lock().await);
    let (leaves, stays) = (leaves.expect("free"), stays.expect("shared"));
    let moving = Move::begin(&cluster, &key);
    let theirs = stays.owner().to_string();
    for key in moving.keys().iter().filter(|key| !key.contains(&theirs)) {
        moving.take(key);
    }
    let _ = leaves.unlock().await;
    let writes = c.lock_of(LockKind::Write, key.clone());
    let writer = writes.try_lock().await;
    println!("the writer: {writer:?}, the reader: {:?}", stays.state());
    assert!(is_kept_out(writer), "beside a reader");
    moving.finish();
    assert_eq!(stays.state(), HoldState::Held);
    stays.unlock().await.expect("held");
    writes
        .lock()
        .await
        .expect("free")
        .unlock()
        .await
        .expect("held");
    nothing_is_left(&cluster, [a, b, c]).await;
}
