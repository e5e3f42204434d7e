//! A client that is none.

use redisson_lock::{Error, LockClient, locked};

#[locked(name = "stock", client = 7)]
async fn no_client(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

fn main() {}
