//! Durations that are none, or no lease.

use redisson_lock::{Error, LockClient, locked};

#[locked(name = "stock", wait = "5 seconds", client = locks)]
async fn words(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "stock", wait = 5, client = locks)]
async fn number(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "stock", lease = "1.5s", client = locks)]
async fn fraction(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "stock", lease = "0s", client = locks)]
async fn no_lease(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

fn main() {}
