//! The kit as its users use it: every control does what it says, in paused and in real time, on
//! every runtime.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[macro_use]
extern crate test_support;

use std::future::Future;
use std::time::Duration;

use redisson_lock::LockClient;
use redisson_lock_test::FakeRedis;
use tokio::runtime::{Builder, Runtime};

mod another;
mod clients;
mod controls;
mod doubles;
mod queues;
mod replicas;
mod rights;
mod threads;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_workers() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test in paused time, and in real time on both kinds of runtime.
fn everywhere<F: Future<Output = ()> + Send + 'static>(test: fn(FakeRedis) -> F) {
    for (name, runtime) in [
        ("paused", paused()),
        ("current thread", current_thread()),
        ("two workers", two_workers()),
    ] {
        let ended = runtime.block_on(async {
            let test = tokio::spawn(test(FakeRedis::start()));
            tokio::time::timeout(ms(60_000), test).await
        });
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => panic!("{name}: {panic}"),
            Err(_) => panic!("{name}: it does not end"),
        }
    }
}

/// A client with times short enough for tests in real time.
async fn quick(fake: &FakeRedis) -> LockClient {
    let builder = fake.builder();
    let builder = builder.watchdog_timeout(ms(3_000)).command_timeout(ms(900));
    fake.connect(builder).await.unwrap()
}

/// Waits until the lock is free, as seen from outside.
async fn free(fake: &FakeRedis, name: &str) {
    for _ in 0..1_000 {
        if fake.holder(name).is_none() {
            return;
        }
        tokio::time::sleep(ms(5)).await;
    }
    panic!("still held: {:?}", fake.holder(name));
}
