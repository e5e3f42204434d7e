//! The simulated server: what happens when, what clients do with it, and what befalls it.
//!
//! Each connection is a pipe of commands and a pipe of answers, in order. Everything that happens
//! is an event at an instant of paused time; events of the same instant happen in an order that the
//! seed decides. When a connection is cut, its answers vanish and the commands that were not
//! executed yet become *late*: each may be executed at any later moment, or never, until somebody
//! kills the connection at the server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connection::Command;
use super::keyspace::Keyspace;
use super::lua::Interpreter;
use super::network::{Answered, Event, Latency, Network, What, Wire, Written};
use super::watch::Watch;
use crate::redis::{PubSubEvent, Reply, Role};

/// The server with everything around it.
pub(crate) struct World {
    pub(super) state: Mutex<Network>,
    pub(super) keyspace: Arc<Mutex<Keyspace>>,
    pub(super) watch: Watch,
    pub(super) changed: Notify,
    start: Instant,
    seed: u64,
}

/// A script that the server has run.
#[derive(Debug)]
pub(super) struct Executed {
    pub(super) client: usize,
    pub(super) wire: u64,
    pub(super) late: bool,
    pub(super) script: &'static str,
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) before: Vec<Option<(String, i64)>>,
    pub(super) reply: Answered,
    pub(super) published: Vec<String>,
}

impl World {
    pub(super) fn new(seed: u64, latency: Latency) -> Arc<Self> {
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
            frozen_until: start,
            down_until: start,
            late_percent: 0,
            unapplied: BTreeMap::new(),
            denied: BTreeMap::new(),
            delayed: BTreeMap::new(),
            deaf_until: BTreeMap::new(),
        };
        let watch = Watch::new(start);
        Arc::new(Self {
            state: Mutex::new(state),
            keyspace,
            watch,
            changed: Notify::new(),
            start,
            seed,
        })
    }

    /// Lets things happen, one at a time, for ever.
    pub(super) async fn on_client_runtime(self: Arc<Self>) {
        loop {
            let next = self.state.lock().events.peek().map(|Reverse((at, ..))| *at);
            let tick = Instant::now()
                + if self.watch.is_idle() {
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
            Some(Reverse((.., Event::Execute(serial)))) => self.execute(serial),
            Some(Reverse((.., Event::Late(serial, number)))) => self.execute_late(serial, number),
            Some(Reverse((.., Event::Deliver(serial)))) => self.deliver(serial),
            Some(Reverse((.., Event::Apply(number)))) => self.apply(number),
            None => {}
        }
        self.look();
    }

    /// Has the watch compare what everybody believes with what is.
    pub(super) fn look(&self) {
        let mut keyspace = self.keyspace.lock();
        keyspace.now = self.now();
        keyspace.expire();
        self.watch.compare(&mut keyspace);
    }

    /// Milliseconds of the server's clock.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn with_keyspace<T>(&self, work: impl FnOnce(&mut Keyspace) -> T) -> T {
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
            ..
        } = &mut *state;
        let Some(wire) = wires.get_mut(&serial).filter(|wire| !wire.commands_held) else {
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
        self.run(&mut state, serial, written, false);
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
        self.run(&mut state, serial, written, true);
    }

    fn run(&self, state: &mut Network, serial: u64, written: Written, late: bool) {
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
                self.watch.executed(&executed, &mut self.keyspace.lock());
                reply
            }
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
        let before = self.with_keyspace(|keyspace| {
            keyspace.denied = state
                .denied
                .get(&client)
                .map(|denied| denied.iter().map(|&name| name.to_owned()).collect())
                .unwrap_or_default();
            keys.iter()
                .map(|key| {
                    keyspace
                        .holder(key)
                        .map(|(field, count)| (field.to_owned(), count))
                })
                .collect()
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
            script: crate::script::name_of(sha),
            keys,
            args,
            before,
            reply,
            published: published.into_iter().map(|(channel, _)| channel).collect(),
        })
    }

    fn deliver(&self, serial: u64) {
        let outgoing = {
            let mut state = self.state.lock();
            let Some(wire) = state
                .wires
                .get_mut(&serial)
                .filter(|wire| !wire.answers_held)
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
            if let What::PubSubEvent(heard) = outgoing.what {
                let _ = wire.messages.send(heard);
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

/// What clients do with their connections.
impl World {
    /// A new connection: when it is there, or why it is not.
    pub(super) fn connect(&self, client: usize, role: Role) -> (Duration, Option<Opened>) {
        let mut state = self.state.lock();
        let nth = state.opened.entry((client, role)).or_default();
        *nth += 1;
        let who = (client as u64) << 40 | u64::from(role == Role::Messages) << 32 | *nth;
        let mut rng = Rng::with_seed(self.seed ^ who.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let thawed = state.frozen_until.saturating_duration_since(Instant::now());
        let delay = state.latency.roll(&mut rng).max(thawed);
        if Instant::now() + delay < state.down_until {
            return (delay, None);
        }
        state.serials += 1;
        state.next_id += 1;
        let (serial, id) = (state.serials, state.next_id);
        let (messages, heard) = mpsc::unbounded_channel();
        let ended = CancellationToken::new();
        let wire = Wire {
            client,
            role,
            id,
            address: format!("127.0.0.1:{}", 40_000 + serial),
            connected: true,
            passes: true,
            commands_held: false,
            answers_held: false,
            commands: VecDeque::new(),
            answers: VecDeque::new(),
            late: BTreeMap::new(),
            channels: BTreeSet::new(),
            stale_echo: None,
            messages,
            ended: ended.clone(),
            rng,
        };
        state.wires.insert(serial, wire);
        (
            delay,
            Some(Opened {
                serial,
                ended,
                heard,
            }),
        )
    }

    /// A command is handed over. The answer comes, or does not.
    pub(super) fn write(&self, serial: u64, command: Command) -> oneshot::Receiver<Answered> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state.lock();
        let latency = state.latency;
        let (now, thawed) = (Instant::now(), state.frozen_until);
        if let Some(wire) = state.wires.get_mut(&serial) {
            let arrives_at = (now + latency.roll(&mut wire.rng)).max(thawed);
            let written = Written {
                command,
                answer: Some(answer),
                arrives_at,
            };
            if !wire.connected || !wire.passes {
                state.make_late(serial, written);
            } else {
                wire.commands.push_back(written);
                if wire.commands.len() == 1 {
                    state.schedule(arrives_at, Event::Execute(serial));
                }
            }
        }
        self.changed.notify_one();
        answered
    }

    /// The client's end is closed, by the client.
    pub(super) fn close(&self, serial: u64) {
        self.state.lock().cut(serial, true);
        self.changed.notify_one();
    }
}

/// A connection as its client gets it.
pub(super) struct Opened {
    pub(super) serial: u64,
    pub(super) ended: CancellationToken,
    pub(super) heard: mpsc::UnboundedReceiver<PubSubEvent>,
}

/// What can be seen from outside.
impl World {
    /// Commands and answers that are still on their way.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.state.lock();
        state.wires.values().any(|wire| {
            wire.connected && !(wire.commands.is_empty() && wire.answers.is_empty())
                || !wire.late.is_empty()
        })
    }

    /// The names of every channel that somebody listens to.
    pub(super) fn channels(&self) -> BTreeSet<String> {
        let state = self.state.lock();
        state
            .wires
            .values()
            .filter(|wire| wire.connected)
            .flat_map(|wire| wire.channels.clone())
            .collect()
    }

    /// Connections that are open at the client's end.
    pub(super) fn connections(&self) -> usize {
        self.state
            .lock()
            .wires
            .values()
            .filter(|wire| wire.connected)
            .count()
    }
}

pub(super) fn no_right(right: &str) -> String {
    format!("NOPERM this user has no permissions to run the '{right}' command")
}

/// A task that is ready is polled within this time.
pub(super) const APPLIED_LATE_MS: u64 = 15;

/// The watch looks at least this often.
const TICK: Duration = Duration::from_millis(250);

/// When nobody holds or waits.
const IDLE_TICK: Duration = Duration::from_secs(5);
