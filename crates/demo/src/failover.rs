//! The same stock beyond one server: kept on a server of its own, and sold under a lock of which the replicas
//! know nothing when its primary is killed.
//!
//! Everybody but one buyer stands still while the replicas are stopped and cut off. That buyer takes the lock
//! for a slow sale, the primary is killed, a replica takes over, and the others go on.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient};
use test_support::{Cluster, SERVICE, Sentinels, Server, eventually, ms};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::{PROCESSES, Redis, STOCK, sell};

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
    match rows(topology, without_replicas).await {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in problems {
                eprintln!("FAILED: {problem}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
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
        println!("{}: {}.", row.way.title(replicas), row.slow_sale);
    }
    Ok(rows.iter().filter_map(Row::problem).collect())
}

struct Row {
    way: Way,
    sold: i64,
    /// From the kill to the next sale.
    stuck: Duration,
    /// What became of it.
    slow_sale: String,
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

    fn problem(&self) -> Option<String> {
        (self.way == Way::Synced && self.sold != STOCK).then(|| {
            format!(
                "the result with all replicas is not exact: {} sold",
                self.sold
            )
        })
    }
}

/// The servers of the locks.
enum Servers {
    Cluster(Cluster, usize),
    Sentinel(Sentinels),
}

impl Servers {
    async fn start(topology: Where) -> Self {
        match topology {
            Where::Cluster => {
                let cluster = Cluster::start(true).await;
                let primary = cluster.owner(LOCK);
                Self::Cluster(cluster, primary)
            }
            Where::Sentinel => Self::Sentinel(Sentinels::start().await),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Cluster(cluster, _) => cluster.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
        }
    }

    /// The primary of the lock.
    fn primary(&mut self) -> &mut Server {
        match self {
            Self::Cluster(cluster, primary) => cluster.server(*primary),
            Self::Sentinel(sentinels) => sentinels.server(0),
        }
    }

    fn each_replica(&mut self, mut visit: impl FnMut(&mut Server)) {
        match self {
            Self::Cluster(cluster, primary) => visit(cluster.server(*primary + 3)),
            Self::Sentinel(sentinels) => (1..3).for_each(|nth| visit(sentinels.server(nth))),
        }
    }

    /// From here on no replica hears anything.
    fn cut(&mut self) {
        self.each_replica(|replica| replica.pause());
        let mut control = self.primary().control();
        control.run(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Kills the primary and has a replica take over. Then it is started again, with nothing in it: not before
    /// every client has heard of the other one, or some would go on using it.
    async fn fail_over(&mut self) {
        self.primary().kill();
        self.each_replica(|replica| replica.resume());
        let dead = self.primary().port.to_string();
        match self {
            Self::Cluster(cluster, primary) => cluster.is_primary(*primary + 3, TAKEN_OVER).await,
            Self::Sentinel(sentinels) => {
                let announced = |nth| {
                    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
                    let address = sentinels
                        .sentinel(nth)
                        .and_then(|mut one| one.try_run(&words).ok());
                    address.is_some_and(|address| !address.ends_with(&dead))
                };
                eventually("a failover is announced", TAKEN_OVER, || {
                    (0..3).all(announced)
                })
                .await;
                tokio::time::sleep(HEARD).await;
            }
        }
        self.primary().start_again();
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
        .kill_under_a_slow_sale(&mut servers, &open, lock(0))
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
}

impl Shop {
    /// Answers how long nobody sold behind the kill, and what became of the slow sale.
    async fn kill_under_a_slow_sale(
        self: Arc<Self>,
        servers: &mut Servers,
        open: &watch::Sender<bool>,
        lock: Lock,
    ) -> Result<(Duration, String), String> {
        let stock = &self.stock;
        let some = async || Ok(stock.number("demo:stock").await? < STOCK * 7 / 10);
        until("the first sales", some).await?;
        let _ = open.send(false);
        // Whoever is past the gate is counted by then.
        tokio::time::sleep(ms(50)).await;
        let nobody = async || Ok(self.inside.load(Ordering::SeqCst) == 0);
        until("everybody stands still", nobody).await?;
        // What was released is known to the replicas by then.
        tokio::time::sleep(ms(200)).await;
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

    /// A sale that takes until others have sold too. Answers what became of it.
    async fn sell_slowly(
        &self,
        lock: &Lock,
        took: oneshot::Sender<()>,
        others_sold: oneshot::Receiver<()>,
    ) -> Result<String, String> {
        let sale = self.sale(Some((took, others_sold)));
        Ok(match self.locked(lock, sale).await {
            Ok(sale) => {
                sale?;
                "the slow sale wrote the stock that it had read before the failover".to_owned()
            }
            Err(error) => format!("the slow sale came to nothing: {error}"),
        })
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
        if let Some((took, others_sold)) = slow {
            let _ = took.send(());
            let _ = others_sold.await;
        }
        self.stock
            .run(&["SET", "demo:stock", &(stock - 1).to_string()])
            .await?;
        self.stock.run(&["INCR", "demo:sold"]).await?;
        Ok(true)
    }
}

const LOCK: &str = "demo:lock";

/// A replica has taken over by then.
const TAKEN_OVER: Duration = Duration::from_secs(30);

/// So long behind the announcement every client has heard of it.
const HEARD: Duration = Duration::from_secs(2);

/// By then everything is sold.
const SOLD_OUT: Duration = Duration::from_secs(90);
