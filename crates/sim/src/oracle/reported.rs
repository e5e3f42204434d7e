//! What the actors of a program tell: what they do, and what they believe.

use std::time::Duration;

use redisson_lock::{HoldHandle, HoldState, LossReason, test_util};
use tokio::time::Instant;

use super::{Call, Oracle, Seen};

impl Oracle {
    /// A holder died: its field stays until its lease is over.
    pub fn left_behind(&self, key: &str, field: &str) {
        self.state
            .lock()
            .lingering
            .insert((key.to_owned(), field.to_owned()));
    }

    /// Java has renewed the keys of this reader too, so they outlast a release that gives up.
    pub fn renewed_by_java(&self, key: &str, field: &str) {
        let mut state = self.state.lock();
        let of = (key.to_owned(), field.to_owned());
        state.prolonged.entry(of).or_insert_with(Instant::now);
    }

    /// Closing this client reported releases that nobody had confirmed: the leases end them.
    pub fn closed_unconfirmed(&self, client: usize) {
        self.state.lock().unconfirmed.push(client);
    }

    pub fn closing(&self, client: usize) {
        let mut state = self.state.lock();
        state.closed.push(client);
        // What it holds now it may leave to the lease.
        let held = state.holds.values().filter(|seen| seen.client == client);
        let held: Vec<_> = held
            .map(|seen| (seen.key.clone(), seen.field.to_string()))
            .collect();
        state.lingering.extend(held);
    }

    /// A lock was taken away from its holder.
    pub fn robbed(&self, key: &str, field: &str) {
        let mut state = self.state.lock();
        state.java.remove(&(key.to_owned(), field.to_owned()));
        state.rob(key, field);
    }

    /// How often the Java peer holds a lock under this field.
    pub fn java(&self, key: &str, field: &str, count: i64) {
        let mut state = self.state.lock();
        let of = (key.to_owned(), field.to_owned());
        match count > 0 {
            true => state.java.insert(of, count),
            false => state.java.remove(&of),
        };
    }

    /// The servers have lost everything, tokens and queues too.
    pub fn wiped(&self) {
        let mut state = self.state.lock();
        state.tokens.clear();
        state.places.wiped();
        state.parts.wiped();
    }

    pub fn java_holds(&self, key: &str, field: &str) -> Option<i64> {
        let of = (key.to_owned(), field.to_owned());
        self.state.lock().java.get(&of).copied()
    }

    pub fn forcing(&self, client: usize, more: bool) {
        let mut state = self.state.lock();
        let forcing = state.forcing.entry(client).or_default();
        *forcing = if more { *forcing + 1 } else { *forcing - 1 };
    }

    pub fn call_begins(
        &self,
        client: usize,
        what: String,
        waits_for: Vec<String>,
        limit: Option<Duration>,
    ) -> u64 {
        let mut state = self.state.lock();
        state.serials += 1;
        let (serial, stood_still) = (state.serials, state.stood_still);
        state.say(self.start, || format!("client {client} {what}"));
        let began = Instant::now();
        state.calls.insert(
            serial,
            Call {
                client,
                what,
                waits_for,
                gathers: None,
                queues: None,
                wants: None,
                too_short: false,
                asked: 0,
                began,
                stood_still,
                limit,
            },
        );
        serial
    }

    pub fn call_ends(&self, call: u64, how: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        if let Some(call) = state.calls.remove(&call) {
            state.say(self.start, || {
                format!("client {} {}: {}", call.client, call.what, how())
            });
        }
    }

    /// A caller was told by its unlock that it had lost the lock.
    pub fn told_lost(&self, hold: u64, reason: LossReason) {
        let mut state = self.state.lock();
        let Some(seen) = state.holds.get(&hold) else {
            return;
        };
        let (key, field, began, until) = (
            seen.key.clone(),
            seen.field.clone(),
            seen.began,
            seen.valid_until,
        );
        // A release that is sent when the deadline has passed cannot tell an earlier copy of its
        // own from a loss.
        let unsure =
            until <= Instant::now() && matches!(reason, LossReason::Gone | LossReason::Taken);
        if !unsure {
            state.told_lost(self.start, &key, &field, reason, began, Some(until));
        }
    }

    /// A caller has a hold from now on.
    pub fn taken(&self, client: usize, key: &str, held: HoldHandle, began: Instant) -> u64 {
        let field = test_util::field(&held);
        let valid_until = Instant::now();
        let ends = test_util::snapshot(&held).map(|hold| hold.ends.unwrap_or(hold.deadline));
        // The next step of the lock may have ended it already.
        let was_over = matches!(
            held.state(),
            HoldState::Lost(LossReason::LeaseOver | LossReason::NotRenewed)
        );
        let mut state = self.state.lock();
        if was_over || ends.is_some_and(|ends| ends <= valid_until) {
            state.violated(
                self.start,
                format!("{field} was given {key} when its lease was over"),
            );
        }
        state.counts.taken += 1;
        state.serials += 1;
        let serial = state.serials;
        let seen = Seen {
            client,
            key: key.to_owned(),
            field,
            held,
            began,
            taken_at: valid_until,
            valid_until,
            closing: false,
            // It may have been given long before its caller is polled.
            fine_at: began,
            lost_at: None,
        };
        state.holds.insert(serial, seen);
        serial
    }

    /// The caller gives the hold back, and believes nothing from here on.
    pub fn begins_to_release(&self, hold: u64) {
        if let Some(seen) = self.state.lock().holds.get_mut(&hold) {
            seen.closing = true;
            if let Some(hold) = test_util::snapshot(&seen.held) {
                seen.valid_until = hold.valid_until();
            }
        }
    }

    pub fn has_ended(&self, hold: u64) -> bool {
        let state = self.state.lock();
        state
            .holds
            .get(&hold)
            .is_none_or(|seen| test_util::has_ended(&seen.held))
    }

    /// Closing a client reported this hold, which is left to its lease: that of a call perhaps which has several locks to take.
    pub fn abandoned(&self, key: String, field: &str) {
        let of = (key, field.to_owned());
        self.state.lock().lingering.insert(of);
    }

    pub fn gone(&self, hold: u64) {
        let seen = {
            let mut state = self.state.lock();
            let seen = state.holds.remove(&hold);
            if let Some(seen) = &seen {
                let of = (seen.key.clone(), seen.field.to_string());
                state.released_at.insert(of, Instant::now());
            }
            seen
        };
        // Dropped outside of the mutex: it is a reference to the client.
        drop(seen);
    }
}
