//! What befalls the simulated server and its network.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::lua::Interpreter;
use super::network::{Event, Latency, Network, Wire};
use super::server::Server;

/// What a trace does by hand to a client's command connections that are open at the moment.
impl Server {
    /// From now on late commands are executed by [`Self::execute_late_now`] only.
    pub fn by_hand(&self) {
        self.state.lock().by_hand = true;
    }

    /// Commands reach the server no more, or do so again.
    pub fn hold_commands(&self, client: usize, hold: bool) {
        self.change_wires(client, |wire| wire.commands_held = hold);
    }

    /// Scripts of a client stay on their way, on every connection, or go on.
    pub fn hold_scripts(&self, client: usize, hold: bool) {
        self.hold(client, hold, |state| &mut state.scripts_held);
    }

    fn hold(&self, client: usize, hold: bool, held: impl Fn(&mut Network) -> &mut BTreeSet<usize>) {
        let changed = {
            let mut state = self.state.lock();
            match hold {
                true => held(&mut state).insert(client),
                false => held(&mut state).remove(&client),
            }
        };
        assert!(changed, "held and let go in turn");
        self.change_wires(client, |_| ());
    }

    /// Answers reach the client no more, or do so again.
    pub fn hold_answers(&self, client: usize, hold: bool) {
        self.change_wires(client, |wire| wire.answers_held = hold);
    }

    /// Changes of channels reach the server no more, and so does what is written after them; or all goes on.
    pub fn hold_subscriptions(&self, client: usize, hold: bool) {
        self.hold(client, hold, |state| &mut state.subscriptions_held);
    }

    /// Changes of channels are not confirmed any more.
    pub fn confirm_nothing(&self, client: usize) {
        self.state.lock().unconfirmed.insert(client);
    }

    /// What comes to a client takes so much longer.
    pub fn delay(&self, client: usize, delay: Duration) {
        self.state.lock().delayed.insert(client, delay);
    }

    fn change_wires(&self, client: usize, change: impl Fn(&mut Wire)) {
        let mut state = self.state.lock();
        let of_client = |wire: &Wire| wire.client == client;
        let serials: Vec<u64> = state
            .wires
            .iter()
            .filter(|(_, wire)| of_client(wire))
            .map(|(&serial, _)| serial)
            .collect();
        for serial in serials {
            if let Some(wire) = state.wires.get_mut(&serial) {
                change(wire);
            }
            state.schedule(Instant::now(), Event::Execute(serial));
            state.schedule(Instant::now(), Event::Deliver(serial));
        }
        self.changed.notify_one();
    }

    /// Executes what is late of a client, in order. Answers how many commands there were.
    pub fn execute_late_now(&self, client: usize) -> usize {
        let mut late = Vec::new();
        for (&serial, wire) in &self.state.lock().wires {
            if wire.client == client {
                late.extend(wire.late.keys().map(|&number| (serial, number)));
            }
        }
        for &(serial, number) in &late {
            self.execute_late(serial, number);
        }
        self.observe();
        late.len()
    }
}

/// What befalls the server and the network.
impl Server {
    /// Cuts a client's connections. Not told, the client has to find out by the
    /// silence.
    pub fn cut(&self, client: usize, reported: bool) {
        let mut state = self.state.lock();
        let of_client = |wire: &Wire| wire.client == client && wire.connected;
        let serials: Vec<u64> = state
            .wires
            .iter()
            .filter(|(_, wire)| of_client(wire))
            .map(|(&serial, _)| serial)
            .collect();
        for serial in serials {
            state.cut(serial, reported);
        }
        self.changed.notify_one();
    }

    /// Nobody can connect for a while, and connected clients are cut off.
    pub fn down_for(&self, time: Duration) {
        let mut state = self.state.lock();
        state.down_until.fill(Instant::now() + time);
        state.cut_all();
        self.changed.notify_one();
    }

    /// How many of a hundred answers are applied late from now on.
    pub fn apply_late(&self, percent: u8) {
        self.state.lock().late_percent = percent;
    }

    /// The thread that sends the next acquire or guarded write of this client stands still for `time` before it hands
    /// it over, if that is `within` this time.
    pub fn suspend(&self, client: usize, within: Duration, time: Duration) {
        let until = Instant::now() + within;
        self.state.lock().suspended.insert(client, (until, time));
    }

    /// The server stands still for a while: what reaches it waits, and so does a client that connects.
    pub fn freeze(&self, time: Duration) {
        let mut state = self.state.lock();
        state.frozen_until = Instant::now() + time;
        self.changed.notify_one();
    }

    /// The server restarts with its data: connections, their late commands and the scripts are
    /// gone, and ids start again.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        state.cut_all();
        state.wires.retain(|_, wire| {
            wire.late.clear();
            wire.connected
        });
        state.next_id = 0;
        state.lua.iter_mut().for_each(Interpreter::forget_all);
        self.changed.notify_one();
    }

    pub fn flush_scripts(&self) {
        let lua = &mut self.state.lock().lua;
        lua.iter_mut().for_each(Interpreter::forget_all);
    }

    pub fn set_latency(&self, latency: Latency) {
        self.state.lock().latency = latency;
    }

    /// Takes the right to a command away from a client, or gives it back.
    pub fn deny(&self, client: usize, command: &str, denied: bool) {
        let sign = if denied { '-' } else { '+' };
        self.acl(client, &format!("{sign}{command}"));
    }

    /// Changes the rights of a client, by rules as `ACL SETUSER` takes them. As in Redis, a connection
    /// that is subscribed to a channel without the right to it ends.
    pub fn acl(&self, client: usize, rules: &str) {
        let mut state = self.state.lock();
        let rights = state.rights.entry(client).or_default();
        for rule in rules.split_ascii_whitespace() {
            let applied = rights.apply(rule);
            assert!(
                applied.is_some(),
                "the simulated server does not know the rule {rule}"
            );
        }
        let rights = rights.clone();
        let is_meant = |wire: &Wire| {
            let mut channels = wire.channels.union(&wire.shard_channels);
            wire.client == client && !channels.all(|channel| rights.may_use(channel))
        };
        let wires = state.wires.iter().filter(|(_, wire)| is_meant(wire));
        let serials: Vec<u64> = wires.map(|(&serial, _)| serial).collect();
        for serial in serials {
            state.cut(serial, true);
        }
        self.changed.notify_one();
    }

    /// Messages to a client are lost for a while.
    pub fn deafen(&self, client: usize, time: Duration) {
        self.state
            .lock()
            .deaf_until
            .insert(client, Instant::now() + time);
    }

    /// A message of a program that publishes in each way.
    pub fn publish(&self, channel: &str) {
        let mut state = self.state.lock();
        state.publish(channel);
        state.tell("smessage", channel, |wire| {
            wire.shard_channels.contains(channel)
        });
        drop(state);
        self.changed.notify_one();
    }
}
