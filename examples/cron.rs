//! A job that every instance of a service starts on time, and one of them runs.
//!
//! The clocks of the instances differ a little, and a late instance must not run the job again: the lock is not
//! released after the job, but stays for its lease, or until its instance ends. (A real job waits for the time of day
//! instead of an interval.)
//!
//! `cargo run --example cron -- redis://127.0.0.1:6379`, in two terminals

use std::time::Duration;

use redisson_lock::{Error, LockClient};

const EVERY: Duration = Duration::from_secs(1);
/// Shorter than the time between two runs, longer than the job and the difference of the clocks.
const LEASE: Duration = Duration::from_millis(800);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let mut clock = tokio::time::interval(EVERY);
        for _ in 0..3 {
            clock.tick().await;
            // An owner for each run: the lock of the last one must not be re-entered.
            let owner = client.owner();
            let job = client.lock("jobs:clean-up").lease(LEASE).owned_by(&owner);
            match job.try_lock().await? {
                Some(guard) => {
                    clean_up().await?;
                    guard.detach();
                }
                None => println!("another instance has run it"),
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
