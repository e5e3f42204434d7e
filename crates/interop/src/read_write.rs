//! Read-write locks on both sides. The name of a scenario that other kinds have as well ends in what its two parties do,
//! each in its turn: `ww` if both write, `wr` if the first one writes and the second one reads, `rw` the other way round.

use crate::fixture::{Fixture, Load, Scenario, eventually};
use crate::stored::{fields, parts_channel};
use crate::worker::Part::{Read, Write};
use crate::worker::{Part, Worker};
use crate::{failures, holding, waiting};
use test_support::{Control, Monitor, ms};

/// Redisson has name mappers since 3.15.4, and its read-write locks one for each name since 3.20.1.
const WITHOUT_PREFIX: &[&str] = &["3.6.5", "3.12.5", "3.20.0"];

/// A party that writes, beside one that reads.
macro_rules! of_both {
    ($($name:literal, $play:path;)*) => {
        vec![$(
            Scenario::new(concat!("rw_", $name, "_wr"), |fixture| {
                $play(fixture.of_parts(Write, Read))
            }),
            Scenario::new(concat!("rw_", $name, "_rw"), |fixture| {
                $play(fixture.of_parts(Read, Write))
            }),
        )*]
    };
}

/// Parties that only write.
macro_rules! of_writers {
    ($($name:literal, $play:path;)*) => {
        [$(Scenario::new($name, |fixture| $play(fixture.of_parts(Write, Write))),)*]
    };
}

/// Parties that read unless the scenario says otherwise.
macro_rules! of_readers {
    ($($name:literal, $play:path;)*) => {
        [$(Scenario::new($name, |fixture| $play(fixture.of_parts(Read, Read))),)*]
    };
}

// After the macros that they use.
mod leases;
mod nesting;
mod readers;
pub mod storm;
pub mod wire;

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios = of_both! {
        "nested_holds", holding::nested_holds;
        "watchdog_keeps_a_lock", holding::watchdog_keeps_a_lock;
        "woken_by_force_unlock", waiting::woken_by_force_unlock;
        "lease_ends_under_a_waiter", waiting::lease_ends;
        "try_lock_ends_in_time", waiting::try_lock_ends_in_time;
        "names", holding::names;
        "unlock_by_another_is_refused", holding::unlock_by_another;
    };
    scenarios.extend(of_writers! {
        "rw_exclusion_ww", holding::exclusion;
        "rw_woken_by_unlock_ww", waiting::woken_by_unlock;
        "rw_lease_ends_under_a_waiter_ww", waiting::lease_ends;
        "rw_force_unlock_ww", holding::force_unlock;
        "rw_unlock_of_what_another_took_ww", holding::unlock_of_what_another_took;
    });
    let short = of_both! {
        "exclusion", holding::exclusion;
        "woken_by_unlock", waiting::woken_by_unlock;
    };
    let processes = of_both! {
        "killed_holder", failures::killed_holder;
        "killed_waiter", failures::killed_waiter;
        "paused_holder", failures::paused_holder;
    };
    let prefixed = of_both! { "prefix", holding::prefix; };
    let without = |scenario: Scenario| {
        let scenario = scenario.not_first(WITHOUT_PREFIX);
        scenario.not_second(WITHOUT_PREFIX)
    };
    scenarios.extend(short.into_iter().map(Scenario::short));
    let process = |scenario: Scenario| scenario.load(Load::Process);
    scenarios.extend(processes.into_iter().map(process));
    scenarios.extend(prefixed.into_iter().map(without));
    scenarios.extend(readers::scenarios());
    scenarios.extend(nesting::scenarios());
    scenarios.extend(leases::scenarios());
    scenarios.extend(storm::scenarios());
    scenarios
}

/// The keys of read holds, each with the milliseconds that it has left.
fn keys(control: &mut Control, key: &str) -> Vec<(String, i64)> {
    let keys = control.run(&["KEYS", &format!("{{{key}}}:*:rwlock_timeout:*")]);
    let keys = keys.split(' ').filter(|key| !key.is_empty());
    let mut keys: Vec<String> = keys.map(str::to_owned).collect();
    keys.sort_unstable();
    let left = |key: String| {
        let left = control.pttl(&key);
        (key, left)
    };
    keys.into_iter().map(left).collect()
}

/// No hold is left, and no key of one.
async fn nothing_left(control: &mut Control, key: &str) {
    eventually(&format!("{key}: nothing is left"), || {
        control.number(&["EXISTS", key]) == 0 && keys(control, key).is_empty()
    })
    .await;
}

/// A call for a lock that others hold, from the moment on at which only a message or the end of a lease continues it.
async fn waits(fixture: &Fixture, worker: &Worker, key: &str) -> waiting::Waiting {
    let (monitor, mut control) = (Monitor::start(fixture.port()), fixture.control());
    let waiting = waiting::begin(worker, key);
    // Each side asks for the mode first, and attempts before it subscribes and after that.
    let (look, mut looks) = (format!(" lua] \"hget\" \"{key}\" \"mode\""), 0);
    eventually("it waits", move || {
        let lines = monitor.take(&mut control);
        looks += lines.iter().filter(|line| line.contains(&look)).count();
        looks >= 2
    })
    .await;
    worker.sleeps().await;
    assert!(!waiting.is_finished(), "it is held");
    waiting
}

/// One attempt of an owner that holds nothing.
async fn gets(worker: &Worker, key: &str) -> bool {
    let taken = worker.try_lock(key, None, None).await.expect("answered");
    if taken {
        worker.unlock(key).await.expect("held");
    }
    taken
}
