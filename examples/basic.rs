//! Acquire a lock, nest it, release it.
//!
//! `cargo run --example basic -- redis://127.0.0.1:6379`

use redisson_lock::{Error, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    // Whichever way the body ends, everything is released behind it.
    LockClient::scope(&url, async |client| {
        let stock = client.lock("stock:42");

        let outer = stock.lock().await?;
        println!("held by {}", outer.owner());
        // The same task acquires it again: no waiting, hold count 2.
        let inner = stock.lock().await?;
        println!("hold count {}", stock.hold_count().await?);
        inner.unlock().await?;
        outer.unlock().await?;

        println!("still locked: {}", stock.is_locked().await?);
        Ok(())
    })
    .await
}
