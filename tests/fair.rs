//! Fair locks: owners of all clients get one in the order in which they asked for it. The library does not offer them yet.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient, LockKind};
use test_support::{Control, TestServer, eventually, ms, stalls, tokio};

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

    async fn finish(mut self) {
        self.queued(0).await;
        self.server.finish(self.clients).await;
    }
}

#[tokio::test]
async fn owners_of_two_clients_get_it_in_their_order() {
    const WAITERS: usize = 40;
    let mut two = Two::new().await;
    let held = two.clients[0]
        .lock_of(LockKind::Fair, "fair")
        .lock()
        .await
        .expect("free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for nth in 0..WAITERS {
        let (lock, order) = (
            two.clients[nth % 2].lock_of(LockKind::Fair, "fair"),
            Arc::clone(&order),
        );
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
    let held = two.clients[0]
        .lock_of(LockKind::Fair, "fair")
        .lock()
        .await
        .expect("free");
    let mut waiters = Vec::new();
    for nth in 0..3 {
        let lock = two.clients[nth % 2].lock_of(LockKind::Fair, "fair");
        waiters.push(tokio::spawn(async move { lock.lock().await }));
        two.queued(i64::try_from(nth).expect("few") + 1).await;
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
    let [one, other] = [0, 1].map(|nth| two.clients[nth].lock_of(LockKind::Fair, "fair"));
    let held = one.lock().await.expect("free");
    let stranger = one.owned_by(&two.clients[0].owner());
    assert!(stranger.try_lock().await.expect("asked").is_none());
    two.queued(0).await;
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.lock().await }
    });
    two.queued(1).await;
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
    let held = two.clients[0]
        .lock_of(LockKind::Fair, "fair")
        .lock()
        .await
        .expect("free");
    let mut waiters = Vec::new();
    for nth in 0..20 {
        let lock = two.clients[1].lock_of(LockKind::Fair, "fair");
        waiters.push(tokio::spawn(async move { lock.lock().await }));
        two.queued(nth + 1).await;
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
