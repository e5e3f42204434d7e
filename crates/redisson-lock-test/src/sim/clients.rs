//! What clients do with the simulated server, and what can be seen of it from outside.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use super::command::Command;
use super::connection::Arrived;
use super::network::{Event, Opened, Wire, Written};
use super::server::{APPLIED_LATE_MS, Server};

/// What clients do with their connections.
impl Server {
    /// A new connection: when it is there, or why it is not.
    pub(super) fn connect(&self, client: usize, node: usize) -> (Duration, Option<Opened>) {
        let mut state = self.state.lock();
        let nth = state.opened.entry(client).or_default();
        *nth += 1;
        let who = (client as u64) << 40 | *nth;
        let mut rng = Rng::with_seed(self.seed ^ who.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let thawed = state.frozen_until.saturating_duration_since(Instant::now());
        let delay = state.latency.roll(&mut rng).max(thawed);
        if Instant::now() + delay < state.down_until[node] {
            return (delay, None);
        }
        state.serials += 1;
        state.next_id += 1;
        let (serial, id) = (state.serials, state.next_id);
        let arrived = Arc::<Arrived>::default();
        let wire = Wire {
            client,
            node,
            asking: false,
            is_new: false,
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
            shard_channels: BTreeSet::new(),
            arrived: Arc::clone(&arrived),
            rng,
            tracking: None,
        };
        state.wires.insert(serial, wire);
        (delay, Some(Opened { serial, arrived }))
    }

    /// A command was written. The answer comes, or does not.
    pub(super) fn write(&self, serial: u64, command: Command) {
        let mut state = self.state.lock();
        let latency = state.latency;
        let (now, thawed) = (Instant::now(), state.frozen_until);
        if let Some(wire) = state.wires.get_mut(&serial) {
            let arrives_at = (now + latency.roll(&mut wire.rng)).max(thawed);
            let written = Written {
                command,
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
        drop(state);
        self.settle();
    }

    /// How late the task that waits for an answer is polled, if it is.
    pub(super) fn polled_late(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let is_late = state.late_percent > 0 && state.rng.u8(0..200) < state.late_percent;
        is_late.then(|| Duration::from_millis(state.rng.u64(0..APPLIED_LATE_MS)))
    }

    /// The client's end is closed, by the client.
    pub(super) fn close(&self, serial: u64) {
        self.state.lock().cut(serial, true);
        self.changed.notify_one();
    }
}

/// What can be seen from outside.
impl Server {
    /// Commands and answers that are still on their way.
    pub fn is_busy(&self) -> bool {
        let state = self.state.lock();
        state.wires.values().any(|wire| {
            wire.connected && !(wire.commands.is_empty() && wire.answers.is_empty())
                || !wire.late.is_empty()
        })
    }

    /// The names of every channel that somebody listens to.
    pub fn channels(&self) -> BTreeSet<String> {
        let state = self.state.lock();
        state
            .wires
            .values()
            .filter(|wire| wire.connected)
            .flat_map(|wire| &wire.channels | &wire.shard_channels)
            .collect()
    }

    /// How many times a client has tried to connect.
    pub fn attempts_to_connect(&self, client: usize) -> u64 {
        let state = self.state.lock();
        state.opened.get(&client).copied().unwrap_or_default()
    }

    /// Connections that are open at the client's end.
    pub fn connections(&self) -> usize {
        self.state
            .lock()
            .wires
            .values()
            .filter(|wire| wire.connected)
            .count()
    }
}
