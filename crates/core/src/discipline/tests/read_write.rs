//! Read-write locks: what the two faces of an owner have to do with each other, and readers with writers.

mod faces;

use super::*;
use crate::input::{CallAsks, HoldDowngraded, HoldUnlocked, RenewalEnds, TimePasses, TimerFires};
use crate::tests::Unlock;
use crate::{Face, Generation, HoldId, LeaseKind, RenewOutcome, RenewalAsk, Terms};

const fn read(owner: OwnerKey) -> OwnerKey {
    OwnerKey::of(owner.thread, Face::Read)
}

const fn write(owner: OwnerKey) -> OwnerKey {
    OwnerKey::of(owner.thread, Face::Write)
}

const A_READS: OwnerKey = read(A);
const A_WRITES: OwnerKey = write(A);
const B_READS: OwnerKey = read(B);
const B_WRITES: OwnerKey = write(B);
const C_READS: OwnerKey = read(C);
const C_WRITES: OwnerKey = write(C);

const HOUR: Terms = Terms {
    lease: Duration::from_secs(3_600),
    kind: LeaseKind::Fixed,
    ..TERMS
};

impl Fixture {
    fn read_write() -> Self {
        Self {
            core: LockCore::new(Discipline::ReadWrite, RULES, Life::Open),
            ..Self::new()
        }
    }

    /// A call that queues has the lock, and leaves.
    fn queues_and_takes(&mut self, owner: OwnerKey) -> HoldId {
        let waiter = self.call(owner, Order::Queued);
        let permit = self.permit(waiter);
        let hold = self.is_taken(&permit).expect("wanted");
        self.leaves(waiter);
        hold
    }

    fn is_taken(&mut self, permit: &Permit) -> Result<HoldId, Rejected> {
        let sent_at = self.now;
        let taken = self.takes_at(permit, sent_at);
        taken.map(|(hold, _)| hold)
    }

    fn is_taken_outside(&mut self, permit: &Permit) -> Result<HoldId, Rejected> {
        let sent_at = self.now;
        let taken = self.claims(permit, sent_at, true);
        taken.map(|(hold, _)| hold)
    }

    fn asks(&mut self, waiter: WaiterId) -> Result<Admission, Rejected> {
        let field = "f".into();
        self.step(CallAsks {
            call: waiter,
            field,
            reconnects: None,
        })
    }

    fn waits_its_turn(&mut self, waiter: WaiterId) -> bool {
        self.asks(waiter) == Ok(Admission::Queued)
    }

    fn waits_for_its_owner(&mut self, waiter: WaiterId) -> bool {
        self.asks(waiter) == Ok(Admission::OwnerBusy)
    }

    fn has(&self, owner: OwnerKey, hold: HoldId) -> bool {
        self.core.snapshot(self.now, owner, hold).is_some()
    }

    fn generation(&self, owner: OwnerKey) -> Generation {
        self.core.owners.get(owner).expect("known").generation
    }

    fn renewal_finds(&mut self, owner: OwnerKey, reason: LossReason) {
        let (generation, lost) = (self.generation(owner), RenewOutcome::Lost(reason));
        self.step(RenewalEnds {
            owner,
            generation,
            outcome: lost,
        });
    }

    fn released(&mut self, unlock: &Unlock) {
        self.unlocked(unlock, 0, None).expect("released");
    }
}

#[test]
fn the_first_reader_attempts_alone_and_all_others_follow_it() {
    let mut fixture = Fixture::read_write();
    let [first, second, third] =
        [A_READS, B_READS, C_READS].map(|owner| fixture.call(owner, Order::Queued));
    let permit = fixture.permit(first);
    assert!(fixture.waits_its_turn(second) && fixture.waits_its_turn(third));
    fixture.is_taken(&permit).expect("wanted");
    for waiter in [third, second] {
        assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
        assert!(fixture.core.has_turn(fixture.now, waiter));
    }
    let permits = [third, second].map(|waiter| fixture.permit(waiter));
    for permit in permits {
        fixture.is_taken(&permit).expect("wanted");
    }
    assert_eq!(fixture.core.counts().held, 3);
}

#[test]
fn every_reader_is_woken_when_the_first_is_in() {
    let mut fixture = Fixture::read_write();
    let waiters = [A_READS, B_READS, C_READS].map(|owner| fixture.call(owner, Order::Queued));
    let permit = fixture.permit(waiters[0]);
    fixture.is_taken(&permit).expect("wanted");
    for waiter in &waiters[1..] {
        assert!(fixture.out.woken.contains(waiter), "{:?}", fixture.out);
    }
}

/// They are polled after it has released: one after the other would wake all others each time.
#[test]
fn readers_that_were_called_follow_one_that_is_out_again() {
    let mut fixture = Fixture::read_write();
    let [first, second, third] =
        [A_READS, B_READS, C_READS].map(|owner| fixture.call(owner, Order::Queued));
    let permit = fixture.permit(first);
    let hold = fixture.is_taken(&permit).expect("wanted");
    fixture.leaves(first);
    let unlock = fixture.unlock(A_READS, hold);
    fixture.released(&unlock);
    assert!(fixture.retries(third));
    let permits = [third, second].map(|waiter| fixture.permit(waiter));
    for permit in &permits {
        fixture.is_taken(permit).expect("wanted");
    }
    assert_eq!(fixture.core.counts().held, 2);
}

/// It has queued for longer, and its turn comes when the lock is freed.
#[test]
fn no_reader_that_was_called_goes_in_before_a_writer_or_beside_one() {
    let mut fixture = Fixture::read_write();
    let first = fixture.call(A_READS, Order::Queued);
    let writer = fixture.call(B_WRITES, Order::Queued);
    let called = fixture.call(C_READS, Order::Queued);
    let permit = fixture.permit(first);
    let hold = fixture.is_taken(&permit).expect("wanted");
    fixture.leaves(first);
    assert!(fixture.out.woken.contains(&called) || fixture.retries(called));
    let unlock = fixture.unlock(A_READS, hold);
    fixture.released(&unlock);
    assert!(!fixture.retries(called));
    let permit = fixture.permit(writer);
    assert!(!fixture.retries(called));
    fixture.is_taken(&permit).expect("wanted");
    assert!(fixture.waits_its_turn(called));
}

/// It may find the lock held by a writer elsewhere, if the hold of the other reader is lost and that is not known yet. It
/// must not attempt again and again until it is.
#[test]
fn a_reader_that_has_followed_waits_when_it_finds_the_lock_held() {
    let mut fixture = Fixture::read_write();
    fixture.lock(A_READS);
    let waiter = fixture.call(B_READS, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    assert!(!fixture.retries(waiter));
}

#[test]
fn a_writer_waits_for_all_readers_and_a_reader_for_no_writer_that_waits() {
    let mut fixture = Fixture::read_write();
    let first = fixture.lock(A_READS);
    let writer = fixture.call(B_WRITES, Order::Queued);
    assert!(fixture.waits_its_turn(writer));
    let second = fixture.queues_and_takes(C_READS);
    for (owner, hold) in [(A_READS, first), (C_READS, second)] {
        let unlock = fixture.unlock(owner, hold);
        assert!(fixture.waits_its_turn(writer));
        fixture.released(&unlock);
    }
    assert!(fixture.out.woken.contains(&writer));
    assert!(fixture.retries(writer));
    fixture.permit(writer);
}

#[test]
fn readers_wait_for_a_writer_and_one_of_them_goes_first() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(A_WRITES);
    let [first, second] = [B_READS, C_READS].map(|owner| fixture.call(owner, Order::Queued));
    assert!(fixture.waits_its_turn(first) && fixture.waits_its_turn(second));
    let unlock = fixture.unlock(A_WRITES, hold);
    assert!(fixture.waits_its_turn(first), "its release is under way");
    fixture.released(&unlock);
    assert_eq!(fixture.out.woken[..], [first]);
    fixture.permit(first);
    assert!(fixture.waits_its_turn(second));
}

/// The lock is free for both lanes: what the head of one has found does not keep that of the other asleep.
#[test]
fn a_freed_lock_is_a_reason_for_the_heads_of_both_lanes() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(C_READS);
    let [writer, reader] = [A_WRITES, B_READS].map(|owner| fixture.call(owner, Order::Queued));
    assert!(fixture.waits_its_turn(writer));
    let permit = fixture.permit(reader);
    fixture.untaken(&permit, Untaken::Busy);
    let unlock = fixture.unlock(C_READS, hold);
    fixture.released(&unlock);
    assert!(fixture.out.woken.contains(&writer) && fixture.out.woken.contains(&reader));
    assert!(fixture.waits_its_turn(reader), "the other came first");
    let permit = fixture.permit(writer);
    fixture.untaken(&permit, Untaken::Busy);
    assert!(fixture.out.woken.contains(&reader));
    assert!(fixture.retries(reader));
    fixture.permit(reader);
}

/// One that unlocks and locks in a row attempts before others are polled: it would keep them out for ever.
#[test]
fn an_owner_that_has_freed_the_lock_lets_the_other_lane_go_first() {
    for [loops, waits] in [[A_READS, B_WRITES], [A_WRITES, B_READS]] {
        let mut fixture = Fixture::read_write();
        let hold = fixture.lock(loops);
        let waiter = fixture.call(waits, Order::Queued);
        assert!(fixture.waits_its_turn(waiter));
        let unlock = fixture.unlock(loops, hold);
        fixture.released(&unlock);
        let again = fixture.call(loops, Order::Queued);
        assert!(fixture.waits_its_turn(again));
        let permit = fixture.permit(waiter);
        fixture.untaken(&permit, Untaken::Busy);
        assert!(fixture.out.woken.contains(&again), "{:?}", fixture.out);
        fixture.permit(again);
    }
}

/// The other lane does not wait for a place that is not polled for longer than a lane does for its own.
#[test]
fn a_place_that_is_not_polled_keeps_the_other_lane_for_a_command_timeout() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(A_READS);
    let unpolled = fixture.place(B_WRITES);
    assert!(!fixture.polls_turn(unpolled));
    let unlock = fixture.unlock(A_READS, hold);
    fixture.released(&unlock);
    let again = fixture.call(A_READS, Order::Queued);
    assert!(fixture.waits_its_turn(again));
    let limit = fixture.now + RULES.command_timeout;
    let timer = fixture.core.timer(OwnerKey::QUEUE);
    assert!(timer.is_some_and(|at| at <= limit), "{timer:?}");
    fixture.now = limit;
    fixture.step(TimerFires {
        owner: OwnerKey::QUEUE,
    });
    assert!(fixture.is_woken_to_ask(again), "{:?}", fixture.out);
    fixture.permit(again);
}

/// Others may shorten the lease: certainty ends one watchdog timeout after it was confirmed, and at each look what is
/// promised is asked for again.
#[test]
fn a_fixed_read_is_certain_for_a_watchdog_timeout_and_raised_again() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock_with(A_READS, HOUR);
    let (start, timeout) = (fixture.now, RULES.watchdog_timeout);
    let snapshot = fixture.core.snapshot(start, A_READS, hold).expect("held");
    assert!(snapshot.deadline <= start + timeout, "{snapshot:?}");
    assert!(snapshot.at_risk_from.is_some(), "{snapshot:?}");
    let ends = snapshot.ends.expect("fixed");
    assert!(ends > start + HOUR.lease - HOUR.lease / 50);
    fixture.now = fixture.core.timer(A_READS).expect("it is looked at");
    assert!(fixture.now <= start + timeout / 3);
    let request = fixture.step(TimerFires { owner: A_READS });
    let request = request.expect("due");
    let RenewalAsk::Extend(lease) = request.asked else {
        panic!("{request:?}");
    };
    // It lasts until the end of the hold by a clock that differs, and no longer than was asked for at first.
    assert!(crate::local_deadline(fixture.now, lease) >= ends);
    assert!(fixture.now + lease <= start + HOUR.lease);
    let held = RenewOutcome::Held {
        sent_at: fixture.now,
        asked: request.asked,
        acknowledged: 0,
    };
    fixture.step(RenewalEnds {
        owner: A_READS,
        generation: request.generation,
        outcome: held,
    });
    let snapshot = fixture.core.snapshot(fixture.now, A_READS, hold);
    let deadline = snapshot.expect("held").deadline;
    assert!(deadline > fixture.now + timeout - timeout / 50);
    assert!(deadline <= fixture.now + timeout);
}

/// Its last renewal asks for the rest, so it ends as what it is, and not as one that was not renewed.
#[test]
fn a_fixed_read_ends_with_its_lease() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock_with(A_READS, HOUR);
    loop {
        let snapshot = fixture.core.snapshot(fixture.now, A_READS, hold);
        let ends = snapshot.expect("held").ends.expect("fixed");
        fixture.now = fixture.core.timer(A_READS).expect("watched");
        if fixture.now >= ends {
            break;
        }
        let sent_at = fixture.now;
        let request = fixture.step(TimerFires { owner: A_READS });
        let Some(request) = request else { continue };
        let asked = request.asked;
        let held = RenewOutcome::Held {
            sent_at,
            asked,
            acknowledged: 0,
        };
        fixture.step(RenewalEnds {
            owner: A_READS,
            generation: request.generation,
            outcome: held,
        });
    }
    fixture.step(TimePasses {});
    let lost = fixture.step(HoldUnlocked {
        owner: A_READS,
        hold,
    });
    assert_eq!(lost, Err(LossReason::LeaseOver));
}

#[test]
fn a_release_promises_the_reads_that_stay_what_they_need() {
    let mut fixture = Fixture::read_write();
    let terms = Terms {
        lease: Duration::from_secs(10),
        ..HOUR
    };
    let stays = fixture.lock_with(A_READS, terms);
    let inner = fixture.lock(A_READS);
    fixture.drop_hold(A_READS, inner);
    let lease = match fixture.sends_release(A_READS, true) {
        ReleaseSend::Count {
            target: 1, lease, ..
        } => lease,
        other => panic!("{other:?}"),
    };
    let snapshot = fixture.core.snapshot(fixture.now, A_READS, stays);
    let ends = snapshot.expect("held").ends.expect("fixed");
    assert!(crate::local_deadline(fixture.now, lease) >= ends);
}

#[test]
fn a_fixed_write_is_certain_for_its_lease_and_never_looked_at() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock_with(A_WRITES, HOUR);
    let snapshot = fixture.core.snapshot(fixture.now, A_WRITES, hold);
    let snapshot = snapshot.expect("held");
    assert!(snapshot.deadline > fixture.now + HOUR.lease - HOUR.lease / 50);
    assert_eq!(snapshot.at_risk_from, None);
}

/// Nothing is certain any more of what was confirmed one watchdog timeout ago.
#[test]
fn a_long_read_that_is_answered_too_late_is_undone() {
    let mut fixture = Fixture::read_write();
    let waiter = fixture.call_with(A_READS, Order::Queued, HOUR);
    let permit = fixture.permit(waiter);
    let sent_at = fixture.now;
    fixture.now = fixture.now + RULES.watchdog_timeout;
    let taken = fixture.takes_at(&permit, sent_at);
    assert_eq!(taken, Err(Rejected::TooLate));
    assert_eq!(fixture.out.sends[0].0, A_READS);
}

#[test]
fn an_attempt_to_read_lets_no_writer_go_first() {
    let mut fixture = Fixture::read_write();
    fixture.lock(A_READS);
    let writer = fixture.call(B_WRITES, Order::Queued);
    assert!(fixture.waits_its_turn(writer));
    let attempt = fixture.call(C_READS, Order::Immediate);
    fixture.permit(attempt);
    // One to write does.
    let attempt = fixture.call(write(OwnerKey::only(crate::ThreadId(4))), Order::Immediate);
    assert_eq!(fixture.asks(attempt), Ok(Admission::Busy));
}

#[test]
fn an_attempt_to_read_lets_readers_go_first_until_one_is_in() {
    let mut fixture = Fixture::read_write();
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    let attempt = fixture.call(B_READS, Order::Immediate);
    assert_eq!(fixture.asks(attempt), Ok(Admission::Busy));
    fixture.is_taken(&permit).expect("wanted");
    let attempt = fixture.call(B_READS, Order::Immediate);
    fixture.permit(attempt);
}

/// Its callers queue for one lock, whichever part of it they want.
#[test]
fn an_attempt_overtakes_no_caller_that_queues_for_the_other_part() {
    for [holds, waits, tries] in [
        [C_WRITES, B_READS, A_WRITES],
        [C_READS, B_WRITES, A_READS],
        [C_WRITES, B_WRITES, A_READS],
    ] {
        let mut fixture = Fixture::read_write();
        let hold = fixture.lock(holds);
        let waiter = fixture.call(waits, Order::Queued);
        assert!(fixture.waits_its_turn(waiter));
        let unlock = fixture.unlock(holds, hold);
        fixture.released(&unlock);
        let attempt = fixture.call(tries, Order::Immediate);
        assert_eq!(fixture.asks(attempt), Ok(Admission::Busy));
        fixture.leaves(attempt);
        // While it attempts, too.
        let permit = fixture.permit(waiter);
        let attempt = fixture.call(tries, Order::Immediate);
        assert_eq!(fixture.asks(attempt), Ok(Admission::Busy));
        fixture.leaves(attempt);
        fixture.untaken(&permit, Untaken::Busy);
        // What another client holds for reading, others may read: no reader waits for a writer.
        let attempt = fixture.call(tries, Order::Immediate);
        match tries == A_READS {
            true => _ = fixture.permit(attempt),
            false => assert_eq!(fixture.asks(attempt), Ok(Admission::Busy)),
        }
    }
}

/// A call that queues for several locks has been here longer than who queues for the other part now.
#[test]
fn an_attempt_of_an_owner_that_queued_first_is_made() {
    for [first, later] in [[A_WRITES, B_READS], [A_READS, B_WRITES]] {
        let mut fixture = Fixture::read_write();
        let [place, behind] = [first, later].map(|owner| fixture.place(owner));
        assert!(fixture.polls_turn(place));
        assert!(!fixture.polls_turn(behind));
        let attempt = fixture.call(first, Order::Immediate);
        fixture.permit(attempt);
    }
}

#[test]
fn nothing_is_handed_over() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(A_WRITES);
    let waiter = fixture.call(B_WRITES, Order::Queued);
    assert!(fixture.waits_its_turn(waiter));
    fixture.drop_hold(A_WRITES, hold);
    let said = fixture.sends_release(A_WRITES, true);
    assert!(matches!(said, ReleaseSend::Count { target: 0, .. }));
}

/// The readers behind it would wait for ever.
#[test]
fn a_place_of_a_reader_that_is_not_polled_is_passed_over() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(A_WRITES);
    let unpolled = fixture.place(B_READS);
    let next = fixture.call(C_READS, Order::Queued);
    assert!(!fixture.polls_turn(unpolled) && fixture.waits_its_turn(next));
    let unlock = fixture.unlock(A_WRITES, hold);
    fixture.released(&unlock);
    assert!(fixture.out.woken.contains(&unpolled));
    let limit = fixture.now + RULES.command_timeout;
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), Some(limit));
    fixture.now = limit;
    fixture.step(TimePasses {});
    assert!(fixture.out.woken.contains(&next), "{:?}", fixture.out);
    let permit = fixture.permit(next);
    fixture.is_taken(&permit).expect("wanted");
    // It follows as each other reader does.
    assert!(fixture.polls_turn(unpolled));
}

/// It slept for ever: nothing else says that the older call of the other part has gone.
#[test]
fn a_place_that_could_not_use_its_turn_asks_for_it_again() {
    let mut fixture = Fixture::read_write();
    // Another client writes.
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    fixture.untaken(&permit, Untaken::Busy);
    let place = fixture.place(B_WRITES);
    assert!(!fixture.polls_turn(place), "the reader was first");
    for reader_stays in [true, false] {
        if !reader_stays {
            fixture.leaves(reader);
        }
        fixture.now = fixture.now + RULES.command_timeout;
        fixture.step(TimePasses {});
        assert!(fixture.out.woken.contains(&place), "{:?}", fixture.out);
        assert_eq!(fixture.polls_turn(place), !reader_stays);
    }
}

/// Another task of the owner took it for reading after the caller had looked: the read hold had the count and the lease of the
/// one that was moved.
#[test]
fn a_write_hold_whose_owner_reads_by_now_is_only_released() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(A_WRITES);
    let to = fixture.place(A_READS);
    assert!(fixture.core.may_downgrade(A_WRITES, hold));
    let reads = fixture.lock(A_READS);
    let moved = fixture.step(HoldDowngraded {
        owner: A_WRITES,
        hold,
        to,
    });
    assert_eq!(moved, Ok(true));
    let said = fixture.sends_release(A_WRITES, true);
    assert!(matches!(said, ReleaseSend::Count { target: 0, .. }));
    assert!(fixture.has(A_READS, reads) && !fixture.core.has_acquire(to));
}

/// Its turn may have ended while it was in the way of none.
#[test]
fn a_place_of_a_reader_is_passed_over_when_no_reader_is_in_any_more() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(A_WRITES);
    let unpolled = fixture.place(B_READS);
    assert!(!fixture.polls_turn(unpolled));
    let unlock = fixture.unlock(A_WRITES, hold);
    fixture.released(&unlock);
    let hold = fixture.lock(B_READS);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.step(TimePasses {});
    let unlock = fixture.unlock(B_READS, hold);
    fixture.released(&unlock);
    let [reader, writer] = [C_READS, C_WRITES].map(|owner| fixture.call(owner, Order::Queued));
    assert!(fixture.waits_its_turn(reader) && fixture.waits_its_turn(writer));
    let limit = fixture.now + RULES.command_timeout;
    while fixture.core.has_turn(fixture.now, unpolled) {
        let due = fixture.core.timer(OwnerKey::QUEUE);
        assert!(due.is_some_and(|due| due <= limit), "{due:?}");
        fixture.now = due.unwrap_or(limit);
        fixture.step(TimerFires {
            owner: OwnerKey::QUEUE,
        });
    }
    assert!(fixture.is_woken_to_ask(reader), "{:?}", fixture.out);
}

/// Writers wait for what is granted to a reader too: it is given back.
#[test]
fn a_read_that_is_not_claimed_keeps_no_writer_waiting() {
    let mut fixture = Fixture::read_write();
    let unpolled = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(unpolled);
    let writer = fixture.call(B_WRITES, Order::Queued);
    assert!(fixture.waits_its_turn(writer));
    fixture.granted(&permit);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.step(TimePasses {});
    let (owner, job) = fixture.out.sends[0];
    assert_eq!(owner, A_READS);
    assert_eq!(fixture.job_sends(A_READS, job).0, 0);
    fixture.answered(A_READS, 0, None);
    assert!(fixture.out.woken.contains(&writer));
    fixture.permit(writer);
}

/// It is looked at when it has begun, whichever owners hold the lock before.
#[test]
fn a_report_before_the_answer_is_kept_beside_other_readers() {
    for begins_first in [false, true] {
        let mut fixture = Fixture::read_write();
        let call = |fixture: &mut Fixture| {
            let waiter = fixture.call(read(B), Order::Immediate);
            fixture.permit(waiter)
        };
        let begun = begins_first.then(|| call(&mut fixture));
        for owner in [A, C] {
            fixture.lock(read(owner));
        }
        let permit = begun.unwrap_or_else(|| call(&mut fixture));
        assert!(fixture.core.note_report(), "two are held");
        fixture.is_taken(&permit).expect("wanted");
        assert!(fixture.out.is_reported, "{begins_first}");
    }
}
