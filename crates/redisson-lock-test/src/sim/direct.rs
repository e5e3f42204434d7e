//! The server without a task: what it is sent is executed before the call returns, on any thread.
//!
//! `write` and the methods of this file call [`Server::settle`], which lets everything happen that
//! can. Data is only changed with the network's state locked, so never in the middle of a script.

use std::cmp::Reverse;
use std::sync::Arc;

use redisson_lock::test_util::{Reply, ScriptCall};
use tokio::time::Instant;

use super::command::text;
use super::keyspace::{Keyspace, RenewReply, is_read_hold};
use super::network::{Event, Latency, Network};
use super::rights::Rights;
use super::server::{Executed, Observer, Pace, Server};

impl Server {
    /// A server that needs no task.
    pub(crate) fn without_task() -> Arc<Self> {
        let latency = Latency {
            least: 0,
            usual: 0,
            seldom: 0,
            seldom_percent: 0,
        };
        Self::with_pace(0, latency, Arc::new(Nobody), Pace::AtOnce, 1)
    }

    /// Lets everything happen that can happen now, if no task does it.
    pub(super) fn settle(&self) {
        if self.pace == Pace::Events {
            return;
        }
        loop {
            // The lock is not held while the event happens.
            let next = self.state.lock().events.pop();
            let Some(Reverse((.., event))) = next else {
                return;
            };
            self.happen(event);
        }
    }

    /// From now on this many replicas have what is written.
    pub(crate) fn set_replicas(&self, count: u32) {
        self.state.lock().replicas = count;
    }

    /// Commands wait, and so do messages, until [`Self::resume`].
    pub(crate) fn pause(&self) {
        let mut state = self.state.lock();
        state.paused = true;
        self.with_keyspace(|keyspace| {
            keyspace.paused_at = keyspace.paused_at.or(Some(keyspace.now))
        });
    }

    pub(crate) fn resume(&self) {
        {
            let mut state = self.state.lock();
            state.paused = false;
            self.with_keyspace(|keyspace| keyspace.paused_at = None);
            let serials: Vec<u64> = state.wires.keys().copied().collect();
            for serial in serials {
                state.schedule(Instant::now(), Event::Execute(serial));
                state.schedule(Instant::now(), Event::Deliver(serial));
            }
        }
        self.settle();
    }

    pub(crate) fn lose_reply(&self) {
        self.state.lock().replies_to_lose += 1;
    }

    pub(crate) fn cut_everyone(&self) {
        self.state.lock().cut_all();
    }

    /// Looks at the data, or changes it, between two scripts.
    pub(crate) fn between_scripts<T>(&self, work: impl FnOnce(&mut Keyspace) -> T) -> T {
        let done = {
            let mut state = self.state.lock();
            let done = self.with_keyspace(work);
            self.report_changes(&mut state);
            done
        };
        self.settle();
        done
    }

    /// Another client takes the lock from its holder, and renews it from now on.
    pub(crate) fn take(
        &self,
        key: &str,
        field: &str,
        covering: Option<&Arc<str>>,
        acquire: &ScriptCall,
    ) {
        let mut state = self.state.lock();
        self.with_keyspace(|keyspace| keyspace.delete_lock(key));
        let taken = self.call(&mut state, acquire);
        // The token of a fenced lock is text.
        let is_taken = matches!(taken, Ok(Reply::Number(1 | 2) | Reply::Text(_)));
        assert!(is_taken, "it is free: {taken:?}");
        let since = self.now();
        let renewed = |value: &str| RenewReply {
            field: value.to_owned(),
            since,
        };
        self.with_keyspace(|keyspace| {
            keyspace.renewed.insert(key.to_owned(), renewed(field));
            if let Some(covering) = covering {
                keyspace.renewed.insert(covering.to_string(), renewed("1"));
            }
        });
        self.report_changes(&mut state);
        drop(state);
        self.settle();
    }

    /// That client renews the lock no more.
    pub(crate) fn stop_renewing(&self, key: &str, field: &str) {
        self.between_scripts(|keyspace| {
            let is_its = |renewed: &RenewReply| renewed.field == field;
            if keyspace.renewed.get(key).is_some_and(is_its) {
                keyspace.renewed.remove(key);
                let covers = |covering: &str| is_read_hold(key, covering);
                keyspace.renewed.retain(|other, _| !covers(other));
            }
        });
    }

    /// Runs a script as a client that is not simulated would.
    pub(crate) fn run_for_another(&self, call: &ScriptCall) -> Result<Reply, String> {
        let reply = {
            let mut state = self.state.lock();
            let reply = self.call(&mut state, call);
            self.report_changes(&mut state);
            reply
        };
        self.settle();
        reply
    }

    fn call(&self, state: &mut Network, call: &ScriptCall) -> Result<Reply, String> {
        let keys: Vec<String> = call.keys.iter().map(|key| key.to_string()).collect();
        let args: Vec<String> = call.args.iter().map(text).collect();
        self.with_keyspace(|keyspace| {
            keyspace.rights = Rights::default();
            [keyspace.listeners, keyspace.shard_listeners] = state.listeners(0);
        });
        let sha = state.lua[0].load(call.source);
        let reply = state.lua[0].run(&sha, &keys, &args);
        self.deliver_published(state, 0);
        reply
    }
}

/// Nobody looks on.
struct Nobody;

impl Observer for Nobody {
    fn is_idle(&self) -> bool {
        true
    }

    fn executed(&self, _: &Executed, keyspace: &mut Keyspace) {
        // Kept for observers.
        keyspace.expired.clear();
    }

    fn observe(&self, _: &mut Keyspace) {}
}
