//! The latest inputs of a lock: what a failed check prints, and what can be played again.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};

use super::LockCore;
use super::input::{Happens, Input};
use super::values::Time;

/// The latest inputs of a lock, the oldest first. No part of its state: two locks that differ in nothing else are equal, and
/// a copy has none.
#[derive(Default)]
pub(super) struct Record(VecDeque<(Time, Input)>);

/// A step is under way. If it panics, the inputs that have led to it are printed.
pub(super) struct Recording(Record);

impl Drop for Recording {
    fn drop(&mut self) {
        // Not after a step of a thread that panics for another reason: its record was taken back.
        if std::thread::panicking() && !self.0.0.is_empty() {
            eprintln!(
                "the latest inputs of the lock, the last of which has panicked:\n{}",
                self.0
            );
        }
    }
}

impl LockCore {
    /// The inputs of this lock, at most the latest 64, the oldest first.
    pub fn inputs(&self) -> impl Iterator<Item = &(Time, Input)> {
        self.record.0.iter()
    }

    /// The same as text, one a line.
    pub fn inputs_text(&self) -> String {
        self.record.to_string()
    }

    /// Notes an input; returns it, and the record for as long as its step is under way.
    pub(super) fn record<I: Happens>(&mut self, now: Time, input: I) -> (I, Recording) {
        let mut record = std::mem::take(&mut self.record);
        if record.0.len() == KEPT {
            record.0.pop_front();
        }
        record.0.push_back((now, input.clone().into()));
        (input, Recording(record))
    }

    pub(super) fn recorded(&mut self, mut recording: Recording) {
        self.record = std::mem::take(&mut recording.0);
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(at, input)| writeln!(f, "{:?} {input:?}", at.since_start()))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

impl Clone for Record {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Record {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Record {}

impl Hash for Record {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

const KEPT: usize = 64;

#[cfg(test)]
mod tests;
