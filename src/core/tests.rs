//! Steps of one core by hand, each as the shortest trace that once went wrong.

use super::*;
use crate::core::HandOver;
use std::time::Duration;

pub(super) const RULES: Rules = Rules {
    watchdog_timeout: Duration::from_secs(30),
    command_timeout: Duration::from_secs(3),
    handover: HandOver::off(),
};
pub(super) const TERMS: Terms = Terms {
    lease: RULES.watchdog_timeout,
    kind: LeaseKind::Watchdog,
    limit: None,
    replicas: 0,
};
pub(super) const A: ThreadId = ThreadId(1);
pub(super) const B: ThreadId = ThreadId(2);
pub(super) const C: ThreadId = ThreadId(3);

/// A core and the time, with what its latest step left to be done.
pub(super) struct Fixture {
    pub(super) core: LockCore,
    pub(super) now: Time,
    pub(super) out: Effects,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self {
            core: LockCore::new(RULES, Life::Open),
            now: Time::START,
            out: Effects::default(),
        }
    }

    pub(super) fn step<T>(
        &mut self,
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> T,
    ) -> T {
        self.out = Effects::default();
        run(&mut self.core, self.now, &mut self.out)
    }

    pub(super) fn call(&mut self, owner: ThreadId, order: Order) -> WaiterId {
        self.call_with(owner, order, TERMS)
    }

    pub(super) fn call_with(&mut self, owner: ThreadId, order: Order, terms: Terms) -> WaiterId {
        self.step(|core, now, out| core.enqueue(now, owner, order, terms, out))
    }

    pub(super) fn admit(&mut self, waiter: WaiterId) -> Admission {
        let field: Arc<str> = "f".into();
        self.step(|core, now, out| core.admit(now, waiter, &field, out))
            .expect("open, and nothing is lost")
    }

    pub(super) fn permit(&mut self, waiter: WaiterId) -> Permit {
        match self.admit(waiter) {
            Admission::Permit(permit) => permit,
            other => panic!("no permit: {other:?}"),
        }
    }

    pub(super) fn lock(&mut self, owner: ThreadId) -> HoldId {
        self.lock_with(owner, TERMS)
    }

    pub(super) fn lock_with(&mut self, owner: ThreadId, terms: Terms) -> HoldId {
        let waiter = self.call_with(owner, Order::AtOnce, terms);
        let permit = self.permit(waiter);
        let sent_at = self.now;
        let hold = self
            .step(|core, now, out| core.taken(now, &permit, sent_at, out))
            .expect("wanted");
        self.step(|core, now, out| core.leave(now, waiter, out));
        hold
    }

    pub(super) fn unlock(&mut self, owner: ThreadId, hold: HoldId) -> Unlock {
        match self.step(|core, now, out| core.begin_unlock(now, owner, hold, out)) {
            Ok(ReleaseStart::Send(unlock)) => unlock,
            other => panic!("no unlock: {other:?}"),
        }
    }

    /// Drops a hold, and answers with the job that begins with that.
    pub(super) fn drop_hold(&mut self, owner: ThreadId, hold: HoldId) -> OpId {
        self.step(|core, now, out| core.drop_hold(now, owner, hold, out));
        self.out.jobs[0].1
    }

    /// The next send of a job, and until when it goes on.
    pub(super) fn job_sends(&mut self, owner: ThreadId, job: OpId) -> (u32, Time) {
        match self.step(|core, now, out| core.job_step(now, owner, job, out)) {
            JobStep::Send { give_up_at, .. } => (self.release_sent(owner), give_up_at),
            JobStep::Done => panic!("the job has more to do"),
        }
    }

    pub(super) fn release_sent(&mut self, owner: ThreadId) -> u32 {
        match self.sends_release(owner, true) {
            ReleaseSend::Count { target, .. } => target,
            ReleaseSend::Pass { to, .. } => panic!("the lock is handed to {to}"),
        }
    }

    /// What the release of an owner that is under way says.
    pub(super) fn sends_release(&mut self, owner: ThreadId, may_pass: bool) -> ReleaseSend {
        let op = self.release_of(owner);
        self.step(|core, now, out| core.release_sent(now, owner, op, may_pass, out))
            .expect("under way")
    }

    /// The count that a release would go to.
    pub(super) fn target(&self, owner: ThreadId) -> u32 {
        let own = self.core.owners.get(owner);
        own.map_or(0, |own| own.tenure.target())
    }

    pub(super) fn release_of(&self, owner: ThreadId) -> OpId {
        let own = self.core.owners.get(owner).expect("known");
        own.op.release().expect("under way").id
    }

    pub(super) fn unlocked(
        &mut self,
        unlock: &Unlock,
        target: u32,
        gone: Option<LossReason>,
    ) -> Result<(), LossReason> {
        let answer = self.answer(target, gone);
        self.step(|core, now, out| core.unlocked(now, unlock, answer, out))
    }

    pub(super) fn job_answered(
        &mut self,
        owner: ThreadId,
        job: OpId,
        target: u32,
        gone: Option<LossReason>,
    ) {
        let answer = self.answer(target, gone);
        self.step(|core, now, out| core.job_answered(now, owner, job, answer, out));
    }

    pub(super) fn answer(&self, target: u32, gone: Option<LossReason>) -> ReleaseAnswer {
        ReleaseAnswer {
            target,
            gone,
            first_sent_at: self.now,
            sent_at: self.now,
            others_listen: false,
        }
    }
}

pub(super) const GONE: Option<LossReason> = Some(LossReason::Gone);

/// It was woken in the very step in which it began to wait, and by nothing afterwards.
#[test]
fn an_attempt_that_lets_the_head_go_first_hears_of_its_next_move() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let head = fixture.call(B, Order::Queued);
    assert!(matches!(fixture.admit(head), Admission::Queued { .. }));
    fixture.unlock(A, hold);
    // The unlock is not polled: the attempt has a job take it over, and waits for that.
    fixture.now = fixture.now + RULES.command_timeout;
    let attempt = fixture.call(C, Order::AtOnce);
    assert!(matches!(fixture.admit(attempt), Admission::Queued { .. }));
    let (owner, job) = fixture.out.jobs[0];
    fixture.now = fixture.now + Duration::from_millis(1);
    let (target, _) = fixture.job_sends(owner, job);
    fixture.job_answered(owner, job, target, None);
    assert!(fixture.out.woken.contains(&attempt), "{:?}", fixture.out);

    assert!(matches!(fixture.admit(attempt), Admission::Queued { .. }));
    let step = fixture.step(|core, now, out| core.job_step(now, owner, job, out));
    assert_eq!(step, JobStep::Done);
    fixture.permit(head);
    assert!(fixture.out.woken.contains(&attempt), "{:?}", fixture.out);
}

/// Two calls that queue and an attempt at once, behind an operation of their owner.
#[test]
fn a_call_that_has_to_queue_wakes_the_next_of_its_owner() {
    let mut fixture = Fixture::new();
    fixture.lock(B);
    let busy = fixture.call(A, Order::AtOnce);
    let permit = fixture.permit(busy);
    let calls = [Order::Queued, Order::Queued, Order::AtOnce];
    let [first, second, attempt] = calls.map(|order| {
        let waiter = fixture.call(A, order);
        let admission = fixture.admit(waiter);
        assert!(matches!(admission, Admission::OwnerBusy { .. }));
        waiter
    });
    fixture.step(|core, now, out| core.untaken(now, &permit, Untaken::NotExecuted, out));
    assert!(fixture.out.woken.contains(&first));
    assert!(matches!(fixture.admit(first), Admission::Queued { .. }));
    assert!(fixture.out.woken.contains(&second), "{:?}", fixture.out);
    assert!(matches!(fixture.admit(second), Admission::Queued { .. }));
    assert!(fixture.out.woken.contains(&attempt), "{:?}", fixture.out);
    fixture.permit(attempt);
}

/// It waited for the end of the acquire, and then there was nothing to release.
#[test]
fn an_unlock_of_a_hold_that_has_ended_does_not_wait() {
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
    let jobs = std::mem::take(&mut fixture.out.jobs);
    for (owner, job) in jobs {
        fixture.job_sends(owner, job);
        fixture.job_answered(owner, job, 0, GONE);
        fixture.step(|core, now, out| core.job_step(now, owner, job, out));
    }
    let waiter = fixture.call(A, Order::Queued);
    fixture.permit(waiter);
    let start = fixture.step(|core, now, out| core.begin_unlock(now, A, hold, out));
    assert_eq!(start, Ok(ReleaseStart::NotHeld));
}

#[test]
fn a_release_that_frees_nothing_is_no_reason_for_a_gone_field() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let job = fixture.drop_hold(A, inner);
    assert_eq!(fixture.job_sends(A, job).0, 1);
    let unlock = fixture.unlock(A, outer);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(
        fixture.unlocked(&unlock, 0, GONE),
        Err(LossReason::Gone),
        "the job has only lowered the count: somebody else has freed the lock"
    );
}

#[test]
fn a_release_that_frees_the_lock_is_why_another_finds_nothing() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    assert_eq!(fixture.release_sent(A), 1);
    let second = fixture.unlock(A, outer);
    assert_eq!(fixture.release_sent(A), 0);
    // The server executed them in the other order.
    assert_eq!(fixture.unlocked(&first, 1, GONE), Ok(()));
    assert_eq!(fixture.unlocked(&second, 0, None), Ok(()));

    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.release_sent(A), 0, "once more: the first was lost");
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Ok(()));

    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
}

/// Nobody's send has freed the lock; the first to be answered cannot know that yet.
#[test]
fn two_unlocks_that_find_nothing_report_the_loss() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let (first, second) = (fixture.unlock(A, inner), fixture.unlock(A, outer));
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.unlocked(&first, 0, GONE), Ok(()));
    assert_eq!(fixture.unlocked(&second, 0, GONE), Err(LossReason::Gone));
}

/// One of two unlocks is refused, and somebody deletes the key.
#[test]
fn a_release_that_was_not_executed_is_no_reason_for_a_gone_field() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let (first, second) = (fixture.unlock(A, inner), fixture.unlock(A, outer));
    let target = fixture.release_sent(A);
    fixture.release_sent(A);
    let op = fixture.release_of(A);
    fixture.step(|core, now, out| core.release_not_executed(now, A, op, target, out));
    fixture.step(|core, now, out| core.not_unlocked(now, &first, NoReply::GoOn, out));
    assert_eq!(fixture.unlocked(&second, 0, GONE), Err(LossReason::Gone));
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
    fixture.now = fixture.now + Duration::from_secs(2);
    let unlock = fixture.unlock(A, outer);
    let later = (0, fixture.now + RULES.watchdog_timeout);
    assert_eq!(fixture.job_sends(A, job), later);
    fixture.unlocked(&unlock, 0, None).expect("released");
    // Sends overlapped, but nothing is held any more.
    let step = fixture.step(|core, now, out| core.job_step(now, A, job, out));
    assert_eq!(step, JobStep::Done);
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
    fixture.step(|core, now, out| core.untaken(now, &permit, Untaken::OuterGone, out));
    assert!(fixture.out.jobs.is_empty(), "{:?}", fixture.out);
}
