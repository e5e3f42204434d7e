//! Compares what everybody believes with what the server has, after everything that happens.
//!
//! The invariants are those of the protocol: who believes that it holds is the holder; its deadline
//! lies before the server's; nobody touches another's hold; nobody is told of a loss that was none,
//! or not told of one; nobody sleeps while the lock is free; nothing of a lost connection is
//! executed after its successor was used.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Counts;
use crate::error::LossReason;
use crate::hold_handle::HoldHandle;

/// What holds for a whole program.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) watchdog_timeout: Duration,
    pub(super) command_timeout: Duration,
    /// Client ids, by number.
    pub(super) clients: Vec<String>,
    /// Commands of a lost connection are over before its successor is used.
    pub(super) fenced: Vec<bool>,
    /// All scripts of a client go over one connection.
    pub(super) one_lane: Vec<bool>,
    /// No fault happens: no hold is ever lost but by its own lease.
    pub(super) healthy: bool,
    /// Answers come within the command timeout unless a fault is under way.
    pub(super) answers_in_time: bool,
    /// How long a lock may be free while somebody waits for it, when nothing is wrong.
    pub(super) wake_up: Duration,
}

pub(super) struct Watch {
    state: Mutex<State>,
    start: Instant,
}

struct State {
    terms: Option<Terms>,
    holds: BTreeMap<u64, Seen>,
    calls: BTreeMap<u64, Call>,
    serials: u64,
    /// When a field was taken away by anything but its owner's own release, until it is taken anew.
    robbed: BTreeMap<(String, String), Instant>,
    /// The same, for good.
    ever_robbed: BTreeMap<(String, String), Instant>,
    /// Since when a lock is free.
    free_since: BTreeMap<String, Instant>,
    /// When a client's own callers last had reason to wait for one of them who had not been told of
    /// its loss.
    behind_own: BTreeMap<(usize, String), Instant>,
    /// When the last fault was over.
    calm_since: Instant,
    /// How long everybody stood still, in sum.
    stood_still: Duration,
    /// The newest connection of each client that a script was executed on.
    newest: BTreeMap<usize, u64>,
    /// `force_unlock` calls that may still have a command under way.
    forcing: BTreeMap<usize, u32>,
    java: BTreeMap<String, (String, i64)>,
    /// Fields whose hold ended without a release: they stay until their lease is over.
    lingering: BTreeSet<(String, String)>,
    /// When everybody was last polled again after standing still.
    moved_at: Instant,
    closed: Vec<usize>,
    unconfirmed: Vec<usize>,
    violation: Option<String>,
    history: Vec<String>,
    recording: bool,
    counts: Counts,
    executed: BTreeMap<&'static str, Vec<String>>,
}

/// A hold in a caller's hands.
struct Seen {
    client: usize,
    key: String,
    field: Arc<str>,
    held: HoldHandle,
    began: Instant,
    valid_until: Instant,
    /// It is being given back, so it believes nothing any more.
    closing: bool,
}

/// A call that has not returned.
struct Call {
    client: usize,
    what: String,
    /// The lock it waits for, if it does.
    waits_for: Option<String>,
    began: Instant,
    stood_still: Duration,
    limit: Option<Duration>,
}

impl Watch {
    pub(super) fn new(start: Instant) -> Self {
        let state = State {
            terms: None,
            holds: BTreeMap::new(),
            calls: BTreeMap::new(),
            serials: 0,
            robbed: BTreeMap::new(),
            ever_robbed: BTreeMap::new(),
            free_since: BTreeMap::new(),
            behind_own: BTreeMap::new(),
            calm_since: start,
            stood_still: Duration::ZERO,
            newest: BTreeMap::new(),
            forcing: BTreeMap::new(),
            java: BTreeMap::new(),
            lingering: BTreeSet::new(),
            moved_at: start,
            closed: Vec::new(),
            unconfirmed: Vec::new(),
            violation: None,
            history: Vec::new(),
            recording: false,
            counts: Counts::default(),
            executed: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
            start,
        }
    }

    pub(super) fn begin(&self, terms: Terms, recording: bool) {
        let mut state = self.state.lock();
        state.terms = Some(terms);
        state.recording = recording;
    }

    /// Nobody holds, and nobody is inside a call.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.holds.is_empty() && state.calls.is_empty()
    }

    pub(super) fn violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    pub(super) fn history(&self) -> Vec<String> {
        self.state.lock().history.clone()
    }

    pub(super) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// How often a script was executed.
    pub(super) fn times_executed(&self, script: &str) -> usize {
        self.keys_in_order(script).len()
    }

    /// On which keys a script was executed.
    pub(super) fn keys_in_order(&self, script: &str) -> Vec<String> {
        self.state
            .lock()
            .executed
            .get(script)
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.state.lock().counts);
    }

    /// The first violation counts; what follows may be its consequence.
    pub(super) fn violated(&self, text: impl Into<String>) {
        self.state.lock().violated(self.start, text.into());
    }

    pub(super) fn say(&self, text: impl FnOnce() -> String) {
        self.state.lock().say(self.start, text);
    }

    /// A fault begins, and is over at this moment.
    pub(super) fn fault(&self, text: impl FnOnce() -> String, over: Instant) {
        let mut state = self.state.lock();
        state.calm_since = state.calm_since.max(over);
        state.counts.faults += 1;
        state.say(self.start, text);
    }

    /// When the last fault was over, or will be.
    pub(super) fn calm_since(&self) -> Instant {
        self.state.lock().calm_since
    }

    /// Nobody is polled for so long from now on.
    pub(super) fn stood_still(&self, time: Duration) {
        let mut state = self.state.lock();
        state.stood_still += time;
        state.moved_at = Instant::now() + time;
    }

    /// A holder died: its field stays until its lease is over.
    pub(super) fn left_behind(&self, key: &str, field: &str) {
        self.state
            .lock()
            .lingering
            .insert((key.to_owned(), field.to_owned()));
    }

    /// Closing this client reported releases that nobody had confirmed: the leases end them.
    pub(super) fn closed_unconfirmed(&self, client: usize) {
        self.state.lock().unconfirmed.push(client);
    }

    /// Whether a hold of this field ended in a way that leaves the field to its lease.
    pub(super) fn lingers(&self, key: &str, field: &str) -> bool {
        let state = self.state.lock();
        let clients = state
            .terms
            .iter()
            .flat_map(|terms| &terms.clients)
            .enumerate();
        let of_unconfirmed = clients
            .filter(|(nth, _)| state.unconfirmed.contains(nth))
            .any(|(_, id)| crate::wire::is_field_of(id, field));
        of_unconfirmed
            || state
                .lingering
                .contains(&(key.to_owned(), field.to_owned()))
    }

    pub(super) fn closing(&self, client: usize) {
        let mut state = self.state.lock();
        state.closed.push(client);
        // What it holds now it may leave to the lease.
        let held = state.holds.values().filter(|seen| seen.client == client);
        let held: Vec<_> = held
            .map(|seen| (seen.key.clone(), seen.field.to_string()))
            .collect();
        state.lingering.extend(held);
    }

    /// A lock was taken away from whoever holds it.
    pub(super) fn robbed(&self, key: &str, field: &str) {
        let mut state = self.state.lock();
        state.java.remove(key);
        state.rob(key, field);
    }

    /// What the Java peer holds of a lock.
    pub(super) fn java(&self, key: &str, hold: Option<(&str, i64)>) {
        let mut state = self.state.lock();
        match hold {
            Some((field, count)) => state.java.insert(key.to_owned(), (field.to_owned(), count)),
            None => state.java.remove(key),
        };
    }

    pub(super) fn java_holds(&self, key: &str) -> Option<i64> {
        self.state.lock().java.get(key).map(|(_, count)| *count)
    }

    pub(super) fn forcing(&self, client: usize, more: bool) {
        let mut state = self.state.lock();
        let forcing = state.forcing.entry(client).or_default();
        *forcing = if more { *forcing + 1 } else { *forcing - 1 };
    }

    /// Open holds by key and field, lost ones excluded.
    pub(super) fn open_holds(&self) -> BTreeMap<(String, String), i64> {
        let state = self.state.lock();
        let mut holds = BTreeMap::new();
        for seen in state
            .holds
            .values()
            .filter(|seen| seen.held.status.ending().is_none())
        {
            *holds
                .entry((seen.key.clone(), seen.field.to_string()))
                .or_default() += 1;
        }
        for (key, (field, count)) in &state.java {
            holds.insert((key.clone(), field.clone()), *count);
        }
        holds
    }

    pub(super) fn pending_calls(&self) -> Vec<String> {
        let state = self.state.lock();
        state
            .calls
            .values()
            .map(|call| format!("client {} {}", call.client, call.what))
            .collect()
    }

    pub(super) fn call_begins(
        &self,
        client: usize,
        what: String,
        waits_for: Option<String>,
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
                began,
                stood_still,
                limit,
            },
        );
        serial
    }

    pub(super) fn call_ends(&self, call: u64, how: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        if let Some(call) = state.calls.remove(&call) {
            state.say(self.start, || {
                format!("client {} {}: {}", call.client, call.what, how())
            });
        }
    }

    /// A caller was told by its unlock that it had lost the lock.
    pub(super) fn told_lost(&self, hold: u64, reason: LossReason) {
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
    pub(super) fn taken(&self, client: usize, key: &str, held: HoldHandle, began: Instant) -> u64 {
        let owner = held.owner.thread_id();
        let field = held
            .entry
            .hold(owner, &held.status)
            .map_or_else(|| held.owner.field(), |(field, _)| field);
        let valid_until = Instant::now();
        let ends = held
            .entry
            .peek(owner, &held.status)
            .map(|view| view.ends.unwrap_or(view.deadline));
        let mut state = self.state.lock();
        if ends.is_some_and(|ends| ends <= valid_until) {
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
            valid_until,
            closing: false,
        };
        state.holds.insert(serial, seen);
        serial
    }

    /// The caller gives the hold back, and believes nothing from here on.
    pub(super) fn gives_back(&self, hold: u64) {
        if let Some(seen) = self.state.lock().holds.get_mut(&hold) {
            seen.closing = true;
            if let Some(view) = seen
                .held
                .entry
                .peek(seen.held.owner.thread_id(), &seen.held.status)
            {
                seen.valid_until = view
                    .ends
                    .map_or(view.deadline, |ends| ends.min(view.deadline));
            }
        }
    }

    pub(super) fn has_ended(&self, hold: u64) -> bool {
        let state = self.state.lock();
        state
            .holds
            .get(&hold)
            .is_none_or(|seen| seen.held.status.ending().is_some())
    }

    pub(super) fn gone(&self, hold: u64) {
        let seen = self.state.lock().holds.remove(&hold);
        // Dropped outside of the mutex: it is a reference to the client.
        drop(seen);
    }
}

impl State {
    fn violated(&mut self, start: Instant, text: String) {
        self.say(start, || format!("VIOLATION {text}"));
        self.violation.get_or_insert(text);
    }

    fn say(&mut self, start: Instant, text: impl FnOnce() -> String) {
        if self.recording && self.history.len() < HISTORY_MAX {
            self.history.push(format!(
                "{:>9.4} s  {}",
                start.elapsed().as_secs_f64(),
                text()
            ));
        }
    }

    fn rob(&mut self, key: &str, field: &str) {
        let now = Instant::now();
        self.robbed.insert((key.to_owned(), field.to_owned()), now);
        self.ever_robbed
            .insert((key.to_owned(), field.to_owned()), now);
    }

    fn told_lost(
        &mut self,
        start: Instant,
        key: &str,
        field: &str,
        reason: LossReason,
        began: Instant,
        valid_until: Option<Instant>,
    ) {
        self.counts.lost += 1;
        if matches!(reason, LossReason::MaxHold | LossReason::Closed) {
            self.lingering.insert((key.to_owned(), field.to_owned()));
        }
        let robbed = self
            .ever_robbed
            .get(&(key.to_owned(), field.to_owned()))
            .is_some_and(|&at| at >= began);
        let justified = match reason {
            LossReason::Gone | LossReason::Taken => robbed,
            LossReason::NotRenewed => {
                valid_until.is_none_or(|until| until <= Instant::now())
                    && !self.terms.as_ref().is_some_and(|terms| terms.healthy)
            }
            LossReason::LeaseOver | LossReason::MaxHold => {
                valid_until.is_none_or(|until| until <= Instant::now())
            }
            LossReason::Closed => !self.closed.is_empty(),
            _ => false,
        };
        if !justified {
            self.violated(
                start,
                format!("told a loss that was none: {field} on {key}, {reason}"),
            );
        }
    }
}

const HISTORY_MAX: usize = 5_000;
