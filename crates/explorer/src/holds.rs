//! What a call does with a hold: unlock it, drop or detach its guard, claim it, extend it.

use std::time::Duration;

use redisson_lock_core::LossReason;
use redisson_lock_core::input::{
    DetachedClaimed, HoldDetached, HoldDropped, HoldUnlocked, TimePasses,
};
use redisson_lock_core::{HoldId, LeasePolicy, OwnerKey};

use super::coverage::Case;
use super::script::Script;
use super::state::{At, Guard, Sender, State};
use super::{FIXED_LEASE, Verb};

impl State {
    pub(super) fn end_hold(&mut self, nth: usize, verb: Verb) {
        let guards = &mut self.callers[nth].guards;
        let guard = match verb {
            Verb::UnlockFirst | Verb::DropFirst if !guards.is_empty() => Some(guards.remove(0)),
            _ => guards.pop(),
        };
        let Some(Guard { owner, hold, .. }) = guard else {
            return self.leave(nth);
        };
        self.callers[nth].turns_to(owner.face);
        self.ended.remove(&hold);
        match verb {
            Verb::Unlock | Verb::UnlockFirst if self.has_ended() => {
                self.drop_hold(owner, hold);
                self.leave(nth);
            }
            Verb::Unlock | Verb::UnlockFirst => self.unlock(nth, hold),
            Verb::Drop | Verb::DropFirst => {
                self.drop_hold(owner, hold);
                self.leave(nth);
            }
            _ => {
                let case = if self.is_open(owner, hold) {
                    Case::Detach
                } else {
                    Case::DetachLost
                };
                self.step(owner, case, HoldDetached { owner, hold });
                self.leave(nth);
            }
        }
    }

    fn is_open(&self, owner: OwnerKey, hold: HoldId) -> bool {
        let found = self.core.snapshot(self.now, owner, hold);
        found.is_some_and(|found| found.over.is_none())
    }

    pub(super) fn drop_hold(&mut self, owner: OwnerKey, hold: HoldId) {
        let case = if self.is_open(owner, hold) {
            Case::Drop
        } else {
            Case::DropEnded
        };
        self.step(owner, case, HoldDropped { owner, hold });
    }

    pub(super) fn unlock(&mut self, nth: usize, hold: HoldId) {
        let owner = self.callers[nth].owner;
        let start = self.step_as(
            owner,
            HoldUnlocked { owner, hold },
            |_, start| match start {
                Ok(false) => Case::UnlockNothing,
                Ok(true) => Case::Unlock,
                Err(_) => Case::UnlockLost,
            },
        );
        match start {
            Ok(true) => self.callers[nth].at = At::Unlocking { hold },
            Ok(false) => self.leave(nth),
            Err(reason) => {
                let by_the_server = matches!(reason, LossReason::Gone | LossReason::Taken);
                if by_the_server && !self.robbed && !self.has_expired {
                    self.wrong = Some("FL: a hold is lost that nobody took away");
                }
                self.leave(nth);
            }
        }
    }

    /// Unlocks without a guard.
    pub(super) fn unlock_detached(&mut self, nth: usize) {
        let owner = self.callers[nth].owner;
        if self.has_ended() {
            return self.leave(nth);
        }
        let claimed = self.step_as(
            owner,
            DetachedClaimed { owner },
            |state, claimed| match claimed {
                Some(hold) if state.is_open(owner, *hold) => Case::Claim,
                Some(_) => Case::ClaimLost,
                None => Case::ClaimNothing,
            },
        );
        match claimed {
            Some(hold) => self.unlock(nth, hold),
            None => self.leave(nth),
        }
    }

    /// Moves the end of the latest guard's fixed lease.
    pub(super) fn extend(&mut self, nth: usize) {
        let guard = self.callers[nth].guards.last().copied();
        let Some(Guard { owner, hold, .. }) = guard.filter(|_| !self.has_ended()) else {
            return self.leave(nth);
        };
        self.callers[nth].turns_to(owner.face);
        self.step(owner, Case::ExtendBegins, TimePasses {});
        let found = self.core.snapshot(self.now, owner, hold);
        let found = found.filter(|found| matches!(found.policy, LeasePolicy::Fixed { .. }));
        let Some(field) = found.and_then(|_| self.field(owner)) else {
            return self.leave(nth);
        };
        let lease: Duration = FIXED_LEASE;
        self.callers[nth].at = At::Extending { hold, lease };
        let asked = Some(lease);
        self.send(
            Sender::Caller(nth),
            Script::Renew {
                field,
                lease: asked,
            },
        );
    }
}
