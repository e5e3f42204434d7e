//! When the holds of an owner are renewed, and what is asked for.

use std::time::Duration;

use super::{LEASE_MIN, RenewalState, Tenure, lease_for_deadline, local_deadline};
use crate::{RenewalAsk, Rules, Time};

impl Tenure {
    fn renewal(&self) -> RenewalState {
        match self.retry_at {
            Some(at) => RenewalState::RetryAt(at),
            None if self.in_flight => RenewalState::InFlight,
            None => RenewalState::Waiting,
        }
    }

    pub(super) fn set_renewal(&mut self, state: RenewalState) {
        self.in_flight = state == RenewalState::InFlight;
        self.retry_at = match state {
            RenewalState::RetryAt(at) => Some(at),
            RenewalState::Waiting | RenewalState::InFlight => None,
        };
    }

    /// The lease that a renewal asks for; `None` if no hold is renewed.
    pub(super) fn renewal_lease(&self, now: Time, rules: &Rules) -> Option<Duration> {
        let renewed = self.holds.iter();
        let renewed = renewed.filter(|hold| self.is_renewed(hold.policy));
        let left = renewed.map(|hold| self.left(hold, now, rules)).max();
        left.map(|lease| lease.max(LEASE_MIN))
    }

    /// Without a renewal by then a hold that is renewed is at risk.
    pub(super) fn at_risk_from(&self, rules: &Rules) -> Option<Time> {
        let any = self.holds.any_renewed() || self.shared && self.is_held();
        any.then(|| self.renewed_at + rules.watchdog_timeout * 2 / 3)
    }

    /// When the next renewal is due.
    pub(super) fn due_at(&self, rules: &Rules) -> Time {
        match self.renewal() {
            RenewalState::RetryAt(at) => at,
            RenewalState::Waiting if self.only_pending() => self.deadline,
            RenewalState::Waiting | RenewalState::InFlight => {
                let period = rules.watchdog_timeout / 3;
                let due = self.renewed_at + period;
                match self.is_ahead() {
                    // Nested into a hold with a short lease.
                    true => due.min(self.deadline - period),
                    false => due,
                }
            }
        }
    }

    /// When the timer of this owner has to fire; `None`: it needs none for now.
    pub(crate) fn timer(&self, now: Time, rules: &Rules) -> Option<Time> {
        let expires = self.expires_at()?;
        let risk = self.at_risk_from(rules).filter(|_| !self.warned);
        let watched = risk.map_or(expires, |risk| risk.min(expires));
        match self.renewal() {
            RenewalState::Waiting => {
                Some(watched.min(rules.on_beat(self.due_at(rules), rules.slack())))
            }
            RenewalState::RetryAt(at) => Some(watched.min(rules.on_beat(at, rules.retry_after()))),
            // The renewal under way is answered, or given up, long before there is anything to see.
            RenewalState::InFlight => {
                Some(watched).filter(|at| *at <= now + rules.command_timeout * 2)
            }
        }
    }

    #[cfg(any(debug_assertions, feature = "test-util"))]
    pub(crate) fn needs_timer(&self) -> bool {
        self.is_held() && !self.in_flight
    }

    /// Whether it is time to say that the renewal is overdue. It is said once.
    pub(crate) fn warn_if_overdue(&mut self, now: Time, rules: &Rules) -> bool {
        let overdue = !self.warned && self.at_risk_from(rules).is_some_and(|from| from <= now);
        self.warned |= overdue;
        overdue
    }

    /// Begins a renewal if one is due.
    pub(crate) fn begin_renewal(&mut self, now: Time, rules: &Rules) -> Option<RenewalAsk> {
        let is_due = self.due_at(rules) <= now + rules.slack();
        if self.in_flight || !is_due {
            return None;
        }
        self.renew_now(now, rules)
    }

    /// Begins a renewal whether one is due or not, and beside one that is under way.
    fn renew_now(&mut self, now: Time, rules: &Rules) -> Option<RenewalAsk> {
        if !self.is_held() {
            return None;
        }
        self.set_renewal(RenewalState::InFlight);
        if self.only_pending() {
            return Some(RenewalAsk::Check);
        }
        let lease = match self.behind {
            // What a lease was extended to may be lost as the hold itself may be, and a nested hold that has asked for a
            // longer one may have ended since: the deadline that it has left is restored too.
            true => Some(
                self.promised(now, rules)
                    .max(lease_for_deadline(self.deadline.since(now))),
            ),
            false => self.renewal_lease(now, rules),
        };
        let lease = lease.max(self.unconfirmed_lease(now));
        Some(lease.map_or(RenewalAsk::Check, RenewalAsk::Extend))
    }

    /// What replicas are still to confirm of a fixed lease, because only the primary was asked for it.
    fn unconfirmed_lease(&self, now: Time) -> Option<Duration> {
        if !self.is_ahead() {
            return None;
        }
        let fixed = self.holds.iter().filter(|hold| !hold.policy.is_renewed());
        let until = fixed.filter_map(|hold| hold.policy.ends()).max()?;
        (until > self.deadline).then(|| lease_for_deadline(until.since(now)))
    }

    /// Begins a renewal at a server that has taken over.
    pub(crate) fn recheck(&mut self, now: Time, rules: &Rules) -> Option<RenewalAsk> {
        self.behind = true;
        self.renew_now(now, rules)
    }

    /// The renewal under way found everything as it should be, and this many replicas have confirmed it.
    pub(crate) fn renewed(
        &mut self,
        now: Time,
        sent_at: Time,
        asked: RenewalAsk,
        acknowledged: u32,
        rules: &Rules,
    ) {
        if let RenewalAsk::Extend(lease) = asked {
            if !self.promise(sent_at, lease, acknowledged, rules) {
                return self.not_renewed(now, rules);
            }
            // One that went to the former server may promise less.
            self.behind &= local_deadline(sent_at, self.certain(lease, rules)) < self.deadline;
        }
        self.set_renewal(RenewalState::Waiting);
        self.confirmed_at(sent_at);
    }

    /// The renewal under way has no answer, or too few replicas have confirmed it: it is repeated soon.
    pub(crate) fn not_renewed(&mut self, now: Time, rules: &Rules) {
        self.set_renewal(RenewalState::RetryAt(now + rules.retry_after()));
    }
}
