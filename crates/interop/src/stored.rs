//! What Redis has of a lock: its channel, its fields, and the queue of a fair one.

use std::time::{Duration, SystemTime};

use test_support::{Control, Monitor, eventually, ms};

/// The unlock channel.
pub fn channel(key: &str) -> String {
    beside("redisson_lock__channel", key)
}

/// That of a read-write lock.
pub fn parts_channel(key: &str) -> String {
    beside("redisson_rwlock", key)
}

/// A name with that of the lock, by Redisson's rule.
fn beside(prefix: &str, key: &str) -> String {
    match key.contains('{') {
        true => format!("{prefix}:{key}"),
        false => format!("{prefix}:{{{key}}}"),
    }
}

/// The fields of a lock, each with its value, sorted.
pub fn fields(control: &mut Control, key: &str) -> Vec<String> {
    let hash = control.hash(key);
    let words: Vec<&str> = hash.split(' ').filter(|word| !word.is_empty()).collect();
    let mut fields: Vec<String> = words.chunks(2).map(|pair| pair.join(" ")).collect();
    fields.sort_unstable();
    fields
}

/// The queue of a fair lock in Redis.
pub struct Queue {
    lock: String,
    pub list: String,
    pub ends: String,
    channel: String,
}

fn is_heard(control: &mut Control, channel: &str) -> bool {
    // Before Redis 7.0 there are no sharded channels.
    ["NUMSUB", "SHARDNUMSUB"].into_iter().any(|kind| {
        let listeners = control.try_run(&["PUBSUB", kind, channel]);
        listeners.is_ok_and(|listeners| listeners.ends_with(" 1"))
    })
}

impl Queue {
    pub fn of(key: &str) -> Self {
        Self {
            lock: key.to_owned(),
            list: beside("redisson_lock_queue", key),
            ends: beside("redisson_lock_timeout", key),
            channel: channel(key),
        }
    }

    /// Who is in it, the next one first.
    pub fn owners(&self, control: &mut Control) -> Vec<String> {
        let owners = control.run(&["LRANGE", &self.list, "0", "-1"]);
        let owners = owners.split(' ').filter(|owner| !owner.is_empty());
        owners.map(str::to_owned).collect()
    }

    /// Waits until this many owners are in it, in the list and in the sorted set, each of which listens to its channel.
    pub async fn waits(&self, control: &mut Control, owners: usize) {
        self.waits_in(control, &mut [], owners).await;
    }

    /// In a cluster they may listen at another node, if their channel is not a sharded one.
    pub async fn waits_in(&self, home: &mut Control, nodes: &mut [Control], owners: usize) {
        let wait = || {
            let seen = self.owners(home);
            let scores = home.number(&["ZCARD", &self.ends]);
            let listens = |owner: &String| {
                let channel = format!("{}:{owner}", self.channel);
                is_heard(home, &channel) || nodes.iter_mut().any(|node| is_heard(node, &channel))
            };
            scores == owners as i64 && seen.len() == owners && seen.iter().all(listens)
        };
        eventually(
            &format!("{owners} owners in {}", self.list),
            ms(20_000),
            wait,
        )
        .await;
    }

    /// Waits until these owners are in it, in this order.
    pub async fn becomes(&self, control: &mut Control, owners: &[String]) {
        eventually(&format!("{owners:?} in {}", self.list), ms(20_000), || {
            let scores = control.number(&["ZCARD", &self.ends]);
            scores == owners.len() as i64 && self.owners(control) == owners
        })
        .await;
    }

    /// Waits until the last of this many owners has found the lock held twice: before it listened to its channel, and
    /// after. Returns this owner.
    pub async fn last_looks_again(
        &self,
        control: &mut Control,
        owners: usize,
        monitor: Monitor,
    ) -> String {
        self.waits(control, owners).await;
        let owner = self.owners(control).remove(owners - 1);
        let (lock, field, mut looks) = (&self.lock, owner.clone(), 0);
        let looked = move || {
            // Each side asks whether the lock has its field.
            let is_one = |line: &&String| {
                line.contains(" lua] \"h") && line.contains(&field) && line.contains(lock)
            };
            looks += monitor.take(control).iter().filter(is_one).count();
            looks >= 2
        };
        eventually("it looks again", ms(20_000), looked).await;
        owner
    }

    /// The place of an owner ends in this time.
    pub fn shorten(&self, control: &mut Control, owner: &str, left: Duration) {
        let end = (since_1970() + left).as_millis().to_string();
        control.run(&["ZADD", &self.ends, "XX", &end, owner]);
    }

    /// When the place of an owner ends, in milliseconds since 1970.
    pub fn end(&self, control: &mut Control, owner: &str) -> Option<i64> {
        let score = control.run(&["ZSCORE", &self.ends, owner]);
        score.parse::<f64>().ok().map(|end| end as i64)
    }
}

pub fn since_1970() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().expect("later")
}
