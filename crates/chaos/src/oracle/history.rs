//! What happened lately, to be read when something is wrong.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Instant;

use super::values::Takeover;

type Line = (Instant, String);

pub(super) struct History {
    start: Instant,
    locks: Vec<VecDeque<Line>>,
    faults: VecDeque<Line>,
}

impl History {
    pub(super) fn new(locks: usize, start: Instant) -> Self {
        Self {
            start,
            locks: vec![VecDeque::new(); locks],
            faults: VecDeque::new(),
        }
    }

    pub(super) fn note(&mut self, lock: usize, now: Instant, line: String) {
        keep(&mut self.locks[lock], (now, line));
    }

    pub(super) fn fault(&mut self, now: Instant, line: String) {
        keep(&mut self.faults, (now, line));
    }

    /// The latest faults, and what happened to a lock around that time.
    pub(super) fn shown(
        &self,
        lock: Option<usize>,
        since: Instant,
        takeovers: &[Takeover],
    ) -> String {
        let faults = self.faults.iter().rev().take(FAULTS_SHOWN);
        let mut lines: Vec<Line> = faults
            .map(|(at, line)| (*at, format!("FAULT {line}")))
            .collect();
        if let Some(lock) = lock {
            let history = &self.locks[lock];
            let first = history.partition_point(|(at, _)| *at < since);
            let shown = history.iter().skip(first.saturating_sub(LINES_BEFORE));
            lines.extend(shown.take(LINES_SHOWN).cloned());
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

fn keep(lines: &mut VecDeque<Line>, line: Line) {
    if lines.len() == KEPT {
        lines.pop_front();
    }
    lines.push_back(line);
}

/// Lines that are kept of each lock.
const KEPT: usize = 2_000;

/// Of those, how many are shown, and how many of them are from before.
const LINES_SHOWN: usize = 100;
const LINES_BEFORE: usize = 40;

const FAULTS_SHOWN: usize = 24;
