//! All code of the README, word for word, in its order.
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

use std::sync::atomic::{AtomicU32, Ordering};

/// Sells one piece, if there is one.
async fn sell(locks: &LockClient, stock: &AtomicU32) -> Result<bool, Error> {
    let guard = locks.lock("stock:42").lock().await?;
    let left = stock.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(20)).await; // the database
    if left > 0 {
        stock.store(left - 1, Ordering::SeqCst);
    }
    guard.unlock().await?;
    Ok(left > 0)
}

#[tokio::test(start_paused = true)]
async fn two_workers_are_never_inside_together() {
    let fake = FakeRedis::start();
    let stock = AtomicU32::new(10);
    // Two clients, as in two processes.
    let (one, other) = (fake.client().await, fake.client().await);
    let work = async |locks: &LockClient| {
        let mut sold = 0;
        while sell(locks, &stock).await.expect("it answers") {
            sold += 1;
        }
        sold
    };

    let (by_one, by_other) = tokio::join!(work(&one), work(&other));
    assert_eq!(by_one + by_other, 10);
}

#[tokio::test(start_paused = true)]
async fn a_sale_fails_during_an_outage_and_works_after_it() {
    let fake = FakeRedis::start();
    let locks = fake.client().await;
    let stock = AtomicU32::new(2);
    assert!(sell(&locks, &stock).await.expect("it answers"));

    fake.pause();
    fake.cut();
    let failed = sell(&locks, &stock).await;
    assert!(matches!(failed, Err(Error::NoAnswer { .. })), "{failed:?}");

    fake.resume();
    assert!(sell(&locks, &stock).await.expect("it answers"));
    assert_eq!(stock.load(Ordering::SeqCst), 0);
    assert!(fake.holder("stock:42").is_none(), "no lock is left behind");
}

struct Shop {
    locks: LockClient,
}

impl Shop {
    /// For `main`.
    async fn connect(url: &str) -> Result<Self, Error> {
        Ok(Self::new(LockClient::connect(url).await?))
    }

    /// For tests, and for callers that have a client.
    fn new(locks: LockClient) -> Self {
        Self { locks }
    }

    async fn is_open(&self) -> Result<bool, Error> {
        self.locks
            .lock("shop:closed")
            .is_locked()
            .await
            .map(|closed| !closed)
    }
}

#[tokio::test(start_paused = true)]
async fn a_shop_is_closed_while_somebody_counts_its_stock() {
    let fake = FakeRedis::start();
    let shop = Shop::new(fake.client().await);
    let counting = fake.taken_by_another("shop:closed");
    assert!(!shop.is_open().await.expect("it answers"));

    counting.release();
    assert!(shop.is_open().await.expect("it answers"));
}

use redisson_lock::{AnyLock, DistributedLock, HeldLock};
use redisson_lock_test::FakeLock;

struct Report {
    lock: AnyLock,
}

impl Report {
    /// Writes the pages until the lock is lost. How many it has written.
    async fn write(&self, pages: u32) -> Result<u32, Error> {
        let guard = self.lock.lock().await?;
        let lost = guard.lost();
        tokio::pin!(lost);
        for page in 0..pages {
            tokio::select! {
                biased;
                _ = &mut lost => return Ok(page),
                () = tokio::time::sleep(Duration::from_secs(1)) => {} // one page
            }
        }
        guard.unlock().await?;
        Ok(pages)
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_stops_when_its_lock_is_lost() {
    let fake = FakeLock::new("report");
    let report = Report {
        lock: AnyLock::new(fake.clone()),
    };
    assert_eq!(report.write(3).await.expect("held"), 3);

    let taken = async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        fake.take();
    };
    let (written, ()) = tokio::join!(report.write(9), taken);
    assert_eq!(written.expect("it has begun"), 2);
    assert!(!fake.is_held());

    fake.fail(|| Error::Closed);
    assert!(matches!(report.write(1).await, Err(Error::Closed)));
}
