//! A write hold that becomes a read hold of the same owner: a hand-off from one of its faces to the other.
//!
//! It is one operation of both faces, with one answer, as every hand-off. If it is not answered, each face has a release of
//! what it may have.

use super::LockCore;
use super::hold::LeasePolicy;
use super::op::Pass;
use super::owner_state::OwnerState;
use super::queue::{LeaseKind, Terms};
use super::values::{Effects, Face, HoldId, Life, LossReason, OwnerKey, Time, WaiterId};

impl LockCore {
    /// Whether this hold can be moved in one step: it is its owner's only one, nothing is under way for the owner, and no
    /// replica has to confirm the new lease.
    pub fn may_downgrade(&self, owner: OwnerKey, hold: HoldId) -> bool {
        let [own, read] = self.faces(owner);
        let is_alone = |own: &OwnerState| {
            own.tenure.has(hold) && own.tenure.count() == 1 && own.tenure.replicas() == 0
        };
        let is_free =
            read.is_none_or(|read| !read.tenure.is_held() && read.tenure.lost().is_none());
        let is_open = owner.face == Face::Write && self.life == Life::Open;
        own.is_some_and(is_alone) && is_free && is_open && self.is_idle(owner)
    }

    /// The terms on which another hold would have the rest of this one's time. `None`: it has ended.
    pub fn rest_of(&self, now: Time, owner: OwnerKey, hold: HoldId) -> Option<Terms> {
        let own = self.owners.get(owner)?;
        let snapshot = own.tenure.snapshot(now, hold, &self.rules)?;
        let (lease, kind, limit) = match snapshot.policy {
            LeasePolicy::Watchdog { limit } => {
                (self.rules.watchdog_timeout, LeaseKind::Watchdog, limit)
            }
            LeasePolicy::Fixed { until, limit } => (until.since(now), LeaseKind::Fixed, limit),
        };
        Some(Terms {
            lease,
            kind,
            limit: limit.map(|limit| limit.since(now)),
            replicas: snapshot.replicas,
            reentrant: own.tenure.reentrant,
            wait: self.rules.fair_wait,
        })
    }

    /// As [`unlock`](Self::unlock), and `to`, a call of the same owner that waits to read, gets the lock in the same script, if
    /// that [may be](Self::may_downgrade).
    pub(super) fn downgrade(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        to: WaiterId,
        out: &mut Effects,
    ) -> Result<bool, LossReason> {
        self.step(now, out, |core, out| {
            // Another task of the owner may have read since the caller looked.
            let may_move = core.may_downgrade(owner, hold);
            let unlocks = core.unlock_now(now, owner, hold, out)?;
            if may_move && unlocks {
                core.begin_downgrade(now, owner, to, out);
            }
            Ok(unlocks)
        })
    }

    fn begin_downgrade(&mut self, now: Time, owner: OwnerKey, to: WaiterId, out: &mut Effects) {
        let own = self
            .owners
            .get(owner)
            .filter(|own| own.tenure.target() == 0);
        let (Some(own), Some(waiter)) = (own, self.queue.get(to)) else {
            return;
        };
        let (read, terms, field) = (waiter.owner, waiter.terms, own.field.clone());
        self.ensure_face(now, read, &field);
        let op = self.change(now, read, out, |own, cx| own.begin_grant(to, terms, cx));
        self.change(now, owner, out, |own, _| {
            if let Some(release) = own.op.release_mut() {
                release.pass = op.map(|op| Pass { to: read, op });
            }
        });
    }
}
