//! What is no function with a body.

use redisson_lock::{Error, LockClient, locked};

#[locked(name = "stock", client = locks)]
struct Sale {
    error: Error,
    locks: LockClient,
}

trait Sell {
    #[locked(name = "stock", client = locks)]
    async fn sell(&self) -> Result<(), Error>;
}

fn main() {}
