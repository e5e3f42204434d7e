//! Leases of readers beside each other, those that have ended, and those of processes that are gone.

use std::time::{Duration, Instant};

use super::*;
use crate::doomed::Doomed;
use crate::fixture::{QUICK, between};
use crate::waiting::is_woken_by;

/// The keys of read holds are not renewed, so the release of another reader deletes the lock: Redisson before 3.8.1, and from
/// 3.44 to 3.52 those of all but one of a client's locks.
const LETS_KEYS_END: &[&str] = &["3.6.5", "3.52.0"];

/// A reader that joins sets the lease of the lock to its own, which may be shorter: Redisson before 3.11.1.
const SHORTENS: &[&str] = &["3.6.5"];

/// A renewal sets the keys of all readers, also of other clients: Redisson from 3.8.1 to 4.3.
const RENEWS_ALL: &[&str] = &["3.12.5", "3.20.0", "3.24.3"];

/// It does that for one of a client's locks.
const RENEWS_ALL_OF_ONE: &[&str] = &["3.52.0"];

pub fn scenarios() -> Vec<Scenario> {
    let [together, shorter, longer, late, foreign, dead, stopped] = of_readers! {
        "rw_watchdog_keeps_readers", watchdog_keeps_readers;
        "rw_shorter_lease_beside_a_longer", shorter_beside_longer;
        "rw_longer_lease_leaves", longer_leaves;
        "rw_late_unlock_beside_a_reader", late_unlock;
        "rw_renewals_beside_a_long_lease", renewals_beside_a_long_lease;
        "rw_dead_reader_beside_another", dead_reader;
        "rw_stopped_reader_beside_another", stopped_reader;
    };
    vec![
        together.not_second(LETS_KEYS_END),
        shorter.not_first(SHORTENS),
        longer,
        late.short().not_first(SHORTENS),
        foreign.short().not_first(RENEWS_ALL_OF_ONE),
        dead.load(Load::Process),
        stopped.load(Load::Process).not_second(LETS_KEYS_END),
    ]
}

/// The second party's readers renew the keys of the first one's.
fn renews_the_other(fixture: &Fixture) -> bool {
    !fixture.second.is_rust() && RENEWS_ALL.contains(&fixture.version())
}

/// A writer does not get it for this long.
async fn is_kept(fixture: &Fixture, writer: &Worker, time: Duration) {
    let (start, key, control) = (Instant::now(), &fixture.name, &mut fixture.control());
    while start.elapsed() < time {
        assert!(control.pttl(key) > 0, "it has a lease");
        assert!(!gets(writer, key).await, "one reads");
        tokio::time::sleep(ms(100)).await;
    }
}

/// Two watchdogs keep their readers, and the one that stays goes on with it.
async fn watchdog_keeps_readers(fixture: Fixture) {
    let (first, second, key) = &fixture.quick_workers();
    let writer = fixture.second.writer();
    first.lock(key, None).await.expect("free");
    second.lock(key, None).await.expect("joins");
    is_kept(&fixture, &writer, QUICK * 3).await;
    first.unlock(key).await.expect("held all the time");
    is_kept(&fixture, &writer, QUICK * 3).await;
    second.unlock(key).await.expect("held all the time");
    assert!(gets(&writer, key).await, "there is no reader");
    nothing_left(&mut fixture.control(), key).await;
}

/// A lease that ends beside a longer one frees nothing, and keeps no writer out afterwards.
async fn shorter_beside_longer(fixture: Fixture) {
    let (first, second, key) = &fixture.workers();
    let writer = fixture.first.writer();
    second.lock(key, Some(ms(30_000))).await.expect("free");
    first.lock(key, Some(ms(700))).await.expect("joins");
    assert!(
        fixture.control().pttl(key) > 20_000,
        "the longer one counts"
    );
    let waiting = waits(&fixture, &writer, key).await;
    eventually("the shorter one ends", || {
        keys(&mut fixture.control(), key).len() == 1
    })
    .await;
    tokio::time::sleep(ms(200)).await;
    assert!(!waiting.is_finished(), "one reads");
    is_woken_by(waiting, second.unlock(key)).await;
    first.unlock_too_late(key).await;
    writer.unlock(key).await.expect("held");
    nothing_left(&mut fixture.control(), key).await;
}

/// The lease of a reader that has left keeps no writer out.
async fn longer_leaves(fixture: Fixture) {
    let (first, second, key) = &fixture.workers();
    let (writer, control) = (fixture.second.writer(), &mut fixture.control());
    first.lock(key, Some(ms(60_000))).await.expect("free");
    let asked = Instant::now();
    second.lock(key, Some(ms(2_000))).await.expect("joins");
    let start = Instant::now();
    first.unlock(key).await.expect("held");
    let left = control.pttl(key);
    assert!((1..=2_000).contains(&left), "{left} ms are left");
    assert!(!gets(&writer, key).await, "one reads");
    writer.lock(key, None).await.expect("in the end");
    // Ours is over a little earlier.
    assert!(asked.elapsed() >= ms(1_700), "{:?}", asked.elapsed());
    between("a lease of 2 s", start.elapsed(), 0, 2_000 + 250);
    second.unlock_too_late(key).await;
    writer.unlock(key).await.expect("held");
    nothing_left(control, key).await;
}

/// A reader releases when its lease has ended: another one that reads is not concerned.
async fn late_unlock(fixture: Fixture) {
    let (first, second, key) = &fixture.workers();
    let (writer, control) = (fixture.second.writer(), &mut fixture.control());
    second.lock(key, Some(ms(30_000))).await.expect("free");
    first.lock(key, Some(ms(500))).await.expect("joins");
    eventually("its lease ends", || keys(control, key).len() == 1).await;
    // Redisson's field is still there, and it notices nothing.
    let unlocked = first.unlock(key).await;
    assert_eq!(unlocked.is_ok(), !fixture.first.is_rust(), "{unlocked:?}");
    assert!(control.pttl(key) > 20_000, "what the other one asked for");
    assert!(second.is_held(key).await && !first.is_held(key).await);
    assert!(!gets(&writer, key).await, "one reads");
    second.unlock(key).await.expect("held");
    assert!(gets(&writer, key).await, "there is no reader");
    nothing_left(control, key).await;
}

/// A reader of one minute beside one whose watchdog renews for 1.5 s: that one lowers the lease of the lock, or the keys of
/// others, depending on its version. The reader of a minute keeps the lock all the same, ours by its own watchdog.
async fn renewals_beside_a_long_lease(fixture: Fixture) {
    let (first, second, key) = &fixture.quick_workers();
    let (writer, control) = (fixture.second.writer(), &mut fixture.control());
    first.lock(key, Some(ms(60_000))).await.expect("free");
    second.lock(key, None).await.expect("joins");
    is_kept(&fixture, &writer, QUICK * 2).await;
    second.unlock(key).await.expect("held");
    if renews_the_other(&fixture) && !fixture.first.is_rust() {
        // Its key has been shortened, and nothing raises it again.
        let wait = Some(QUICK + ms(250));
        assert_eq!(writer.try_lock(key, wait, None).await, Ok(true));
        first.unlock_too_late(key).await;
        return writer.unlock(key).await.expect("held");
    }
    is_kept(&fixture, &writer, QUICK * 2).await;
    assert_eq!(first.hold_count(key).await, 1);
    eventually("it has its lease again", || {
        keys(control, key).iter().all(|(_, left)| *left > 40_000) && control.pttl(key) > 40_000
    })
    .await;
    first.unlock(key).await.expect("held all the time");
    assert!(gets(&writer, key).await, "there is no reader");
    nothing_left(control, key).await;
}

/// A process that read is gone. Another reader keeps the lock, and when it leaves, the dead one keeps no writer out for longer
/// than one lease.
async fn dead_reader(fixture: Fixture) {
    let (second, key) = (&fixture.quick_second.reader(), &fixture.name);
    let (writer, control) = (fixture.quick_second.writer(), &mut fixture.control());
    second.lock(key, None).await.expect("free");
    let dead = Doomed::start(&fixture, 2).await;
    eventually("the process reads", || fixture.count(key) == 3).await;
    dead.signal("-KILL");
    is_kept(&fixture, &writer, QUICK * 2).await;
    let waiting = waits(&fixture, &writer, key).await;
    second.unlock(key).await.expect("held all the time");
    let freed = Instant::now();
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("in the end");
    between(
        "after the last one",
        at.saturating_duration_since(freed),
        0,
        1_500 + 250,
    );
    writer.unlock(key).await.expect("held");
    nothing_left(control, key).await;
}

/// A process that reads stands still until its key has ended, and goes on. Its lock has been kept by another reader: it may
/// take notice or not, but it keeps no writer out for longer than one lease after that one has left.
async fn stopped_reader(fixture: Fixture) {
    let (second, key) = (&fixture.quick_second.reader(), &fixture.name);
    let (writer, control) = (fixture.quick_second.writer(), &mut fixture.control());
    second.lock(key, None).await.expect("free");
    let others = keys(control, key).remove(0).0;
    let stopped = Doomed::start(&fixture, 1).await;
    eventually("the process reads", || fixture.count(key) == 2).await;
    stopped.signal("-STOP");
    if renews_the_other(&fixture) {
        is_kept(&fixture, &writer, QUICK * 2).await;
        assert_eq!(keys(control, key).len(), 2, "the other one renews both");
    } else {
        let all_others = |keys: Vec<(String, i64)>| keys.iter().all(|(key, _)| *key == others);
        eventually("its key ends", || all_others(keys(control, key))).await;
    }
    stopped.signal("-CONT");
    is_kept(&fixture, &writer, QUICK).await;
    second.unlock(key).await.expect("held all the time");
    if renews_the_other(&fixture) && !fixture.first.is_rust() {
        // It has noticed nothing, and goes on.
        is_kept(&fixture, &writer, QUICK * 2).await;
        stopped.signal("-KILL");
    }
    let start = Instant::now();
    writer.lock(key, None).await.expect("in the end");
    between("after the last one", start.elapsed(), 0, 1_500 + 250);
    writer.unlock(key).await.expect("held");
    nothing_left(control, key).await;
}
