//! Acquisitions in one function, so that `cargo xtask pair` can count what they enter and cost: a hundred pairs of a lock
//! that no other owner wants, or as many of each of sixteen tasks that want the same one.

use redisson_lock::{Lock, LockClient};
use tokio::runtime::{Builder, Runtime};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("the address of a server");
    let tasks: usize = arguments.next().map_or(1, |tasks| {
        tasks.parse().expect("how many tasks want the lock")
    });
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let client = runtime.block_on(LockClient::connect(&url));
    let lock = client.expect("the server answers").lock("pair");
    // The first ones send the texts of the scripts, and make what is kept.
    pairs(&runtime, &lock, tasks, 2);
    pairs_that_are_counted(&runtime, &lock, tasks);
}

#[inline(never)]
fn pairs_that_are_counted(runtime: &Runtime, lock: &Lock, tasks: usize) {
    pairs(runtime, lock, tasks, 100);
}

fn pairs(runtime: &Runtime, lock: &Lock, tasks: usize, each: usize) {
    let tasks = (0..tasks).map(|_| {
        let lock = lock.clone();
        runtime.spawn(async move {
            for _ in 0..each {
                let guard = lock.lock().await.expect("no outage");
                guard.unlock().await.expect("held");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        runtime.block_on(task).expect("no panic");
    }
}
