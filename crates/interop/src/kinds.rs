//! Fenced and spin locks on both sides. The name of a lock begins with its kind.

use crate::fixture::{Fixture, Scenario};
use crate::waiting::{begin, is_woken_by};
use crate::{holding, waiting};
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
    };
    scenarios.extend([
        Scenario::new("fenced_woken_by_unlock", |fixture| {
            waiting::woken_by_unlock(fixture.of_kind("fenced"))
        }),
        Scenario::new("fenced_tokens_grow", fenced_tokens_grow).short(),
        Scenario::new("spin_found_by_a_waiter", spin_found_by_a_waiter).short(),
    ]);
    let new_enough = |scenario: Scenario| scenario.not_first(WITHOUT).not_second(WITHOUT);
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

/// Without a message it is found by the next attempt.
async fn spin_found_by_a_waiter(fixture: Fixture) {
    let (first, second, name) = &fixture.of_kind("spin").workers();
    for _ in 0..3 {
        first.lock(name, Some(ms(30_000))).await.expect("free");
        let waiting = begin(second, name);
        tokio::time::sleep(ms(300)).await;
        assert!(!waiting.is_finished());
        is_woken_by(waiting, first.unlock(name)).await;
        second.unlock(name).await.expect("held");
    }
}
