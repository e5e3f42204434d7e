//! An error type that has no room for the error of the lock.

use redisson_lock::{Error, LockClient, locked};

#[locked(name = "stock", client = locks)]
async fn sell(locks: &LockClient) -> Result<(), std::fmt::Error> {
    Ok(())
}

fn is_error(error: Error) -> Error {
    error
}

fn main() {}
