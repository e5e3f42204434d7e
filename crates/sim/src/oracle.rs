//! Compares what everybody believes with what the server has, after everything that happens.
//!
//! The invariants are those of the protocol: who believes that it holds is the holder; its deadline
//! lies before the server's; nobody touches another's hold; no value of a string lock comes back; nobody is told of a loss that was none,
//! or not told of one; nobody sleeps while the lock is free; nothing of a lost connection is
//! executed after its successor was used; the owners in the queue of a fair lock get it in their order, and no place stays
//! without a call; no owner reads a read-write lock beside the writer of another one.

mod compare;
mod gather;
mod parts;
mod places;
mod promotion;
mod reported;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redisson_lock::{HoldHandle, LossReason, test_util};
use tokio::time::Instant;

pub use places::{channel, channel_of, parts_channel, queue_keys};

use parts::Parts;
use places::Places;
use promotion::Promotions;

/// What holds for a whole program.
#[derive(Debug, Clone)]
pub struct Terms {
    pub watchdog_timeout: Duration,
    pub command_timeout: Duration,
    /// Several servers.
    pub cluster: bool,
    /// The locks whose release is not announced.
    pub silent: Vec<&'static str>,
    /// String locks.
    pub strings: Vec<&'static str>,
    /// Fair locks.
    pub fair: Vec<&'static str>,
    /// For how long a place in their queue counts after its turn has come.
    pub fair_wait: Duration,
    /// Read-write locks.
    pub read_write: Vec<&'static str>,
    /// A lock without a holder is released, not left to its lease.
    pub given_back: bool,
    /// Client ids, by number.
    pub clients: Vec<String>,
    /// Commands of a lost connection are over before its successor is used.
    pub fenced: Vec<bool>,
    /// All scripts of a client go over one connection.
    pub one_lane: Vec<bool>,
    /// No fault happens: no hold is ever lost but by its own lease.
    pub healthy: bool,
    /// Answers come within the command timeout unless a fault is under way.
    pub answers_in_time: bool,
    /// How long a lock may be free while somebody waits for it, when nothing is wrong.
    pub wake_up: Duration,
}

pub struct Oracle {
    state: Mutex<State>,
    start: Instant,
}

struct State {
    terms: Option<Terms>,
    holds: BTreeMap<u64, Seen>,
    calls: BTreeMap<u64, Call>,
    serials: u64,
    /// The latest token of each fenced lock, and whose it is.
    tokens: BTreeMap<String, (u64, String)>,
    /// The values of string locks that were released or handed over, with their keys.
    spent: BTreeSet<(String, String)>,
    /// When a field was taken away by anything but its owner's own release, until it is acquired again.
    robbed: BTreeMap<(String, String), Instant>,
    /// The same, for good.
    ever_robbed: BTreeMap<(String, String), Instant>,
    /// Robbed fields that a late copy of their owner's acquire has made again.
    revived: BTreeSet<(String, String)>,
    /// Since when a field is counted more often than its owner believes, while it takes several locks.
    kept: BTreeMap<(String, String), Instant>,
    /// Since when a lock is free.
    free_since: BTreeMap<String, Instant>,
    /// When a client's own callers last had reason to wait for one of them who had not been told of
    /// its loss.
    behind_own: BTreeMap<(usize, String), Instant>,
    /// When the last fault was over.
    calm_since: Instant,
    /// How long everybody stood still, in sum.
    stood_still: Duration,
    /// The newest connection of each client to each server that a script was executed on.
    newest: BTreeMap<(usize, usize), u64>,
    promotions: Promotions,
    places: Places,
    parts: Parts,
    /// `force_unlock` calls whose command may still take effect.
    forcing: BTreeMap<usize, u32>,
    /// What Java holds: how often each field of a lock is counted.
    java: BTreeMap<(String, String), i64>,
    /// Fields whose hold ended without a release: they stay until their lease is over.
    lingering: BTreeSet<(String, String)>,
    /// When a caller has last given a hold of this field back.
    released_at: BTreeMap<(String, String), Instant>,
    /// Readers whose keys Java has renewed too, and since when.
    prolonged: BTreeMap<(String, String), Instant>,
    /// When everybody was last polled again after standing still.
    moved_at: Instant,
    closed: Vec<usize>,
    unconfirmed: Vec<usize>,
    violation: Option<String>,
    history: Vec<String>,
    recording: bool,
    counts: Counts,
    executed: BTreeMap<Arc<str>, Vec<String>>,
}

/// A hold in a caller's hands.
struct Seen {
    client: usize,
    key: String,
    field: Arc<str>,
    held: HoldHandle,
    began: Instant,
    taken_at: Instant,
    valid_until: Instant,
    /// It is being released, so it believes nothing any more.
    closing: bool,
    /// When the server last had what is believed.
    fine_at: Instant,
    /// When its loss was first seen.
    lost_at: Option<Instant>,
}

/// A call that has not returned.
struct Call {
    client: usize,
    what: String,
    /// The locks it waits for, if it does.
    waits_for: Vec<String>,
    /// What an owner has in the locks that it takes together, and which these are.
    gathers: Option<(String, Vec<String>)>,
    /// The fair lock that it waits for, and what its owner has in the queue.
    queues: Option<(String, String)>,
    /// The read-write lock that it wants, the field of its owner, and whether it is to read.
    wants: Option<(String, String, bool)>,
    /// Its lease may be over before the reply that says so comes, each time.
    too_short: bool,
    /// How many acquires of that owner were executed meanwhile.
    asked: u32,
    began: Instant,
    stood_still: Duration,
    limit: Option<Duration>,
}

impl Oracle {
    pub fn new(start: Instant) -> Self {
        let state = State {
            terms: None,
            holds: BTreeMap::new(),
            calls: BTreeMap::new(),
            serials: 0,
            tokens: BTreeMap::new(),
            spent: BTreeSet::new(),
            robbed: BTreeMap::new(),
            ever_robbed: BTreeMap::new(),
            revived: BTreeSet::new(),
            kept: BTreeMap::new(),
            free_since: BTreeMap::new(),
            behind_own: BTreeMap::new(),
            calm_since: start,
            stood_still: Duration::ZERO,
            newest: BTreeMap::new(),
            promotions: Promotions::default(),
            places: Places::default(),
            parts: Parts::default(),
            forcing: BTreeMap::new(),
            java: BTreeMap::new(),
            lingering: BTreeSet::new(),
            released_at: BTreeMap::new(),
            prolonged: BTreeMap::new(),
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

    pub fn begin(&self, terms: Terms, recording: bool) {
        let mut state = self.state.lock();
        state.terms = Some(terms);
        state.recording = recording;
    }

    pub fn violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    pub fn history(&self) -> Vec<String> {
        self.state.lock().history.clone()
    }

    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// How often a script was executed.
    pub fn times_executed(&self, script: &str) -> usize {
        self.keys_in_order(script).len()
    }

    /// On which keys a script was executed.
    pub fn keys_in_order(&self, script: &str) -> Vec<String> {
        self.state
            .lock()
            .executed
            .get(script)
            .cloned()
            .unwrap_or_default()
    }

    pub fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.state.lock().counts);
    }

    /// The first violation counts; what follows may be its consequence.
    pub fn violated(&self, text: impl Into<String>) {
        self.state.lock().violated(self.start, text.into());
    }

    pub fn say(&self, text: impl FnOnce() -> String) {
        self.state.lock().say(self.start, text);
    }

    /// A fault begins, and is over at this moment.
    pub fn fault(&self, text: impl FnOnce() -> String, over: Instant) {
        let mut state = self.state.lock();
        state.calm_since = state.calm_since.max(over);
        state.promotions.disturbed(over);
        state.counts.faults += 1;
        state.say(self.start, text);
    }

    /// When the last fault was over, or will be.
    pub fn calm_since(&self) -> Instant {
        self.state.lock().calm_since
    }

    /// No task is polled for this time from now on.
    pub fn stood_still(&self, time: Duration) {
        let mut state = self.state.lock();
        state.stood_still += time;
        state.moved_at = Instant::now() + time;
    }

    /// Whether a hold of this field ended in a way that leaves the field to its lease.
    pub fn lingers(&self, key: &str, field: &str) -> bool {
        let state = self.state.lock();
        let clients = state
            .terms
            .iter()
            .flat_map(|terms| &terms.clients)
            .enumerate();
        let of_unconfirmed = clients
            .filter(|(nth, _)| state.unconfirmed.contains(nth))
            .any(|(_, id)| is_field_of(id, field));
        let of = (key.to_owned(), field.to_owned());
        // No release gives up without a fault, unless answers take too long at times.
        let always_in_time = |terms: &Terms| terms.answers_in_time;
        let always_in_time = state.terms.as_ref().is_some_and(always_in_time);
        let prolonged = state.prolonged.get(&of);
        of_unconfirmed
            || state.lingering.contains(&of)
            || prolonged.is_some_and(|since| !always_in_time || state.calm_since >= *since)
    }

    /// Open holds by key and field, lost ones excluded.
    pub fn open_holds(&self) -> BTreeMap<(String, String), i64> {
        let state = self.state.lock();
        let mut holds = BTreeMap::new();
        for seen in state
            .holds
            .values()
            .filter(|seen| !test_util::has_ended(&seen.held))
        {
            *holds
                .entry((seen.key.clone(), seen.field.to_string()))
                .or_default() += 1;
        }
        holds.extend(state.java.clone());
        holds
    }

    pub fn pending_calls(&self) -> Vec<String> {
        let state = self.state.lock();
        state
            .calls
            .values()
            .map(|call| format!("client {} {}", call.client, call.what))
            .collect()
    }
}

/// Whether a field was written by this client.
fn is_field_of(client_id: &str, field: &str) -> bool {
    field
        .strip_prefix(client_id)
        .is_some_and(|rest| rest.starts_with(':'))
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
        self.revived.remove(&(key.to_owned(), field.to_owned()));
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
        let by_promotion = self.promotions.took(key, field, began);
        let justified = match reason {
            LossReason::Gone | LossReason::Taken => {
                self.counts.lost_by_promotion += u64::from(by_promotion);
                robbed || by_promotion
            }
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

/// What a program did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub scripts: u64,
    pub late: u64,
    pub taken: u64,
    /// Several locks as one, not their single holds.
    pub several: u64,
    pub drops: u64,
    pub ambiguous: u64,
    pub lost: u64,
    /// Of those, what another server did not have when it took over.
    pub lost_by_promotion: u64,
    pub faults: u64,
    pub redirects: u64,
    pub failovers: u64,
    /// Places in the queues of fair locks, and how many of them were used.
    pub queued: u64,
    pub turns: u64,
    /// Owners of read-write locks that began to read beside another one, and writers that went on reading.
    pub beside: u64,
    pub downgrades: u64,
}

impl Counts {
    pub fn add(&mut self, other: Self) {
        self.scripts += other.scripts;
        self.late += other.late;
        self.taken += other.taken;
        self.several += other.several;
        self.drops += other.drops;
        self.ambiguous += other.ambiguous;
        self.lost += other.lost;
        self.lost_by_promotion += other.lost_by_promotion;
        self.faults += other.faults;
        self.redirects += other.redirects;
        self.failovers += other.failovers;
        self.queued += other.queued;
        self.turns += other.turns;
        self.beside += other.beside;
        self.downgrades += other.downgrades;
    }
}
