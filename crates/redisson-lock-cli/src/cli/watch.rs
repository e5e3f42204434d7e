//! `watch`: a table of the locks whose names match a pattern.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use fred::interfaces::ClientLike;
use fred::prelude::{Builder, Client, Config};
use fred::types::config::{ServerConfig, UnresponsiveConfig};
use fred::types::{ClusterHash, CustomCommand, Value};
use redisson_lock::{Error, Holder, LockClient};
use tokio::task::JoinSet;

use super::args::Watch;
use super::exit::{self, Problem};
use super::inspect::{all_holders, left};
use super::signals::Signals;
use super::{connect, text};

pub(crate) async fn run(arguments: &Watch) -> Result<u8, Problem> {
    let mut signals = Signals::ending_ones()?;
    tokio::select! {
        biased;
        _ = signals.ending() => Ok(0),
        watched = watch(arguments) => watched.map(|()| 0),
    }
}

async fn watch(arguments: &Watch) -> Result<(), Problem> {
    // First: it says what is wrong with an address, and accepts no unknown scheme.
    let client = connect(&arguments.server.url).await?;
    let scanner = scanner(&arguments.server.url).await?;
    let is_screen = std::io::stdout().is_terminal() && !arguments.once;
    loop {
        let found = locks(&client, &scanner, &arguments.pattern).await;
        if arguments.once {
            return text::print(&table(&found?, usize::MAX));
        }
        let lines = match found {
            Ok(found) if is_screen => table(&found, lines_of_screen()),
            Ok(found) => table(&found, usize::MAX),
            // It goes on when the server is back.
            Err(problem) => format!("{}\n", text::plain(&problem.sentence)),
        };
        text::print(&match is_screen {
            true => format!("{CLEAR_SCREEN}{lines}"),
            false => format!("{lines}\n"),
        })?;
        tokio::time::sleep(BETWEEN).await;
    }
}

/// A connection for SCAN.
async fn scanner(url: &str) -> Result<Client, Problem> {
    let mut config = Config::from_url(url).map_err(unavailable)?;
    if let ServerConfig::Unix { path } = &mut config.server {
        // As the library reads it.
        let decoded = percent_encoding::percent_decode(path.as_os_str().as_bytes());
        *path = PathBuf::from(OsString::from_vec(decoded.collect()));
    }
    if config.server.is_clustered() || config.server.is_sentinel() {
        let sentence = "watch looks at the keys of one server: name it, redis://host:port";
        return Err(Problem::new(exit::USAGE, sentence));
    }
    let client = Builder::from_config(config)
        .with_performance_config(|performance| performance.default_command_timeout = TIMEOUT)
        .with_connection_config(|connection| {
            connection.connection_timeout = TIMEOUT;
            connection.internal_command_timeout = TIMEOUT;
            connection.unresponsive = UnresponsiveConfig {
                max_timeout: Some(TIMEOUT),
                ..UnresponsiveConfig::default()
            };
        })
        .set_policy(fred::types::config::ReconnectPolicy::new_constant(0, 500))
        .build()
        .map_err(unavailable)?;
    client.init().await.map_err(unavailable)?;
    Ok(client)
}

fn unavailable(error: fred::error::Error) -> Problem {
    Problem::new(exit::UNAVAILABLE, format!("no answer from Redis ({error})"))
}

/// Every lock that matches now, by name.
async fn locks(
    client: &LockClient,
    scanner: &Client,
    pattern: &str,
) -> Result<Vec<(String, Holder)>, Problem> {
    let mut names = std::collections::BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let (next, found) = scan(scanner, &cursor, pattern).await?;
        names.extend(found);
        if next == "0" {
            break;
        }
        cursor = next;
    }
    let mut locks = Vec::new();
    let mut names = names.into_iter();
    loop {
        // A few in flight at a time: the server has other clients.
        let mut inspected = JoinSet::new();
        for name in names.by_ref().take(AT_ONCE) {
            let client = client.clone();
            inspected.spawn(async move { (holders(&client, &name).await, name) });
        }
        if inspected.is_empty() {
            break;
        }
        for (holders, name) in inspected.join_all().await {
            match holders {
                Ok(mut holders) => {
                    holders.retain(|holder| is_owner(&holder.owner));
                    locks.extend(holders.into_iter().map(|holder| (name.clone(), holder)));
                }
                // A hash of something else.
                Err(Error::NotALock { .. } | Error::InvalidName { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    locks.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(locks)
}

/// Of a read-write lock, whose hash is not that of a plain one, all of them.
async fn holders(client: &LockClient, name: &str) -> Result<Vec<Holder>, Error> {
    match client.lock(name).inspect().await {
        Err(Error::NotALock { .. }) => Ok(all_holders(client.rw_lock(name).inspect().await?)),
        holder => Ok(holder?.into_iter().collect()),
    }
}

/// One step of SCAN: the next cursor, and the names found. A lock is a hash; a name that is not
/// text cannot be asked for.
async fn scan(
    scanner: &Client,
    cursor: &str,
    pattern: &str,
) -> Result<(String, Vec<String>), Problem> {
    let command = CustomCommand::new_static("SCAN", ClusterHash::Random, false);
    let words = [cursor, "MATCH", pattern, "COUNT", STEP, "TYPE", "hash"];
    let words = words.map(str::to_owned).to_vec();
    let reply: Value = scanner.custom(command, words).await.map_err(unavailable)?;
    if let Value::Array(reply) = reply
        && let [cursor, Value::Array(names)] = &reply[..]
        && let Some(cursor) = cursor.as_string()
    {
        let names = names.iter().filter_map(Value::as_bytes);
        let names = names.filter_map(|name| String::from_utf8(name.to_vec()).ok());
        return Ok((cursor, names.collect()));
    }
    let sentence = "SCAN has an unknown reply; is another program answering for Redis?";
    Err(Problem::new(exit::UNAVAILABLE, sentence))
}

/// Whether a field is an owner's, `clientId:threadId` or that with `:write`. Other programs have hashes with one number
/// too.
fn is_owner(field: &str) -> bool {
    let owner = field.strip_suffix(":write").unwrap_or(field);
    owner
        .rsplit_once(':')
        .is_some_and(|(client, thread)| !client.is_empty() && thread.parse::<i64>().is_ok())
}

/// The table, with a head, in at most this many lines.
fn table(locks: &[(String, Holder)], lines: usize) -> String {
    if locks.is_empty() {
        return "no lock is held\n".to_owned();
    }
    let rows_max = lines.saturating_sub(3).max(1);
    let rows: Vec<[String; 4]> = locks
        .iter()
        .take(rows_max)
        .map(|(name, holder)| {
            let count = holder.hold_count.to_string();
            [
                text::plain(name),
                text::plain(&holder.owner),
                count,
                left(holder),
            ]
        })
        .collect();
    let head = ["LOCK", "OWNER", "COUNT", "LEASE"].map(str::to_owned);
    let width = |column: usize| {
        let cells = rows
            .iter()
            .chain([&head])
            .map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    let mut text: String = [&head]
        .into_iter()
        .chain(&rows)
        .map(|[name, owner, count, lease]| {
            let [names, owners, counts] = widths;
            format!("{name:names$}  {owner:owners$}  {count:>counts$}  {lease}\n")
        })
        .collect();
    if locks.len() > rows.len() {
        text += &format!("and {} more\n", locks.len() - rows.len());
    }
    text
}

fn lines_of_screen() -> usize {
    terminal_size::terminal_size().map_or(24, |(_, height)| usize::from(height.0))
}

const BETWEEN: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(3);

/// How many keys of the keyspace a step of SCAN reads, about.
const STEP: &str = "100";

/// How many locks are inspected at the same time.
const AT_ONCE: usize = 32;

/// The cursor to the upper left, and delete everything.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_from_other_fields() {
        assert!(is_owner("8743c9c0-0795-4907-87fd-6c719a6b4586:1"));
        assert!(is_owner("some:client:-7"));
        for other in ["visits", ":1", "a:b", "a:"] {
            assert!(!is_owner(other), "{other}");
        }
    }
}
