//! The commands that scripts call, each as Redis has it.

use super::value::{Hash, Value};
use super::{Answer, Keyspace, Stored, count, integer, unknown};
use crate::sim::rights;

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
        let may_call = match (name.as_str(), args.first()) {
            // Rights know its subcommands.
            ("pubsub", Some(of)) => {
                let command = format!("pubsub|{}", of.to_ascii_lowercase());
                self.rights.may_call(&command)
            }
            _ => self.rights.may_call(&name),
        };
        if !may_call {
            return Err(rights::no_command_of_script());
        }
        self.expire();
        match name.as_str() {
            "get" | "set" | "incr" => self.call_of_strings(&name, args),
            "publish" | "spublish" | "pubsub" => self.call_of_channels(&name, args),
            name if name.starts_with('h') => self.call_of_hashes(name, args),
            name if name.starts_with('z') => self.call_of_sorted_sets(name, args),
            name if name.starts_with('l') || name == "rpush" => self.call_of_lists(name, args),
            // A script that needs more has to be given more here.
            name => self.call_of_keys(name, args),
        }
    }

    fn call_of_keys(&mut self, name: &str, args: &[&str]) -> Result<Answer, String> {
        Ok(match (name, args) {
            ("exists", &[key]) => Answer::Number(self.keys.contains_key(key).into()),
            ("del", keys) if !keys.is_empty() => {
                let gone = keys.iter().filter(|key| self.keys.remove(**key).is_some());
                count(gone.count())
            }
            ("type", &[key]) => Answer::Status(self.type_of(key)),
            ("time", []) => {
                let (seconds, ms) = (self.clock / 1_000, self.clock % 1_000);
                let words = [seconds.to_string(), (ms * 1_000).to_string()];
                Answer::List(words.map(Answer::Text).into())
            }
            ("pttl", &[key]) => Answer::Number(self.time_left(key)),
            ("pexpire", &[key, ms]) => Answer::Number(self.set_time_left(key, integer(ms)?)?),
            ("persist", &[key]) => {
                let expiry = self
                    .keys
                    .get_mut(key)
                    .map(|stored| stored.expires_at.take());
                Answer::Number(expiry.flatten().is_some().into())
            }
            _ => return Err(unknown(name, args)),
        })
    }

    fn call_of_channels(&mut self, name: &str, args: &[&str]) -> Result<Answer, String> {
        let listeners =
            |keyspace: &Self, channel: &str| keyspace.listeners.get(channel).copied().unwrap_or(0);
        Ok(match (name, args) {
            ("publish" | "spublish", &[channel, _]) if !self.rights.may_use(channel) => {
                return Err(rights::no_channel_of_script());
            }
            ("publish", &[channel, message]) => {
                self.published
                    .push((channel.to_owned(), message.to_owned()));
                Answer::Number(listeners(self, channel))
            }
            ("spublish", &[channel, _]) => {
                self.published_in_shard.push(channel.to_owned());
                let listeners = self.shard_listeners.get(channel);
                Answer::Number(listeners.copied().unwrap_or(0))
            }
            ("pubsub", &[of, ref channels @ ..]) if of.eq_ignore_ascii_case("numsub") => {
                let counts = channels.iter().flat_map(|&channel| {
                    let count = listeners(self, channel);
                    [Answer::Text(channel.to_owned()), Answer::Number(count)]
                });
                Answer::List(counts.collect())
            }
            _ => return Err(unknown(name, args)),
        })
    }

    fn call_of_hashes(&mut self, name: &str, args: &[&str]) -> Result<Answer, String> {
        Ok(match (name, args) {
            ("hget", &[key, field]) => self.get(key, field)?.map_or(Answer::Nil, Answer::Text),
            ("hexists", &[key, field]) => Answer::Number(self.get(key, field)?.is_some().into()),
            ("hlen", &[key]) => count(self.fields(key)?.len()),
            ("hkeys", &[key]) => {
                let fields = self.fields(key)?.iter();
                Answer::List(
                    fields
                        .map(|(field, _)| Answer::Text(field.clone()))
                        .collect(),
                )
            }
            ("hgetall", &[key]) => {
                let fields = self.fields(key)?.iter();
                let words = fields.flat_map(|(field, value)| [field, value]);
                Answer::List(words.cloned().map(Answer::Text).collect())
            }
            ("hset", &[key, ref rest @ ..]) if !rest.is_empty() => {
                let (pairs, []) = rest.as_chunks::<2>() else {
                    return Err(unknown(name, args));
                };
                self.write(key, |fields: &mut Hash| {
                    let before = fields.len();
                    pairs
                        .iter()
                        .for_each(|[field, value]| set(fields, field, value));
                    count(fields.len() - before)
                })?
            }
            ("hincrby", &[key, field, step]) => {
                Answer::Number(self.add(key, field, integer(step)?)?)
            }
            ("hdel", &[key, ref gone @ ..]) if !gone.is_empty() => {
                self.write(key, |fields: &mut Hash| {
                    let before = fields.len();
                    fields.retain(|(field, _)| !gone.contains(&field.as_str()));
                    count(before - fields.len())
                })?
            }
            _ => return Err(unknown(name, args)),
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
                    Answer::Status("OK")
                }
            },
            ("incr", &[key]) => Answer::Number(self.raise(key)?),
            _ => return Err(unknown(name, args)),
        })
    }

    fn raise(&mut self, key: &str) -> Result<i64, String> {
        let number = match self.text(key)? {
            None => 0,
            Some(text) => integer(text)?,
        };
        let raised = number
            .checked_add(1)
            .ok_or_else(|| "ERR increment or decrement would overflow".to_owned())?;
        self.write(key, |text: &mut String| *text = raised.to_string())?;
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
        Ok(Answer::Status("OK"))
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

    /// Sets a field, as HSET does; nothing happens to a key of another type.
    pub fn set_field(&mut self, key: &str, field: &str, value: &str) {
        let _ = self.write(key, |fields: &mut Hash| set(fields, field, value));
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
}

fn set(fields: &mut Hash, field: &str, value: &str) {
    match fields.iter_mut().find(|(name, _)| name == field) {
        Some((_, old)) => value.clone_into(old),
        None => fields.push((field.to_owned(), value.to_owned())),
    }
}
