//! Everything on one thread: two tasks of a `LocalSet`, with values that are not `Send`, take turns.
//!
//! `cargo run --example current_thread -- redis://127.0.0.1:6379`

use std::cell::Cell;
use std::rc::Rc;

use redisson_lock::{Error, LockClient};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let stock = Rc::new(Cell::new(10));
        let local = tokio::task::LocalSet::new();
        // A task is an owner: these two exclude each other.
        let sellers = [0, 1].map(|_| local.spawn_local(sell(client.clone(), Rc::clone(&stock))));
        local.await;
        for seller in sellers {
            seller.await.expect("it does not panic")?;
        }
        println!("{} left", stock.get());
        Ok(())
    })
    .await
}

async fn sell(client: LockClient, stock: Rc<Cell<u32>>) -> Result<(), Error> {
    let lock = client.lock("stock:42");
    for _ in 0..3 {
        let guard = lock.lock().await?;
        let before = stock.get();
        tokio::task::yield_now().await;
        stock.set(before - 1);
        guard.unlock().await?;
    }
    Ok(())
}
