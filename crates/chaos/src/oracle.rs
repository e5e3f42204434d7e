//! Who was inside which lock and when, and whether that was allowed.
//!
//! A section begins when its caller has the guard, and ends before the caller releases it, or when the caller
//! is informed of the loss: both err on the side of the client, so that an overlap is one. Time comes in from
//! outside.

mod history;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redisson_lock::LossReason;

use history::History;
pub use values::{Ending, Judged, Section, Sums, Takeover, Terms};

pub struct Oracle {
    terms: Terms,
    start: Instant,
    locks: Vec<Judged>,
    next: u64,
    open: BTreeMap<u64, Section>,
    /// Ended sections, kept for overlaps that are not judged yet.
    ended: BTreeMap<u64, Section>,
    overlaps: Vec<(u64, u64)>,
    losses: Vec<(Section, Instant, LossReason)>,
    takeovers: Vec<Takeover>,
    /// From a fault until everything is whole again.
    outages: Vec<(Instant, Option<Instant>)>,
    /// When the machine had stood still, and for how long.
    stalls: Vec<(Instant, Duration)>,
    history: History,
    pub sums: Sums,
    violations: Vec<String>,
}

impl Oracle {
    pub fn new(terms: Terms, locks: Vec<Judged>, start: Instant) -> Self {
        Self {
            terms,
            start,
            history: History::new(locks.len(), start),
            locks,
            next: 0,
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
            overlaps: Vec::new(),
            losses: Vec::new(),
            takeovers: Vec::new(),
            outages: Vec::new(),
            stalls: Vec::new(),
            sums: Sums::default(),
            violations: Vec::new(),
        }
    }

    pub fn begins(
        &mut self,
        lock: usize,
        owner: Arc<str>,
        leased: bool,
        valid_until: Instant,
        now: Instant,
    ) -> u64 {
        self.next += 1;
        let id = self.next;
        let with = if leased { ", with a lease" } else { "" };
        self.note(lock, now, format!("{owner} is inside (section {id}{with})"));
        let section = Section {
            id,
            lock,
            owner,
            begin: now,
            leased,
            valid_until,
            end: None,
        };
        let beside = self.open.values().filter(|other| other.lock == lock);
        let beside: Vec<u64> = beside.map(|other| other.id).collect();
        for other in beside {
            self.note(
                lock,
                now,
                format!("section {other} has not ended beside section {id}"),
            );
            self.overlaps.push((other, id));
        }
        self.open.insert(id, section);
        id
    }

    /// The hold is guaranteed until then.
    pub fn is_valid_until(&mut self, id: u64, valid_until: Instant) {
        if let Some(section) = self.open.get_mut(&id) {
            section.valid_until = valid_until;
        }
    }

    pub fn ends(&mut self, id: u64, ending: Ending, now: Instant) {
        let Some(mut section) = self.open.remove(&id) else {
            return;
        };
        self.sums.sections += 1;
        let how = match ending {
            Ending::Released => "releases".to_owned(),
            Ending::Lost(reason) => format!("is informed of its loss ({reason:?})"),
        };
        let line = format!("{} {how} (section {id})", section.owner);
        self.note(section.lock, now, line);
        section.end = Some((now, ending));
        if let Ending::Lost(reason) = ending {
            self.losses.push((section.clone(), now, reason));
        }
        self.keep(section);
    }

    /// The release of a section that has ended says that the hold was lost before.
    pub fn was_lost(&mut self, id: u64, lock: usize, reason: LossReason, now: Instant) {
        self.note(
            lock,
            now,
            format!("the release of section {id} says: lost ({reason:?})"),
        );
        // A lease that was over before the release arrived is no loss.
        let is_over = |section: &&Section| section.leased && section.valid_until <= now;
        if let Some(section) = self.ended.get(&id).filter(|section| !is_over(section)) {
            let at = section.end.map_or(now, |(at, _)| at);
            self.losses.push((section.clone(), at, reason));
        }
    }

    /// Ended sections are forgotten when no release of theirs can be under way any more.
    fn keep(&mut self, section: Section) {
        let ended = section.end.map_or(section.begin, |(at, _)| at);
        let old = ended.checked_sub(KEPT).unwrap_or(self.start);
        let overlaps = &self.overlaps;
        let needed = |id: &u64| overlaps.iter().any(|(a, b)| a == id || b == id);
        while let Some((id, first)) = self.ended.first_key_value()
            && !needed(id)
            && first.end.is_some_and(|(at, _)| at < old)
        {
            self.ended.pop_first();
        }
        self.ended.insert(section.id, section);
    }

    pub fn took_over(&mut self, takeover: Takeover) {
        self.sums.failovers += 1;
        self.takeovers.push(takeover);
    }

    /// A fault begins, or everything is whole again.
    pub fn outage(&mut self, now: Instant, begins: bool) {
        match self.outages.last_mut() {
            Some((_, until @ None)) if !begins => *until = Some(now),
            Some((_, None)) => {}
            _ if begins => self.outages.push((now, None)),
            _ => {}
        }
    }

    pub fn stalled(&mut self, ended: Instant, stall: Duration) {
        self.stalls.push((ended, stall));
    }

    pub fn note(&mut self, lock: usize, now: Instant, line: String) {
        self.history.note(lock, now, line);
    }

    pub fn fault(&mut self, now: Instant, line: String) {
        self.history.fault(now, line);
    }

    /// Something that is not about overlaps.
    pub fn violated(&mut self, lock: Option<usize>, now: Instant, what: &str) {
        self.violated_since(lock, now, now, what);
    }

    fn violated_since(&mut self, lock: Option<usize>, since: Instant, now: Instant, what: &str) {
        let mut text = self.history.shown(lock, since, &self.takeovers);
        let name = lock.map_or("", |lock| &self.locks[lock].name);
        let _ = write!(text, "{:>12}  VIOLATION {name}: {what}", self.clock(now));
        self.violations.push(text);
    }

    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Open sections that began before.
    pub fn open_since(&self, before: Instant) -> Vec<Section> {
        let old = self.open.values().filter(|section| section.begin < before);
        old.cloned().collect()
    }

    pub fn is_open(&self, id: u64) -> bool {
        self.open.contains_key(&id)
    }

    pub fn locks(&self) -> &[Judged] {
        &self.locks
    }

    /// Judges what has ended, and what has not. Every takeover so far is known.
    pub fn judge(&mut self, now: Instant) {
        for (section, at, reason) in std::mem::take(&mut self.losses) {
            if let Err(problem) = self.loss(&section, at, reason) {
                let what = format!(
                    "section {} of {}, from {} to {}: {problem}",
                    section.id,
                    section.owner,
                    self.clock(section.begin),
                    self.clock(at)
                );
                self.violated_since(Some(section.lock), section.begin, now, &what);
            }
        }
        for (first, second) in std::mem::take(&mut self.overlaps) {
            let known = |id: u64| self.open.get(&id).or_else(|| self.ended.get(&id));
            let (Some(first), Some(second)) = (known(first).cloned(), known(second).cloned())
            else {
                unreachable!("sections of an overlap are kept");
            };
            let until = first.until(now).min(second.until(now));
            let from = first.begin.max(second.begin);
            if until <= from {
                continue;
            }
            match self.is_allowed(first.lock, from, until) {
                false => {
                    self.sums.overlaps_not_allowed += 1;
                    let what = format!(
                        "sections {} and {} were inside at once for {:?}, from {} to {}",
                        first.id,
                        second.id,
                        until - from,
                        self.clock(from),
                        self.clock(until)
                    );
                    self.violated_since(Some(first.lock), from, now, &what);
                }
                // One that goes on is judged again.
                true if first.end.is_none() && second.end.is_none() => {
                    self.overlaps.push((first.id, second.id));
                }
                true => self.sums.overlaps_allowed += 1,
            }
        }
    }

    /// Two are allowed inside only from what led to a takeover until its losses are reported.
    fn is_allowed(&self, lock: usize, from: Instant, until: Instant) -> bool {
        let explains =
            |takeover: &Takeover| from >= takeover.from && until <= self.limit(takeover.at, until);
        !self.locks[lock].synced && self.takeovers_of(lock).any(explains)
    }

    fn takeovers_of(&self, lock: usize) -> impl Iterator<Item = &Takeover> {
        let slot = self.locks[lock].slot;
        let has = move |takeover: &&Takeover| {
            takeover.may_lose && takeover.slots.iter().any(|slots| slots.contains(&slot))
        };
        self.takeovers.iter().filter(has)
    }

    /// By then a loss is reported.
    pub fn limit(&self, switched: Instant, now: Instant) -> Instant {
        switched + self.terms.reported_within + self.stood_still(switched, now)
    }

    /// For how long the machine stood still in between.
    fn stood_still(&self, from: Instant, until: Instant) -> Duration {
        let stalls = self.stalls.iter().rev();
        stalls
            .take_while(|(ended, _)| *ended >= from)
            .filter(|(ended, stall)| *ended - *stall <= until)
            .map(|(_, stall)| *stall)
            .sum()
    }

    fn loss(&mut self, section: &Section, at: Instant, reason: LossReason) -> Result<(), String> {
        match reason {
            LossReason::LeaseOver if section.leased => self.by_deadline(section, at),
            LossReason::NotRenewed => {
                let before = at
                    .checked_sub(self.terms.watchdog_timeout)
                    .unwrap_or(self.start);
                if self.out(before.max(self.start), at) < self.terms.watchdog_timeout / 3 {
                    return Err(format!(
                        "lost with NotRenewed at {}, and its server was away for {:?} only of the watchdog timeout before",
                        self.clock(at),
                        self.out(before, at)
                    ));
                }
                self.sums.not_renewed += 1;
                self.by_deadline(section, at)
            }
            LossReason::Gone | LossReason::Taken | LossReason::Changed => {
                if self.locks[section.lock].synced {
                    return Err(format!("lost ({reason:?}), though all replicas had it"));
                }
                let explained = self.takeovers_of(section.lock);
                let Some(takeover) = explained.filter(|one| one.from <= at).last() else {
                    return Err(format!("lost ({reason:?}), and no takeover explains it"));
                };
                let (switched, limit) = (takeover.at, self.limit(takeover.at, at));
                if at > limit {
                    return Err(format!(
                        "lost ({reason:?}), reported {:?} behind the switch at {}",
                        at - switched,
                        self.clock(switched)
                    ));
                }
                self.sums.lost += 1;
                self.sums.longest = self
                    .sums
                    .longest
                    .max(at.saturating_duration_since(switched));
                Ok(())
            }
            other => Err(format!("lost ({other:?}), for which there is no reason")),
        }
    }

    /// A loss that only the clock tells is reported when it comes.
    fn by_deadline(&self, section: &Section, at: Instant) -> Result<(), String> {
        let late = at.saturating_duration_since(section.valid_until);
        if late > WOKEN_WITHIN + self.stood_still(section.valid_until, at) {
            let deadline = self.clock(section.valid_until);
            return Err(format!(
                "reported {late:?} behind its deadline at {deadline}"
            ));
        }
        Ok(())
    }

    /// For how long something was broken in between.
    fn out(&self, from: Instant, until: Instant) -> Duration {
        let inside = |(begin, end): &(Instant, Option<Instant>)| {
            let end = end.unwrap_or(until).min(until);
            end.saturating_duration_since((*begin).max(from))
        };
        self.outages.iter().map(inside).sum()
    }

    fn clock(&self, at: Instant) -> String {
        self.history.clock(at)
    }
}

/// For so long after its end a section is kept.
const KEPT: Duration = Duration::from_secs(30);

/// From a deadline until the task that waits for it has run.
const WOKEN_WITHIN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
