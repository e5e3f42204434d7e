//! One seller process: 8 buyers, and the eight locking strategies.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fred::prelude::Value;
use redisson_lock::{Error, LockClient};
use tokio::io::AsyncReadExt;

use crate::Redis;

pub const BUYERS: usize = 8;
pub const LEASE: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_millis(1300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    NoLock,
    Mutex,
    SetnxDel,
    SetnxExpire,
    Getset,
    SetNxEx,
    SetNxPxToken,
    RedissonLock,
}

impl Way {
    pub const ALL: [Self; 8] = [
        Self::NoLock,
        Self::Mutex,
        Self::SetnxDel,
        Self::SetnxExpire,
        Self::Getset,
        Self::SetNxEx,
        Self::SetNxPxToken,
        Self::RedissonLock,
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::NoLock => "no-lock",
            Self::Mutex => "mutex",
            Self::SetnxDel => "setnx-del",
            Self::SetnxExpire => "setnx-expire",
            Self::Getset => "getset",
            Self::SetNxEx => "set-nx-ex",
            Self::SetNxPxToken => "set-nx-px-token",
            Self::RedissonLock => "redisson-lock",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::NoLock => "no lock",
            Self::Mutex => "a mutex inside each process",
            Self::SetnxDel => "SETNX + DEL",
            Self::SetnxExpire => "SETNX then EXPIRE",
            Self::Getset => "GETSET timestamp lock",
            Self::SetNxEx => "SET NX EX without an owner check",
            Self::SetNxPxToken => "SET NX PX, random value, owner check",
            Self::RedissonLock => "redisson-lock",
        }
    }
}

/// Runs one process until the stock is sold or standard input is closed.
pub async fn process(url: &str, way: Way, nth: usize) -> ExitCode {
    match sell_all(url, way, nth).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seller process {nth}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn sell_all(url: &str, way: Way, nth: usize) -> Result<(), String> {
    let shop = Arc::new(Shop {
        redis: Redis::connect(url).await?,
        locks: LockClient::builder()
            .watchdog_timeout(LEASE)
            .command_timeout(Duration::from_millis(300))
            .connect(url)
            .await
            .map_err(|error| error.to_string())?,
        mutex: tokio::sync::Mutex::new(()),
        way,
        nth,
        stop: AtomicBool::new(false),
        victim: AtomicBool::new(nth == 1),
        slow: AtomicBool::new(nth >= 2),
        tokens: AtomicU64::new(0),
    });
    println!("ready");
    let mut buyers = tokio::task::JoinSet::new();
    for _ in 0..BUYERS {
        let shop = Arc::clone(&shop);
        buyers.spawn(async move { shop.buy_until_sold_out().await });
    }
    let stopped = async {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
        shop.stop.store(true, Ordering::SeqCst);
        // A buyer waiting for a lock that is never freed is abandoned.
        tokio::time::sleep(SLOW + Duration::from_millis(300)).await;
    };
    let sold_out = async {
        while let Some(buyer) = buyers.join_next().await {
            buyer.map_err(|error| error.to_string())??;
        }
        Ok(())
    };
    let ended = tokio::select! {
        ended = sold_out => ended,
        () = stopped => Ok(()),
    };
    // Reading standard input cannot be cancelled, so the process exits without waiting for it.
    match ended {
        Ok(()) => std::process::exit(0),
        error => error,
    }
}

struct Shop {
    redis: Redis,
    locks: LockClient,
    mutex: tokio::sync::Mutex<()>,
    way: Way,
    nth: usize,
    stop: AtomicBool,
    /// This process is killed in one of its sales.
    victim: AtomicBool,
    /// This process has one sale that takes longer than the lease.
    slow: AtomicBool,
    tokens: AtomicU64,
}

impl Shop {
    async fn buy_until_sold_out(&self) -> Result<(), String> {
        while !self.stop.load(Ordering::SeqCst) {
            let more = match self.way {
                Way::NoLock => self.sale().await?,
                Way::Mutex => {
                    let _guard = self.mutex.lock().await;
                    self.sale().await?
                }
                Way::RedissonLock => {
                    let lock = self.locks.lock("demo:lock");
                    match lock.run(|_held| async { Ok(self.sale().await) }).await {
                        Ok(sale) => sale?,
                        // The machine stalled. The next read of the stock shows what is left to
                        // sell.
                        Err(Error::NoAnswer { .. } | Error::Lost { .. }) => true,
                        Err(error) => return Err(error.to_string()),
                    }
                }
                Way::SetnxDel
                | Way::SetnxExpire
                | Way::Getset
                | Way::SetNxEx
                | Way::SetNxPxToken => self.hand_made().await?,
            };
            if !more {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads the stock, thinks, writes the stock: correct only if no other buyer does the same.
    /// `false`: sold out.
    async fn sale(&self) -> Result<bool, String> {
        let stock = self.redis.number("demo:stock").await?;
        if stock <= 0 {
            return Ok(false);
        }
        if stock < 700 {
            self.be_killed().await;
        }
        let slow = match self.nth {
            2 => stock < 900,
            _ => stock < 400,
        };
        if slow && self.slow.swap(false, Ordering::SeqCst) {
            tokio::time::sleep(SLOW).await;
        } else {
            tokio::task::yield_now().await;
        }
        self.redis
            .run(&["SET", "demo:stock", &(stock - 1).to_string()])
            .await?;
        self.redis.run(&["INCR", "demo:sold"]).await?;
        Ok(true)
    }

    /// Reports that this process holds the lock, and waits to be killed.
    async fn be_killed(&self) {
        if self.victim.swap(false, Ordering::SeqCst) {
            println!("holding");
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }

    /// The handwritten strategies.
    async fn hand_made(&self) -> Result<bool, String> {
        let token = self.token();
        let Some(value) = self.take(&token).await? else {
            tokio::time::sleep(Duration::from_millis(2)).await;
            return Ok(true);
        };
        let more = self.sale().await?;
        self.release(&value).await?;
        Ok(more)
    }

    /// The value stored in the lock, or `None` if it was not acquired.
    async fn take(&self, token: &str) -> Result<Option<String>, String> {
        let lease_ms = LEASE.as_millis().to_string();
        let taken = match self.way {
            Way::SetnxDel => {
                self.redis.run(&["SETNX", "demo:lock", token]).await? == Value::Integer(1)
            }
            Way::SetnxExpire => {
                let taken =
                    self.redis.run(&["SETNX", "demo:lock", token]).await? == Value::Integer(1);
                if taken {
                    if self.redis.number("demo:stock").await? < 700 {
                        // Between the two commands: the lock has no lease yet.
                        self.be_killed().await;
                    }
                    self.redis.run(&["PEXPIRE", "demo:lock", &lease_ms]).await?;
                }
                taken
            }
            Way::Getset => return self.take_by_timestamp().await,
            Way::SetNxEx => {
                let secs = LEASE.as_secs().to_string();
                !self
                    .redis
                    .run(&["SET", "demo:lock", token, "NX", "EX", &secs])
                    .await?
                    .is_null()
            }
            _ => !self
                .redis
                .run(&["SET", "demo:lock", token, "NX", "PX", &lease_ms])
                .await?
                .is_null(),
        };
        Ok(taken.then(|| token.to_owned()))
    }

    /// The value is the time at which the lock ends; a taker that finds it expired swaps in its own
    /// time.
    async fn take_by_timestamp(&self) -> Result<Option<String>, String> {
        // The time in nanoseconds, so that two takers rarely write the same value.
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_nanos()
        };
        let mine = (now() + LEASE.as_nanos()).to_string();
        if self.redis.run(&["SETNX", "demo:lock", &mine]).await? == Value::Integer(1) {
            return Ok(Some(mine));
        }
        let ends = |value: Value| value.as_string().and_then(|text| text.parse::<u128>().ok());
        let Some(end) = ends(self.redis.run(&["GET", "demo:lock"]).await?) else {
            return Ok(None);
        };
        if end > now() {
            return Ok(None);
        }
        let before = ends(self.redis.run(&["GETSET", "demo:lock", &mine]).await?);
        Ok(before.is_none_or(|before| before <= now()).then_some(mine))
    }

    async fn release(&self, value: &str) -> Result<(), String> {
        // Reads the deleted value in the same step, which does not change the strategy shown.
        let delete =
            "local found = redis.call('get', KEYS[1]) redis.call('del', KEYS[1]) return found";
        let compare_and_delete = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
        if self.way == Way::SetNxPxToken {
            self.redis
                .run(&["EVAL", compare_and_delete, "1", "demo:lock", value])
                .await?;
            return Ok(());
        }
        let found = self
            .redis
            .run(&["EVAL", delete, "1", "demo:lock"])
            .await?
            .as_string();
        if found.is_some_and(|found| found != value) {
            self.redis.run(&["INCR", "demo:foreign"]).await?;
        }
        Ok(())
    }

    fn token(&self) -> String {
        format!(
            "{}-{}",
            std::process::id(),
            self.tokens.fetch_add(1, Ordering::Relaxed)
        )
    }
}
