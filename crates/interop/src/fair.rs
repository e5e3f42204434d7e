//! Fair locks on both sides: what locks of other kinds do as well, and the queue, which only they have.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::doomed::Doomed;
use crate::fixture::{ALL, Fixture, Load, Scenario, between, eventually};
use crate::party::Party;
use crate::stored::{Queue, since_1970};
use crate::waiting::{begin, is_woken_by};
use crate::{contention, failures, holding, waiting};
use test_support::{Control, Monitor, ms, stalls};

/// Without name mappers, or with one that does not change the name of the queue: Redisson before 3.52.
const WITHOUT_PREFIX: &[&str] = &["3.6.5", "3.12.5", "3.20.0", "3.24.3"];

/// A waiter that looks in the last milliseconds of a lease takes what is left for "no expiry", and sleeps until a
/// message comes; but the end of a lease publishes none. Redisson from 3.11.1 to 3.31.
const SLEEPS_ON: &[&str] = &["3.12.5", "3.20.0", "3.24.3"];

/// Each call fails at an owner without a score: Redisson before 3.31.
const NEEDS_SCORES: &[&str] = &["3.6.5", "3.12.5", "3.20.0", "3.24.3"];

macro_rules! fair {
    ($($name:literal, $play:path;)*) => {
        [$(Scenario::new($name, |fixture| $play(fixture.of_kind("fair"))),)*]
    };
}

// After the macro that it uses.
mod counting;
mod leaving;

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios = Vec::from(fair! {
        "fair_exclusion", holding::exclusion;
        "fair_nested_holds", holding::nested_holds;
        "fair_seen_from_the_other_side", holding::seen_from_the_other_side;
        "fair_watchdog_keeps_a_lock", holding::watchdog_keeps_a_lock;
        "fair_force_unlock", holding::force_unlock;
        "fair_woken_by_force_unlock", waiting::woken_by_force_unlock;
        "fair_try_lock_ends_in_time", waiting::try_lock_ends_in_time;
        "fair_names", holding::names;
        "fair_unlock_by_another_is_refused", holding::unlock_by_another;
        "fair_unlock_of_what_another_took", holding::unlock_of_what_another_took;
        "fair_partial_unlock_under_a_queue", partial_unlock;
        "fair_attempt_takes_no_place", attempt_takes_no_place;
    });
    let short = fair! {
        "fair_woken_by_unlock", waiting::woken_by_unlock;
        "fair_in_order_of_arrival", in_order;
    };
    let leases = fair! {
        "fair_lease_ends_under_a_waiter", waiting::lease_ends;
        "fair_lease_ends_under_a_queue", lease_ends_under_a_queue;
    };
    let holders = fair! {
        "fair_killed_holder", failures::killed_holder;
        "fair_paused_holder", failures::paused_holder;
    };
    let heads = fair! {
        "fair_stopped_head_keeps_its_turn", stopped_head;
        "fair_dead_head", dead_head;
    };
    let busy = fair! {
        "fair_mixed_workers", contention::mixed_workers;
        "fair_scripts_executed_twice", contention::scripts_executed_twice;
    };
    scenarios.extend(short.map(Scenario::short));
    scenarios.extend(leases.map(|scenario| scenario.not_second(SLEEPS_ON)));
    scenarios.extend(holders.map(|scenario| scenario.load(Load::Process).not_second(SLEEPS_ON)));
    scenarios.extend(heads.map(|scenario| scenario.load(Load::Process)));
    scenarios.extend(busy.map(|scenario| scenario.load(Load::Processor)));
    scenarios.extend([
        Scenario::new("fair_prefix", |fixture| {
            holding::prefix(fixture.of_kind("fair"))
        })
        .not_first(WITHOUT_PREFIX)
        .not_second(WITHOUT_PREFIX),
        Scenario::new("fair_member_without_a_score", |fixture| {
            member_without_a_score(fixture.of_kind("fair"))
        })
        .not_first(NEEDS_SCORES),
    ]);
    scenarios.extend(leaving::scenarios());
    scenarios.extend(counting::scenarios());
    scenarios
}

/// Owners that come one after the other, and give the lock back when they have had it.
struct Line<'a> {
    fixture: &'a Fixture,
    owners: JoinSet<()>,
    served: Arc<Mutex<Vec<(usize, Instant)>>>,
}

impl<'a> Line<'a> {
    fn new(fixture: &'a Fixture) -> Self {
        Self {
            fixture,
            owners: JoinSet::new(),
            served: Arc::default(),
        }
    }

    fn queue(&self) -> (Queue, Control) {
        (Queue::of(&self.fixture.name), self.fixture.control())
    }

    /// A new owner of this side gets the last place.
    async fn joins(&mut self, party: &Party) {
        let (queue, mut control) = self.queue();
        let before = queue.owners(&mut control).len();
        let (worker, name) = (party.worker(), self.fixture.name.clone());
        let (nth, served) = (self.owners.len(), Arc::clone(&self.served));
        self.owners.spawn(async move {
            worker.lock(&name, None).await.expect("its turn");
            served
                .lock()
                .expect("unpoisoned")
                .push((nth, Instant::now()));
            worker.unlock(&name).await.expect("held");
        });
        queue.waits(&mut control, before + 1).await;
    }

    /// All have had it in their order, each soon after the one before.
    async fn takes_turns(mut self, freed: Instant) {
        while let Some(done) = self.owners.join_next().await {
            done.expect("no panic");
        }
        let served = self.served.lock().expect("unpoisoned").clone();
        let most = ms(250) + stalls(freed);
        assert!(served.iter().map(|(nth, _)| *nth).is_sorted(), "{served:?}");
        let mut before = freed;
        for (nth, at) in served {
            let took = at.saturating_duration_since(before);
            assert!(took <= most, "owner {nth} waited for {took:?}");
            before = at;
        }
        let (queue, mut control) = self.queue();
        eventually("nothing is left", || {
            queue.owners(&mut control).is_empty()
                && control.number(&["EXISTS", &self.fixture.name, &queue.list, &queue.ends]) == 0
        })
        .await;
    }
}

async fn in_order(fixture: Fixture) {
    const OWNERS: usize = 10;
    let (holder, _, name) = &fixture.workers();
    holder.lock(name, None).await.expect("free");
    let mut line = Line::new(&fixture);
    for nth in 0..OWNERS {
        line.joins([&fixture.second, &fixture.first][nth % 2]).await;
    }
    holder.unlock(name).await.expect("held");
    line.takes_turns(Instant::now()).await;
}

/// A holder takes it again in spite of those who wait, and they are told when all of it is back.
async fn partial_unlock(fixture: Fixture) {
    let (holder, _, name) = &fixture.workers();
    let control = &mut fixture.control();
    holder.lock(name, None).await.expect("free");
    let mut line = Line::new(&fixture);
    line.joins(&fixture.second).await;
    line.joins(&fixture.first).await;
    let (queue, mut other) = line.queue();
    for count in [2, 3] {
        holder.lock(name, None).await.expect("held by itself");
        assert_eq!(control.count(name), count);
    }
    for left in [2, 1] {
        holder.unlock(name).await.expect("held");
        assert_eq!(control.count(name), left);
        assert_eq!(queue.owners(&mut other).len(), 2, "they wait");
    }
    holder.unlock(name).await.expect("held");
    line.takes_turns(Instant::now()).await;
}

/// The end of a lease publishes no message.
async fn lease_ends_under_a_queue(fixture: Fixture) {
    let (holder, _, name) = &fixture.workers();
    holder.lock(name, Some(ms(3_000))).await.expect("free");
    let end = Instant::now() + ms(3_000);
    let mut line = Line::new(&fixture);
    line.joins(&fixture.second).await;
    line.joins(&fixture.first).await;
    line.joins(&fixture.second).await;
    assert!(Instant::now() < end, "they came in time");
    line.takes_turns(end).await;
    holder.unlock_too_late(name).await;
}

/// One that does not wait has no place, and gets none of the turns of those who do.
async fn attempt_takes_no_place(fixture: Fixture) {
    let (holder, second, name) = &fixture.workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, None).await.expect("free");
    assert_eq!(second.try_lock(name, None, None).await, Ok(false));
    assert!(queue.owners(control).is_empty());
    let mut line = Line::new(&fixture);
    line.joins(&fixture.first).await;
    assert_eq!(second.try_lock(name, None, None).await, Ok(false));
    assert_eq!(queue.owners(control).len(), 1);
    holder.unlock(name).await.expect("held");
    line.takes_turns(Instant::now()).await;
}

/// A member of the list that is not in the sorted set. No client writes one; an operator may.
async fn member_without_a_score(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    first.lock(name, None).await.expect("free");
    let monitor = Monitor::start(fixture.port());
    let waiting = begin(second, name);
    let head = queue.last_looks_again(control, 1, monitor).await;
    assert_eq!(control.run(&["ZREM", &queue.ends, &head]), "1");
    let another = fixture.first.worker();
    assert_eq!(another.try_lock(name, None, None).await, Ok(false));
    if fixture.first.is_rust() {
        assert!(queue.end(control, &head).is_some(), "it has one again");
    }
    is_woken_by(waiting, first.unlock(name)).await;
    second.unlock(name).await.expect("held");
    assert_eq!(control.number(&["EXISTS", &queue.list, &queue.ends]), 0);
}

/// A process that stands still has its turn all the same: the others do not overtake it while its place counts.
async fn stopped_head(fixture: Fixture) {
    let (holder, second, name) = &fixture.second_workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, Some(ms(30_000))).await.expect("free");
    let monitor = Monitor::start(fixture.port());
    let head = Doomed::tries(&fixture, ms(60_000)).await;
    queue.last_looks_again(control, 1, monitor).await;
    head.sleeps().await;
    head.signal("-STOP");
    holder.unlock(name).await.expect("held");
    for _ in 0..3 {
        assert_eq!(second.try_lock(name, Some(ms(100)), None).await, Ok(false));
    }
    assert_eq!(fixture.seen(name), "");
    head.signal("-CONT");
    let start = Instant::now();
    eventually("it has its turn", || control.count(name) == 1).await;
    between("its turn", start.elapsed(), 0, 1_000);
    queue.becomes(control, &[]).await;
    head.signal("-KILL");
    second.force_unlock(name).await.expect("answered");
    assert_eq!(second.try_lock(name, None, None).await, Ok(true));
    second.unlock(name).await.expect("held");
}

/// The place of a process that is gone keeps the others out until it ends, and no longer.
async fn dead_head(fixture: Fixture) {
    const LEFT: u64 = 5_000;
    let (holder, next, name) = &fixture.second_workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, Some(ms(60_000))).await.expect("free");
    let head = Doomed::tries(&fixture, ms(60_000)).await;
    queue.waits(control, 1).await;
    head.signal("-KILL");
    let dead = queue.owners(control).remove(0);
    // Both would last for minutes. What is left of them is shortened before anybody has looked at it.
    control.run(&["PEXPIRE", name, "4000"]);
    let end = Instant::now() + ms(LEFT);
    queue.shorten(control, &dead, ms(LEFT));
    let waiting = begin(next, name);
    eventually("the next one waits", || queue.owners(control).len() == 2).await;
    holder.unlock(name).await.expect("held");
    let another = fixture.second.worker();
    assert_eq!(another.try_lock(name, None, None).await, Ok(false));
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("its turn");
    assert!(at + ms(10) >= end, "it was overtaken");
    between("after its end", at.saturating_duration_since(end), 0, 500);
    next.unlock(name).await.expect("held");
    assert_eq!(control.number(&["EXISTS", &queue.list, &queue.ends]), 0);
}
