//! Steps of one core by hand, each as the shortest trace that once went wrong.

use super::*;
use crate::HandOff;
use std::time::Duration;

pub(super) const RULES: Rules = Rules {
    watchdog_timeout: Duration::from_secs(30),
    command_timeout: Duration::from_secs(3),
    handoff: HandOff::off(),
    fair_wait: Duration::from_secs(300),
    release_pause: Duration::from_millis(20),
};
pub(super) const TERMS: Terms = Terms {
    lease: RULES.watchdog_timeout,
    kind: LeaseKind::Watchdog,
    limit: None,
    replicas: 0,
    reentrant: true,
    wait: RULES.fair_wait,
};
pub(super) const A: OwnerKey = OwnerKey::only(ThreadId(1));
pub(super) const B: OwnerKey = OwnerKey::only(ThreadId(2));
pub(super) const C: OwnerKey = OwnerKey::only(ThreadId(3));

/// A core and the time, with what its latest step left to be done.
pub(super) struct Fixture {
    pub(super) core: LockCore,
    pub(super) now: Time,
    pub(super) out: Effects,
    /// What the next answer to a release says of other clients.
    pub(super) others_listen: bool,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self {
            core: LockCore::new(Discipline::Plain, RULES, Life::Open),
            now: Time::START,
            out: Effects::default(),
            others_listen: false,
        }
    }

    pub(super) fn step<T>(
        &mut self,
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> T,
    ) -> T {
        self.out = Effects::default();
        run(&mut self.core, self.now, &mut self.out)
    }

    pub(super) fn call(&mut self, owner: OwnerKey, order: Order) -> WaiterId {
        self.call_with(owner, order, TERMS)
    }

    pub(super) fn call_with(&mut self, owner: OwnerKey, order: Order, terms: Terms) -> WaiterId {
        self.step(|core, _, _| core.enqueue(owner, order, terms, None))
    }

    pub(super) fn admit(&mut self, waiter: WaiterId) -> Admission {
        let field: Arc<str> = "f".into();
        self.step(|core, now, out| core.admit(now, waiter, &field, out))
            .expect("open, and nothing is lost")
    }

    pub(super) fn permit(&mut self, waiter: WaiterId) -> Permit {
        let admission = self.admit(waiter);
        assert_eq!(admission, Admission::Sent);
        self.sent_acquire()
    }

    /// What the acquire says that begins with the latest step. It enters its connection.
    pub(super) fn sent_acquire(&mut self) -> Permit {
        let (owner, op) = self.out.sends[self.out.sends.len() - 1];
        let permit = self.core.acquire_says(owner, op).expect("under way");
        assert!(self.core.acquire_enters(owner, op));
        permit
    }

    pub(super) fn lock(&mut self, owner: OwnerKey) -> HoldId {
        self.lock_with(owner, TERMS)
    }

    pub(super) fn lock_with(&mut self, owner: OwnerKey, terms: Terms) -> HoldId {
        let waiter = self.call_with(owner, Order::Immediate, terms);
        let permit = self.permit(waiter);
        let sent_at = self.now;
        let hold = self.takes_at(&permit, sent_at).expect("wanted").0;
        self.step(|core, now, out| core.leave(now, waiter, out));
        hold
    }

    /// Unlocks a hold; its release is under way then.
    pub(super) fn unlock(&mut self, owner: OwnerKey, hold: HoldId) -> Unlock {
        let begun = self.step(|core, now, out| core.unlock(now, owner, hold, out));
        assert_eq!(begun, Ok(true));
        Unlock { owner, hold }
    }

    /// Drops a hold, and answers with the job that begins with that.
    pub(super) fn drop_hold(&mut self, owner: OwnerKey, hold: HoldId) -> OpId {
        self.step(|core, now, out| _ = core.drop_hold(now, owner, hold, out));
        self.out.sends[0].1
    }

    /// Drops a hold whose release is under way.
    pub(super) fn drop_hold_too(&mut self, owner: OwnerKey, hold: HoldId) {
        self.step(|core, now, out| _ = core.drop_hold(now, owner, hold, out));
        assert!(self.out.sends.is_empty(), "it joins the release");
    }

    /// The next send of a release, and until when it goes on.
    pub(super) fn job_sends(&mut self, owner: OwnerKey, job: OpId) -> (u32, Time) {
        match self.next_of(owner, job) {
            ReleaseStep::Send { .. } => (self.release_sent(owner), self.gives_up_at(owner)),
            ReleaseStep::Done => panic!("the release has more to do"),
        }
    }

    /// Its timer fires. What is due is renewed.
    pub(super) fn timer_fires(&mut self, owner: OwnerKey) {
        let request = self.step(|core, now, out| core.timer_fired(now, owner, out));
        let out = std::mem::take(&mut self.out);
        if let Some(request) = request {
            let outcome = RenewOutcome::Held {
                sent_at: self.now,
                asked: request.asked,
                acknowledged: 0,
            };
            self.step(|core, now, out| core.renewed(now, owner, request.generation, outcome, out));
        }
        self.out = out;
    }

    /// When a release whose sends fail gives up, if nothing is held.
    pub(super) fn gives_up_at(&self, owner: OwnerKey) -> Time {
        let own = self.core.owners.get(owner).expect("known");
        own.op.release().expect("under way").give_up_at
    }

    pub(super) fn next_of(&mut self, owner: OwnerKey, job: OpId) -> ReleaseStep {
        self.step(|core, now, out| core.release_step(now, owner, job, None, out))
    }

    pub(super) fn release_sent(&mut self, owner: OwnerKey) -> u32 {
        match self.sends_release(owner, true) {
            ReleaseSend::Count { target, .. } => target,
            ReleaseSend::Pass { to, .. } => panic!("the lock is handed to {to}"),
        }
    }

    /// What the release of an owner that is under way says.
    pub(super) fn sends_release(&mut self, owner: OwnerKey, may_pass: bool) -> ReleaseSend {
        let op = self.release_of(owner);
        self.step(|core, now, out| core.release_sent(now, owner, op, may_pass, out))
            .expect("under way")
    }

    /// The count that a release would go to.
    pub(super) fn target(&self, owner: OwnerKey) -> u32 {
        let own = self.core.owners.get(owner);
        own.map_or(0, |own| own.tenure.target())
    }

    pub(super) fn release_of(&self, owner: OwnerKey) -> OpId {
        let own = self.core.owners.get(owner).expect("known");
        own.op.release().expect("under way").id
    }

    /// The release that an unlock is part of is answered, and sent before if it was not. The outcome of
    /// the unlock.
    pub(super) fn unlocked(
        &mut self,
        unlock: &Unlock,
        target: u32,
        gone: Option<LossReason>,
    ) -> Result<(), LossReason> {
        self.answered(unlock.owner, target, gone);
        self.outcome(unlock).expect("it has its outcome")
    }

    /// `None`: it has none yet.
    pub(super) fn outcome(&self, unlock: &Unlock) -> Option<Result<(), LossReason>> {
        let mut unlocked = self.out.unlocked.iter();
        let (_, outcome) = unlocked.find(|(hold, _)| *hold == unlock.hold)?;
        Some(match outcome {
            Unlocked::Released => Ok(()),
            Unlocked::Lost(reason) => Err(*reason),
            Unlocked::Failed => panic!("the unlock has failed"),
        })
    }

    pub(super) fn answered(&mut self, owner: OwnerKey, target: u32, gone: Option<LossReason>) {
        let own = self.core.owners.get(owner).expect("known");
        let sent = own.op.release().expect("under way").sent;
        let said = sent.map_or_else(|| self.release_sent(owner), |sent| sent.target);
        assert_eq!(said, target);
        let op = self.release_of(owner);
        let answer = ReleaseAnswer {
            gone,
            sent_at: self.now,
            others_listen: self.others_listen,
            token: None,
        };
        self.step(|core, now, out| core.release_answered(now, owner, op, answer, out));
    }

    /// The latest send has no reply, and may have been executed.
    pub(super) fn unanswered(&mut self, owner: OwnerKey) {
        self.fails(owner, true, None);
    }

    /// The latest send has failed; the commands of the lock go over this connection now.
    pub(super) fn fails(
        &mut self,
        owner: OwnerKey,
        maybe_executed: bool,
        carrier: Option<(u16, u64)>,
    ) {
        let op = self.release_of(owner);
        let failed = FailedSend {
            maybe_executed,
            is_refusal: !maybe_executed,
            text: "it failed".into(),
            carrier,
        };
        self.step(|core, now, out| core.release_failed(now, owner, op, &failed, out));
    }
}

/// An unlock whose outcome is awaited.
pub(super) struct Unlock {
    owner: OwnerKey,
    pub(super) hold: HoldId,
}

/// What is there once for each of many thousand locks.
#[test]
fn a_lock_that_is_only_held_has_no_room_for_a_queue() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    assert!(!fixture.core.queue.is_apart(), "it is held");
    let waiter = fixture.call(B, Order::Queued);
    assert!(fixture.core.queue.is_apart(), "a call waits");
    fixture.leaves(waiter);
    assert!(!fixture.core.queue.is_apart(), "it has left");
    let released = fixture.step(|core, now, out| core.unlock(now, A, hold, out));
    assert!(released.expect("held") && !fixture.core.queue.is_apart());
}

pub(super) const GONE: Option<LossReason> = Some(LossReason::Gone);

/// Two calls that queue and an immediate attempt, behind an operation of their owner.
#[test]
fn a_call_that_has_to_queue_wakes_the_next_of_its_owner() {
    let mut fixture = Fixture::new();
    fixture.lock(B);
    let busy = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(busy);
    let calls = [Order::Queued, Order::Queued, Order::Immediate];
    let [first, second, attempt] = calls.map(|order| {
        let waiter = fixture.call(A, order);
        let admission = fixture.admit(waiter);
        assert_eq!(admission, Admission::OwnerBusy);
        waiter
    });
    fixture.untaken(&permit, Untaken::Busy);
    assert!(fixture.out.woken.contains(&first));
    assert_eq!(fixture.admit(first), Admission::Queued);
    assert!(fixture.out.woken.contains(&second), "{:?}", fixture.out);
    assert_eq!(fixture.admit(second), Admission::Queued);
    assert!(fixture.out.woken.contains(&attempt), "{:?}", fixture.out);
    // The head is a call of its own owner.
    fixture.permit(attempt);
}

#[test]
fn a_detached_hold_that_has_ended_is_not_held() {
    let mut fixture = Fixture::new();
    let short = Terms {
        lease: Duration::from_secs(1),
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    let hold = fixture.lock_with(A, short);
    fixture.step(|core, now, out| core.detach(now, A, hold, out));
    let claimed = fixture.step(|core, now, out| core.claim_detached(now, A, out));
    assert_eq!(claimed, Some(hold));
    fixture.now = fixture.now + short.lease;
    fixture.step(LockCore::tick);
    fixture.answered(A, 0, GONE);
    let waiter = fixture.call(A, Order::Queued);
    fixture.permit(waiter);
    let begun = fixture.step(|core, now, out| core.unlock(now, A, hold, out));
    assert_eq!(begun, Ok(false));
}

/// The nested acquire may be executed: the unlock goes to Redis when its outcome is known.
#[test]
fn an_unlock_during_an_acquire_is_sent_when_that_has_ended() {
    for nested in [true, false] {
        let mut fixture = Fixture::new();
        let outer = fixture.lock(A);
        let waiter = fixture.call(A, Order::Queued);
        let permit = fixture.permit(waiter);
        let unlock = fixture.unlock(A, outer);
        assert!(fixture.out.sends.is_empty() && fixture.outcome(&unlock).is_none());
        let sent_at = fixture.now;
        if nested {
            fixture.takes_at(&permit, sent_at).expect("wanted");
        } else {
            fixture.untaken(&permit, Untaken::NotExecuted);
        }
        assert_eq!(fixture.out.sends.len(), 1);
        assert_eq!(fixture.unlocked(&unlock, u32::from(nested), None), Ok(()));
    }
}

#[test]
fn a_release_that_frees_nothing_is_no_reason_for_a_gone_field() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let job = fixture.drop_hold(A, inner);
    assert_eq!(fixture.job_sends(A, job).0, 1);
    fixture.unanswered(A);
    let unlock = fixture.unlock(A, outer);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(
        fixture.unlocked(&unlock, 0, GONE),
        Err(LossReason::Gone),
        "the first send has only lowered the count: another client has freed the lock"
    );
}

#[test]
fn a_release_that_frees_the_lock_is_why_its_repetition_finds_nothing() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.release_sent(A), 0, "again: the first was lost");
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Ok(()));

    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));

    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    let op = fixture.release_of(A);
    fixture.step(|core, now, out| core.release_unwritten(now, A, op, out));
    assert_eq!(
        fixture.release_sent(A),
        0,
        "again: the first was never written"
    );
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
}

/// It joins while the send of the first is under way: the next send is its own.
#[test]
fn an_unlock_that_joins_has_its_outcome_with_the_next_send() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert_eq!(fixture.release_sent(A), 1);
    let second = fixture.unlock(A, outer);
    assert!(fixture.out.sends.is_empty(), "one job");
    assert_eq!(fixture.unlocked(&first, 1, None), Ok(()));
    assert_eq!(fixture.outcome(&second), None);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    assert_eq!(fixture.unlocked(&second, 0, None), Ok(()));
    assert_eq!(fixture.next_of(A, op), ReleaseStep::Done);
    assert!(!fixture.core.keeps_itself());
}

/// However long the send before has taken.
#[test]
fn an_unlock_that_joins_has_a_command_timeout_from_the_answer_before_its_send() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert_eq!(fixture.job_sends(A, op).0, 1);
    fixture.unlock(A, outer);
    fixture.now = fixture.now + RULES.command_timeout;
    assert_eq!(fixture.unlocked(&first, 1, None), Ok(()));
    match fixture.next_of(A, op) {
        ReleaseStep::Send { awaited, .. } => assert_eq!(awaited, Some(fixture.now)),
        ReleaseStep::Done => panic!("the second is not sent"),
    }
}

/// The one that joined has not been sent: its time begins with the next attempt.
#[test]
fn an_attempt_that_fails_fails_only_the_unlocks_that_were_part_of_it() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert_eq!(fixture.job_sends(A, op).0, 1);
    let second = fixture.unlock(A, outer);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.unanswered(A);
    assert_eq!(fixture.out.unlocked[..], [(first.hold, Unlocked::Failed)]);
    let awaited = match fixture.next_of(A, op) {
        ReleaseStep::Send { awaited, .. } => awaited,
        ReleaseStep::Done => panic!("the second is not sent"),
    };
    assert_eq!(awaited, Some(fixture.now));
    assert_eq!(fixture.unlocked(&second, 0, None), Ok(()));
}

/// The attempt of the first waits for a connection: its send includes the second, whose time has only begun.
#[test]
fn an_unlock_that_joins_an_attempt_which_is_built_late_has_one_of_its_own() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert!(matches!(fixture.next_of(A, op), ReleaseStep::Send { .. }));
    let second = fixture.unlock(A, outer);
    assert_eq!(fixture.release_sent(A), 0);
    fixture.unanswered(A);
    assert_eq!(fixture.out.unlocked[..], [(first.hold, Unlocked::Failed)]);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    assert_eq!(
        fixture.unlocked(&second, 0, GONE),
        Ok(()),
        "freed by the send before"
    );
}

/// The server was away for longer than a command timeout, and a background release has failed meanwhile.
#[test]
fn an_unlock_that_joins_a_failing_release_has_a_command_timeout_of_its_own() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let op = fixture.drop_hold(A, inner);
    assert_eq!(fixture.job_sends(A, op).0, 1);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.unanswered(A);
    assert!(fixture.out.sends.is_empty(), "it pauses");
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.unlock(A, outer);
    assert_eq!(fixture.out.sends[..], [(A, op)], "it is sent immediately");
    match fixture.next_of(A, op) {
        ReleaseStep::Send { awaited, .. } => assert_eq!(awaited, Some(fixture.now)),
        ReleaseStep::Done => panic!("the unlock is not sent"),
    }
}

#[test]
fn unlocks_that_find_nothing_report_the_loss() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let (first, second) = (fixture.unlock(A, inner), fixture.unlock(A, outer));
    assert_eq!(fixture.unlocked(&first, 0, GONE), Err(LossReason::Gone));
    assert_eq!(fixture.outcome(&second), Some(Err(LossReason::Gone)));
    assert_eq!(fixture.out.totals[..], [(Total::Lost, 2)]);
    assert_eq!(fixture.out.events.len(), 1);
}

/// A send is refused, and another client deletes the key.
#[test]
fn a_release_that_was_not_executed_is_no_reason_for_a_gone_field() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    fixture.drop_hold_too(A, outer);
    let op = fixture.release_of(A);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    fixture.fails(A, false, None);
    assert_eq!(fixture.out.unlocked[..], [(first.hold, Unlocked::Failed)]);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    let release = fixture.core.owners.get(A).expect("known").op.release();
    assert!(!release.expect("under way").maybe_freed);
}

/// The server may have the long lease.
#[test]
fn a_job_goes_on_behind_an_extend_without_an_answer() {
    let mut fixture = Fixture::new();
    let fixed = Terms {
        lease: Duration::from_secs(5),
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    let hold = fixture.lock_with(A, fixed);
    let hour = Duration::from_secs(3600);
    let known = fixture.step(|core, now, out| core.extending(now, A, hold, hour, out));
    assert_eq!(known, Some(()));
    let job = fixture.drop_hold(A, hold);
    let until = fixture.now + hour;
    assert_eq!(fixture.job_sends(A, job), (0, until));
    let ended = fixture.step(|core, now, out| core.extending(now, A, hold, hour, out));
    assert_eq!(ended, None);
}

/// A hold that is released while the job works was renewed until then.
#[test]
fn a_job_goes_on_for_a_lease_from_the_last_release_on() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let job = fixture.drop_hold(A, inner);
    let first = (1, fixture.now + RULES.watchdog_timeout);
    assert_eq!(fixture.job_sends(A, job), first);
    fixture.unanswered(A);
    fixture.now = fixture.now + Duration::from_secs(2);
    let unlock = fixture.unlock(A, outer);
    let later = (0, fixture.now + RULES.watchdog_timeout);
    assert_eq!(fixture.job_sends(A, job), later);
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
    assert!(!fixture.core.keeps_itself());
}

#[test]
fn a_guard_dropped_during_an_acquire_needs_no_release_behind_a_loss() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.step(|core, now, out| core.drop_hold(now, A, outer, out));
    assert_eq!(fixture.core.counts().releasing, 1);
    fixture.step(|core, now, out| core.lose_owner(now, A, None, LossReason::Gone, out));
    assert_eq!(fixture.core.counts().releasing, 0);
    fixture.untaken(&permit, Untaken::OuterGone);
    assert!(fixture.out.sends.is_empty(), "{:?}", fixture.out);
}

/// A guard is dropped while a nested acquire whose call is not polled is under way, and the client is closed.
#[test]
fn closing_ends_what_was_released_and_has_no_answer() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let waiter = fixture.call(A, Order::Queued);
    fixture.permit(waiter);
    fixture.step(|core, now, out| core.drop_hold(now, A, outer, out));
    assert!(fixture.out.ended.is_empty(), "not known yet");
    fixture.step(|core, now, out| core.set_life(now, Life::Closing, out));
    fixture.step(|core, now, out| core.lose_all(now, LossReason::Closed, out));
    assert_eq!(fixture.out.ended[..], [(outer, Ending::Released)]);
}

/// A release takes it out before its end is known, and a loss by the server comes before the deadline.
#[test]
fn a_hold_that_is_over_was_valid_until_its_deadline_or_until_then() {
    let fixed = Terms {
        lease: Duration::from_secs(10),
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    let ends = Time::START + Duration::from_secs(10) - Duration::from_millis(102);
    for (after, over) in [(5, Time::START + Duration::from_secs(5)), (20, ends)] {
        for step in ["unlock", "drop", "lose"] {
            let mut fixture = Fixture::new();
            let (hold, other) = (fixture.lock_with(A, fixed), fixture.lock(A));
            fixture.now = Time::START + Duration::from_secs(after);
            fixture.step(|core, now, out| match step {
                "unlock" => _ = core.unlock(now, A, hold, out),
                "drop" => _ = core.drop_hold(now, A, hold, out),
                _ => core.lose_owner(now, A, None, LossReason::Gone, out),
            });
            let (of_hold, rest) = fixture.out.over.split_first().expect("it is over");
            assert_eq!(*of_hold, (hold, over), "{step} after {after} s");
            let is_lost = step == "lose";
            assert_eq!(rest.iter().any(|(hold, _)| *hold == other), is_lost);
        }
    }
}
