//! What the faces of an owner have to do with each other, and readers with writers.
//!
//! An owner of a read-write lock has a face that reads and one that writes, each with holds and an operation of its own.

use super::LockCore;
use super::discipline::Discipline;
use super::owner_state::OwnerState;
use super::queue::Lane;
use super::values::OwnerKey;

impl LockCore {
    /// An owner with this face, and with its other one.
    pub(super) fn faces(&self, owner: OwnerKey) -> [Option<&OwnerState>; 2] {
        let other = owner.other_face();
        [Some(owner), other].map(|face| self.owners.get(face?))
    }

    /// Nothing is under way for an owner, whatever its face.
    pub(super) fn is_idle(&self, owner: OwnerKey) -> bool {
        let mut faces = self.faces(owner).into_iter().flatten();
        faces.all(|own| own.op.is_idle())
    }

    /// Whether an owner of this client is in the way of the head of a lane.
    pub(super) fn is_blocked(&self, lane: Lane) -> bool {
        match self.discipline.is_shared(lane) {
            true => self.owners.writers_block(),
            false => self.owners.block(),
        }
    }

    /// Whether all of a lane may attempt, and not only its head: an owner of this client is in already.
    pub(super) fn is_open(&self, lane: Lane) -> bool {
        self.discipline.is_shared(lane) && self.owners.read()
    }

    /// The lock may be free, so far as this client knows.
    pub(super) fn note_freed(&mut self) {
        // Where it has faces, another one may still be held.
        if self.discipline == Discipline::ReadWrite && self.owners.hold() {
            return;
        }
        for lane in self.discipline.fronts() {
            self.freed.add(*lane);
        }
    }
}
