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

use super::connection::Command;
use super::direct::Pace;
use super::keyspace::Keyspace;
use super::lua::Interpreter;
use super::network::{Event, Latency, Network, What, Wire, Written};

/// The server with everything around it.
pub struct Server {
    pub(super) state: Mutex<Network>,
    pub(super) keyspace: Arc<Mutex<Keyspace>>,
    observer: Arc<dyn Observer>,
    pub(super) changed: Notify,
    start: Instant,
    pub(super) seed: u64,
    pub(super) pace: Pace,
}

/// Who looks on, and judges.
pub trait Observer: Send + Sync + 'static {
    /// Nothing can go wrong for a while, so looking seldom is enough.
    fn is_idle(&self) -> bool;

    /// A script was executed. Called with the server's state locked: it must not call the server.
    fn executed(&self, executed: &Executed, keyspace: &mut Keyspace);

    /// Something has happened, or time has passed. The same holds.
    fn observe(&self, keyspace: &mut Keyspace);
}

/// A script that the server has run.
#[derive(Debug)]
pub struct Executed {
    pub client: usize,
    pub wire: u64,
    pub late: bool,
    pub script: Arc<str>,
    pub keys: Vec<String>,
    pub args: Vec<String>,
    /// Of each key.
    pub before: Vec<Option<(String, i64)>>,
    /// When each key was to run out before.
    pub expiries: Vec<Option<u64>>,
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
        Self::with_pace(seed, latency, observer, Pace::Events)
    }

    pub(super) fn with_pace(
        seed: u64,
        latency: Latency,
        observer: Arc<dyn Observer>,
        pace: Pace,
    ) -> Arc<Self> {
        let keyspace = Arc::new(Mutex::new(Keyspace::default()));
        let start = Instant::now();
        let state = Network {
            lua: Interpreter::new(&keyspace),
            latency,
            wires: BTreeMap::new(),
            events: BinaryHeap::new(),
            rng: Rng::with_seed(seed),
            serials: 0,
            next_id: 0,
            opened: BTreeMap::new(),
            scripts_held: BTreeSet::new(),
            by_hand: false,
            nothing_is_late: pace == Pace::AtOnce,
            paused: false,
            replies_to_lose: 0,
            frozen_until: start,
            down_until: start,
            late_percent: 0,
            unapplied: BTreeMap::new(),
            denied: BTreeMap::new(),
            delayed: BTreeMap::new(),
            deaf_until: BTreeMap::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            keyspace,
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
        if let Some(Reverse((.., event))) = event {
            self.happen(event);
        }
        self.observe();
    }

    pub(super) fn happen(&self, event: Event) {
        match event {
            Event::Execute(serial) => self.execute(serial),
            Event::Late(serial, number) => self.execute_late(serial, number),
            Event::Deliver(serial) => self.deliver(serial),
            Event::Apply(number) => self.apply(number),
        }
    }

    /// Has the observer compare what everybody believes with what is.
    pub fn observe(&self) {
        let mut keyspace = self.keyspace.lock();
        keyspace.now = self.now();
        keyspace.expire();
        self.observer.observe(&mut keyspace);
    }

    /// Milliseconds of the server's clock.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn with_keyspace<T>(&self, work: impl FnOnce(&mut Keyspace) -> T) -> T {
        let mut keyspace = self.keyspace.lock();
        keyspace.now = self.now();
        keyspace.expire();
        work(&mut keyspace)
    }

    fn execute(&self, serial: u64) {
        let mut state = self.state.lock();
        let Network {
            wires,
            scripts_held,
            paused,
            ..
        } = &mut *state;
        let may_pass = |wire: &&mut Wire| !wire.commands_held && !*paused;
        let Some(wire) = wires.get_mut(&serial).filter(may_pass) else {
            return;
        };
        let is_script = wire
            .commands
            .front()
            .is_some_and(|next| matches!(next.command, Command::Script { .. }));
        if is_script && scripts_held.contains(&wire.client) {
            return;
        }
        let Some(written) = wire.commands.pop_front() else {
            return;
        };
        if let Some(next) = wire.commands.front() {
            let at = next.arrives_at.max(Instant::now());
            state.schedule(at, Event::Execute(serial));
        }
        self.execute_command(&mut state, serial, written, false);
    }

    pub(super) fn execute_late(&self, serial: u64, number: u64) {
        let mut state = self.state.lock();
        let Some(wire) = state.wires.get_mut(&serial) else {
            return;
        };
        // In order: whatever was written before it and has not been executed by now is not executed
        // any more.
        let Some(written) = wire.late.remove(&number) else {
            return;
        };
        wire.late.retain(|&other, _| other > number);
        self.execute_command(&mut state, serial, written, true);
    }

    fn execute_command(&self, state: &mut Network, serial: u64, written: Written, late: bool) {
        let Written {
            command, answer, ..
        } = written;
        let answered = match command {
            Command::Script {
                name,
                sha,
                source,
                keys,
                args,
            } => {
                let Some(executed) = self.run_script(state, serial, &sha, source, keys, args, name)
                else {
                    // NOSCRIPT, or no right: nothing has happened.
                    let denied = state.is_denied(serial, name);
                    let text = if denied {
                        format!("NOPERM this user has no permissions to run the '{name}' command")
                    } else {
                        "NOSCRIPT No matching script. Please use EVAL.".to_owned()
                    };
                    return state.answer(serial, answer, Err(text));
                };
                let executed = Executed { late, ..executed };
                let reply = executed.reply.clone();
                self.observer.executed(&executed, &mut self.keyspace.lock());
                if state.replies_to_lose > 0 {
                    // Replies come in order: the ones after it cannot arrive either.
                    state.replies_to_lose -= 1;
                    return state.cut(serial, true);
                }
                reply
            }
            Command::SetName => Ok(Reply::Text("OK".to_owned())),
            Command::Ping => Ok(Reply::Text("PONG".to_owned())),
            Command::Info if state.is_denied(serial, "client|info") => Err(no_right("client|info")),
            Command::Info => {
                let wire = &state.wires[&serial];
                Ok(Reply::Text(format!(
                    "id={} addr={} laddr=0.0.0.0:0 fd=8",
                    wire.id, wire.address
                )))
            }
            Command::Kill { .. } if state.is_denied(serial, "client|kill") => {
                Err(no_right("client|kill"))
            }
            Command::Kill { id, address } => Ok(Reply::Number(state.kill(id, &address))),
            Command::Barrier { change, nonce } => state.change_channels(serial, &change, nonce),
        };
        state.answer(serial, answer, answered);
    }

    #[expect(clippy::too_many_arguments, reason = "a command is as wide as that")]
    fn run_script(
        &self,
        state: &mut Network,
        serial: u64,
        sha: &str,
        source: Option<&'static str>,
        keys: Vec<String>,
        args: Vec<String>,
        name: &'static str,
    ) -> Option<Executed> {
        if state.is_denied(serial, name) {
            return None;
        }
        if let Some(source) = source {
            state.lua.load(source);
        }
        if !state.lua.is_loaded(sha) {
            return None;
        }
        let client = state.wires[&serial].client;
        let (before, expiries) = self.with_keyspace(|keyspace| {
            keyspace.denied = state
                .denied
                .get(&client)
                .map(|denied| denied.iter().map(|&name| name.to_owned()).collect())
                .unwrap_or_default();
            keyspace.listeners = state.listeners(&args);
            keys.iter()
                .map(|key| {
                    let holder = keyspace.holder(key);
                    let holder = holder.map(|(field, count)| (field.to_owned(), count));
                    (holder, keyspace.expires_at(key))
                })
                .unzip()
        });
        let reply = state.lua.run(sha, &keys, &args);
        let published = std::mem::take(&mut self.keyspace.lock().published);
        for (channel, _) in &published {
            state.publish(channel);
        }
        Some(Executed {
            client,
            wire: serial,
            late: false,
            script: state.lua.name(sha),
            keys,
            args,
            before,
            expiries,
            reply,
            published: published.into_iter().map(|(channel, _)| channel).collect(),
        })
    }

    fn deliver(&self, serial: u64) {
        let outgoing = {
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
            let next = wire
                .answers
                .front()
                .map(|next| next.arrives_at.max(Instant::now()));
            if let What::PubSubEvent(received) = outgoing.what {
                let _ = wire.messages.send(received);
                if let Some(at) = next {
                    state.schedule(at, Event::Deliver(serial));
                }
                return;
            }
            if let Some(at) = next {
                state.schedule(at, Event::Deliver(serial));
            }
            outgoing
        };
        if let What::Answer(sender, answered) = outgoing.what {
            let mut state = self.state.lock();
            let late = state.late_percent > 0 && state.rng.u8(0..100) < state.late_percent;
            if late {
                let wait = Duration::from_millis(state.rng.u64(0..APPLIED_LATE_MS));
                state.serials += 1;
                let number = state.serials;
                state.unapplied.insert(number, (sender, answered));
                state.schedule(Instant::now() + wait, Event::Apply(number));
                return;
            }
            drop(state);
            let _ = sender.send(answered);
        }
    }

    /// The task that waits for an answer is polled at last; others were before it.
    fn apply(&self, number: u64) {
        let unapplied = self.state.lock().unapplied.remove(&number);
        if let Some((sender, answered)) = unapplied {
            let _ = sender.send(answered);
        }
    }
}

pub(super) fn no_right(right: &str) -> String {
    format!("NOPERM this user has no permissions to run the '{right}' command")
}

/// A task that is ready is polled within this time.
pub const APPLIED_LATE_MS: u64 = 15;

/// The observer looks at least this often.
const TICK: Duration = Duration::from_millis(250);

/// When nobody holds or waits.
const IDLE_TICK: Duration = Duration::from_secs(5);
