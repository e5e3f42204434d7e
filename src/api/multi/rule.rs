//! The order in which several locks are taken. Plain data: no lock, no clock.
//!
//! A call never waits while it holds anything: it waits for the first lock alone, and tries the others. If one of those
//! is busy, it releases everything and waits for that one next. So there is no deadlock, whatever order other callers
//! use. All calls begin in one order, so those that want the same locks queue for the same one, and the next of them
//! gets it from the last, which releases the others at that time.
//!
//! A try does not overtake callers of the same client that queue for the lock, so it fails while there are any. After
//! the first such failure the call queues at the same time for each lock that others of its client hold or want,
//! without holding any, and tries all when it is first everywhere: only other clients can get in between. After a
//! second of busy answers it queues for all.

use std::time::Duration;

use tokio::time::Instant;

/// The next step of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait for this lock; nothing is held.
    Wait(usize),
    /// Wait for the first place in the queues of all that are contended in this client; nothing is held.
    Queue,
    /// Try this lock.
    Try(usize),
    /// All are held.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gather {
    /// The numbers of the locks, one after the other.
    order: Vec<usize>,
    /// The one that comes first in it.
    first: usize,
    /// How many are held, from the first on.
    held: usize,
    /// Since when a lock has been busy each time.
    busy_since: Option<Instant>,
    places: Places,
}

/// The places in the queues of the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Places {
    Unwanted,
    Wanted,
    /// The call is the first everywhere.
    First,
}

impl Gather {
    pub(super) fn new(order: Vec<usize>) -> Self {
        Self {
            order,
            first: 0,
            held: 0,
            busy_since: None,
            places: Places::Unwanted,
        }
    }

    pub(super) fn next(&self) -> Step {
        let member = self.at(self.held);
        match (self.held, self.places) {
            (held, _) if held == self.order.len() => Step::Done,
            (0, Places::Unwanted) => Step::Wait(member),
            (0, Places::Wanted) => Step::Queue,
            (_, _) => Step::Try(member),
        }
    }

    /// The lock of this step is held.
    pub(super) fn taken(&mut self) {
        self.held += 1;
    }

    /// The lock of this step is busy: everything is given back. `is_local`: other owners of its client hold it or want it.
    pub(super) fn busy(&mut self, now: Instant, is_local: bool) {
        self.first = (self.first + self.held) % self.order.len();
        self.held = 0;
        self.busy_since.get_or_insert(now);
        self.places = match self.places {
            _ if is_local => Places::Wanted,
            Places::Unwanted if self.is_impatient(now) => Places::Wanted,
            Places::Unwanted => Places::Unwanted,
            // The busy one is held by another client: that is waited for, without a place in the other queues.
            Places::Wanted | Places::First => Places::Unwanted,
        };
    }

    /// Whether a lock has been busy each time for a second.
    pub(super) fn is_impatient(&self, now: Instant) -> bool {
        let since = self.busy_since.unwrap_or(now);
        now.saturating_duration_since(since) >= PATIENCE
    }

    /// The call is the first in the queues of all.
    pub(super) fn queued(&mut self) {
        self.places = Places::First;
    }

    /// The last lock that was taken.
    pub(super) fn last(&self) -> usize {
        self.at(self.order.len() - 1)
    }

    fn at(&self, nth: usize) -> usize {
        self.order[(self.first + nth) % self.order.len()]
    }
}

/// After which time a call queues for all locks.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::test;

    #[test]
    fn the_first_is_waited_for_and_the_others_are_tried() {
        let mut gather = Gather::new(vec![0, 1, 2]);
        let now = Instant::now();
        assert_eq!(gather.next(), Step::Wait(0));
        gather.taken();
        assert_eq!(gather.next(), Step::Try(1));
        gather.taken();
        assert_eq!(gather.next(), Step::Try(2));
        gather.busy(now, false);
        for next in [Step::Wait(2), Step::Try(0), Step::Try(1)] {
            assert_eq!(gather.next(), next);
            gather.taken();
        }
        assert_eq!((gather.next(), gather.last()), (Step::Done, 1));
    }

    #[test]
    fn the_order_is_not_the_one_in_which_they_were_given() {
        let mut gather = Gather::new(vec![2, 0, 1]);
        for next in [Step::Wait(2), Step::Try(0)] {
            assert_eq!(gather.next(), next);
            gather.taken();
        }
        gather.busy(Instant::now(), false);
        for next in [Step::Wait(1), Step::Try(2), Step::Try(0)] {
            assert_eq!(gather.next(), next);
            gather.taken();
        }
        assert_eq!((gather.next(), gather.last()), (Step::Done, 0));
    }

    /// Every sequence of answers of three locks: a wait is never a step while anything is held.
    #[test]
    fn nothing_is_waited_for_while_anything_is_held() {
        fn walk(gather: &Gather, held: usize, now: Instant, depth: usize) {
            let step = gather.next();
            match step {
                Step::Wait(_) | Step::Queue => assert_eq!(held, 0, "{gather:?}"),
                Step::Try(_) => {}
                Step::Done => return assert_eq!(held, 3, "{gather:?}"),
            }
            if depth == 0 {
                return;
            }
            let now = now + Duration::from_millis(400);
            let (mut yes, mut no) = (gather.clone(), gather.clone());
            if step == Step::Queue {
                yes.queued();
                return walk(&yes, 0, now, depth - 1);
            }
            yes.taken();
            no.busy(now, false);
            walk(&yes, held + 1, now, depth - 1);
            walk(&no, 0, now, depth - 1);
        }
        walk(&Gather::new(vec![0, 1, 2]), 0, Instant::now(), 14);
    }

    #[test]
    fn who_finds_callers_of_its_client_before_it_queues_with_them() {
        let mut gather = Gather::new(vec![0, 1]);
        let now = Instant::now();
        gather.taken();
        gather.busy(now, true);
        assert_eq!(gather.next(), Step::Queue);
        gather.queued();
        gather.taken();
        gather.busy(now, true);
        assert_eq!(gather.next(), Step::Queue);
        gather.queued();
        gather.busy(now, false);
        assert_eq!(gather.next(), Step::Wait(0));
    }

    #[test]
    fn who_finds_one_busy_for_a_second_queues_for_all_every_other_time() {
        let mut gather = Gather::new(vec![0, 1]);
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let busy = |gather: &mut Gather, millis| {
            gather.taken();
            gather.busy(at(millis), false);
        };
        busy(&mut gather, 0);
        busy(&mut gather, 900);
        assert_eq!(gather.next(), Step::Wait(0));
        busy(&mut gather, 1_200);
        assert_eq!(gather.next(), Step::Queue);
        gather.queued();
        assert_eq!(gather.next(), Step::Try(1));
        busy(&mut gather, 1_400);
        assert_eq!(gather.next(), Step::Wait(0));
        busy(&mut gather, 2_400);
        assert_eq!(gather.next(), Step::Queue);
    }
}
