//! Names whose arguments have no such field, or no text.

use redisson_lock::{Error, LockClient, locked};

struct Order {
    id: u64,
}

#[locked(name = "order:{order.number}", client = locks)]
async fn unknown_field(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{order}", client = locks)]
async fn no_text(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

fn main() {}
