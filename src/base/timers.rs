//! One timer for each owner that holds a lock, all in one place.
//!
//! Renewals fall due at beats, where thousands of timers may have the same time: those of a millisecond are one list, and
//! the lists are in the order of their times.
//!
//! When a timer is due is a fact that its lock keeps. It is read here, under the mutex of the timers,
//! at the moment when the timer is set: two threads that set the same timer one after the other
//! cannot leave the earlier one's time behind. The lock also keeps the timer's place in here, which
//! is read and written under the same mutex.
//!
//! Lock order: timers, then the lock's own mutex.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use redisson_lock_core::OwnerKey;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep};

/// An owner of timers.
pub(crate) trait Timed {
    /// When the timer of an owner is due, and the place of the one that is set.
    fn timer(&self, owner: OwnerKey) -> (Option<Instant>, Option<TimerPlace>);

    fn set_place(&self, owner: OwnerKey, place: Option<TimerPlace>);
}

/// Where a timer is that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimerPlace {
    tick: Tick,
    /// In the list of that tick.
    nth: u32,
}

/// Milliseconds since the timers were made.
type Tick = u64;

pub(crate) struct Timers<T> {
    start: Instant,
    timers: Mutex<Inner<T>>,
    /// No timer is made or moved any more: the task that serves them is gone.
    over: AtomicBool,
}

struct Inner<T> {
    /// Those that are due at the same time, in any order. No list is empty.
    lists: BTreeMap<Tick, Vec<Timer<T>>>,
    /// The room of a short list that is gone, for the next: a pair of lock and unlock makes one, and leaves it.
    spare: Vec<Timer<T>>,
    /// How many are set that belong to owners, and not to the queue of a lock.
    of_owners: usize,
    alarm: Alarm,
}

struct Timer<T> {
    lock: Weak<T>,
    owner: OwnerKey,
}

/// Wakes the task that serves the timers.
#[derive(Default)]
struct Alarm {
    /// `None`: it is not set.
    at: Option<Tick>,
    sleep: Option<Pin<Box<Sleep>>>,
    waker: Option<Waker>,
}

/// Whose timer has fired.
#[derive(Debug)]
pub(crate) struct FiredTimer<T> {
    pub(crate) lock: Arc<T>,
    pub(crate) owner: OwnerKey,
}

/// Locks to be dropped when the mutex is free: perhaps the last references.
type Dropped<T> = SmallVec<[Arc<T>; 4]>;

impl<T: Timed> Timers<T> {
    pub(crate) fn new() -> Self {
        let timers = Mutex::new(Inner {
            lists: BTreeMap::new(),
            spare: Vec::new(),
            of_owners: 0,
            alarm: Alarm::default(),
        });
        Self {
            start: Instant::now(),
            timers,
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
        let mut moved = Dropped::new();
        let mut inner = self.timers.lock();
        for (lock, owner) in timers {
            let (due, place) = lock.timer(owner);
            let due = due.filter(|_| !self.over.load(Ordering::Acquire));
            let due = due.map(|at| self.tick(at));
            inner.put(lock, owner, (due, place), &mut moved);
        }
        let woken = inner.early_waker();
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
    }

    /// No timer fires early.
    fn tick(&self, at: Instant) -> Tick {
        let since = at.saturating_duration_since(self.start).as_nanos();
        Tick::try_from(since.div_ceil(1_000_000)).unwrap_or(Tick::MAX)
    }

    fn instant(&self, tick: Tick) -> Instant {
        self.start + Duration::from_millis(tick)
    }

    /// When the timer of an owner fires.
    #[cfg(feature = "test-util")]
    pub(crate) fn due(&self, lock: &T, owner: OwnerKey) -> Option<Instant> {
        let _timers = self.timers.lock();
        Some(self.instant(lock.timer(owner).1?.tick))
    }

    /// Owners that have a timer.
    pub(crate) fn len(&self) -> usize {
        self.timers.lock().of_owners
    }

    /// Timers that have fired, at most that many. Only the task that serves them asks.
    pub(crate) fn poll_fired(
        &self,
        context: &mut Context<'_>,
        most: usize,
    ) -> Poll<Vec<FiredTimer<T>>> {
        let mut fired = Vec::new();
        let mut inner = self.timers.lock();
        let mut now = Instant::now();
        loop {
            while fired.len() < most
                && let Some(tick) = inner.first().filter(|tick| self.instant(*tick) <= now)
            {
                inner.fire(tick, most, &mut fired);
            }
            if fired.len() >= most {
                break;
            }
            let first = inner.first();
            match inner.alarm.poll(context, first, |tick| self.instant(tick)) {
                Poll::Ready(tick) => now = now.max(self.instant(tick)),
                Poll::Pending => break,
            }
        }
        match fired.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(fired),
        }
    }
}

impl<T: Timed> Inner<T> {
    fn first(&self) -> Option<Tick> {
        self.lists.first_key_value().map(|(tick, _)| *tick)
    }

    /// Moves the timer of an owner from its place to the list of this time, or removes it.
    fn put(
        &mut self,
        lock: &Arc<T>,
        owner: OwnerKey,
        (due, place): (Option<Tick>, Option<TimerPlace>),
        moved: &mut Dropped<T>,
    ) {
        if place.map(|place| place.tick) == due {
            return;
        }
        if let Some(place) = place {
            self.remove(place, moved);
        }
        let place = due.map(|tick| {
            let spare = &mut self.spare;
            let list = self.lists.entry(tick);
            let list = list.or_insert_with(|| std::mem::take(spare));
            let nth = u32::try_from(list.len()).unwrap_or_else(|_| unreachable!("it has no room"));
            let lock = Arc::downgrade(lock);
            if list.len() == list.capacity() {
                // Not by doubling: a beat may have a timer of each of a hundred thousand locks.
                list.reserve_exact(list.len() / 4 + 4);
            }
            list.push(Timer { lock, owner });
            self.of_owners += usize::from(owner != OwnerKey::QUEUE);
            TimerPlace { tick, nth }
        });
        lock.set_place(owner, place);
    }

    /// Takes a timer out; the last one of its list has its place from now on.
    fn remove(&mut self, place: TimerPlace, moved: &mut Dropped<T>) {
        let nth = place.nth as usize;
        let Some(list) = self.lists.get_mut(&place.tick) else {
            return;
        };
        let removed = list.swap_remove(nth);
        self.of_owners -= usize::from(removed.owner != OwnerKey::QUEUE);
        if let Some(last) = list.get(nth)
            && let Some(lock) = last.lock.upgrade()
        {
            lock.set_place(last.owner, Some(place));
            moved.push(lock);
        }
        self.end_list(place.tick);
    }

    /// Takes timers of a list that is due, until there are `most`.
    fn fire(&mut self, tick: Tick, most: usize, fired: &mut Vec<FiredTimer<T>>) {
        let list = self.lists.get_mut(&tick);
        let Some(list) = list else { return };
        while fired.len() < most
            && let Some(Timer { lock, owner }) = list.pop()
        {
            self.of_owners -= usize::from(owner != OwnerKey::QUEUE);
            if let Some(lock) = lock.upgrade() {
                lock.set_place(owner, None);
                fired.push(FiredTimer { lock, owner });
            }
        }
        self.end_list(tick);
    }

    /// A list that has no timer any more goes.
    fn end_list(&mut self, tick: Tick) {
        if self.lists.get(&tick).is_some_and(Vec::is_empty)
            && let Some(list) = self.lists.remove(&tick)
            && list.capacity() <= SPARE_MAX
        {
            self.spare = list;
        }
    }

    /// Whom to wake because the first timer is due before the alarm.
    fn early_waker(&mut self) -> Option<Waker> {
        let first = self.first()?;
        match self.alarm.at {
            Some(at) if at <= first => None,
            _ => self.alarm.waker.take(),
        }
    }
}

impl Alarm {
    /// Ready at the time of the first timer, or before. An alarm that is set is left to go off, although its timer is gone:
    /// to move it at each step would wake the renewal task for every uncontended pair of lock and unlock.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        first: Option<Tick>,
        instant: impl Fn(Tick) -> Instant,
    ) -> Poll<Tick> {
        if !matches!(&self.waker, Some(waker) if waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
        let tick = self.at.into_iter().chain(first).min();
        let Some(tick) = tick else {
            return Poll::Pending;
        };
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(instant(tick))));
        if self.at != Some(tick) {
            self.at = Some(tick);
            sleep.as_mut().reset(instant(tick));
        }
        ready!(sleep.as_mut().poll(context));
        self.at = None;
        Poll::Ready(tick)
    }
}

/// More timers than a list has that need not wait for a beat.
const SPARE_MAX: usize = 64;

#[cfg(test)]
mod tests;
