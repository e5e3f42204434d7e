//! An owner of both parts, and what the other side sees of it.

use super::*;
use crate::fixture::{ALL, between};
use crate::waiting::is_woken_by;
use crate::worker::Fail;

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios = Vec::from(of_readers! {
        "rw_read_inside_of_write", read_inside_of_write;
        "rw_write_inside_of_read", write_inside_of_read;
        "rw_reads_seen_from_the_other_side", seen_from_the_other_side;
    });
    let [downgrade] = of_readers! { "rw_downgrade", downgrade; };
    scenarios.push(downgrade.short());
    let [in_one_step] = of_readers! { "rw_downgrade_in_one_step", in_one_step; };
    scenarios.push(in_one_step.short().not_first(ALL));
    scenarios.extend(of_writers! {
        "rw_writes_seen_from_the_other_side", seen_from_the_other_side;
    });
    scenarios
}

/// A writer that reads and gives its write hold back: readers of the other side get in, its writers do not. Ours tells
/// them. Redisson publishes nothing then, and its readers that wait are told by the last one that leaves.
async fn downgrade(fixture: Fixture) {
    let (reads, second, key) = &fixture.workers();
    let (writes, control, lease) = (&reads.writes(), &mut fixture.control(), Some(ms(30_000)));
    // Of another client: ours would let the reader that waits go first.
    let (another, writer) = (fixture.quick_second.reader(), fixture.quick_second.writer());
    writes.lock(key, lease).await.expect("free");
    reads.lock(key, lease).await.expect("it writes");
    assert_eq!(fields(control, key).len(), 3, "a mode and both parts");
    assert!(!gets(&another, key).await && !gets(&writer, key).await);
    let waiting = waits(&fixture, second, key).await;
    if fixture.first.is_rust() {
        is_woken_by(waiting, writes.unlock(key)).await;
        assert_eq!(fields(control, key).len(), 3, "a mode and two readers");
        assert!(!gets(&writer, key).await, "two read");
        assert!(gets(&another, key).await, "others read");
        second.unlock(key).await.expect("held");
        assert!(!gets(&writer, key).await, "one reads");
        reads.unlock(key).await.expect("held");
    } else {
        writes.unlock(key).await.expect("held");
        assert_eq!(fields(control, key).len(), 2, "a mode and a reader");
        assert!(!gets(&writer, key).await, "one reads");
        assert!(gets(&another, key).await, "another reads");
        assert!(!waiting.is_finished(), "it was not told");
        is_woken_by(waiting, reads.unlock(key)).await;
        second.unlock(key).await.expect("held");
    }
    assert!(gets(&writer, key).await, "there is no reader");
    nothing_left(control, key).await;
}

/// One script makes the write hold a read hold: the readers of the other side that wait are told, its writers are not let
/// in, and the key that covers the read hold is the one that Redisson writes.
async fn in_one_step(fixture: Fixture) {
    let (reads, second, key) = &fixture.workers();
    let (writes, control) = (&reads.writes(), &mut fixture.control());
    let writer = fixture.quick_second.writer();
    writes.lock(key, Some(ms(30_000))).await.expect("free");
    let waiting = waits(&fixture, second, key).await;
    let downgraded = async {
        writes.downgrade(key).await;
        Ok::<_, Fail>(())
    };
    is_woken_by(waiting, downgraded).await;
    assert_eq!(fields(control, key).len(), 3, "a mode and two readers");
    assert!(!gets(&writer, key).await, "two read");
    second.unlock(key).await.expect("held");
    assert!(!gets(&writer, key).await, "one reads");
    assert_eq!(keys(control, key).len(), 1);
    reads.unlock(key).await.expect("held");
    assert!(gets(&writer, key).await, "there is no reader");
    nothing_left(control, key).await;
}

/// Both parts are counted apart, and the other side gets nothing until the last hold is back.
async fn read_inside_of_write(fixture: Fixture) {
    let (reads, second, key) = &fixture.workers();
    let (writes, control) = (&reads.writes(), &mut fixture.control());
    let is_kept_out = async || !gets(second, key).await && !gets(&second.writes(), key).await;
    for counts in [(1, 0), (2, 0), (2, 1), (2, 2)] {
        let part = if counts.1 == 0 { writes } else { reads };
        part.lock(key, None).await.expect("free, or its own");
        let counted = (writes.hold_count(key).await, reads.hold_count(key).await);
        assert_eq!(counted, counts);
        assert_eq!(second.hold_count(key).await, 0);
        assert!(is_kept_out().await);
    }
    assert_eq!(keys(control, key).len(), 2);
    for counts in [(1, 2), (1, 1), (1, 0), (0, 0)] {
        let part = if counts == (1, 2) || counts == (0, 0) {
            writes
        } else {
            reads
        };
        assert!(is_kept_out().await);
        part.unlock(key).await.expect("held");
        let counted = (writes.hold_count(key).await, reads.hold_count(key).await);
        assert_eq!(counted, counts);
    }
    nothing_left(control, key).await;
    assert!(gets(second, key).await && gets(&second.writes(), key).await);
}

/// A reader would wait for itself. Ours is refused; Redisson's gets nothing.
async fn write_inside_of_read(fixture: Fixture) {
    let (reads, second, key) = &fixture.workers();
    let writes = &reads.writes();
    reads.lock(key, Some(ms(30_000))).await.expect("free");
    let before = fixture.seen(key);
    for wait in [None, Some(ms(100))] {
        let taken = writes.try_lock(key, wait, None).await;
        assert_ne!(taken, Ok(true));
        assert_eq!(taken.is_err(), fixture.first.is_rust(), "{taken:?}");
    }
    assert_eq!(fixture.seen(key), before, "nothing changed");
    assert!(gets(second, key).await, "others read");
    reads.unlock(key).await.expect("held");
    assert!(gets(writes, key).await, "it does not read now");
    nothing_left(&mut fixture.control(), key).await;
}

/// What either part shows of a holder of the first side.
async fn seen_from_the_other_side(fixture: Fixture) {
    let (first, second, key) = &fixture.workers();
    let writes = first.part == Some(Part::Write);
    let other_part = if writes {
        first.reads()
    } else {
        first.writes()
    };
    assert!(!second.is_locked(key).await);
    assert_eq!(second.lease_left(key).await, None);
    for _ in 0..2 {
        first.lock(key, Some(ms(20_000))).await.expect("its own");
    }
    assert!(second.is_locked(key).await && first.is_locked(key).await);
    assert!(first.is_held(key).await && !second.is_held(key).await);
    let other_parts = [
        &other_part,
        &if writes {
            second.reads()
        } else {
            second.writes()
        },
    ];
    for part in other_parts {
        assert!(!part.is_held(key).await && !part.is_locked(key).await);
    }
    let counts = (first.hold_count(key).await, second.hold_count(key).await);
    assert_eq!((counts, other_part.hold_count(key).await), ((2, 0), 0));
    // A nested write hold of Redisson adds its lease.
    let most = 20_000 * (1 + u64::from(writes && !first.is_rust()));
    for side in [first, second] {
        let left = side.lease_left(key).await.expect("held");
        between("what is left", left, most - 5_000, most);
    }
    if second.is_rust() {
        let holders = second.rw_holders(key).await.expect("held");
        assert_eq!(holders.writer.is_some(), writes);
        let mut all = holders.writer.iter().chain(&holders.readers);
        let holder = all.next().expect("one of them");
        assert!(all.next().is_none(), "{holders:?}");
        let seen = second.rust(key, None).inspect().await.expect("answered");
        let seen = seen.map(|seen| (seen.owner, seen.hold_count));
        assert_eq!(seen, Some((holder.owner.clone(), holder.hold_count)));
        let field = format!("{} {}", holder.owner, holder.hold_count);
        let mode = if writes { "mode write" } else { "mode read" };
        assert_eq!(fields(&mut fixture.control(), key), [field.as_str(), mode]);
    }
    first.unlock(key).await.expect("held");
    assert_eq!(
        (first.hold_count(key).await, second.is_locked(key).await),
        (1, true)
    );
    first.unlock(key).await.expect("held");
    assert!(!second.is_locked(key).await && !first.is_locked(key).await);
}
