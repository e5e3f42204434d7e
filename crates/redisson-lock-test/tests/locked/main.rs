//! Functions with `#[locked]`: what they hold, what they return, and which shapes they may have.

mod clients;
mod outcomes;
mod server;
mod shapes;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redisson_lock::{Error, LockClient};
use redisson_lock_test::FakeRedis;

/// The error of a service.
#[derive(Debug, thiserror::Error)]
enum SaleError {
    #[error("sold out")]
    SoldOut,
    #[error(transparent)]
    Number(#[from] std::num::ParseIntError),
    #[error(transparent)]
    Lock(#[from] Error),
}

/// A service with its client, and what its functions saw.
struct Shop {
    locks: LockClient,
    fake: FakeRedis,
    runs: AtomicU32,
}

impl Shop {
    async fn open() -> Self {
        let fake = FakeRedis::start();
        Self {
            locks: fake.client().await,
            fake,
            runs: AtomicU32::new(0),
        }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// The time left on the lease of a lock that is held once.
    fn held(&self, name: &str) -> Duration {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let holder = self.fake.holder(name).expect("it is held");
        assert_eq!(holder.hold_count, 1);
        holder.lease_left.expect("a lease")
    }

    fn free(&self, name: &str) {
        assert!(self.fake.holder(name).is_none(), "{name} is held");
    }

    /// Background releases take a few milliseconds.
    async fn soon_free(&self, name: &str) {
        tokio::time::sleep(ms(100)).await;
        self.free(name);
    }
}

struct Order {
    id: u64,
    item: (u32, &'static str),
}

const ORDER: Order = Order {
    id: 7,
    item: (42, "tea"),
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
