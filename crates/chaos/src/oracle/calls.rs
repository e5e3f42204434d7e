//! Calls that fail, calls that do not return, and whether enough was done at all.

use std::time::{Duration, Instant};

use super::values::Reason;
use super::{Oracle, WOKEN_WITHIN};

/// A call that has not returned.
pub(super) struct Call {
    lock: usize,
    since: Instant,
    /// Its owner is inside already.
    is_nested: bool,
}

/// A call that has failed, and is not judged yet.
pub(super) struct Failed {
    lock: usize,
    reason: Reason,
    text: String,
    at: Instant,
}

/// What a run has to come to.
pub struct Needed {
    /// How many of the locks, from the first on, everybody wants.
    pub contended: usize,
    /// What has not been done to the servers yet.
    pub missing: Vec<String>,
    /// Whether there was time for all of it.
    pub is_long: bool,
    /// How often clients were sent on, where there is anybody to send them on.
    pub redirections: Option<u64>,
}

impl Oracle {
    pub fn calls(&mut self, lock: usize, is_nested: bool, now: Instant) -> u64 {
        self.next += 1;
        let call = Call {
            lock,
            since: now,
            is_nested,
        };
        self.pending.insert(self.next, call);
        self.next
    }

    pub fn returned(&mut self, call: u64) {
        self.pending.remove(&call);
    }

    pub fn failed(&mut self, lock: usize, reason: Reason, text: String, now: Instant) {
        self.note(lock, now, format!("a call fails: {text}"));
        self.failed.push(Failed {
            lock,
            reason,
            text,
            at: now,
        });
    }

    /// Every outage so far is known.
    pub(super) fn judge_calls(&mut self, now: Instant) {
        for one in std::mem::take(&mut self.failed) {
            let is_right = match one.reason {
                Reason::Lost(section) => match self.was_informed(section) {
                    Some(informed) => informed,
                    None => {
                        self.failed.push(one);
                        continue;
                    }
                },
                reason => self
                    .explains(one.lock, reason, one.at)
                    .is_some_and(|behind| {
                        self.count(reason, behind);
                        true
                    }),
            };
            if is_right {
                continue;
            }
            let what = format!(
                "a call failed at {} ({:?}: {}), and nothing that befell its servers explains it",
                self.clock(one.at),
                one.reason,
                one.text
            );
            self.violated_since(Some(one.lock), one.at, now, &what);
        }
        let hang = self.pending.values().filter_map(|call| {
            let free = self.free_since(call, now)?;
            let waited = (now - free).saturating_sub(self.not_whole(free, now));
            (waited > self.returns_within()).then_some((call.lock, call.since, waited))
        });
        for (lock, since, waited) in hang.collect::<Vec<_>>() {
            let what = format!(
                "a call made at {} has not returned, though nobody was inside and everything whole for {waited:?}",
                self.clock(since)
            );
            self.violated_since(Some(lock), since, now, &what);
        }
    }

    fn count(&mut self, reason: Reason, behind: Duration) {
        let sums = &mut self.sums;
        match reason {
            Reason::NoAnswer => sums.no_answer += 1,
            Reason::Refused(_) => sums.refused += 1,
            _ => sums.too_few_replicas += 1,
        }
        sums.failed_behind = sums.failed_behind.max(behind);
    }

    /// Nobody but the caller was inside since then.
    fn free_since(&self, call: &Call, now: Instant) -> Option<Instant> {
        let is_inside = self.open().any(|section| section.lock == call.lock);
        match (call.is_nested, is_inside) {
            (true, _) => Some(call.since),
            (false, true) => None,
            (false, false) => {
                let left = self.left_at[call.lock].unwrap_or(call.since);
                Some(left.max(call.since).min(now))
            }
        }
    }

    /// What still waits when its lock is free must have it by then: a lease that nobody ended, a wake-up by the next
    /// look at the map, and the commands.
    pub fn returns_within(&self) -> Duration {
        self.terms.watchdog_timeout + WOKEN_BY_THE_MAP + self.terms.command_timeout * 2
    }

    /// The locks with calls that have not returned.
    pub fn pending(&self) -> Vec<String> {
        let shown = |call: &Call| {
            let since = self.clock(call.since);
            format!("{} since {since}", self.locks[call.lock].name)
        };
        self.pending.values().map(shown).collect()
    }

    /// A run in which nothing happens shows nothing.
    pub fn too_little(&self, needed: &Needed, now: Instant) -> Vec<String> {
        let mut missing = Vec::new();
        let at_least = (now - self.start).as_secs() / 2;
        for (nth, lock) in self.locks.iter().enumerate() {
            let wanted = if nth < needed.contended { at_least } else { 1 };
            if self.begun[nth] < wanted {
                let (begun, name) = (self.begun[nth], &lock.name);
                missing.push(format!("{begun} sections of {name}, of at least {wanted}"));
            }
        }
        if self.sums.compared == 0 {
            missing.push("no section was compared with the servers".to_owned());
        }
        if !needed.is_long {
            return missing;
        }
        let kinds = needed.missing.iter();
        missing.extend(kinds.map(|kind| format!("nothing of the kind {kind} befell the servers")));
        if self.sums.failovers == 0 {
            missing.push("no server has taken over".to_owned());
        }
        if needed.redirections == Some(0) {
            missing.push("no client was sent on to another server".to_owned());
        }
        missing
    }

    /// Something was late by so much: the machine stood still that long.
    pub(super) fn credited(&mut self, late: Duration) {
        self.sums.credit = self.sums.credit.max(late);
    }

    /// A loss that only the clock reports, at its deadline.
    pub(super) fn by_deadline(&mut self, deadline: Instant, at: Instant) -> Result<(), String> {
        let late = at.saturating_duration_since(deadline);
        if late > WOKEN_WITHIN + self.stood_still(deadline, at) {
            let deadline = self.clock(deadline);
            return Err(format!(
                "reported {late:?} behind its deadline at {deadline}"
            ));
        }
        self.credited(late.saturating_sub(WOKEN_WITHIN));
        Ok(())
    }
}

/// `docs/guarantees.md`: a waiter that is not woken immediately when its slot moves is woken by then, and its round trips.
const WOKEN_BY_THE_MAP: Duration = Duration::from_secs(6);
