//! Code that takes any lock: generic over its type, or handed one of which it does not know the type.
//!
//! `cargo run --example any_lock -- redis://127.0.0.1:6379`

use std::sync::atomic::{AtomicU32, Ordering};

use redisson_lock::{AnyLock, DistributedLock, Error, HeldLock, LockClient, MultiLock};

/// A repository that is generic over its lock: nothing of it is decided at run time.
struct Stock<L> {
    lock: L,
    left: AtomicU32,
}

impl<L: DistributedLock> Stock<L> {
    fn new(lock: L, left: u32) -> Self {
        let left = AtomicU32::new(left);
        Self { lock, left }
    }

    /// Sells one, if there is one.
    async fn sell(&self) -> Result<bool, Error> {
        let guard = self.lock.lock().await?;
        let left = self.left.load(Ordering::Relaxed);
        let sold = left > 0 && !matches!(guard.state(), redisson_lock::HoldState::Lost(_));
        if sold {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        guard.unlock().await?;
        Ok(sold)
    }
}

/// A service that is handed locks when the program is put together.
struct Sweeper {
    locks: Vec<AnyLock>,
}

impl Sweeper {
    /// Sweeps what nobody else does now.
    async fn sweep(&self) -> Result<usize, Error> {
        let mut swept = 0;
        for lock in &self.locks {
            if let Some(guard) = lock.try_lock().await? {
                swept += 1;
                guard.unlock().await?;
            }
        }
        Ok(swept)
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let stock = Stock::new(client.lock("stock:42"), 1);
        println!("sold: {}, {}", stock.sell().await?, stock.sell().await?);
        let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
        let sweeper = Sweeper {
            locks: vec![AnyLock::new(client.fair_lock("attic")), AnyLock::new(both)],
        };
        println!("swept {}", sweeper.sweep().await?);
        Ok::<_, Error>(())
    })
    .await
}
