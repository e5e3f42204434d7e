//! The scripts of read-write locks beside real Redisson, on one server, and one of fair locks in a state that is rare. The
//! library does not call the former yet: the parties here send them themselves, each twice, as a client does that had no
//! answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use crate::fixture::{Messages, between, channel, eventually, listen};
use crate::party::Party;
use test_support::{Control, Rolls, ms};

/// A script with the part about the queue before it, as it is sent.
macro_rules! fair {
    ($name:literal) => {
        concat!(
            include_str!("../../../lua/fair/queue.lua"),
            include_str!(concat!("../../../lua/fair/", $name, ".lua"))
        )
    };
}

macro_rules! read_write {
    ($name:literal) => {
        include_str!(concat!("../../../lua/read_write/", $name, ".lua"))
    };
}

const LEASE: &str = "30000";
const WAIT: &str = "300000";
const SECTIONS: usize = 50;

/// Everything, on locks of its own. The quick client has a watchdog timeout of 1.5 s.
pub async fn check(port: u16, java: &[Party; 2], quick: &Party) {
    a_place_stays(port, java).await;
    readers_of_both(port, java).await;
    writers_wait(port, java).await;
    downgrade(port, java).await;
    foreign_renewals(port, quick).await;
    read_write_storm(port, java).await;
}

/// An owner of ours, of a lock of one of the two kinds.
struct Ours {
    control: Control,
    name: String,
    owner: String,
    messages: Messages,
}

impl Ours {
    fn new(port: u16, name: &str, is_fair: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let owner = format!("00000000-0000-4000-8000-000000000000:{number}");
        let channel = match is_fair {
            true => format!("{}:{owner}", channel(name)),
            false => format!("redisson_rwlock:{{{name}}}"),
        };
        Self {
            control: Control::connect(port),
            name: name.to_owned(),
            owner,
            messages: listen(port, vec![channel]),
        }
    }

    fn fair(port: u16, name: &str) -> Self {
        Self::new(port, name, true)
    }

    fn read_write(port: u16, name: &str) -> Self {
        Self::new(port, name, false)
    }

    /// Sends it twice; returns what the first copy was answered.
    fn send(&mut self, script: &str, keys: &[String], args: &[&str]) -> String {
        let count = keys.len().to_string();
        let keys = keys.iter().map(String::as_str);
        let words = ["EVAL", script, &count].into_iter().chain(keys);
        let words: Vec<&str> = words.chain(args.iter().copied()).collect();
        let answer = self.control.run(&words);
        self.control.run(&words);
        answer
    }

    /// Waits for a message. That one comes is what the tests are about, so it is missed only for a while.
    async fn wait(&mut self) {
        let _ = tokio::time::timeout(ms(5_000), self.messages.recv()).await;
    }

    fn attempt(&mut self) -> bool {
        let (owner, channel) = (self.owner.clone(), channel(&self.name));
        let args = [&owner, "1", LEASE, WAIT, "1", &*channel];
        let answer = self.send(fair!("acquire"), &queue(&self.name), &args);
        assert!(!answer.starts_with("-3"), "{answer}");
        answer == "1"
    }

    /// Goes to 0, and leaves the queue if it is wanted; returns the answer.
    fn release(&mut self, leaves: &str) -> String {
        let (owner, channel) = (self.owner.clone(), channel(&self.name));
        let args = [&owner, "0", LEASE, &*channel, "publish", WAIT, leaves];
        self.send(fair!("release"), &queue(&self.name), &args)
    }

    fn unlock(&mut self) {
        let answer = self.release("1");
        assert!(
            answer.parse::<i64>().is_ok_and(|answer| answer > 0),
            "{answer}"
        );
    }

    /// The lock and the key of the own first read hold.
    fn hold(&self) -> [String; 2] {
        let first = format!("{{{}}}:{}:rwlock_timeout:1", self.name, self.owner);
        [self.name.clone(), first]
    }

    fn try_read(&mut self) -> bool {
        let owner = self.owner.clone();
        let hold = self.hold();
        let answer = self.send(read_write!("read_acquire"), &hold, &[&owner, "1", LEASE]);
        ["1", "2"].contains(&&*answer)
    }

    async fn read(&mut self) {
        while !self.try_read() {
            self.wait().await;
        }
    }

    fn end_read(&mut self) {
        let (owner, hold) = (self.owner.clone(), self.hold());
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        let args = [&*owner, "0", LEASE, &channel];
        let answer = self.send(read_write!("read_release"), &hold, &args);
        assert!(
            answer.parse::<i64>().is_ok_and(|answer| answer > 0),
            "{answer}"
        );
    }

    /// The lock and the key have the whole lease again.
    fn renew_read(&mut self) {
        let (owner, hold) = (self.owner.clone(), self.hold());
        let answer = self.send(read_write!("read_renew"), &hold, &[&owner, LEASE]);
        assert_eq!(answer, "1");
    }

    fn try_write(&mut self) -> bool {
        let (field, lock) = (format!("{}:write", self.owner), [self.name.clone()]);
        self.send(read_write!("write_acquire"), &lock, &[&field, "1", LEASE]) == "1"
    }

    async fn write(&mut self) {
        while !self.try_write() {
            self.wait().await;
        }
    }

    fn end_write(&mut self) {
        let (field, lock) = (format!("{}:write", self.owner), [self.name.clone()]);
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        let args = [&*field, "0", LEASE, &channel];
        let answer = self.send(read_write!("write_release"), &lock, &args);
        assert!(
            answer.parse::<i64>().is_ok_and(|answer| answer > 0),
            "{answer}"
        );
    }
}

fn queue(name: &str) -> [String; 3] {
    [
        name.to_owned(),
        format!("redisson_lock_queue:{{{name}}}"),
        format!("redisson_lock_timeout:{{{name}}}"),
    ]
}

async fn queued(control: &mut Control, name: &str, owners: usize) {
    let [_, list, scores] = queue(name);
    eventually(&format!("{name}: {owners} in the queue"), || {
        let lengths = [["LLEN", &list], ["ZCARD", &scores]].map(|words| control.number(&words));
        lengths == [owners as i64; 2]
    })
    .await;
}

/// Nothing of a lock is left: no hold, no place, no key of a read hold.
async fn nothing_left(control: &mut Control, name: &str) {
    eventually(&format!("{name}: nothing is left"), || {
        let [_, list, scores] = queue(name);
        let holds = format!("{{{name}}}:*:rwlock_timeout:*");
        control.number(&["EXISTS", name, &list, &scores]) == 0
            && control.run(&["KEYS", &holds]).is_empty()
    })
    .await;
}

/// A release of an owner that another of its calls waits for leaves its place where it is.
async fn a_place_stays(port: u16, java: &[Party; 2]) {
    const NAME: &str = "fair/a_place_stays";
    let control = &mut Control::connect(port);
    let (holder, next, mut ours) = (java[0].worker(), java[1].worker(), Ours::fair(port, NAME));
    holder.lock(NAME, None).await.expect("free");
    assert!(!ours.attempt());
    let waiting = tokio::spawn(async move { next.lock(NAME, None).await.map(|()| next) });
    queued(control, NAME, 2).await;
    assert_eq!(ours.release("0"), "-1");
    queued(control, NAME, 2).await;
    holder.unlock(NAME).await.expect("held");
    assert!(ours.attempt(), "its turn");
    queued(control, NAME, 1).await;
    ours.unlock();
    let next = waiting.await.expect("no panic").expect("its turn");
    next.unlock(NAME).await.expect("held");
    nothing_left(control, NAME).await;
}

/// How many are inside: readers count one each, a writer a million.
#[derive(Clone, Default)]
struct Inside(Arc<AtomicI64>);

const WRITER: i64 = 1_000_000;

impl Inside {
    async fn section(&self, who: i64) {
        let others = self.0.fetch_add(who, Ordering::SeqCst);
        assert!(
            others == 0 || who == 1 && others < WRITER,
            "{others} inside"
        );
        tokio::time::sleep(ms(1)).await;
        self.0.fetch_sub(who, Ordering::SeqCst);
    }
}

/// Readers of both sides leave in every order, and keep what is the other's.
async fn readers_of_both(port: u16, java: &[Party; 2]) {
    const NAME: &str = "readers_of_both";
    let control = &mut Control::connect(port);
    let read = &format!("read/{NAME}");
    for (java_first, java_leaves_first) in
        [(true, true), (true, false), (false, true), (false, false)]
    {
        let (mut ours, reader) = (Ours::read_write(port, NAME), java[0].worker());
        if java_first {
            reader.lock(read, None).await.expect("joins");
        }
        assert!(ours.try_read());
        if !java_first {
            reader.lock(read, None).await.expect("joins");
        }
        let mut writer = Ours::read_write(port, NAME);
        if java_leaves_first {
            reader.unlock(read).await.expect("held");
            assert_eq!(control.run(&["HGET", NAME, &ours.owner]), "1");
            assert!(!writer.try_write(), "we read");
            ours.end_read();
        } else {
            ours.end_read();
            assert!(!writer.try_write(), "Java reads");
            reader.unlock(read).await.expect("held");
        }
        assert!(writer.try_write(), "there is no reader");
        writer.end_write();
        nothing_left(control, NAME).await;
    }
}

/// Writers of one side wait for readers of the other, and readers for writers, and are told.
async fn writers_wait(port: u16, java: &[Party; 2]) {
    const NAME: &str = "writers_wait";
    let control = &mut Control::connect(port);
    for (holds, waits) in [("read", "write"), ("write", "read"), ("write", "write")] {
        let mut ours = Ours::read_write(port, NAME);
        match holds {
            "read" => ours.read().await,
            _ => ours.write().await,
        }
        let (worker, lock) = (java[0].worker(), format!("{waits}/{NAME}"));
        let waiting = tokio::spawn(async move { worker.lock(&lock, None).await.map(|()| worker) });
        listeners(control, NAME, 2).await;
        match holds {
            "read" => ours.end_read(),
            _ => ours.end_write(),
        }
        let told = Instant::now();
        let worker = waiting.await.expect("no panic").expect("in the end");
        between("Java", told.elapsed(), 0, 2_000);
        // And the other way round.
        let waiting = tokio::spawn(async move {
            match holds {
                "read" => ours.read().await,
                _ => ours.write().await,
            }
            ours
        });
        tokio::time::sleep(ms(100)).await;
        worker
            .unlock(&format!("{waits}/{NAME}"))
            .await
            .expect("held");
        let told = Instant::now();
        let mut ours = waiting.await.expect("no panic");
        between("ours", told.elapsed(), 0, 2_000);
        match holds {
            "read" => ours.end_read(),
            _ => ours.end_write(),
        }
        nothing_left(control, NAME).await;
    }
}

async fn listeners(control: &mut Control, name: &str, number: usize) {
    let channel = format!("redisson_rwlock:{{{name}}}");
    eventually(&format!("{name}: {number} listeners"), || {
        control
            .run(&["PUBSUB", "NUMSUB", &channel])
            .ends_with(&format!(" {number}"))
    })
    .await;
}

/// A writer that reads gives back its write hold: readers of the other side enter.
async fn downgrade(port: u16, java: &[Party; 2]) {
    const NAME: &str = "downgrade";
    let (read, write) = (&format!("read/{NAME}"), &format!("write/{NAME}"));
    let control = &mut Control::connect(port);
    let mut ours = Ours::read_write(port, NAME);
    ours.write().await;
    assert!(ours.try_read());
    let (reader, lock) = (java[0].worker(), read.clone());
    let waiting = tokio::spawn(async move { reader.lock(&lock, None).await.map(|()| reader) });
    listeners(control, NAME, 2).await;
    ours.end_write();
    let told = Instant::now();
    let reader = waiting.await.expect("no panic").expect("in the end");
    between("a reader of Java", told.elapsed(), 0, 2_000);
    reader.unlock(read).await.expect("held");
    let mut writer = Ours::read_write(port, NAME);
    assert!(!writer.try_write(), "we read");
    ours.end_read();
    nothing_left(control, NAME).await;

    let both = java[1].worker();
    both.lock(write, None).await.expect("free");
    both.lock(read, None).await.expect("it writes");
    assert!(!ours.try_read());
    both.unlock(write).await.expect("held");
    assert!(ours.try_read());
    both.unlock(read).await.expect("held");
    assert!(!writer.try_write(), "we read");
    ours.end_read();
    nothing_left(control, NAME).await;
}

/// A reader of Java renews with its own watchdog timeout: it shortens the lease of the lock, in some versions also the keys
/// of others. A renewal of ours raises them again, and its release leaves us what our key says.
async fn foreign_renewals(port: u16, quick: &Party) {
    const NAME: &str = "foreign_renewals";
    let read = &format!("read/{NAME}");
    let control = &mut Control::connect(port);
    let (mut ours, reader) = (Ours::read_write(port, NAME), quick.worker());
    assert!(ours.try_read());
    reader.lock(read, None).await.expect("joins");
    let [lock, key] = ours.hold();
    let mut shortened = [0; 2];
    for _ in 0..4 {
        tokio::time::sleep(ms(700)).await;
        shortened[0] += usize::from(control.pttl(&lock) < 10_000);
        shortened[1] += usize::from(control.pttl(&key) < 10_000);
        ours.renew_read();
    }
    println!("{NAME}: shortened before 4 renewals, lock and key: {shortened:?}");
    reader.unlock(read).await.expect("held");
    let left = [control.pttl(&lock), control.pttl(&key)];
    assert!(left[0] > 0 && left[0] + 10 >= left[1], "{left:?}");
    ours.renew_read();
    ours.end_read();
    nothing_left(control, NAME).await;
}

async fn read_write_storm(port: u16, java: &[Party; 2]) {
    const NAME: &str = "read_write_storm";
    let inside = Inside::default();
    let mut workers = JoinSet::new();
    for nth in 0..8 {
        let (inside, worker) = (inside.clone(), java[nth % 2].worker());
        workers.spawn(async move {
            let mut rolls = Rolls(nth as u64 + 1);
            let mut ours = Ours::read_write(port, NAME);
            for _ in 0..SECTIONS {
                let writes = rolls.below(4) == 0;
                let lock = format!("{}/{NAME}", if writes { "write" } else { "read" });
                match (nth < 4, writes) {
                    (true, _) => worker.lock(&lock, None).await.expect("in the end"),
                    (false, true) => ours.write().await,
                    (false, false) => ours.read().await,
                }
                inside.section(if writes { WRITER } else { 1 }).await;
                match (nth < 4, writes) {
                    (true, _) => worker.unlock(&lock).await.expect("held"),
                    (false, true) => ours.end_write(),
                    (false, false) => ours.end_read(),
                }
            }
        });
    }
    workers.join_all().await;
    nothing_left(&mut Control::connect(port), NAME).await;
}
