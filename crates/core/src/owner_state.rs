//! One owner of one lock: its holds, and the operation that is under way for it.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::hold::Loss;
use super::op::{Acquire, EnclosingWrite, Op, Release, ReleaseStage, Unlock, Unlocking};
use super::queue::{Order, Terms};
use super::tenure::{NOT_COUNTED, QueueSlot, Tenure};
use super::values::{
    Counts, Effects, Ending, Event, Generation, HoldId, Ids, Life, LossReason, OwnerKey, Rules,
    Time, Total, Unlocked, WaiterId,
};
use crate::small_map::SmallMap;

/// The parts of the core that a step uses besides its owner.
pub(super) struct Context<'a> {
    pub(super) now: Time,
    pub(super) owner: OwnerKey,
    pub(super) life: Life,
    /// How long a place in the server's queue may last. `None`: the server has none.
    pub(super) place_wait: Option<Duration>,
    /// A call of the owner queues, so the place of the owner is wanted.
    pub(super) queues: bool,
    /// Holds of the owner were lost.
    pub(super) has_lost: bool,
    pub(super) ids: &'a mut Ids,
    pub(super) out: &'a mut Effects,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnerState {
    /// The field in Redis; without a connection fence it may differ from the owner's own.
    pub(super) field: Arc<str>,
    pub(super) generation: Generation,
    pub(super) tenure: Tenure,
    pub(super) op: Op,
    /// Holds that were unlocked or dropped, and whose end is not known yet.
    pub(super) unlocks: SmallMap<HoldId, Unlock>,
    /// When an operation of this owner last began or ended, or an unlock joined it: what comes after it waits from then on.
    pub(super) op_changed_at: Time,
    /// When the timer has to fire. A fact, which is read here when the timer is set.
    pub(super) timer: Option<Time>,
}

/// The state that decides whether others can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnerStatus {
    pub(super) idle: bool,
    pub(super) held: bool,
    pub(super) lost: Option<LossReason>,
    pub(super) lacks_place: bool,
}

/// By what an owner is found without looking through all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// When its next hold is over.
    pub(super) expires: Option<Time>,
    /// It keeps the head of the queue from attempting: it has the lock, or may be about to give it
    /// up.
    pub(super) blocks: bool,
    pub(super) held: bool,
}

impl OwnerState {
    /// `shared`: it holds the lock beside others.
    pub(super) fn new(field: Arc<str>, generation: Generation, shared: bool, now: Time) -> Self {
        let (tenure, op) = (Tenure::new(now, shared), Op::Idle);
        Self {
            field,
            generation,
            tenure,
            op,
            unlocks: SmallMap::default(),
            op_changed_at: now,
            timer: None,
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.op.is_idle() && self.tenure.is_spent() && !self.has_place()
    }

    pub(super) fn seen(&self) -> OwnerStatus {
        OwnerStatus {
            idle: self.op.is_idle(),
            held: self.tenure.is_held(),
            lost: self.tenure.lost(),
            lacks_place: self.lacks_place(),
        }
    }

    /// It has a place in the server's queue, or may have one.
    pub(super) fn has_place(&self) -> bool {
        self.tenure.place != QueueSlot::None
    }

    /// Its calls have to ask for a place, or whether there is one.
    pub(super) fn lacks_place(&self) -> bool {
        matches!(self.tenure.place, QueueSlot::None | QueueSlot::Unknown)
    }

    /// Whether its place is to be given up: it is stale, or no call wants it.
    pub(super) fn leaves(&self, cx: &Context<'_>) -> bool {
        self.tenure.place == QueueSlot::Stale || self.has_place() && !cx.queues
    }

    pub(super) fn index_entry(&self) -> IndexEntry {
        IndexEntry {
            expires: self.expires_at(),
            blocks: self.blocks(),
            held: self.tenure.is_held(),
        }
    }

    pub(super) fn blocks(&self) -> bool {
        self.tenure.is_held() || !(self.op.is_idle() || self.op.is_immediate_attempt())
    }

    /// Until when there may be a lease of it at the server, unless nothing is held or under way.
    pub(super) fn may_last_until(&self, now: Time) -> Option<Time> {
        match &self.op {
            Op::Acquire(acquire) => Some(now + self.tenure.lease_max().max(acquire.lease.into())),
            _ if self.tenure.is_held() => Some(now + self.tenure.lease_max()),
            Op::Release(release) => Some(release.give_up_at),
            Op::Idle => None,
        }
    }

    /// When a hold is over by the clock, or a lock that was handed over and not picked up.
    pub(super) fn expires_at(&self) -> Option<Time> {
        let given = self.op.given().map(|(_, until)| until);
        earlier(self.tenure.expires_at(), given)
    }

    /// When the timer has to fire.
    pub(super) fn timer(&self, now: Time, rules: &Rules) -> Option<Time> {
        let given = self.op.given().map(|(_, until)| until);
        let of_op = earlier(given, self.op.paused_until());
        earlier(self.tenure.timer(now, rules), of_op)
    }

    pub(super) fn counts(&self) -> Counts {
        let (acquiring, releasing) = self.op.under_way();
        Counts {
            held: self.tenure.count(),
            guarded: self.tenure.guarded(),
            waiting: 0,
            acquiring,
            releasing,
        }
    }

    /// An acquire is under way from now on.
    pub(super) fn begin_acquire(
        &mut self,
        waiter: WaiterId,
        order: Order,
        terms: Terms,
        around: EnclosingWrite,
        cx: &mut Context<'_>,
    ) -> Acquire {
        debug_assert!(self.op.is_idle(), "I2: one operation at a time");
        let target = self.tenure.count() + 1;
        let acquire = Acquire {
            id: cx.ids.op(),
            waiter,
            order,
            target,
            lease: terms.lease.into(),
            has_lost: false,
            then_release: false,
            is_reported: false,
            // I8: an owner that has the lock is not in the queue.
            queues_up: cx.place_wait.is_some() && order == Order::Queued && target == 1,
            around,
            grant: None,
            is_sent: false,
            is_passed: false,
        };
        if acquire.queues_up || !self.has_place() {
            self.tenure.asks_for_place(terms.wait);
        }
        self.op = Op::Acquire(acquire.clone());
        self.op_changed_at = cx.now;
        acquire
    }

    /// The acquire is over. What was asked for meanwhile begins.
    pub(super) fn end_acquire(&mut self, after: AfterAcquire, cx: &mut Context<'_>) {
        let Some(acquire) = self.op.acquire().cloned() else {
            return;
        };
        // Before all else: `release` begins an operation of its own only if none is under way.
        self.op = Op::Idle;
        self.op_changed_at = cx.now;
        cx.out.is_reported |= acquire.is_reported && after == AfterAcquire::Applied;
        match after {
            // The server has taken the owner out of its queue.
            AfterAcquire::Applied | AfterAcquire::Unwanted => self.tenure.place = QueueSlot::None,
            // Its call listens for its turn.
            AfterAcquire::Busy if acquire.queues_up => self.tenure.place = QueueSlot::Queued,
            // It may have used the place up, or left one.
            AfterAcquire::Unknown if acquire.queues_up || self.has_place() => {
                self.tenure.place = QueueSlot::Unknown;
            }
            AfterAcquire::Busy | AfterAcquire::Unknown | AfterAcquire::NotExecuted => {}
        }
        match after {
            AfterAcquire::Applied if self.tenure.count() == acquire.target => {}
            AfterAcquire::Busy if !acquire.then_release => {}
            // Who is handed a lock holds nothing else.
            AfterAcquire::NotExecuted if !acquire.then_release || acquire.is_passed => {}
            AfterAcquire::Applied | AfterAcquire::Busy | AfterAcquire::NotExecuted => {
                self.release(cx);
            }
            // Redis may have a count that is too high, for as long as the lease that was asked for. The release says what
            // is left, and goes on until that lease is over.
            AfterAcquire::Unwanted | AfterAcquire::Unknown => {
                self.tenure.note_possible_lease(acquire.lease.into());
                self.release(cx);
                if let Some(release) = self.op.release_mut() {
                    // A pass moves a field that is certainly there.
                    release.may_pass = after == AfterAcquire::Unwanted;
                }
            }
        }
    }

    /// Others have changed the lock. Returns whether it is to be looked at now; a hold that is about to begin is reported
    /// again when it has begun.
    pub(super) fn note_report(&mut self) -> bool {
        if let Op::Acquire(acquire) = &mut self.op {
            acquire.is_reported = true;
        }
        self.tenure.is_held()
    }

    /// For how long at most what the server has of it stays there.
    pub(super) fn may_last(&self, cx: &Context<'_>) -> Duration {
        let place = cx.place_wait.filter(|_| self.has_place());
        self.tenure.lease_max().max(place.unwrap_or_default())
    }

    /// Has Redis brought to the count that is left, now or when the acquire under way is over.
    pub(super) fn release(&mut self, cx: &mut Context<'_>) {
        if cx.life == Life::Closed {
            // Its place ends by itself.
            self.tenure.place = QueueSlot::None;
            return self.end_unlocks(|_| true, Unlocked::Failed, cx);
        }
        let give_up_at = cx.now + self.may_last(cx);
        match &mut self.op {
            // Its answer says which count there is to lower: a release that overtook it would be undone by it.
            Op::Acquire(acquire) => acquire.then_release = true,
            Op::Release(release) => (release.in_sync, release.give_up_at) = (false, give_up_at),
            Op::Idle => {
                let id = cx.ids.op();
                self.op = Op::Release(Release::new(id, give_up_at));
                self.op_changed_at = cx.now;
                cx.out.sends.push((cx.owner, id));
            }
        }
    }

    /// The next send of a release that waits for it is made now.
    pub(super) fn resume(&mut self, cx: &mut Context<'_>) {
        if let Some(release) = self.op.release_mut()
            && release.stage != ReleaseStage::Sending
        {
            release.stage = ReleaseStage::Sending;
            cx.out.sends.push((cx.owner, release.id));
        }
    }

    /// A caller waits for the outcome of an unlock.
    pub(super) fn is_awaited(&self) -> bool {
        self.unlocks.iter().any(|(_, unlock)| unlock.awaited)
    }

    /// These unlocks have their outcome, and their holds have ended.
    pub(super) fn end_unlocks(
        &mut self,
        ends: impl Fn(Unlock) -> bool,
        outcome: Unlocked,
        cx: &mut Context<'_>,
    ) {
        let unlocks = self.unlocks.iter().filter(|(_, unlock)| ends(**unlock));
        let ended: SmallVec<[HoldId; 1]> = unlocks.map(|(hold, _)| *hold).collect();
        let ending = match outcome {
            Unlocked::Lost(reason) => Ending::Lost(reason),
            // Without an answer it is no loss.
            Unlocked::Released | Unlocked::Failed => Ending::Released,
        };
        for hold in &ended {
            self.unlocks.remove(hold);
            cx.out.unlocked.push((*hold, outcome));
            cx.out.ended.push((*hold, ending));
        }
        let count = ended.len();
        match outcome {
            Unlocked::Lost(reason) if count > 0 => {
                cx.out.count(Total::Lost, count);
                // Those that are left are lost with it, and one event says so.
                if !self.tenure.is_held() {
                    cx.out.events.push(self.lost_event(reason, cx.owner));
                }
            }
            Unlocked::Lost(_) => {}
            Unlocked::Released | Unlocked::Failed => cx.out.count(Total::Released, count),
        }
    }

    /// The count in Redis is the target, or will be without anything else being sent.
    pub(super) fn mark_in_sync(&mut self) {
        if let Some(release) = self.op.release_mut() {
            release.in_sync = true;
        }
    }

    /// Ends every hold, because the field is not there any more, or nothing is left to keep it. There is
    /// nothing to release.
    pub(super) fn lose(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        let losses = self.tenure.lose(reason);
        self.mark_in_sync();
        let (awaited, leaves) = (self.is_awaited(), self.leaves(cx));
        if let Op::Acquire(acquire) = &mut self.op {
            // No count is left to lower. A release follows only for its outcome, if callers wait for one, or to give a
            // place up.
            acquire.then_release = awaited || leaves;
            // Nothing was sent for the guards that were dropped meanwhile: they are gone with the field.
            let outcome = match reason {
                LossReason::Closed => Unlocked::Failed,
                reason => Unlocked::Lost(reason),
            };
            self.end_unlocks(|unlock| !unlock.awaited, outcome, cx);
        }
        self.lose_grant(cx);
        if !losses.is_empty() {
            cx.out.events.push(self.lost_event(reason, cx.owner));
            cx.out.count(Total::Lost, losses.len());
        }
        self.end_holds(&losses, cx);
    }

    fn lost_event(&self, reason: LossReason, OwnerKey { face, .. }: OwnerKey) -> Event {
        let field = Arc::clone(&self.field);
        Event::Lost {
            field,
            face,
            reason,
        }
    }

    fn end_holds(&mut self, losses: &[Loss], cx: &mut Context<'_>) {
        cx.has_lost |= !losses.is_empty();
        if let Some(acquire) = self.op.acquire_mut() {
            acquire.has_lost |= !losses.is_empty();
        }
        for loss in losses {
            cx.out.over.push((loss.id, loss.valid_until.min(cx.now)));
            cx.out.ended.push((loss.id, Ending::Lost(loss.reason)));
        }
    }

    /// Ends what is over by the clock: holds, and a lock that was handed over and not picked up.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>) {
        if self.op.given().is_some_and(|(_, until)| until <= cx.now) {
            self.end_acquire(AfterAcquire::Unwanted, cx);
        }
        let losses = self.tenure.expire(cx.now);
        if losses.is_empty() {
            return;
        }
        for loss in losses.iter().filter(|loss| loss.is_news) {
            cx.out.events.push(self.lost_event(loss.reason, cx.owner));
            cx.out.count(Total::Lost, 1);
        }
        self.end_holds(&losses, cx);
        // A hold that reached its limit is not taken away from under its section, which may run on
        // behind a detached one too. The lease frees the lock: that of the hold, which was renewed only
        // up to the limit, or a longer one that a nested hold has asked for.
        if self.tenure.is_held() || losses.iter().any(|loss| loss.reason != LossReason::MaxHold) {
            self.release(cx);
        }
    }

    /// Takes a hold out because its owner releases it: its end is known when the release is answered. `false`: it has
    /// ended before.
    pub(super) fn take_out(&mut self, hold: HoldId, awaited: bool, cx: &mut Context<'_>) -> bool {
        let Some(valid_until) = self.tenure.take_out(hold) else {
            return false;
        };
        cx.out.over.push((hold, valid_until.min(cx.now)));
        let progress = Unlocking::Joined;
        self.unlocks.insert(hold, Unlock { progress, awaited });
        self.release(cx);
        if awaited {
            self.resume(cx);
        }
        true
    }

    /// Commands under this field may still be executed late, and would free what is taken under it: a release gives the place
    /// up, and the owner gets another field.
    pub(super) fn note_reconnects(&mut self, reconnects: u16, cx: &mut Context<'_>) {
        if self.tenure.reconnects == NOT_COUNTED {
            self.tenure.reconnects = reconnects;
        }
        let is_older = self.op.is_idle() && self.tenure.reconnects != reconnects;
        if self.has_place() && is_older {
            self.tenure.place = QueueSlot::Stale;
            self.release(cx);
        }
    }

    /// An attempt that may have left a place is over, whether or not its call is polled.
    pub(super) fn end_queueing(&mut self, cx: &mut Context<'_>) {
        if self.op.acquire().is_some_and(|acquire| acquire.queues_up) {
            self.end_acquire(AfterAcquire::Unknown, cx);
        }
    }

    /// No call of the owner queues any more: a release gives its place up.
    pub(super) fn leave_place(&mut self, cx: &mut Context<'_>) {
        if self.leaves(cx) {
            self.release(cx);
        }
    }

    /// The owner has seen that a hold was lost. If its section ran on behind its limit, the field can
    /// go now.
    pub(super) fn acknowledge(&mut self, hold: HoldId, cx: &mut Context<'_>) {
        if self.tenure.acknowledge(hold) {
            self.release(cx);
        }
    }
}

#[cfg(any(debug_assertions, feature = "test-util"))]
impl OwnerState {
    pub(super) fn check(&self) {
        assert!(
            !(self.has_place() && self.tenure.is_held()),
            "I8: an owner that has the lock has no place in the queue: {self:?}"
        );
        assert!(
            self.tenure.reentrant || self.tenure.count() <= 1,
            "nothing nests into a hold that is not reentrant: {self:?}"
        );
        assert!(
            self.unlocks.is_empty() || self.op.releases(),
            "an unlock has its outcome when the release ends: {self:?}"
        );
        assert!(
            self.timer.is_some() || !self.tenure.needs_timer() && self.op.given().is_none(),
            "a hold is watched, and a lock that was handed over: {self:?}"
        );
    }
}

/// The count in Redis, as far as it is known when an acquire is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterAcquire {
    /// It is the count that the acquire went to.
    Applied,
    /// The count that the acquire went to, as far as is known; but it is too late for the hold, or no call wants it.
    Unwanted,
    /// It is what it was before. The owner has a place in the server's queue if it was to have one.
    Busy,
    /// It is what it was before.
    NotExecuted,
    /// It is one of these two, or will be.
    Unknown,
}

fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
