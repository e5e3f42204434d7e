//! Names whose arguments have no such field, or no text.

use redisson_lock::{Error, LockClient, locked};

struct Order {
    id: u64,
}

impl Order {
    const KIND: u64 = 7;

    #[locked(name = "order:{Self::KINDS}", client = locks)]
    async fn misspelled_constant(locks: &LockClient) -> Result<(), Error> {
        Ok(())
    }
}

#[locked(name = "order:{order.number}", client = locks)]
async fn unknown_field(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{order.idd}", client = locks)]
async fn misspelled_field(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{order}", client = locks)]
async fn no_text(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

fn main() {}
