//! What befalls the simulated server and its network.

use std::time::Duration;

use redisson_lock::test_util::{PubSubEvent, Role};
use tokio::time::Instant;

use super::lua::Interpreter;
use super::network::{Event, Latency, What, Wire};
use super::server::Server;

/// What a trace does by hand to a client's command connections that are open at the moment.
impl Server {
    /// From now on late commands are executed by [`Self::execute_late_now`] only.
    pub fn by_hand(&self) {
        self.state.lock().by_hand = true;
    }

    /// Commands reach the server no more, or do so again.
    pub fn hold_commands(&self, client: usize, hold: bool) {
        self.change_wires(client, Role::Commands, |wire| wire.commands_held = hold);
    }

    /// Scripts of a client stay on their way, on every connection, or go on.
    pub fn hold_scripts(&self, client: usize, hold: bool) {
        let changed = {
            let held = &mut self.state.lock().scripts_held;
            if hold {
                held.insert(client)
            } else {
                held.remove(&client)
            }
        };
        assert!(changed, "held and let go in turn");
        self.change_wires(client, Role::Commands, |_| ());
    }

    /// Answers reach the client no more, or do so again.
    pub fn hold_answers(&self, client: usize, hold: bool) {
        self.change_wires(client, Role::Commands, |wire| wire.answers_held = hold);
    }

    /// Subscriptions reach the server no more, or do so again.
    pub fn hold_subscriptions(&self, client: usize, hold: bool) {
        self.change_wires(client, Role::Messages, |wire| wire.commands_held = hold);
    }

    /// Subscriptions are not confirmed any more.
    pub fn hold_confirmations(&self, client: usize) {
        self.change_wires(client, Role::Messages, |wire| wire.answers_held = true);
    }

    /// Confirmations and messages take so much longer.
    pub fn delay_subscriber(&self, client: usize, delay: Duration) {
        self.state.lock().delayed.insert(client, delay);
    }

    fn change_wires(&self, client: usize, role: Role, change: impl Fn(&mut Wire)) {
        let mut state = self.state.lock();
        let of_client = |wire: &Wire| wire.client == client && wire.role == role;
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
    /// Cuts a client's connections of one kind. Not told, the client has to find out by the
    /// silence.
    pub fn cut(&self, client: usize, role: Role, reported: bool) {
        let mut state = self.state.lock();
        let of_client = |wire: &Wire| wire.client == client && wire.role == role && wire.connected;
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
            wire.client == client && !wire.channels.iter().all(|channel| rights.may_use(channel))
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

    /// A client's message stream has lagged: some messages are replaced by the news of it.
    pub fn lag(&self, client: usize) {
        let mut state = self.state.lock();
        for wire in state
            .wires
            .values_mut()
            .filter(|wire| wire.client == client)
        {
            wire.answers
                .retain(|outgoing| !matches!(outgoing.what, What::PubSubEvent(_)));
            let _ = wire.messages.send(PubSubEvent::Missed(1));
        }
    }

    pub fn publish(&self, channel: &str) {
        self.state.lock().publish(channel);
        self.changed.notify_one();
    }
}
