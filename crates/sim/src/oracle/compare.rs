//! The comparisons: each promise is one of the `violated` below.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock::test_util::{self, Reply};
use redisson_lock_test::sim::{Executed, Keyspace, Observer};
use tokio::time::Instant;

use super::{Call, Oracle, Seen, State, Terms, is_field_of};

impl Observer for Oracle {
    /// Nobody holds, and nobody is inside a call.
    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.holds.is_empty() && state.calls.is_empty()
    }

    fn suspended(&self, time: Duration) {
        self.state.lock().stood_still += time;
    }

    fn executed(&self, executed: &Executed, keyspace: &mut Keyspace) {
        let mut state = self.state.lock();
        let Some(terms) = state.terms.clone() else {
            return;
        };
        self.note_expired(&mut state, keyspace);
        self.note_executed(&mut state, executed);
        if executed.stale {
            return state.note_stale(executed, keyspace);
        }
        self.compare_connection(&mut state, &terms, executed);
        self.compare_token(&mut state, executed);
        for (key, before) in executed.keys.iter().zip(&executed.before) {
            if is_token(key) || terms.is_read_write(key) || is_cover(key) {
                continue;
            }
            self.compare_change(&mut state, &terms, executed, key, before.as_ref(), keyspace);
        }
        self.compare_expiries(&mut state, executed, keyspace);
        self.compare_queues(&mut state, &terms, executed, keyspace);
        self.compare_parts(&mut state, &terms, executed, keyspace);
    }

    /// What everybody believes, against what is.
    fn observe(&self, keyspace: &mut Keyspace) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let Some(terms) = state.terms.clone() else {
            return;
        };
        self.note_expired(&mut state, keyspace);
        self.note_parts_now(&mut state, &terms, keyspace, now);
        self.compare_holds(&mut state, &terms, keyspace, now);
        self.compare_java(&mut state, &terms, keyspace);
        self.compare_exclusion(&mut state, &terms, now);
        self.compare_places(&mut state, &terms, keyspace, now);
        self.compare_calls(&mut state, &terms, keyspace, now);
        self.compare_gathering(&mut state, &terms, keyspace, now);
    }
}

/// The comparisons.
impl Oracle {
    fn note_expired(&self, state: &mut State, keyspace: &mut Keyspace) {
        for (key, field) in std::mem::take(&mut keyspace.expired) {
            if is_cover(&key) {
                continue;
            }
            let parts = state.terms.as_ref().map(|terms| terms.is_read_write(&key));
            if parts == Some(true) {
                state.say(self.start, || format!("  {key} ran out"));
                state.parts_ran_out(&key);
                continue;
            }
            // Another owner may have taken it since.
            state.java.remove(&(key.clone(), field.clone()));
            state.say(self.start, || format!("  {key} of {field} ran out"));
            state.rob(&key, &field);
            state.settle(&key, &field);
        }
    }

    fn note_executed(&self, state: &mut State, executed: &Executed) {
        state.counts.scripts += 1;
        if state.recording {
            state
                .executed
                .entry(Arc::clone(&executed.script))
                .or_default()
                .extend(executed.keys.iter().cloned());
        }
        state.counts.late += u64::from(executed.late);
        // It has not connected again, and so could not end the connection that this was sent on: the lease does it.
        if executed.late && state.closed.contains(&executed.client) {
            state.unconfirmed.push(executed.client);
        }
        state.say(self.start, || {
            let late = if executed.late { "LATE " } else { "" };
            let reply = match &executed.reply {
                Ok(reply) => test_util::shown(reply),
                Err(text) => text.clone(),
            };
            let Executed {
                script,
                args,
                client,
                wire,
                ..
            } = executed;
            format!("  {late}{script} {args:?} of client {client}, connection {wire}: {reply}")
        });
    }

    /// Nothing of a lost connection is executed after its successor was used.
    fn compare_connection(&self, state: &mut State, terms: &Terms, executed: &Executed) {
        let (client, wire) = (executed.client, executed.wire);
        let way = (client, executed.node);
        if !(terms.fenced[client] && terms.one_lane[client]) {
            return;
        }
        let newest = state.newest.entry(way).or_insert(wire);
        if executed.late && *newest > wire {
            state.violated(
                self.start,
                format!(
                    "{} was executed after its connection was replaced",
                    executed.script
                ),
            );
        } else {
            *newest = wire.max(*newest);
        }
    }

    /// Each owner that gets a fenced lock has a larger token than the one before, and keeps it.
    fn compare_token(&self, state: &mut State, executed: &Executed) {
        // It raises the token before it publishes, which may be refused: the owner that was to pass the lock still has it.
        if *executed.script == *"pass" && executed.reply.is_err() {
            state.tokens.remove(&executed.keys[0]);
        }
        let Ok(Reply::Text(token)) = &executed.reply else {
            return;
        };
        let (Ok(token), [key, _]) = (token.parse::<u64>(), &executed.keys[..]) else {
            return;
        };
        let after = executed.after[0].as_ref().map(|(field, _)| field.clone());
        let (Some(field), latest) = (after, state.tokens.get(key)) else {
            return;
        };
        let is_fine = latest.is_none_or(|(known, owner)| {
            let same_hold = executed.before[0].as_ref().map(|(field, _)| field) == Some(owner);
            match same_hold && *owner == field {
                true => token == *known,
                false => token > *known,
            }
        });
        if !is_fine {
            let problem = format!("{field} has token {token} after {latest:?}");
            state.violated(self.start, problem);
        }
        state.tokens.insert(key.clone(), (token, field));
    }

    /// A waiter sleeps until the last expiry that it saw, so an earlier one has to be published.
    fn compare_expiries(&self, state: &mut State, executed: &Executed, keyspace: &Keyspace) {
        for (key, before) in executed.keys.iter().zip(&executed.expiries) {
            let after = keyspace.expires_at(key);
            let terms = state.terms.as_ref();
            let has_parts = terms.is_some_and(|terms| terms.is_read_write(key));
            if is_token(key) || has_parts || is_cover(key) {
                continue;
            }
            let is_heard_of = |terms: &Terms| terms.announces(key) || terms.is_fair(key);
            let announced = terms.is_none_or(is_heard_of);
            let shortened = after.is_some() && after < *before;
            if announced && shortened && executed.published.is_empty() {
                let problem = format!("{} shortened {key} and told nobody", executed.script);
                state.violated(self.start, problem);
            }
        }
    }

    /// Who may do what to a lock, and what has to come of it.
    fn compare_change(
        &self,
        state: &mut State,
        terms: &Terms,
        executed: &Executed,
        key: &str,
        before: Option<&(String, i64)>,
        keyspace: &Keyspace,
    ) {
        let Executed { script, client, .. } = executed;
        let after = keyspace
            .holder(key)
            .map(|(field, count)| (field.to_owned(), count));
        if after.as_ref() == before {
            return;
        }
        state.note_given_back(key, before, after.as_ref());
        if let Some((field, _)) = &after
            && before.is_none_or(|(other, _)| other != field)
        {
            let of = (key.to_owned(), field.clone());
            if !executed.late && state.spent.contains(&of) {
                let problem = format!("{script} gave {key} a value that was there before: {field}");
                state.violated(self.start, problem);
            }
            if executed.late && state.robbed.remove(&of).is_some() {
                // A late copy of its own acquire: the owner that was robbed has the field again, for that lease.
                state.revived.insert(of);
            } else {
                // Acquired again: what was done to an earlier hold of this owner is over.
                state.robbed.remove(&of);
                state.revived.remove(&of);
            }
            state.promotions.taken_anew(key, field);
            state.settle(key, field);
        }
        if after.is_some() && keyspace.expires_at(key).is_none() {
            state.violated(self.start, format!("{script} left {key} without an expiry"));
        }
        let Some((field, _)) = before else { return };
        state.note_spent(terms, script, (key, field.as_str()));
        if after.as_ref().is_none_or(|(other, _)| other != field) {
            state.settle(key, field);
        }
        if **script == *"force_unlock" {
            self.compare_forced(state, executed);
            state.java.remove(&(key.to_owned(), field.clone()));
            state.rob(key, field);
        } else if !is_field_of(&terms.clients[*client], field) {
            state.violated(
                self.start,
                format!("{script} of client {client} changed the hold of {field}"),
            );
        }
        if let Some((to, count)) = after.as_ref().filter(|(to, _)| to != field)
            && (!is_field_of(&terms.clients[*client], to) || *count != 1)
        {
            let problem =
                format!("{script} of client {client} gave {key} to {to}, {count} times over");
            state.violated(self.start, problem);
        }
        if terms.announces(key) && after.is_none() && executed.published.is_empty() {
            state.violated(self.start, format!("{script} freed {key} and told nobody"));
        }
    }

    /// A forced unlock that took effect.
    pub(super) fn compare_forced(&self, state: &mut State, executed: &Executed) {
        let limit = executed.args[1].parse::<u64>();
        if !limit.is_ok_and(|limit| executed.clock <= limit) {
            let clock = executed.clock;
            let problem = format!("a force_unlock took effect at {clock}, after its limit");
            state.violated(self.start, problem);
        }
        let forcing = state.forcing.get(&executed.client);
        if forcing.is_none_or(|&calls| calls == 0) {
            let problem = "a force_unlock took effect after its call had ended";
            state.violated(self.start, problem.to_owned());
        }
    }

    /// Java has what it believes that it has.
    fn compare_java(&self, state: &mut State, terms: &Terms, keyspace: &Keyspace) {
        for ((key, field), count) in state.java.clone() {
            let found = match terms.is_read_write(&key) {
                true => keyspace.holders(&key),
                // One alone.
                false => Vec::from_iter(keyspace.holder(&key))
                    .into_iter()
                    .map(|(field, count)| (field.to_owned(), count))
                    .collect(),
            };
            if !found.contains(&(field, count)) {
                let found = keyspace.shown(&key);
                let problem = format!("Java's hold of {key} was disturbed: found {found:?}");
                state.violated(self.start, problem);
            }
        }
    }

    fn compare_holds(&self, state: &mut State, terms: &Terms, keyspace: &Keyspace, now: Instant) {
        let (mut lost, mut problems) = (Vec::new(), Vec::new());
        let mut holds = std::mem::take(&mut state.holds);
        for (&serial, seen) in holds.iter_mut().filter(|(_, seen)| !seen.closing) {
            if let Some(reason) = test_util::loss(&seen.held) {
                (seen.closing, seen.lost_at) = (true, Some(now));
                lost.push((serial, reason));
                continue;
            }
            let found = self.compare_hold(state, terms, keyspace, now, seen);
            let who = |text| format!("{} on {}{text}", seen.field, seen.key);
            problems.extend(found.into_iter().map(who));
        }
        state.holds = holds;
        for problem in problems {
            state.violated(self.start, problem);
        }
        for (serial, reason) in lost {
            let Some(seen) = state.holds.get(&serial) else {
                continue;
            };
            let (key, field) = (seen.key.clone(), seen.field.clone());
            let (began, valid_until) = (seen.began, seen.valid_until);
            state.say(self.start, || format!("  {field} lost {key}: {reason}"));
            state.told_lost(self.start, &key, &field, reason, began, Some(valid_until));
        }
    }

    /// What is wrong with a hold that is not lost.
    fn compare_hold(
        &self,
        state: &mut State,
        terms: &Terms,
        keyspace: &Keyspace,
        now: Instant,
        seen: &mut Seen,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        let Some(hold) = test_util::snapshot(&seen.held) else {
            return problems;
        };
        let (key, field) = (&seen.key, &seen.field);
        let valid_until = hold.valid_until();
        if valid_until < seen.valid_until && seen.valid_until > now {
            problems.push(": the deadline moved back".to_owned());
        }
        seen.valid_until = valid_until;
        if valid_until <= now {
            if valid_until.max(state.moved_at) + TOLD_WITHIN <= now {
                let since = now - valid_until;
                problems.push(format!(
                    ": the deadline passed {since:?} ago and its holder was not told"
                ));
            }
            return problems;
        }
        let of = (key.clone(), field.to_string());
        let doubted = state.promotions.doubted(key, field);
        let calm_since = state.calm_since.max(state.moved_at);
        if let Some(&robbed) = state.robbed.get(&of) {
            state.behind_own.insert((seen.client, key.clone()), now);
            let since = robbed.max(calm_since);
            let until = match doubted {
                // All that it serves is checked immediately.
                Some((at, until)) if robbed == at => until + TOLD_WITHIN,
                Some(_) | None => since + terms.found_within(),
            };
            if terms.answers_in_time && now > until {
                let since = now - since;
                problems.push(format!(": lost {since:?} ago and not told"));
            }
            return problems;
        }
        if doubted.is_some_and(|(_, until)| now <= until) || state.revived.contains(&of) {
            return problems;
        }
        let problem = match terms.is_read_write(key) {
            true => {
                let since = seen.fine_at.max(seen.taken_at).max(calm_since);
                let unsure = !terms.answers_in_time || now <= since + terms.found_within();
                // The reply that says so may be older than what was shortened.
                let sent_at = valid_until.checked_sub(terms.watchdog_timeout);
                let told_at = seen.fine_at.min(sent_at.unwrap_or(self.start));
                let excused = unsure && state.parts.is_cut(key, told_at);
                let until = valid_until - self.start;
                state.parts.contradicted(key, field, until, excused)
            }
            false => self.contradicted(keyspace, key, field, valid_until),
        };
        match problem {
            None => seen.fine_at = now,
            Some(text) if text.is_empty() => {}
            Some(text) => problems.push(format!(" {text}")),
        }
        problems
    }

    /// What the server has against the belief that a field holds until then.
    fn contradicted(
        &self,
        keyspace: &Keyspace,
        key: &str,
        field: &str,
        valid_until: Instant,
    ) -> Option<String> {
        let found = keyspace.holder(key);
        if found.is_none_or(|(holder, _)| holder != field) {
            return Some(format!("believes that it holds; the server has {found:?}"));
        }
        let ends = keyspace
            .expires_at(key)
            .map(|at| self.start + Duration::from_millis(at));
        ends.is_none_or(|ends| ends < valid_until)
            .then(|| "is believed beyond the server's expiry".to_owned())
    }

    fn compare_calls(&self, state: &mut State, terms: &Terms, keyspace: &Keyspace, now: Instant) {
        let wanted: Vec<String> = state
            .calls
            .values()
            .flat_map(|call| call.waits_for.iter().cloned())
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
            if let Some(free) = state.free_for(call, terms) {
                let since = free.max(call.began).max(state.calm_since);
                let pause = match call.gathers {
                    Some(_) => BETWEEN_ROUNDS,
                    None => Duration::ZERO,
                };
                if now > since + terms.wake_up + pause {
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

impl State {
    /// A released value does not come back. That of a hold that another program has ended may: its acquisition is sent
    /// again if it had no answer.
    fn note_spent(&mut self, terms: &Terms, script: &str, (key, value): (&str, &str)) {
        if terms.strings.contains(&key) && ["release", "pass"].contains(&script) {
            self.spent.insert((key.to_owned(), value.to_owned()));
        }
    }

    /// Since when all locks that a call waits for are free, with no earlier caller of its client. `None`: they are not.
    fn free_for(&self, call: &Call, terms: &Terms) -> Option<Instant> {
        let since = call.waits_for.iter().map(|key| {
            let free = match key {
                key if terms.is_fair(key) => self.places.turn_of(key, call, terms)?,
                key if terms.is_read_write(key) => self.parts.open_for(key, call, terms)?,
                key => *self.free_since.get(key)?,
            };
            let own = self.behind_own.get(&(call.client, key.clone()));
            Some(own.map_or(free, |own| free.max(*own)))
        });
        since.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

impl Terms {
    pub(super) fn is_fair(&self, key: &str) -> bool {
        self.fair.contains(&key)
    }

    pub(super) fn is_read_write(&self, key: &str) -> bool {
        self.read_write.contains(&key)
    }

    fn announces(&self, key: &str) -> bool {
        !self.silent.contains(&key)
    }

    /// How soon the next renewal finds that a key is gone.
    fn found_within(&self) -> Duration {
        self.watchdog_timeout / 3 + self.command_timeout + TOLD_WITHIN
    }
}

/// A timer may fire this late, and a tick of the server lies in between.
const TOLD_WITHIN: Duration = Duration::from_millis(220);

/// The longest pause of a call that takes several locks, and how long it waits to be the first in each queue.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(1_200);

/// Of a read hold; its lock says what it is for.
fn is_cover(key: &str) -> bool {
    key.contains(":rwlock_timeout:")
}

/// Of a fenced lock; nothing but its own scripts writes it.
pub(super) fn is_token(key: &str) -> bool {
    key.starts_with("redisson_lock_token:")
}
