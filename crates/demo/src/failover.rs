//! The same stock beyond one server: kept on a server of its own, and sold under a lock of which the replicas
//! know nothing when its primary is killed.
//!
//! Everybody but one buyer stands still while the replicas are stopped and cut off. That buyer takes the lock
//! for a slow sale, the primary is killed, a replica takes over, and the others go on.

mod servers;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient};
use test_support::{Server, eventually, ms};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::{PROCESSES, Redis, STOCK, reported, sell};
use servers::Servers;

/// Where the locks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    Cluster,
    Sentinel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A guard at which nobody looks until it is unlocked.
    Guard,
    /// A body that ends when its lock is lost.
    Run,
    /// A lock that all replicas have.
    Synced,
}

impl Way {
    const ALL: [Self; 3] = [Self::Guard, Self::Run, Self::Synced];

    fn title(self, replicas: u32) -> String {
        match self {
            Self::Guard => "lock and unlock".to_owned(),
            Self::Run => "run, which ends with its lock".to_owned(),
            Self::Synced => format!("lock with sync_replicas({replicas})"),
        }
    }
}

/// Sells the stock in each way. `without_replicas`: only in the last, which must not be exact then.
pub async fn run(topology: Where, without_replicas: bool) -> ExitCode {
    reported(rows(topology, without_replicas).await)
}

async fn rows(topology: Where, without: bool) -> Result<Vec<String>, String> {
    let (servers, replicas) = match topology {
        Where::Cluster => ("a cluster of three primaries with a replica each", 1),
        Where::Sentinel => ("a primary with two replicas behind three sentinels", 2),
    };
    println!(
        "A stock of {STOCK} on a server of its own, sold by {PROCESSES} clients x {} buyers with a lock in\n\
         {servers}. The primary is killed while a slow sale holds the lock,\n\
         of which no replica knows.\n",
        sell::BUYERS
    );
    let ways = Way::ALL.into_iter().skip(if without { 2 } else { 0 });
    println!(
        "{:<34} {:>6} {:>9} {:>10}",
        "strategy", "sold", "oversold", "stuck for"
    );
    let mut rows = Vec::new();
    for way in ways {
        let row = row(topology, way, replicas, without).await?;
        println!("{}", row.line(replicas));
        rows.push(row);
    }
    println!();
    for row in &rows {
        println!("{}: {}.", row.way.title(replicas), row.fate());
    }
    Ok(rows.iter().filter_map(Row::problem).collect())
}

struct Row {
    way: Way,
    sold: i64,
    /// From the kill to the next sale.
    stuck: Duration,
    slow_sale: Result<(), Error>,
    /// Whether it has written by then.
    wrote: bool,
}

impl Row {
    fn line(&self, replicas: u32) -> String {
        format!(
            "{:<34} {:>6} {:>9} {:>8.2} s",
            self.way.title(replicas),
            self.sold,
            (self.sold - STOCK).max(0),
            self.stuck.as_secs_f64()
        )
    }

    fn fate(&self) -> String {
        let wrote = "the slow sale wrote the stock that it had read before the failover";
        match (&self.slow_sale, self.wrote) {
            (Ok(()), _) => wrote.to_owned(),
            (Err(error), true) => format!("{wrote}, and heard of the loss behind that: {error}"),
            (Err(error), false) => format!("the slow sale came to nothing: {error}"),
        }
    }

    /// A row that shows nothing is one too.
    fn problem(&self) -> Option<String> {
        let sold = self.sold;
        match (self.way, &self.slow_sale) {
            (Way::Guard, _) if sold <= STOCK => Some(format!(
                "a guard at which nobody looks has oversold nothing: {sold} sold"
            )),
            (Way::Synced, _) if sold != STOCK => Some(format!(
                "the result with all replicas is not exact: {sold} sold"
            )),
            (Way::Synced, Err(Error::TooFewReplicas { .. })) => None,
            (Way::Synced, _) => Some(format!(
                "the lock was not refused for its replicas: {}",
                self.fate()
            )),
            (Way::Guard | Way::Run, _) => None,
        }
    }
}

/// Sells the stock once.
async fn row(topology: Where, way: Way, replicas: u32, without: bool) -> Result<Row, String> {
    let stock_server = Server::start();
    let stock = Arc::new(Redis::connect(&stock_server.url()).await?);
    stock
        .run(&["SET", "demo:stock", &STOCK.to_string()])
        .await?;
    stock.run(&["SET", "demo:sold", "0"]).await?;
    let mut servers = Servers::start(topology).await;
    let (open, gate) = watch::channel(true);
    let shop = Arc::new(Shop {
        stock: Arc::clone(&stock),
        way,
        inside: AtomicUsize::new(0),
        slow_wrote: AtomicBool::new(false),
    });
    let mut clients = Vec::new();
    for _ in 0..PROCESSES {
        let builder = LockClient::builder()
            .watchdog_timeout(ms(12_000))
            .command_timeout(ms(800));
        let client = builder.connect(&servers.url()).await;
        clients.push(client.map_err(|error| error.to_string())?);
    }
    let lock = |nth: usize| {
        let lock = clients[nth % PROCESSES].lock(LOCK);
        match way {
            Way::Synced if !without => lock.sync_replicas(replicas, ms(300)),
            _ => lock,
        }
    };
    let mut buyers = JoinSet::new();
    for nth in 0..PROCESSES * sell::BUYERS {
        let (shop, lock, gate) = (Arc::clone(&shop), lock(nth), gate.clone());
        buyers.spawn(async move { shop.buy_until_sold_out(&lock, gate).await });
    }
    let slow = Arc::clone(&shop)
        .kill_under_a_slow_sale(&mut servers, &clients, &open, lock(0))
        .await;
    let (stuck, slow_sale) = slow?;
    let ended = async {
        while let Some(ended) = buyers.join_next().await {
            ended.map_err(|error| error.to_string())??;
        }
        Ok::<(), String>(())
    };
    let ended = tokio::time::timeout(SOLD_OUT, ended).await;
    ended.map_err(|_| format!("not sold out within {SOLD_OUT:?}"))??;
    for client in clients {
        client.close(ms(500)).await;
    }
    let sold = stock.number("demo:sold").await?;
    Ok(Row {
        way,
        sold,
        stuck,
        slow_sale,
        wrote: shop.slow_wrote.load(Ordering::SeqCst),
    })
}

async fn until(what: &str, fact: impl AsyncFn() -> Result<bool, String>) -> Result<(), String> {
    let limit = Instant::now() + SOLD_OUT;
    while !fact().await? {
        if Instant::now() > limit {
            return Err(format!("not within {SOLD_OUT:?}: {what}"));
        }
        tokio::time::sleep(ms(2)).await;
    }
    Ok(())
}

struct Shop {
    stock: Arc<Redis>,
    way: Way,
    /// Buyers between the gate and the end of their sale.
    inside: AtomicUsize,
    slow_wrote: AtomicBool,
}

impl Shop {
    /// Answers how long nothing was sold after the kill, and what became of the slow sale.
    async fn kill_under_a_slow_sale(
        self: Arc<Self>,
        servers: &mut Servers,
        clients: &[LockClient],
        open: &watch::Sender<bool>,
        lock: Lock,
    ) -> Result<(Duration, Result<(), Error>), String> {
        let stock = &self.stock;
        let some = async || Ok(stock.number("demo:stock").await? < STOCK * 7 / 10);
        until("the first sales", some).await?;
        let _ = open.send(false);
        let is_free = |client: &LockClient| {
            let stats = client.stats();
            stats.held + stats.releasing == 0
        };
        let nobody =
            async || Ok(self.inside.load(Ordering::SeqCst) == 0 && clients.iter().all(is_free));
        until("everybody stands still", nobody).await?;
        eventually("the replicas know what was released", SOLD_OUT, || {
            servers.replicas_know_all()
        })
        .await;
        servers.cut();
        let (others_sold, sold_by_others) = oneshot::channel();
        let (took, taken) = oneshot::channel();
        let slow = Arc::clone(&self);
        let slow = async move { slow.sell_slowly(&lock, took, sold_by_others).await };
        let slow = tokio::spawn(slow);
        // Or it was refused.
        let _ = taken.await;
        let sold = stock.number("demo:sold").await?;
        let _ = open.send(true);
        let killed_at = Instant::now();
        let others = async {
            let again = async || Ok(stock.number("demo:sold").await? > sold);
            until("somebody sells again", again).await?;
            let stuck = killed_at.elapsed();
            tokio::time::sleep(ms(100)).await;
            let _ = others_sold.send(());
            Ok::<_, String>(stuck)
        };
        let ((), stuck) = tokio::join!(servers.fail_over(), others);
        let slow_sale = slow.await.map_err(|error| error.to_string())?;
        Ok((stuck?, slow_sale?))
    }

    async fn buy_until_sold_out(
        &self,
        lock: &Lock,
        mut gate: watch::Receiver<bool>,
    ) -> Result<(), String> {
        loop {
            if gate.wait_for(|open| *open).await.is_err() {
                return Ok(());
            }
            self.inside.fetch_add(1, Ordering::SeqCst);
            // Closed since: what is counted after that is not sold.
            if !*gate.borrow() {
                self.inside.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let sold = self.locked(lock, self.sale(None)).await;
            self.inside.fetch_sub(1, Ordering::SeqCst);
            match sold {
                Ok(Ok(false)) => return Ok(()),
                Ok(sale) => _ = sale?,
                // The stock says what is left to sell.
                Err(_) => tokio::time::sleep(ms(20)).await,
            }
        }
    }

    /// A sale that takes until others have sold too.
    async fn sell_slowly(
        &self,
        lock: &Lock,
        took: oneshot::Sender<()>,
        others_sold: oneshot::Receiver<()>,
    ) -> Result<Result<(), Error>, String> {
        let sale = self.sale(Some((took, others_sold)));
        match self.locked(lock, sale).await {
            Ok(sale) => sale.map(|_| Ok(())),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn locked<T>(&self, lock: &Lock, sale: impl Future<Output = T>) -> Result<T, Error> {
        let sale = Box::pin(sale);
        if self.way == Way::Run {
            return lock.run(|_held| async { Ok(sale.await) }).await;
        }
        let guard = lock.lock().await?;
        let sold = sale.await;
        // What is sold is sold, whether the lock was held until now or not.
        let _ = guard.unlock().await;
        Ok(sold)
    }

    /// Reads the stock, thinks, writes the stock: correct only if no other buyer does the same. `false`: sold
    /// out.
    async fn sale(
        &self,
        slow: Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>,
    ) -> Result<bool, String> {
        let stock = self.stock.number("demo:stock").await?;
        if stock <= 0 {
            return Ok(false);
        }
        let is_slow = slow.is_some();
        if let Some((took, others_sold)) = slow {
            let _ = took.send(());
            let _ = others_sold.await;
        }
        self.stock
            .run(&["SET", "demo:stock", &(stock - 1).to_string()])
            .await?;
        self.slow_wrote.fetch_or(is_slow, Ordering::SeqCst);
        self.stock.run(&["INCR", "demo:sold"]).await?;
        Ok(true)
    }
}

const LOCK: &str = "demo:lock";

/// By then everything is sold.
const SOLD_OUT: Duration = Duration::from_secs(90);
