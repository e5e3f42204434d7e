//! Tests of timers whose locks are lists.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::core::{Face, ThreadId};
use test_support::tokio;

/// When a timer is due, and its key.
type Set = (Option<Instant>, Option<Key>);

#[derive(Debug, Default)]
struct Lock(Mutex<BTreeMap<OwnerKey, Set>>);

impl Timed for Lock {
    fn timer(&self, owner: OwnerKey) -> Set {
        self.0.lock().get(&owner).copied().unwrap_or_default()
    }

    fn set_timer_key(&self, owner: OwnerKey, key: Option<Key>) {
        self.0.lock().entry(owner).or_default().1 = key;
    }
}

const OWNER: OwnerKey = OwnerKey::only(ThreadId(1));

fn timers() -> Timers<Lock> {
    Timers::new(Runtime::current().expect("in a runtime"))
}

fn set(timers: &Timers<Lock>, lock: &Arc<Lock>, owner: OwnerKey, ms: Option<u64>) {
    let due = ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    lock.0.lock().entry(owner).or_default().0 = due;
    timers.set([(lock, owner)]);
}

async fn fired(timers: &Timers<Lock>) -> Vec<FiredTimer<Lock>> {
    std::future::poll_fn(|context| timers.poll_fired(context, usize::MAX)).await
}

#[tokio::test(start_paused = true)]
async fn timers_of_one_instant_fire_together() {
    let (timers, start) = (timers(), Instant::now());
    let locks: [Arc<Lock>; 3] = Default::default();
    for (lock, ms) in locks.iter().zip([10_000, 10_000, 11_000]) {
        set(&timers, lock, OWNER, Some(ms));
    }
    assert_eq!(fired(&timers).await.len(), 2);
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    assert_eq!(timers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_last_timer_is_left_to_fire_and_a_moved_one_is_not_made_again() {
    let timers = timers();
    let locks: [Arc<Lock>; 2] = Default::default();
    set(&timers, &locks[0], OWNER, Some(1_000));
    set(&timers, &locks[1], OWNER, Some(2_000));
    set(&timers, &locks[0], OWNER, None);
    let key = locks[1].timer(OWNER).1;
    set(&timers, &locks[1], OWNER, Some(3_000));
    assert_eq!(locks[1].timer(OWNER).1, key, "it is moved, not made");
    set(&timers, &locks[1], OWNER, None);
    assert_eq!(timers.len(), 0);
    let left = timers.timers.lock().queue.len();
    assert_eq!(left, 1, "the renewal task is not woken for the last one");
}

#[tokio::test(start_paused = true)]
async fn behind_the_end_no_timer_is_made_and_none_is_kept() {
    let timers = timers();
    let locks: [Arc<Lock>; 3] = Default::default();
    set(&timers, &locks[0], OWNER, Some(1_000));
    set(&timers, &locks[1], OWNER, Some(1_000));
    timers.end();
    set(&timers, &locks[0], OWNER, None);
    set(&timers, &locks[1], OWNER, Some(2_000));
    set(&timers, &locks[2], OWNER, Some(2_000));
    assert_eq!(timers.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_face_of_an_owner_has_a_timer_of_its_own() {
    let (timers, thread) = (timers(), ThreadId(-1));
    let lock = Arc::default();
    let faces = [Face::Only, Face::Read, Face::Write].map(|face| OwnerKey::of(thread, face));
    for owner in faces {
        set(&timers, &lock, owner, Some(1_000));
    }
    let mut owners: Vec<_> = fired(&timers)
        .await
        .iter()
        .map(|fired| fired.owner)
        .collect();
    owners.sort();
    assert_eq!(owners, faces);
}

#[tokio::test(start_paused = true)]
async fn the_timer_of_a_queue_is_no_owners() {
    let (timers, lock) = (timers(), Arc::default());
    set(&timers, &lock, OWNER, Some(2_000));
    for _ in 0..2 {
        set(&timers, &lock, OwnerKey::QUEUE, Some(1_000));
    }
    assert_eq!(timers.len(), 1);
    assert_eq!((fired(&timers).await.len(), timers.len()), (1, 1));
    set(&timers, &lock, OWNER, None);
    assert_eq!(timers.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_was_left_to_fire_takes_no_other_with_it() {
    let (timers, lock, start) = (timers(), Arc::default(), Instant::now());
    set(&timers, &lock, OWNER, Some(1_000));
    set(&timers, &lock, OWNER, None);
    set(&timers, &lock, OWNER, Some(5_000));
    assert_eq!(timers.len(), 1);
    assert_eq!(fired(&timers).await.len(), 1);
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn timers_of_a_batch_are_set_under_one_mutex_in_any_runtime() {
    let timers = timers();
    let locks: [Arc<Lock>; 3] = Default::default();
    for (lock, ms) in locks.iter().zip([3_000, 1_000, 2_000]) {
        let due = Some(Instant::now() + Duration::from_millis(ms));
        lock.0.lock().insert(OWNER, (due, None));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| timers.set(locks.iter().map(|lock| (lock, OWNER))));
    });
    for nth in [1, 2, 0] {
        let fired = fired(&timers).await;
        assert!(Arc::ptr_eq(&fired[0].lock, &locks[nth]), "{nth}");
    }
}
