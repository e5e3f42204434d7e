//! A write hold that becomes a read hold of the same owner: a hand-off from one of its faces to the other.
//!
//! It is one operation of both faces, with one answer, as every hand-off. If it is not answered, each face has a release of
//! what it may have.

use super::LockCore;
use super::hold::LeasePolicy;
use super::op::Pass;
use super::queue::{LeaseKind, Terms};
use super::values::{Effects, Face, HoldId, Life, LossReason, OwnerKey, Time, WaiterId};

impl LockCore {
    /// The terms on which the read hold would have the rest of this write hold's time. `None`: it cannot be moved in one
    /// step: it has ended, is not its owner's only one, or something is under way for the owner.
    pub fn downgrade_terms(&self, now: Time, owner: OwnerKey, hold: HoldId) -> Option<Terms> {
        let [own, read] = self.faces(owner);
        let own = own.filter(|own| own.tenure.has(hold) && own.tenure.count() == 1)?;
        let is_free =
            read.is_none_or(|read| !read.tenure.is_held() && read.tenure.lost().is_none());
        if !is_free || !self.is_idle(owner) || owner.face != Face::Write || self.life != Life::Open
        {
            return None;
        }
        let policy = own.tenure.snapshot(now, hold, &self.rules)?.policy;
        let (lease, kind, limit) = match policy {
            LeasePolicy::Watchdog { limit } => {
                (self.rules.watchdog_timeout, LeaseKind::Watchdog, limit)
            }
            LeasePolicy::Fixed { until, limit } => (until.since(now), LeaseKind::Fixed, limit),
        };
        Some(Terms {
            lease,
            kind,
            limit: limit.map(|limit| limit.since(now)),
            replicas: 0,
            reentrant: own.tenure.reentrant,
            wait: self.rules.fair_wait,
        })
    }

    /// As [`unlock`](Self::unlock), and `to`, a call of the same owner that waits to read, gets the lock in the same script.
    /// Only if there are terms for that.
    pub fn downgrade(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        to: WaiterId,
        out: &mut Effects,
    ) -> Result<bool, LossReason> {
        self.step(now, out, |core, out| {
            let is_alone = core.is_idle(owner);
            let unlocks = core.unlock_now(now, owner, hold, out)?;
            if is_alone && unlocks {
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
