//! For how long a place counts: for what its call waits.

use super::leaving::tries;
use super::*;

/// Each place counts for 5 s, from the first one or the one before: Redisson before 3.13.3.
const COUNTS_FIVE_SECONDS: &[&str] = &["3.6.5", "3.12.5"];

pub fn scenarios() -> Vec<Scenario> {
    let [dead, places] = fair! {
        "fair_dead_head_that_waited_for_seconds", dead_head_that_waited_for_seconds;
        "fair_places_add_up", places_add_up;
    };
    vec![
        dead.load(Load::Process).not_second(SLEEPS_ON),
        places
            .not_first(COUNTS_FIVE_SECONDS)
            .not_second(COUNTS_FIVE_SECONDS),
    ]
}

/// A process that is killed in a call for 3 s keeps the others from the free lock for as long after the lease, at most.
async fn dead_head_that_waited_for_seconds(fixture: Fixture) {
    let (holder, next, name) = &fixture.second_workers();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, Some(ms(60_000))).await.expect("free");
    let head = Doomed::tries(&fixture, ms(3_000)).await;
    queue.waits(control, 1).await;
    head.signal("-KILL");
    // The lease and the place would last for a minute longer.
    let dead = queue.owners(control).remove(0);
    let now = i64::try_from(since_1970().as_millis()).expect("milliseconds");
    let end = queue.end(control, &dead).expect("queued");
    let counts = end - now - control.number(&["PTTL", name]);
    // A JVM says when it asks, which may be a while before the script runs.
    assert!(
        (1_000..=5_100).contains(&counts),
        "it counts for {counts} ms"
    );
    control.run(&["PEXPIRE", name, "2000"]);
    let left = 2_000 + counts.unsigned_abs();
    queue.shorten(control, &dead, ms(left));
    let start = Instant::now();
    let taken = next.try_lock(name, Some(ms(40_000)), None).await;
    assert_eq!(taken, Ok(true));
    // A second more for one that looks again in between.
    between("after the other's call", start.elapsed(), 0, left + 1_500);
    next.unlock(name).await.expect("held");
    queue.becomes(control, &[]).await;
}

/// A place ends by its own call's wait after the one before it, and those that leave take their waits with them.
async fn places_add_up(fixture: Fixture) {
    let (holder, short, name) = &fixture.workers();
    let long = fixture.second.worker();
    let (queue, control) = (Queue::of(name), &mut fixture.control());
    holder.lock(name, Some(ms(40_000))).await.expect("free");
    let first = tries(&fixture, &fixture.first.worker(), ms(3_000)).await;
    let second = tries(&fixture, short, ms(2_000)).await;
    let third = tries(&fixture, &long, ms(20_000)).await;
    let ends = queue.owners(control);
    let ends = ends
        .iter()
        .map(|owner| queue.end(control, owner).expect("queued"));
    let ends: Vec<i64> = ends.collect();
    assert_eq!([ends[1] - ends[0], ends[2] - ends[1]], [2_000, 20_000]);
    let owner = queue.owners(control).remove(2);
    for trying in [second, first] {
        assert_eq!(trying.await.expect("no panic"), Ok(false));
    }
    queue.becomes(control, std::slice::from_ref(&owner)).await;
    let earlier = ends[2] - queue.end(control, &owner).expect("queued");
    assert_eq!(earlier, 5_000);
    holder.unlock(name).await.expect("held");
    assert_eq!(third.await.expect("no panic"), Ok(true));
    long.unlock(name).await.expect("held");
}
