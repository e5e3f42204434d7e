//! What happened lately, to be read when something is wrong.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Instant;

use super::values::Takeover;

pub(super) struct History {
    start: Instant,
    /// Each with its time and its lock; faults are those of no lock.
    lines: VecDeque<(Instant, Option<usize>, String)>,
}

impl History {
    pub(super) fn new(start: Instant) -> Self {
        Self {
            start,
            lines: VecDeque::new(),
        }
    }

    pub(super) fn note(&mut self, lock: Option<usize>, now: Instant, line: String) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back((now, lock, line));
    }

    /// The latest faults, and what happened to a lock around that time.
    pub(super) fn shown(
        &self,
        lock: Option<usize>,
        since: Instant,
        takeovers: &[Takeover],
    ) -> String {
        let of = |wanted| self.lines.iter().filter(move |(_, of, _)| *of == wanted);
        let faults = of(None).rev().take(FAULTS_SHOWN);
        let mut lines: Vec<_> = faults
            .map(|(at, _, line)| (*at, format!("FAULT {line}")))
            .collect();
        if lock.is_some() {
            let before = of(lock).filter(|(at, ..)| *at < since).count();
            let shown = of(lock).skip(before.saturating_sub(LINES_BEFORE));
            let shown = shown.map(|(at, _, line)| (*at, line.clone()));
            lines.extend(shown.take(LINES_SHOWN));
        }
        for takeover in takeovers.iter().rev().take(FAULTS_SHOWN / 8) {
            let loses = if takeover.may_lose { "may" } else { "must not" };
            let from = self.clock(takeover.from);
            let line = format!("TAKEOVER {loses} lose holds; what led to it began at {from}");
            lines.push((takeover.at, line));
        }
        lines.sort_by_key(|(at, _)| *at);
        let mut text = String::new();
        for (at, line) in &lines {
            let _ = writeln!(text, "{:>12}  {line}", self.clock(*at));
        }
        text
    }

    pub(super) fn clock(&self, at: Instant) -> String {
        let since = at.saturating_duration_since(self.start);
        format!("{:.3} s", since.as_secs_f64())
    }
}

/// Lines that are kept: those of a few minutes.
const KEPT: usize = 200_000;

/// Of those of a lock, how many are shown, and how many of them are from before.
const LINES_SHOWN: usize = 100;
const LINES_BEFORE: usize = 40;

const FAULTS_SHOWN: usize = 24;
