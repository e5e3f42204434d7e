//! One core and the time, driven by hand.

use std::time::Duration;

use crate::HandOff;
use crate::input::{
    AcquireEnters, CallAsks, CallJoins, CallLeaves, Happens, HoldDropped, HoldUnlocked,
    ReleaseAnswered, ReleaseBegins, ReleaseFailed, ReleaseSent, RenewalEnds, TimerFires,
};
use crate::*;

pub(crate) const GONE: Option<LossReason> = Some(LossReason::Gone);
pub(crate) const RULES: Rules = Rules {
    watchdog_timeout: Duration::from_secs(30),
    command_timeout: Duration::from_secs(3),
    handoff: HandOff::off(),
    fair_wait: Duration::from_secs(300),
    release_pause: Duration::from_millis(20),
};
pub(crate) const TERMS: Terms = Terms {
    lease: RULES.watchdog_timeout,
    kind: LeaseKind::Watchdog,
    limit: None,
    replicas: 0,
    reentrant: true,
    wait: RULES.fair_wait,
};
pub(crate) const A: OwnerKey = OwnerKey::only(ThreadId(1));
pub(crate) const B: OwnerKey = OwnerKey::only(ThreadId(2));
pub(crate) const C: OwnerKey = OwnerKey::only(ThreadId(3));

/// A core and the time, with what its latest step left to be done.
pub(crate) struct Fixture {
    pub(crate) core: LockCore,
    pub(crate) now: Time,
    pub(crate) out: Effects,
    /// What the next answer to a release says of other clients.
    pub(crate) others_listen: bool,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self {
            core: LockCore::new(Discipline::Plain, RULES, Life::Open),
            now: Time::START,
            out: Effects::default(),
            others_listen: false,
        }
    }

    pub(crate) fn step<I: Happens>(&mut self, input: I) -> I::Answer {
        self.out = Effects::default();
        self.core.tell(self.now, input, &mut self.out)
    }

    pub(crate) fn call(&mut self, owner: OwnerKey, order: Order) -> WaiterId {
        self.call_with(owner, order, TERMS)
    }

    pub(crate) fn call_with(&mut self, owner: OwnerKey, order: Order, terms: Terms) -> WaiterId {
        self.step(CallJoins {
            owner,
            order,
            terms,
            deadline: None,
        })
    }

    pub(crate) fn admit(&mut self, waiter: WaiterId) -> Admission {
        let field: Arc<str> = "f".into();
        self.step(CallAsks {
            call: waiter,
            field,
            reconnects: None,
        })
        .expect("open, and nothing is lost")
    }

    pub(crate) fn permit(&mut self, waiter: WaiterId) -> Permit {
        let admission = self.admit(waiter);
        assert_eq!(admission, Admission::Sent);
        self.sent_acquire()
    }

    /// What the acquire says that begins with the latest step. It enters its connection.
    pub(crate) fn sent_acquire(&mut self) -> Permit {
        let (owner, op) = self.out.sends[self.out.sends.len() - 1];
        let permit = self.core.acquire_says(owner, op).expect("under way");
        let (enters, out) = (AcquireEnters { owner, op }, &mut Effects::default());
        assert!(self.core.tell(self.now, enters, out));
        permit
    }

    pub(crate) fn lock(&mut self, owner: OwnerKey) -> HoldId {
        self.lock_with(owner, TERMS)
    }

    pub(crate) fn lock_with(&mut self, owner: OwnerKey, terms: Terms) -> HoldId {
        let waiter = self.call_with(owner, Order::Immediate, terms);
        let permit = self.permit(waiter);
        let sent_at = self.now;
        let hold = self.takes_at(&permit, sent_at).expect("wanted").0;
        self.step(CallLeaves { call: waiter });
        hold
    }

    /// Unlocks a hold; its release is under way then.
    pub(crate) fn unlock(&mut self, owner: OwnerKey, hold: HoldId) -> Unlock {
        let begun = self.step(HoldUnlocked { owner, hold });
        assert_eq!(begun, Ok(true));
        Unlock { owner, hold }
    }

    /// Drops a hold, and answers with the job that begins with that.
    pub(crate) fn drop_hold(&mut self, owner: OwnerKey, hold: HoldId) -> OpId {
        self.step(HoldDropped { owner, hold });
        self.out.sends[0].1
    }

    /// Drops a hold whose release is under way.
    pub(crate) fn drop_hold_too(&mut self, owner: OwnerKey, hold: HoldId) {
        self.step(HoldDropped { owner, hold });
        assert!(self.out.sends.is_empty(), "it joins the release");
    }

    /// The next send of a release, and until when it goes on.
    pub(crate) fn job_sends(&mut self, owner: OwnerKey, job: OpId) -> (u32, Time) {
        match self.next_of(owner, job) {
            ReleaseStep::Send { .. } => (self.release_sent(owner), self.gives_up_at(owner)),
            ReleaseStep::Done => panic!("the release has more to do"),
        }
    }

    /// Its timer fires. What is due is renewed.
    pub(crate) fn timer_fires(&mut self, owner: OwnerKey) {
        let request = self.step(TimerFires { owner });
        let out = std::mem::take(&mut self.out);
        if let Some(request) = request {
            let outcome = RenewOutcome::Held {
                sent_at: self.now,
                asked: request.asked,
                acknowledged: 0,
            };
            self.step(RenewalEnds {
                owner,
                generation: request.generation,
                outcome,
            });
        }
        self.out = out;
    }

    /// When a release whose sends fail gives up, if nothing is held.
    pub(crate) fn gives_up_at(&self, owner: OwnerKey) -> Time {
        let own = self.core.owners.get(owner).expect("known");
        own.op.release().expect("under way").give_up_at
    }

    pub(crate) fn next_of(&mut self, owner: OwnerKey, job: OpId) -> ReleaseStep {
        self.step(ReleaseBegins {
            owner,
            op: job,
            carrier: None,
        })
    }

    pub(crate) fn release_sent(&mut self, owner: OwnerKey) -> u32 {
        match self.sends_release(owner, true) {
            ReleaseSend::Count { target, .. } => target,
            ReleaseSend::Pass { to, .. } => panic!("the lock is handed to {to}"),
        }
    }

    /// What the release of an owner that is under way says.
    pub(crate) fn sends_release(&mut self, owner: OwnerKey, may_pass: bool) -> ReleaseSend {
        let op = self.release_of(owner);
        self.step(ReleaseSent {
            owner,
            op,
            may_pass,
        })
        .expect("under way")
    }

    /// The count that a release would go to.
    pub(crate) fn target(&self, owner: OwnerKey) -> u32 {
        let own = self.core.owners.get(owner);
        own.map_or(0, |own| own.tenure.target())
    }

    pub(crate) fn release_of(&self, owner: OwnerKey) -> OpId {
        let own = self.core.owners.get(owner).expect("known");
        own.op.release().expect("under way").id
    }

    /// The release that an unlock is part of is answered, and sent before if it was not. The outcome of
    /// the unlock.
    pub(crate) fn unlocked(
        &mut self,
        unlock: &Unlock,
        target: u32,
        gone: Option<LossReason>,
    ) -> Result<(), LossReason> {
        self.answered(unlock.owner, target, gone);
        self.outcome(unlock).expect("it has its outcome")
    }

    /// `None`: it has none yet.
    pub(crate) fn outcome(&self, unlock: &Unlock) -> Option<Result<(), LossReason>> {
        let mut unlocked = self.out.unlocked.iter();
        let (_, outcome) = unlocked.find(|(hold, _)| *hold == unlock.hold)?;
        Some(match outcome {
            Unlocked::Released => Ok(()),
            Unlocked::Lost(reason) => Err(*reason),
            Unlocked::Failed => panic!("the unlock has failed"),
        })
    }

    pub(crate) fn answered(&mut self, owner: OwnerKey, target: u32, gone: Option<LossReason>) {
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
        self.step(ReleaseAnswered { owner, op, answer });
    }

    /// The latest send has no reply, and may have been executed.
    pub(crate) fn unanswered(&mut self, owner: OwnerKey) {
        self.fails(owner, true, None);
    }

    /// The latest send has failed; the commands of the lock go over this connection now.
    pub(crate) fn fails(
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
        self.step(ReleaseFailed { owner, op, failed });
    }
}

/// An unlock whose outcome is awaited.
pub(crate) struct Unlock {
    owner: OwnerKey,
    pub(crate) hold: HoldId,
}
