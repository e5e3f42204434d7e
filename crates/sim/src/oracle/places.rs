//! The queues of fair locks: who is told, who may take the lock, and whose place has no call any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson_lock_test::sim::{Executed, Keyspace};
use tokio::time::Instant;

use super::{Call, Oracle, State, Terms, is_field_of};

#[derive(Default)]
pub(super) struct Places {
    /// As they were last seen, by lock.
    queues: BTreeMap<String, Vec<Place>>,
    /// Places that Java has shortened, until their owners ask again: one that leaves the queue takes its whole wait off the
    /// places behind it, however much of it was over, and whatever their own waits are.
    shortened: BTreeSet<(String, String)>,
    /// Since when no call wants it.
    unwanted: BTreeMap<(String, String), Instant>,
    /// The release of these may have given up.
    abandoned: BTreeSet<(String, String)>,
    /// Of the locks that are free.
    turns: BTreeMap<String, Turn>,
    /// How many messages were published to a channel, and when the latest was.
    told: BTreeMap<String, (u64, Instant)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Place {
    field: String,
    /// By the server's clock. `None`: it has no score.
    ends: Option<u64>,
}

/// A lock is free.
struct Turn {
    since: Instant,
    /// The owner that may take it. `None`: anybody.
    of: Option<String>,
    /// No message said so: a lease has run out, or places before it have ended. A waiter finds it when it looks.
    untold: bool,
}

impl Place {
    fn is_over(&self, clock: u64) -> bool {
        self.ends.is_some_and(|ends| ends <= clock)
    }
}

/// The unlock channel.
pub fn channel(key: &str) -> String {
    beside("redisson_lock__channel", key)
}

/// The channel of a read-write lock.
pub fn parts_channel(key: &str) -> String {
    beside("redisson_rwlock", key)
}

/// The keys of a fair lock's queue, and of the times when its places end.
pub fn queue_keys(key: &str) -> [String; 2] {
    ["redisson_lock_queue", "redisson_lock_timeout"].map(|prefix| beside(prefix, key))
}

/// A name with that of the lock, by Redisson's rule.
fn beside(prefix: &str, key: &str) -> String {
    match key.contains('{') {
        true => format!("{prefix}:{key}"),
        false => format!("{prefix}:{{{key}}}"),
    }
}

/// The channel on which an owner is told that it may have a fair lock.
pub fn channel_of(key: &str, field: &str) -> String {
    format!("{}:{field}", channel(key))
}

fn queue(keyspace: &Keyspace, key: &str) -> Vec<Place> {
    let [list, set] = queue_keys(key);
    let scores = keyspace.sorted_set(&set);
    let place = |field: &String| {
        let score = scores.iter().find(|(_, member)| member == field);
        Place {
            field: field.clone(),
            ends: score.map(|(score, _)| *score as u64),
        }
    };
    keyspace.list(&list).iter().map(place).collect()
}

impl Oracle {
    /// A call waits for a fair lock, in whose queue its owner has this field.
    pub fn queues(&self, call: u64, key: &str, field: String) {
        if let Some(call) = self.state.lock().calls.get_mut(&call) {
            call.queues = Some((key.to_owned(), field));
        }
    }

    /// A client outside of the simulated ones has published that the owner with this channel may have the lock.
    pub fn tell(&self, channel: &str) {
        self.state.lock().places.tell(channel);
    }

    /// How many messages were published to a channel.
    pub fn told(&self, channel: &str) -> u64 {
        let state = self.state.lock();
        state
            .places
            .told
            .get(channel)
            .map_or(0, |(times, _)| *times)
    }

    /// What a script has done to the queue of a fair lock.
    pub(super) fn compare_queues(
        &self,
        state: &mut State,
        terms: &Terms,
        executed: &Executed,
        keyspace: &Keyspace,
    ) {
        for channel in &executed.published {
            state.places.tell(channel);
        }
        let fair = executed.keys.iter().zip(&executed.before);
        for (key, held) in fair.filter(|(key, _)| terms.is_fair(key)) {
            let after = queue(keyspace, key);
            let before = state.places.queues.insert(key.clone(), after.clone());
            let before = before.unwrap_or_default();
            let held = held.as_ref().map(|(field, _)| field.as_str());
            let holder = keyspace.holder(key).map(|(field, _)| field);
            let mut problems = Vec::from_iter(uneven(keyspace, key));
            problems.extend(out_of_turn(key, held, holder, &before, executed.clock));
            problems.extend(untold(executed, key, held, holder, &before, &after));
            if terms.healthy {
                problems.extend(state.deprived(key, holder, &before, &after));
            }
            state.note_places(holder, &before, &after);
            let owner = executed.args.first();
            let owner = owner.filter(|_| *executed.script == *"acquire");
            let asking = state.calls.values_mut();
            let asking =
                asking.filter(|call| owner.is_some_and(|owner| call.has_place(key, owner)));
            for call in asking {
                call.asked += 1;
                if let Some(of) = &call.queues {
                    state.places.shortened.remove(of);
                }
            }
            for problem in problems {
                state.violated(self.start, format!("{}: {problem}", executed.script));
            }
        }
    }

    /// What the queues are like now.
    pub(super) fn compare_places(
        &self,
        state: &mut State,
        terms: &Terms,
        keyspace: &Keyspace,
        now: Instant,
    ) {
        let mut unwanted = BTreeSet::new();
        for &key in &terms.fair {
            let places = queue(keyspace, key);
            if let Some(problem) = uneven(keyspace, key) {
                state.violated(self.start, problem);
            }
            state.note_turn(key, &places, keyspace, now);
            let own = |place: &&Place| {
                let clients = terms.clients.iter().enumerate();
                let mut clients = clients.filter(|(_, id)| is_field_of(id, &place.field));
                clients.any(|(nth, _)| !state.unconfirmed.contains(&nth))
            };
            let without_call = places.iter().filter(own).filter(|place| {
                let mut calls = state.calls.values();
                !calls.any(|call| call.has_place(key, &place.field))
            });
            unwanted.extend(without_call.map(|place| (key.to_owned(), place.field.clone())));
            state.places.note_java(key, &places);
            state.places.queues.insert(key.to_owned(), places);
        }
        let known = &mut state.places.unwanted;
        known.retain(|of, _| unwanted.contains(of));
        for of in unwanted {
            known.entry(of).or_insert(now);
        }
        let calm = state.calm_since.max(state.moved_at);
        // A release tries for as long as a place counts, after a lease that is renewed.
        let abandoned = |since: Instant| calm > since + terms.fair_wait + terms.watchdog_timeout;
        let late = |since: Instant| now > since.max(calm) + terms.wake_up && !abandoned(since);
        let left = known.iter().find(|(_, since)| late(**since));
        let text = left.map(|((key, field), since)| {
            let time = now - *since;
            format!("{field} has a place at {key} without a call for {time:?}")
        });
        let given_up = known.iter().filter(|(_, since)| abandoned(**since));
        let given_up: Vec<_> = given_up.map(|(of, _)| of.clone()).collect();
        state.places.abandoned.extend(given_up);
        if let Some(text) = text.filter(|_| terms.given_back) {
            state.violated(self.start, text);
        }
    }

    /// Whether a place may have stayed in the queue because an outage was longer than a place counts.
    pub fn is_abandoned(&self, key: &str, field: &str) -> bool {
        let state = self.state.lock();
        let of = (key.to_owned(), field.to_owned());
        state.places.abandoned.contains(&of)
    }
}

/// List and set have the same members, each once, and who has the lock is none of them.
fn uneven(keyspace: &Keyspace, key: &str) -> Option<String> {
    let [list, set] = queue_keys(key);
    let (list, scores) = (keyspace.list(&list), keyspace.sorted_set(&set));
    let members: BTreeSet<_> = scores.iter().map(|(_, member)| member).collect();
    let queued: BTreeSet<_> = list.iter().collect();
    let holder = keyspace.holder(key).map(|(field, _)| field.to_owned());
    let holds = holder
        .as_ref()
        .is_some_and(|holder| queued.contains(holder));
    let is_even = queued == members && queued.len() == list.len() && !holds;
    (!is_even).then(|| format!("{key}, held by {holder:?}, has the queue {list:?} and {scores:?}"))
}

/// Who takes the lock has no place before its own that counts.
fn out_of_turn(
    key: &str,
    held: Option<&str>,
    holder: Option<&str>,
    before: &[Place],
    clock: u64,
) -> Option<String> {
    let holder = holder.filter(|holder| held != Some(holder))?;
    let overtaken = before.iter().take_while(|place| place.field != holder);
    let mut overtaken = overtaken.filter(|place| !place.is_over(clock));
    let first = overtaken.next()?;
    Some(format!("{holder} took {key} before {}", first.field))
}

/// Of a lock that becomes free, and of one that is free, the first in the queue is told when it becomes that.
fn untold(
    executed: &Executed,
    key: &str,
    held: Option<&str>,
    holder: Option<&str>,
    before: &[Place],
    after: &[Place],
) -> Option<String> {
    let head = &after.first().filter(|_| holder.is_none())?.field;
    let was_head = before.first().is_some_and(|place| place.field == *head);
    let is_news = held.is_some() || !was_head;
    let is_told = executed.published.contains(&channel_of(key, head));
    (is_news && !is_told).then(|| format!("{key} is free, and {head} was not told"))
}

impl State {
    /// Whose place has gone, but not to the lock, while the call that took it goes on waiting.
    fn deprived(
        &self,
        key: &str,
        holder: Option<&str>,
        before: &[Place],
        after: &[Place],
    ) -> Option<String> {
        let mut gone = before.iter().filter(|place| {
            let stays = after.iter().any(|other| other.field == place.field);
            !stays && holder != Some(&place.field)
        });
        gone.find_map(|place| {
            // The first acquire after a call has begun may be that of an earlier one, which was dropped.
            let has_asked = |call: &&Call| call.has_place(key, &place.field) && call.asked >= 2;
            let call = self.calls.values().find(has_asked)?;
            let of = (key.to_owned(), place.field.clone());
            let is_shortened = self.places.shortened.contains(&of);
            let what = &call.what;
            (!is_shortened).then(|| format!("{} lost its place at {key}: {what}", place.field))
        })
    }

    fn note_places(&mut self, holder: Option<&str>, before: &[Place], after: &[Place]) {
        let has = |places: &[Place], field: &str| places.iter().any(|place| place.field == field);
        for _ in after.iter().filter(|place| !has(before, &place.field)) {
            self.counts.queued += 1;
        }
        let used = holder.is_some_and(|holder| has(before, holder) && !has(after, holder));
        self.counts.turns += u64::from(used);
    }

    fn note_turn(&mut self, key: &str, places: &[Place], keyspace: &Keyspace, now: Instant) {
        if !keyspace.shown(key).is_empty() {
            self.places.turns.remove(key);
            return;
        }
        let live = places
            .iter()
            .position(|place| !place.is_over(keyspace.clock));
        let of = live.map(|at| places[at].field.clone());
        let behind_ended = !places.is_empty() && live != Some(0);
        let is_told = of.as_ref().is_none_or(|field| {
            let told = self.places.told.get(&channel_of(key, field));
            told.is_some_and(|(_, at)| *at == now)
        });
        let untold = behind_ended || !is_told;
        let turns = &mut self.places.turns;
        match turns.get_mut(key).filter(|turn| turn.of == of) {
            Some(turn) => turn.untold |= behind_ended,
            None => {
                let since = now;
                let turn = Turn { since, of, untold };
                turns.insert(key.to_owned(), turn);
            }
        }
    }
}

impl Places {
    /// Between two scripts only Java changes a queue.
    fn note_java(&mut self, key: &str, places: &[Place]) {
        let before = self.queues.get(key).map_or(&[][..], Vec::as_slice);
        let is_shortened = |place: &&Place| {
            let mut before = before.iter();
            before.any(|other| other.field == place.field && other.ends > place.ends)
        };
        let shortened = places.iter().filter(is_shortened);
        let shortened = shortened.map(|place| (key.to_owned(), place.field.clone()));
        self.shortened.extend(shortened);
    }

    fn tell(&mut self, channel: &str) {
        let now = Instant::now();
        let (times, at) = self.told.entry(channel.to_owned()).or_insert((0, now));
        (*times, *at) = (*times + 1, now);
    }

    pub(super) fn was_told(&self, channel: &str, now: Instant) -> bool {
        self.told.get(channel).is_some_and(|(_, at)| *at == now)
    }

    pub(super) fn wiped(&mut self) {
        self.queues.clear();
        self.turns.clear();
    }

    /// Since when a call could have the lock. `None`: it is held, or another owner is before this one.
    pub(super) fn turn_of(&self, key: &str, call: &Call, terms: &Terms) -> Option<Instant> {
        let turn = self.turns.get(key)?;
        let field = call.queues.as_ref().map(|(_, field)| field);
        let may_take = turn.of.is_none() || turn.of.as_ref() == field;
        // The next look finds it, whatever the lease was at the latest one.
        let found = match turn.untold {
            true => terms.watchdog_timeout.min(terms.fair_wait / 3),
            false => Duration::ZERO,
        };
        may_take.then(|| turn.since + found)
    }
}

impl Call {
    fn has_place(&self, key: &str, field: &str) -> bool {
        let queues = self.queues.as_ref();
        queues.is_some_and(|(at, own)| at == key && own == field)
    }
}
