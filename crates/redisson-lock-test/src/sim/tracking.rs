//! Reports of changes: of a key that a connection has read, and another one has changed since.

use std::collections::BTreeMap;
use std::time::Duration;

use redisson_lock::test_util::Reply;

use super::network::{Answered, Network, What};
use super::server::Server;

impl Server {
    /// From now on servers know the older version of the protocol alone, which has no reports.
    pub fn speak_the_older_version(&self) {
        self.state.lock().is_old = true;
    }

    /// From now on connections may ask for reports.
    pub fn report(&self) {
        self.state.lock().reports = true;
    }

    /// CLIENT TRACKING.
    pub(super) fn track(&self, state: &mut Network, serial: u64) -> Answered {
        if !state.reports || state.is_old {
            return Err(
                "ERR Unknown subcommand or wrong number of arguments for 'TRACKING'".to_owned(),
            );
        }
        if let Some(wire) = state.wires.get_mut(&serial) {
            wire.tracking = Some(BTreeMap::new());
        }
        Ok(Reply::Text("OK".to_owned()))
    }

    /// A connection has read these keys, after anything that it has written.
    pub(super) fn note_read(&self, state: &mut Network, serial: u64, keys: &[String]) {
        let Some(wire) = state.wires.get_mut(&serial) else {
            return;
        };
        let Some(tracking) = &mut wire.tracking else {
            return;
        };
        self.with_keyspace_of(wire.node, |keyspace| {
            let stored = |key: &String| (key.clone(), keyspace.stored(key).cloned());
            tracking.extend(keys.iter().map(stored));
        });
    }

    /// Reports each change once: what was reported has to be read again.
    pub(super) fn report_changes(&self, state: &mut Network) {
        let mut reports = Vec::new();
        for (serial, wire) in &mut state.wires {
            let Some(tracking) = &mut wire.tracking else {
                continue;
            };
            self.with_keyspace_of(wire.node, |keyspace| {
                tracking.retain(|key, read| {
                    let is_as_read = keyspace.stored(key) == read.as_ref();
                    if !is_as_read {
                        reports.push((*serial, key.clone()));
                    }
                    is_as_read
                });
            });
        }
        for (serial, key) in reports {
            let words = [
                Reply::Text("invalidate".to_owned()),
                Reply::List(vec![Reply::Text(key)]),
            ];
            state.send(serial, What::Push(words.into()), Duration::ZERO);
        }
    }
}
