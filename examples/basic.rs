//! What the README shows: acquire a lock, nest it, release it, run a body with it.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example basic`

use redisson_lock::{Error, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    // Behind the scope, ended by `?` too, everything is released: the end of a runtime cannot do that. Await the tasks that
    // you spawn inside.
    LockClient::scope(&url, async |client| {
        let stock = client.lock("stock:42");

        let outer = stock.lock().await?; // waits; the watchdog renews it
        let inner = stock.lock().await?; // the same task: hold count 2
        inner.unlock().await?;
        outer.unlock().await?; // a dropped guard is released in the background

        stock.run(|_held| sell()).await // sell is dropped if the lock is lost
    })
    .await
}

async fn sell() -> Result<(), Error> {
    println!("sold");
    Ok(())
}
