//! The simulated server: what happens when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use redisson_lock::test_util::Reply;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::cluster::{Cluster, NODES};
use super::keyspace::Keyspace;
use super::lua::Interpreter;
use super::network::{Event, Latency, Network, What};
use super::resp;

/// The server with everything around it.
pub struct Server {
    pub(super) state: Mutex<Network>,
    /// Of each server.
    pub(super) keyspaces: Vec<Arc<Mutex<Keyspace>>>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) changed: Notify,
    start: Instant,
    pub(super) seed: u64,
    pub(super) pace: Pace,
}

/// What makes things happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// [`Server::run`], each thing at its instant.
    Events,
    /// What a client sends is executed before the call returns. There is no task, so one
    /// server can serve clients of any runtime, and nothing but timers is ever waited for.
    AtOnce,
}

/// Who looks on, and judges.
pub trait Observer: Send + Sync + 'static {
    /// Nothing can go wrong for a while, so looking seldom is enough.
    fn is_idle(&self) -> bool;

    /// A script was executed. Called with the server's state locked: it must not call the server.
    fn executed(&self, executed: &Executed, keyspace: &mut Keyspace);

    /// Something has happened, or time has passed. The same holds.
    fn observe(&self, keyspace: &mut Keyspace);

    /// The thread of a call stands still for this time from now on.
    fn suspended(&self, _time: Duration) {}
}

/// A script that the server has run.
#[derive(Debug)]
pub struct Executed {
    pub client: usize,
    pub node: usize,
    /// By a server that has been taken over from: nothing of it counts.
    pub stale: bool,
    pub wire: u64,
    pub late: bool,
    pub script: Arc<str>,
    pub keys: Vec<String>,
    pub args: Vec<String>,
    /// Of each key.
    pub before: Vec<Option<(String, i64)>>,
    /// The same behind it, where it was executed.
    pub after: Vec<Option<(String, i64)>>,
    /// When each key was to run out before.
    pub expiries: Vec<Option<u64>>,
    /// What the server's clock showed, in milliseconds.
    pub clock: u64,
    pub reply: Result<Reply, String>,
    pub published: Vec<String>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// A server that is run by [`Self::run`].
    pub fn new(seed: u64, latency: Latency, observer: Arc<dyn Observer>) -> Arc<Self> {
        Self::with_pace(seed, latency, observer, Pace::Events, 1)
    }

    /// A cluster of [`NODES`] nodes.
    pub fn cluster(seed: u64, latency: Latency, observer: Arc<dyn Observer>) -> Arc<Self> {
        Self::with_pace(seed, latency, observer, Pace::Events, NODES)
    }

    pub(super) fn with_pace(
        seed: u64,
        latency: Latency,
        observer: Arc<dyn Observer>,
        pace: Pace,
        nodes: usize,
    ) -> Arc<Self> {
        let keyspaces: Vec<_> = (0..nodes).map(|_| Arc::default()).collect();
        let start = Instant::now();
        let state = Network {
            lua: keyspaces.iter().map(Interpreter::new).collect(),
            cluster: (nodes > 1).then(Cluster::new),
            latency,
            wires: BTreeMap::new(),
            events: BinaryHeap::new(),
            rng: Rng::with_seed(seed),
            serials: 0,
            next_id: 0,
            opened: BTreeMap::new(),
            scripts_held: BTreeSet::new(),
            subscriptions_held: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            by_hand: false,
            nothing_is_late: pace == Pace::AtOnce,
            paused: false,
            replies_to_lose: 0,
            frozen_until: start,
            down_until: vec![start; nodes],
            late_percent: 0,
            rights: BTreeMap::new(),
            replicas: 0,
            suspended: BTreeMap::new(),
            delayed: BTreeMap::new(),
            deaf_until: BTreeMap::new(),
            reports: false,
            is_old: false,
            own_is_last: seed.is_multiple_of(2),
            executing: None,
            deferred: Vec::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            keyspaces,
            observer,
            changed: Notify::new(),
            start,
            seed,
            pace,
        })
    }

    /// Lets things happen, one at a time, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let next = self.state.lock().events.peek().map(|Reverse((at, ..))| *at);
            let tick = Instant::now()
                + if self.observer.is_idle() {
                    IDLE_TICK
                } else {
                    TICK
                };
            tokio::select! {
                biased;
                () = self.changed.notified() => continue,
                () = tokio::time::sleep_until(next.map_or(tick, |next| next.min(tick))) => {}
            }
            self.step();
            let pause = self.state.lock().rng.u8(0..4);
            for _ in 0..pause {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The next event, if it is time for it.
    fn step(&self) {
        let event = {
            let mut state = self.state.lock();
            let due = state
                .events
                .peek()
                .is_some_and(|Reverse((at, ..))| *at <= Instant::now());
            due.then(|| state.events.pop()).flatten()
        };
        match event {
            Some(Reverse((.., event))) => self.happen(event),
            // What has run out meanwhile.
            None => {
                let mut state = self.state.lock();
                state.end_subscriptions();
                self.report_changes(&mut state);
            }
        }
        self.observe();
    }

    pub(super) fn happen(&self, event: Event) {
        match event {
            Event::Execute(serial) => self.execute(serial),
            Event::Late(serial, number) => self.execute_late(serial, number),
            Event::Deliver(serial) => self.deliver(serial),
        }
        let mut state = self.state.lock();
        state.end_subscriptions();
        self.report_changes(&mut state);
    }

    /// Has the observer compare what everybody believes with what is.
    pub fn observe(&self) {
        if self.keyspaces.len() > 1
            && let Some(mut merged) = self.merged(&self.state.lock())
        {
            return self.observer.observe(&mut merged);
        }
        self.with_keyspace_of(0, |keyspace| self.observer.observe(keyspace));
    }

    /// Milliseconds of the server's clock.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The data of the only server.
    pub fn with_keyspace<T>(&self, work: impl FnOnce(&mut Keyspace) -> T) -> T {
        self.with_keyspace_of(0, work)
    }

    /// The data of the server that has this key now.
    pub fn with_home<T>(&self, key: &str, work: impl FnOnce(&mut Keyspace) -> T) -> T {
        let state = self.state.lock();
        self.with_keyspace_of(self.home(&state, key), work)
    }

    /// The data of every server, one after the other.
    pub fn with_every_keyspace(&self, mut work: impl FnMut(&mut Keyspace)) {
        let _state = self.state.lock();
        for node in 0..self.keyspaces.len() {
            self.with_keyspace_of(node, &mut work);
        }
    }

    pub(super) fn with_keyspace_of<T>(
        &self,
        node: usize,
        work: impl FnOnce(&mut Keyspace) -> T,
    ) -> T {
        let mut keyspace = self.keyspaces[node].lock();
        keyspace.now = self.now();
        keyspace.clock = keyspace.now + CLOCKS[node];
        keyspace.expire();
        work(&mut keyspace)
    }

    fn deliver(&self, serial: u64) {
        let mut state = self.state.lock();
        let paused = state.paused;
        let Some(wire) = state
            .wires
            .get_mut(&serial)
            .filter(|wire| !wire.answers_held && !paused)
        else {
            return;
        };
        let Some(outgoing) = wire.answers.pop_front() else {
            return;
        };
        let now = Instant::now();
        let next = wire.answers.front().map(|next| next.arrives_at.max(now));
        let mut bytes = Vec::new();
        let mut to = resp::Outgoing {
            is_new: wire.is_new,
            bytes: &mut bytes,
        };
        let mut takes = Duration::ZERO;
        match outgoing.what {
            What::Answer(answer) => {
                to.answer(&answer);
                if self.pace == Pace::AtOnce {
                    takes = REPLY_DELAY;
                }
            }
            What::Push(items) => to.push(&items),
        }
        let arrived = std::sync::Arc::clone(&wire.arrived);
        // The reader may be polled late as well.
        let at = outgoing.arrives_at.max(now) + takes + state.read_late();
        arrived.push(at, bytes);
        if let Some(at) = next {
            state.schedule(at, Event::Deliver(serial));
        }
    }
}

/// What each server's clock shows at the start, in milliseconds since 1970: no two of them agree.
const CLOCKS: [u64; NODES] = [1_700_003_600_000, 1_700_000_000_000, 1_700_007_200_000];

/// A caller that repeats a call without a pause lets time pass even so. Otherwise paused time would
/// stand still for all others.
const REPLY_DELAY: Duration = Duration::from_millis(1);

/// A task that is ready is polled within this time.
pub const APPLIED_LATE_MS: u64 = 15;

/// The observer looks at least this often.
const TICK: Duration = Duration::from_millis(250);

/// When nobody holds or waits.
const IDLE_TICK: Duration = Duration::from_secs(5);
