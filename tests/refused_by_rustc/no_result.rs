//! Return types that cannot say what became of the lock.

use redisson_lock::{Error, LockClient, locked};

#[locked(name = "stock", client = locks)]
async fn count(locks: &LockClient) -> u32 {
    7
}

#[locked(name = "stock", wait = "0s", busy = "skip", client = locks)]
async fn report(locks: &LockClient) -> Result<u32, Error> {
    Ok(7)
}

fn main() {}
