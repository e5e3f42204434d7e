//! The data of the simulated server: the commands that the scripts use, each as Redis has it. No
//! connections.

use std::collections::BTreeMap;

use super::rights::{self, Rights};

/// What one key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    /// In order of arrival, as a small Redis hash is.
    Hash(Vec<(String, String)>),
    Text(String),
}

/// A key on its way to another server.
pub(super) struct Moved {
    stored: Option<Stored>,
    /// It has run out here since the observer last looked.
    expired: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
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
    List(Vec<String>),
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
    /// How many connections are subscribed to the channels that the running script names.
    pub listeners: BTreeMap<String, i64>,
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

impl Keyspace {
    /// One command of a script.
    pub fn call(&mut self, words: &[String]) -> Result<Answer, String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Some((name, args)) = words.split_first() else {
            return Err(
                "ERR Please specify at least one argument for this redis.call() call".to_owned(),
            );
        };
        let name = name.to_ascii_lowercase();
        if !self.rights.may_call(&name) {
            return Err(rights::no_command_of_script());
        }
        self.expire();
        Ok(match (name.as_str(), args) {
            ("hget", &[key, field]) => self.get(key, field)?.map_or(Answer::Nil, Answer::Text),
            ("hexists", &[key, field]) => Answer::Number(self.get(key, field)?.is_some().into()),
            ("hlen", &[key]) => Answer::Number(self.fields(key)?.len() as i64),
            ("hkeys", &[key]) => Answer::List(
                self.fields(key)?
                    .iter()
                    .map(|(field, _)| field.clone())
                    .collect(),
            ),
            ("hincrby", &[key, field, step]) => {
                Answer::Number(self.add(key, field, integer(step)?)?)
            }
            ("hdel", &[key, field]) => Answer::Number(self.delete_field(key, field)?),
            ("exists", &[key]) => Answer::Number(self.keys.contains_key(key).into()),
            ("del", &[key]) => Answer::Number(self.keys.remove(key).is_some().into()),
            ("time", []) => {
                let (seconds, ms) = (self.clock / 1_000, self.clock % 1_000);
                Answer::List(vec![seconds.to_string(), (ms * 1_000).to_string()])
            }
            ("pttl", &[key]) => Answer::Number(self.time_left(key)),
            ("pexpire", &[key, ms]) => Answer::Number(self.set_time_left(key, integer(ms)?)?),
            ("publish", &[channel, _]) if !self.rights.may_use(channel) => {
                return Err(rights::no_channel_of_script());
            }
            ("publish", &[channel, message]) => {
                self.published
                    .push((channel.to_owned(), message.to_owned()));
                Answer::Number(self.listeners.get(channel).copied().unwrap_or(0))
            }
            ("get" | "set" | "incr" | "persist", args) => self.call_of_strings(&name, args)?,
            // A script that needs more has to be given more here.
            _ => {
                return Err(format!(
                    "ERR Unknown Redis command called from script: {words:?}"
                ));
            }
        })
    }

    /// What the scripts of string locks call, and those of tokens.
    fn call_of_strings(&mut self, name: &str, args: &[&str]) -> Result<Answer, String> {
        Ok(match (name, args) {
            ("get", &[key]) => self
                .text(key)?
                .map_or(Answer::Nil, |text| Answer::Text(text.to_owned())),
            ("set", &[key, value, "nx", "px", ms]) => match self.keys.contains_key(key) {
                true => Answer::Nil,
                false => self.set_for(key, value, integer(ms)?)?,
            },
            ("set", &[key, value, "px", ms]) => self.set_for(key, value, integer(ms)?)?,
            ("set", &[key, value, "xx", "keepttl"]) => match self.keys.get_mut(key) {
                None => Answer::Nil,
                Some(stored) => {
                    stored.value = Value::Text(value.to_owned());
                    Answer::Text("OK".to_owned())
                }
            },
            ("incr", &[key]) => Answer::Number(self.raise(key)?),
            ("persist", &[key]) => {
                let expiry = self
                    .keys
                    .get_mut(key)
                    .map(|stored| stored.expires_at.take());
                Answer::Number(expiry.flatten().is_some().into())
            }
            _ => {
                return Err(format!(
                    "ERR Unknown Redis command called from script: {name} {args:?}"
                ));
            }
        })
    }

    fn fields(&self, key: &str) -> Result<&[(String, String)], String> {
        match self.keys.get(key).map(|stored| &stored.value) {
            None => Ok(&[]),
            Some(Value::Hash(fields)) => Ok(fields),
            Some(Value::Text(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&str>, String> {
        match self.keys.get(key).map(|stored| &stored.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Hash(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn raise(&mut self, key: &str) -> Result<i64, String> {
        let number = match self.text(key)? {
            None => 0,
            Some(text) => integer(text)?,
        };
        let raised = number
            .checked_add(1)
            .ok_or_else(|| "ERR increment or decrement would overflow".to_owned())?;
        let expires_at = self.keys.get(key).and_then(|stored| stored.expires_at);
        let stored = Stored {
            value: Value::Text(raised.to_string()),
            expires_at,
        };
        self.keys.insert(key.to_owned(), stored);
        Ok(raised)
    }

    /// SET with PX.
    fn set_for(&mut self, key: &str, value: &str, ms: i64) -> Result<Answer, String> {
        let ms = u64::try_from(ms).ok().filter(|ms| *ms > 0);
        let at = ms.and_then(|ms| self.now.checked_add(ms));
        let at = at.ok_or_else(|| "ERR invalid expire time in 'set' command".to_owned())?;
        let stored = Stored {
            value: Value::Text(value.to_owned()),
            expires_at: Some(at),
        };
        self.keys.insert(key.to_owned(), stored);
        Ok(Answer::Text("OK".to_owned()))
    }

    fn get(&self, key: &str, field: &str) -> Result<Option<String>, String> {
        let found = self.fields(key)?.iter().find(|(name, _)| name == field);
        Ok(found.map(|(_, value)| value.clone()))
    }

    fn add(&mut self, key: &str, field: &str, step: i64) -> Result<i64, String> {
        let count = match self.get(key, field)? {
            None => 0,
            Some(text) => text
                .parse::<i64>()
                .map_err(|_| "ERR hash value is not an integer".to_owned())?,
        };
        let sum = count
            .checked_add(step)
            .ok_or_else(|| "ERR increment or decrement would overflow".to_owned())?;
        self.set_field(key, field, &sum.to_string());
        Ok(sum)
    }

    fn delete_field(&mut self, key: &str, field: &str) -> Result<i64, String> {
        let found = self.get(key, field)?.is_some();
        let Some(Stored {
            value: Value::Hash(fields),
            ..
        }) = self.keys.get_mut(key).filter(|_| found)
        else {
            return Ok(0);
        };
        fields.retain(|(name, _)| name != field);
        if fields.is_empty() {
            self.keys.remove(key);
        }
        Ok(1)
    }

    fn time_left(&self, key: &str) -> i64 {
        match self.keys.get(key) {
            None => -2,
            Some(Stored {
                expires_at: None, ..
            }) => -1,
            Some(Stored {
                expires_at: Some(at),
                ..
            }) => at.saturating_sub(self.now) as i64,
        }
    }

    fn set_time_left(&mut self, key: &str, ms: i64) -> Result<i64, String> {
        let at = i64::try_from(self.now).unwrap_or(i64::MAX).checked_add(ms);
        let Some(at) = at else {
            return Err("ERR invalid expire time in 'pexpire' command".to_owned());
        };
        let Some(stored) = self.keys.get_mut(key) else {
            return Ok(0);
        };
        if ms <= 0 {
            self.keys.remove(key);
        } else {
            stored.expires_at = u64::try_from(at).ok();
        }
        Ok(1)
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
            };
            if is_held {
                let since_last = now.saturating_sub(renewed.since) % (WATCHDOG_TIMEOUT_MS / 3);
                stored.expires_at = Some(now - since_last + WATCHDOG_TIMEOUT_MS);
            }
            is_held
        });
    }

    /// Sets a field, as HSET does.
    pub fn set_field(&mut self, key: &str, field: &str, value: &str) {
        let stored = self.keys.entry(key.to_owned()).or_insert_with(|| Stored {
            value: Value::Hash(Vec::new()),
            expires_at: None,
        });
        if let Value::Hash(fields) = &mut stored.value {
            match fields.iter_mut().find(|(name, _)| name == field) {
                Some((_, old)) => value.clone_into(old),
                None => fields.push((field.to_owned(), value.to_owned())),
            }
        }
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

    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Takes a key out as it is, for another server, with the news that it has run out.
    pub(super) fn take(&mut self, key: &str) -> Moved {
        let is_its = |(expired, _): &mut (String, String)| expired == key;
        Moved {
            stored: self.keys.remove(key),
            expired: self.expired.extract_if(.., is_its).collect(),
        }
    }

    pub(super) fn put(&mut self, key: &str, moved: Moved) {
        self.keys
            .extend(moved.stored.map(|stored| (key.to_owned(), stored)));
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

    pub fn clear(&mut self) {
        self.keys.clear();
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// The one field of a lock, with its count; the value of a string lock.
    pub fn holder(&self, key: &str) -> Option<(&str, i64)> {
        if let Ok(Some(value)) = self.text(key) {
            return Some((value, 1));
        }
        match self.fields(key) {
            Ok([(field, count)]) => Some((field, count.parse().ok()?)),
            _ => None,
        }
    }

    /// When a key runs out; `None` if it is absent or never does.
    pub fn expires_at(&self, key: &str) -> Option<u64> {
        self.keys.get(key)?.expires_at
    }

    /// Fields and values of a key as one line, for comparisons.
    pub fn shown(&self, key: &str) -> String {
        match self.keys.get(key).map(|stored| &stored.value) {
            None => String::new(),
            Some(Value::Text(text)) => format!("text {text}"),
            Some(Value::Hash(fields)) => {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(field, value)| format!("{field} {value}"))
                    .collect();
                fields.join(" ")
            }
        }
    }
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

fn integer(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| "ERR value is not an integer or out of range".to_owned())
}
