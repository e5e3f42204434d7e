//! One timer for each owner that holds a lock, all in one queue.
//!
//! When a timer is due is a fact that its lock keeps. It is read here, under the mutex of the timers,
//! at the moment when the timer is set: two threads that set the same timer one after the other
//! cannot leave the earlier one's time behind. The lock keeps the timer's key in the queue too, which
//! is read and written under the same mutex.
//!
//! Lock order: timers, then the lock's own mutex.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::core::OwnerKey;
use crate::runtime::Runtime;

/// What has timers.
pub(crate) trait Timed {
    /// When the timer of an owner is due, and the key of the one that is set.
    fn timer(&self, owner: OwnerKey) -> (Option<Instant>, Option<Key>);

    fn set_timer_key(&self, owner: OwnerKey, key: Option<Key>);
}

pub(crate) struct Timers<T> {
    timers: Mutex<Inner<T>>,
    /// Timers are made in here, because guards may be looked at and dropped anywhere.
    runtime: Runtime,
    /// No timer is made or moved any more: the task that serves them is gone.
    over: AtomicBool,
}

struct Inner<T> {
    /// A key is used again once its timer has fired, so a lock has only that of a timer that is set.
    queue: DelayQueue<Timer<T>>,
    /// How many are set that belong to owners, and not to the queue of a lock.
    of_owners: usize,
}

struct Timer<T> {
    lock: Weak<T>,
    owner: OwnerKey,
}

/// Whose timer has fired.
#[derive(Debug)]
pub(crate) struct FiredTimer<T> {
    pub(crate) lock: Arc<T>,
    pub(crate) owner: OwnerKey,
}

impl<T: Timed> Timers<T> {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let timers = Mutex::new(Inner {
            queue: DelayQueue::new(),
            of_owners: 0,
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

    /// Sets, moves or removes timers, each to the time at which it is due.
    pub(crate) fn set<'a>(&self, timers: impl IntoIterator<Item = (&'a Arc<T>, OwnerKey)>)
    where
        T: 'a,
    {
        let mut entered = None;
        let mut inner = self.timers.lock();
        for (lock, owner) in timers {
            let (due, key) = lock.timer(owner);
            let due = due.filter(|_| !self.over.load(Ordering::Acquire));
            if due.is_some() {
                entered.get_or_insert_with(|| self.runtime.enter());
            }
            match (due, key) {
                (Some(at), Some(key)) => inner.queue.reset_at(&key, at),
                (Some(at), None) => {
                    let timer = Timer {
                        lock: Arc::downgrade(lock),
                        owner,
                    };
                    let key = inner.queue.insert_at(timer, at);
                    inner.set_key(lock, owner, Some(key));
                }
                // The last one is left to fire for nothing: removing it would wake the renewal task, and
                // so would the next lock, on every single uncontended pair.
                (None, Some(key)) => {
                    if inner.queue.len() > 1 {
                        inner.queue.remove(&key);
                    }
                    inner.set_key(lock, owner, None);
                }
                (None, None) => {}
            }
        }
    }

    /// When the timer of an owner fires.
    #[cfg(feature = "test-util")]
    pub(crate) fn due(&self, lock: &T, owner: OwnerKey) -> Option<Instant> {
        let timers = self.timers.lock();
        Some(timers.queue.deadline(&lock.timer(owner).1?))
    }

    /// Owners that have a timer.
    pub(crate) fn len(&self) -> usize {
        self.timers.lock().of_owners
    }

    /// Timers that have fired, at most that many.
    pub(crate) fn poll_fired(
        &self,
        context: &mut Context<'_>,
        most: usize,
    ) -> Poll<Vec<FiredTimer<T>>> {
        let mut timers = self.timers.lock();
        let (mut fired, mut for_nothing) = (Vec::new(), Vec::new());
        while fired.len() < most
            && let Poll::Ready(Some(expired)) = timers.queue.poll_expired(context)
        {
            let key = expired.key();
            let Timer { lock, owner } = expired.into_inner();
            let Some(lock) = lock.upgrade() else { continue };
            // One that was left to fire for nothing may have a successor by now.
            if lock.timer(owner).1 == Some(key) {
                timers.set_key(&lock, owner, None);
                fired.push(FiredTimer { lock, owner });
            } else {
                for_nothing.push(lock);
            }
        }
        drop(timers);
        // Perhaps the last references.
        drop(for_nothing);
        match fired.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(fired),
        }
    }
}

impl<T: Timed> Inner<T> {
    fn set_key(&mut self, lock: &T, owner: OwnerKey, key: Option<Key>) {
        match (owner == OwnerKey::QUEUE, &key) {
            (true, _) => {}
            (false, Some(_)) => self.of_owners += 1,
            (false, None) => self.of_owners -= 1,
        }
        lock.set_timer_key(owner, key);
    }
}

#[cfg(test)]
mod tests;
