//! What a server that takes over explains: losses, and two owners inside of one lock.

use std::time::{Duration, Instant};

use redisson_lock::LossReason;

use super::Oracle;
use super::values::{Ending, Release, Section, Takeover};

/// Why two may have been inside together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowed {
    /// One was informed of its loss.
    Loss,
    /// One was released by the former primary, and the new one knew nothing of it.
    ReleasedBefore,
    /// Nobody waited for the answer to the release of one, or it did not come.
    Unknown,
    /// A release is under way.
    NotYet,
}

/// A hold that was lost, as its owner heard.
pub(super) struct Loss {
    pub(super) section: u64,
    pub(super) informed: Instant,
    pub(super) reason: LossReason,
}

impl Oracle {
    pub fn took_over(&mut self, takeover: Takeover) {
        self.sums.failovers += 1;
        self.takeovers.push(takeover);
    }

    /// The former primary of what was taken over since then said until now that it was one.
    pub fn former_until(&mut self, since: Instant, now: Instant) {
        for takeover in &mut self.takeovers {
            if takeover.at >= since {
                takeover.former_until = takeover.former_until.max(now);
            }
        }
    }

    /// By then a loss is reported.
    pub fn limit(&self, switched: Instant, now: Instant) -> Instant {
        switched + self.terms.reported_within + self.stood_still(switched, now)
    }

    /// How much of the time that the machine stood still was needed.
    fn late(&self, switched: Instant, at: Instant) -> Duration {
        at.saturating_duration_since(switched + self.terms.reported_within)
    }

    /// Two are allowed inside only if the former primary has let one in and the new one the other, until losses
    /// are reported. Sections in the order of their beginnings.
    pub(super) fn allowed(
        &mut self,
        first: &Section,
        second: &Section,
        until: Instant,
    ) -> Result<Allowed, String> {
        if self.locks[first.lock].synced {
            return Err("all replicas had it".to_owned());
        }
        let mut why = None;
        let mut allowed = None;
        for takeover in self.takeovers_of(first.lock).rev() {
            match self.allowed_by(takeover, first, second, until) {
                Ok(how) => {
                    allowed = Some((how, self.late(takeover.at, until)));
                    break;
                }
                Err(not) => _ = why.get_or_insert(not),
            }
        }
        let Some((how, late)) = allowed else {
            return Err(why.unwrap_or_else(|| "no takeover explains it".to_owned()));
        };
        self.credited(late);
        Ok(how)
    }

    fn allowed_by(
        &self,
        takeover: &Takeover,
        first: &Section,
        second: &Section,
        until: Instant,
    ) -> Result<Allowed, String> {
        let switched = self.clock(takeover.at);
        if until > self.limit(takeover.at, until) {
            return Err(format!("it ended too late after the switch at {switched}"));
        }
        if first.begin > self.served_until(takeover, first.begin) {
            return Err(format!(
                "both were let in after the switch at {switched}, by the new primary"
            ));
        }
        if second.begin + SEEN_WITHIN < takeover.at {
            return Err(format!(
                "both were let in before the switch at {switched}, by one primary"
            ));
        }
        let both = [first, second];
        if both.iter().any(|one| one.is_informed()) {
            return Ok(Allowed::Loss);
        }
        if both.iter().any(|one| one.release.is_none()) {
            return Ok(Allowed::NotYet);
        }
        let is_unknown = |one: &&Section| matches!(one.release, Some((_, Release::Unknown)));
        if both.iter().any(is_unknown) {
            return Ok(Allowed::Unknown);
        }
        // What was sent to the demoted primary and then sent again may have been executed there.
        let before = |one: &&Section| {
            let sent = one.left();
            sent <= self.served_until(takeover, sent)
        };
        if both.iter().any(before) {
            return Ok(Allowed::ReleasedBefore);
        }
        Err(format!(
            "nobody was informed of a loss after the switch at {switched}, and both were released"
        ))
    }

    /// Until when the former primary may have answered, as far as can be seen from outside.
    fn served_until(&self, takeover: &Takeover, at: Instant) -> Instant {
        let until = takeover.former_until;
        until + SEEN_WITHIN + self.stood_still(until, at)
    }

    fn takeovers_of(&self, lock: usize) -> impl DoubleEndedIterator<Item = &Takeover> {
        let slot = self.locks[lock].slot;
        let has = move |takeover: &&Takeover| {
            takeover.may_lose && takeover.slots.iter().any(|slots| slots.contains(&slot))
        };
        self.takeovers.iter().filter(has)
    }

    pub(super) fn loss(&mut self, section: &Section, loss: &Loss) -> Result<(), String> {
        let (at, reason) = (section.left(), loss.reason);
        match reason {
            LossReason::LeaseOver if section.leased => self.by_deadline(section.valid_until, at),
            LossReason::NotRenewed => self.not_renewed(section, at),
            LossReason::Gone | LossReason::Taken | LossReason::Changed => {
                if self.locks[section.lock].synced {
                    return Err(format!("lost ({reason:?}), though all replicas had it"));
                }
                let has_happened = |one: &&Takeover| one.at <= loss.informed + SEEN_WITHIN;
                let takeover = self.takeovers_of(section.lock).rfind(has_happened);
                let Some(takeover) = takeover.cloned() else {
                    return Err(format!("lost ({reason:?}), and no takeover explains it"));
                };
                let switched = takeover.at;
                if section.begin > self.served_until(&takeover, section.begin) {
                    return Err(format!(
                        "lost ({reason:?}), and let in by the new primary, after the switch at {}",
                        self.clock(switched)
                    ));
                }
                let behind = at.saturating_duration_since(switched);
                if at > self.limit(switched, at) {
                    return Err(format!(
                        "lost ({reason:?}), reported {behind:?} after the switch at {}",
                        self.clock(switched)
                    ));
                }
                self.credited(self.late(switched, at));
                self.sums.lost += 1;
                self.sums.longest = self.sums.longest.max(behind);
                Ok(())
            }
            other => Err(format!("lost ({other:?}), for which there is no reason")),
        }
    }

    fn not_renewed(&mut self, section: &Section, at: Instant) -> Result<(), String> {
        let before = at.checked_sub(self.terms.watchdog_timeout);
        let before = before.unwrap_or(self.start).max(self.start);
        let away = self.out(section.lock, before, at);
        if away < self.terms.watchdog_timeout / 2 {
            return Err(format!(
                "lost (NotRenewed) at {}, and its servers were away for {away:?} only of the watchdog timeout before",
                self.clock(at)
            ));
        }
        self.sums.not_renewed += 1;
        self.by_deadline(section.valid_until, at)
    }

    /// Whether the owner of a section was informed of a loss; `None`: it may be yet.
    pub(super) fn was_informed(&self, id: u64) -> Option<bool> {
        let section = &self.sections[&id];
        match section.release {
            _ if section.is_informed() => Some(true),
            None => None,
            Some(_) => Some(false),
        }
    }
}

impl Section {
    fn is_informed(&self) -> bool {
        matches!(self.end, Some((_, Ending::Lost(_))))
            || matches!(self.release, Some((_, Release::Lost)))
    }
}

/// From a switch until it is seen, or from a grant until its task has run.
const SEEN_WITHIN: Duration = Duration::from_millis(250);
