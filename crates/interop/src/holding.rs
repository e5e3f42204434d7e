//! Who holds, how often and for how long, seen from both sides. With the cases of Redisson's own
//! suite for the plain lock, under their Java names (`lk…`).

use std::time::Duration;

use redisson_lock::LossReason;

use crate::fixture::{ALL, Fixture, QUICK, Scenario, between};
use crate::party::{Client, Party};
use crate::waiting::{begin, is_woken_by};
use crate::worker::{Fail, kind_of};
use test_support::kinds::token_key;
use test_support::ms;

mod cases;

use cases::{delete, lk05, lk08, lk10, lk13, lk14, lk15, lk16, lk18, lk19, lk20, lk21};

/// Redisson has name mappers since 3.15.4.
pub const WITHOUT_PREFIX: &[&str] = &["3.6.5", "3.12.5"];

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("exclusion", exclusion).short(),
        Scenario::new("nested_holds", nested_holds).short(),
        Scenario::new("seen_from_the_other_side", seen_from_the_other_side).short(),
        Scenario::new("unlock_by_another_is_refused", unlock_by_another).short(),
        Scenario::new("names", names),
        Scenario::new("prefix", prefix)
            .not_first(WITHOUT_PREFIX)
            .not_second(WITHOUT_PREFIX),
        Scenario::new("watchdog_keeps_a_lock", watchdog_keeps_a_lock),
        Scenario::new("force_unlock", force_unlock).short(),
        Scenario::new(
            "force_unlock_of_a_fixed_lease",
            force_unlock_of_a_fixed_lease,
        ),
        Scenario::new("unlock_of_what_another_took", unlock_of_what_another_took).short(),
        Scenario::new("taken_over", taken_over)
            .short()
            .not_second(ALL),
        Scenario::new("lk05_testRemainTimeToLive2", lk05)
            .not_first(&["3.12.5", "3.20.0", "3.24.3"]),
        Scenario::new("lk08_testForceUnlock", lk08),
        Scenario::new("testDelete", delete),
        Scenario::new("lk10_testRemainTimeToLive", lk10),
        Scenario::new("lk13_testGetHoldCount", lk13),
        Scenario::new("lk14_testIsHeldByCurrentThreadOtherThread", lk14),
        Scenario::new("lk15_testIsHeldByCurrentThread", lk15),
        Scenario::new("lk16_testIsLockedOtherThread", lk16),
        Scenario::new("lk18_testIsLocked", lk18),
        Scenario::new("lk19_testUnlockFail", lk19),
        Scenario::new("lk20_testLockUnlock", lk20),
        Scenario::new("lk21_testReentrancy", lk21),
    ]
}

pub async fn exclusion(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    for _ in 0..3 {
        first.lock(name, None).await.expect("free");
        assert_eq!(second.try_lock(name, None, None).await, Ok(false), "held");
        // Each part of Redisson's says whether it is locked itself.
        assert!(fixture.is_read_write || second.is_locked(name).await);
        first.unlock(name).await.expect("held");
        assert_eq!(second.try_lock(name, None, None).await, Ok(true), "free");
        assert_eq!(
            first.try_lock(name, None, None).await,
            Ok(false),
            "held by the other side"
        );
        second.unlock(name).await.expect("held");
    }
    assert_eq!(fixture.seen(name), "", "nothing is left");
}

pub async fn nested_holds(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    for count in 1..=3 {
        first
            .lock(name, None)
            .await
            .expect("free, or held by itself");
        assert_eq!(fixture.count(name), count);
        assert_eq!(second.try_lock(name, None, None).await, Ok(false));
    }
    for left in (0..3).rev() {
        first.unlock(name).await.expect("held");
        assert_eq!(fixture.count(name), left);
        assert_eq!(second.try_lock(name, None, None).await, Ok(left == 0));
    }
    second.unlock(name).await.expect("held");
}

pub async fn seen_from_the_other_side(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    assert!(!second.is_locked(name).await);
    assert_eq!(second.lease_left(name).await, None);
    first.lock(name, Some(ms(20_000))).await.expect("free");
    first
        .lock(name, Some(ms(20_000)))
        .await
        .expect("held by itself");
    assert!(second.is_locked(name).await);
    assert!(!second.is_held(name).await, "not by this worker");
    assert_eq!(
        (first.hold_count(name).await, second.hold_count(name).await),
        (2, 0)
    );
    for side in [&first, &second] {
        between(
            "what is left",
            side.lease_left(name).await.expect("held"),
            15_000,
            20_000,
        );
    }
    if let Client::Rust(client) = &fixture.second.client {
        let holder = client
            .lock_of(kind_of(name), name.as_str())
            .inspect()
            .await
            .expect("answered")
            .expect("held");
        assert_eq!(holder.hold_count, 2);
        let field = fixture.control().run(&["HKEYS", name]);
        assert_eq!(holder.owner, field, "as Redis has it");
    }
    first.unlock(name).await.expect("held");
    assert_eq!(
        (first.hold_count(name).await, first.is_held(name).await),
        (1, true)
    );
    first.unlock(name).await.expect("held");
    assert!(!second.is_locked(name).await);
}

pub async fn unlock_by_another(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, Some(ms(20_000))).await.expect("free");
    let before = fixture.seen(name);
    assert_eq!(second.unlock(name).await, Err(Fail::NotHeld));
    assert_eq!(fixture.seen(name), before, "nothing changed");
    first.unlock(name).await.expect("held");
    first.unlock_too_late(name).await;
}

/// Keys and channels are the same whatever the name: each side finds, and wakes, the other.
pub async fn names(fixture: Fixture) {
    const NAMES: [&str; 10] = [
        "{tag}:a",
        "a{tag}b",
        "un{closed",
        "un}opened",
        "{}empty",
        "with spaces",
        "quo\"ted 'name'",
        "Zürich:東京",
        "😀🔒",
        "a:b/c?d=e&f%20g",
    ];
    let (first, second) = (fixture.first.worker(), fixture.second.worker());
    for name in NAMES {
        // The kind stands before it.
        let name = &match fixture.name.split_once('/') {
            Some((kind, rest)) => format!("{kind}/{name} {rest}"),
            None => format!("{name} {}", fixture.name),
        };
        first.lock(name, None).await.expect("free");
        assert_eq!(fixture.count(name), 1, "the key is the name: {name}");
        assert_eq!(second.try_lock(name, None, None).await, Ok(false), "{name}");
        let waiting = tokio::spawn({
            let (second, name) = (second.clone(), name.clone());
            async move { second.try_lock(&name, Some(ms(10_000)), None).await }
        });
        fixture.wait_for_waiter(name).await;
        if fixture.is_read_write {
            second.sleeps().await;
        }
        first.unlock(name).await.expect("held");
        let start = std::time::Instant::now();
        assert_eq!(waiting.await.expect("no panic"), Ok(true), "{name}");
        between("waking", start.elapsed(), 0, 1_000);
        second.unlock(name).await.expect("held");
    }
}

/// Our `key_prefix` is Redisson's name mapper that puts it before each name: each side finds, and wakes, the other.
pub async fn prefix(fixture: Fixture) {
    for prefix in ["shop:", "{shop}:"] {
        let url = fixture.url();
        let clients = [
            fixture.first.prefixed(url, ms(30_000), prefix).await,
            fixture.second.prefixed(url, ms(30_000), prefix).await,
        ];
        let [first, second] = &clients.each_ref().map(Party::worker);
        let name = &fixture.name;
        let key = &format!("{prefix}{name}");
        first.lock(name, None).await.expect("free");
        assert_eq!((fixture.count(key), fixture.count(name)), (1, 0));
        assert_eq!(second.try_lock(name, None, None).await, Ok(false));
        let waiting = begin(second, name);
        fixture.wait_for_waiter(key).await;
        if fixture.is_read_write {
            second.sleeps().await;
        }
        is_woken_by(waiting, first.unlock(name)).await;
        second.unlock(name).await.expect("held");
        if name.starts_with("fenced/") {
            let token = fixture.control().number(&["GET", &token_key(key)]);
            assert_eq!(token, 2, "one key for both sides");
        }
        for client in clients {
            client.close().await;
        }
    }
}

pub async fn watchdog_keeps_a_lock(fixture: Fixture) {
    let (first, second, name) = &fixture.quick_workers();
    first.lock(name, None).await.expect("free");
    let waiting = tokio::spawn({
        let (second, name) = (second.clone(), name.clone());
        async move { second.lock(&name, None).await }
    });
    let start = std::time::Instant::now();
    let mut control = fixture.control();
    while start.elapsed() < QUICK * 7 / 2 {
        assert!(control.pttl(name) > 0, "it has a lease");
        assert!(
            !waiting.is_finished(),
            "the watchdog keeps it from the waiter"
        );
        tokio::time::sleep(ms(100)).await;
    }
    first.unlock(name).await.expect("held all the time");
    waiting.await.expect("no panic").expect("free");
    second.unlock(name).await.expect("held");
}

pub async fn force_unlock(fixture: Fixture) {
    forced(fixture, None).await;
}

async fn force_unlock_of_a_fixed_lease(fixture: Fixture) {
    forced(fixture, Some(ms(60_000))).await;
}

/// Our side is told of it; Java finds out by its next unlock.
async fn forced(fixture: Fixture, lease: Option<Duration>) {
    let (first, second, name) = &fixture.quick_workers();
    first.lock(name, lease).await.expect("free");
    let lost = first.lost(name);
    second.force_unlock(name).await.expect("answered");
    let start = std::time::Instant::now();
    assert_eq!(fixture.seen(name), "");
    if let Some(lost) = lost {
        let reason = tokio::time::timeout(ms(5_000), lost)
            .await
            .expect("it is told");
        assert_eq!(reason, LossReason::Gone);
        // A third of the watchdog timeout plus the command timeout, which is a quarter of it.
        let bound = QUICK / 3 + QUICK / 4;
        between(
            "being told",
            start.elapsed(),
            0,
            u64::try_from(bound.as_millis()).expect("small"),
        );
        assert_eq!(first.unlock(name).await, Err(Fail::Lost(LossReason::Gone)));
    } else {
        first.unlock_too_late(name).await;
    }
    assert_eq!(
        second.try_lock(name, None, None).await,
        Ok(true),
        "it is free"
    );
    second.unlock(name).await.expect("held");
}

/// The former holder finds that it has lost the lock, and a third owner, of its side, gets it after the new holder.
pub async fn taken_over(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, None).await.expect("free");
    let third = fixture.first.worker();
    let waiting = begin(&third, name);
    second.take_over(name).await;
    assert!(second.is_held(name).await && !first.is_held(name).await);
    let before = fixture.seen(name);
    first.unlock_too_late(name).await;
    assert_eq!(fixture.seen(name), before, "nothing changed");
    assert!(!waiting.is_finished());
    second.unlock(name).await.expect("held");
    let (taken, _) = waiting.await.expect("no panic");
    taken.expect("it comes next");
    third.unlock(name).await.expect("held");
}

/// Not told yet, the old holder unlocks: that must not touch the new one.
pub async fn unlock_of_what_another_took(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, None).await.expect("free");
    second.force_unlock(name).await.expect("answered");
    second.lock(name, Some(ms(20_000))).await.expect("free");
    let before = fixture.seen(name);
    first.unlock_too_late(name).await;
    assert_eq!(fixture.seen(name), before, "nothing changed");
    second.unlock(name).await.expect("held");
}
