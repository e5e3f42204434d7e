//! Who was inside which lock and when, and whether that was allowed.
//!
//! A section begins when its caller has the guard, and ends before the caller releases it, or when the caller
//! is informed of the loss: both err on the side of the client, so that an overlap is one. Time comes in from
//! outside.
//!
//! It shares no rule with the oracle of the simulator. That one compares beliefs with the keys of the server after each
//! script, and knows which holds a promotion took. Real servers show neither: here callers report, servers are polled, and
//! a takeover, an outage or a stall is a span of time.

mod calls;
mod history;
mod outages;
mod takeovers;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redisson_lock::LossReason;

use calls::{Call, Failed};
use history::History;
use takeovers::{Allowed, Loss};

pub use calls::Needed;
pub use values::{
    Broken, Ending, Judged, Outage, Reason, Release, Section, Slots, Sums, Takeover, Terms,
    all_slots,
};

pub struct Oracle {
    terms: Terms,
    start: Instant,
    locks: Vec<Judged>,
    next: u64,
    /// All of them: an answer to a release may come late.
    sections: BTreeMap<u64, Section>,
    /// Which have not ended.
    open: BTreeSet<u64>,
    overlaps: Vec<(u64, u64)>,
    losses: Vec<Loss>,
    takeovers: Vec<Takeover>,
    /// From a fault until everything is whole again.
    faults: Vec<(Instant, Option<Instant>)>,
    outages: Vec<Outage>,
    pending: BTreeMap<u64, Call>,
    failed: Vec<Failed>,
    /// Of each lock, how many sections have begun, and when the latest one ended.
    begun: Vec<u64>,
    left_at: Vec<Option<Instant>>,
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
            history: History::new(start),
            begun: vec![0; locks.len()],
            left_at: vec![None; locks.len()],
            locks,
            next: 0,
            sections: BTreeMap::new(),
            open: BTreeSet::new(),
            overlaps: Vec::new(),
            losses: Vec::new(),
            takeovers: Vec::new(),
            faults: Vec::new(),
            outages: Vec::new(),
            pending: BTreeMap::new(),
            failed: Vec::new(),
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
        self.begun[lock] += 1;
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
            release: None,
        };
        let beside = self.open().filter(|other| other.lock == lock);
        let beside: Vec<u64> = beside.map(|other| other.id).collect();
        for other in beside {
            self.note(
                lock,
                now,
                format!("section {other} has not ended beside section {id}"),
            );
            self.overlaps.push((other, id));
        }
        self.sections.insert(id, section);
        self.open.insert(id);
        id
    }

    /// The hold is guaranteed until then.
    pub fn is_valid_until(&mut self, id: u64, valid_until: Instant) {
        if self.is_open(id) {
            self.section(id).valid_until = valid_until;
        }
    }

    pub fn ends(&mut self, id: u64, ending: Ending, now: Instant) {
        if !self.open.remove(&id) {
            return;
        }
        self.sums.sections += 1;
        let how = match ending {
            Ending::Released => "releases".to_owned(),
            Ending::Lost(reason) => format!("is informed of its loss ({reason:?})"),
        };
        let section = self.section(id);
        section.end = Some((now, ending));
        let (lock, line) = (
            section.lock,
            format!("{} {how} (section {id})", section.owner),
        );
        self.note(lock, now, line);
        self.left_at[lock] = Some(now);
        if let Ending::Lost(reason) = ending {
            self.is_lost(id, reason, now);
        }
    }

    /// What became of the release of a section that has ended.
    pub fn released(&mut self, id: u64, release: Release, now: Instant) {
        self.section(id).release = Some((now, release));
    }

    /// The release of a section that has ended says that the hold was lost before.
    pub fn was_lost(&mut self, id: u64, lock: usize, reason: LossReason, now: Instant) {
        self.note(
            lock,
            now,
            format!("the release of section {id} says: lost ({reason:?})"),
        );
        self.released(id, Release::Lost, now);
        // A lease that was over before the release arrived is no loss.
        let section = self.section(id);
        if !(section.leased && section.valid_until <= now) {
            self.is_lost(id, reason, now);
        }
    }

    fn is_lost(&mut self, section: u64, reason: LossReason, informed: Instant) {
        self.losses.push(Loss {
            section,
            informed,
            reason,
        });
    }

    fn section(&mut self, id: u64) -> &mut Section {
        self.sections.get_mut(&id).expect("none is forgotten")
    }

    fn open(&self) -> impl Iterator<Item = &Section> {
        self.open.iter().map(|id| &self.sections[id])
    }

    pub fn note(&mut self, lock: usize, now: Instant, line: String) {
        self.history.note(Some(lock), now, line);
    }

    pub fn fault(&mut self, now: Instant, line: String) {
        self.history.note(None, now, line);
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
        let old = self.open().filter(|section| section.begin < before);
        old.cloned().collect()
    }

    pub fn is_open(&self, id: u64) -> bool {
        self.open.contains(&id)
    }

    pub fn locks(&self) -> &[Judged] {
        &self.locks
    }

    /// Judges what has ended, and what has not. Every takeover so far is known.
    pub fn judge(&mut self, now: Instant) {
        for loss in std::mem::take(&mut self.losses) {
            let section = self.sections[&loss.section].clone();
            if let Err(problem) = self.loss(&section, &loss) {
                let what = format!(
                    "section {} of {}, from {} to {}: {problem}",
                    section.id,
                    section.owner,
                    self.clock(section.begin),
                    self.clock(section.left())
                );
                self.violated_since(Some(section.lock), section.begin, now, &what);
            }
        }
        for (first, second) in std::mem::take(&mut self.overlaps) {
            let [first, second] = [first, second].map(|id| self.sections[&id].clone());
            let until = first.until(now).min(second.until(now));
            let from = first.begin.max(second.begin);
            if until <= from {
                continue;
            }
            let span = format!(
                "sections {} and {} were inside together for {:?}, from {} to {}",
                first.id,
                second.id,
                until - from,
                self.clock(from),
                self.clock(until)
            );
            let goes_on = first.end.is_none() && second.end.is_none();
            match self.allowed(&first, &second, until) {
                Err(why) => {
                    self.sums.overlaps_not_allowed += 1;
                    let what = format!("{span}: {why}");
                    self.violated_since(Some(first.lock), from, now, &what);
                }
                Ok(Allowed::NotYet) => self.overlaps.push((first.id, second.id)),
                Ok(_) if goes_on => self.overlaps.push((first.id, second.id)),
                Ok(how) => {
                    self.sums.overlaps_allowed += 1;
                    self.sums.with_a_loss += u64::from(how == Allowed::Loss);
                    self.sums.released_before += u64::from(how == Allowed::ReleasedBefore);
                }
            }
        }
        self.judge_calls(now);
    }

    fn clock(&self, at: Instant) -> String {
        self.history.clock(at)
    }
}

/// From a deadline until the task that waits for it has run.
const WOKEN_WITHIN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
