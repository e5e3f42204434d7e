//! What a function with `#[locked]` holds while it runs, and what it returns.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redisson_lock::{Error, LockClient, LossReason, locked};
use test_support::tokio;
use tokio::time::{Instant, sleep};

use crate::{ORDER, Order, SaleError, Shop, ms};

impl Shop {
    #[locked(name = "order:{order.id}", client = self.locks)]
    async fn pay(&self, order: &Order) -> Result<Duration, Error> {
        Ok(self.held("order:7"))
    }

    #[locked(name = "{order.item.0:05}:{order.item.1:?}{{}}", prefix = PREFIX, client = &self.locks)]
    async fn pack(&self, order: &Order) -> Result<Duration, Error> {
        Ok(self.held("shop:00042:\"tea\"{}"))
    }

    #[locked(name = "stock", wait = "2s", client = self.locks)]
    async fn sell(&self) -> Result<Duration, Error> {
        Ok(self.held("stock"))
    }

    #[locked(name = "stock", wait = "0s", busy = "skip", client = self.locks)]
    async fn report(&self) -> Result<Option<Duration>, SaleError> {
        Ok(Some(self.held("stock")))
    }

    #[locked(name = "stock", wait = "5s", busy = "skip", client = self.locks)]
    async fn report_at_night(&self) -> Result<Option<Duration>, SaleError> {
        Ok(Some(self.held("stock")))
    }

    #[locked(name = "stock", lease = "10s", client = self.locks)]
    async fn count(&self, time: Duration) -> Result<Duration, Error> {
        let left = self.held("stock");
        sleep(time).await;
        Ok(left)
    }
}

#[locked(name = "stock", retry_for = "1m", client = locks)]
async fn sell_through_an_outage(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn with_retry_for_an_outage_is_waited_out() {
    let shop = Shop::open().await;
    shop.fake.pause();
    let selling = sell_through_an_outage(&shop.locks);
    let outage = async {
        sleep(Duration::from_secs(20)).await;
        shop.fake.resume();
    };
    let (sold, ()) = tokio::join!(selling, outage);
    sold.unwrap();
    shop.free("stock");
}

const PREFIX: &str = "shop:";

#[tokio::test(start_paused = true)]
async fn the_body_runs_with_the_lock_held_and_leaves_it_free() {
    let shop = Shop::open().await;
    // The watchdog's lease.
    assert!(shop.pay(&ORDER).await.unwrap() > Duration::from_secs(29));
    shop.free("order:7");
    shop.pack(&ORDER).await.unwrap();
    shop.free("shop:00042:\"tea\"{}");
    assert_eq!(shop.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_it_waits_until_the_lock_is_free() {
    let shop = Shop::open().await;
    let other = shop.fake.taken_by_another("order:7");
    let paying = shop.pay(&ORDER);
    let releasing = async {
        sleep(Duration::from_secs(300)).await;
        assert_eq!(shop.runs(), 0);
        other.release();
    };
    let (paid, ()) = tokio::join!(paying, releasing);
    paid.unwrap();
    assert_eq!(shop.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_free_in_time_is_an_error_that_says_so() {
    let shop = Shop::open().await;
    let other = shop.fake.taken_by_another("stock");
    let holder = shop.fake.holder("stock").unwrap().owner;
    let start = Instant::now();
    let error = shop.sell().await.unwrap_err();
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert_eq!(
        error.to_string(),
        format!(
            "lock `stock` was not free within 2s, held by {holder}: try again later, or wait longer"
        )
    );
    assert!(error.is_retryable() && error.lock() == Some("stock"));
    let Error::Busy {
        lock,
        waited,
        found: Some(found),
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((&*lock, waited), ("stock", Duration::from_secs(2)));
    assert_eq!(found.owner, holder);
    assert!(
        found
            .lease_left
            .is_some_and(|left| left > Duration::from_secs(20)),
        "{found:?}"
    );
    assert_eq!(shop.runs(), 0);

    other.release();
    shop.sell().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_two_calls_of_one_client_the_later_one_does_not_learn_who_holds_the_lock() {
    let shop = Shop::open().await;
    let _other = shop.fake.taken_by_another("stock");
    let (first, second) = (shop.locks.owner(), shop.locks.owner());
    let calls = async { tokio::join!(first.scope(shop.sell()), second.scope(shop.sell())) };
    let (first, second) = calls.await;
    assert!(first.unwrap_err().to_string().contains(", held by "));
    let second = second.unwrap_err();
    assert!(
        matches!(second, Error::Busy { found: None, .. }),
        "{second:?}"
    );
    assert_eq!(
        second.to_string(),
        "lock `stock` was not free within 2s: try again later, or wait longer"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_free_skips_the_body_if_asked_to() {
    let shop = Shop::open().await;
    let other = shop.fake.taken_by_another("stock");
    let start = Instant::now();
    assert!(shop.report().await.unwrap().is_none());
    assert!(start.elapsed() < ms(100), "one attempt");
    assert_eq!(shop.runs(), 0);

    other.release();
    assert!(shop.report().await.unwrap().is_some());
}

/// A job that is skipped in an outage would be skipped in silence.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_skips_nothing() {
    let shop = Shop::open().await;
    shop.fake.pause();
    let start = Instant::now();
    let failed = shop.report_at_night().await;
    assert!(
        matches!(failed, Err(SaleError::Lock(Error::NoAnswer { .. }))),
        "{failed:?}"
    );
    assert!(start.elapsed() <= ms(5_050), "{:?}", start.elapsed());

    // One attempt has as long as a command.
    let start = Instant::now();
    let failed = shop.report().await;
    assert!(
        matches!(failed, Err(SaleError::Lock(Error::NoAnswer { .. }))),
        "{failed:?}"
    );
    assert!(start.elapsed() >= ms(2_900), "{:?}", start.elapsed());
    assert_eq!(shop.runs(), 0);

    shop.fake.resume();
    assert!(shop.report_at_night().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_not_renewed_and_drops_the_body_when_it_is_over() {
    let shop = Shop::open().await;
    let left = shop.count(ms(100)).await.unwrap();
    assert!(left > Duration::from_secs(9) && left <= Duration::from_secs(10));

    let start = Instant::now();
    let error = shop.count(Duration::from_secs(60)).await.unwrap_err();
    assert!(start.elapsed() <= Duration::from_secs(10));
    assert!(matches!(
        error,
        Error::Lost {
            reason: LossReason::LeaseOver,
            ..
        }
    ));
}

/// Says that it was dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[locked(name = "stock", client = shop.locks)]
async fn never_ends(shop: &Shop, dropped: Arc<AtomicBool>) -> Result<(), SaleError> {
    let _dropped = Dropped(dropped);
    shop.held("stock");
    pending().await
}

#[tokio::test(start_paused = true)]
async fn the_body_is_dropped_when_the_lock_is_lost() {
    let shop = Shop::open().await;
    let dropped = Arc::new(AtomicBool::new(false));
    let taking = async {
        sleep(Duration::from_secs(60)).await;
        assert!(!dropped.load(Ordering::SeqCst));
        shop.fake.taken_by_another("stock")
    };
    let (ended, _other) = tokio::join!(never_ends(&shop, Arc::clone(&dropped)), taking);
    assert!(matches!(
        ended,
        Err(SaleError::Lock(Error::Lost {
            reason: LossReason::Taken,
            ..
        }))
    ));
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_drops_the_body_and_releases_the_lock() {
    let shop = Shop::open().await;
    let dropped = Arc::new(AtomicBool::new(false));
    let limited = tokio::time::timeout(ms(500), never_ends(&shop, Arc::clone(&dropped))).await;
    assert!(limited.is_err() && dropped.load(Ordering::SeqCst));
    shop.soon_free("stock").await;
}

/// What the body does to its lock, and how it ends.
#[locked(name = "stock", client = shop.locks)]
async fn ends(shop: &Shop, harm: impl FnOnce(&Shop), text: &str) -> Result<u32, SaleError> {
    harm(shop);
    let number = text.parse()?;
    if number == 0 {
        return Err(SaleError::SoldOut);
    }
    Ok(number)
}

#[tokio::test(start_paused = true)]
async fn the_error_of_the_body_is_returned_and_the_lock_is_free() {
    let shop = Shop::open().await;
    assert!(matches!(ends(&shop, |_| (), "5").await, Ok(5)));
    assert!(matches!(
        ends(&shop, |_| (), "0").await,
        Err(SaleError::SoldOut)
    ));
    shop.free("stock");
    assert!(matches!(
        ends(&shop, |_| (), "x").await,
        Err(SaleError::Number(_))
    ));
    shop.free("stock");
    // Also if the unlock fails too.
    let wipe = |shop: &Shop| shop.fake.wipe();
    assert!(matches!(
        ends(&shop, wipe, "0").await,
        Err(SaleError::SoldOut)
    ));
    let pause = |shop: &Shop| shop.fake.pause();
    assert!(matches!(
        ends(&shop, pause, "0").await,
        Err(SaleError::SoldOut)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_the_unlock_finds_is_the_error_of_a_body_that_succeeded() {
    let shop = Shop::open().await;
    let ended = ends(&shop, |shop| shop.fake.wipe(), "5").await;
    assert!(
        matches!(
            ended,
            Err(SaleError::Lock(Error::Lost {
                reason: LossReason::Gone,
                ..
            }))
        ),
        "{ended:?}"
    );
    // Its release goes on in the background.
    let ended = ends(&shop, |shop| shop.fake.pause(), "5").await;
    assert!(matches!(ended, Ok(5)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_body_propagates_and_the_lock_is_released() {
    let shop = Arc::new(Shop::open().await);
    let selling = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move {
            ends(&shop, |_| panic!("the till is broken"), "5")
                .await
                .map_err(drop)
        }
    });
    let error = selling.await.unwrap_err();
    assert_eq!(
        error.into_panic().downcast_ref(),
        Some(&"the till is broken")
    );
    shop.soon_free("stock").await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_lock_is_converted_and_the_body_does_not_run() {
    let shop = Shop::open().await;
    shop.fake.pause();
    let harm = |_: &Shop| panic!("it ran");
    let ended = ends(&shop, harm, "5").await;
    assert!(matches!(
        ended,
        Err(SaleError::Lock(Error::NoAnswer { .. }))
    ));
}

#[locked(name = "depth", client = shop.locks)]
async fn outer(shop: &Shop) -> Result<u32, Error> {
    inner(shop).await
}

#[locked(name = "depth", client = shop.locks)]
async fn inner(shop: &Shop) -> Result<u32, Error> {
    Ok(shop
        .fake
        .holder("depth")
        .map_or(0, |holder| holder.hold_count))
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_with_the_same_name_reenters() {
    let shop = Shop::open().await;
    assert_eq!(outer(&shop).await.unwrap(), 2);
    shop.free("depth");
}

/// Returns how many are inside, itself included.
#[locked(name = "branch", client = shop.locks)]
async fn branch(shop: &Shop) -> Result<u32, Error> {
    let inside = shop.runs.fetch_add(1, Ordering::SeqCst) + 1;
    sleep(ms(50)).await;
    shop.runs.fetch_sub(1, Ordering::SeqCst);
    Ok(inside)
}

#[tokio::test(start_paused = true)]
async fn branches_of_one_join_exclude_each_other_with_owners_of_their_own() {
    let shop = Shop::open().await;
    let (one, other) = tokio::join!(branch(&shop), branch(&shop));
    assert_eq!(one.unwrap() + other.unwrap(), 3, "one task, one owner");

    let (a, b) = (shop.locks.owner(), shop.locks.owner());
    let (one, other) = tokio::join!(a.scope(branch(&shop)), b.scope(branch(&shop)));
    assert_eq!(one.unwrap() + other.unwrap(), 2);
}

/// The bounds that the attribute checks are those of the library.
#[tokio::test(start_paused = true)]
async fn the_shortest_and_the_longest_lease_are_accepted() {
    #[locked(name = "short", lease = "10ms", client = shop.locks)]
    async fn short(shop: &Shop) -> Result<(), Error> {
        Ok(())
    }
    #[locked(name = "long", lease = "3650d", client = shop.locks)]
    async fn long(shop: &Shop) -> Result<(), Error> {
        Ok(())
    }
    let shop = Shop::open().await;
    short(&shop).await.unwrap();
    long(&shop).await.unwrap();
}
