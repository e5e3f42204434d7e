//! A library that takes locks: it gets its client from the program, and leaves settings and shutdown to it.
//!
//! `cargo run --example library -- redis://127.0.0.1:6379`

use redisson_lock::{Error, LockClient};

/// What the library offers.
#[allow(
    unreachable_pub,
    reason = "a crate of its own in one file with its user"
)]
mod stock {
    use std::fmt;

    use redisson_lock::LockClient;

    /// Its own error: why a sale did not happen.
    #[derive(Debug)]
    pub enum SaleError {
        SoldOut,
        /// Nobody knows who else sells.
        Lock(redisson_lock::Error),
    }

    impl From<redisson_lock::Error> for SaleError {
        fn from(error: redisson_lock::Error) -> Self {
            Self::Lock(error)
        }
    }

    impl fmt::Display for SaleError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::SoldOut => f.write_str("sold out"),
                Self::Lock(error) => write!(f, "the stock cannot be locked: {error}"),
            }
        }
    }

    impl std::error::Error for SaleError {}

    /// Sells one of `left`. The lock's name is a part of this library's interface: others that sell take it too.
    pub async fn sell(locks: &LockClient, item: u64, left: &mut u32) -> Result<u32, SaleError> {
        let lock = locks.lock(format!("stock:{item}"));
        lock.run(|_held| async {
            *left = left.checked_sub(1).ok_or(SaleError::SoldOut)?;
            Ok(*left)
        })
        .await
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let mut left = 2;
        for _ in 0..3 {
            match stock::sell(&client, 42, &mut left).await {
                Ok(left) => println!("sold, {left} left"),
                Err(stock::SaleError::SoldOut) => println!("sold out"),
                Err(stock::SaleError::Lock(error)) => return Err(error),
            }
        }
        Ok(())
    })
    .await
}
