//! The rules between the two faces of an owner, and between readers and writers.
//!
//! An owner of a read-write lock has a face that reads and one that writes, each with holds and an operation of its own.
//! Both have one field. An acquire waits until nothing is under way for either face, a release only for its own
//! (I2): a guard that is dropped while a read inside of its hold is on its way is released beside that.
//!
//! A read hold beside a write hold of the same owner was taken inside of that, and both are in one hash. So what finds
//! that the hash is gone speaks for both, if it has looked after they began.

use std::sync::Arc;

use super::LockCore;
use super::acquire::Permit;
use super::discipline::Discipline;
use super::op::{Acquire, EnclosingWrite};
use super::owner_state::OwnerState;
use super::queue::{QueueLane, QueuedCall};
use super::values::{Effects, Face, LossReason, OpId, OwnerKey, Time, WaiterId};

impl LockCore {
    /// An owner with this face, and with its other one.
    pub(super) fn faces(&self, owner: OwnerKey) -> [Option<&OwnerState>; 2] {
        let other = owner.other_face();
        [Some(owner), other].map(|face| self.owners.get(face?))
    }

    /// Nothing is under way for an owner, whatever its face.
    pub(super) fn is_idle(&self, owner: OwnerKey) -> bool {
        let is_idle = |face| self.owners.get(face).is_none_or(|own| own.op.is_idle());
        is_idle(owner) && owner.other_face().is_none_or(is_idle)
    }

    pub(super) fn holds(&self, owner: OwnerKey) -> bool {
        let own = self.owners.get(owner);
        own.is_some_and(|own| own.tenure.is_held())
    }

    /// Whether an owner that is to write reads.
    pub(super) fn reads(&self, owner: OwnerKey) -> bool {
        let read = owner.other_face().filter(|read| read.face == Face::Read);
        read.is_some_and(|read| self.holds(read))
    }

    /// The hold of an owner that is to read, with its other face.
    pub(super) fn around(&self, owner: OwnerKey) -> EnclosingWrite {
        let write = owner.other_face().filter(|write| write.face == Face::Write);
        match write.is_some_and(|write| self.holds(write)) {
            true => EnclosingWrite::Held,
            false => EnclosingWrite::None,
        }
    }

    /// An owner has lost what it held. If it was to read inside of that, this is undone.
    pub(super) fn note_lost_around(&mut self, owner: OwnerKey, reason: LossReason) {
        let read = owner.other_face().filter(|read| read.face == Face::Read);
        let read = read.and_then(|read| self.owners.get_mut(read));
        if let Some(acquire) = read.and_then(|read| read.op.acquire_mut())
            && acquire.around == EnclosingWrite::Held
        {
            acquire.around = EnclosingWrite::Lost(reason);
        }
    }

    /// Whether another owner of this client has the lock, so that this one cannot have it too.
    pub fn is_excluded(&self, owner: OwnerKey) -> bool {
        let mut owners = self.owners.iter();
        owners.any(|(other, own)| {
            let both_read = other.face == Face::Read && owner.face == Face::Read;
            other.thread != owner.thread && !both_read && own.tenure.is_held()
        })
    }

    /// Whether an operation of this client is in the way of this owner, and no hold. A reader, too, waits for the attempt
    /// of the one before it, until a reader is in.
    pub fn is_behind_an_operation(&self, owner: OwnerKey) -> bool {
        self.owners.operate() && !self.is_excluded(owner)
    }

    /// Whether an owner of this client is in the way of the head of a lane, or the head of another lane comes first.
    pub(super) fn is_blocked(&self, lane: QueueLane) -> bool {
        if self.yields_to_other_lane(lane) {
            return true;
        }
        match self.discipline.is_shared(lane) {
            true => self.owners.writers_block(),
            false => self.owners.block(),
        }
    }

    /// Whether the head of another lane has queued for longer, and has not attempted since an owner of this client freed
    /// the lock. One that unlocks and locks in a row would always be before it.
    fn yields_to_other_lane(&self, lane: QueueLane) -> bool {
        let first = |other: &QueueLane| {
            let waits = *other != lane && self.freed.have(*other);
            waits.then(|| self.queue.head(*other)).flatten()
        };
        let first = self.discipline.shared_lanes().iter().find_map(first);
        let head = || self.queue.head(lane).filter(|_| !self.is_open(lane));
        first.is_some_and(|first| head().is_some_and(|head| first < head))
    }

    /// Whether an immediate attempt of this owner would overtake another owner that is the first of another lane. One that
    /// queues itself overtakes those that came before its place. A reader overtakes no writer that waits for another client,
    /// which may be reading.
    pub(super) fn overtakes(&self, now: Time, owner: OwnerKey) -> bool {
        let lane = self.discipline.lane(owner);
        let is_own = |id: &WaiterId| {
            let waiter = self.queue.get(*id);
            waiter.is_some_and(|waiter| waiter.owner.thread == owner.thread)
        };
        let place = self.queue.head(lane).filter(is_own);
        let mut heads = self.discipline.shared_lanes().iter().filter_map(|other| {
            let head = self.queue.head(*other).filter(|_| *other != lane)?;
            (!is_own(&head) && place.is_none_or(|place| head < place)).then_some(head)
        });
        heads.any(|head| {
            let waits_until = self.queue.get(head).and_then(QueuedCall::waits_until);
            !self.discipline.is_shared(lane) || waits_until.is_none_or(|until| until <= now)
        })
    }

    /// Whether all of a lane may attempt, and not only its head: an owner of this client is in already.
    pub(super) fn is_open(&self, lane: QueueLane) -> bool {
        self.discipline.is_shared(lane) && self.owners.read()
    }

    /// The lock may be free, so far as this client knows.
    pub(super) fn note_freed(&mut self) {
        // Where it has faces, another one may still be held.
        if self.discipline == Discipline::ReadWrite && self.owners.hold() {
            return;
        }
        for lane in self.discipline.shared_lanes() {
            self.freed.add(*lane);
        }
    }

    /// Puts an owner in, if it is not there. Both faces have one field.
    pub(super) fn ensure_face(&mut self, now: Time, owner: OwnerKey, field: &Arc<str>) {
        let generation = self.ids.generation();
        let shared = self.discipline.is_shared(self.discipline.lane(owner));
        let [_, other] = self.faces(owner);
        let field = Arc::clone(other.map_or(field, |other| &other.field));
        let state = || OwnerState::new(field, generation, shared, now);
        self.owners.ensure(owner, state);
    }

    /// An acquire that is still its call's.
    pub(super) fn acquire_of(&self, permit: &Permit) -> Option<&Acquire> {
        let acquire = self.owners.get(permit.owner)?.op.acquire()?;
        (acquire.id == permit.op).then_some(acquire)
    }

    /// Whether an attempt is made inside of a hold of its owner's other face.
    pub fn is_inside(&self, permit: &Permit) -> bool {
        let acquire = self.acquire_of(permit);
        acquire.is_some_and(|acquire| acquire.around != EnclosingWrite::None)
    }

    /// An attempt to read was answered as if its owner did not write. What is being released may be gone.
    pub(super) fn lose_write_around(
        &mut self,
        now: Time,
        reader: OwnerKey,
        reason: LossReason,
        out: &mut Effects,
    ) {
        let Some(write) = reader.other_face() else {
            return;
        };
        self.change(now, write, out, |write, cx| {
            if write.tenure.is_held() && write.op.is_idle() {
                write.lose(reason, cx);
            }
        });
    }

    /// The server has a read hold of an owner that has none here, because it ended at its limit, or its release was
    /// refused. A release brings it to the count that there is.
    pub(super) fn release_unknown_read(&mut self, now: Time, permit: &Permit, out: &mut Effects) {
        let Some(read) = permit.owner.other_face() else {
            return;
        };
        self.ensure_face(now, read, &permit.field);
        let lease = self.rules.watchdog_timeout;
        self.change(now, read, out, |read, cx| {
            if !read.tenure.is_held() {
                read.tenure.note_possible_lease(lease);
                read.release(cx);
            }
        });
    }

    /// The hash is gone, or is none of a lock any more, and with it what this owner held with its other face. `by`: the
    /// release that has found that. It may have looked before a hold began that is younger.
    pub(super) fn lose_other_face(
        &mut self,
        now: Time,
        owner: OwnerKey,
        found: Option<LossReason>,
        by: Option<OpId>,
        out: &mut Effects,
    ) {
        let gone = found.filter(|reason| matches!(reason, LossReason::Gone | LossReason::Changed));
        let Some((other, reason)) = owner.other_face().zip(gone) else {
            return;
        };
        self.change(now, other, out, |other, cx| {
            let is_older = by.is_none_or(|release| other.generation.0 < release.0);
            if other.tenure.is_held() && is_older {
                other.lose(reason, cx);
            }
        });
    }
}
