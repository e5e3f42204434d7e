//! Fair locks: owners of all clients get one in the order in which they asked for it. The library does not offer them yet.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, Lock, LockClient, LockGuard, LockKind};
use test_support::{Control, TestServer, eventually, ms, stalls, tokio};
use tokio::task::JoinHandle;

const QUEUE: &str = "redisson_lock_queue:{fair}";
const TIMEOUTS: &str = "redisson_lock_timeout:{fair}";

fn queued(control: &mut Control) -> i64 {
    let [list, set] = [["LLEN", QUEUE], ["ZCARD", TIMEOUTS]].map(|words| control.number(&words));
    assert_eq!(list, set, "the list and the set are alike");
    list
}

/// Two clients at one server.
struct Two {
    server: TestServer,
    clients: [LockClient; 2],
    control: Control,
}

impl Two {
    async fn new() -> Self {
        let server = TestServer::new();
        let clients = [server.client().await, server.client().await];
        let control = server.control();
        Self {
            server,
            clients,
            control,
        }
    }

    async fn queued(&mut self, owners: i64) {
        let control = &mut self.control;
        eventually("they queue", ms(5_000), || queued(control) == owners).await;
    }

    fn lock(&self, client: usize) -> Lock {
        self.clients[client].lock_of(LockKind::Fair, "fair")
    }

    async fn held(&self) -> LockGuard {
        self.lock(0).lock().await.expect("free")
    }

    /// A call of this client that waits as the last of this many owners.
    async fn waits(
        &mut self,
        client: usize,
        owners: usize,
    ) -> JoinHandle<Result<LockGuard, Error>> {
        let lock = self.lock(client);
        let waiting = tokio::spawn(async move { lock.lock().await });
        self.queued(i64::try_from(owners).expect("few")).await;
        waiting
    }

    async fn finish(mut self) {
        self.queued(0).await;
        self.server.finish(self.clients).await;
    }
}

#[tokio::test]
async fn owners_of_two_clients_get_it_in_their_order() {
    const WAITERS: usize = 40;
    let mut two = Two::new().await;
    let held = two.held().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for nth in 0..WAITERS {
        let (lock, order) = (two.lock(nth % 2), Arc::clone(&order));
        waiters.spawn(async move {
            let guard = lock.lock().await.expect("its turn");
            order.lock().expect("unpoisoned").push(nth);
            guard.unlock().await.expect("held");
        });
        two.queued(i64::try_from(nth).expect("few") + 1).await;
    }
    let start = Instant::now();
    held.unlock().await.expect("held");
    waiters.join_all().await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10) + stalls(start), "{took:?}");
    let order = order.lock().expect("unpoisoned").clone();
    assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
    two.finish().await;
}

#[tokio::test]
async fn a_waiter_that_is_dropped_leaves_no_place_and_the_next_is_told() {
    let mut two = Two::new().await;
    let held = two.held().await;
    let mut waiters = Vec::new();
    for nth in 0..3 {
        waiters.push(two.waits(nth % 2, nth + 1).await);
    }
    for dropped in [1, 0] {
        waiters.remove(dropped).abort();
    }
    two.queued(1).await;
    held.unlock().await.expect("held");
    let guard = waiters
        .remove(0)
        .await
        .expect("no panic")
        .expect("its turn");
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn an_attempt_takes_no_place_and_does_not_overtake() {
    let mut two = Two::new().await;
    let one = two.lock(0);
    let held = one.lock().await.expect("free");
    let stranger = one.owned_by(&two.clients[0].owner());
    assert!(stranger.try_lock().await.expect("asked").is_none());
    two.queued(0).await;
    let waiting = two.waits(1, 1).await;
    let nested = one.lock().await.expect("nested");
    nested.unlock().await.expect("held");
    held.unlock().await.expect("held");
    let next = waiting.await.expect("no panic").expect("its turn");
    assert!(stranger.try_lock().await.expect("asked").is_none());
    assert!(
        stranger
            .try_lock_for(ms(100))
            .await
            .expect("asked")
            .is_none()
    );
    two.queued(0).await;
    next.unlock().await.expect("held");
    stranger
        .try_lock()
        .await
        .expect("asked")
        .expect("free")
        .unlock()
        .await
        .expect("held");
    two.finish().await;
}

#[tokio::test]
async fn a_closed_client_leaves_its_places() {
    let mut two = Two::new().await;
    let held = two.held().await;
    let mut waiters = Vec::new();
    for nth in 0..20 {
        waiters.push(two.waits(1, nth + 1).await);
    }
    let report = two.clients[1].close(ms(2_000)).await;
    assert_eq!(report.unconfirmed, 0);
    for waiter in waiters {
        let refused = waiter.await.expect("no panic");
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    }
    two.queued(0).await;
    held.unlock().await.expect("held");
    two.finish().await;
}
