//! One timer for each owner that holds a lock, all in one queue.
//!
//! When a timer is due is a fact that its lock keeps. It is read here, under the mutex of the timers,
//! at the moment when the timer is set: two threads that set the same timer one after the other
//! cannot leave the earlier one's time behind.
//!
//! Lock order: timers, then the lock's own mutex.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

use crate::core::{Face, OwnerKey, ThreadId};
use crate::runtime::Runtime;

pub(crate) struct Timers<T> {
    timers: Mutex<Inner<T>>,
    /// Timers are made in here, because guards may be looked at and dropped anywhere.
    runtime: Runtime,
    /// No timer is made or moved any more: the task that serves them is gone.
    over: AtomicBool,
}

struct Inner<T> {
    queue: DelayQueue<FiredTimer<T>>,
    keys: Keys,
}

/// A lock and one owner of it: each held lock has one here and one in the queue, so it takes two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TimerKey {
    /// The lock's id, and in the last two bits the owner's face.
    lock_and_face: u64,
    thread: ThreadId,
}

impl TimerKey {
    fn new(id: u64, OwnerKey { thread, face }: OwnerKey) -> Self {
        let lock_and_face = id << 2 | face as u64;
        Self {
            lock_and_face,
            thread,
        }
    }

    fn owner(self) -> OwnerKey {
        let faces = [Face::Only, Face::Read, Face::Write];
        let face = faces
            .into_iter()
            .find(|face| *face as u64 == self.lock_and_face & 3);
        OwnerKey::of(self.thread, face.unwrap_or(Face::Only))
    }
}

/// A key of the queue is used again once its timer has fired, so no other part may keep one.
#[derive(Default)]
struct Keys {
    all: HashMap<TimerKey, delay_queue::Key>,
    /// How many of them belong to the queue of a lock, and not to an owner.
    of_queues: usize,
}

impl Keys {
    fn get(&self, key: TimerKey) -> Option<&delay_queue::Key> {
        self.all.get(&key)
    }

    fn insert(&mut self, key: TimerKey, timer: delay_queue::Key) {
        let former = self.all.insert(key, timer);
        self.of_queues += usize::from(former.is_none() && key.owner() == OwnerKey::QUEUE);
    }

    fn remove(&mut self, key: TimerKey) {
        let former = self.all.remove(&key);
        self.of_queues -= usize::from(former.is_some() && key.owner() == OwnerKey::QUEUE);
    }
}

/// Whose timer has fired.
#[derive(Debug)]
pub(crate) struct FiredTimer<T> {
    pub(crate) lock: Weak<T>,
    key: TimerKey,
}

impl<T> FiredTimer<T> {
    pub(crate) fn owner(&self) -> OwnerKey {
        self.key.owner()
    }
}

impl<T> Timers<T> {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let timers = Mutex::new(Inner {
            queue: DelayQueue::new(),
            keys: Keys::default(),
        });
        Self {
            timers,
            runtime,
            over: AtomicBool::new(false),
        }
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Sets, moves or removes the timer of an owner, to the time that `due` reads. `id` is the lock's.
    pub(crate) fn set(
        &self,
        id: u64,
        owner: OwnerKey,
        due: impl FnOnce() -> Option<Instant>,
        lock: impl FnOnce() -> Weak<T>,
    ) {
        let key = TimerKey::new(id, owner);
        let mut timers = self.timers.lock();
        let Inner { queue, keys } = &mut *timers;
        if self.over.load(Ordering::Acquire) {
            keys.remove(key);
            return;
        }
        match (due(), keys.get(key)) {
            (Some(at), Some(timer)) => {
                let _entered = self.runtime.enter();
                queue.reset_at(timer, at);
            }
            (Some(at), None) => {
                let _entered = self.runtime.enter();
                let lock = lock();
                let timer = queue.insert_at(FiredTimer { lock, key }, at);
                keys.insert(key, timer);
            }
            // The last one is left to fire for nothing: removing it would wake the renewal task, and
            // so would the next lock, on every single uncontended pair.
            (None, Some(timer)) => {
                if queue.len() > 1 {
                    queue.remove(timer);
                }
                keys.remove(key);
            }
            (None, None) => {}
        }
    }

    /// When the timer of an owner fires.
    #[cfg(feature = "test-util")]
    pub(crate) fn due(&self, id: u64, owner: OwnerKey) -> Option<Instant> {
        let timers = self.timers.lock();
        Some(
            timers
                .queue
                .deadline(timers.keys.get(TimerKey::new(id, owner))?),
        )
    }

    /// Owners that have a timer.
    pub(crate) fn len(&self) -> usize {
        let timers = self.timers.lock();
        timers.keys.all.len() - timers.keys.of_queues
    }

    /// The timers that have fired.
    pub(crate) fn poll_fired(&self, context: &mut Context<'_>) -> Poll<Vec<FiredTimer<T>>> {
        let mut timers = self.timers.lock();
        let Inner { queue, keys } = &mut *timers;
        let mut fired = Vec::new();
        while let Poll::Ready(Some(due)) = queue.poll_expired(context) {
            fired.push((due.key(), due.into_inner()));
        }
        if fired.is_empty() {
            return Poll::Pending;
        }
        for (timer, FiredTimer { key, .. }) in &fired {
            // One that was left to fire for nothing may have a successor by now.
            if keys.get(*key) == Some(timer) {
                keys.remove(*key);
            }
        }
        Poll::Ready(fired.into_iter().map(|(_, due)| due).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use test_support::tokio;

    fn timers() -> Timers<()> {
        Timers::new(Runtime::current().expect("in a runtime"))
    }

    fn at(ms: u64) -> impl FnOnce() -> Option<Instant> {
        move || Some(Instant::now() + Duration::from_millis(ms))
    }

    const OWNER: OwnerKey = OwnerKey::only(ThreadId(1));

    #[tokio::test(start_paused = true)]
    async fn timers_of_one_instant_fire_together() {
        let timers = timers();
        let start = Instant::now();
        for (id, ms) in [(1, 10_000), (2, 10_000), (3, 11_000)] {
            timers.set(id, OWNER, at(ms), Weak::new);
        }
        let fired = std::future::poll_fn(|context| timers.poll_fired(context)).await;
        assert_eq!(fired.len(), 2);
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        assert_eq!(timers.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_timer_is_left_to_fire_and_a_moved_one_is_not_made_again() {
        let timers = timers();
        timers.set(1, OWNER, at(1_000), Weak::new);
        timers.set(2, OWNER, at(2_000), Weak::new);
        timers.set(1, OWNER, || None, Weak::new);
        timers.set(2, OWNER, at(3_000), || {
            unreachable!("it is moved, not made")
        });
        timers.set(2, OWNER, || None, Weak::new);
        assert_eq!(timers.len(), 0);
        assert_eq!(
            timers.timers.lock().queue.len(),
            1,
            "nobody is woken for the last one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn behind_the_end_no_timer_is_made_and_none_is_kept() {
        let timers = timers();
        timers.set(1, OWNER, at(1_000), Weak::new);
        timers.set(2, OWNER, at(1_000), Weak::new);
        timers.end();
        timers.set(1, OWNER, || None, Weak::new);
        timers.set(2, OWNER, at(2_000), Weak::new);
        timers.set(3, OWNER, at(2_000), Weak::new);
        assert_eq!(timers.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn each_face_of_an_owner_has_a_timer_of_its_own() {
        let (timers, thread) = (timers(), ThreadId(-1));
        let faces = [Face::Only, Face::Read, Face::Write].map(|face| OwnerKey::of(thread, face));
        for owner in faces {
            timers.set(7, owner, at(1_000), Weak::new);
        }
        let fired = std::future::poll_fn(|context| timers.poll_fired(context)).await;
        let mut owners: Vec<_> = fired.iter().map(FiredTimer::owner).collect();
        owners.sort();
        assert_eq!(owners, faces);
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_of_a_queue_is_no_owners() {
        let timers = timers();
        timers.set(1, OWNER, at(2_000), Weak::new);
        for _ in 0..2 {
            timers.set(1, OwnerKey::QUEUE, at(1_000), Weak::new);
        }
        assert_eq!(timers.len(), 1);
        let fired = std::future::poll_fn(|context| timers.poll_fired(context)).await;
        assert_eq!((fired.len(), timers.len()), (1, 1));
        timers.set(1, OWNER, || None, Weak::new);
        assert_eq!(timers.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_was_left_to_fire_takes_no_other_with_it() {
        let timers = timers();
        let lock = Arc::new(());
        timers.set(1, OWNER, at(1_000), || Arc::downgrade(&lock));
        timers.set(1, OWNER, || None, Weak::new);
        timers.set(1, OWNER, at(5_000), || Arc::downgrade(&lock));
        let fired = std::future::poll_fn(|context| timers.poll_fired(context)).await;
        assert_eq!(fired.len(), 1);
        assert_eq!(timers.len(), 1, "the later one is still set");
    }
}
