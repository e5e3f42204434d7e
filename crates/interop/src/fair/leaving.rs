//! Owners that leave the queue: those after them move up.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;

use super::*;
use crate::party::Client;
use crate::worker::{Fail, Worker, kind_of};
use test_support::{Fate, Proxy, Rolls};

pub fn scenarios() -> Vec<Scenario> {
    let [middle, dropped, closed, two_calls, told, storm] = fair! {
        "fair_leaves_from_the_middle", leaves_from_the_middle;
        "fair_dropped_in_the_middle", dropped_in_the_middle;
        "fair_closed_client_leaves", closed_client;
        "fair_place_of_two_calls", place_of_two_calls;
        "fair_told_head_leaves", told_head_leaves;
        "fair_leaving_in_a_storm", leaving_in_a_storm;
    };
    vec![
        middle.short(),
        dropped.not_second(ALL),
        closed.not_first(ALL),
        two_calls.not_first(ALL),
        told.load(Load::Process),
        storm.load(Load::Processor),
    ]
}

/// One attempt for this long, of an owner that gets the last place.
pub(super) async fn tries(
    fixture: &Fixture,
    worker: &Worker,
    wait: Duration,
) -> JoinHandle<Result<bool, Fail>> {
    let (queue, control) = (Queue::of(&fixture.name), &mut fixture.control());
    let before = queue.owners(control).len();
    let (worker, name) = (worker.clone(), fixture.name.clone());
    let trying = tokio::spawn(async move { worker.try_lock(&name, Some(wait), None).await });
    queue.waits(control, before + 1).await;
    trying
}

/// One of the second side gives up, between others of both sides.
async fn leaves_from_the_middle(fixture: Fixture) {
    let (holder, leaver, name) = &fixture.workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, None).await.expect("free");
    let mut line = Line::new(&fixture);
    line.joins(&fixture.first).await;
    let trying = tries(&fixture, leaver, ms(3_000)).await;
    line.joins(&fixture.second).await;
    line.joins(&fixture.first).await;
    let mut owners = queue.owners(control);
    assert_eq!(trying.await.expect("no panic"), Ok(false));
    owners.remove(1);
    queue.becomes(control, &owners).await;
    places_count(&queue, control, &owners);
    holder.unlock(name).await.expect("held");
    line.takes_turns(Instant::now()).await;
}

/// The same by futures that are dropped, one after the other.
async fn dropped_in_the_middle(fixture: Fixture) {
    let (holder, _, name) = &fixture.workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, None).await.expect("free");
    let mut line = Line::new(&fixture);
    let mut trying = Vec::new();
    for _ in 0..3 {
        line.joins(&fixture.first).await;
        let leaver = fixture.second.worker();
        trying.push(tries(&fixture, &leaver, ms(60_000)).await);
    }
    let all = queue.owners(control);
    let mut owners = all.clone();
    for nth in [1, 0, 2] {
        trying[nth].abort();
        owners.retain(|owner| *owner != all[2 * nth + 1]);
        queue.becomes(control, &owners).await;
        places_count(&queue, control, &owners);
    }
    holder.unlock(name).await.expect("held");
    line.takes_turns(Instant::now()).await;
}

/// No place of these owners has ended because of another one that left.
fn places_count(queue: &Queue, control: &mut Control, owners: &[String]) {
    let now = since_1970().as_millis() as i64;
    for owner in owners {
        let end = queue.end(control, owner).expect("a place");
        assert!(
            end > now,
            "{owner} has a place that ended {} ms ago",
            now - end
        );
    }
}

/// A client that is closed while it waits, as often as this.
async fn closed_client(fixture: Fixture) {
    const WAITERS: usize = 3;
    let (_, holder, name) = &fixture.workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    let leaving = fixture.first.another(fixture.url(), ms(30_000), &[]).await;
    holder.lock(name, None).await.expect("free");
    let (mut line, mut waiters, mut stay) = (Line::new(&fixture), Vec::new(), Vec::new());
    for _ in 0..WAITERS {
        waiters.push(tries(&fixture, &leaving.worker(), ms(60_000)).await);
        line.joins(&fixture.second).await;
        stay.extend(queue.owners(control).pop());
    }
    leaving.close().await;
    queue.becomes(control, &stay).await;
    places_count(&queue, control, &stay);
    for waiter in waiters {
        waiter.await.expect("no panic").expect_err("it is closed");
    }
    holder.unlock(name).await.expect("held");
    line.takes_turns(Instant::now()).await;
}

/// Two calls of one owner have one place, which stays when one of them leaves.
async fn place_of_two_calls(fixture: Fixture) {
    let (_, holder, name) = &fixture.workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    let party = fixture.first.another(fixture.url(), ms(30_000), &[]).await;
    let Client::Rust(client) = &party.client else {
        unreachable!("ours is first")
    };
    holder.lock(name, None).await.expect("free");
    let lock = client.lock_of(kind_of(name), name.as_str());
    let lock = lock.owned_by(&client.owner());
    let one = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    queue.waits(control, 1).await;
    let two = tokio::spawn(async move {
        let guard = lock.lock().await.expect("its turn");
        (Instant::now(), guard)
    });
    eventually("both wait", || client.stats().waiting == 2).await;
    let waiting = begin(&fixture.second.worker(), name);
    eventually("another waits", || queue.owners(control).len() == 2).await;
    let owners = queue.owners(control);
    one.abort();
    eventually("one has left", || client.stats().waiting == 1).await;
    queue.becomes(control, &owners).await;
    holder.unlock(name).await.expect("held");
    let freed = Instant::now();
    let (at, guard) = two.await.expect("no panic");
    between("its turn", at.saturating_duration_since(freed), 0, 250);
    assert!(!waiting.is_finished(), "it came later");
    is_woken_by(waiting, async {
        guard.unlock().await.expect("held");
        Ok(())
    })
    .await;
}

/// The first one in the queue gets its message, and leaves all the same: it stood still until its time was over. Our
/// client passes the turn on. Redisson publishes nothing, and the next one finds out when the lease, or the first one's
/// place, would have ended.
async fn told_head_leaves(fixture: Fixture) {
    const WAIT: u64 = 4_000;
    const LEFT: u64 = 8_000;
    let (holder, next, name) = &fixture.second_workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, Some(ms(60_000))).await.expect("free");
    let monitor = Monitor::start(fixture.port());
    let head = Doomed::tries(&fixture, ms(WAIT)).await;
    let owner = queue.last_looks_again(control, 1, monitor).await;
    let asked = Instant::now();
    head.sleeps().await;
    head.signal("-STOP");
    // By one of these the next one counts.
    control.run(&["PEXPIRE", name, &LEFT.to_string()]);
    queue.shorten(control, &owner, ms(LEFT));
    let monitor = Monitor::start(fixture.port());
    let waiting = begin(next, name);
    queue.last_looks_again(control, 2, monitor).await;
    holder.unlock(name).await.expect("held");
    let another = fixture.second.worker();
    assert_eq!(another.try_lock(name, None, None).await, Ok(false));
    tokio::time::sleep_until((asked + ms(WAIT + 200)).into()).await;
    assert!(!waiting.is_finished(), "it was overtaken");
    head.signal("-CONT");
    let goes_on = Instant::now();
    let (taken, at) = waiting.await.expect("no panic");
    taken.expect("its turn");
    let (since, most) = match fixture.first.is_rust() {
        true => (goes_on, 1_000),
        false => (asked, LEFT + 1_000),
    };
    between(
        "the next turn",
        at.saturating_duration_since(since),
        0,
        most,
    );
    next.unlock(name).await.expect("held");
    queue.becomes(control, &[]).await;
}

/// Workers of both sides, some of which give up, and come again, while each script of ours is executed twice.
async fn leaving_in_a_storm(fixture: Fixture) {
    let proxy = Proxy::start(fixture.port()).await;
    let parties = contention::through(&proxy, &fixture).await;
    // The server is to know the scripts.
    storm(&fixture, &parties, 5).await;
    proxy.rule(Fate::Again, usize::MAX, |words| words[0] == "EVALSHA");
    let start = Instant::now();
    let (left, longest) = storm(&fixture, &parties, 25).await;
    let most = ms(2_000) + stalls(start);
    assert!(longest <= most, "one waited for {longest:?}");
    let ours = parties.iter().any(Party::is_rust);
    assert!(left > 10 || !ours, "{left} have given up");
    for party in parties.into_iter().filter(Party::is_rust) {
        party.close().await;
    }
}

/// How often one has given up, and the longest wait of those who did not. Only ours give up: behind one of Redisson's that
/// was told and does, all wait for the end of a lease.
async fn storm(fixture: &Fixture, parties: &[Party; 2], sections: usize) -> (usize, Duration) {
    const WORKERS: usize = 16;
    let (inside, left) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut workers = JoinSet::new();
    for nth in 0..WORKERS {
        let party = &parties[nth % 2];
        let (worker, leaves, name) = (party.worker(), party.is_rust(), fixture.name.clone());
        let (inside, left, mut rolls) = (Arc::clone(&inside), Arc::clone(&left), Rolls(nth as u64));
        workers.spawn(async move {
            let mut longest = Duration::ZERO;
            for _ in 0..sections {
                let mut taken = false;
                if leaves && rolls.below(3) == 0 {
                    let wait = Some(ms(rolls.below(10) as u64));
                    // The answer may take longer than a call with so short a wait has.
                    taken = worker.try_lock(&name, wait, None).await == Ok(true);
                    left.fetch_add(usize::from(!taken), Ordering::Relaxed);
                }
                let asked = Instant::now();
                if !taken {
                    worker.lock(&name, None).await.expect("in the end");
                }
                longest = longest.max(asked.elapsed());
                let others = inside.fetch_add(1, Ordering::AcqRel);
                assert_eq!(others, 0, "another worker is inside");
                tokio::time::sleep(ms(1)).await;
                inside.fetch_sub(1, Ordering::AcqRel);
                worker.unlock(&name).await.expect("held");
            }
            longest
        });
    }
    let mut longest = Duration::ZERO;
    while let Some(done) = workers.join_next().await {
        longest = longest.max(done.expect("no panic"));
    }
    let (queue, control) = (Queue::of(&fixture.name), &mut fixture.control());
    queue.becomes(control, &[]).await;
    assert_eq!(fixture.seen(&fixture.name), "");
    (left.load(Ordering::Relaxed), longest)
}
