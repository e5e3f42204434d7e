//! `inspect`: who holds locks.

use std::time::Duration;

use redisson_lock::Holder;
use serde_json::{Value, json};

use super::args::Inspect;
use super::exit::{self, Problem};
use super::{connect, text};

pub(crate) async fn run(arguments: &Inspect) -> Result<u8, Problem> {
    let client = connect(&arguments.server.url).await?;
    let (mut found, kind) = (Vec::new(), arguments.kind.kind);
    for name in &arguments.names {
        let holder = client.lock_of(kind, name).inspect().await?;
        found.push((name.as_str(), holder));
    }
    client.close(Duration::ZERO).await;
    if arguments.json {
        let list: Vec<Value> = found
            .iter()
            .map(|(name, holder)| as_json(name, holder.as_ref()))
            .collect();
        text::print(&format!("{}\n", text::json(&Value::Array(list))))?;
    } else {
        let lines = found.iter().map(|(name, holder)| match holder {
            Some(holder) => format!("{}: {}\n", text::plain(name), held(holder)),
            None => format!("{}: free\n", text::plain(name)),
        });
        text::print(&lines.collect::<String>())?;
    }
    let all_held = found.iter().all(|(_, holder)| holder.is_some());
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

/// How long the lock lasts if nobody renews it.
pub(crate) fn left(holder: &Holder) -> String {
    holder.lease_left.map_or_else(
        || "without an end".to_owned(),
        |left| format!("{} left", text::seconds(left)),
    )
}

fn as_json(name: &str, holder: Option<&Holder>) -> Value {
    match holder {
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
    }
}
