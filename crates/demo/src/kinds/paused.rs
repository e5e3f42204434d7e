//! A holder that is stopped for longer than its lease: its late write is refused.

use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fred::prelude::Value;
use redisson_lock::{Error, LockClient, Script};
use test_support::{Server, ms};

use super::{HALF, LOCK, SELLERS, SOLD_OUT, STOCK, not_exact};
use crate::Redis;
use crate::sellers::{Announced, Seller};

/// Who refuses the late write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The stock, by the token and the owner of a fenced lock.
    Token,
    /// The guarded write of a plain lock.
    Guard,
}

impl Check {
    pub const ALL: [Self; 2] = [Self::Token, Self::Guard];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Guard => "guard",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Token => "a fenced lock, and a stock that checks the token",
            Self::Guard => "a plain lock, and guarded writes",
        }
    }
}

/// What one sale under the stopped holder showed.
pub struct Row {
    check: Check,
    sold: i64,
    /// What the stopped holder said when it took the lock.
    holder: String,
    stopped_for: Duration,
    sold_meanwhile: i64,
    /// The holder of the last sale before it went on.
    successor: String,
    /// What the stopped holder said about its late write.
    late: String,
}

impl Row {
    pub fn text(&self) -> String {
        let (holder, successor) = match self.check {
            Check::Token => (
                format!("the holder with {}", self.holder),
                format!(", the last with token {}", self.successor),
            ),
            Check::Guard => ("the holder".to_owned(), String::new()),
        };
        format!(
            "{}: {holder} was stopped for {:.2} s,\n  others sold {} meanwhile{successor};\n  its late write was {}; {} of \
             {STOCK} sold",
            self.check.title(),
            self.stopped_for.as_secs_f64(),
            self.sold_meanwhile,
            self.late,
            self.sold
        )
    }

    pub fn problem(&self) -> Option<String> {
        let title = self.check.title();
        not_exact(title, self.sold).or_else(|| {
            let refused = self.late.starts_with(REFUSED);
            (!refused).then(|| format!("{title}: the late write was {}", self.late))
        })
    }
}

/// Sells the stock once.
pub async fn row(check: Check, without_checks: bool) -> Result<Row, String> {
    let server = Server::start();
    let redis = Redis::connect(&server.url()).await?;
    let left = STOCK.to_string();
    redis.run(&["HSET", STOCK_KEY, "left", &left]).await?;
    let (announce, announced) = mpsc::channel();
    let program = std::env::current_exe().map_err(|error| format!("who am I: {error}"))?;
    let mut sellers = Vec::new();
    for nth in 0..SELLERS {
        let mut seller = Command::new(&program);
        seller.args(["--url", &server.url(), "--kinds-seller", check.name()]);
        if without_checks {
            seller.arg("--take-out-the-checks");
        }
        sellers.push(Seller::start(&mut seller, nth, &announce)?);
    }
    let (nth, holder) = said(&announced, "holding ")?;
    sellers[nth].signal("-STOP")?;
    let stopped_at = Instant::now();
    let before = redis.number(SOLD_KEY).await?;
    while redis.number(SOLD_KEY).await? < before + TAKEN_OVER {
        if stopped_at.elapsed() > SOLD_OUT {
            return Err(format!(
                "{}: no other process acquired the lock",
                check.title()
            ));
        }
        tokio::time::sleep(ms(2)).await;
    }
    let sold_meanwhile = redis.number(SOLD_KEY).await? - before;
    let successor = redis.run(&["HGET", STOCK_KEY, "token"]).await?;
    sellers[nth].signal("-CONT")?;
    let stopped_for = stopped_at.elapsed();
    sellers[nth].go_on()?;
    let (_, late) = said(&announced, "late write ")?;
    let limit = Instant::now() + SOLD_OUT;
    while sellers.iter_mut().any(Seller::runs) && Instant::now() < limit {
        tokio::time::sleep(ms(5)).await;
    }
    for (nth, seller) in sellers.iter_mut().enumerate() {
        if let Some(problem) = seller.end() {
            return Err(format!("{}: seller process {nth} {problem}", check.title()));
        }
    }
    Ok(Row {
        check,
        sold: redis.number(SOLD_KEY).await?,
        holder,
        stopped_for,
        sold_meanwhile,
        successor: successor.as_string().unwrap_or_default(),
        late,
    })
}

/// Waits for a line that begins so; returns who said it, and the rest of it.
fn said(announced: &Announced, begin: &str) -> Result<(usize, String), String> {
    let said = announced.recv_timeout(SOLD_OUT);
    let (nth, line) = said.map_err(|_| format!("no seller said `{begin}…`"))?;
    let rest = line.strip_prefix(begin);
    let rest = rest.ok_or_else(|| format!("seller process {nth} said `{line}`"))?;
    Ok((nth, rest.to_owned()))
}

/// Runs one seller process until the stock is sold.
pub async fn process(url: &str, check: Check, without_checks: bool) -> ExitCode {
    match sell_all(url, check, without_checks).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seller: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn sell_all(url: &str, check: Check, without_checks: bool) -> Result<(), String> {
    let connecting = LockClient::builder()
        .watchdog_timeout(ms(2_000))
        .command_timeout(ms(600))
        .connect(url);
    let text = |error: Error| error.to_string();
    let shop = Shop {
        redis: Redis::connect(url).await?,
        locks: connecting.await.map_err(text)?,
        guarded: Script::new(GUARDED_WRITE).map_err(text)?,
        without_checks,
    };
    loop {
        let sold = match check {
            Check::Token => shop.sell_by_token().await?,
            Check::Guard => shop.sell_guarded().await?,
        };
        match sold {
            Ok(true) => {}
            Ok(false) => break,
            // The machine stalled. The stock says what is left to sell.
            Err(Error::NoAnswer { .. } | Error::Lost { .. }) => tokio::time::sleep(ms(20)).await,
            Err(error) => return Err(error.to_string()),
        }
    }
    shop.locks.close(ms(500)).await;
    Ok(())
}

struct Shop {
    redis: Redis,
    locks: LockClient,
    guarded: Script,
    without_checks: bool,
}

impl Shop {
    /// `false`: sold out.
    async fn sell_by_token(&self) -> Result<Result<bool, Error>, String> {
        let guard = match self.locks.fenced_lock(LOCK).lock().await {
            Ok(guard) => guard,
            Err(error) => return Ok(Err(error)),
        };
        let left = self.left().await?;
        if left <= 0 {
            return Ok(guard.unlock().await.map(|()| false));
        }
        let (token, owner) = (guard.token().to_string(), guard.owner().to_string());
        let is_late = self.was_stopped(left, &format!("token {token}")).await?;
        let mode = if self.without_checks { "any" } else { "check" };
        let left = (left - 1).to_string();
        let words = ["EVAL", CHECKED_WRITE, "2", STOCK_KEY, SOLD_KEY];
        let words = [&words[..], &[&left, &token, &owner, mode]].concat();
        let written = self.redis.run(&words).await? == Value::Integer(1);
        if is_late && written {
            println!("late write accepted");
        } else if is_late {
            println!("late write {REFUSED}: the stock has seen a larger token");
        }
        Ok(guard.unlock().await.map(|()| true))
    }

    /// `false`: sold out.
    async fn sell_guarded(&self) -> Result<Result<bool, Error>, String> {
        let guard = match self.locks.lock(LOCK).lock().await {
            Ok(guard) => guard,
            Err(error) => return Ok(Err(error)),
        };
        let left = self.left().await?;
        if left <= 0 {
            return Ok(guard.unlock().await.map(|()| false));
        }
        let is_late = self.was_stopped(left, "").await?;
        let left = (left - 1).to_string();
        let written = if self.without_checks {
            let words = ["EVAL", GUARDED_WRITE, "2", STOCK_KEY, SOLD_KEY, &left];
            self.redis.run(&words).await.map(|_| Ok(()))?
        } else {
            let written = guard.eval(&self.guarded, &[STOCK_KEY, SOLD_KEY], &[&left]);
            written.await.map(|_| ())
        };
        match &written {
            Ok(()) if is_late => println!("late write accepted"),
            Err(error @ Error::Lost { .. }) if is_late => println!("late write {REFUSED}: {error}"),
            Err(error) if is_late => println!("late write not answered: {error}"),
            _ => {}
        }
        let unlocked = guard.unlock().await;
        Ok(written.and(unlocked).map(|()| true))
    }

    async fn left(&self) -> Result<i64, String> {
        let left = self.redis.run(&["HGET", STOCK_KEY, "left"]).await?;
        let left = left.as_string().and_then(|text| text.parse().ok());
        left.ok_or_else(|| "the stock is not there".to_owned())
    }

    /// The first holder that finds half of the stock reports that it holds the lock, and waits to be stopped. It goes on
    /// with the next line of its standard input.
    async fn was_stopped(&self, left: i64, holder: &str) -> Result<bool, String> {
        let first = ["SET", "demo:stopped", "yes", "NX"];
        if left > HALF || self.redis.run(&first).await?.is_null() {
            return Ok(false);
        }
        println!("holding {holder}");
        let line = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        match line.await {
            Ok(Ok(_)) => Ok(true),
            other => Err(format!("standard input: {other:?}")),
        }
    }
}

/// How a late write is reported that changed nothing.
const REFUSED: &str = "refused";

const STOCK_KEY: &str = "demo:stock";
const SOLD_KEY: &str = "demo:sold";

/// This many sales of others show that the lock has another holder.
const TAKEN_OVER: i64 = 10;

/// The stock keeps the token and the owner of its last write. It accepts a larger token, or an equal one of the same owner.
///
/// ARGV: what is left, token, owner, `check`. Returns 1 if it accepts the write.
const CHECKED_WRITE: &str = "\
local function is_larger(a, b) return #a > #b or #a == #b and a > b end
local last, by = unpack(redis.call('hmget', KEYS[1], 'token', 'owner'))
local is_fresh = not last or is_larger(ARGV[2], last) or ARGV[2] == last and ARGV[3] == by
if ARGV[4] == 'check' and not is_fresh then return 0 end
redis.call('hset', KEYS[1], 'left', ARGV[1], 'token', ARGV[2], 'owner', ARGV[3])
redis.call('incr', KEYS[2])
return 1";

/// Knows nothing of the lock: the library checks it.
const GUARDED_WRITE: &str = "\
redis.call('hset', KEYS[1], 'left', ARGV[1])
return redis.call('incr', KEYS[2])";
