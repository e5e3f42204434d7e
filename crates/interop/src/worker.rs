//! Somebody who takes and releases locks, on either side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redisson_lock::{Error, Lock, LockClient, LockGuard, LockKind, LossReason, Owner, RwHolders};
use test_support::peer::{Answer, Peer};

/// Somebody who takes and releases locks.
#[derive(Clone)]
pub struct Worker {
    pub side: Side,
    pub by_thread_id: bool,
    /// The part of read-write locks that it takes; otherwise its locks are of another kind.
    pub part: Option<Part>,
}

/// A part of a read-write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Read,
    Write,
}

#[derive(Clone)]
pub enum Side {
    Rust {
        client: LockClient,
        owner: Owner,
        guards: Arc<Mutex<Guards>>,
    },
    Java {
        peer: Peer,
        client: String,
        number: u64,
    },
}

/// What went wrong, in words that both sides share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fail {
    /// Not held by the caller: IllegalMonitorStateException in Java.
    NotHeld,
    /// Held before, and lost. Java does not tell the two apart.
    Lost(LossReason),
    Other(String),
}

impl Fail {
    pub fn is_not_held(&self) -> bool {
        matches!(self, Self::NotHeld | Self::Lost(_))
    }
}

/// The name of a lock, after its kind. Both parts of a read-write lock are the same key, which has the name alone.
pub fn named(part: Option<Part>, name: &str) -> String {
    match part {
        None => name.to_owned(),
        Some(Part::Read) => format!("read/{name}"),
        Some(Part::Write) => format!("write/{name}"),
    }
}

/// The lock of a name after its kind.
pub fn lock_named(client: &LockClient, name: &str) -> Lock {
    match name.split_once('/') {
        Some(("read", name)) => client.rw_lock(name).read(),
        Some(("write", name)) => client.rw_lock(name).write(),
        _ => client.lock_of(kind_of(name), name),
    }
}

/// What a worker holds, by name, the latest last.
pub type Guards = HashMap<String, Vec<LockGuard>>;

/// The kind of a lock, with which its name begins.
pub fn kind_of(name: &str) -> LockKind {
    let kind = name.split_once('/').map(|(kind, _)| kind);
    kind.and_then(|kind| kind.parse().ok()).unwrap_or_default()
}

impl Worker {
    /// The same owner, which takes the read part of locks.
    pub fn reads(&self) -> Self {
        let part = Some(Part::Read);
        Self {
            part,
            ..self.clone()
        }
    }

    /// The same owner, which takes the write part of locks.
    pub fn writes(&self) -> Self {
        let part = Some(Part::Write);
        Self {
            part,
            ..self.clone()
        }
    }

    pub fn is_rust(&self) -> bool {
        matches!(self.side, Side::Rust { .. })
    }

    /// Takes the lock, for `lease` or until it is released.
    pub async fn lock(&self, name: &str, lease: Option<Duration>) -> Result<(), Fail> {
        match &self.side {
            Side::Rust { .. } => {
                let guard = self
                    .rust(name, lease)
                    .lock()
                    .await
                    .map_err(|error| fail(&error))?;
                self.keep(name, guard);
                Ok(())
            }
            Side::Java { .. } => self
                .call("lock", name, &[("lease", millis(lease))])
                .await
                .map(|_| ())
                .map_err(exception),
        }
    }

    /// Tries once, or for as long as `wait`.
    pub async fn try_lock(
        &self,
        name: &str,
        wait: Option<Duration>,
        lease: Option<Duration>,
    ) -> Result<bool, Fail> {
        match &self.side {
            Side::Rust { .. } => {
                let lock = self.rust(name, lease);
                let taken = match wait {
                    None => lock.try_lock().await,
                    Some(wait) => lock.try_lock_for(wait).await,
                };
                let taken = taken.map_err(|error| fail(&error))?;
                Ok(taken.map(|guard| self.keep(name, guard)).is_some())
            }
            Side::Java { .. } => {
                let values = [("wait", millis(wait)), ("lease", millis(lease))];
                self.call("trylock", name, &values)
                    .await
                    .map(|value| value == true)
                    .map_err(exception)
            }
        }
    }

    /// Gives one hold back.
    pub async fn unlock(&self, name: &str) -> Result<(), Fail> {
        match &self.side {
            Side::Rust { guards, .. } => {
                let guard = guards
                    .lock()
                    .expect("unpoisoned")
                    .get_mut(&named(self.part, name))
                    .and_then(Vec::pop);
                let done = match guard {
                    Some(guard) => guard.unlock().await,
                    None => self.rust(name, None).unlock().await,
                };
                done.map_err(|error| fail(&error))
            }
            Side::Java { .. } => self
                .call("unlock", name, &[])
                .await
                .map(|_| ())
                .map_err(exception),
        }
    }

    /// Releases what is not held any more: refused, with the lock free or held by another.
    ///
    /// Redisson before 3.10.6 takes a free lock for one that it has just released, and says
    /// nothing; of a fair lock each version does, of a read-write lock each before 3.44.
    pub async fn unlock_too_late(&self, name: &str) {
        let free = match self.part {
            None => !self.is_locked(name).await,
            // Each part of Redisson's says whether it is locked itself.
            Some(_) => !self.reads().is_locked(name).await && !self.writes().is_locked(name).await,
        };
        let unlocked = self.unlock(name).await;
        match &self.side {
            Side::Java { peer, .. }
                if free
                    && (is_before(&peer.version, [3, 10, 6])
                        || name.starts_with("fair/")
                        || self.part.is_some() && is_before(&peer.version, [3, 44, 0])) =>
            {
                assert_eq!(unlocked, Ok(()))
            }
            _ => assert!(
                unlocked.as_ref().is_err_and(Fail::is_not_held),
                "{unlocked:?}"
            ),
        }
    }

    /// Takes the lock over from its holder. Only ours can.
    pub async fn take_over(&self, name: &str) {
        let lock = self.rust(name, None);
        let holder = lock.inspect().await.expect("answered").expect("held");
        let taken = lock.take_over(&holder).await.expect("answered");
        self.keep(name, taken.expect("the holder that was seen has it"));
    }

    /// Makes the latest write hold a read hold. Only ours can in one step.
    pub async fn downgrade(&self, name: &str) {
        let Side::Rust { guards, .. } = &self.side else {
            unreachable!("Redisson has no such method");
        };
        let writes = named(Some(Part::Write), name);
        let guard = guards
            .lock()
            .expect("unpoisoned")
            .get_mut(&writes)
            .and_then(Vec::pop);
        let reads = guard.expect("it writes").downgrade().await;
        self.reads().keep(name, reads.expect("answered"));
    }

    /// Force-unlocks the lock. The answer is whether anybody did; the oldest Redisson
    /// does not say.
    pub async fn force_unlock(&self, name: &str) -> Result<Option<bool>, Fail> {
        match &self.side {
            Side::Rust { .. } => self
                .rust(name, None)
                .force_unlock()
                .await
                .map(Some)
                .map_err(|error| fail(&error)),
            Side::Java { .. } => {
                let forced = self
                    .call("forceunlock", name, &[])
                    .await
                    .map_err(exception)?;
                Ok(forced.as_bool())
            }
        }
    }

    /// One attempt by a thread that is interrupted already; ours, which has no thread, is dropped
    /// after a while. `None`: it brought nothing.
    pub async fn interrupted_try_lock(
        &self,
        name: &str,
        after: Duration,
    ) -> Option<Result<bool, Fail>> {
        match &self.side {
            Side::Rust { .. } => {
                let (worker, name) = (self.clone(), name.to_owned());
                let attempt = tokio::spawn(async move { worker.try_lock(&name, None, None).await });
                tokio::time::sleep(after).await;
                attempt.abort();
                attempt.await.ok()
            }
            Side::Java { .. } => {
                let values = [("interrupted", "true".to_owned())];
                self.call("trylock", name, &values)
                    .await
                    .map(|value| value == true)
                    .map(Ok)
                    .ok()
            }
        }
    }

    /// Interrupts the thread of this worker, which waits for a lock. Ours has no thread: another
    /// that waits beside it is dropped.
    pub async fn interrupt(&self, name: &str) {
        match &self.side {
            Side::Rust { client, .. } => {
                let name = named(self.part, name);
                let neighbour = lock_named(client, &name).owned_by(&client.owner());
                let waiting =
                    tokio::time::timeout(Duration::from_millis(50), neighbour.lock()).await;
                assert!(waiting.is_err(), "it was waiting");
            }
            Side::Java {
                peer,
                client,
                number,
            } => {
                let target = [("client", client.clone()), ("target", number.to_string())];
                peer.call("interrupt", &target).await.expect("answered");
            }
        }
    }

    /// Waits until the thread of this worker waits for a message. Redisson misses that of a writer before. Ours misses none
    /// since it subscribed, and is given time to answer that it has.
    pub async fn sleeps(&self) {
        match &self.side {
            Side::Rust { .. } => tokio::time::sleep(Duration::from_millis(30)).await,
            Side::Java {
                peer,
                client,
                number,
            } => {
                let target = [("client", client.clone()), ("target", number.to_string())];
                peer.call("sleeps", &target).await.expect("answered");
            }
        }
    }

    pub async fn is_locked(&self, name: &str) -> bool {
        match &self.side {
            Side::Rust { .. } => self.rust(name, None).is_locked().await.expect("answered"),
            Side::Java { .. } => self.call("islocked", name, &[]).await.expect("answered") == true,
        }
    }

    /// Whether this worker holds the lock.
    pub async fn is_held(&self, name: &str) -> bool {
        match &self.side {
            Side::Rust { .. } => self.rust(name, None).is_held().await.expect("answered"),
            Side::Java { .. } => {
                let verb = if self.by_thread_id {
                    "isheldbythread"
                } else {
                    "isheld"
                };
                self.call(verb, name, &[]).await.expect("answered") == true
            }
        }
    }

    /// How often this worker holds the lock.
    pub async fn hold_count(&self, name: &str) -> i64 {
        match &self.side {
            Side::Rust { .. } => self
                .rust(name, None)
                .hold_count()
                .await
                .expect("answered")
                .into(),
            Side::Java { .. } => {
                let count = self.call("holdcount", name, &[]).await.expect("answered");
                count.as_i64().expect("a number")
            }
        }
    }

    /// What is left of the lease. `None`: it is free.
    pub async fn lease_left(&self, name: &str) -> Option<Duration> {
        match &self.side {
            Side::Rust { .. } => self.rust(name, None).lease_left().await.expect("answered"),
            Side::Java { .. } => {
                let left = self.call("ttl", name, &[]).await.expect("answered");
                u64::try_from(left.as_i64().expect("a number"))
                    .ok()
                    .map(Duration::from_millis)
            }
        }
    }

    /// Resolves when our side is told that it lost the lock. Java has no such thing.
    pub fn lost(&self, name: &str) -> Option<redisson_lock::Lost> {
        match &self.side {
            Side::Rust { guards, .. } => {
                let guards = guards.lock().expect("unpoisoned");
                guards
                    .get(&named(self.part, name))
                    .and_then(|guards| guards.last())
                    .map(|guard| guard.lost())
            }
            Side::Java { .. } => None,
        }
    }

    pub fn rust(&self, name: &str, lease: Option<Duration>) -> Lock {
        let Side::Rust { client, owner, .. } = &self.side else {
            unreachable!("asked of our side only")
        };
        let lock = lock_named(client, &named(self.part, name)).owned_by(owner);
        lease.map_or_else(|| lock.clone(), |lease| lock.lease(lease))
    }

    /// All holders of a read-write lock, as our side sees them.
    pub async fn rw_holders(&self, name: &str) -> Option<RwHolders> {
        let Side::Rust { client, .. } = &self.side else {
            unreachable!("asked of our side only")
        };
        let holders = client.rw_lock(name).inspect().await;
        holders.expect("answered")
    }

    fn keep(&self, name: &str, guard: LockGuard) {
        if let Side::Rust { guards, .. } = &self.side {
            guards
                .lock()
                .expect("unpoisoned")
                .entry(named(self.part, name))
                .or_default()
                .push(guard);
        }
    }

    pub async fn call(&self, verb: &str, name: &str, values: &[(&'static str, String)]) -> Answer {
        let Side::Java {
            peer,
            client,
            number,
        } = &self.side
        else {
            unreachable!("asked of Java only")
        };
        let mut all = vec![("client", client.clone()), ("name", named(self.part, name))];
        all.extend(values.iter().cloned());
        if self.by_thread_id {
            // Any long will do; a negative one is nobody's.
            all.push(("thread", format!("-{}", number + 1_000)));
            if matches!(verb, "lock" | "trylock" | "unlock") {
                return peer.call(&format!("{verb}async"), &all).await;
            }
        }
        all.push(("worker", number.to_string()));
        peer.call(verb, &all).await
    }
}

fn fail(error: &Error) -> Fail {
    match error {
        Error::NotHeld { .. } => Fail::NotHeld,
        Error::Lost { reason, .. } => Fail::Lost(*reason),
        other => Fail::Other(other.to_string()),
    }
}

fn exception((kind, text): (String, String)) -> Fail {
    if ["IllegalMonitorStateException", "NotHeld"].contains(&kind.as_str()) {
        Fail::NotHeld
    } else {
        Fail::Other(format!("{kind}: {text}"))
    }
}

fn is_before(version: &str, other: [u32; 3]) -> bool {
    let numbers: Vec<u32> = version
        .split('.')
        .filter_map(|number| number.parse().ok())
        .collect();
    // The other libraries have no number.
    !numbers.is_empty() && numbers.as_slice() < &other[..]
}

fn millis(time: Option<Duration>) -> String {
    time.map_or_else(|| "-1".to_owned(), |time| time.as_millis().to_string())
}
