//! The data of the simulated server. No connections.

mod commands;
mod queues;
mod value;

use std::collections::BTreeMap;

use super::rights::Rights;
use redisson_lock::test_util::Reply;
use value::{Hash, List, SortedSet, Value};

/// Keys on their way to another server.
pub(super) struct Moved {
    stored: BTreeMap<String, Stored>,
    /// They have run out here since the observer last looked.
    expired: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored {
    value: Value,
    expires_at: Option<u64>,
}

/// What a command answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Nil,
    Number(i64),
    Text(String),
    Status(&'static str),
    List(Vec<Self>),
}

impl Answer {
    /// The same as a client gets it.
    pub(super) fn into_reply(self) -> Reply {
        match self {
            Self::Nil => Reply::Nil,
            Self::Number(number) => Reply::Number(number),
            Self::Text(text) => Reply::Text(text),
            Self::Status(text) => Reply::Text(text.to_owned()),
            Self::List(items) => Reply::List(items.into_iter().map(Self::into_reply).collect()),
        }
    }
}

/// All keys of a server. Time is milliseconds, and stands still while a script runs.
#[derive(Debug, Default)]
pub struct Keyspace {
    pub now: u64,
    /// What TIME answers, in milliseconds.
    pub clock: u64,
    keys: BTreeMap<String, Stored>,
    /// Published by the running script, not delivered yet.
    pub published: Vec<(String, String)>,
    /// The same on sharded channels.
    pub published_in_shard: Vec<String>,
    /// How many connections are subscribed to each channel.
    pub listeners: BTreeMap<String, i64>,
    /// And to each sharded one.
    pub shard_listeners: BTreeMap<String, i64>,
    /// What the user of the running script may do.
    pub rights: Rights,
    /// Keys that ran out since this was last taken, each with its first field, or its value.
    pub expired: Vec<(String, String)>,
    /// Holds that somebody outside of the server renews, by key.
    pub(super) renewed: BTreeMap<String, RenewReply>,
    /// Since when no renewal from outside arrives.
    pub(super) paused_at: Option<u64>,
}

/// A hold that is renewed as a JVM does it: on time, by a watchdog with Redisson's defaults.
#[derive(Debug)]
pub(super) struct RenewReply {
    pub(super) field: String,
    pub(super) since: u64,
}

/// Redisson's `lockWatchdogTimeout`.
pub(crate) const WATCHDOG_TIMEOUT_MS: u64 = 30_000;

/// Whether a key covers a read hold of this lock.
pub(super) fn is_read_hold(lock: &str, key: &str) -> bool {
    let braced = (!lock.contains('{')).then(|| format!("{{{lock}}}"));
    let of_lock = key.strip_prefix(braced.as_deref().unwrap_or(lock));
    of_lock.is_some_and(|rest| rest.starts_with(':') && rest.contains(":rwlock_timeout:"))
}

impl Keyspace {
    fn fields(&self, key: &str) -> Result<&[(String, String)], String> {
        Ok(self.read::<Hash>(key)?.map_or(&[], Vec::as_slice))
    }

    fn text(&self, key: &str) -> Result<Option<&str>, String> {
        Ok(self.read::<String>(key)?.map(String::as_str))
    }

    fn type_of(&self, key: &str) -> &'static str {
        let stored = self.keys.get(key);
        stored.map_or("none", |stored| stored.value.type_name())
    }

    /// Removes what has run out. A key lives up to and including its last millisecond.
    pub fn expire(&mut self) {
        self.renew();
        let now = self.now;
        let expired = &mut self.expired;
        self.keys.retain(|key, stored| {
            let alive = stored.expires_at.is_none_or(|at| now <= at);
            let holder = match &stored.value {
                Value::Hash(fields) => fields.first().map(|(field, _)| field),
                Value::Text(text) => Some(text),
                // What ends by itself is a lock.
                Value::List(_) | Value::SortedSet(_) => None,
            };
            expired.extend(
                holder
                    .filter(|_| !alive)
                    .map(|field| (key.clone(), field.clone())),
            );
            alive
        });
    }

    /// Catches up with the renewals from outside. Who has lost the lock renews it no more.
    fn renew(&mut self) {
        let (now, keys) = (self.paused_at.unwrap_or(self.now), &mut self.keys);
        self.renewed.retain(|key, renewed| {
            let Some(stored) = keys.get_mut(key) else {
                return false;
            };
            let is_held = match &stored.value {
                Value::Hash(fields) => fields.iter().any(|(field, _)| *field == renewed.field),
                Value::Text(value) => *value == renewed.field,
                Value::List(_) | Value::SortedSet(_) => false,
            };
            if is_held {
                let since_last = now.saturating_sub(renewed.since) % (WATCHDOG_TIMEOUT_MS / 3);
                stored.expires_at = Some(now - since_last + WATCHDOG_TIMEOUT_MS);
            }
            is_held
        });
    }

    /// Sets a key of another type, as SET does.
    pub fn set_text(&mut self, key: &str, text: &str) {
        self.keys.insert(
            key.to_owned(),
            Stored {
                value: Value::Text(text.to_owned()),
                expires_at: None,
            },
        );
    }

    /// Takes the expiry away, as PERSIST does.
    pub fn persist(&mut self, key: &str) {
        if let Some(stored) = self.keys.get_mut(key) {
            stored.expires_at = None;
        }
    }

    /// Everything but what is under way.
    pub(super) fn copy(&self) -> Self {
        Self {
            now: self.now,
            keys: self.keys.clone(),
            ..Self::default()
        }
    }

    pub(super) fn stored(&self, key: &str) -> Option<&Stored> {
        self.keys.get(key)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Takes keys out as they are, for another server, with the news of those that have run out.
    pub(super) fn take(&mut self, goes: impl Fn(&str) -> bool) -> Moved {
        let expired = |(key, _): &mut (String, String)| goes(key);
        let keys = std::mem::take(&mut self.keys).into_iter();
        let (stored, stay) = keys.partition(|(key, _)| goes(key));
        self.keys = stay;
        Moved {
            stored,
            expired: self.expired.extract_if(.., expired).collect(),
        }
    }

    pub(super) fn put(&mut self, moved: Moved) {
        self.keys.extend(moved.stored);
        self.expired.extend(moved.expired);
    }

    /// Adds copies of another server's keys, if they count there. What has run out there is handed over.
    pub(super) fn take_in(&mut self, other: &mut Self, counts: impl Fn(&str) -> bool) {
        let keys = other.keys.iter().filter(|(key, _)| counts(key));
        self.keys
            .extend(keys.map(|(key, stored)| (key.clone(), stored.clone())));
        let expired = std::mem::take(&mut other.expired).into_iter();
        self.expired.extend(expired.filter(|(key, _)| counts(key)));
    }

    pub fn delete(&mut self, key: &str) {
        self.keys.remove(key);
    }

    /// Deletes a lock, with the keys of its read holds.
    pub fn delete_lock(&mut self, name: &str) {
        self.keys
            .retain(|key, _| key != name && !is_read_hold(name, key));
    }

    pub fn clear(&mut self) {
        self.keys.clear();
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// The one field of a lock, with its count; the value of a string lock; of a read-write lock the writer, or one of
    /// the readers.
    pub fn holder(&self, key: &str) -> Option<(&str, i64)> {
        if let Ok(Some(value)) = self.text(key) {
            return Some((value, 1));
        }
        match self.fields(key) {
            Ok([(field, count)]) => Some((field, count.parse().ok()?)),
            Ok(fields) if fields.iter().any(|(field, _)| field == "mode") => {
                let holders = fields.iter().filter(|(field, _)| field != "mode");
                let (field, count) = holders.max_by_key(|(field, _)| field.ends_with(":write"))?;
                Some((field, count.parse().ok()?))
            }
            _ => None,
        }
    }

    /// All owners of a lock, with their counts: several of a read-write lock.
    pub fn holders(&self, key: &str) -> Vec<(String, i64)> {
        if let Ok(Some(value)) = self.text(key) {
            return vec![(value.to_owned(), 1)];
        }
        let owners = self.hash(key).iter().filter(|(field, _)| field != "mode");
        let counted = owners.map(|(field, count)| (field.clone(), count.parse().unwrap_or(0)));
        counted.collect()
    }

    /// The fields of a hash with their values, in order of arrival.
    pub fn hash(&self, key: &str) -> &[(String, String)] {
        self.fields(key).unwrap_or_default()
    }

    /// The queue of a fair lock.
    pub fn list(&self, key: &str) -> &[String] {
        let list = self.read::<List>(key).ok().flatten();
        list.map_or(&[], Vec::as_slice)
    }

    /// Scores with their members: when the places of that queue end.
    pub fn sorted_set(&self, key: &str) -> &[(f64, String)] {
        let members = self.read::<SortedSet>(key).ok().flatten();
        members.map_or(&[], Vec::as_slice)
    }

    /// When a key runs out; `None` if it is absent or never does.
    pub fn expires_at(&self, key: &str) -> Option<u64> {
        self.keys.get(key)?.expires_at
    }

    /// What a key holds as one line, for comparisons.
    pub fn shown(&self, key: &str) -> String {
        let stored = self.keys.get(key);
        stored.map_or_else(String::new, |stored| stored.value.shown())
    }
}

fn integer(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| "ERR value is not an integer or out of range".to_owned())
}

fn count(number: usize) -> Answer {
    Answer::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn unknown(name: &str, args: &[&str]) -> String {
    format!("ERR Unknown Redis command called from script: {name} {args:?}")
}
