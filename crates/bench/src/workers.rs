//! One task of each kind: this crate's, rslock's, and two that call the scripts and do nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redisson_lock::{Lock, LockClient, LockGuard};

use crate::bare::{Argument, Scripts, Which};
use crate::looping::Worker;

/// A task of this crate; tokio's task is the owner.
pub struct Ours(pub Lock);

impl Worker for Ours {
    type Hold = LockGuard;

    async fn lock(&self) -> LockGuard {
        self.0.lock().await.expect("the server answers")
    }

    async fn unlock(&self, hold: LockGuard) {
        hold.unlock().await.expect("held until now");
    }
}

pub async fn connect(url: &str) -> LockClient {
    LockClient::connect(url).await.expect("the server answers")
}

/// A task of rslock. Its locks are not renewed, so the lease is the longest that any round needs.
pub struct Rslock {
    pub manager: rslock::LockManager,
    pub name: String,
}

impl Worker for Rslock {
    type Hold = rslock::LockGuard;

    async fn lock(&self) -> rslock::LockGuard {
        let taken = self.manager.acquire(self.name.as_str(), LEASE).await;
        taken.expect("a lease that is not too long")
    }

    async fn unlock(&self, hold: rslock::LockGuard) {
        hold.release().await;
    }
}

/// A lock that nobody else wants, taken and given back by this crate's own scripts.
pub struct BarePair<S> {
    pub scripts: Arc<S>,
    pub key: String,
    pub owner: String,
    pub channel: String,
}

impl<S: Scripts> BarePair<S> {
    pub fn new(scripts: &Arc<S>, key: String, task: usize) -> Self {
        Self {
            scripts: Arc::clone(scripts),
            owner: owner(task),
            channel: channel(&key),
            key,
        }
    }
}

impl<S: Scripts> Worker for BarePair<S> {
    type Hold = ();

    async fn lock(&self) {
        let arguments = [text(&self.owner), Argument::Number(1), LEASE_MS];
        let answer = self
            .scripts
            .call(Which::Acquire, &[&self.key], &arguments)
            .await;
        assert_eq!(answer, 1, "taken");
    }

    async fn unlock(&self, (): ()) {
        let arguments = [
            text(&self.owner),
            Argument::Number(0),
            Argument::Number(1),
            text(&self.channel),
        ];
        let answer = self
            .scripts
            .call(Which::Release, &[&self.key], &arguments)
            .await;
        assert!(answer >= 1, "released");
    }
}

/// A lock that goes from owner to owner, each time with one script call: no contended lock can do
/// with less. One task makes the calls, one after the other.
pub struct Pass<S> {
    pub scripts: Arc<S>,
    pub key: String,
    pub owners: Vec<String>,
    pub next: AtomicUsize,
}

impl<S: Scripts> Pass<S> {
    pub fn new(scripts: &Arc<S>, key: &str, owners: usize) -> Self {
        Self {
            scripts: Arc::clone(scripts),
            key: key.to_owned(),
            owners: (0..owners).map(owner).collect(),
            next: AtomicUsize::new(0),
        }
    }
}

impl<S: Scripts> Worker for Pass<S> {
    type Hold = ();

    async fn lock(&self) {
        let from = self.next.fetch_add(1, Ordering::Relaxed);
        let owner = |number: usize| text(&self.owners[number % self.owners.len()]);
        let arguments = [owner(from), owner(from + 1), LEASE_MS];
        let keys = [self.key.as_str()];
        let answer = self.scripts.call(Which::Pass, &keys, &arguments).await;
        assert_eq!(answer, 1, "passed");
    }

    async fn unlock(&self, (): ()) {}
}

pub fn channel(key: &str) -> String {
    format!("redisson_lock__channel:{{{key}}}")
}

pub fn owner(task: usize) -> String {
    format!("7e0b0e3c-6a5f-4a53-9d0c-0e4f3d9f2a11:{task}")
}

pub fn text(text: &str) -> Argument<'_> {
    Argument::Text(text)
}

pub const LEASE_MS: Argument<'static> = Argument::Number(30_000);
const LEASE: Duration = Duration::from_secs(30);
