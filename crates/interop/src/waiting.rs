//! Waiting for the other side: woken by its unlock or by the end of its lease, or in vain.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::fixture::{Fixture, Scenario, between};
use crate::worker::{Fail, Worker};
use test_support::{ms, stalls};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("woken_by_unlock", woken_by_unlock).short(),
        Scenario::new("woken_by_force_unlock", woken_by_force_unlock),
        Scenario::new("lease_ends_under_a_waiter", lease_ends).short(),
        Scenario::new("try_lock_ends_in_time", try_lock_ends_in_time),
        Scenario::new("lk02_testSinglePubSub", lk02),
        Scenario::new("lk06_testTryLockWait", lk06),
        Scenario::new("sp19_testLockAsync", sp19),
        Scenario::new("held_by_a_thread_id", held_by_a_thread_id).not_first(&["3.6.5"]),
        Scenario::new("sp20_testTimedTryLockAsync", sp20),
        Scenario::new("sp21_testTryLockAsyncWaitTime", sp21),
        Scenario::new("sp22_testTryLockAsyncFailed", sp22),
        Scenario::new("sp05_testExpire", sp05),
        Scenario::new("n1_testContendingThreadBlocksAndAcquiresOnRelease", n1),
    ]
}

/// What an attempt that waits brings, and when.
pub type Waiting = JoinHandle<(Result<(), Fail>, Instant)>;

pub fn begin(worker: &Worker, name: &str) -> Waiting {
    let (worker, name) = (worker.clone(), name.to_owned());
    tokio::spawn(async move {
        let taken = worker.lock(&name, None).await;
        (taken, Instant::now())
    })
}

/// A waiter has the lock soon after it was freed.
pub async fn is_woken_by<T>(waiting: Waiting, freeing: impl Future<Output = Result<T, Fail>>) {
    freeing.await.expect("held");
    let freed = Instant::now();
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("free");
    between("waking", at.saturating_duration_since(freed), 0, 250);
}

/// A lost wake-up would cost a lease of 30 s.
pub async fn woken_by_unlock(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    for _ in 0..5 {
        first.lock(name, Some(ms(30_000))).await.expect("free");
        let waiting = begin(second, name);
        fixture.wait_for_waiter(name).await;
        // Its second attempt, after subscribing.
        second.sleeps().await;
        is_woken_by(waiting, first.unlock(name)).await;
        second.unlock(name).await.expect("held");
    }
}

pub async fn woken_by_force_unlock(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let third = fixture.first.worker();
    first.lock(name, Some(ms(30_000))).await.expect("free");
    let waiting = begin(second, name);
    fixture.wait_for_waiter(name).await;
    second.sleeps().await;
    is_woken_by(waiting, third.force_unlock(name)).await;
    first.unlock_too_late(name).await;
    second.unlock(name).await.expect("held");
}

pub async fn lease_ends(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let asked = Instant::now();
    first.lock(name, Some(ms(700))).await.expect("free");
    let start = Instant::now();
    let (taken, at) = begin(second, name).await.expect("no panic");
    taken.expect("free");
    // Redis reads its clock before it runs the commands that have come in, and counts from there.
    assert!(
        at - asked >= ms(650),
        "a lease of 700 ms took {:?}",
        at - asked
    );
    between("the end of a lease of 700 ms", at - start, 0, 1_100);
    first.unlock_too_late(name).await;
    second.unlock(name).await.expect("still held by the waiter");
}

pub async fn try_lock_ends_in_time(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, None).await.expect("free");
    for wait in [0, 1, 200, 900] {
        let start = Instant::now();
        assert_eq!(second.try_lock(name, Some(ms(wait)), None).await, Ok(false));
        // Java's timers are a little early at times.
        between(
            "waiting in vain",
            start.elapsed(),
            wait.saturating_sub(10),
            wait + 350,
        );
    }
    first.unlock(name).await.expect("held");
    let start = Instant::now();
    assert_eq!(second.try_lock(name, Some(ms(900)), None).await, Ok(true));
    between("a free lock", start.elapsed(), 0, 350);
    second.unlock(name).await.expect("held");
}

/// Two names, two workers each, over one subscriber connection: never false, never an error.
async fn lk02(fixture: Fixture) {
    for _ in 0..2 {
        let mut tasks = tokio::task::JoinSet::new();
        for key in 0..2 {
            for party in [&fixture.first, &fixture.second] {
                let worker = party.worker();
                let name = format!("{}:{key}", fixture.name);
                tasks.spawn(async move {
                    assert_eq!(
                        worker.try_lock(&name, Some(ms(5_000)), None).await,
                        Ok(true)
                    );
                    worker.unlock(&name).await.expect("held");
                });
            }
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
    }
}

async fn lk06(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, None).await.expect("free");
    let start = Instant::now();
    assert_eq!(
        second.try_lock(name, Some(ms(3_000)), None).await,
        Ok(false)
    );
    between("waiting in vain", start.elapsed(), 2_990, 3_350);
    first.unlock(name).await.expect("held");
}

/// The next owner has it at the end of the lease, and the first one's unlock is refused.
async fn sp05(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, Some(ms(2_000))).await.expect("free");
    let start = Instant::now();
    second.lock(name, None).await.expect("free");
    assert!(
        start.elapsed() < Duration::from_millis(2_320) + stalls(start),
        "{:?}",
        start.elapsed()
    );
    first.unlock_too_late(name).await;
    second.unlock(name).await.expect("held");
}

async fn n1(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, None).await.expect("free");
    let waiting = begin(second, name);
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished(), "it is blocked");
    first.unlock(name).await.expect("held");
    waiting.await.expect("no panic").0.expect("free");
    second.unlock(name).await.expect("held");
    assert!(!first.is_locked(name).await);
}

/// Not done while it is held, done soon after the unlock.
async fn sp19(fixture: Fixture) {
    let (first, second, name) = &fixture.async_workers();
    first.lock(name, None).await.expect("free");
    let waiting = begin(second, name);
    tokio::time::sleep(ms(1_000)).await;
    assert!(!waiting.is_finished(), "it is held");
    is_woken_by(waiting, first.unlock(name)).await;
    second.unlock(name).await.expect("held");
}

/// A thread id is any number, and one of no running thread will do. Redisson asks by it since
/// `isHeldByThread`.
async fn held_by_a_thread_id(fixture: Fixture) {
    let (first, _, name) = &fixture.async_workers();
    let (neighbour, second) = (fixture.first.async_worker(), fixture.second.worker());
    assert!(!first.is_held(name).await);
    first.lock(name, None).await.expect("free");
    assert!(first.is_held(name).await && !neighbour.is_held(name).await);
    assert!(second.is_locked(name).await && !second.is_held(name).await);
    assert_eq!(neighbour.unlock(name).await, Err(Fail::NotHeld));
    first.unlock(name).await.expect("held");
    assert!(!first.is_held(name).await && !second.is_locked(name).await);
}

async fn sp20(fixture: Fixture) {
    let (first, second, name) = &fixture.async_workers();
    first.lock(name, None).await.expect("free");
    let waiting = tokio::spawn({
        let (second, name) = (second.clone(), name.clone());
        async move {
            second
                .try_lock(&name, Some(ms(2_000)), Some(ms(30_000)))
                .await
        }
    });
    tokio::time::sleep(ms(500)).await;
    assert!(!waiting.is_finished(), "it is held");
    first.unlock(name).await.expect("held");
    assert_eq!(waiting.await.expect("no panic"), Ok(true));
    second.unlock(name).await.expect("held");
}

async fn sp21(fixture: Fixture) {
    let (first, second, name) = &fixture.async_workers();
    first.lock(name, None).await.expect("free");
    let start = Instant::now();
    assert_eq!(
        second
            .try_lock(name, Some(ms(1_000)), Some(ms(30_000)))
            .await,
        Ok(false)
    );
    between("waiting in vain", start.elapsed(), 990, 1_500);
    first.unlock(name).await.expect("held");
}

async fn sp22(fixture: Fixture) {
    let (first, second, name) = &fixture.async_workers();
    first.lock(name, None).await.expect("free");
    assert_eq!(second.try_lock(name, None, None).await, Ok(false));
    first.unlock(name).await.expect("held");
    assert_eq!(second.try_lock(name, None, None).await, Ok(true));
    second.unlock(name).await.expect("held");
}
