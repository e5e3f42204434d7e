//! Leader election: of all instances one works, and another takes over when it stops.
//!
//! Start it twice, then end the first with Ctrl-C: `cargo run --example leader -- redis://127.0.0.1:6379`

use std::time::Duration;

use redisson_lock::{Error, HoldHandle, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let leader = client.lock("reports:leader");
        // The body is dropped as soon as the lock is at risk, and begins anew after it was acquired again.
        // Behind the scope the lock is free, and the next instance leads at once.
        tokio::select! {
            done = leader.lead(write_reports) => done,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    })
    .await
}

async fn write_reports(held: HoldHandle) -> Result<(), Error> {
    println!("leading as {}", held.owner());
    for report in 1..=3 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        println!("report {report}");
    }
    Ok(())
}
