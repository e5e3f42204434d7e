//! Java at read-write locks, as three generations of Redisson do it. In all of them the key of a read hold is what counts
//! for other readers, and a writer that goes on reading publishes nothing.

use std::time::Duration;

use redisson_lock::LockKind;
use redisson_lock_test::sim::Keyspace;
use tokio::time::Instant;

use super::{Java, PAUSE, field, number, run};
use crate::workload::faults::rob;
use crate::workload::program::{Generation, LOCKS, READS, key_of, ms};

impl Java {
    pub(super) fn is_read_write(&self, key: &str) -> bool {
        let mut kinds = LOCKS.iter().zip(self.kinds);
        kinds.any(|(lock, kind)| *lock == key && kind == LockKind::Write)
    }

    pub(super) async fn hold_part(&mut self, lock: usize, depth: u32, time: Duration, dies: bool) {
        let (key, reads) = (key_of(lock), lock >= READS);
        if !self.waits_for_part(key, reads).await {
            return;
        }
        for _ in 1..depth {
            self.take_part(key, reads);
        }
        self.stay_in(key, time).await;
        if dies {
            return self.die_inside(key);
        }
        for _ in 0..depth {
            self.give_back(key, reads);
        }
    }

    /// It writes, reads inside of that, and goes on reading.
    pub(super) async fn downgrade(&mut self, lock: usize, time: Duration) {
        let key = key_of(lock);
        if !self.waits_for_part(key, false).await {
            return;
        }
        self.take_part(key, true);
        self.give_back(key, false);
        self.stay_in(key, time).await;
        self.give_back(key, true);
    }

    /// Only a lock that is held in this way.
    pub(super) fn force_part(&self, lock: usize) {
        let (key, reads) = (key_of(lock), lock >= READS);
        self.world.observe();
        let mode = self
            .world
            .with_home(key, |keyspace| value(keyspace, key, "mode"));
        if mode.as_deref() != Some(if reads { "read" } else { "write" }) {
            return;
        }
        rob(&self.world, key);
        self.say(&format!("forces {key}"));
        self.command(&["del", key]);
        self.announce(key);
        self.world.observe();
    }

    async fn waits_for_part(&self, key: &str, reads: bool) -> bool {
        let limit = Instant::now() + Duration::from_secs(3);
        while !self.take_part(key, reads) {
            if Instant::now() >= limit {
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
        true
    }

    /// Renews what it has.
    async fn stay_in(&self, key: &str, time: Duration) {
        let (until, beat) = (
            Instant::now() + time,
            ms(self.reads.watchdog_ms.min(self.lease_ms) / 3),
        );
        while Instant::now() < until {
            tokio::time::sleep_until((Instant::now() + beat).min(until)).await;
            self.world.observe();
            if self.holds(key, false) {
                self.command(&["pexpire", key, &self.lease_ms.to_string()]);
            }
            if self.holds(key, true) && self.reads.lease_ms.is_none() {
                self.world
                    .with_home(key, |keyspace| self.renew_reads(keyspace, key));
            }
            self.world.observe();
        }
    }

    /// Its fields stay until the leases are over, without a believer.
    fn die_inside(&mut self, key: &str) {
        self.say(&format!("dies with {key}"));
        for field in [self.field.clone(), self.writer()] {
            self.world.oracle.java(key, &field, 0);
            self.world.oracle.left_behind(key, &field);
        }
        self.field = field(self.world.now(), self.number);
    }

    fn say(&self, what: &str) {
        let (oracle, number) = (&self.world.oracle, self.number);
        oracle.say(|| format!("Java {number} {what}"));
    }

    fn writer(&self) -> String {
        format!("{}:write", self.field)
    }

    fn field_of(&self, reads: bool) -> String {
        match reads {
            true => self.field.clone(),
            false => self.writer(),
        }
    }

    fn holds(&self, key: &str, reads: bool) -> bool {
        let field = self.field_of(reads);
        self.world.oracle.java_holds(key, &field).is_some()
    }

    fn take_part(&self, key: &str, reads: bool) -> bool {
        // A lease may have ended since the oracle last looked.
        self.world.observe();
        let count = self.world.with_home(key, |keyspace| match reads {
            true => self.read(keyspace, key),
            false => self.write(keyspace, key),
        });
        if let Some(count) = count {
            self.world.oracle.java(key, &self.field_of(reads), count);
            let what = if reads { "reads" } else { "writes" };
            self.say(&format!("{what} {key}, count {count}"));
        }
        self.world.observe();
        count.is_some()
    }

    fn read(&self, keyspace: &mut Keyspace, key: &str) -> Option<i64> {
        match value(keyspace, key, "mode").as_deref() {
            None => _ = number(keyspace, &["hset", key, "mode", "read"]),
            Some("read") => {}
            Some(_) => _ = value(keyspace, key, &self.writer())?,
        }
        let count = number(keyspace, &["hincrby", key, &self.field, "1"]);
        let lease = self.reads.lease_ms.unwrap_or(self.reads.watchdog_ms);
        let (cover, text) = (cover(key, &self.field, count), lease.to_string());
        run(keyspace, &["set", &cover, "1", "px", &text]);
        let left = number(keyspace, &["pttl", key]);
        let lease = i64::try_from(lease).unwrap_or(i64::MAX);
        let lease = match self.reads.generation {
            Generation::First => lease,
            Generation::Second | Generation::Third => lease.max(left),
        };
        number(keyspace, &["pexpire", key, &lease.to_string()]);
        Some(count)
    }

    /// A nested hold adds its lease to what is left.
    fn write(&self, keyspace: &mut Keyspace, key: &str) -> Option<i64> {
        let writer = self.writer();
        let mut lease = i64::try_from(self.lease_ms).unwrap_or(i64::MAX);
        match value(keyspace, key, "mode").as_deref() {
            None => _ = number(keyspace, &["hset", key, "mode", "write"]),
            Some("write") => {
                value(keyspace, key, &writer)?;
                lease += number(keyspace, &["pttl", key]);
            }
            Some(_) => return None,
        }
        let count = number(keyspace, &["hincrby", key, &writer, "1"]);
        number(keyspace, &["pexpire", key, &lease.to_string()]);
        Some(count)
    }

    fn renew_reads(&self, keyspace: &mut Keyspace, key: &str) {
        let lease = self.reads.watchdog_ms.to_string();
        let all = readers(keyspace, key);
        let Some((_, own)) = all.iter().find(|(reader, _)| *reader == self.field) else {
            return;
        };
        let mut renewed: Vec<(String, i64)> = match self.reads.generation {
            Generation::First => Vec::new(),
            Generation::Second => all.clone(),
            Generation::Third => vec![(self.field.clone(), *own)],
        };
        let mut is_alive = self.reads.generation == Generation::First;
        for (reader, count) in renewed.drain(..) {
            for nth in (1..=count).rev() {
                let cover = cover(key, &reader, nth);
                is_alive |= number(keyspace, &["pexpire", &cover, &lease]) == 1;
            }
            if reader != self.field {
                self.world.oracle.renewed_by_java(key, &reader);
            }
        }
        if is_alive {
            number(keyspace, &["pexpire", key, &lease]);
        }
    }

    /// Once less. Robbed, Redisson throws here.
    fn give_back(&self, key: &str, reads: bool) {
        self.world.observe();
        if !self.holds(key, reads) {
            return;
        }
        let field = self.field_of(reads);
        let (left, is_freed, swept) = self.world.with_home(key, |keyspace| {
            let left = number(keyspace, &["hincrby", key, &field, "-1"]);
            if left == 0 {
                number(keyspace, &["hdel", key, &field]);
            }
            let is_freed = match reads {
                true => self.end_read(keyspace, key, left),
                false => self.end_write(keyspace, key, left),
            };
            let swept = readers(keyspace, key);
            if is_freed {
                number(keyspace, &["del", key]);
            }
            (left, is_freed, swept)
        });
        self.world.oracle.java(key, &field, left);
        let what = if reads {
            "stops to read"
        } else {
            "stops to write"
        };
        self.say(&format!("{what} {key}, count {left}"));
        if is_freed {
            for (reader, _) in swept {
                self.world.oracle.robbed(key, &reader);
            }
            self.announce(key);
        }
        self.world.observe();
    }

    /// Whether no owner is left with a live key.
    fn end_read(&self, keyspace: &mut Keyspace, key: &str, left: i64) -> bool {
        let cover_of_it = cover(key, &self.field, left + 1);
        number(keyspace, &["del", &cover_of_it]);
        let mut longest = -2;
        for (reader, count) in readers(keyspace, key) {
            for nth in 1..=count {
                let cover = cover(key, &reader, nth);
                longest = longest.max(number(keyspace, &["pttl", &cover]));
            }
        }
        if longest > 0 {
            number(keyspace, &["pexpire", key, &longest.to_string()]);
            return false;
        }
        value(keyspace, key, "mode").as_deref() != Some("write")
    }

    fn end_write(&self, keyspace: &mut Keyspace, key: &str, left: i64) -> bool {
        if left > 0 {
            number(keyspace, &["pexpire", key, &self.lease_ms.to_string()]);
            return false;
        }
        if number(keyspace, &["hlen", key]) == 1 {
            return true;
        }
        number(keyspace, &["hset", key, "mode", "read"]);
        false
    }
}

fn value(keyspace: &Keyspace, key: &str, field: &str) -> Option<String> {
    let mut fields = keyspace.hash(key).iter();
    let found = fields.find(|(name, _)| name == field);
    found.map(|(_, value)| value.clone())
}

fn readers(keyspace: &Keyspace, key: &str) -> Vec<(String, i64)> {
    let mut owners = keyspace.holders(key);
    owners.retain(|(field, _)| !field.ends_with(":write"));
    owners
}

/// The key of a read hold.
fn cover(key: &str, field: &str, nth: i64) -> String {
    let lock = match key.contains('{') {
        true => key.to_owned(),
        false => format!("{{{key}}}"),
    };
    format!("{lock}:{field}:rwlock_timeout:{nth}")
}
