//! A fair lock for which a Rust and a JVM client queue up in turn: they get it in the order in which they came.

use std::time::Instant;

use redisson_lock::{Lock, LockClient};
use test_support::{Server, ms};
use tokio::task::JoinSet;

use super::jvm::Jvm;
use super::{LOCK, SOLD_OUT};
use crate::Redis;

/// Who came, and who got the lock, in order.
pub struct Row {
    came: Vec<String>,
    got: Vec<String>,
}

impl Row {
    pub fn text(&self) -> String {
        let exact = match self.came == self.got {
            true => "the order in which they came",
            false => "not the order in which they came",
        };
        format!(
            "{TITLE}: {} owners came one after another,\n  and got it as {},\n  {exact}",
            self.came.len(),
            self.got.join(", ")
        )
    }

    pub fn problem(&self) -> Option<String> {
        let (came, got) = (self.came.join(", "), self.got.join(", "));
        let text = || format!("{TITLE}: the order is not exact: {got}, but they came as {came}");
        (self.came != self.got).then(text)
    }
}

/// Has all of them queue up, and get the lock once. `turned`: the queue is turned round before it moves.
pub async fn row(turned: bool) -> Result<Row, String> {
    let server = Server::start();
    let redis = Redis::connect(&server.url()).await?;
    let client = LockClient::connect(&server.url()).await;
    let client = client.map_err(|error| error.to_string())?;
    let lock = client.fair_lock(LOCK);
    let mut jvm = Jvm::start(&server.url())?;
    let held = lock.lock().await.map_err(|error| error.to_string())?;
    let (mut waiting, mut came) = (JoinSet::new(), Vec::new());
    for nth in 1..=OWNERS {
        let name = match &mut jvm {
            Some(jvm) if nth % 2 == 0 => {
                let name = format!("JVM-{nth}");
                jvm.tell(&format!("queue {name}"))?;
                name
            }
            _ => {
                let name = format!("Rust-{nth}");
                let lock = lock.owned_by(&client.owner());
                let redis = Redis::connect(&server.url()).await?;
                waiting.spawn(pass(lock, redis, name.clone()));
                name
            }
        };
        came.push(name);
        until_there_are(&redis, QUEUE, came.len()).await?;
    }
    if turned {
        redis.run(&["EVAL", TURN_ROUND, "1", QUEUE]).await?;
    }
    held.unlock().await.map_err(|error| error.to_string())?;
    until_there_are(&redis, GOT, OWNERS).await?;
    while let Some(ended) = waiting.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    jvm.map_or(Ok(()), Jvm::end)?;
    client.close(ms(100)).await;
    let got = redis.run(&["LRANGE", GOT, "0", "-1"]).await?;
    let got = got.into_array().into_iter();
    Ok(Row {
        came,
        got: got.filter_map(|name| name.as_string()).collect(),
    })
}

/// One owner: notes that it has the lock.
async fn pass(lock: Lock, redis: Redis, name: String) -> Result<(), String> {
    let guard = lock.lock().await.map_err(|error| error.to_string())?;
    redis.run(&["RPUSH", GOT, &name]).await?;
    guard.unlock().await.map_err(|error| error.to_string())
}

async fn until_there_are(redis: &Redis, list: &str, count: usize) -> Result<(), String> {
    let limit = Instant::now() + SOLD_OUT;
    loop {
        let there = redis.run(&["LLEN", list]).await?.as_i64().unwrap_or(0);
        if there == count as i64 {
            return Ok(());
        }
        if Instant::now() > limit {
            return Err(format!("{TITLE}: {there} of {count} in {list}"));
        }
        tokio::time::sleep(ms(2)).await;
    }
}

const TITLE: &str = "a fair lock";

const OWNERS: usize = 8;

/// Where Redisson, and this crate, keep those that wait.
const QUEUE: &str = "redisson_lock_queue:{demo:lock}";

const GOT: &str = "demo:got";

const TURN_ROUND: &str = "\
local waiting = redis.call('lrange', KEYS[1], 0, -1)
redis.call('del', KEYS[1])
for _, owner in ipairs(waiting) do redis.call('lpush', KEYS[1], owner) end";
