//! The inventory demo: 4 processes with 8 buyers each sell a stock of 1,000, once with each locking
//! strategy.
//!
//! Some sales are slower than the lease, and one process is killed while it holds the lock. An INCR
//! that no lock protects counts the actual sales. `cargo xtask demo` starts a server and runs this.

#![allow(
    clippy::missing_errors_doc,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "a program, not a library"
)]

mod failover;
mod kinds;
mod plot;
mod sell;
mod sellers;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use failover::Where;
use fred::prelude::*;
use fred::types::CustomCommand;
use sell::{LEASE, Way};
use sellers::{Seller, sellers_of, wait_ready};

const STOCK: i64 = 1000;
const PROCESSES: usize = 4;
const ROW_BUDGET: Duration = Duration::from_secs(7);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let says = |name: &str| arguments.iter().any(|argument| argument == name);
    for (name, topology) in [
        ("--cluster", Where::Cluster),
        ("--sentinel", Where::Sentinel),
    ] {
        if says(name) {
            return failover::run(topology, says("--take-out-the-replicas")).await;
        }
    }
    if says("--kinds") {
        return kinds::run(says("--take-out-the-checks")).await;
    }
    let Some(url) = value("--url") else {
        eprintln!(
            "usage: demo --url redis://… [--only WAY] [--svg FILE], or demo --cluster | --sentinel | --kinds; cargo \
             xtask demo starts a server of its own"
        );
        return ExitCode::from(2);
    };
    if let (Some(way), Some(nth)) = (
        value("--seller").and_then(|way| Way::named(&way)),
        value("--process"),
    ) {
        return sell::process(&url, way, nth.parse().unwrap_or(0)).await;
    }
    if let Some(check) = value("--kinds-seller").and_then(|name| kinds::Check::named(&name)) {
        return kinds::process(&url, check, says("--take-out-the-checks")).await;
    }
    let only = value("--only");
    if let Some(name) = &only
        && Way::named(name).is_none()
    {
        let names: Vec<_> = Way::ALL.iter().map(|way| way.name()).collect();
        eprintln!("no strategy `{name}`; there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let without_lock = says("--take-out-the-lock");
    let rows = run(&url, only.as_deref(), without_lock).await;
    if let (Ok(rows), Some(file)) = (&rows, value("--svg"))
        && problems(rows, only.is_none()).is_empty()
        && let Err(error) = std::fs::write(&file, plot::draw(rows))
    {
        eprintln!("FAILED: {file}: {error}");
        return ExitCode::FAILURE;
    }
    reported(rows.map(|rows| problems(&rows, only.is_none())))
}

/// What the demo exits with; each problem is a line.
fn reported(problems: Result<Vec<String>, String>) -> ExitCode {
    let problems = problems.unwrap_or_else(|error| vec![error]);
    for problem in &problems {
        eprintln!("FAILED: {problem}");
    }
    match problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

async fn run(url: &str, only: Option<&str>, without_lock: bool) -> Result<Vec<Row>, String> {
    let redis = Redis::connect(url).await?;
    println!(
        "A stock of {STOCK}, sold by {PROCESSES} processes x {} buyers. Leases last {} s, two sales take longer,\n\
         and one process is killed while it holds the lock.\n",
        sell::BUYERS,
        LEASE.as_secs()
    );
    let mut rows = Vec::new();
    let ways: Vec<_> = Way::ALL
        .into_iter()
        .filter(|way| only.is_none_or(|only| only == way.name()))
        .collect();
    for (nth, &way) in ways.iter().enumerate() {
        print!("{:>2}/{} {:<38}", nth + 1, ways.len(), way.title());
        let _ = std::io::stdout().flush();
        let sellers = if without_lock && way == Way::RedissonLock {
            Way::NoLock
        } else {
            way
        };
        let row = row(&redis, url, way, sellers).await?;
        println!("{}", row.short());
        rows.push(row);
    }
    println!(
        "\n{:<38} {:>6} {:>9} {:>16} {:>10} {:>9}",
        "strategy", "sold", "oversold", "foreign deletes", "stuck for", "orders/s"
    );
    for row in &rows {
        println!("{}", row.line());
    }
    println!();
    for row in &rows {
        println!("{}: {}", row.way.title(), row.sentence());
    }
    Ok(rows)
}

/// Why this run is inconclusive, or shows a fault of ours.
fn problems(rows: &[Row], all: bool) -> Vec<String> {
    let mut problems: Vec<String> = rows.iter().flat_map(|row| row.problems.clone()).collect();
    if let Some(ours) = rows.iter().find(|row| row.way == Way::RedissonLock)
        && (ours.sold != STOCK
            || ours.foreign > 0
            || ours.stuck.is_none_or(|stuck| stuck > LEASE * 3))
    {
        problems.push(format!(
            "the result of redisson-lock is not exact: {}",
            ours.line()
        ));
    }
    let weak = rows
        .iter()
        .filter(|row| row.way != Way::RedissonLock && row.is_weak())
        .count();
    if all && weak < 6 {
        problems.push(format!(
            "only {weak} of the 7 other strategies showed a weakness in this run"
        ));
    }
    problems
}

/// The result of one strategy.
struct Row {
    way: Way,
    sold: i64,
    foreign: i64,
    /// From the kill to the next sale; `None`: none came before the row's time was over.
    stuck: Option<Duration>,
    waited: Duration,
    per_second: f64,
    problems: Vec<String>,
}

impl Row {
    fn oversold(&self) -> i64 {
        (self.sold - STOCK).max(0)
    }

    fn is_weak(&self) -> bool {
        self.oversold() > 0 || self.foreign > 0 || self.stuck.is_none()
    }

    fn stuck_for(&self) -> String {
        match self.stuck {
            Some(stuck) => format!("{:.2} s", stuck.as_secs_f64()),
            None => format!("> {:.0} s", self.waited.as_secs_f64().floor()),
        }
    }

    fn short(&self) -> String {
        format!("{} sold, stuck for {}", self.sold, self.stuck_for())
    }

    fn line(&self) -> String {
        format!(
            "{:<38} {:>6} {:>9} {:>16} {:>10} {:>9.0}",
            self.way.title(),
            self.sold,
            self.oversold(),
            self.foreign,
            self.stuck_for(),
            self.per_second
        )
    }

    /// Based only on what this run showed.
    fn sentence(&self) -> String {
        let mut seen = Vec::new();
        if self.oversold() > 0 {
            seen.push(format!(
                "{} items were sold that did not exist",
                self.oversold()
            ));
        }
        if self.foreign > 0 {
            seen.push(format!(
                "{} times a seller deleted someone else's lock",
                self.foreign
            ));
        }
        match self.stuck {
            None => seen.push("after the kill nothing was sold any more".to_owned()),
            Some(stuck) if stuck > Duration::from_millis(200) => {
                seen.push(format!(
                    "after the kill the lease freed the lock in {:.2} s",
                    stuck.as_secs_f64()
                ));
            }
            Some(_) => {}
        }
        if !self.is_weak() {
            let exact = self.sold == STOCK;
            seen.insert(
                0,
                if exact {
                    "exact"
                } else {
                    "no weakness seen, but not all was sold"
                }
                .to_owned(),
            );
        }
        format!("{}.", seen.join("; "))
    }
}

/// Sells the stock once.
async fn row(redis: &Redis, url: &str, way: Way, sellers: Way) -> Result<Row, String> {
    redis.run(&["FLUSHDB"]).await?;
    redis
        .run(&["SET", "demo:stock", &STOCK.to_string()])
        .await?;
    redis.run(&["SET", "demo:sold", "0"]).await?;
    let (mut children, announced) = sellers_of(url, sellers)?;
    let mut problems = Vec::new();
    let (start, mut holding) = wait_ready(&announced)?;

    let (mut killed_at, mut sold_at_kill, mut stuck) = (None, 0, None);
    let (mut sold, mut last_sale) = (0, start);
    // A row that is still selling when its time is up continues: a slow machine is not a weakness
    // of a lock.
    let is_over =
        |last_sale: Instant| start.elapsed() > ROW_BUDGET && last_sale.elapsed() > ROW_BUDGET / 3;
    while !is_over(last_sale)
        && start.elapsed() < ROW_BUDGET * 3
        && children.iter_mut().any(Seller::runs)
    {
        let said = announced
            .try_recv()
            .ok()
            .filter(|(_, line)| line == "holding");
        if let Some(nth) = holding.take().or_else(|| said.map(|(nth, _)| nth)) {
            children[nth].kill();
            killed_at = Some(Instant::now());
            sold_at_kill = redis.number("demo:sold").await?;
        }
        let now = redis.number("demo:sold").await?;
        if now != sold {
            (sold, last_sale) = (now, Instant::now());
        }
        if let Some(killed_at) = killed_at
            && stuck.is_none()
            && now > sold_at_kill
        {
            stuck = Some(killed_at.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let Some(killed_at) = killed_at else {
        return Err(format!("{}: no seller was ready to be killed", way.name()));
    };
    // A seller killed in its last sale leaves no buyer to be stuck.
    if stuck.is_none() && redis.number("demo:stock").await? <= 0 {
        stuck = Some(Duration::ZERO);
    }
    let waited = killed_at.elapsed();
    for (nth, seller) in children.iter_mut().enumerate() {
        if let Some(problem) = seller.end() {
            problems.push(format!("{}: seller process {nth} {problem}", way.name()));
        }
    }
    let sold = redis.number("demo:sold").await?;
    let took = last_sale.duration_since(start).as_secs_f64().max(0.001);
    Ok(Row {
        way,
        sold,
        foreign: redis.number("demo:foreign").await?,
        stuck,
        waited,
        per_second: sold as f64 / took,
        problems,
    })
}

/// A plain connection for commands that have nothing to do with locks.
pub struct Redis {
    client: Client,
}

impl Redis {
    pub async fn connect(url: &str) -> Result<Self, String> {
        let config = Config::from_url(url).map_err(|error| error.to_string())?;
        let client = Builder::from_config(config)
            .build()
            .map_err(|error| error.to_string())?;
        client
            .init()
            .await
            .map_err(|error| format!("cannot connect to Redis: {error}"))?;
        Ok(Self { client })
    }

    pub async fn run(&self, words: &[&str]) -> Result<Value, String> {
        let command = CustomCommand::new(words[0].to_owned(), None::<u16>, false);
        let arguments: Vec<Value> = words[1..].iter().map(|word| Value::from(*word)).collect();
        let answer = self.client.custom(command, arguments).await;
        answer.map_err(|error| format!("{}: {error}", words.join(" ")))
    }

    pub async fn number(&self, key: &str) -> Result<i64, String> {
        let value = self.run(&["GET", key]).await?;
        Ok(value
            .as_string()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0))
    }
}
