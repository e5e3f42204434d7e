//! Several readers at a time.

use std::time::Instant;

use super::*;
use crate::fixture::between;
use crate::waiting::is_woken_by;
use test_support::stalls;

/// A message of a writer wakes one of the readers that wait in a JVM: Redisson before 3.8.2.
const WAKES_ONE: &[&str] = &["3.6.5"];

pub fn scenarios() -> Vec<Scenario> {
    let [orders, nested, last, all, forced] = of_readers! {
        "rw_readers_leave_in_every_order", leave_in_every_order;
        "rw_readers_nest", readers_nest;
        "rw_last_reader_wakes_a_writer", last_reader_wakes_a_writer;
        "rw_writer_wakes_all_readers", writer_wakes_all_readers;
        "rw_force_unlock_of_readers", forced_readers;
    };
    let other_part = Scenario::new("rw_force_unlock_of_the_other_part", |fixture| {
        force_of_the_other_part(fixture.of_parts(Read, Write))
    });
    vec![
        other_part,
        orders.short(),
        nested,
        last,
        all.not_first(WAKES_ONE).not_second(WAKES_ONE),
        forced,
    ]
}

/// Two readers of each side. While one is left no writer gets in, in whichever order the others left.
async fn leave_in_every_order(fixture: Fixture) {
    let (key, control) = (&fixture.name, &mut fixture.control());
    let sides = [&fixture.first, &fixture.second];
    let readers: Vec<Worker> = (0..4).map(|nth| sides[nth % 2].reader()).collect();
    let writers = sides.map(|side| side.writer());
    for order in orders() {
        for reader in &readers {
            assert!(reader.try_lock(key, None, None).await.expect("answered"));
        }
        assert_eq!(fields(control, key).len(), 5, "a mode and four readers");
        for (left, nth) in order.into_iter().enumerate() {
            let writer = &writers[(left + nth) % 2];
            assert!(!gets(writer, key).await, "{order:?}: {left} have left");
            assert_eq!(keys(control, key).len(), 4 - left, "{order:?}");
            readers[nth].unlock(key).await.expect("held");
        }
        assert!(gets(&writers[order[0] % 2], key).await, "{order:?}");
        nothing_left(control, key).await;
    }
}

/// The permutations of four.
fn orders() -> Vec<[usize; 4]> {
    let numbers = (0..256).map(|number| [number / 64, number / 16 % 4, number / 4 % 4, number % 4]);
    let all = numbers.filter(|order| (0..4).all(|nth| order.contains(&nth)));
    all.collect()
}

/// Each reader has a count, and a key for each of its holds. A partial unlock does not free what is left.
async fn readers_nest(fixture: Fixture) {
    let (first, second, key) = &fixture.workers();
    let control = &mut fixture.control();
    let writers = [fixture.first.writer(), fixture.second.writer()];
    for (reader, count) in [(first, 1), (second, 1), (first, 2), (first, 3), (second, 2)] {
        reader.lock(key, None).await.expect("joins");
        assert_eq!(reader.hold_count(key).await, count);
    }
    let mut left = 5;
    for (reader, count) in [(first, 2), (second, 1), (first, 1), (first, 0), (second, 0)] {
        assert_eq!(keys(control, key).len(), left);
        for writer in &writers {
            assert!(!gets(writer, key).await, "{left} holds are left");
        }
        reader.unlock(key).await.expect("held");
        assert_eq!(reader.hold_count(key).await, count);
        left -= 1;
    }
    for writer in &writers {
        assert!(gets(writer, key).await, "there is no reader");
    }
    nothing_left(control, key).await;
}

/// A writer of either side waits until the last reader leaves, of either side. A reader that comes meanwhile does not wait
/// for it.
async fn last_reader_wakes_a_writer(fixture: Fixture) {
    let sides = [&fixture.first, &fixture.second];
    // Ours would wait in the process for a reader of its own client.
    let writers = [&fixture.quick_first, &fixture.quick_second];
    for (nth, (last, writes)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        let (key, lease) = (&format!("{}:{nth}", fixture.name), Some(ms(30_000)));
        let [one, other] = [last, 1 - last].map(|side| sides[side].reader());
        one.lock(key, lease).await.expect("free");
        other.lock(key, lease).await.expect("joins");
        let writer = writers[writes].writer();
        let waiting = waits(&fixture, &writer, key).await;
        other.unlock(key).await.expect("held");
        assert!(other.try_lock(key, None, lease).await.expect("answered"));
        other.unlock(key).await.expect("held");
        tokio::time::sleep(ms(50)).await;
        assert!(!waiting.is_finished(), "one reads");
        is_woken_by(waiting, one.unlock(key)).await;
        assert!(!gets(&one, key).await && !gets(&other, key).await);
        writer.unlock(key).await.expect("held");
        nothing_left(&mut fixture.control(), key).await;
    }
}

/// Three readers of each side wait for a writer.
async fn writer_wakes_all_readers(fixture: Fixture) {
    let (key, sides) = (&fixture.name, [&fixture.first, &fixture.second]);
    let writer = fixture.quick_first.writer();
    writer.lock(key, Some(ms(30_000))).await.expect("free");
    let (mut readers, mut waiting) = (Vec::new(), Vec::new());
    for nth in 0..6 {
        let reader = sides[nth % 2].reader();
        // Of ours the first one looks for all that wait in its client.
        waiting.push(match nth < 2 || !reader.is_rust() {
            true => waits(&fixture, &reader, key).await,
            false => waiting::begin(&reader, key),
        });
        readers.push(reader);
    }
    tokio::time::sleep(ms(30)).await;
    writer.unlock(key).await.expect("held");
    let freed = Instant::now();
    for waiting in waiting {
        let (taken, at) = waiting.await.expect("no panic");
        taken.expect("they read beside each other");
        let (took, most) = (at.saturating_duration_since(freed), ms(250) + stalls(freed));
        assert!(took <= most, "a reader was woken after {took:?}");
    }
    assert!(!gets(&writer, key).await, "six read");
    for reader in readers {
        reader.unlock(key).await.expect("held");
    }
    nothing_left(&mut fixture.control(), key).await;
}

/// One side removes the readers of both, and a writer that waits gets in. Ours are told; Redisson's find out.
async fn forced_readers(fixture: Fixture) {
    let (first, second, key) = &fixture.quick_workers();
    let (another, writer) = (fixture.quick_first.reader(), fixture.second.writer());
    let lease = Some(ms(30_000));
    for reader in [first, first, second, &another] {
        reader.lock(key, lease).await.expect("joins");
    }
    let waiting = waits(&fixture, &writer, key).await;
    let lost: Vec<_> = [first, second, &another]
        .iter()
        .filter_map(|reader| reader.lost(key))
        .collect();
    let forcing = fixture.second.reader();
    let start = Instant::now();
    is_woken_by(waiting, forcing.force_unlock(key)).await;
    let seen = fixture.seen(key);
    for lost in lost {
        let told = tokio::time::timeout(ms(5_000), lost).await;
        told.expect("it is told");
        between("being told", start.elapsed(), 0, 1_500 / 3 + 1_500 / 4);
    }
    for reader in [first, first, second, &another] {
        reader.unlock_too_late(key).await;
    }
    assert_eq!(fixture.seen(key), seen, "the writer has it");
    writer.unlock(key).await.expect("held");
    for reader in [first, second] {
        assert!(gets(reader, key).await, "it is free");
    }
}

/// A forced unlock of the write part while the other side reads: ours frees the lock, Redisson's does nothing.
async fn force_of_the_other_part(fixture: Fixture) {
    let (first, second, key) = &fixture.workers();
    first.lock(key, Some(ms(30_000))).await.expect("free");
    let before = fixture.seen(key);
    let forced = second.force_unlock(key).await.expect("answered");
    if second.is_rust() {
        assert_eq!((forced, fixture.seen(key)), (Some(true), String::new()));
        first.unlock_too_late(key).await;
    } else {
        assert_ne!(forced, Some(true));
        assert_eq!(fixture.seen(key), before, "nothing changed");
        first.unlock(key).await.expect("held");
    }
    assert!(gets(second, key).await, "it is free");
}
