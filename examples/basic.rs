//! The example of the README: acquire a lock and release it.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example basic`

use redisson_lock::{Error, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    LockClient::scope(&url, async |client| {
        let stock = client.lock("stock:42");
        let guard = stock.lock().await?; // waits for the lock; the lease is then renewed until `unlock`
        println!("sold");
        guard.unlock().await
    }) // releases every lock still held, even after an error
    .await
}
