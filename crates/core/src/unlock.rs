//! How a hold ends here: unlocks, dropped guards, and guards that leave it to others.

use super::LockCore;
use super::values::{Effects, HoldId, LossReason, OwnerKey, Time};

impl LockCore {
    /// Takes a hold out of the books, and begins a release or joins the one that is under way. The outcome is
    /// an effect of a later step. `Err`: the hold was lost. `Ok(false)`: it was released before.
    pub(super) fn unlock(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        out: &mut Effects,
    ) -> Result<bool, LossReason> {
        self.step(now, out, |core, out| core.unlock_now(now, owner, hold, out))
    }

    pub(super) fn unlock_now(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        out: &mut Effects,
    ) -> Result<bool, LossReason> {
        let unlock = self.change(now, owner, out, |own, cx| {
            if let Some(reason) = own.tenure.loss_of(hold) {
                // If a section that ran on after its limit has left the field there, that goes now.
                own.acknowledge(hold, cx);
                return Err(reason);
            }
            let taken_out = own.take_out(hold, true, cx);
            if taken_out && own.op.release().is_some() {
                // Its own time begins now, however long the release has been failing.
                own.op_changed_at = cx.now;
            }
            Ok(taken_out)
        });
        unlock.unwrap_or(Ok(false))
    }

    /// A guard was dropped: its owner does not hold from here on.
    /// `false`: it had ended.
    pub(super) fn drop_hold(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        out: &mut Effects,
    ) -> bool {
        self.step(now, out, |core, out| core.drop_now(now, owner, hold, out))
    }

    fn drop_now(&mut self, now: Time, owner: OwnerKey, hold: HoldId, out: &mut Effects) -> bool {
        let was_held = self.change(now, owner, out, |own, cx| {
            let was_held = own.take_out(hold, false, cx);
            if !was_held {
                own.acknowledge(hold, cx);
            }
            was_held
        });
        was_held.unwrap_or(false)
    }

    /// Drops every detached hold; answers how many.
    pub(super) fn drop_detached(&mut self, now: Time, out: &mut Effects) -> usize {
        self.step(now, out, |core, out| {
            let detached = core
                .owners
                .iter()
                .map(|(owner, own)| (owner, own.tenure.detached()));
            let detached: Vec<_> = detached.collect();
            for (owner, hold) in detached
                .iter()
                .flat_map(|(owner, holds)| holds.iter().map(|hold| (*owner, *hold)))
            {
                core.drop_now(now, owner, hold, out);
            }
            detached.iter().map(|(_, holds)| holds.len()).sum()
        })
    }

    pub(super) fn detach(&mut self, now: Time, owner: OwnerKey, hold: HoldId, out: &mut Effects) {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| own.tenure.detach(hold));
        });
    }

    /// Leaves a hold to its lease: nothing releases it, not even closing the client.
    pub(super) fn leave_to_lease(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| own.tenure.leave(hold));
        });
    }

    /// A detached hold of this owner, for the caller to release.
    pub(super) fn claim_detached(
        &mut self,
        now: Time,
        owner: OwnerKey,
        out: &mut Effects,
    ) -> Option<HoldId> {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| own.tenure.claim_detached())
                .flatten()
        })
    }
}
