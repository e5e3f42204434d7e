//! Against a real server: two clients are never inside together.

use std::sync::atomic::{AtomicU32, Ordering};

use redisson_lock::{Error, LockClient, locked};
use test_support::{TestServer, tokio};

use crate::ms;

#[locked(name = "stock:{item}", wait = "1m", client = locks)]
async fn sell(locks: &LockClient, item: u32, stock: &AtomicU32) -> Result<bool, Error> {
    let left = stock.load(Ordering::SeqCst);
    tokio::time::sleep(ms(2)).await;
    if left > 0 {
        stock.store(left - 1, Ordering::SeqCst);
    }
    Ok(left > 0)
}

#[tokio::test]
async fn two_clients_sell_each_piece_once() {
    let server = TestServer::new();
    let (one, other) = (server.client().await, server.client().await);
    let stock = AtomicU32::new(40);
    let work = async |locks: &LockClient| {
        let mut sold = 0;
        while sell(locks, 42, &stock).await.expect("it answers") {
            sold += 1;
        }
        sold
    };
    let (by_one, by_other) = tokio::join!(work(&one), work(&other));
    assert_eq!(by_one + by_other, 40);
}
