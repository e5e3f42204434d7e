//! A hundred uncontended pairs in one function, so that `cargo xtask pair` can count what they enter.

use redisson_lock::LockClient;

fn main() {
    let url = std::env::args().nth(1).expect("the address of a server");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let client = runtime.block_on(LockClient::connect(&url));
    let client = client.expect("the server answers");
    // The first one sends the texts of the scripts.
    pairs(&runtime, &client, 1);
    pairs_that_are_counted(&runtime, &client);
}

#[inline(never)]
fn pairs_that_are_counted(runtime: &tokio::runtime::Runtime, client: &LockClient) {
    pairs(runtime, client, 100);
}

fn pairs(runtime: &tokio::runtime::Runtime, client: &LockClient, count: usize) {
    runtime.block_on(async {
        let lock = client.lock("pair");
        for _ in 0..count {
            let guard = lock.lock().await.expect("free");
            guard.unlock().await.expect("held");
        }
    });
}
