//! `watch`: a table of the locks whose names match a pattern.

use std::io::IsTerminal;
use std::time::Duration;

use redisson_lock::{FoundLock, Holder, LockClient};

use super::args::Watch;
use super::exit::Problem;
use super::inspect::left;
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
    let client = connect(&arguments.server.url).await?;
    let is_screen = std::io::stdout().is_terminal() && !arguments.once;
    loop {
        let found = locks(&client, &arguments.pattern).await;
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

/// Every lock that matches now, by name, a line for each holder.
async fn locks(client: &LockClient, pattern: &str) -> Result<Vec<(String, Holder)>, Problem> {
    let found = client.find_held(pattern).await?.into_iter();
    let lines = found.flat_map(|FoundLock { name, holders, .. }| {
        holders
            .into_iter()
            .map(move |holder| (name.clone(), holder))
    });
    Ok(lines.collect())
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
/// The cursor to the upper left, and delete everything.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";
