//! Lists and sorted sets: the queue of a fair lock, and when its places end.

use std::ops::Range;

use super::value::{List, SortedSet, score_text};
use super::{Answer, Keyspace, count, integer, unknown};

impl Keyspace {
    pub(super) fn call_of_lists(&mut self, name: &str, args: &[&str]) -> Result<Answer, String> {
        Ok(match (name, args) {
            ("llen", &[key]) => count(self.items(key)?.len()),
            ("lindex", &[key, at]) => {
                let (items, at) = (self.items(key)?, integer(at)?);
                let at = from_front(items.len(), at);
                let item = at.and_then(|at| items.get(at));
                item.map_or(Answer::Nil, |item| Answer::Text(item.clone()))
            }
            ("lpos", &[key, wanted]) => {
                let at = self.items(key)?.iter().position(|item| item == wanted);
                at.map_or(Answer::Nil, count)
            }
            ("lrange", &[key, from, to]) => {
                let (from, to) = (integer(from)?, integer(to)?);
                let items = self.items(key)?;
                let items = &items[range(items.len(), from, to)];
                Answer::List(items.iter().cloned().map(Answer::Text).collect())
            }
            ("rpush" | "lpush", &[key, ref items @ ..]) if !items.is_empty() => {
                let items = items.iter().map(|&item| item.to_owned());
                self.write(key, |list: &mut List| {
                    match name {
                        "rpush" => list.extend(items),
                        _ => items.for_each(|item| list.insert(0, item)),
                    }
                    count(list.len())
                })?
            }
            ("lpop", &[key]) => {
                let popped = self.write(key, |list: &mut List| {
                    (!list.is_empty()).then(|| list.remove(0))
                });
                popped?.map_or(Answer::Nil, Answer::Text)
            }
            ("lrem", &[key, most, item]) => {
                let most = integer(most)?;
                self.write(key, |list: &mut List| count(remove(list, most, item)))?
            }
            _ => return Err(unknown(name, args)),
        })
    }

    pub(super) fn call_of_sorted_sets(
        &mut self,
        name: &str,
        args: &[&str],
    ) -> Result<Answer, String> {
        Ok(match (name, args) {
            ("zcard", &[key]) => count(self.members(key)?.len()),
            ("zscore", &[key, wanted]) => {
                let mut members = self.members(key)?.iter();
                let found = members.find(|(_, member)| member == wanted);
                found.map_or(Answer::Nil, |(score, _)| Answer::Text(score_text(*score)))
            }
            ("zrange", &[key, from, to, ref options @ ..]) => {
                let with_scores = match options {
                    [] => false,
                    [word] if word.eq_ignore_ascii_case("withscores") => true,
                    _ => return Err(unknown(name, args)),
                };
                let (from, to) = (integer(from)?, integer(to)?);
                let members = self.members(key)?;
                let members = members[range(members.len(), from, to)].iter();
                let words = members.flat_map(|(score, member)| {
                    let score = with_scores.then(|| score_text(*score));
                    [Some(member.clone()), score].into_iter().flatten()
                });
                Answer::List(words.map(Answer::Text).collect())
            }
            ("zadd", &[key, ref rest @ ..]) => {
                let only_known = rest
                    .first()
                    .is_some_and(|word| word.eq_ignore_ascii_case("xx"));
                let pairs = scored(&rest[usize::from(only_known)..])
                    .ok_or_else(|| unknown(name, args))??;
                self.write(key, |members: &mut SortedSet| {
                    count(add(members, pairs, only_known))
                })?
            }
            ("zincrby", &[key, step, member]) => {
                let step = score(step)?;
                let sum = self.write(key, |members: &mut SortedSet| {
                    let known = members.iter().find(|(_, known)| known == member);
                    let sum = known.map_or(0.0, |(score, _)| *score) + step;
                    add(members, vec![(sum, member.to_owned())], false);
                    sum
                });
                Answer::Text(score_text(sum?))
            }
            ("zrem", &[key, ref gone @ ..]) if !gone.is_empty() => {
                self.write(key, |members: &mut SortedSet| {
                    let before = members.len();
                    members.retain(|(_, member)| !gone.contains(&member.as_str()));
                    count(before - members.len())
                })?
            }
            _ => return Err(unknown(name, args)),
        })
    }

    fn items(&self, key: &str) -> Result<&[String], String> {
        Ok(self.read::<List>(key)?.map_or(&[], Vec::as_slice))
    }

    fn members(&self, key: &str) -> Result<&[(f64, String)], String> {
        Ok(self.read::<SortedSet>(key)?.map_or(&[], Vec::as_slice))
    }
}

/// Removes an item: this many of them from the front, or from the end if the number is negative, or all of them.
fn remove(list: &mut List, most: i64, item: &str) -> usize {
    let found = list.iter().enumerate().filter(|(_, other)| *other == item);
    let mut found: Vec<usize> = found.map(|(at, _)| at).collect();
    if most < 0 {
        found.reverse();
    }
    if most != 0 {
        found.truncate(usize::try_from(most.unsigned_abs()).unwrap_or(usize::MAX));
    }
    found.sort_unstable();
    found.iter().rev().for_each(|&at| _ = list.remove(at));
    found.len()
}

/// Sets scores; returns how many members are new.
fn add(members: &mut SortedSet, pairs: Vec<(f64, String)>, only_known: bool) -> usize {
    let mut added = 0;
    for (score, member) in pairs {
        match members.iter_mut().find(|(_, known)| *known == member) {
            Some((known, _)) => *known = score,
            None if only_known => {}
            None => {
                members.push((score, member));
                added += 1;
            }
        }
    }
    members.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
    added
}

/// Scores with their members. `None`: there is no pair, or one lacks its member.
fn scored(words: &[&str]) -> Option<Result<Vec<(f64, String)>, String>> {
    let (pairs, rest) = words.as_chunks::<2>();
    let pairs = pairs
        .iter()
        .map(|[text, member]| Ok((score(text)?, (*member).to_owned())));
    (rest.is_empty() && !words.is_empty()).then(|| pairs.collect())
}

fn score(text: &str) -> Result<f64, String> {
    let score = text.parse::<f64>().ok().filter(|score| !score.is_nan());
    score.ok_or_else(|| "ERR value is not a valid float".to_owned())
}

/// A negative index counts from the end. `None`: it lies before the front.
fn from_front(len: usize, at: i64) -> Option<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    usize::try_from(if at < 0 { len.saturating_add(at) } else { at }).ok()
}

/// From one index to another, both included.
fn range(len: usize, from: i64, to: i64) -> Range<usize> {
    let from = from_front(len, from).unwrap_or(0).min(len);
    let end = from_front(len, to).map_or(0, |to| to.saturating_add(1).min(len));
    from..end.max(from)
}
