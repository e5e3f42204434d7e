//! What a server does with the commands that reach it.

use std::time::Duration;

use redisson_lock::test_util::Reply;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::command::Command;
use super::keyspace::Answer;
use super::network::{Answered, Event, Network, What, Wire};
use super::rights::{self, Rights};
use super::server::{Executed, Server};

impl Server {
    pub(super) fn execute(&self, serial: u64) {
        let mut state = self.state.lock();
        let Network {
            wires,
            scripts_held,
            subscriptions_held,
            paused,
            ..
        } = &mut *state;
        let may_pass = |wire: &&mut Wire| !wire.commands_held && !*paused;
        let Some(wire) = wires.get_mut(&serial).filter(may_pass) else {
            return;
        };
        let is_held = match wire.commands.front().map(|next| &next.command) {
            Some(Command::Script { .. }) => scripts_held.contains(&wire.client),
            Some(Command::Change { .. }) => subscriptions_held.contains(&wire.client),
            _ => false,
        };
        if is_held {
            return;
        }
        let Some(written) = wire.commands.pop_front() else {
            return;
        };
        if let Some(next) = wire.commands.front() {
            let at = next.arrives_at.max(Instant::now());
            state.schedule(at, Event::Execute(serial));
        }
        state.executing = Some(serial);
        self.execute_command(&mut state, serial, written.command, false);
        state.executing = None;
        for message in std::mem::take(&mut state.deferred) {
            state.send(serial, message, Duration::ZERO);
        }
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
        self.execute_command(&mut state, serial, written.command, true);
    }

    fn execute_command(&self, state: &mut Network, serial: u64, command: Command, late: bool) {
        if let Some(name) = command.name()
            && !state.may_call(serial, name)
        {
            return state.answer(serial, Err(rights::no_command(name)));
        }
        let answered = match command {
            Command::Script {
                sha,
                source,
                keys,
                args,
            } => match self.execute_script(state, serial, (sha, source, keys, args), late) {
                Some(answered) => answered,
                None => return,
            },
            Command::Direct(words) => self.run_direct(state, serial, &words),
            Command::Without(_) => Ok(Reply::Text("OK".to_owned())),
            Command::Asking => {
                if let Some(wire) = state.wires.get_mut(&serial) {
                    wire.asking = true;
                }
                Ok(Reply::Text("OK".to_owned()))
            }
            Command::ClusterInfo => state.of_cluster(serial, Cluster::info),
            Command::ClusterId => state.of_cluster(serial, Cluster::id),
            Command::ClusterSlots => state.of_cluster(serial, Cluster::shown),
            Command::Ping(text) => Ok(state.pong(serial, text)),
            Command::Wait { replicas, within } => {
                let reached = Ok(Reply::Number(state.replicas.into()));
                let after = match i64::from(state.replicas) < replicas {
                    true => within,
                    false => Duration::ZERO,
                };
                return state.send(serial, What::Answer(reached), after);
            }
            Command::Info => {
                let wire = &state.wires[&serial];
                Ok(Reply::Text(format!(
                    "id={} addr={} laddr=0.0.0.0:0 fd=8",
                    wire.id, wire.address
                )))
            }
            Command::Kill { id, address } => Ok(Reply::Number(state.kill(id, &address))),
            Command::Change { name, channel } => {
                return state.change_channel(serial, &name, channel);
            }
            Command::Hello(_) if state.is_old => {
                Err("ERR unknown command 'HELLO', with args beginning with: '3' ".to_owned())
            }
            Command::Hello(version) => {
                if let (Some(wire), Some(version)) = (state.wires.get_mut(&serial), version) {
                    wire.is_new = version == "3";
                }
                Ok(hello())
            }
            Command::Tracking => self.track(state, serial),
        };
        state.answer(serial, answered);
    }

    /// `None`: its reply is lost, and so is the connection.
    fn execute_script(
        &self,
        state: &mut Network,
        serial: u64,
        (sha, source, keys, args): (String, Option<String>, Vec<String>, Vec<String>),
        late: bool,
    ) -> Option<Answered> {
        // Of what has changed before.
        self.report_changes(state);
        if let Some(text) = self.redirected(state, serial, &keys) {
            return Some(Err(text));
        }
        let Some(executed) = self.run_script(state, serial, &sha, source, keys, args) else {
            // Nothing has happened.
            let text = "NOSCRIPT No matching script. Please use EVAL.".to_owned();
            return Some(Err(text));
        };
        self.note_read(state, serial, &executed.keys);
        let executed = Executed { late, ..executed };
        let reply = executed.reply.clone();
        match &mut self.merged(state) {
            Some(merged) => self.observer.executed(&executed, merged),
            None => self
                .observer
                .executed(&executed, &mut self.keyspaces[0].lock()),
        }
        if state.replies_to_lose > 0 {
            // Replies come in order: the ones after it cannot arrive either.
            state.replies_to_lose -= 1;
            state.cut(serial, true);
            return None;
        }
        Some(reply)
    }

    /// A command that a script could call.
    fn run_direct(
        &self,
        state: &mut Network,
        serial: u64,
        words: &[String],
    ) -> Result<Reply, String> {
        let Wire { client, node, .. } = state.wires[&serial];
        let rights = state.rights.get(&client).cloned().unwrap_or_default();
        if !rights.may_call(&words[0]) {
            return Err(rights::no_command(&words[0]));
        }
        if words[0] == "publish" && !rights.may_use(&words[1]) {
            return Err(rights::no_channel());
        }
        let answer = self.with_keyspace_of(node, |keyspace| {
            keyspace.rights = Rights::default();
            keyspace.call(words)
        });
        self.deliver_published(state, node);
        answer.map(Answer::into_reply)
    }

    /// Passes on what a command has published. Returns the channels, those of one delivery if there are both.
    pub(super) fn deliver_published(&self, state: &mut Network, node: usize) -> Vec<String> {
        let (classic, sharded) = self.with_keyspace_of(node, |keyspace| {
            let classic = std::mem::take(&mut keyspace.published).into_iter();
            let classic: Vec<String> = classic.map(|(channel, _)| channel).collect();
            (classic, std::mem::take(&mut keyspace.published_in_shard))
        });
        classic.iter().for_each(|channel| state.publish(channel));
        for channel in &sharded {
            state.publish_in_shard(node, channel);
        }
        match sharded.is_empty() {
            true => classic,
            false => sharded,
        }
    }

    /// What a node of a cluster answers instead of executing a script.
    fn redirected(&self, state: &mut Network, serial: u64, keys: &[String]) -> Option<String> {
        let wire = state.wires.get_mut(&serial)?;
        let (node, asking) = (wire.node, std::mem::take(&mut wire.asking));
        let has = |key: &str| self.with_keyspace_of(node, |keyspace| keyspace.has(key));
        let cluster = state.cluster.as_ref()?;
        cluster.refuses(node, keys, asking, has)
    }

    /// `None`: the script is not known.
    fn run_script(
        &self,
        state: &mut Network,
        serial: u64,
        sha: &str,
        source: Option<String>,
        keys: Vec<String>,
        args: Vec<String>,
    ) -> Option<Executed> {
        let Wire { client, node, .. } = state.wires[&serial];
        if let Some(source) = source {
            state.lua[node].load(&source);
        }
        if !state.lua[node].is_loaded(sha) {
            return None;
        }
        let (before, expiries) = self.with_keyspace_of(node, |keyspace| {
            keyspace.rights = state.rights.get(&client).cloned().unwrap_or_default();
            [keyspace.listeners, keyspace.shard_listeners] = state.listeners(node);
            keys.iter()
                .map(|key| {
                    let holder = keyspace.holder(key);
                    let holder = holder.map(|(field, count)| (field.to_owned(), count));
                    (holder, keyspace.expires_at(key))
                })
                .unzip()
        });
        let reply = state.lua[node].run(sha, &keys, &args);
        let published = self.deliver_published(state, node);
        let (after, clock) = self.with_keyspace_of(node, |keyspace| {
            let holder = |key: &String| {
                let holder = keyspace.holder(key);
                holder.map(|(field, count)| (field.to_owned(), count))
            };
            let after = keys.iter().map(holder).collect();
            (after, keyspace.clock)
        });
        Some(Executed {
            client,
            node,
            stale: state.is_stale(node, &keys),
            wire: serial,
            late: false,
            script: state.lua[node].name(sha),
            keys,
            args,
            before,
            after,
            expiries,
            clock,
            reply,
            published,
        })
    }
}

/// The reply to HELLO.
fn hello() -> Reply {
    let fields = [("server", "redis"), ("version", "7.4.0")];
    let words = fields.into_iter().flat_map(|(name, value)| [name, value]);
    Reply::List(words.map(|word| Reply::Text(word.to_owned())).collect())
}
