//! `inspect`: who holds locks, and who waits for fair ones.

use std::time::Duration;

use redisson_lock::{Error, Holder, Lock, LockClient, LockKind, QueuedOwner, RwHolders};
use serde_json::{Value, json};

use super::args::Inspect;
use super::exit::{self, Problem};
use super::{connect, text};

pub(crate) async fn run(arguments: &Inspect) -> Result<u8, Problem> {
    let client = connect(&arguments.server.url).await?;
    let (mut found, kind) = (Vec::new(), arguments.kind.kind);
    for name in &arguments.names {
        found.push(Found::of(&client, kind, name).await?);
    }
    client.close(Duration::ZERO).await;
    if arguments.json {
        let list: Vec<Value> = found.iter().map(|found| found.as_json(kind)).collect();
        text::print(&format!("{}\n", text::json(&Value::Array(list))))?;
    } else {
        let lines: String = found.iter().map(Found::as_text).collect();
        text::print(&lines)?;
    }
    let all_held = found.iter().all(|found| !found.holders.is_empty());
    Ok(if all_held { 0 } else { exit::FREE })
}

struct Found<'a> {
    name: &'a str,
    /// One, or those of a read-write lock.
    holders: Vec<Holder>,
    queue: Vec<QueuedOwner>,
}

impl<'a> Found<'a> {
    async fn of(client: &LockClient, kind: LockKind, name: &'a str) -> Result<Self, Error> {
        let holders = match kind {
            LockKind::Read | LockKind::Write => all_holders(client.rw_lock(name).inspect().await?),
            kind => {
                let holder = client.lock_of(kind, name).inspect().await?;
                holder.into_iter().collect()
            }
        };
        let queue = client.lock_of(kind, name).queue().await?;
        Ok(Self {
            name,
            holders,
            queue,
        })
    }

    fn as_text(&self) -> String {
        let name = text::plain(self.name);
        let (first, others) = match &self.holders[..] {
            [] => ("free".to_owned(), String::new()),
            [first, others @ ..] => {
                let others = others.iter().map(|other| format!("  {}\n", held(other)));
                (held(first), others.collect())
            }
        };
        let queue: String = self.queue.iter().map(waits).collect();
        format!("{name}: {first}\n{others}{queue}")
    }

    fn as_json(&self, kind: LockKind) -> Value {
        let mut shown = match self.holders.first() {
            None => json!({ "held": false }),
            Some(first) => {
                let mut shown = holder_as_json(first);
                shown["held"] = true.into();
                shown
            }
        };
        shown["name"] = self.name.into();
        if matches!(kind, LockKind::Read | LockKind::Write) {
            shown["holders"] = self.holders.iter().map(holder_as_json).collect();
        }
        if !self.queue.is_empty() {
            let waiting = |waiting: &QueuedOwner| {
                let left = waiting.place_left.map(|left| left.as_millis() as u64);
                json!({ "owner": waiting.owner, "place_left_ms": left })
            };
            shown["queue"] = self.queue.iter().map(waiting).collect();
        }
        shown
    }
}

/// Who is in the way of a call for this lock. A holder of one part of a read-write lock is in the way of the other one.
pub(crate) async fn holder<K>(
    client: &LockClient,
    lock: &Lock<K>,
) -> Result<Option<Holder>, Error> {
    match lock.kind() {
        LockKind::Read | LockKind::Write => {
            let holders = client.rw_lock(lock.name()).inspect().await?;
            Ok(all_holders(holders).into_iter().next())
        }
        _ => lock.inspect().await,
    }
}

/// The writer, and then those that read.
fn all_holders(holders: Option<RwHolders>) -> Vec<Holder> {
    let all = holders.into_iter();
    all.flat_map(|holders| holders.writer.into_iter().chain(holders.readers))
        .collect()
}

/// A holder in a few words.
pub(crate) fn held(holder: &Holder) -> String {
    let times = match holder.hold_count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let token = holder.token.map(|token| format!(", token {token}"));
    format!(
        "held {times} by {}, {}{}",
        text::plain(&holder.owner),
        left(holder),
        token.unwrap_or_default()
    )
}

/// A line about an owner in the queue of a fair lock.
fn waits(waiting: &QueuedOwner) -> String {
    let left = waiting.place_left.map_or_else(
        || "without an end".to_owned(),
        |left| format!("for {} at most", text::seconds(left)),
    );
    format!("  {} waits, {left}\n", text::plain(&waiting.owner))
}

/// How long the lock lasts if nobody renews it.
pub(crate) fn left(holder: &Holder) -> String {
    holder.lease_left.map_or_else(
        || "without an end".to_owned(),
        |left| format!("{} left", text::seconds(left)),
    )
}

fn holder_as_json(holder: &Holder) -> Value {
    let mut shown = json!({
        "owner": holder.owner,
        "hold_count": holder.hold_count,
        "lease_left_ms": holder.lease_left.map(|left| left.as_millis() as u64),
    });
    if let Some(token) = holder.token {
        shown["token"] = token.into();
    }
    shown
}
