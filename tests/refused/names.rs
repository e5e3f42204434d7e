//! Names that are missing, empty, or no format string over the arguments.

use redisson_lock::{Error, LockClient, locked};

struct Order {
    id: u64,
}

#[locked]
async fn none() -> Result<(), Error> {
    Ok(())
}

#[locked(name = "", client = locks)]
async fn empty(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{oder.id}", client = locks)]
async fn unknown_argument(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{order.id()}", client = locks)]
async fn call(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{}", client = locks)]
async fn nothing_in_braces(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{order.id", client = locks)]
async fn open_brace(locks: &LockClient, order: &Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "order:{self.id}")]
async fn no_self() -> Result<(), Error> {
    Ok(())
}

fn main() {}
