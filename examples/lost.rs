//! Stop working when the lock is lost, in the two usual ways.
//!
//! `cargo run --example lost -- redis://127.0.0.1:6379`, then `redis-cli DEL report` in another
//! terminal.

use std::time::Duration;

use redisson_lock::{Error, HoldState, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let builder = LockClient::builder().watchdog_timeout(Duration::from_secs(10));
    builder.scope(&url, write_reports).await
}

async fn write_reports(client: LockClient) -> Result<(), Error> {
    let report = client.lock("report");

    // The body is dropped at its next await when the lock is lost.
    let written = report
        .run(|_held| async { Ok::<_, Error>(work(3).await) })
        .await;
    println!("run: {written:?}");

    // The same by hand: watch the guard during the work, and check it before each externally
    // visible step.
    let guard = report.lock().await?;
    tokio::select! {
        pages = work(5) => {
            if guard.state() == HoldState::Held {
                println!("{pages} pages, valid until {:?}", guard.valid_until());
            }
            guard.unlock().await?;
        }
        reason = guard.lost() => println!("stopped: {reason}"),
    }
    Ok(())
}

async fn work(pages: u32) -> u32 {
    for page in 1..=pages {
        println!("page {page}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    pages
}
