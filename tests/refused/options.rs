//! Options that do not exist, or do not go together.

use redisson_lock::{Error, LockClient, locked};

#[locked(name = "stock", timeout = "5s", client = locks)]
async fn unknown(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked("stock")]
async fn no_key() -> Result<(), Error> {
    Ok(())
}

#[locked(name = "stock", name = "order", client = locks)]
async fn twice(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "stock", wait = "1s", busy = "wait", client = locks)]
async fn busy(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "stock", busy = "skip", client = locks)]
async fn no_wait(locks: &LockClient) -> Result<Option<()>, Error> {
    Ok(None)
}

#[locked(name = "stock", wait = "1s", retry_for = "5s", client = locks)]
async fn both(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

fn main() {}
