//! The comparisons: each promise is one of the `violated` below.

use std::time::Duration;

use tokio::time::Instant;

use super::{Seen, State, Terms, Watch};
use crate::hold::Ending;
use crate::sim::keyspace::Keyspace;
use crate::sim::server::Executed;

/// The comparisons.
impl Watch {
    /// A script was executed.
    pub(in crate::sim) fn executed(&self, executed: &Executed, keyspace: &mut Keyspace) {
        let mut state = self.state.lock();
        let Some(terms) = state.terms.clone() else {
            return;
        };
        let Executed {
            client,
            wire,
            late,
            script,
            ..
        } = *executed;
        self.note_expired(&mut state, keyspace);
        state.counts.scripts += 1;
        if state.recording {
            state
                .executed
                .entry(script)
                .or_default()
                .extend(executed.keys.iter().cloned());
        }
        state.counts.late += u64::from(late);
        state.say(self.start, || {
            let late = if late { "LATE " } else { "" };
            let reply = match &executed.reply {
                Ok(reply) => reply.shown(),
                Err(text) => text.clone(),
            };
            format!(
                "  {late}{script} {:?} of client {client}, connection {wire}: {reply}",
                executed.args
            )
        });
        if terms.fenced[client] && terms.one_lane[client] {
            let newest = state.newest.entry(client).or_insert(wire);
            if late && *newest > wire {
                state.violated(
                    self.start,
                    format!("{script} was executed after its connection was replaced"),
                );
            } else {
                *newest = wire.max(*newest);
            }
        }
        for (key, before) in executed.keys.iter().zip(&executed.before) {
            let after = keyspace
                .holder(key)
                .map(|(field, count)| (field.to_owned(), count));
            if after == *before {
                continue;
            }
            if let Some((field, _)) = &after
                && before.as_ref().is_none_or(|(other, _)| other != field)
            {
                // Taken anew: what was done to an earlier hold of this owner is over.
                state.robbed.remove(&(key.clone(), field.clone()));
            }
            if after.is_some() && keyspace.expires_at(key).is_none() {
                state.violated(self.start, format!("{script} left {key} without an expiry"));
            }
            let Some((field, _)) = before else { continue };
            if script == "force_unlock" {
                let forcing = state.forcing.get(&client).is_some_and(|&calls| calls > 0);
                // A closed client has no next connection, and so no fence.
                if terms.fenced[client] && !forcing && !state.closed.contains(&client) {
                    state.violated(
                        self.start,
                        "a force_unlock took effect after its call had ended".to_owned(),
                    );
                }
                state.java.remove(key);
                state.rob(key, field);
            } else if !crate::wire::is_field_of(&terms.clients[client], field) {
                state.violated(
                    self.start,
                    format!("{script} of client {client} changed the hold of {field}"),
                );
            }
            if after.is_none() && executed.published.is_empty() {
                state.violated(self.start, format!("{script} freed {key} and told nobody"));
            }
        }
    }

    fn note_expired(&self, state: &mut State, keyspace: &mut Keyspace) {
        for (key, field) in std::mem::take(&mut keyspace.expired) {
            // Somebody else may have taken it since.
            if state.java.get(&key).is_some_and(|(java, _)| *java == field) {
                state.java.remove(&key);
            }
            state.say(self.start, || format!("  {key} of {field} ran out"));
            state.rob(&key, &field);
        }
    }

    /// What everybody believes, against what is.
    pub(in crate::sim) fn compare(&self, keyspace: &mut Keyspace) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let Some(terms) = state.terms.clone() else {
            return;
        };
        self.note_expired(&mut state, keyspace);
        self.compare_holds(&mut state, &terms, keyspace, now);
        for (key, (field, count)) in state.java.clone() {
            if keyspace.holder(&key) != Some((&field, count)) {
                let found = keyspace.shown(&key);
                state.violated(
                    self.start,
                    format!("Java's hold of {key} was disturbed: found {found:?}"),
                );
            }
        }
        self.compare_calls(&mut state, &terms, keyspace, now);
    }

    fn compare_holds(&self, state: &mut State, terms: &Terms, keyspace: &Keyspace, now: Instant) {
        let mut lost = Vec::new();
        let mut problems = Vec::new();
        for (&serial, seen) in state.holds.iter_mut().filter(|(_, seen)| !seen.closing) {
            let Seen {
                client,
                key,
                field,
                held,
                valid_until: known,
                began,
                ..
            } = seen;
            if let Some(Ending::Lost(reason)) = held.status.ending() {
                lost.push((serial, key.clone(), field.clone(), reason, *began, *known));
                continue;
            }
            let Some(view) = held.entry.peek(held.owner.thread_id(), &held.status) else {
                continue;
            };
            let valid_until = view
                .ends
                .map_or(view.deadline, |ends| ends.min(view.deadline));
            let who = || format!("{field} on {key}");
            if valid_until < *known && *known > now {
                problems.push(format!("{}: the deadline moved back", who()));
            }
            *known = valid_until;
            if valid_until <= now {
                if valid_until.max(state.moved_at) + TOLD_WITHIN <= now {
                    problems.push(format!(
                        "{}: the deadline passed {:?} ago and nobody was told",
                        who(),
                        now - valid_until
                    ));
                }
                continue;
            }
            let robbed = state.robbed.get(&(key.clone(), field.to_string()));
            if let Some(&robbed) = robbed {
                state.behind_own.insert((*client, key.clone()), now);
                let since = robbed.max(state.calm_since).max(state.moved_at);
                let bound = terms.watchdog_timeout / 3 + terms.command_timeout + TOLD_WITHIN;
                if terms.answers_in_time && now > since + bound {
                    problems.push(format!(
                        "{}: lost {:?} ago and not told",
                        who(),
                        now - since
                    ));
                }
                continue;
            }
            match keyspace.holder(key) {
                Some((holder, _)) if *holder == **field => {
                    let ends = keyspace
                        .expires_at(key)
                        .map(|at| self.start + Duration::from_millis(at));
                    if ends.is_none_or(|ends| ends < valid_until) {
                        problems.push(format!("{}: believed beyond the server's expiry", who()));
                    }
                }
                found => problems.push(format!(
                    "{} believes that it holds; the server has {found:?}",
                    who()
                )),
            }
        }
        for problem in problems {
            state.violated(self.start, problem);
        }
        for (serial, key, field, reason, began, valid_until) in lost {
            if let Some(seen) = state.holds.get_mut(&serial) {
                seen.closing = true;
            }
            state.say(self.start, || format!("  {field} lost {key}: {reason}"));
            state.told_lost(self.start, &key, &field, reason, began, Some(valid_until));
        }
    }

    fn compare_calls(&self, state: &mut State, terms: &Terms, keyspace: &Keyspace, now: Instant) {
        let wanted: Vec<String> = state
            .calls
            .values()
            .filter_map(|call| call.waits_for.clone())
            .collect();
        for key in &wanted {
            if keyspace.shown(key).is_empty() {
                state.free_since.entry(key.clone()).or_insert(now);
            }
        }
        state
            .free_since
            .retain(|key, _| keyspace.shown(key).is_empty() && wanted.contains(key));
        let mut problems = Vec::new();
        for call in state.calls.values() {
            let stood_still = state.stood_still - call.stood_still;
            if call
                .limit
                .is_some_and(|limit| now > call.began + limit + stood_still)
            {
                problems.push(format!(
                    "client {} {} does not return",
                    call.client, call.what
                ));
            }
            let free = call
                .waits_for
                .as_ref()
                .and_then(|key| state.free_since.get(key));
            if let Some(&free) = free {
                let own = call
                    .waits_for
                    .clone()
                    .and_then(|key| state.behind_own.get(&(call.client, key)));
                let since = free
                    .max(call.began)
                    .max(state.calm_since)
                    .max(own.copied().unwrap_or(free));
                if now > since + terms.wake_up {
                    problems.push(format!(
                        "client {} {} sleeps while the lock is free",
                        call.client, call.what
                    ));
                }
            }
        }
        for problem in problems {
            state.violated(self.start, problem);
        }
    }
}

/// A timer may fire this late, and a tick of the watch lies in between.
const TOLD_WITHIN: Duration = Duration::from_millis(220);
