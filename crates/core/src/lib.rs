//! One lock as this client sees it, without a clock, a runtime or a server: time comes in, effects
//! go out.
//!
//! A [`LockCore`] is plain data. What can happen to it is an input, and each is one step
//! ([`LockCore::tell`]): it ends what is over by the clock, changes, and says what is left to be done when
//! the mutex is free ([`Effects`]). The same steps in the same order always lead to the same state.
//!
//! | file | has |
//! |---|---|
//! | `values` | numbers and time, settings, the client's life, counts, effects |
//! | `hold`, `tenure` | one hold, and all of one owner: leases, deadlines, losses |
//! | `op` | the operation under way for one owner, as one enum |
//! | `owner_state`, `owners` | both together, and all of them |
//! | `discipline` | in which order owners get the lock |
//! | `faces` | what the two faces of an owner have to do with each other, where it has two |
//! | `queue`, `apart` | the waiters, which take no room while there are none |
//! | `liveness` | what a waiting call hears, when it asks again, and who is passed over |
//! | `input` | what can happen: the one door; `record` keeps the latest of it for tests |
//! | `admission`, `acquire`, `unlock`, `release`, `handoff`, `renewal` | the steps |

// What `redisson-lock` needs of it, and with the feature `test-util` what its explorer does.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "outside of semantic versioning"
)]

#[cfg(test)]
#[macro_use]
extern crate test_support;

mod acquire;
mod admission;
mod apart;
mod discipline;
mod downgrade;
mod faces;
mod handoff;
mod hold;
pub mod input;
mod liveness;
mod op;
mod owner_state;
mod owners;
mod queue;
#[cfg(feature = "test-util")]
mod record;
mod release;
mod renewal;
pub mod small_map;
mod tenure;
mod unlock;
mod values;

use std::sync::Arc;

pub use acquire::{Claimed, Permit, Taking, Untaken};
pub use admission::{Admission, Rejected, Woken};
pub use discipline::Discipline;
pub use hold::{
    HoldSnapshot, LeasePolicy, RenewOutcome, RenewalAsk, local_deadline, on_another_clock,
};
pub use liveness::{Listens, Then};
pub use queue::{LeaseKind, Order, Terms};
pub use renewal::RenewalRequest;
pub use values::{
    Carrier, Counts, Effects, Ending, Event, Face, FailedSend, Generation, HandOff, HoldId, Life,
    LossReason, Numbered, OpId, OwnerKey, RELEASE_PAUSE, ReleaseAnswer, ReleaseSend, ReleaseStep,
    Rules, ThreadId, Time, Token, Total, Unlocked, WaiterId,
};

use apart::Apart;
#[cfg(feature = "test-util")]
use op::EnclosingWrite;
use owner_state::{Context, OwnerState};
use owners::Owners;
use queue::{Lanes, Queue, QueueLane, Stage};
#[cfg(feature = "test-util")]
use record::Record;
use values::Ids;

/// One lock of this client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockCore {
    discipline: Discipline,
    rules: Arc<Rules>,
    life: Life,
    ids: Ids,
    owners: Owners,
    queue: Apart<Queue>,
    /// An owner of this client has freed the lock, and the heads of these lanes have not attempted to take it since.
    freed: Lanes,
    /// The latest release was heard by others than this client.
    others_listen: bool,
    counts: Counts,
    /// The latest step. Time does not run backwards.
    latest: Time,
    #[cfg(feature = "test-util")]
    record: Record,
}

/// Whether the head of a lane may go on. It is compared before and after each step, and a step by which the head
/// may go on wakes it. There is none while the lane is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeadStatus {
    lane: QueueLane,
    head: WaiterId,
    head_may_contend: bool,
    freed: bool,
    /// All of the lane may go on.
    is_open: bool,
}

impl LockCore {
    pub fn new(discipline: Discipline, rules: impl Into<Arc<Rules>>, life: Life) -> Self {
        Self {
            discipline,
            rules: rules.into(),
            life,
            ids: Ids::default(),
            owners: Owners::default(),
            queue: Apart::default(),
            freed: Lanes::default(),
            others_listen: false,
            counts: Counts::default(),
            latest: Time::START,
            #[cfg(feature = "test-util")]
            record: Record::default(),
        }
    }

    /// Something is left that has to be remembered even if no call and no guard refers to it.
    pub fn keeps_itself(&self) -> bool {
        self.life < Life::Gone && !self.owners.is_empty()
    }

    pub fn counts(&self) -> Counts {
        Counts {
            waiting: u32::try_from(self.queue.len()).unwrap_or(u32::MAX),
            ..self.counts
        }
    }

    /// When the timer of an owner has to fire. `None`: it needs none.
    pub fn timer(&self, owner: OwnerKey) -> Option<Time> {
        let of_owner = self.owners.get(owner).and_then(|own| own.timer);
        let of_queue = self.queue.timer.filter(|_| owner == OwnerKey::QUEUE);
        of_owner.into_iter().chain(of_queue).min()
    }

    /// What a guard shows. Changes nothing. `None`: the hold has ended.
    pub fn snapshot(&self, now: Time, owner: OwnerKey, hold: HoldId) -> Option<HoldSnapshot> {
        self.owners
            .get(owner)?
            .tenure
            .snapshot(now, hold, &self.rules)
    }

    /// The field under which this owner appears in Redis, if it has anything to do with the lock.
    pub fn field(&self, owner: OwnerKey) -> Option<Arc<str>> {
        Some(Arc::clone(&self.owners.get(owner)?.field))
    }

    /// The unbroken time in which an owner holds the lock, or is about to.
    #[cfg(feature = "test-util")]
    pub fn generation(&self, owner: OwnerKey) -> Option<Generation> {
        Some(self.owners.get(owner)?.generation)
    }

    /// Which owner has this field with this face, and since when. Looks through all of them.
    pub fn owner_of(&self, field: &str, face: Face) -> Option<(OwnerKey, Generation)> {
        let mut owners = self.owners.iter();
        let (owner, state) =
            owners.find(|(owner, state)| owner.face == face && *state.field == *field)?;
        Some((owner, state.generation))
    }

    /// One step: ends what is over, changes, and wakes those who can go on.
    fn step<T>(
        &mut self,
        now: Time,
        out: &mut Effects,
        change: impl FnOnce(&mut Self, &mut Effects) -> T,
    ) -> T {
        debug_assert!(
            self.latest <= now,
            "the clock is read when the mutex is held"
        );
        self.latest = self.latest.max(now);
        let before = self.shared_lanes();
        // Before anything ends: a stage that begins with that is not over.
        self.end_stages(now, out);
        while let Some((_, owner)) = self.owners.first_expiry().filter(|(at, _)| *at <= now) {
            self.expire_grant(now, owner);
            self.change(now, owner, out, |state, cx| state.expire(cx));
        }
        let answer = change(self, out);
        let after = self.shared_lanes();
        for (before, after) in before.into_iter().zip(after) {
            self.wake_front(now, before, after, out);
        }
        self.set_timer(out);
        self.queue.settle();
        // Everything, in the simulator and the explorer; what a step touches is checked in `change`.
        #[cfg(all(debug_assertions, feature = "test-util"))]
        if self.queue.len() + self.owners.len() < CHECKED_WHOLE_MAX {
            self.check();
        }
        answer
    }

    /// Changes one owner. What is known of it elsewhere follows here, so whatever that depends on is written nowhere else.
    fn change<T>(
        &mut self,
        now: Time,
        owner: OwnerKey,
        out: &mut Effects,
        change: impl FnOnce(&mut OwnerState, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let keeps_places = self.discipline.keeps_places();
        let lane = self.discipline.lane(owner);
        let changed = self.owners.change(owner, |state| {
            let (before, counts) = (state.seen(), state.counts());
            let mut cx = Context {
                now,
                owner,
                life: self.life,
                // A place outlasts the lease that its call saw, which is one watchdog timeout unless it was a fixed one.
                place_wait: keeps_places
                    .then_some(self.rules.fair_wait + self.rules.watchdog_timeout),
                // A client that closes serves no call, whether or not the call has seen that by now.
                queues: keeps_places
                    && self.life != Life::Closing
                    && self.queue.head(lane).is_some(),
                has_lost: false,
                ids: &mut self.ids,
                out: &mut *out,
            };
            let answer = change(state, &mut cx);
            let has_lost = cx.has_lost;
            let timer = state.timer(now, &self.rules);
            if timer != state.timer {
                state.timer = timer;
                out.timers.push(owner);
            }
            let after = state.seen();
            let lost = (has_lost && !after.held).then(|| state.tenure.lost_reason());
            self.counts.replace(counts, state.counts());
            #[cfg(debug_assertions)]
            state.check();
            let lets_calls_go_on = before != after && state.op.is_idle();
            let lacks_place = keeps_places && after.lacks_place;
            (answer, lets_calls_go_on.then_some(lacks_place), lost)
        });
        let (answer, lacks_place, lost) = changed?;
        if let Some(reason) = lost {
            self.note_lost_around(owner, reason);
        }
        if let Some(lacks_place) = lacks_place {
            self.wake_own(owner, lacks_place, out);
        }
        Some(answer)
    }

    /// The owner's own calls that can go on: those who waited for its operation, those who may
    /// nest into its hold or have to hear of its loss, and those whose place in the server's queue was
    /// used, or may have been. One at a time; its end wakes the next.
    fn wake_own(&mut self, owner: OwnerKey, lacks_place: bool, out: &mut Effects) {
        if !self.queue.has_calls(owner) || !self.is_idle(owner) {
            return;
        }
        // Of either face: the other one may have changed while this one was not idle.
        let mut faces = self.faces(owner).into_iter().flatten();
        let is_free = faces.any(|own| own.tenure.is_held() || own.tenure.lost().is_some());
        let free = is_free.then(|| self.queue.first_ready(owner));
        let lane = self.discipline.lane(owner);
        let placeless = lacks_place.then(|| {
            let is_over = |id: &WaiterId| {
                let waiter = self.queue.get(*id);
                waiter.is_some_and(|waiter| waiter.stage == Stage::Ended)
            };
            let mut calls = self.queue.in_lane(lane);
            calls.find(|id| !is_over(id))
        });
        let own = [self.queue.first_blocked(owner), placeless.flatten()];
        let free = free.into_iter().flatten();
        for waiter in own.into_iter().chain(free).flatten() {
            out.wake(waiter);
        }
    }

    fn shared_lanes(&self) -> [Option<HeadStatus>; 2] {
        let mut shared_lanes = [None; 2];
        for (front, lane) in shared_lanes.iter_mut().zip(self.discipline.shared_lanes()) {
            *front = self.front(*lane);
        }
        shared_lanes
    }

    fn front(&self, lane: QueueLane) -> Option<HeadStatus> {
        let head = self.queue.head(lane)?;
        let head_may_contend = !self.is_blocked(lane);
        Some(HeadStatus {
            lane,
            head,
            head_may_contend,
            freed: self.freed.have(lane),
            is_open: head_may_contend && self.is_open(lane),
        })
    }

    fn wake_front(
        &mut self,
        now: Time,
        before: Option<HeadStatus>,
        after: Option<HeadStatus>,
        out: &mut Effects,
    ) {
        let same_head =
            before.filter(|before| after.is_some_and(|after| after.head == before.head));
        let Some(after) = after else { return };
        let head_may_go_on = same_head.is_none_or(|before| {
            after.head_may_contend && !before.head_may_contend || after.freed && !before.freed
        });
        // A place that was in the way of none is so again.
        let closes = same_head.is_some_and(|before| before.is_open && !after.is_open);
        if head_may_go_on || closes {
            self.begin_turn(now, after.head);
        }
        if head_may_go_on {
            // A new head that is blocked would find out no more than that, and is woken when it is not any more.
            if after.head_may_contend || after.freed {
                out.wake(after.head);
            }
        }
        if after.is_open && !before.is_some_and(|before| before.is_open) {
            out.woken.extend(self.queue.wake_all_readers(after.lane));
        }
    }

    /// Ends what is over by the clock.
    fn tick(&mut self, now: Time, out: &mut Effects) {
        self.step(now, out, |_, _| ());
    }

    /// Enters a later part of the client's life, and has every call look at it.
    fn set_life(&mut self, now: Time, life: Life, out: &mut Effects) {
        self.step(now, out, |core, out| {
            core.life = core.life.max(life);
            out.woken.extend(core.queue.ids());
            if core.life >= Life::Gone {
                core.end_waiting_releases(now, out);
            }
            if core.life == Life::Closing && core.discipline.keeps_places() {
                let owners: Vec<_> = core.owners.iter().map(|(owner, _)| owner).collect();
                for owner in owners {
                    // Its call may not be polled any more. What it did is undone.
                    core.change(now, owner, out, OwnerState::end_queueing);
                    core.leave_place(now, owner, out);
                }
            }
        });
    }

    /// Ends every hold that is still open, because the client is closed. Answers with the fields and faces of their
    /// owners.
    fn lose_all(
        &mut self,
        now: Time,
        reason: LossReason,
        out: &mut Effects,
    ) -> Vec<(Arc<str>, Face)> {
        self.step(now, out, |core, out| {
            let mut ended = Vec::new();
            let owners = core.owners.iter().map(|(owner, _)| owner);
            for owner in owners.collect::<Vec<_>>() {
                core.change(now, owner, out, |state, cx| {
                    if state.tenure.is_held() {
                        if !state.tenure.is_left_to_its_lease() {
                            ended.push((Arc::clone(&state.field), owner.face));
                        }
                        state.lose(reason, cx);
                    }
                    state.end_unlocks(|_| true, Unlocked::Failed, cx);
                });
            }
            ended
        })
    }

    /// Everything that is kept twice agrees, and the invariants hold.
    #[cfg(feature = "test-util")]
    pub fn check(&self) {
        assert!(
            !self.queue.is_apart() || *self.queue != Queue::default(),
            "an empty queue takes no room"
        );
        self.queue.check();
        self.owners.check();
        let mut counts = Counts::default();
        for (owner, state) in self.owners.iter() {
            assert!(
                !state.is_spent(),
                "{owner:?} is forgotten when nothing is left of it"
            );
            state.check();
            state.tenure.check();
            counts.replace(Counts::default(), state.counts());
            let lane = self.discipline.lane(owner);
            assert!(
                !state.has_place() || state.op.releases() || self.queue.head(lane).is_some(),
                "I9: a place that no call of {owner:?} wants is given up"
            );
        }
        assert_eq!(counts, self.counts);
        self.check_attempts();
    }

    #[cfg(feature = "test-util")]
    fn check_attempts(&self) {
        let queued_attempts = self.owners.iter().filter(|(_, state)| {
            state
                .op
                .acquire()
                .is_some_and(|acquire| acquire.order == Order::Queued && acquire.target == 1)
        });
        let queued_attempts = queued_attempts.filter(|(_, state)| {
            let acquire = state.op.acquire();
            // It needs no queue.
            acquire.is_some_and(|acquire| acquire.around == EnclosingWrite::None)
        });
        let queued_attempts: Vec<_> = queued_attempts.collect();
        let reads = |(owner, _): &(OwnerKey, _)| owner.face == Face::Read;
        match self.discipline {
            Discipline::Plain => assert!(
                queued_attempts.len() <= 1,
                "I4: one of those that queue attempts at a time"
            ),
            Discipline::Fair => {}
            Discipline::ReadWrite => assert!(
                queued_attempts.iter().all(reads) || queued_attempts.len() == 1,
                "I4: a queued attempt to write is alone"
            ),
        }
        for (owner, own) in self.owners.iter() {
            let other = self.faces(owner)[1];
            assert!(
                other
                    .is_none_or(|other| own.op.acquire().is_none() || other.op.acquire().is_none()),
                "I2: one acquire of {owner:?} at a time, whatever its face"
            );
            assert!(
                other.is_none_or(|other| own.field == other.field),
                "{owner:?} has one field with both of its faces"
            );
        }
    }
}

/// Checking all of a larger one after each step would make linear work quadratic.
#[cfg(all(debug_assertions, feature = "test-util"))]
const CHECKED_WHOLE_MAX: usize = 64;

#[cfg(test)]
mod tests;
