//! String locks on both sides: ours, and those of redis-py, of redsync, or of the commands that Spring sends.

use std::time::{Duration, Instant};

use crate::doomed::Doomed;
use crate::fixture::{Fixture, Load, QUICK, Scenario, between, eventually};
use crate::kinds::{beside_eight_tasks, found_by_a_waiter};
use crate::party::Client;
use crate::waiting::begin;
use crate::worker::kind_of;
use crate::{contention, holding, waiting};
use test_support::ms;
use test_support::peer::OF_STRINGS;

/// None of them renews by itself.
const WITHOUT_A_WATCHDOG: &[&str] = &OF_STRINGS;

/// It gives up when its next attempt would be too late, and not at the end of its time.
const IMPATIENT: &[&str] = &["redis-py"];

macro_rules! of_strings {
    ($($name:literal, $play:path;)*) => {
        vec![$(Scenario::new($name, |fixture| $play(fixture.of_kind("string"))),)*]
    };
}

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios = of_strings! {
        "exclusion", holding::exclusion;
        "unlock_by_another_is_refused", holding::unlock_by_another;
        "unlock_of_what_another_took", holding::unlock_of_what_another_took;
        "force_unlock", holding::force_unlock;
        "lease_ends_under_a_waiter", waiting::lease_ends;
        "found_by_a_waiter", found_by_a_waiter;
        "seen_from_the_other_side", seen_from_the_other_side;
        "a_key_without_an_expiry_is_not_taken_over", without_an_expiry;
    };
    scenarios.extend([
        Scenario::new("try_lock_ends_in_time", |fixture| {
            waiting::try_lock_ends_in_time(fixture.of_kind("string"))
        })
        .not_second(IMPATIENT),
        Scenario::new("watchdog_keeps_a_lock", |fixture| {
            holding::watchdog_keeps_a_lock(fixture.of_kind("string"))
        })
        .not_first(WITHOUT_A_WATCHDOG),
        Scenario::new("killed_holder", |fixture| {
            killed_holder(fixture.of_kind("string"))
        })
        .load(Load::Process),
        // What the others do to each other is their affair.
        Scenario::new("beside_eight_tasks", |fixture| {
            beside_eight_tasks(fixture.of_kind("string"))
        })
        .load(Load::Processor)
        .not_first(WITHOUT_A_WATCHDOG),
        Scenario::new("scripts_executed_twice", |fixture| {
            contention::scripts_executed_twice(fixture.of_kind("string"))
        })
        .load(Load::Processor),
        Scenario::new("mixed_workers", |fixture| {
            mixed_workers(fixture.of_kind("string"))
        })
        .load(Load::Processor),
    ]);
    scenarios.into_iter().map(Scenario::short).collect()
}

/// Any bytes are a value: hexadecimal digits, base64, or what Java serialises.
async fn seen_from_the_other_side(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    assert!(!second.is_locked(name).await);
    assert_eq!(second.lease_left(name).await, None);
    first.lock(name, Some(ms(20_000))).await.expect("free");
    assert!(second.is_locked(name).await);
    assert!(first.is_held(name).await && !second.is_held(name).await);
    for side in [first, second] {
        let left = side.lease_left(name).await.expect("held");
        between("what is left", left, 15_000, 20_000);
    }
    let value = fixture.seen(name);
    if let Client::Rust(client) = &fixture.second.client {
        let lock = client.lock_of(kind_of(name), name.as_str());
        let holder = lock.inspect().await.expect("answered").expect("held");
        assert_eq!(format!("{} 1", holder.owner), value, "as Redis has it");
        // It compares every byte, and there is no other that would do.
        assert!(lock.force_unlock().await.expect("answered"));
        assert_eq!(fixture.seen(name), "");
        first.unlock_too_late(name).await;
        return;
    }
    first.unlock(name).await.expect("held");
    assert!(!second.is_locked(name).await);
}

/// redis-py without a timeout writes such a key. It is held until its holder deletes it.
async fn without_an_expiry(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let endless = Some(Duration::ZERO);
    if fixture.first.is_rust() || first.try_lock(name, None, endless).await != Ok(true) {
        // This crate and redsync always write an expiry: something else takes it away.
        first.lock(name, Some(ms(60_000))).await.expect("free");
        fixture.control().run(&["PERSIST", name]);
    }
    let before = fixture.seen(name);
    assert_eq!(fixture.control().pttl(name), -1);
    assert_eq!(second.try_lock(name, None, None).await, Ok(false));
    let waited = second.try_lock(name, Some(ms(700)), None).await;
    assert_eq!(waited, Ok(false));
    assert_eq!(fixture.seen(name), before, "it was not taken over");
    assert_eq!(fixture.control().pttl(name), -1);
    first.unlock(name).await.expect("held");
    assert_eq!(second.try_lock(name, None, None).await, Ok(true));
    second.unlock(name).await.expect("held");
}

/// Its lease ends, and the other side finds that by its pauses.
async fn killed_holder(fixture: Fixture) {
    let (second, name) = (&fixture.quick_second.worker(), &fixture.name);
    let holder = Doomed::start(&fixture, 1).await;
    eventually("the process holds", || !fixture.seen(name).is_empty()).await;
    let before = fixture.seen(name);
    let waiting = begin(second, name);
    tokio::time::sleep(ms(200)).await;
    holder.signal("-KILL");
    let killed = Instant::now();
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("free");
    let limit = u64::try_from(QUICK.as_millis()).expect("small") + 500;
    between(
        "taking over",
        at.saturating_duration_since(killed),
        0,
        limit,
    );
    assert_ne!(fixture.seen(name), before, "another value");
    second.unlock(name).await.expect("held");
}

/// Workers of both sides read a counter and write it again: no update is lost, and no value comes twice.
async fn mixed_workers(fixture: Fixture) {
    const SECTIONS: i64 = 25;
    let counter = format!("counter {}", fixture.name);
    let values = format!("values {}", fixture.name);
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..8 {
        let party = [&fixture.first, &fixture.second][nth % 2];
        let (worker, name) = (party.worker(), fixture.name.clone());
        let (counter, values, mut control) = (counter.clone(), values.clone(), fixture.control());
        tasks.spawn(async move {
            for _ in 0..SECTIONS {
                worker.lock(&name, None).await.expect("in the end");
                let read = control.run(&["GET", &counter]);
                let read: i64 = read.parse().unwrap_or_default();
                let value = control.run(&["GET", &name]);
                let is_new = control.run(&["SADD", &values, &value]);
                tokio::task::yield_now().await;
                control.run(&["SET", &counter, &(read + 1).to_string()]);
                worker.unlock(&name).await.expect("held");
                assert_eq!(is_new, "1", "{value} was used before");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    let control = &mut fixture.control();
    assert_eq!(control.number(&["GET", &counter]), 8 * SECTIONS);
    control.run(&["DEL", &counter, &values]);
}
