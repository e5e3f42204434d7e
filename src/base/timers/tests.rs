//! Tests of timers whose locks are lists.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;
use std::time::Duration;

use redisson_lock_core::{Face, ThreadId};

use super::*;
use test_support::tokio;

/// When a timer is due, and its place.
type Set = (Option<Instant>, Option<TimerPlace>);

#[derive(Debug, Default)]
struct Lock(Mutex<BTreeMap<OwnerKey, Set>>);

impl Timed for Lock {
    fn timer(&self, owner: OwnerKey) -> Set {
        self.0.lock().get(&owner).copied().unwrap_or_default()
    }

    fn set_place(&self, owner: OwnerKey, place: Option<TimerPlace>) {
        self.0.lock().entry(owner).or_default().1 = place;
    }
}

const OWNER: OwnerKey = OwnerKey::only(ThreadId(1));

fn timers() -> Timers<Lock> {
    Timers::new()
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

/// How often the task that serves the timers is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_timer_before_all_others_wakes_the_task_and_none_that_goes() {
    let (timers, woken) = (timers(), Arc::<Woken>::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let locks: [Arc<Lock>; 2] = Default::default();
    let mut wakes = |lock: &Arc<Lock>, ms| {
        assert!(timers.poll_fired(&mut context, usize::MAX).is_pending());
        let before = woken.0.load(Ordering::Relaxed);
        set(&timers, lock, OWNER, ms);
        woken.0.load(Ordering::Relaxed) - before
    };
    assert_eq!(wakes(&locks[0], Some(2_000)), 1, "the first");
    assert_eq!(wakes(&locks[0], None), 0, "it goes");
    assert_eq!(wakes(&locks[0], Some(3_000)), 0, "the alarm is early");
    assert_eq!(wakes(&locks[1], Some(1_000)), 1, "before all others");
    assert_eq!(wakes(&locks[1], Some(1_500)), 0, "it moves back");
    assert_eq!(wakes(&locks[0], None), 0, "it goes too");
    assert_eq!(timers.len(), 1);
    let start = Instant::now();
    assert_eq!(fired(&timers).await.len(), 1);
    assert_eq!(start.elapsed(), Duration::from_millis(1_500));
}

/// Timers take each other's places in the lists.
#[tokio::test(start_paused = true)]
async fn each_timer_that_is_set_fires_once_at_its_time() {
    let (timers, start, mut random) = (timers(), Instant::now(), 1_u64);
    let locks: [Arc<Lock>; 9] = Default::default();
    let owners = [OWNER, OwnerKey::QUEUE, OwnerKey::only(ThreadId(2))];
    let mut expected: BTreeMap<(usize, OwnerKey), u64> = BTreeMap::new();
    for round in 0..300 {
        for _ in 0..20 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (nth, owner) = (
                (random >> 60) as usize % 9,
                owners[(random >> 50) as usize % 3],
            );
            // Few times, so that the lists are long.
            let ms = ((random >> 40) % 4).checked_sub(1).map(|ms| ms * 7);
            set(&timers, &locks[nth], owner, ms);
            expected.remove(&(nth, owner));
            let now = start.elapsed().as_millis() as u64;
            expected.extend(ms.map(|ms| ((nth, owner), now + ms)));
        }
        let of_owners = expected
            .keys()
            .filter(|(_, owner)| *owner != OwnerKey::QUEUE);
        assert_eq!(timers.len(), of_owners.count());
        if round % 3 > 0 || expected.is_empty() {
            continue;
        }
        let fired = fired(&timers).await;
        let now = start.elapsed().as_millis() as u64;
        for FiredTimer { lock, owner } in &fired {
            let nth = locks.iter().position(|it| Arc::ptr_eq(it, lock));
            let due = expected.remove(&(nth.expect("one of them"), *owner));
            assert_eq!(due, Some(now), "round {round}");
        }
        assert!(expected.values().all(|due| *due > now), "round {round}");
    }
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
