//! A report in several keys: many read it beside each other, one updates it, and none reads a half of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient};
use test_support::{Server, ms};
use tokio::task::JoinSet;

use super::jvm::Jvm;
use super::{LOCK, SOLD_OUT};
use crate::Redis;

/// What was read.
#[derive(Default)]
pub struct Row {
    readers: usize,
    reads: i64,
    /// Reads that found parts of different versions.
    mixed: i64,
    /// Of the readers, how many read at the same time.
    most: i64,
    /// The last version that was written, and the one that is there.
    versions: [i64; 2],
}

impl Row {
    pub fn text(&self) -> String {
        let Self {
            readers,
            reads,
            mixed,
            most,
            versions,
        } = self;
        format!(
            "{TITLE}: {readers} readers read it {reads} times, up to {most} at the same time,\n  while it was updated {} \
             times; {mixed} reads found a half-written report",
            versions[0]
        )
    }

    pub fn problem(&self) -> Option<String> {
        let [written, found] = self.versions;
        if self.mixed > 0 || written != found {
            return Some(format!(
                "{TITLE}: the report is not exact: {} of {} reads were half-written, and version {found} of {written} is left",
                self.mixed, self.reads
            ));
        }
        (self.most < 2).then(|| format!("{TITLE}: no two read at the same time"))
    }

    fn add(&mut self, [reads, mixed, most]: [i64; 3]) {
        self.reads += reads;
        self.mixed += mixed;
        self.most = self.most.max(most);
    }
}

/// Reads while each language writes. `unlocked`: the readers take no lock.
pub async fn row(unlocked: bool) -> Result<Row, String> {
    let server = Server::start();
    let redis = Redis::connect(&server.url()).await?;
    let client = LockClient::connect(&server.url()).await;
    let client = client.map_err(|error| error.to_string())?;
    let mut jvm = Jvm::start(&server.url())?;
    write_parts(&redis, 0).await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let lock = client.rw_lock(LOCK);
        let reader = Reader {
            lock: (!unlocked).then(|| lock.read().owned_by(&client.owner())),
            redis: Redis::connect(&server.url()).await?,
            is_over: Arc::clone(&is_over),
        };
        readers.spawn(reader.read());
    }
    let mut row = Row {
        readers: READERS,
        ..Row::default()
    };
    if let Some(jvm) = &mut jvm {
        let way = if unlocked { "unlocked" } else { "locked" };
        jvm.tell(&format!("read {READERS} {way}"))?;
        row.readers += READERS;
    }
    row.versions[0] = write(&client.rw_lock(LOCK).write(), &redis).await?;
    if let Some(jvm) = &mut jvm {
        let (from, to) = (row.versions[0] + 1, row.versions[0] + UPDATES);
        jvm.tell(&format!("write {from} {to}"))?;
        jvm.answer("written")?;
        row.versions[0] = to;
        jvm.tell("stop")?;
        let read = jvm.answer("read ")?;
        let read: Vec<i64> = read.split(' ').filter_map(|n| n.parse().ok()).collect();
        row.add(
            read.try_into()
                .map_err(|read| format!("not three: {read:?}"))?,
        );
    }
    is_over.store(true, Ordering::Relaxed);
    while let Some(read) = readers.join_next().await {
        row.add(read.map_err(|error| error.to_string())??);
    }
    jvm.map_or(Ok(()), Jvm::end)?;
    client.close(ms(100)).await;
    row.versions[1] = redis.number(&part(PARTS)).await?;
    Ok(row)
}

struct Reader {
    /// `None`: it reads without a lock.
    lock: Option<Lock>,
    redis: Redis,
    is_over: Arc<AtomicBool>,
}

impl Reader {
    /// Reads until it is over; returns how often, how often it found a half-written report, and how many read beside it.
    async fn read(self) -> Result<[i64; 3], String> {
        let [mut reads, mut mixed, mut most] = [0; 3];
        while !self.is_over.load(Ordering::Relaxed) {
            let guard = match &self.lock {
                Some(lock) => Some(lock.lock().await.map_err(|error| error.to_string())?),
                None => None,
            };
            let begin = Instant::now();
            let beside = self.redis.run(&["INCR", READING]).await?;
            most = most.max(beside.as_i64().unwrap_or(0));
            let first = self.redis.number(&part(1)).await?;
            let mut is_mixed = false;
            for nth in 2..=PARTS {
                is_mixed |= self.redis.number(&part(nth)).await? != first;
            }
            self.redis.run(&["DECR", READING]).await?;
            let took = begin.elapsed();
            if let Some(guard) = guard {
                guard.unlock().await.map_err(|error| error.to_string())?;
            }
            (reads, mixed) = (reads + 1, mixed + i64::from(is_mixed));
            // A writer waits for a moment in which none of them reads.
            tokio::time::sleep(ms(5) + 4 * took).await;
        }
        Ok([reads, mixed, most])
    }
}

/// Updates the report; returns its last version.
async fn write(lock: &Lock, redis: &Redis) -> Result<i64, String> {
    let limit = Instant::now() + SOLD_OUT;
    let text = |error: Error| error.to_string();
    for version in 1..=UPDATES {
        let left = limit.saturating_duration_since(Instant::now());
        let guard = lock.try_lock_for(left).await.map_err(text)?;
        let guard = guard.ok_or_else(|| format!("{TITLE}: it was never free to be written"))?;
        write_parts(redis, version).await?;
        guard.unlock().await.map_err(text)?;
        tokio::time::sleep(BETWEEN).await;
    }
    Ok(UPDATES)
}

/// Slowly, so that a reader without the lock would see a half of it.
async fn write_parts(redis: &Redis, version: i64) -> Result<(), String> {
    for nth in 1..=PARTS {
        let version = version.to_string();
        redis.run(&["SET", &part(nth), &version]).await?;
        tokio::time::sleep(ms(2)).await;
    }
    Ok(())
}

fn part(nth: i64) -> String {
    format!("demo:report:{nth}")
}

const TITLE: &str = "a report under a read-write lock";

/// In each language.
const READERS: usize = 3;

const UPDATES: i64 = 15;

const PARTS: i64 = 5;

const BETWEEN: Duration = ms(20);

/// How many read now.
const READING: &str = "demo:reading";
