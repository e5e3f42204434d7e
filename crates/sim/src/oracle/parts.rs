//! Read-write locks: who may have which part beside whom, what covers a read hold, and whom a release lets in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson_lock::test_util::{self, Reply};
use redisson_lock_test::sim::{Executed, Keyspace};
use tokio::time::Instant;

use super::{Call, Oracle, State, Terms, channel, is_field_of, parts_channel};

#[derive(Default)]
pub(super) struct Parts {
    /// As they were last seen, by lock.
    known: BTreeMap<String, Shared>,
    /// The locks that a writer, or a reader, may take.
    open: BTreeMap<(String, bool), Open>,
    /// Locks whose lease was lowered, so that those who wait know a later end.
    lowered: BTreeSet<String>,
    /// Locks that are free because their lease was over.
    ran_out: BTreeSet<String>,
    /// When Java last shortened the lease of a lock, or of the key of a read hold.
    cut: BTreeMap<String, Instant>,
}

/// Since when a part may be taken.
struct Open {
    since: Instant,
    /// No message said so.
    untold: bool,
}

/// What the server has of a read-write lock.
#[derive(Debug, Clone, Default, PartialEq)]
struct Shared {
    mode: Option<String>,
    /// By field.
    counts: BTreeMap<String, i64>,
    ends: Option<u64>,
    /// When the key of each read hold ends, by field and number.
    covers: BTreeMap<(String, i64), Option<u64>>,
}

const WRITES: &str = ":write";

/// It leaves all holds, and is sent again with the keys that it names.
fn wants_keys(executed: &Executed) -> bool {
    let Ok(Reply::List(items)) = &executed.reply else {
        return false;
    };
    matches!(items.first(), Some(Reply::Number(-7)))
}

impl Shared {
    fn read(keyspace: &Keyspace, key: &str) -> Self {
        let hash = keyspace.hash(key);
        let mode = hash.iter().find(|(field, _)| field == "mode");
        let covers = keyspace.keys().filter_map(|found| {
            let (field, nth) = cover_of(key, found)?;
            Some(((field.to_owned(), nth), keyspace.expires_at(found)))
        });
        Self {
            mode: mode.map(|(_, mode)| mode.clone()),
            counts: keyspace.holders(key).into_iter().collect(),
            ends: keyspace.expires_at(key),
            covers: covers.collect(),
        }
    }

    fn is_free(&self) -> bool {
        self.mode.is_none() && self.counts.is_empty()
    }

    fn count(&self, field: &str) -> i64 {
        self.counts.get(field).copied().unwrap_or(0)
    }

    fn writer(&self) -> Option<&str> {
        let mut fields = self.counts.keys();
        fields.find_map(|field| field.strip_suffix(WRITES))
    }

    fn readers(&self) -> impl Iterator<Item = (&str, i64)> {
        let readers = self.counts.iter();
        let readers = readers.filter(|(field, _)| !field.ends_with(WRITES));
        readers.map(|(field, count)| (field.as_str(), *count))
    }

    /// When the longest key of a reader ends.
    fn covered_until(&self, field: &str) -> Option<u64> {
        let own = (1..=self.count(field)).map(|nth| (field.to_owned(), nth));
        own.filter_map(|of| *self.covers.get(&of)?).max()
    }

    /// Whether a reader has a key that keeps others from deleting the lock.
    fn is_alive(&self, field: &str, now: u64) -> bool {
        self.covered_until(field).is_some_and(|ends| ends > now)
    }

    /// Keys without a read hold that go on.
    fn strays(&self, now: u64) -> BTreeSet<&(String, i64)> {
        let keys = self
            .covers
            .iter()
            .filter(|(_, ends)| ends.is_none_or(|ends| ends > now));
        let keys = keys.map(|(of, _)| of);
        keys.filter(|(field, nth)| *nth > self.count(field))
            .collect()
    }

    /// Readers, or one writer, which may read too; everything ends by itself.
    fn malformed(&self) -> Option<String> {
        let writers = self.counts.keys().filter(|field| field.ends_with(WRITES));
        let fits = match (self.mode.as_deref(), writers.count()) {
            (None, 0) => self.counts.is_empty(),
            (Some("read"), 0) => !self.counts.is_empty(),
            (Some("write"), 1) => self
                .readers()
                .all(|(field, _)| Some(field) == self.writer()),
            _ => false,
        };
        let counted = self.counts.values().all(|count| *count > 0);
        let ends = self.is_free() || self.ends.is_some();
        let covers_end = self.covers.values().all(Option::is_some);
        (!(fits && counted && ends && covers_end)).then(|| format!("it is {self:?}"))
    }
}

/// Which read hold a key covers.
fn cover_of<'a>(lock: &str, key: &'a str) -> Option<(&'a str, i64)> {
    let rest = match lock.contains('{') {
        true => key.strip_prefix(lock)?,
        false => key
            .strip_prefix('{')?
            .strip_prefix(lock)?
            .strip_prefix('}')?,
    };
    let (field, nth) = rest.strip_prefix(':')?.rsplit_once(":rwlock_timeout:")?;
    Some((field, nth.parse().ok()?))
}

/// What a script has done to a lock.
struct Change<'a> {
    before: &'a Shared,
    after: &'a Shared,
    key: &'a str,
    executed: &'a Executed,
    now: u64,
}

impl Change<'_> {
    /// Fields that are new.
    fn taken(&self) -> Vec<&String> {
        let is_new = |field: &&String| self.before.count(field) == 0;
        self.after.counts.keys().filter(is_new).collect()
    }

    /// Fields that are counted otherwise than before, or not any more.
    fn touched(&self) -> Vec<&String> {
        let differs = |field: &&String| self.before.count(field) != self.after.count(field);
        self.before.counts.keys().filter(differs).collect()
    }

    fn is_gone(&self, field: &str) -> bool {
        self.after.count(field) == 0
    }

    fn is_freed(&self) -> bool {
        !self.before.is_free() && self.after.is_free()
    }

    /// Readers without a live key, which were deleted with their lock, or by a script that looks at all readers.
    fn is_swept(&self, field: &str) -> bool {
        let is_reader = !field.ends_with(WRITES);
        let looks = ["read_release", "force_unlock"].contains(&&*self.executed.script);
        is_reader && (looks || self.is_freed()) && !self.before.is_alive(field, self.now)
    }

    fn is_forced(&self) -> bool {
        *self.executed.script == *"force_unlock"
    }

    /// An owner gets a part once, and only if no other one has what excludes it.
    fn intrusions(&self) -> Vec<String> {
        let (before, after) = (self.before, self.after);
        let intrudes = |field: &&&String| match field.ends_with(WRITES) {
            true => !before.is_free(),
            false => before.writer().is_some_and(|writer| writer != **field),
        };
        let taken = self.taken();
        let beside = taken.iter().filter(intrudes);
        let mut problems: Vec<_> = beside
            .map(|field| format!("{field} took it beside {:?}", before.counts))
            .collect();
        let several = taken.iter().filter(|field| after.count(field) != 1);
        problems.extend(several.map(|field| format!("{field} took it more than once")));
        problems
    }

    /// Who may change which holds.
    fn offences(&self, client_id: &str) -> Vec<String> {
        let args = &self.executed.args;
        let named = args.first().into_iter().chain(args.iter().skip(4));
        let named: BTreeSet<_> = named.filter(|_| self.is_forced()).collect();
        let may = |field: &&&String| {
            is_field_of(client_id, field) && !self.is_forced()
                || named.contains(**field)
                || self.is_swept(field)
        };
        let (taken, touched) = (self.taken(), self.touched());
        let changed = taken.iter().chain(&touched);
        changed
            .filter(|field| !may(field))
            .map(|field| format!("the hold of {field} was changed"))
            .collect()
    }

    /// A lock that is free, and one that others may read, is announced.
    fn untold(&self) -> Option<String> {
        let channel = parts_channel(self.key);
        let told = self.executed.published.iter();
        let told = told.filter(|to| **to == channel).count();
        let writer = self.before.writer();
        let ends = writer.is_some_and(|writer| self.is_gone(&format!("{writer}{WRITES}")));
        // A 1 wakes all readers of newer Redissons, a 0 those of older ones.
        let wanted = match ends {
            true => 2,
            false => usize::from(self.is_freed()),
        };
        (told < wanted).then(|| format!("it was given up, and told {told} times"))
    }

    /// What covers a read hold is there after each script that leaves one, and not for longer.
    fn uncovered(&self) -> Option<String> {
        let Executed {
            script, keys, args, ..
        } = self.executed;
        let mut owners = BTreeSet::new();
        // Otherwise the key of the last hold covers all of an owner.
        let mut each = false;
        match &**script {
            "read_acquire" | "read_release" => owners.extend(args.first()),
            "read_renew" => {
                each = true;
                let locks = keys.chunks(2).zip(args.chunks(2));
                let renewed = locks.filter(|(keys, args)| keys[0] == self.key && args[1] != "0");
                owners.extend(renewed.map(|(_, args)| &args[0]));
            }
            _ => {}
        }
        if self.executed.reply.is_err() || wants_keys(self.executed) {
            return None;
        }
        let after = self.after;
        let mut holds = owners.into_iter().flat_map(|owner| {
            let count = after.count(owner);
            let first = if each { 1 } else { count.max(1) };
            (first..=count).map(move |nth| (owner.clone(), nth))
        });
        let missing = holds.find(|hold| !after.covers.contains_key(hold));
        missing.map(|(owner, nth)| format!("nothing covers read hold {nth} of {owner}"))
    }

    fn strays(&self) -> Option<String> {
        let (before, after) = (self.before.strays(self.now), self.after.strays(self.now));
        let new = after.difference(&before).next();
        new.map(|(field, nth)| format!("the key of read hold {nth} of {field} is left"))
    }

    fn is_lowered(&self) -> bool {
        let (before, after) = (self.before.ends, self.after.ends);
        after.is_some() && after < before
    }

    /// The last release of a reader lowers the lease, though not below what covers another one.
    fn lowered(&self) -> Option<String> {
        let readers = self.after.readers().map(|(field, _)| field);
        let covered = readers.filter_map(|field| self.after.covered_until(field));
        let may = ["read_release", "force_unlock"].contains(&&*self.executed.script)
            && self.after.writer().is_none()
            && covered.max() <= self.after.ends;
        let (before, after) = (self.before.ends, self.after.ends);
        (self.is_lowered() && !may).then(|| format!("its lease went from {before:?} to {after:?}"))
    }
}

impl Oracle {
    /// A call wants a part of a read-write lock, for an owner with this field.
    pub fn wants(&self, call: u64, key: &str, owner: String, reads: bool) {
        if let Some(call) = self.state.lock().calls.get_mut(&call) {
            call.wants = Some((key.to_owned(), owner, reads));
        }
    }

    /// A call asks for a lease that may be over too soon: other owners that read keep the lock open for it, but it may never
    /// get in.
    pub fn too_short(&self, call: u64) {
        if let Some(call) = self.state.lock().calls.get_mut(&call) {
            call.too_short = true;
        }
    }

    /// Whether an owner reads, or may do so, as far as anybody knows.
    pub fn may_read(&self, client: usize, key: &str, owner: &str) -> bool {
        let state = self.state.lock();
        let holds = state.holds.values().filter(|seen| seen.client == client);
        let mut reads = holds.filter(|seen| seen.key == key && !seen.field.ends_with(WRITES));
        let asks = state.calls.values().any(|call| {
            let wanted = call.wants.as_ref();
            wanted.is_some_and(|(at, by, reads)| at == key && by == owner && *reads)
        });
        let terms = state.terms.as_ref();
        // Without a fence it may have another field.
        let unsure = terms.is_none_or(|terms| !terms.fenced[client]);
        // A release may be refused.
        let kept = terms.is_none_or(|terms| !terms.given_back);
        let left = (key.to_owned(), owner.to_owned());
        // A call may hear of a hold whose own call goes on first.
        let did = state.released_at.get(&left) == Some(&Instant::now());
        asks || kept
            || did
            || reads.any(|seen| unsure || *seen.field == *owner)
            || state.lingering.contains(&left)
            || state.revived.contains(&left)
            || !state.unconfirmed.is_empty()
    }

    /// Whether a field of a read-write lock is what is left of a reader without a live key. It keeps no other owner out, and
    /// goes with the lock.
    pub fn is_ended_read(&self, key: &str, field: &str, now: u64) -> bool {
        let state = self.state.lock();
        let known = state.parts.known.get(key);
        known.is_some_and(|lock| !field.ends_with(WRITES) && !lock.is_alive(field, now))
    }

    /// The channel of a lock, by its kind.
    pub fn channel(&self, key: &str) -> String {
        let state = self.state.lock();
        let has_parts = state
            .terms
            .as_ref()
            .is_some_and(|terms| terms.is_read_write(key));
        match has_parts {
            true => parts_channel(key),
            false => channel(key),
        }
    }

    /// What a script has done to read-write locks.
    pub(super) fn compare_parts(
        &self,
        state: &mut State,
        terms: &Terms,
        executed: &Executed,
        keyspace: &Keyspace,
    ) {
        let keys: BTreeSet<&String> = executed.keys.iter().collect();
        for key in keys.into_iter().filter(|key| terms.is_read_write(key)) {
            let after = Shared::read(keyspace, key);
            let before = state.parts.known.insert(key.clone(), after.clone());
            let mut before = before.unwrap_or_default();
            before
                .covers
                .retain(|_, ends| ends.is_none_or(|ends| ends >= keyspace.now));
            let change = Change {
                before: &before,
                after: &after,
                key,
                executed,
                now: keyspace.now,
            };
            let mut problems = Vec::from_iter(after.malformed());
            problems.extend(change.intrusions());
            problems.extend(change.offences(&terms.clients[executed.client]));
            let others = [change.untold(), change.uncovered()];
            problems.extend(others.into_iter().flatten());
            problems.extend([change.strays(), change.lowered()].into_iter().flatten());
            if change.is_forced() && before.counts != after.counts {
                self.compare_forced(state, executed);
            }
            state.note_parts(&change);
            for problem in problems {
                let Executed { script, client, .. } = executed;
                let text = format!("{script} of client {client} at {key}: {problem}");
                state.violated(self.start, text);
            }
        }
    }

    /// What the read-write locks are like now.
    pub(super) fn note_parts_now(
        &self,
        state: &mut State,
        terms: &Terms,
        keyspace: &Keyspace,
        now: Instant,
    ) {
        for &key in &terms.read_write {
            let found = Shared::read(keyspace, key);
            if let Some(problem) = found.malformed() {
                state.violated(self.start, format!("{key}: {problem}"));
            }
            state.note_cut(key, &found, now);
            state.note_open(key, &found, now);
            state.parts.known.insert(key.to_owned(), found);
        }
    }

    /// Of those who are certain, no two write, and none reads beside the writer of another owner.
    pub(super) fn compare_exclusion(&self, state: &mut State, terms: &Terms, now: Instant) {
        let is_certain = |seen: &&super::Seen| {
            let of = (seen.key.clone(), seen.field.to_string());
            let held = test_util::snapshot(&seen.held);
            let until = held
                .filter(|_| !seen.closing)
                .map(|hold| hold.valid_until());
            until.is_some_and(|until| until > now) && !state.robbed.contains_key(&of)
        };
        let certain: Vec<_> = state.holds.values().filter(is_certain).collect();
        let mut problems = Vec::new();
        for writer in certain.iter().filter(|seen| terms.is_read_write(&seen.key)) {
            let Some(owner) = writer.field.strip_suffix(WRITES) else {
                continue;
            };
            let other = certain.iter().find(|other| {
                let of = other.field.strip_suffix(WRITES).unwrap_or(&other.field);
                other.key == writer.key && of != owner
            });
            problems.extend(
                other.map(|other| format!("{} is in {} beside {owner}", other.field, writer.key)),
            );
        }
        for problem in problems {
            state.violated(self.start, problem);
        }
    }
}

impl State {
    /// What a client reads inside of its own write hold has the field of that. Without a fence a late release of what it
    /// read there before may undo it.
    fn is_fenced(&self, client: usize) -> bool {
        let terms = self.terms.as_ref();
        terms.is_some_and(|terms| terms.fenced[client])
    }

    fn note_parts(&mut self, change: &Change<'_>) {
        let Change {
            before,
            after,
            key,
            executed,
            ..
        } = *change;
        for field in change.taken() {
            let of = (key.to_owned(), field.clone());
            let was_robbed = self.robbed.remove(&of).is_some();
            match executed.late && was_robbed {
                // As for other kinds: a late copy of its own acquire.
                true => self.revived.insert(of),
                false => self.revived.remove(&of),
            };
            self.promotions.taken_anew(key, field);
            self.settle(key, field);
            let mut others = before.readers();
            let reads = !field.ends_with(WRITES);
            self.counts.beside += u64::from(reads && others.any(|(other, _)| other != field));
        }
        for field in change.touched().into_iter().filter(|f| change.is_gone(f)) {
            self.settle(key, field);
            let was_undone = executed.late && !self.is_fenced(executed.client);
            if change.is_forced() || change.is_swept(field) || was_undone {
                self.java.remove(&(key.to_owned(), field.clone()));
                self.rob(key, field);
            }
        }
        if executed.late && !self.is_fenced(executed.client) {
            // It may have taken the key of a later hold of its owner, which the next renewal writes again. The reply that
            // gives that hold may still be on its way.
            let timeout = self.terms.as_ref().map(|terms| terms.command_timeout);
            let known_by = Instant::now() + timeout.unwrap_or_default();
            self.parts.cut.insert(key.to_owned(), known_by);
        }
        let writer = before.writer().filter(|_| after.writer().is_none());
        let reads_on = writer.is_some_and(|writer| after.count(writer) > 0);
        self.counts.downgrades += u64::from(reads_on);
        if change.is_lowered() {
            self.parts.lowered.insert(key.to_owned());
        }
    }

    /// The lease of a lock is over, and with it all holds.
    pub(super) fn parts_ran_out(&mut self, key: &str) {
        let known = self.parts.known.entry(key.to_owned()).or_default();
        let fields: Vec<_> = std::mem::take(&mut known.counts).into_keys().collect();
        (known.mode, known.ends) = (None, None);
        self.parts.ran_out.insert(key.to_owned());
        for field in fields {
            self.java.remove(&(key.to_owned(), field.clone()));
            self.rob(key, &field);
            self.settle(key, &field);
        }
    }

    /// What no script of ours has done, Java has.
    fn note_cut(&mut self, key: &str, found: &Shared, now: Instant) {
        let Some(known) = self.parts.known.get(key) else {
            return;
        };
        let lowered = found.ends.is_some() && found.ends < known.ends;
        let cut = found.covers.iter().any(|(of, ends)| {
            let before = known.covers.get(of);
            before.is_some_and(|before| ends < before)
        });
        if lowered {
            self.parts.lowered.insert(key.to_owned());
        }
        if lowered || cut {
            self.parts.cut.insert(key.to_owned(), now);
        }
    }

    fn note_open(&mut self, key: &str, found: &Shared, now: Instant) {
        let channel = parts_channel(key);
        let is_told = self.places.was_told(&channel, now);
        let parts = &mut self.parts;
        if !found.is_free() {
            parts.ran_out.remove(key);
        }
        for reads in [false, true] {
            let of = (key.to_owned(), reads);
            let is_open = found.is_free() || reads && found.mode.as_deref() == Some("read");
            if !is_open {
                parts.open.remove(&of);
                continue;
            }
            let untold = match parts.ran_out.contains(key) {
                // A call that waits has seen when it ends.
                true => parts.lowered.contains(key),
                false => !is_told,
            };
            let since = now;
            parts.open.entry(of).or_insert(Open { since, untold });
        }
        if found.is_free() {
            parts.lowered.remove(key);
        }
    }
}

impl Parts {
    pub(super) fn wiped(&mut self) {
        self.known.clear();
        self.ran_out.clear();
        self.open.clear();
    }

    /// Whether Java, or a late command of a client without a fence, has shortened something since.
    pub(super) fn is_cut(&self, key: &str, since: Instant) -> bool {
        self.cut.get(key).is_some_and(|at| *at >= since)
    }

    /// Since when a call could have what it wants. `None`: another owner is in its way.
    pub(super) fn open_for(&self, key: &str, call: &Call, terms: &Terms) -> Option<Instant> {
        let (_, _, reads) = call.wants.as_ref().filter(|_| !call.too_short)?;
        let open = self.open.get(&(key.to_owned(), *reads))?;
        let found = match open.untold {
            true => terms.watchdog_timeout,
            false => Duration::ZERO,
        };
        Some(open.since + found)
    }

    /// What the server has against the belief that a field holds until then. Empty: it was shortened, and the next
    /// renewal is not over.
    pub(super) fn contradicted(
        &self,
        key: &str,
        field: &str,
        until: Duration,
        is_cut: bool,
    ) -> Option<String> {
        let free = Shared::default();
        let found = self.known.get(key).unwrap_or(&free);
        if found.count(field) == 0 {
            return Some(format!("believes that it holds; the server has {found:?}"));
        }
        let covered = match field.ends_with(WRITES) {
            true => found.ends,
            false => found.ends.min(found.covered_until(field)),
        };
        let lasts = covered.is_some_and(|ends| Duration::from_millis(ends) >= until);
        let text = match is_cut {
            true => String::new(),
            false => format!("is believed until {until:?}; the server has {found:?}"),
        };
        (!lasts).then_some(text)
    }
}
