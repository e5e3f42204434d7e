//! One side is killed, stopped, interrupted or shut down in the middle: the other goes on, by lease
//! at the latest.

use std::time::{Duration, Instant};

use crate::doomed::Doomed;
use crate::fixture::{ALL, Fixture, Load, QUICK, Scenario, between, eventually};
use crate::stored::channel;
use crate::waiting::{begin, is_woken_by};
use test_support::{Monitor, ms};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("killed_holder", killed_holder).load(Load::Process),
        Scenario::new("killed_waiter", killed_waiter).load(Load::Process),
        Scenario::new("paused_holder", paused_holder).load(Load::Process),
        Scenario::new("paused_waiter", paused_waiter).load(Load::Process),
        Scenario::new("interrupted_try_lock", interrupted_try_lock).not_first(ALL),
        Scenario::new("lk07_testLockUninterruptibly", lk07).not_second(&["3.6.5"]),
        Scenario::new("lk12_testAutoExpire", lk12),
    ]
}

/// The process is gone in the middle of a nested hold, and its lock with its lease.
pub async fn killed_holder(fixture: Fixture) {
    let (second, name) = (&fixture.quick_second.worker(), &fixture.name);
    let holder = Doomed::start(&fixture, 2).await;
    eventually("the process holds twice", || fixture.count(name) == 2).await;
    let waiting = begin(second, name);
    fixture.wait_for_waiter(name).await;
    holder.signal("-KILL");
    let killed = Instant::now();
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("free");
    // Renewed at a third of the timeout, it may have died right after. Who waits for a spin lock pauses.
    between("taking over", at - killed, 0, 1_500 + 500);
    second.unlock(name).await.expect("held");
}

/// A waiter that is gone does not keep what it waited for.
pub async fn killed_waiter(fixture: Fixture) {
    let (second, name) = (&fixture.second.worker(), &fixture.name);
    second.lock(name, Some(ms(30_000))).await.expect("free");
    let waiter = Doomed::start(&fixture, 1).await;
    fixture.wait_for_waiter(name).await;
    waiter.signal("-KILL");
    fixture.nobody_waits(name).await;
    second.unlock(name).await.expect("held");
    assert_eq!(fixture.control().hash(name), "", "the dead take nothing");
    let third = fixture.second.worker();
    assert_eq!(third.try_lock(name, None, None).await, Ok(true));
    third.unlock(name).await.expect("held");
}

/// A process that stands still loses its lock to the other side, and finds out.
pub async fn paused_holder(fixture: Fixture) {
    let (second, name) = (&fixture.quick_second.worker(), &fixture.name);
    let holder = Doomed::start(&fixture, 1).await;
    eventually("the process holds", || fixture.count(name) == 1).await;
    holder.signal("-STOP");
    let start = Instant::now();
    let (taken, at) = begin(second, name).await.expect("no panic");
    taken.expect("free");
    between("taking over", at - start, 0, 1_500 + 500);
    let before = fixture.control().hash(name);
    holder.signal("-CONT");
    holder.unlocks_too_late(name).await;
    // Whatever its watchdog does now that it runs again, it does not touch the new hold.
    tokio::time::sleep(QUICK).await;
    assert_eq!(fixture.control().hash(name), before, "nothing changed");
    second
        .unlock(name)
        .await
        .expect("not disturbed by the old holder");
}

/// A waiter that stands still misses its turn; it takes no lock that another has got meanwhile, and
/// is served later.
async fn paused_waiter(fixture: Fixture) {
    let (second, third, name) = &fixture.second_workers();
    second.lock(name, Some(ms(30_000))).await.expect("free");
    let monitor = Monitor::start(fixture.port());
    let waiter = Doomed::start(&fixture, 1).await;
    fixture.wait_for_waiter(name).await;
    attempts_no_more(monitor, &fixture).await;
    waiter.sleeps().await;
    waiter.signal("-STOP");
    second.unlock(name).await.expect("held");
    third
        .lock(name, Some(ms(30_000)))
        .await
        .expect("the first in line stands still");
    let before = fixture.control().hash(name);
    waiter.signal("-CONT");
    tokio::time::sleep(ms(300)).await;
    assert_eq!(fixture.control().hash(name), before, "nothing changed");
    let monitor = Monitor::start(fixture.port());
    third.unlock(name).await.expect("held");
    let is_served = async {
        while fixture.control().count(name) != 1 {
            tokio::time::sleep(ms(5)).await;
        }
    };
    if tokio::time::timeout(ms(20_000), is_served).await.is_err() {
        let mut control = fixture.control();
        let listeners = control.run(&["PUBSUB", "NUMSUB", &channel(name)]);
        let mut seen = monitor.take(&mut control);
        seen.retain(|line| line.contains(&**name));
        panic!("the waiter is not served; {listeners}: {seen:#?}");
    }
    assert!(!second.is_held(name).await && !third.is_held(name).await);
    waiter.signal("-KILL");
    eventually("its lease ends", || fixture.control().hash(name).is_empty()).await;
}

/// Waits until the only waiter has made the attempt after its subscription. One that is stopped with this attempt under
/// way gets the lock while it stands still.
async fn attempts_no_more(monitor: Monitor, fixture: &Fixture) {
    let (mut control, mut subscribed) = (fixture.control(), false);
    let attempted = move || {
        let seen = monitor.take(&mut control);
        let mut seen = seen.iter().filter(|line| line.contains(&*fixture.name));
        seen.any(|line| {
            subscribed |= line.contains("SUBSCRIBE\"");
            subscribed && line.contains("] \"EVAL")
        })
    };
    eventually("it has attempted again", attempted).await;
}

/// An attempt by a thread that is interrupted, ours: one that is dropped at any point, leaves
/// nothing that is renewed.
async fn interrupted_try_lock(fixture: Fixture) {
    let (first, second, name) = &fixture.quick_workers();
    for nth in 0..8 {
        let attempt = first
            .interrupted_try_lock(name, Duration::from_micros(nth * 150))
            .await;
        if attempt == Some(Ok(true)) {
            // It was over before.
            first.unlock(name).await.expect("held");
        }
        assert_eq!(
            second.try_lock(name, Some(QUICK * 2), None).await,
            Ok(true),
            "nobody keeps it"
        );
        second.unlock(name).await.expect("held");
    }
}

/// A waiter goes on waiting, though its thread is interrupted (ours: though a waiter beside it is
/// dropped).
async fn lk07(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, Some(ms(30_000))).await.expect("free");
    let waiting = begin(second, name);
    fixture.wait_for_waiter(name).await;
    second.interrupt(name).await;
    tokio::time::sleep(ms(200)).await;
    assert!(!waiting.is_finished(), "it has not given up");
    is_woken_by(waiting, first.unlock(name)).await;
    second.unlock(name).await.expect("held");
}

/// A client that is shut down without unlocking is no danger: its lock ends with its lease.
async fn lk12(fixture: Fixture) {
    let (second, name) = (&fixture.quick_second.worker(), &fixture.name);
    let leaving = fixture.first.another(fixture.url(), QUICK, &[]).await;
    let holder = leaving.worker();
    holder.lock(name, None).await.expect("free");
    tokio::time::sleep(QUICK).await;
    assert!(second.is_locked(name).await, "it was renewed");
    leaving.close().await;
    let start = Instant::now();
    eventually("it is free", || fixture.control().hash(name).is_empty()).await;
    between("the end of the lease", start.elapsed(), 0, 1_500 + 300);
}
