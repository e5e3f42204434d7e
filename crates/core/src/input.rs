//! What can happen to a lock: each of it is one input, and [`LockCore::tell`] is the only way in.
//!
//! An input is a value with an answer of its own type. [`Input`] is any of them: what a record keeps, and what can be played
//! again.

use std::sync::Arc;
use std::time::Duration;

use super::LockCore;
use super::acquire::{Claimed, Permit, Taking, Untaken};
use super::admission::{Admission, Rejected};
use super::hold::RenewOutcome;
use super::liveness::{Listens, Then};
use super::queue::{Order, Terms};
use super::renewal::RenewalRequest;
use super::values::{
    Carrier, Effects, Face, FailedSend, Generation, HoldId, Life, LossReason, OpId, OwnerKey,
    ReleaseAnswer, ReleaseSend, ReleaseStep, Time, Token, WaiterId,
};

/// Something that can happen to a lock.
pub trait Happens: Into<Input> + Clone {
    /// What its teller has to know.
    type Answer;

    #[doc(hidden)]
    fn happens(self, core: &mut LockCore, now: Time, out: &mut Effects) -> Self::Answer;
}

impl LockCore {
    /// Something happens now: one step. What is left to be done when the mutex is free is added to `out`.
    pub fn tell<I: Happens>(&mut self, now: Time, input: I, out: &mut Effects) -> I::Answer {
        #[cfg(feature = "test-util")]
        let (input, record) = self.record(now, input);
        let answer = input.happens(self, now, out);
        #[cfg(feature = "test-util")]
        self.recorded(record);
        answer
    }
}

macro_rules! inputs {
    ($(
        $(#[$meta:meta])*
        $name:ident { $($field:ident: $type:ty),* } -> $answer:ty
            = |$core:ident, $now:ident, $out:ident| $run:expr;
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone)]
            pub struct $name { $(pub $field: $type),* }

            impl Happens for $name {
                type Answer = $answer;

                fn happens(self, $core: &mut LockCore, $now: Time, $out: &mut Effects) -> $answer {
                    let Self { $($field),* } = self;
                    $run
                }
            }

            impl From<$name> for Input {
                fn from(input: $name) -> Self {
                    Self::$name(input)
                }
            }
        )*

        /// Anything that can happen to a lock.
        #[derive(Debug, Clone)]
        pub enum Input { $($(#[$meta])* $name($name)),* }

        impl Happens for Input {
            type Answer = ();

            fn happens(self, core: &mut LockCore, now: Time, out: &mut Effects) {
                match self {
                    $(Self::$name(input) => _ = input.happens(core, now, out),)*
                }
            }
        }
    };
}

inputs! {
    /// A call joins the queue. It asks immediately, and not after its deadline.
    CallJoins { owner: OwnerKey, order: Order, terms: Terms, deadline: Option<Time> } -> WaiterId
        = |core, _now, _out| core.enqueue(owner, order, terms, deadline);
    /// A call joins the queue that never asks for the lock.
    PlaceJoins { owner: OwnerKey, terms: Terms } -> WaiterId
        = |core, _now, _out| core.enqueue_place(owner, terms);
    /// A call asks: it has just joined, or a step has woken it. Where the server has the queue, `reconnects` says how often
    /// a connection was replaced without a fence, read before the field was chosen.
    CallAsks { call: WaiterId, field: Arc<str>, reconnects: Option<u64> } -> Result<Admission, Rejected>
        = |core, now, out| core.admit(now, call, &field, reconnects, out);
    /// A call is polled that has nothing to claim.
    CallPolled { call: WaiterId } -> ()
        = |core, now, out| core.poll(now, call, out);
    /// A place is polled. Answers whether it has its turn.
    PlacePolled { call: WaiterId } -> bool
        = |core, now, out| core.poll_turn(now, call, out);
    /// A call claims what was granted to it.
    CallClaims { call: WaiterId } -> Result<Claimed, Rejected>
        = |core, now, out| core.claim(now, call, out);
    /// A call leaves the queue, whatever came of it.
    CallLeaves { call: WaiterId } -> ()
        = |core, now, out| core.leave(now, call, out);

    /// A copy of an acquire enters its connection. Answers whether it is still wanted.
    AcquireEnters { owner: OwnerKey, op: OpId } -> bool
        = |core, _now, _out| core.acquire_enters(owner, op);
    /// An acquire has taken the lock. `is_outside`: the server says that the owner, which is to read, does not write.
    AcquireTakes { permit: Permit, sent_at: Time, token: Option<Token>, is_outside: bool } -> Taking
        = |core, now, out| core.acquired(now, &permit, (sent_at, token), is_outside, out);
    /// An acquire has brought no lock.
    AcquireEnds { permit: Permit, untaken: Untaken, then: Then } -> Rejected
        = |core, now, out| core.untaken(now, &permit, (untaken, then), out);

    /// A hold is unlocked. Answers whether its outcome follows; if not, it was released before.
    HoldUnlocked { owner: OwnerKey, hold: HoldId } -> Result<bool, LossReason>
        = |core, now, out| core.unlock(now, owner, hold, out);
    /// The same of a write hold, and a call of its owner that waits to read gets the lock.
    HoldDowngraded { owner: OwnerKey, hold: HoldId, to: WaiterId } -> Result<bool, LossReason>
        = |core, now, out| core.downgrade(now, owner, hold, to, out);
    /// A guard is dropped. Answers whether it was held.
    HoldDropped { owner: OwnerKey, hold: HoldId } -> bool
        = |core, now, out| core.drop_hold(now, owner, hold, out);
    /// A hold is left to an unlock without a guard.
    HoldDetached { owner: OwnerKey, hold: HoldId } -> ()
        = |core, now, out| core.detach(now, owner, hold, out);
    /// A hold is left to its lease.
    HoldLeft { owner: OwnerKey, hold: HoldId } -> ()
        = |core, now, out| core.leave_to_lease(now, owner, hold, out);
    /// An unlock without a guard claims a detached hold.
    DetachedClaimed { owner: OwnerKey } -> Option<HoldId>
        = |core, now, out| core.claim_detached(now, owner, out);
    /// Every detached hold is dropped. Answers how many.
    DetachedDropped {} -> usize
        = |core, now, out| core.drop_detached(now, out);
    /// Others have taken the field of an owner away, whose holds were of this generation; or the server has said so of the
    /// hold that is there.
    OwnerLost { owner: OwnerKey, generation: Option<Generation>, reason: LossReason } -> ()
        = |core, now, out| core.lose_owner(now, owner, generation, reason, out);

    /// A send of a release begins, over this connection if it goes immediately.
    ReleaseBegins { owner: OwnerKey, op: OpId, carrier: Option<Carrier> } -> ReleaseStep
        = |core, now, out| core.release_step(now, owner, op, carrier, out);
    /// A release is entered into its connection next. Answers what it says, unless it is over.
    ReleaseSent { owner: OwnerKey, op: OpId, may_pass: bool } -> Option<ReleaseSend>
        = |core, now, out| core.release_sent(now, owner, op, may_pass, out);
    /// What was to be sent was never written.
    ReleaseUnwritten { owner: OwnerKey, op: OpId } -> ()
        = |core, now, out| core.release_unwritten(now, owner, op, out);
    /// A pass was certainly not executed.
    PassNotExecuted { owner: OwnerKey, op: OpId } -> ()
        = |core, now, out| core.release_not_executed(now, owner, op, out);
    /// There are too many releases under way for this one.
    ReleaseWaits { owner: OwnerKey, op: OpId } -> ()
        = |core, now, out| core.release_waits(now, owner, op, out);
    /// There is room for it. Answers whether it has waited for that until now.
    ReleaseHasRoom { owner: OwnerKey, op: OpId } -> bool
        = |core, now, out| core.release_has_room(now, owner, op, out);
    /// A release was answered.
    ReleaseAnswered { owner: OwnerKey, op: OpId, answer: ReleaseAnswer } -> ()
        = |core, now, out| core.release_answered(now, owner, op, answer, out);
    /// A send of a release has no answer, was refused, or could not be made.
    ReleaseFailed { owner: OwnerKey, op: OpId, failed: FailedSend } -> ()
        = |core, now, out| core.release_failed(now, owner, op, &failed, out);
    /// The server will always refuse it. Answers whether the release has ended.
    ReleaseRefused { owner: OwnerKey, op: OpId, maybe_executed: bool } -> bool
        = |core, now, out| core.release_refused(now, owner, op, maybe_executed, out);
    /// A send was refused, and goes on in another form.
    ReleaseChanges { owner: OwnerKey, op: OpId } -> ()
        = |core, now, out| core.release_changes(now, owner, op, out);
    /// The send of a release could not be spawned, or was dropped with its runtime.
    ReleaseDropped { owner: OwnerKey, op: OpId } -> ()
        = |core, now, out| core.release_gone(now, owner, op, out);

    /// The timer of an owner fires. Answers with what is to be renewed.
    TimerFires { owner: OwnerKey } -> Option<RenewalRequest>
        = |core, now, out| core.timer_fired(now, owner, out);
    /// A renewal was answered, or has no answer.
    RenewalEnds { owner: OwnerKey, generation: Generation, outcome: RenewOutcome } -> ()
        = |core, now, out| core.renewed(now, owner, generation, outcome, out);
    /// A longer lease is about to be asked for. Answers whether the hold is there.
    ExtendBegins { owner: OwnerKey, hold: HoldId, lease: Duration } -> bool
        = |core, now, out| core.extending(now, owner, hold, lease, out);
    /// Replicas were asked about a hold that was taken or extended then, for this lease. Answers whether they are enough.
    ReplicasAnswer { owner: OwnerKey, hold: HoldId, leased: (Time, Duration), acknowledged: u32 } -> bool
        = |core, now, out| core.confirmed(now, owner, hold, leased, acknowledged, out);
    /// A hold is returned to its caller without asking replicas.
    HoldHandedOut { owner: OwnerKey, hold: HoldId } -> ()
        = |core, now, out| core.handed_out(now, owner, hold, out);

    /// Another process may have freed the lock, for this owner alone if the server has the queue.
    MessageArrives { next: Option<OwnerKey> } -> ()
        = |core, now, out| core.note_change(now, next, out);
    /// Something is known of the subscription that these calls wait for.
    SubscriptionKnown { calls: Vec<WaiterId>, how: Listens } -> ()
        = |core, now, out| core.listens(now, &calls, how, out);
    /// Others have changed the lock. Answers whether anything is held that is to be looked at.
    ReportArrives {} -> bool
        = |core, _now, _out| core.note_report();
    /// Another server has the lock now. Answers with what is to be looked at.
    ServerChanges {} -> Vec<(OwnerKey, RenewalRequest)>
        = |core, now, out| core.recheck(now, out);
    /// Time passes: what is over by the clock ends.
    TimePasses {} -> ()
        = |core, now, out| core.tick(now, out);
    /// The client enters a later part of its life.
    LifeChanges { life: Life } -> ()
        = |core, now, out| core.set_life(now, life, out);
    /// The client ends, and every hold with it. Answers with the fields and faces of their owners.
    ClientEnds { reason: LossReason } -> Vec<(Arc<str>, Face)>
        = |core, now, out| core.lose_all(now, reason, out);
}
