//! Reports of changes: of a key that a connection has read, and another one has changed since.

use std::collections::BTreeMap;

use redisson_lock::test_util::Report;

use super::network::{Network, Tracking, What};
use super::server::Server;

impl Server {
    /// From now on connections may ask for reports.
    pub fn report(&self) {
        self.state.lock().reports = true;
    }

    /// Has this connection get reports. `false`: the server makes none.
    pub(super) fn track(&self, serial: u64, report: Report) -> bool {
        let mut state = self.state.lock();
        let reports = state.reports;
        if let Some(wire) = state.wires.get_mut(&serial).filter(|_| reports) {
            let read = BTreeMap::new();
            wire.tracking = Some(Tracking { report, read });
        }
        reports
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
            tracking.read.extend(keys.iter().map(stored));
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
                tracking.read.retain(|key, read| {
                    let is_as_read = keyspace.stored(key) == read.as_ref();
                    if !is_as_read {
                        reports.push((*serial, key.clone()));
                    }
                    is_as_read
                });
            });
        }
        for (serial, key) in reports {
            state.send(serial, What::Report(key));
        }
    }
}
