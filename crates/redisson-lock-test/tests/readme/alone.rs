//! The first test of the README, which needs nothing from the others.
use test_support::tokio;

use std::time::Duration;

use redisson_lock::{Error, LockClient, LossReason};
use redisson_lock_test::FakeRedis;

/// Counts until its lock is lost. What it has counted is gone then.
async fn count_stock(locks: &LockClient) -> Result<u32, Error> {
    let lock = locks.lock("stock:count");
    lock.run(|_held| async {
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_secs(1)).await; // one shelf
        }
        Ok(600)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_job_stops_when_its_lock_is_lost() {
    let fake = FakeRedis::start();
    let locks = fake.client().await;
    let job = tokio::spawn(async move { count_stock(&locks).await });

    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(fake.holder("stock:count").is_some());
    let _other = fake.taken_by_another("stock:count");

    match job.await.expect("no panic") {
        Err(Error::Lost { reason, .. }) => assert_eq!(reason, LossReason::Taken),
        other => panic!("the job went on: {other:?}"),
    }
}
