//! Work that blocks its thread, under a lock that the async side holds.
//!
//! `cargo run --example spawn_blocking -- redis://127.0.0.1:6379`

use std::thread::sleep;
use std::time::Duration;

use redisson_lock::{Error, HoldHandle, HoldState, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let archive = client.lock("archive");
        let pages = archive.run(async |held| {
            // If the lock is lost, `run` ends immediately; the thread does not: it has to look itself.
            let written = tokio::task::spawn_blocking(move || write_archive(&held));
            Ok::<_, Error>(written.await.expect("it does not panic"))
        });
        println!("{} pages", pages.await?);
        Ok(())
    })
    .await
}

fn write_archive(held: &HoldHandle) -> u32 {
    let mut pages = 0;
    while pages < 5 && held.state() == HoldState::Held {
        sleep(Duration::from_millis(20));
        pages += 1;
    }
    pages
}
