//! Tests of what the two faces of one owner have to do with each other.

use super::*;
use crate::input::{CallAsks, ClientEnds, HoldDropped, HoldUnlocked, LifeChanges, OwnerLost};

#[test]
fn an_owner_that_writes_reads_without_waiting() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let other = fixture.call(B_READS, Order::Queued);
    assert!(fixture.waits_its_turn(other));
    let reads = fixture.queues_and_takes(A_READS);
    assert!(fixture.waits_its_turn(other));
    // The write hold is released, and the readers of this client may follow the one that is in.
    let unlock = fixture.unlock(A_WRITES, writes);
    fixture.released(&unlock);
    assert!(fixture.out.woken.contains(&other));
    fixture.queues_and_takes(C_READS);
    let writer = fixture.call(C_WRITES, Order::Queued);
    assert_eq!(fixture.asks(writer), Err(Rejected::OwnRead));
    let unlock = fixture.unlock(A_READS, reads);
    fixture.released(&unlock);
}

#[test]
fn a_second_read_of_an_owner_nests() {
    let mut fixture = Fixture::read_write();
    let outer = fixture.lock(A_READS);
    let waiter = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(waiter);
    assert_eq!(permit.target, 2);
    fixture.is_taken(&permit).expect("wanted");
    fixture.drop_hold(A_READS, outer);
    assert_eq!(fixture.release_sent(A_READS), 1);
}

#[test]
fn an_owner_that_reads_may_not_write_and_nothing_is_sent() {
    let mut fixture = Fixture::read_write();
    let hold = fixture.lock(A_READS);
    for order in [Order::Queued, Order::Immediate] {
        let waiter = fixture.call(A_WRITES, order);
        assert_eq!(fixture.asks(waiter), Err(Rejected::OwnRead));
        fixture.leaves(waiter);
    }
    // While the read is being released, it waits for that.
    let unlock = fixture.unlock(A_READS, hold);
    let waiter = fixture.call(A_WRITES, Order::Queued);
    assert!(fixture.waits_for_its_owner(waiter));
    fixture.released(&unlock);
    assert!(fixture.out.woken.contains(&waiter));
    fixture.permit(waiter);
}

/// Another branch of its owner reads meanwhile.
#[test]
fn a_writer_that_waits_is_told_that_its_owner_reads() {
    let mut fixture = Fixture::read_write();
    fixture.lock(B_READS);
    let writer = fixture.call(A_WRITES, Order::Queued);
    assert!(fixture.waits_its_turn(writer));
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    fixture.is_taken(&permit).expect("wanted");
    assert!(fixture.out.woken.contains(&writer), "{:?}", fixture.out);
    assert!(fixture.retries(writer));
    assert_eq!(fixture.asks(writer), Err(Rejected::OwnRead));
}

/// I2: acquires of both faces come one after the other, and a release waits for none of the other face.
#[test]
fn an_owner_has_one_acquire_under_way_whatever_its_face() {
    let mut fixture = Fixture::read_write();
    let writer = fixture.call(A_WRITES, Order::Queued);
    let permit = fixture.permit(writer);
    let reader = fixture.call(A_READS, Order::Queued);
    assert!(fixture.waits_for_its_owner(reader));
    let writes = fixture.is_taken(&permit).expect("wanted");
    assert!(fixture.out.woken.contains(&reader));
    let inside = fixture.permit(reader);
    let unlock = fixture.unlock(A_WRITES, writes);
    let next = fixture.call(A_WRITES, Order::Queued);
    assert!(fixture.waits_for_its_owner(next));
    fixture.released(&unlock);
    assert!(fixture.waits_for_its_owner(next), "it is about to read");
    fixture.is_taken_outside(&inside).expect("wanted");
    assert_eq!(fixture.asks(next), Err(Rejected::OwnRead));
}

#[test]
fn a_read_inside_of_a_write_that_was_lost_is_undone() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    fixture.renewal_finds(A_WRITES, LossReason::Gone);
    // Its owner may have seen that before the read is answered.
    fixture.step(HoldDropped {
        owner: A_WRITES,
        hold: writes,
    });
    let lost = Err(Rejected::Lost(LossReason::Gone));
    assert_eq!(fixture.is_taken(&permit), lost);
    assert_eq!(fixture.out.sends[0].0, A_READS);
}

/// The read has made the key again: the write hold is lost, and its owner hears of it now.
#[test]
fn a_read_that_finds_no_write_hold_tells_of_its_loss() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    let lost = Err(Rejected::Lost(LossReason::Gone));
    assert_eq!(fixture.is_taken_outside(&permit), lost);
    assert_eq!(fixture.out.sends[0].0, A_READS);
    let unlock = fixture.step(HoldUnlocked {
        owner: A_WRITES,
        hold: writes,
    });
    assert_eq!(unlock, Err(LossReason::Gone));
}

/// Its write hold was taken away, and another writer has the lock: without that rule the call would attempt again and
/// again, because its owner seems to hold the lock.
#[test]
fn a_read_inside_of_a_write_that_finds_another_writer_tells_of_the_loss() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    fixture.untaken(&permit, Untaken::Busy);
    assert!(!fixture.has(A_WRITES, writes));
    let lost = Err(Rejected::Lost(LossReason::Taken));
    assert_eq!(fixture.asks(reader), lost);
}

#[test]
fn a_read_beside_the_release_of_its_write_is_an_ordinary_one() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    let unlock = fixture.unlock(A_WRITES, writes);
    let reads = fixture.is_taken_outside(&permit).expect("wanted");
    fixture.released(&unlock);
    assert!(fixture.has(A_READS, reads));
}

/// Its guard is dropped while the read is on its way.
#[test]
fn the_release_of_a_write_waits_for_no_read_that_is_under_way() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    let job = fixture.drop_hold(A_WRITES, writes);
    assert_eq!(fixture.job_sends(A_WRITES, job).0, 0);
    let reads = fixture.is_taken(&permit).expect("wanted");
    fixture.answered(A_WRITES, 0, None);
    assert!(fixture.has(A_READS, reads));
}

#[test]
fn the_loss_of_the_hash_ends_both_faces_and_that_of_a_field_one() {
    for (face, other) in [(A_WRITES, A_READS), (A_READS, A_WRITES)] {
        let losses = [
            (LossReason::Gone, 2),
            (LossReason::Changed, 2),
            (LossReason::Taken, 1),
        ];
        for (reason, ended) in losses {
            let mut fixture = Fixture::read_write();
            fixture.lock(A_WRITES);
            fixture.lock(A_READS);
            fixture.renewal_finds(face, reason);
            assert_eq!(fixture.out.ended.len(), ended, "{face:?}: {reason:?}");
            // Neither face takes it again before its owner has seen the loss.
            for owner in [face, other] {
                let waiter = fixture.call(owner, Order::Queued);
                assert_eq!(fixture.asks(waiter), Err(Rejected::Lost(reason)));
            }
        }
    }
}

/// A forced unlock of one field says nothing of the other, an `extend` that finds nothing does.
#[test]
fn a_forced_unlock_ends_the_face_whose_field_it_was() {
    for (is_forced, ended) in [(true, 1), (false, 2)] {
        let mut fixture = Fixture::read_write();
        fixture.lock(A_WRITES);
        fixture.lock(A_READS);
        let generation = is_forced.then(|| fixture.generation(A_WRITES));
        fixture.step(OwnerLost {
            owner: A_WRITES,
            generation,
            reason: LossReason::Gone,
        });
        assert_eq!(fixture.out.ended.len(), ended);
    }
}

/// A read that ended at its limit without a guard is left to its lease, and the script refuses to write meanwhile.
#[test]
fn a_read_that_only_the_server_has_is_released_before_the_write() {
    let mut fixture = Fixture::read_write();
    let writer = fixture.call(A_WRITES, Order::Queued);
    let permit = fixture.permit(writer);
    fixture.untaken(&permit, Untaken::OwnRead);
    let (owner, job) = fixture.out.sends[0];
    assert_eq!(owner, A_READS);
    assert!(fixture.waits_for_its_owner(writer));
    let until = fixture.now + RULES.watchdog_timeout;
    assert_eq!(fixture.job_sends(A_READS, job), (0, until));
    fixture.answered(A_READS, 0, None);
    assert!(fixture.out.woken.contains(&writer));
    fixture.permit(writer);
}

/// The lock is not free, and a writer that waits would find that.
#[test]
fn the_release_of_a_read_inside_of_a_write_frees_nothing() {
    let mut fixture = Fixture::read_write();
    fixture.lock(A_WRITES);
    let reads = fixture.lock(A_READS);
    let waiters = [B_WRITES, C_READS].map(|owner| fixture.call(owner, Order::Queued));
    assert!(waiters.iter().all(|waiter| fixture.waits_its_turn(*waiter)));
    let unlock = fixture.unlock(A_READS, reads);
    fixture.released(&unlock);
    for waiter in waiters {
        assert!(!fixture.out.woken.contains(&waiter), "{:?}", fixture.out);
        assert!(!fixture.retries(waiter));
    }
}

/// Without the fence an owner has a new field for each hold, and the scripts look for both faces under one.
#[test]
fn both_faces_have_one_field() {
    let mut fixture = Fixture::read_write();
    fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let another = "another".into();
    let admission = fixture.step(CallAsks {
        call: reader,
        field: another,
        reconnects: None,
    });
    assert_eq!(admission, Ok(Admission::Sent));
    let permit = fixture.sent_acquire();
    assert_eq!(&*permit.field, "f");
}

/// The release was executed twice, and the read between its second copy and that one's answer.
#[test]
fn a_release_that_finds_nothing_ends_no_younger_read() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    let job = fixture.drop_hold(A_WRITES, writes);
    assert_eq!(fixture.job_sends(A_WRITES, job).0, 0);
    let reads = fixture.is_taken_outside(&permit).expect("wanted");
    fixture.answered(A_WRITES, 0, GONE);
    assert!(fixture.has(A_READS, reads));
}

#[test]
fn a_release_that_finds_nothing_ends_an_older_read() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reads = fixture.lock(A_READS);
    let unlock = fixture.unlock(A_WRITES, writes);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
    assert!(!fixture.has(A_READS, reads));
}

/// Neither reads nor writes of one owner nest into a hold that is not reentrant.
#[test]
fn a_read_nests_into_no_write_that_is_not_reentrant() {
    let alone = Terms {
        reentrant: false,
        ..TERMS
    };
    for (outer, inner) in [(alone, TERMS), (TERMS, alone)] {
        let mut fixture = Fixture::read_write();
        fixture.lock_with(A_WRITES, outer);
        let waiter = fixture.call_with(A_READS, Order::Queued, inner);
        assert_eq!(fixture.asks(waiter), Err(Rejected::AlreadyHeld));
    }
}

#[test]
fn a_closing_client_takes_no_read_inside_of_a_write() {
    let mut fixture = Fixture::read_write();
    fixture.lock(A_WRITES);
    let reader = fixture.call(A_READS, Order::Queued);
    let permit = fixture.permit(reader);
    fixture.step(LifeChanges {
        life: Life::Closing,
    });
    fixture.step(ClientEnds {
        reason: LossReason::Closed,
    });
    assert_eq!(fixture.is_taken(&permit), Err(Rejected::Closed));
    assert_eq!(fixture.core.counts().releasing, 1);
}

/// The read hold keeps the hash, and with it the field of the write hold, whose lease is over.
#[test]
fn a_release_does_not_give_up_while_the_other_face_keeps_the_hash() {
    for [short, long] in [[A_WRITES, A_READS], [A_READS, A_WRITES]] {
        let mut fixture = Fixture::read_write();
        let [mut first, mut second] = [A_WRITES, A_READS].map(|face| {
            let terms = if face == long { HOUR } else { TERMS };
            let waiter = fixture.call_with(face, Order::Queued, terms);
            let permit = fixture.permit(waiter);
            let hold = fixture.is_taken(&permit).expect("wanted");
            fixture.leaves(waiter);
            hold
        });
        if short == A_READS {
            std::mem::swap(&mut first, &mut second);
        }
        fixture.drop_hold(short, first);
        let job = fixture.job();
        let gives_up = |fixture: &mut Fixture| match fixture.next_of(short, job) {
            ReleaseStep::Send { .. } => fixture.gives_up_at(short),
            ReleaseStep::Done => panic!("it has no answer"),
        };
        let until = fixture.now + HOUR.lease;
        assert_eq!(gives_up(&mut fixture), until);
        // The lease is at the server until then, whatever becomes of the hold.
        fixture.drop_hold(long, second);
        fixture.now = fixture.now + RULES.watchdog_timeout;
        assert_eq!(gives_up(&mut fixture), until);
    }
}

/// Its write hold is over by the clock while a read inside of it is on its way, which may have raised the lease.
#[test]
fn a_release_does_not_give_up_before_a_read_that_is_under_way() {
    let mut fixture = Fixture::read_write();
    let writes = fixture.lock(A_WRITES);
    let reader = fixture.call_with(A_READS, Order::Queued, HOUR);
    fixture.permit(reader);
    let job = fixture.drop_hold(A_WRITES, writes);
    let until = fixture.now + HOUR.lease;
    assert!(matches!(
        fixture.next_of(A_WRITES, job),
        ReleaseStep::Send { .. }
    ));
    assert_eq!(fixture.gives_up_at(A_WRITES), until);
}

/// It waited until its owner's last hold was gone: the face that releases is not held, and while it does, no call is woken by the
/// one that is.
#[test]
fn a_nested_call_goes_on_when_the_other_face_has_released() {
    for [ends, nests] in [[A_READS, A_WRITES], [A_WRITES, A_READS]] {
        let mut fixture = Fixture::read_write();
        let other = fixture.lock(B_WRITES);
        let owners = [A_WRITES, A_READS, nests, nests];
        let calls = owners.map(|owner| fixture.call(owner, Order::Queued));
        assert!(calls.iter().all(|call| fixture.waits_its_turn(*call)));
        let unlock = fixture.unlock(B_WRITES, other);
        fixture.released(&unlock);
        let [writes, reads, nested, next] = calls;
        let holds = [writes, reads].map(|call| {
            let permit = fixture.permit(call);
            fixture.is_taken(&permit).expect("wanted")
        });
        let permit = fixture.permit(nested);
        let job = fixture.drop_hold(ends, holds[usize::from(ends == A_READS)]);
        fixture.sends(ends, job);
        fixture.is_taken(&permit).expect("wanted");
        fixture.release_is_answered(ends, job, None);
        assert!(fixture.is_woken_to_ask(next), "{:?}", fixture.out);
    }
}
