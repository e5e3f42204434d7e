//! Waiting for the other side: woken by its unlock, by the end of its lease, or by its death.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::common::{Server, ms, stalls};
use crate::party::{Fail, Party, Worker};
use crate::stage::{Doomed, QUICK, Scenario, Stage, between, eventually};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("woken_by_unlock", |stage| Box::pin(woken_by_unlock(stage))).short(),
        Scenario::new("woken_by_force_unlock", |stage| Box::pin(woken_by_force_unlock(stage))),
        Scenario::new("lease_ends_under_a_waiter", |stage| Box::pin(lease_ends(stage))).short(),
        Scenario::new("killed_holder", |stage| Box::pin(killed_holder(stage))),
        Scenario::new("paused_holder", |stage| Box::pin(paused_holder(stage))),
        Scenario::new("try_lock_ends_in_time", |stage| Box::pin(try_lock_ends_in_time(stage))),
        Scenario::new("lk02_testSinglePubSub", |stage| Box::pin(lk02(stage))),
        Scenario::new("lk06_testTryLockWait", |stage| Box::pin(lk06(stage))),
        Scenario::new("lk12_testAutoExpire", |stage| Box::pin(lk12(stage))),
        Scenario::new("lk04_testRedisFailed", |stage| Box::pin(lk04(stage))).not_first(&["3.12.5"]),
        Scenario::new("sp19_testLockAsync", |stage| Box::pin(sp19(stage))),
        Scenario::new("sp20_testTimedTryLockAsync", |stage| Box::pin(sp20(stage))),
        Scenario::new("sp21_testTryLockAsyncWaitTime", |stage| Box::pin(sp21(stage))),
        Scenario::new("sp22_testTryLockAsyncFailed", |stage| Box::pin(sp22(stage))),
        Scenario::new("sp05_testExpire", |stage| Box::pin(sp05(stage))),
        Scenario::new("n1_testContendingThreadBlocksAndAcquiresOnRelease", |stage| Box::pin(n1(stage))),
    ]
}

fn begin(worker: &Worker, name: &str) -> JoinHandle<(Result<(), Fail>, Instant)> {
    let (worker, name) = (worker.clone(), name.to_owned());
    tokio::spawn(async move {
        let taken = worker.lock(&name, None).await;
        (taken, Instant::now())
    })
}

/// A lost wake-up would cost a lease of 30 s.
async fn woken_by_unlock(stage: Stage) {
    let (first, second, name) = (stage.first.worker(), stage.second.worker(), &stage.name);
    for _ in 0..5 {
        first.lock(name, Some(ms(30_000))).await.expect("free");
        let waiting = begin(&second, name);
        stage.somebody_waits(name).await;
        // Its second attempt, after subscribing.
        tokio::time::sleep(ms(30)).await;
        first.unlock(name).await.expect("held");
        let unlocked = Instant::now();
        let (taken, at) = waiting.await.expect("no panic");
        taken.expect("free");
        between("waking", at.saturating_duration_since(unlocked), 0, 250);
        second.unlock(name).await.expect("held");
    }
}

async fn woken_by_force_unlock(stage: Stage) {
    let (first, second, name) = (stage.first.worker(), stage.second.worker(), &stage.name);
    let third = stage.first.worker();
    first.lock(name, Some(ms(30_000))).await.expect("free");
    let waiting = begin(&second, name);
    stage.somebody_waits(name).await;
    tokio::time::sleep(ms(30)).await;
    third.force_unlock(name).await.expect("answered");
    let forced = Instant::now();
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("free");
    between("waking", at.saturating_duration_since(forced), 0, 250);
    first.unlock_too_late(name).await;
    second.unlock(name).await.expect("held");
}

async fn lease_ends(stage: Stage) {
    let (first, second, name) = (stage.first.worker(), stage.second.worker(), &stage.name);
    first.lock(name, Some(ms(700))).await.expect("free");
    let start = Instant::now();
    let (taken, at) = begin(&second, name).await.expect("no panic");
    taken.expect("free");
    between("the end of a lease of 700 ms", at - start, 600, 1_100);
    first.unlock_too_late(name).await;
    second.unlock(name).await.expect("still held by the waiter");
}

/// The process is gone, and its lock with its lease.
async fn killed_holder(stage: Stage) {
    let (second, name) = (stage.quick_second.worker(), &stage.name);
    let taken = || stage.control().count(name) == 1;
    let killed = if stage.first.is_rust() {
        let mut doomed = Doomed::start(stage.url(), name);
        eventually("the process holds", taken).await;
        let waiting = begin(&second, name);
        stage.somebody_waits(name).await;
        doomed.kill();
        (Instant::now(), waiting)
    } else {
        let jvm = stage.another_jvm().await;
        let holder = Party::java(&jvm, "doomed", stage.url(), QUICK).await.worker();
        holder.lock(name, None).await.expect("free");
        eventually("the JVM holds", taken).await;
        let waiting = begin(&second, name);
        stage.somebody_waits(name).await;
        drop(jvm.call("die", &[]).await);
        (Instant::now(), waiting)
    };
    let (at_death, waiting) = killed;
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("free");
    // Renewed at a third of the timeout, it may have died right after.
    between("taking over", at - at_death, 0, 1_500 + 500);
    second.unlock(name).await.expect("held");
}

/// A process that stands still loses its lock to the other side, and finds out.
async fn paused_holder(stage: Stage) {
    let (second, name) = (stage.quick_second.worker(), &stage.name);
    if stage.first.is_rust() {
        let holder = Doomed::start(stage.url(), name);
        eventually("the process holds", || stage.control().count(name) == 1).await;
        holder.signal("-STOP");
        let start = Instant::now();
        let (taken, at) = begin(&second, name).await.expect("no panic");
        taken.expect("free");
        between("taking over", at - start, 0, 1_500 + 500);
        let before = stage.control().hash(name);
        holder.signal("-CONT");
        // Whatever it does now that it runs again, it does not touch the new hold.
        tokio::time::sleep(QUICK).await;
        assert_eq!(stage.control().hash(name), before, "nothing changed");
    } else {
        let jvm = stage.another_jvm().await;
        let holder = Party::java(&jvm, "paused", stage.url(), QUICK).await.worker();
        holder.lock(name, None).await.expect("free");
        jvm.signal("-STOP");
        let start = Instant::now();
        let (taken, at) = begin(&second, name).await.expect("no panic");
        taken.expect("free");
        between("taking over", at - start, 0, 1_500 + 500);
        jvm.signal("-CONT");
        holder.unlock_too_late(name).await;
    }
    second.unlock(name).await.expect("not disturbed by the old holder");
}

async fn try_lock_ends_in_time(stage: Stage) {
    let (first, second, name) = (stage.first.worker(), stage.second.worker(), &stage.name);
    first.lock(name, None).await.expect("free");
    for wait in [0, 1, 200, 900] {
        let start = Instant::now();
        assert_eq!(second.try_lock(name, Some(ms(wait)), None).await, Ok(false));
        // Java's timers are a little early at times.
        between("waiting in vain", start.elapsed(), wait.saturating_sub(10), wait + 350);
    }
    first.unlock(name).await.expect("held");
    let start = Instant::now();
    assert_eq!(second.try_lock(name, Some(ms(900)), None).await, Ok(true));
    between("a free lock", start.elapsed(), 0, 350);
    second.unlock(name).await.expect("held");
}

/// Two names, two workers each, over one subscriber connection: never false, never an error.
async fn lk02(stage: Stage) {
    for _ in 0..2 {
        let mut tasks = tokio::task::JoinSet::new();
        for key in 0..2 {
            for party in [&stage.first, &stage.second] {
                let worker = party.worker();
                let name = format!("{}:{key}", stage.name);
                tasks.spawn(async move {
                    assert_eq!(worker.try_lock(&name, Some(ms(5_000)), None).await, Ok(true));
                    worker.unlock(&name).await.expect("held");
                });
            }
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
    }
}

async fn lk06(stage: Stage) {
    let (first, second, name) = (stage.first.worker(), stage.second.worker(), &stage.name);
    first.lock(name, None).await.expect("free");
    let start = Instant::now();
    assert_eq!(second.try_lock(name, Some(ms(3_000)), None).await, Ok(false));
    between("waiting in vain", start.elapsed(), 2_990, 3_350);
    first.unlock(name).await.expect("held");
}

/// A client that is shut down without unlocking is no danger: its lock ends with its lease.
async fn lk12(stage: Stage) {
    let (second, name) = (stage.quick_second.worker(), &stage.name);
    let leaving = match &stage.first {
        Party::Rust(_) => Party::rust(stage.url(), QUICK).await,
        Party::Java { peer, .. } => Party::java(peer, &format!("leaving {name}"), stage.url(), QUICK).await,
    };
    let holder = leaving.worker();
    holder.lock(name, None).await.expect("free");
    tokio::time::sleep(QUICK).await;
    assert!(second.is_locked(name).await, "it was renewed");
    leaving.close().await;
    let start = Instant::now();
    eventually("it is free", || stage.control().hash(name).is_empty()).await;
    between("the end of the lease", start.elapsed(), 0, 1_500 + 300);
}

/// The next owner has it at the end of the lease, and the first one's unlock is refused.
async fn sp05(stage: Stage) {
    let (first, second, name) = (stage.first.worker(), stage.second.worker(), &stage.name);
    first.lock(name, Some(ms(2_000))).await.expect("free");
    let start = Instant::now();
    second.lock(name, None).await.expect("free");
    assert!(start.elapsed() < Duration::from_millis(2_320) + stalls(), "{:?}", start.elapsed());
    first.unlock_too_late(name).await;
    second.unlock(name).await.expect("held");
}

async fn n1(stage: Stage) {
    let (first, second, name) = (stage.first.worker(), stage.second.worker(), &stage.name);
    first.lock(name, None).await.expect("free");
    let waiting = begin(&second, name);
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished(), "it is blocked");
    first.unlock(name).await.expect("held");
    waiting.await.expect("no panic").0.expect("free");
    second.unlock(name).await.expect("held");
    assert!(!first.is_locked(name).await);
}

/// Without a server an attempt is an error, not a refusal, and it comes in time.
async fn lk04(stage: Stage) {
    let server = Server::start();
    let party = match &stage.first {
        Party::Rust(_) => Party::rust(&server.url(), ms(30_000)).await,
        Party::Java { peer, .. } => {
            Party::java(peer, &format!("failing {}", stage.name), &server.url(), ms(30_000)).await
        }
    };
    let worker = party.worker();
    worker.lock(&stage.name, None).await.expect("free");
    worker.unlock(&stage.name).await.expect("held");
    drop(server);
    let tried = worker.try_lock(&stage.name, Some(ms(5_000)), Some(ms(10_000))).await;
    assert!(matches!(tried, Err(Fail::Other(_))), "{tried:?}");
}

/// Not done while it is held, done soon after the unlock.
async fn sp19(stage: Stage) {
    let (first, second, name) = (stage.first.async_worker(), stage.second.async_worker(), &stage.name);
    first.lock(name, None).await.expect("free");
    let waiting = begin(&second, name);
    tokio::time::sleep(ms(1_000)).await;
    assert!(!waiting.is_finished(), "it is held");
    let unlocking = Instant::now();
    first.unlock(name).await.expect("held");
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("free");
    between("waking", at - unlocking, 0, 250);
    second.unlock(name).await.expect("held");
}

async fn sp20(stage: Stage) {
    let (first, second, name) = (stage.first.async_worker(), stage.second.async_worker(), &stage.name);
    first.lock(name, None).await.expect("free");
    let waiting = tokio::spawn({
        let (second, name) = (second.clone(), name.clone());
        async move { second.try_lock(&name, Some(ms(2_000)), Some(ms(30_000))).await }
    });
    tokio::time::sleep(ms(500)).await;
    assert!(!waiting.is_finished(), "it is held");
    first.unlock(name).await.expect("held");
    assert_eq!(waiting.await.expect("no panic"), Ok(true));
    second.unlock(name).await.expect("held");
}

async fn sp21(stage: Stage) {
    let (first, second, name) = (stage.first.async_worker(), stage.second.async_worker(), &stage.name);
    first.lock(name, None).await.expect("free");
    let start = Instant::now();
    assert_eq!(second.try_lock(name, Some(ms(1_000)), Some(ms(30_000))).await, Ok(false));
    between("waiting in vain", start.elapsed(), 990, 1_500);
    first.unlock(name).await.expect("held");
}

async fn sp22(stage: Stage) {
    let (first, second, name) = (stage.first.async_worker(), stage.second.async_worker(), &stage.name);
    first.lock(name, None).await.expect("free");
    assert_eq!(second.try_lock(name, None, None).await, Ok(false));
    first.unlock(name).await.expect("held");
    assert_eq!(second.try_lock(name, None, None).await, Ok(true));
    second.unlock(name).await.expect("held");
}
