//! What is allowed when another server has taken over: for whom, and until when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson_lock_test::sim::{Executed, Keyspace, Promoted};
use tokio::time::Instant;

use super::{Oracle, State};

/// Locks whose server was taken over from, and the holds that this changed.
#[derive(Default)]
pub(super) struct Promotions {
    /// When it happened to a lock, and until when somebody may believe what the former server said.
    windows: BTreeMap<String, (Instant, Instant)>,
    /// Fields that the former server knew otherwise than the new one does.
    doubted: BTreeSet<(String, String)>,
    /// When a field was taken away, or was given or forced at the former server alone.
    taken_away: BTreeMap<(String, String), Instant>,
}

impl Promotions {
    /// A fault hinders those who may not have heard of a promotion yet. Whose time is over, gets no more
    /// of it.
    pub(super) fn disturbed(&mut self, over: Instant) {
        let now = Instant::now();
        for (_, until) in self.windows.values_mut() {
            if now <= *until {
                *until = over.max(*until);
            }
        }
    }

    /// Until when the owner of a field may believe what its server does not know.
    pub(super) fn doubted(&self, key: &str, field: &str) -> Option<(Instant, Instant)> {
        let of_field = (key.to_owned(), field.to_owned());
        let window = self.windows.get(key);
        window.copied().filter(|_| self.doubted.contains(&of_field))
    }

    /// The new server has given the lock to this field: nothing of before counts.
    pub(super) fn taken_anew(&mut self, key: &str, field: &str) {
        self.doubted.remove(&(key.to_owned(), field.to_owned()));
    }

    /// Whether a hold was lost because another server had taken over.
    pub(super) fn took(&self, key: &str, field: &str, began: Instant) -> bool {
        let at = self.taken_away.get(&(key.to_owned(), field.to_owned()));
        at.is_some_and(|&at| at >= began)
    }
}

impl Oracle {
    /// Another server has taken over these locks, with what it knew. The former one goes on answering
    /// for a while.
    pub fn promoted(&self, locks: Vec<Promoted>, stale: Duration) {
        let mut state = self.state.lock();
        let Some(terms) = state.terms.clone() else {
            return;
        };
        // Without an answer that says so, the map is asked for every five seconds.
        let found = match stale.is_zero() {
            true => Duration::from_secs(1),
            false => Duration::from_millis(5_500),
        };
        let now = Instant::now();
        let until = now + stale + found + 2 * terms.command_timeout + TOLD_AFTER_SWITCH;
        let until = until.max(state.calm_since);
        state.calm_since = until;
        state.counts.faults += 1;
        state.say(self.start, || {
            format!("FAULT another server takes over, the former one answers for {stale:?}")
        });
        for lock in locks {
            state.say(self.start, || {
                let Promoted {
                    key, before, after, ..
                } = &lock;
                format!("  {key} was held as {before:?}, and is now as {after:?}")
            });
            let windows = &mut state.promotions.windows;
            windows.insert(lock.key.clone(), (now, until));
            state.take_over(lock);
        }
    }
}

impl State {
    fn take_over(&mut self, lock: Promoted) {
        let Promoted {
            key, before, after, ..
        } = lock;
        if before == after && lock.expiry_before == lock.expiry_after {
            return;
        }
        let fields = before.iter().chain(&after);
        let fields = fields.map(|(field, _)| (key.clone(), field.clone()));
        self.promotions.doubted.extend(fields);
        if before == after {
            if let Some((field, _)) = before.filter(|_| lock.expiry_after > lock.expiry_before) {
                // The lease of an earlier hold, whose release was lost.
                self.lingering.insert((key, field));
            }
            return;
        }
        if let Some((field, _)) = &before {
            self.java.remove(&(key.clone(), field.clone()));
            if after.as_ref().is_none_or(|(other, _)| other != field) {
                self.rob(&key, field);
                let taken_away = &mut self.promotions.taken_away;
                taken_away.insert((key.clone(), field.clone()), Instant::now());
            }
        }
        if let Some((field, _)) = after {
            // It is there again, and may have been given back since.
            self.robbed.remove(&(key.clone(), field.clone()));
            self.lingering.insert((key, field));
        }
    }

    /// A server that had been taken over from has executed a script: nothing of it counts, and the owner it
    /// concerns cannot know.
    pub(super) fn note_stale(&mut self, executed: &Executed, keyspace: &Keyspace) {
        let holders = executed.before.iter().zip(&executed.after);
        for (key, (before, after)) in executed.keys.iter().zip(holders) {
            if let Some((field, _)) = before
                && before != after
            {
                // What was given back there is held until its lease is over where it counts.
                let of_field = (key.clone(), field.clone());
                self.lingering.insert(of_field.clone());
                if *executed.script == *"force_unlock" {
                    // The former server has it no more, and says so to its owner.
                    self.promotions.taken_away.insert(of_field, Instant::now());
                }
            }
            let Some((field, _)) = after.as_ref().filter(|(to, _)| executed.args.contains(to))
            else {
                continue;
            };
            // It was taken or renewed; taken also where a release was refused, so that its count stays as it was.
            let of_field = (key.clone(), field.clone());
            self.promotions.doubted.insert(of_field.clone());
            let counts = keyspace
                .holder(key)
                .is_some_and(|(holder, _)| holder == field);
            if !counts {
                self.promotions.taken_away.insert(of_field, Instant::now());
            }
        }
    }

    /// A field is gone, or was written again: what was left of an earlier hold of it is no more.
    pub(super) fn settle(&mut self, key: &str, field: &str) {
        self.lingering.remove(&(key.to_owned(), field.to_owned()));
    }
}

/// How soon after the map has changed holds are told that they were lost.
const TOLD_AFTER_SWITCH: Duration = Duration::from_secs(2);
