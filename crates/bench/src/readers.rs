//! One read-write lock: tasks that read over and over, and a few that write.

use std::sync::Arc;

use redisson_lock::{Lock, LockGuard};
use test_support::ms;

use crate::bare::{Argument, BareFred, Scripts, Which};
use crate::context::{Context, System};
use crate::jvm::Redisson;
use crate::looping::{Looping, Worker};
use crate::scenario::{OURS, own};
use crate::workers::{LEASE_MS, connect, owner, text};

/// All of them with this many tasks of one client each. The floor has no writers.
pub async fn systems(context: &Context, readers: usize, writers: usize) -> Vec<Box<dyn System>> {
    let client = connect(&context.server.url()).await;
    let lock = client.rw_lock(NAME);
    let part = |nth: usize| match nth < readers {
        true => Part {
            lock: lock.read(),
            reads: true,
        },
        false => Part {
            lock: lock.write(),
            reads: false,
        },
    };
    let ours = (0..readers + writers).map(part);
    let mut systems = vec![Looping::contending(OURS, ours.collect())];
    if let Some(peer) = context.jvm(1, ms(30_000)).await {
        let tasks = readers + writers;
        let redisson = Redisson::looping(peer, &own(NAME, "jvm"), 1, tasks, false);
        let redisson = redisson.of_kind("read-write").with_readers(readers);
        systems.push(Box::new(redisson));
    }
    let fred = BareFred::connect(context).await;
    let bare = (0..readers).map(|task| BareReader::new(&fred, &own(NAME, "fred"), task));
    systems.push(Looping::contending(ALONE, bare.collect()));
    systems
}

/// A task of this crate with the face of a lock that it takes.
struct Part {
    lock: Lock,
    reads: bool,
}

impl Worker for Part {
    type Hold = LockGuard;

    async fn lock(&self) -> LockGuard {
        self.lock.lock().await.expect("the server answers")
    }

    async fn unlock(&self, hold: LockGuard) {
        hold.unlock().await.expect("held until now");
    }

    fn reads(&self) -> bool {
        self.reads
    }
}

/// The two scripts of a reader, and nothing else.
struct BareReader<S> {
    scripts: Arc<S>,
    owner: String,
    keys: [String; 2],
    channel: String,
}

impl<S: Scripts> BareReader<S> {
    fn new(scripts: &Arc<S>, key: &str, task: usize) -> Self {
        let owner = owner(task);
        let first = format!("{{{key}}}:{owner}:rwlock_timeout:1");
        Self {
            scripts: Arc::clone(scripts),
            owner,
            keys: [key.to_owned(), first],
            channel: format!("redisson_rwlock:{{{key}}}"),
        }
    }

    async fn call(&self, which: Which, arguments: &[Argument<'_>]) -> i64 {
        let keys = self.keys.each_ref().map(String::as_str);
        self.scripts.call(which, &keys, arguments).await
    }
}

impl<S: Scripts> Worker for BareReader<S> {
    type Hold = ();

    async fn lock(&self) {
        let arguments = [text(&self.owner), Argument::Number(1), LEASE_MS];
        let answer = self.call(Which::ReadAcquire, &arguments).await;
        assert_eq!(answer, 2, "taken by an owner that does not write");
    }

    async fn unlock(&self, (): ()) {
        let (none, channel, way) = (Argument::Number(0), text(&self.channel), text("publish"));
        let arguments = [text(&self.owner), none, Argument::Number(1), channel, way];
        let answer = self.call(Which::ReadRelease, &arguments).await;
        assert!(answer >= 1, "released");
    }

    fn reads(&self) -> bool {
        true
    }
}

pub const ALONE: &str = "floor: two scripts of each reader, no writer (fred)";

const NAME: &str = "readers";
