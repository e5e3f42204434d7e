//! Fenced and spin locks on both sides. The name of a lock begins with its kind.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::fixture::{ALL, Fixture, Load, Scenario};
use crate::waiting::{begin, is_woken_by};
use crate::{contention, failures, holding, tokens, waiting};
use test_support::ms;

/// Redisson has spin locks since 3.15 and fenced ones since 3.19.
const WITHOUT: &[&str] = &["3.6.5", "3.12.5"];

macro_rules! of_both_kinds {
    ($($fenced:literal, $spin:literal, $play:path;)*) => {
        vec![$(
            Scenario::new($fenced, |fixture| $play(fixture.of_kind("fenced"))),
            Scenario::new($spin, |fixture| $play(fixture.of_kind("spin"))),
        )*]
    };
}

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios = of_both_kinds! {
        "fenced_exclusion", "spin_exclusion", holding::exclusion;
        "fenced_nested_holds", "spin_nested_holds", holding::nested_holds;
        "fenced_seen_from_the_other_side", "spin_seen_from_the_other_side", holding::seen_from_the_other_side;
        "fenced_watchdog_keeps_a_lock", "spin_watchdog_keeps_a_lock", holding::watchdog_keeps_a_lock;
        "fenced_force_unlock", "spin_force_unlock", holding::force_unlock;
        "fenced_lease_ends_under_a_waiter", "spin_lease_ends_under_a_waiter", waiting::lease_ends;
        "fenced_try_lock_ends_in_time", "spin_try_lock_ends_in_time", waiting::try_lock_ends_in_time;
        "fenced_names", "spin_names", holding::names;
        "fenced_prefix", "spin_prefix", holding::prefix;
        "fenced_unlock_by_another_is_refused", "spin_unlock_by_another_is_refused", holding::unlock_by_another;
        "fenced_unlock_of_what_another_took", "spin_unlock_of_what_another_took", holding::unlock_of_what_another_took;
    };
    scenarios.extend(
        of_both_kinds! {
            "fenced_killed_holder", "spin_killed_holder", failures::killed_holder;
            "fenced_paused_holder", "spin_paused_holder", failures::paused_holder;
        }
        .into_iter()
        .map(|scenario| scenario.load(Load::Process)),
    );
    scenarios.extend([
        Scenario::new("fenced_woken_by_unlock", |fixture| {
            waiting::woken_by_unlock(fixture.of_kind("fenced"))
        }),
        Scenario::new("fenced_tokens_grow", fenced_tokens_grow).short(),
        Scenario::new("fenced_tokens_of_processes", tokens::of_processes)
            .load(Load::Processor)
            .not_first(ALL),
        Scenario::new("fenced_tokens_of_many", fenced_tokens_of_many).load(Load::Processor),
        Scenario::new("fenced_scripts_executed_twice", |fixture| {
            contention::scripts_executed_twice(fixture.of_kind("fenced"))
        })
        .load(Load::Processor),
        Scenario::new("spin_scripts_executed_twice", |fixture| {
            contention::scripts_executed_twice(fixture.of_kind("spin"))
        })
        .load(Load::Processor),
        Scenario::new("spin_found_by_a_waiter", |fixture| {
            found_by_a_waiter(fixture.of_kind("spin"))
        })
        .short(),
        Scenario::new("spin_beside_eight_tasks", |fixture| {
            beside_eight_tasks(fixture.of_kind("spin"))
        })
        .load(Load::Processor)
        .not_first(ALL),
    ]);
    let new_enough = |scenario: Scenario| match scenario.not_first {
        [] => scenario.not_first(WITHOUT).not_second(WITHOUT),
        _ => scenario.not_second(WITHOUT),
    };
    scenarios.into_iter().map(new_enough).collect()
}

/// Each holder raises the token that the other side has left.
async fn fenced_tokens_grow(fixture: Fixture) {
    let fixture = fixture.of_kind("fenced");
    let (first, second, name) = &fixture.workers();
    let control = &mut fixture.control();
    let key = format!("redisson_lock_token:{{{name}}}");
    let mut latest = 0;
    for worker in [first, second, second, first, second] {
        worker.lock(name, None).await.expect("free");
        let token = control.number(&["GET", &key]);
        assert!(token > latest, "{token} after {latest}");
        latest = token;
        // Redisson raises it for this one too, this client does not.
        worker.lock(name, None).await.expect("held by itself");
        worker.unlock(name).await.expect("held");
        worker.unlock(name).await.expect("held");
    }
    assert_eq!(control.pttl(&key), -1, "it has no expiry");
}

/// Eight workers of both sides: each holder has a larger token than all before.
async fn fenced_tokens_of_many(fixture: Fixture) {
    const SECTIONS: usize = 60;
    let fixture = fixture.of_kind("fenced");
    let key = format!("redisson_lock_token:{{{}}}", fixture.name);
    let tokens = Arc::<Mutex<Vec<i64>>>::default();
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..8 {
        let party = [&fixture.first, &fixture.second][nth % 2];
        let (worker, name) = (party.worker(), fixture.name.clone());
        let (tokens, key, mut control) = (Arc::clone(&tokens), key.clone(), fixture.control());
        tasks.spawn(async move {
            for _ in 0..SECTIONS {
                worker.lock(&name, None).await.expect("in the end");
                let token = control.number(&["GET", &key]);
                tokens.lock().expect("unpoisoned").push(token);
                worker.unlock(&name).await.expect("held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    let tokens = tokens.lock().expect("unpoisoned");
    assert_eq!(tokens.len(), 8 * SECTIONS);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

/// Eight tasks of our client never leave the lock alone. A client that waits by pauses has it all the same, as it is
/// left free for a moment at regular intervals.
pub async fn beside_eight_tasks(fixture: Fixture) {
    const TIMES: usize = 20;
    const SECTIONS: usize = 500;
    let (stop, sections) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (worker, name) = (fixture.first.worker(), fixture.name.clone());
        let (stop, sections) = (Arc::clone(&stop), Arc::clone(&sections));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                worker.lock(&name, None).await.expect("in the end");
                worker.unlock(&name).await.expect("held");
                sections.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let (other, name, start) = (fixture.second.worker(), &fixture.name, Instant::now());
    let (minute, mut times) = (Duration::from_secs(60), 0);
    let others = || sections.load(Ordering::Relaxed);
    while (times < TIMES || others() < SECTIONS) && start.elapsed() < minute {
        let left = minute.saturating_sub(start.elapsed());
        if other.try_lock(name, Some(left), None).await == Ok(true) {
            other.unlock(name).await.expect("held");
            times += 1;
        }
    }
    let (took, others) = (start.elapsed(), others());
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    println!("{name}: {times} times in {took:?} beside {others} sections of eight tasks");
    assert!(
        times >= TIMES && others >= SECTIONS,
        "{times} and {others} in {took:?}"
    );
}

/// Without a message it is found by the next attempt.
pub async fn found_by_a_waiter(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    for _ in 0..3 {
        first.lock(name, Some(ms(30_000))).await.expect("free");
        let waiting = begin(second, name);
        tokio::time::sleep(ms(300)).await;
        assert!(!waiting.is_finished());
        is_woken_by(waiting, first.unlock(name)).await;
        second.unlock(name).await.expect("held");
    }
}
