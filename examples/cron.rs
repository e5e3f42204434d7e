//! A job that every instance of a service starts on time, and one of them runs.
//!
//! The clocks of the instances differ a little, and a late instance must not run the job again: the lock stays for nearly a
//! period. (A real job waits for the time of day instead of an interval.)
//!
//! `cargo run --example cron -- redis://127.0.0.1:6379`, in two terminals

use std::time::Duration;

use redisson_lock::{Error, LockClient};

const EVERY: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let job = client.lock("jobs:clean-up");
        let mut clock = tokio::time::interval(EVERY);
        for _ in 0..3 {
            clock.tick().await;
            if job.once_per(EVERY, |_held| clean_up()).await?.is_none() {
                println!("another instance has run it");
            }
        }
        Ok(())
    })
    .await
}

async fn clean_up() -> Result<(), Error> {
    println!("cleaned up");
    Ok(())
}
