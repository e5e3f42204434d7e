//! Callers that take several locks as one: what they may keep meanwhile, and which loss they are told.

use std::collections::BTreeMap;

use redisson_lock_test::sim::Keyspace;
use tokio::time::Instant;

use super::{Oracle, State, Terms, is_field_of};

impl Oracle {
    /// This call takes these locks together, with such a field in each.
    pub fn gathers(&self, call: u64, field: String, keys: Vec<String>) {
        if let Some(call) = self.state.lock().calls.get_mut(&call) {
            call.gathers = Some((field, keys));
        }
    }

    /// Of several holds of one guard this one was named as the first that was lost.
    pub fn named_as_lost(&self, named: u64, all: &[u64]) {
        let mut state = self.state.lock();
        let lost_at = |hold: &u64| state.holds.get(hold)?.lost_at;
        let earliest = all.iter().filter_map(|hold| Some((lost_at(hold)?, *hold)));
        let Some((at, first)) = earliest.min() else {
            return;
        };
        if lost_at(&named).is_none_or(|named| named > at) {
            let key = |hold| state.holds.get(&hold).map(|seen| seen.key.clone());
            let text = format!("{:?} is named as lost before {:?}", key(named), key(first));
            state.violated(self.start, text);
        }
    }

    /// A call that waits holds none of the locks that it takes together.
    pub(super) fn compare_gathering(
        &self,
        state: &mut State,
        terms: &Terms,
        keyspace: &Keyspace,
        now: Instant,
    ) {
        let mut kept = BTreeMap::new();
        for call in state.calls.values() {
            let Some((own, keys)) = &call.gathers else {
                continue;
            };
            let id = &terms.clients[call.client];
            for key in keys {
                let Some((field, count)) = keyspace.holder(key) else {
                    continue;
                };
                // A string lock has a value of its own for each taking.
                let is_string = terms.strings.contains(&key.as_str()) && is_field_of(id, field);
                if (is_string || field == own) && count > state.accounted(key, field) {
                    kept.insert((key.clone(), field.to_owned()), call.what.clone());
                }
            }
        }
        state.kept.retain(|of, _| kept.contains_key(of));
        for ((key, field), what) in kept {
            let of = (key, field);
            let since = *state.kept.entry(of.clone()).or_insert(now);
            let since = since.max(state.calm_since).max(state.moved_at);
            if terms.given_back && now > since + terms.wake_up {
                let (key, field) = of;
                let text = format!("{field} keeps {key} while it waits: {what}");
                state.violated(self.start, text);
            }
        }
    }
}

impl State {
    /// What is counted after this was taken later.
    pub(super) fn note_given_back(
        &mut self,
        key: &str,
        before: Option<&(String, i64)>,
        after: Option<&(String, i64)>,
    ) {
        let Some((field, count)) = before else { return };
        if after.is_none_or(|(other, left)| other != field || left < count) {
            self.kept.remove(&(key.to_owned(), field.clone()));
        }
    }

    /// How often a field may be counted: what callers hold, or anything if it is left to its lease.
    fn accounted(&self, key: &str, field: &str) -> i64 {
        let of = (key.to_owned(), field.to_owned());
        let is_left = self.lingering.contains(&of)
            || self.revived.contains(&of)
            || !self.unconfirmed.is_empty()
            || self.promotions.doubted(key, field).is_some();
        if is_left {
            return i64::MAX;
        }
        let holds = self.holds.values();
        let open = holds.filter(|seen| seen.key == key && *seen.field == *field);
        i64::try_from(open.count()).unwrap_or(i64::MAX)
    }
}
