//! Generics, lifetimes, receivers, attributes: the function stays what it was.

#![deny(warnings, clippy::all)]

use std::fmt::{Debug, Display};
use std::time::Duration;

use redisson_lock::{Error, LockClient, locked};
use redisson_lock_test::FakeRedis;
use test_support::tokio;

use crate::{ORDER, Order, SaleError, Shop};

type Sold<T> = Result<T, SaleError>;

struct Json<T>(T);

struct Till<T> {
    locks: LockClient,
    fake: FakeRedis,
    sold: Vec<T>,
}

impl<T: Display + Clone + Debug> Till<T> {
    const KIND: &'static str = "till";

    /// Documented, as before.
    #[must_use = "the number counts"]
    #[inline]
    #[locked(name = "{Self::KIND}:{piece}", client = self.locks)]
    pub(crate) async fn sell(&mut self, piece: T) -> Sold<usize> {
        assert!(self.fake.holder("till:tea").is_some());
        self.sold.push(piece);
        Ok(self.sold.len())
    }

    #[locked(name = "till", client = self.locks)]
    async fn first<'a, 'b>(&'a self, _other: &'b str) -> Result<&'a T, SaleError>
    where
        T: 'b,
    {
        let first = self.sold.first().ok_or(SaleError::SoldOut)?;
        Ok(first)
    }

    #[locked(name = "till", client = self.locks)]
    async fn last(&self) -> Result<Option<&T>, SaleError> {
        Ok(self.sold.last())
    }

    #[locked(name = "till", client = self.locks)]
    async fn close(self) -> Sold<Vec<T>> {
        Ok(self.sold)
    }

    #[locked(name = "till", client = self.locks)]
    async fn each(&self) -> Result<impl Iterator<Item = &T>, SaleError> {
        Ok(self.sold.iter())
    }
}

trait Sale {
    async fn pay(&self, order: Order) -> Result<u64, SaleError>;
}

impl Sale for Till<String> {
    #[locked(name = "order:{order.id}", client = self.locks)]
    async fn pay(&self, order: Order) -> Result<u64, SaleError> {
        #![allow(clippy::needless_return)]
        return Ok(order.id);
    }
}

/// Patterns, a number as parameter, `impl Trait`, a loop, a closure, early returns.
#[locked(name = "{order.id}:{left}:{N}:{label}", client = locks)]
async fn everything<const N: usize>(
    locks: &LockClient,
    Json(mut order): Json<Order>,
    (left, _): (u8, u8),
    label: impl Display + Send,
) -> Result<[u64; N], SaleError> {
    for step in 0..u64::from(left) {
        order.id += step;
        if order.id == 100 {
            return Err(SaleError::SoldOut);
        }
    }
    let parsed = |text: &str| -> Result<u64, SaleError> { Ok(text.parse()?) };
    let number = parsed("7")?;
    Ok([order.id + number + label.to_string().len() as u64; N])
}

macro_rules! seller {
    ($name:ident, $text:literal) => {
        #[locked(name = $text, client = locks)]
        async fn $name(locks: &LockClient) -> Result<(), SaleError> {
            Ok(())
        }
    };
}

seller!(made, "made");

fn is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test(start_paused = true)]
async fn the_function_stays_what_it_was() {
    let fake = FakeRedis::start();
    let locks = fake.client().await;
    let mut till = Till {
        locks: locks.clone(),
        fake,
        sold: Vec::new(),
    };
    assert_eq!(is_send(till.sell("tea".to_owned())).await.unwrap(), 1);
    assert_eq!(is_send(till.first("")).await.unwrap(), "tea");
    assert_eq!(till.last().await.unwrap().unwrap(), "tea");
    assert_eq!(till.each().await.unwrap().count(), 1);
    let order = |id| Order { id, item: (1, "") };
    assert_eq!(till.pay(order(7)).await.unwrap(), 7);
    assert_eq!(till.close().await.unwrap(), ["tea"]);

    let numbers = is_send(everything::<2>(&locks, Json(order(1)), (3, 0), "ab"));
    assert_eq!(numbers.await.unwrap(), [13, 13]);
    made(&locks).await.unwrap();
}

#[rustfmt::skip]
#[deny(unused_braces)]
#[locked(name = "stock", client = locks)]
async fn in_one_line(locks: &LockClient) -> Result<u32, redisson_lock::Error> { Ok(7) }

#[tokio::test(start_paused = true)]
async fn a_body_in_one_line_has_no_braces_too_many() {
    let shop = crate::Shop::open().await;
    assert_eq!(in_one_line(&shop.locks).await.unwrap(), 7);
}

/// The name comes from outside of the macro that has the attribute, together with what is shown in it.
macro_rules! with_the_name {
    ($name:literal, $client:expr, $($function:tt)*) => {
        #[locked(name = $name, client = $client)]
        $($function)*
    };
}

with_the_name! {
    "order:{order.id}:{id}",
    shop.locks,
    async fn named_outside(shop: &Shop, order: &Order, id: u64) -> Sold<Duration> {
        Ok(shop.held("order:7:3"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_a_macro_was_given_finds_its_arguments() {
    let shop = Shop::open().await;
    named_outside(&shop, &ORDER, 3).await.unwrap();
}

#[locked(name = "of-a-kind", kind = "string", client = shop.locks)]
async fn with_a_string_lock(shop: &Shop) -> Result<(), Error> {
    shop.held("of-a-kind");
    // The same owner: a plain lock would nest.
    let again = shop.locks.string_lock("of-a-kind").try_lock().await;
    assert!(matches!(again, Err(Error::AlreadyHeld { .. })), "{again:?}");
    Ok(())
}

#[locked(name = "report", kind = "read", client = shop.locks)]
async fn reads(shop: &Shop) -> Result<(), Error> {
    let report = shop.locks.rw_lock("report");
    let other = shop.locks.owner();
    let beside = report.read().owned_by(&other).try_lock().await?;
    beside.expect("beside it").unlock().await?;
    let alone = report.write().owned_by(&other).try_lock().await?;
    assert!(alone.is_none());
    Ok(())
}

#[locked(name = "report", kind = "write", client = shop.locks)]
async fn writes(shop: &Shop) -> Result<(), Error> {
    let other = shop.locks.owner();
    let read = shop.locks.rw_lock("report").read().owned_by(&other);
    assert!(read.try_lock().await?.is_none());
    Ok(())
}

#[locked(name = "in-order", kind = "fair", client = shop.locks)]
async fn with_a_fair_lock(shop: &Shop) -> Result<(), Error> {
    let fair = shop.locks.fair_lock("in-order");
    assert!(fair.is_held().await?);
    Ok(())
}

#[tokio::test]
async fn a_function_may_run_with_a_lock_of_another_kind() {
    let shop = Shop::open().await;
    with_a_string_lock(&shop).await.expect("it ran");
    shop.free("of-a-kind");
    with_a_fair_lock(&shop).await.expect("it ran");
    reads(&shop).await.expect("it ran");
    writes(&shop).await.expect("it ran");
    shop.free("report");
}
