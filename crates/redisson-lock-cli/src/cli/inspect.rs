//! `inspect`: who holds locks, and who waits for fair ones.

use std::time::Duration;

use redisson_lock::{Holder, QueuedOwner};
use serde_json::{Value, json};

use super::args::Inspect;
use super::exit::{self, Problem};
use super::{connect, text};

pub(crate) async fn run(arguments: &Inspect) -> Result<u8, Problem> {
    let client = connect(&arguments.server.url).await?;
    let (mut found, kind) = (Vec::new(), arguments.kind.kind);
    for name in &arguments.names {
        let lock = client.lock_of(kind, name);
        let (holder, queue) = (lock.inspect().await?, lock.queue().await?);
        found.push((name.as_str(), holder, queue));
    }
    client.close(Duration::ZERO).await;
    if arguments.json {
        let list: Vec<Value> = found
            .iter()
            .map(|(name, holder, queue)| as_json(name, holder.as_ref(), queue))
            .collect();
        text::print(&format!("{}\n", text::json(&Value::Array(list))))?;
    } else {
        let lines = found.iter().map(|(name, holder, queue)| {
            let holder = holder.as_ref().map_or_else(|| "free".to_owned(), held);
            let queue: String = queue.iter().map(waits).collect();
            format!("{}: {holder}\n{queue}", text::plain(name))
        });
        text::print(&lines.collect::<String>())?;
    }
    let all_held = found.iter().all(|(_, holder, _)| holder.is_some());
    Ok(if all_held { 0 } else { exit::FREE })
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

fn as_json(name: &str, holder: Option<&Holder>, queue: &[QueuedOwner]) -> Value {
    let mut shown = match holder {
        None => json!({ "name": name, "held": false }),
        Some(holder) => {
            let mut shown = json!({
                "name": name,
                "held": true,
                "owner": holder.owner,
                "hold_count": holder.hold_count,
                "lease_left_ms": holder.lease_left.map(|left| left.as_millis() as u64),
            });
            if let Some(token) = holder.token {
                shown["token"] = token.into();
            }
            shown
        }
    };
    if !queue.is_empty() {
        let waiting = |waiting: &QueuedOwner| {
            let left = waiting.place_left.map(|left| left.as_millis() as u64);
            json!({ "owner": waiting.owner, "place_left_ms": left })
        };
        shown["queue"] = queue.iter().map(waiting).collect();
    }
    shown
}
