//! Locks of other kinds. The stock under a fenced lock, guarded writes of a plain one, and a red lock at five servers; a
//! queue for a fair lock, and a report under a read-write lock, both shared with a JVM.
//!
//! In the first two, one seller process is stopped while it holds the lock, until its lease is over and others have sold.
//! Then it goes on, and writes without a look at its lock. In the third, one server is killed in the middle of a sale.

mod jvm;
mod paused;
mod queue;
mod red;
mod report;

use std::process::ExitCode;
use std::time::Duration;

pub use paused::{Check, process};

use crate::reported;

/// Shows each kind. `without_checks`: but for the red lock, and none may be exact then.
pub async fn run(without_checks: bool) -> ExitCode {
    reported(rows(without_checks).await)
}

async fn rows(without_checks: bool) -> Result<Vec<String>, String> {
    println!(
        "A stock of {STOCK}, sold by {SELLERS} processes. One is stopped while it holds the lock, until others have sold;\n\
         then it writes.\n"
    );
    let mut problems = Vec::new();
    for check in Check::ALL {
        let row = paused::row(check, without_checks).await?;
        println!("{}", row.text());
        problems.extend(row.problem());
    }
    if !without_checks {
        println!(
            "\nThe same stock, sold by {SELLERS} sellers under a red lock at {} servers.\n",
            red::SERVERS
        );
        let row = red::row().await?;
        println!("{}", row.text());
        problems.extend(row.problem());
    }
    let beside = match std::env::var_os("DEMO_JAVA") {
        Some(_) => "a Rust and a JVM client",
        None => "a Rust client; without DEMO_JAVA the JVM is left out",
    };
    println!("\nA queue for a lock, and a report that is read and written, by {beside}.\n");
    let row = queue::row(without_checks).await?;
    println!("{}", row.text());
    problems.extend(row.problem());
    let row = report::row(without_checks).await?;
    println!("{}", row.text());
    problems.extend(row.problem());
    Ok(problems)
}

/// Why this number of sales is wrong.
fn not_exact(title: &str, sold: i64) -> Option<String> {
    (sold != STOCK).then(|| format!("{title}: the result is not exact: {sold} of {STOCK} sold"))
}

const STOCK: i64 = 200;
const SELLERS: usize = 4;

/// The first sale with this many left is the one in which something happens.
const HALF: i64 = STOCK / 2;

const LOCK: &str = "demo:lock";

/// By then everything is sold, also on a slow machine.
const SOLD_OUT: Duration = Duration::from_secs(60);
