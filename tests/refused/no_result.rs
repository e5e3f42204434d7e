//! A function that cannot return the error of its lock.

use redisson_lock::{LockClient, locked};

#[locked(name = "stock", client = locks)]
async fn sell(locks: &LockClient) {}

fn main() {}
