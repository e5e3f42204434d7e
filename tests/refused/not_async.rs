//! A function that cannot wait.

use redisson_lock::{Error, LockClient, locked};

#[locked(name = "stock", client = locks)]
fn sell(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

fn main() {}
