//! Keeping a lock, on one server and in a cluster.

use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient, LockGuard, LossReason};
use test_support::{Control, assert_matches, eventually, ms, stalls, tokio, within};

use super::TestServer;

/// A watchdog that can be waited for, in milliseconds.
pub(super) const WATCHDOG: u64 = 1500;

pub(super) const PERIOD: u64 = WATCHDOG / 3;

pub(super) const COMMAND: u64 = 450;

/// Nothing but renewals finds out that a lock is lost.
pub(super) async fn brisk(server: &TestServer) -> LockClient {
    server
        .client_with(|builder| {
            builder
                .watchdog_timeout(ms(WATCHDOG))
                .command_timeout(ms(COMMAND))
                .tracking(false)
        })
        .await
}

/// Not later than the server ends the lease of this key: its answer is counted from before the
/// question, and the least delayed of a few counts.
pub(super) fn expiry(control: &mut Control, key: &str) -> Instant {
    let asked = (0..5).map(|_| (Instant::now(), control.pttl(key)));
    asked
        .map(|(at, left)| at + ms(u64::try_from(left).expect("it has a lease")))
        .max()
        .expect("asked")
}

pub(super) async fn told(guard: &LockGuard, budget: Duration) -> LossReason {
    let reason = within(budget, guard.lost()).await;
    reason.expect("told in time")
}

#[tokio::test]
async fn the_watchdog_keeps_a_lock_for_many_timeouts() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    let start = Instant::now();
    let mut lowest = i64::MAX;
    while start.elapsed() < ms(3 * WATCHDOG + PERIOD) {
        lowest = lowest.min(control.pttl("a"));
        assert_eq!(guard.state(), HoldState::Held);
        assert!(guard.valid_until() > Instant::now());
        tokio::time::sleep(ms(10)).await;
    }
    assert!(
        lowest > (WATCHDOG / 2) as i64,
        "renewed every third: {lowest} ms were left at the lowest"
    );
    assert_eq!(client.stats().lost_total, 0);
    assert!(client.stats().renewed_total >= 9);
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_fixed_lease_ends_by_itself_and_frees_the_lock() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    let guard = lock.lease(ms(2000)).lock().await.expect("free");
    let (deadline, expiry) = (guard.valid_until(), expiry(&mut control, "a"));
    assert!(
        deadline <= expiry,
        "the local deadline lies before the server's own"
    );
    assert_eq!(told(&guard, ms(4000)).await, LossReason::LeaseOver);
    let at = Instant::now();
    assert!(
        at <= expiry + stalls(deadline),
        "told {:?} after the expiry",
        at - expiry
    );
    assert_eq!(guard.state(), HoldState::Lost(LossReason::LeaseOver));
    assert_matches!(
        lock.lock().await,
        Err(Error::Lost {
            reason: LossReason::LeaseOver,
            ..
        })
    );
    assert_matches!(
        guard.unlock().await,
        Err(Error::Lost {
            reason: LossReason::LeaseOver,
            ..
        })
    );
    let again = lock
        .lock()
        .await
        .expect("the lost guard is gone, so this is a new hold");
    again.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_fixed_hold_ends_while_the_watchdog_keeps_the_others() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    let lock = client.lock("a");
    let kept = lock.lock().await.expect("free");
    let fixed = lock.lease(ms(100)).lock().await.expect("nested");
    assert_eq!(told(&fixed, ms(300)).await, LossReason::LeaseOver);
    eventually("the count follows", ms(1000), || control.count("a") == 1).await;
    assert_eq!(kept.state(), HoldState::Held);
    let nested = lock
        .lock()
        .await
        .expect("the other hold still allows a re-entry");
    nested.unlock().await.expect("held");
    drop(fixed);
    kept.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn extend_moves_the_end_of_a_fixed_lease_and_never_back() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    let guard = lock.lease(ms(400)).lock().await.expect("free");
    guard.extend(Duration::from_secs(5)).await.expect("held");
    assert!(control.pttl("a") > 4900);
    assert!(guard.valid_until() > Instant::now() + ms(4800));
    guard.extend(ms(100)).await.expect("held");
    assert!(
        control.pttl("a") > 4800 && guard.valid_until() > Instant::now() + ms(4700),
        "never less than before"
    );
    tokio::time::sleep(ms(500)).await;
    assert_eq!(guard.state(), HoldState::Held, "the old end has passed");
    control.run(&["DEL", "a"]);
    assert_matches!(
        guard.extend(ms(500)).await,
        Err(Error::Lost {
            reason: LossReason::Gone,
            ..
        })
    );
    drop(guard);
    let renewed = lock.lock().await.expect("free");
    assert_matches!(renewed.extend(ms(500)).await, Err(Error::Misuse { .. }));
    renewed.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn max_hold_ends_the_renewal_and_unlocks_nothing_under_a_running_section() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    let start = Instant::now();
    let guard = client
        .lock("a")
        .max_hold(ms(2 * WATCHDOG))
        .lock()
        .await
        .expect("free");
    assert_eq!(told(&guard, ms(3 * WATCHDOG)).await, LossReason::MaxHold);
    let took = start.elapsed();
    assert!(
        took > ms(2 * WATCHDOG - 100) && took < ms(2 * WATCHDOG + 100) + stalls(start),
        "{took:?}"
    );
    // No release was sent: the key ends with its own lease, a moment later.
    assert_eq!(control.calls("publish"), 0);
    eventually("its lease ends", ms(1000), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;
    assert_eq!(control.calls("publish") + control.calls("del"), 0);
    drop(guard);

    let short = client
        .lock("a")
        .max_hold(ms(300))
        .lease(ms(5000))
        .lock()
        .await
        .expect("free");
    assert!(
        control.pttl("a") <= 300,
        "a fixed lease does not reach past it either"
    );
    assert_matches!(
        short.extend(ms(5000)).await,
        Err(Error::InvalidDuration { .. })
    );
    short.unlock().await.expect("held");
    server.finish([client]).await;
}
