//! A red lock at five servers, one of which is killed while a sale holds the lock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redisson_lock::{Error, LockClient, RedLock};
use test_support::{Server, ms};
use tokio::task::JoinSet;

use super::{HALF, LOCK, SELLERS, SOLD_OUT, STOCK, not_exact};
use crate::Redis;

pub const SERVERS: usize = 5;

/// What the sale showed.
pub struct Row {
    sold: i64,
    sold_at_kill: i64,
    /// From the kill to the next sale of another holder.
    stuck: Option<Duration>,
}

impl Row {
    pub fn text(&self) -> String {
        let Self {
            sold, sold_at_kill, ..
        } = self;
        let next = match self.stuck {
            Some(stuck) => format!("the next sale came {:.2} s later", stuck.as_secs_f64()),
            None => "no sale came after it".to_owned(),
        };
        format!(
            "{TITLE}: one server was killed after {sold_at_kill} sales, during the next;\n  {next}; {sold} of {STOCK} sold"
        )
    }

    pub fn problem(&self) -> Option<String> {
        let stuck = || format!("{TITLE}: nothing was sold after the kill");
        not_exact(TITLE, self.sold).or_else(|| self.stuck.is_none().then(stuck))
    }
}

/// Sells the stock once.
pub async fn row() -> Result<Row, String> {
    let stock_server = Server::start();
    let stock = Redis::connect(&stock_server.url()).await?;
    stock
        .run(&["SET", "demo:stock", &STOCK.to_string()])
        .await?;
    let servers: Vec<Server> = (0..SERVERS).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let shop = Arc::new(Shop {
        stock,
        servers: Mutex::new(servers),
        kill: Mutex::default(),
    });
    let (mut sellers, mut all_clients) = (JoinSet::new(), Vec::new());
    for _ in 0..SELLERS {
        let mut clients = Vec::new();
        for url in &urls {
            let builder = LockClient::builder().command_timeout(ms(3_000));
            let client = builder.watchdog_timeout(ms(10_000)).connect(url).await;
            clients.push(client.map_err(|error| error.to_string())?);
        }
        let lock = RedLock::new(clients.iter().map(|client| client.lock(LOCK)));
        let lock = lock.map_err(|error| error.to_string())?;
        let shop = Arc::clone(&shop);
        sellers.spawn(async move { shop.sell_until_sold_out(&lock).await });
        all_clients.extend(clients);
    }
    let ended = async {
        while let Some(ended) = sellers.join_next().await {
            ended.map_err(|error| error.to_string())??;
        }
        Ok::<(), String>(())
    };
    let ended = tokio::time::timeout(SOLD_OUT, ended).await;
    ended.map_err(|_| format!("{TITLE}: not sold out within {SOLD_OUT:?}"))??;
    for client in all_clients {
        client.close(ms(100)).await;
    }
    let sold = shop.stock.number("demo:sold").await?;
    let kill = shop.kill.lock().expect("no panic");
    let kill = kill
        .as_ref()
        .ok_or_else(|| format!("{TITLE}: no server was killed"))?;
    Ok(Row {
        sold,
        sold_at_kill: kill.sold,
        stuck: kill.stuck,
    })
}

struct Shop {
    stock: Redis,
    servers: Mutex<Vec<Server>>,
    kill: Mutex<Option<Kill>>,
}

/// The kill of a server.
struct Kill {
    at: Instant,
    sold: i64,
    /// From the kill to the next sale of another holder.
    stuck: Option<Duration>,
}

impl Shop {
    async fn sell_until_sold_out(&self, lock: &RedLock) -> Result<(), String> {
        loop {
            match lock.run(|_held| async { Ok(self.sale().await) }).await {
                Ok(Ok(false)) => return Ok(()),
                Ok(sale) => _ = sale?,
                // The machine stalled. The stock says what is left to sell.
                Err(Error::NoAnswer { .. } | Error::Lost { .. }) => {
                    tokio::time::sleep(ms(20)).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Reads the stock, writes the stock: correct only if no other seller does the same. `false`: sold out.
    async fn sale(&self) -> Result<bool, String> {
        let left = self.stock.number("demo:stock").await?;
        if left <= 0 {
            return Ok(false);
        }
        let kills = left <= HALF && self.kill_a_server(STOCK - left);
        let left = (left - 1).to_string();
        let words = ["EVAL", WRITE, "2", "demo:stock", "demo:sold", &left];
        self.stock.run(&words).await?;
        if !kills && let Some(kill) = self.kill.lock().expect("no panic").as_mut() {
            kill.stuck.get_or_insert_with(|| kill.at.elapsed());
        }
        Ok(true)
    }

    /// Whether this is the sale in which it is killed.
    fn kill_a_server(&self, sold: i64) -> bool {
        let mut kill = self.kill.lock().expect("no panic");
        if kill.is_some() {
            return false;
        }
        self.servers.lock().expect("no panic")[0].kill();
        *kill = Some(Kill {
            at: Instant::now(),
            sold,
            stuck: None,
        });
        true
    }
}

const TITLE: &str = "a red lock at five servers";

/// One call, so that a sale that ends with its lock is counted or has not happened.
const WRITE: &str = "redis.call('set', KEYS[1], ARGV[1]) return redis.call('incr', KEYS[2])";
