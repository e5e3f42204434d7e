//! Locks in a program without an async runtime.
//!
//! `cargo run --features blocking --example blocking -- redis://127.0.0.1:6379`

use redisson_lock::Error;
use redisson_lock::blocking::LockClient;

fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let client = LockClient::connect(&url)?;
    let stock = client.lock("stock:42");

    let outer = stock.lock()?;
    println!("held by {}", outer.owner());
    // The same thread acquires it again: no waiting, hold count 2.
    let inner = stock.lock()?;
    println!("hold count {}", stock.hold_count()?);
    inner.unlock()?;
    outer.unlock()?;

    let sold = stock.run(|held| {
        // A loss does not stop the body: it checks before each step.
        Ok::<_, Error>((0..3).take_while(|_| !held.is_lost()).count())
    })?;
    println!("sold {sold}");

    // Released before the program ends: the client, dropped after the guard, waits for it.
    let _until_the_end = stock.lock()?;
    Ok(())
}
