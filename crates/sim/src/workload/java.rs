//! A scripted Redisson peer: it adds and subtracts one, renews, waits, forces, and sometimes dies.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock::LockKind;
use redisson_lock_test::sim::{Answer, Keyspace, Rights};
use tokio::time::Instant;

use super::faults::rob;
use super::program::{JavaReads, JavaStep, LOCKS, Program, kind_of, ms};
use super::world::World;

mod fair;
mod read_write;

pub(crate) struct Java {
    world: Arc<World>,
    lease_ms: u64,
    /// Of a place in a queue.
    place_ms: u64,
    kinds: [LockKind; LOCKS.len()],
    reads: JavaReads,
    /// Among the threads that are there at the same time.
    number: u64,
    /// A dead thread's field is not entered again.
    field: String,
}

/// How its fields begin.
pub(crate) const JAVA: &str = "7f1b1c1e-0000-4000-8000-00000000java:";

fn field(born: u64, number: u64) -> String {
    format!("{JAVA}{born}{number}")
}

impl Java {
    pub(crate) fn new(world: &Arc<World>, program: &Program, number: u64) -> Self {
        Self {
            world: Arc::clone(world),
            lease_ms: program.watchdog_ms,
            place_ms: program.fair_wait_ms,
            kinds: program.kinds,
            reads: program.java_reads,
            number,
            field: field(world.now(), number),
        }
    }

    pub(crate) async fn act(mut self, steps: Vec<JavaStep>) {
        for step in steps {
            match step {
                JavaStep::Hold {
                    wait_ms,
                    lock,
                    depth,
                    hold_ms,
                    dies,
                } => {
                    tokio::time::sleep(ms(wait_ms)).await;
                    match self.has_parts(lock) {
                        true => self.hold_part(lock, depth, ms(hold_ms), dies).await,
                        false => self.hold(LOCKS[lock], depth, ms(hold_ms), dies).await,
                    }
                }
                JavaStep::Downgrade {
                    wait_ms,
                    lock,
                    hold_ms,
                } => {
                    tokio::time::sleep(ms(wait_ms)).await;
                    self.downgrade(lock, ms(hold_ms)).await;
                }
                JavaStep::DieInQueue { wait_ms, lock } => {
                    tokio::time::sleep(ms(wait_ms)).await;
                    self.die_in_queue(LOCKS[lock]);
                }
                JavaStep::Force { wait_ms, lock } => {
                    tokio::time::sleep(ms(wait_ms)).await;
                    match self.has_parts(lock) {
                        true => self.force_part(lock),
                        false => self.force(LOCKS[lock]),
                    }
                }
            }
        }
    }

    fn has_parts(&self, lock: usize) -> bool {
        matches!(kind_of(self.kinds, lock), LockKind::Read | LockKind::Write)
    }

    async fn hold(&mut self, key: &str, depth: u32, time: Duration, dies: bool) {
        let time_limit = Instant::now() + Duration::from_secs(3);
        while !self.acquire(key) {
            if Instant::now() >= time_limit {
                self.leaves_queue(key);
                return;
            }
            self.until_retry(key, time_limit).await;
        }
        for _ in 1..depth {
            self.acquire(key);
        }
        let until = Instant::now() + time;
        while Instant::now() < until {
            let renewal = Instant::now() + ms(self.lease_ms / 3);
            tokio::time::sleep_until(renewal.min(until)).await;
            if self.world.oracle.java_holds(key, &self.field).is_some() {
                self.command(&["pexpire", key, &self.lease_ms.to_string()]);
            }
        }
        if dies {
            // Its field stays until the lease is over; nobody believes anything.
            self.world.oracle.say(|| format!("Java dies with {key}"));
            self.world.oracle.java(key, &self.field, 0);
            self.world.oracle.left_behind(key, &self.field);
            self.field = field(self.world.now(), self.number);
            return;
        }
        for _ in 0..depth {
            self.release(key);
        }
    }

    fn acquire(&self, key: &str) -> bool {
        let count = self.world.with_home(key, |keyspace| {
            let holder = keyspace.holder(key).map(|(field, _)| field.to_owned());
            let is_own = holder.as_ref() == Some(&self.field);
            if holder.is_some() && !is_own && !self.is_fair(key) {
                return None;
            }
            if !is_own && self.is_fair(key) && !self.has_its_turn(keyspace, key) {
                return None;
            }
            let count = number(keyspace, &["hincrby", key, &self.field, "1"]);
            number(keyspace, &["pexpire", key, &self.lease_ms.to_string()]);
            Some(count)
        });
        if let Some(count) = count {
            self.world.oracle.java(key, &self.field, count);
            self.world
                .oracle
                .say(|| format!("Java holds {key}, count {count}"));
        }
        self.world.observe();
        count.is_some()
    }

    fn release(&self, key: &str) {
        // Robbed: Redisson throws here.
        if self.world.oracle.java_holds(key, &self.field).is_none() {
            return;
        }
        let left = self.command(&["hincrby", key, &self.field, "-1"]);
        self.world.oracle.java(key, &self.field, left);
        if left > 0 {
            self.command(&["pexpire", key, &self.lease_ms.to_string()]);
        } else {
            self.command(&["del", key]);
            self.announce(key);
        }
        self.world
            .oracle
            .say(|| format!("Java releases {key}, count {left}"));
        self.world.observe();
    }

    fn force(&self, key: &str) {
        rob(&self.world, key);
        self.world.oracle.say(|| format!("Java forces {key}"));
        if self.command(&["del", key]) == 1 {
            self.announce(key);
        }
    }

    fn command(&self, words: &[&str]) -> i64 {
        let key = words[1];
        self.world
            .with_home(key, |keyspace| number(keyspace, words))
    }
}

fn number(keyspace: &mut Keyspace, words: &[&str]) -> i64 {
    match run(keyspace, words) {
        Answer::Number(number) => number,
        other => panic!("{words:?} answered {other:?}"),
    }
}

fn run(keyspace: &mut Keyspace, words: &[&str]) -> Answer {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    keyspace.rights = Rights::default();
    let answer = keyspace.call(&words);
    answer.unwrap_or_else(|error| panic!("{words:?} failed: {error}"))
}

const PAUSE: Duration = Duration::from_millis(37);
