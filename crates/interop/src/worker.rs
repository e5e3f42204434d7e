//! Somebody who takes and releases locks, on either side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redisson_lock::{LockClient, LockGuard, LockKind, Owner};
use test_support::peer::{Answer, Peer};

use crate::party::{Fail, exception, fail};

/// Somebody who takes and releases locks.
#[derive(Clone)]
pub struct Worker {
    pub side: Side,
    pub by_thread_id: bool,
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

/// What a worker holds, by name, the latest last.
pub type Guards = HashMap<String, Vec<LockGuard>>;

/// The kind of a lock, with which its name begins.
pub fn kind_of(name: &str) -> LockKind {
    let kind = name.split_once('/').map(|(kind, _)| kind);
    kind.and_then(|kind| kind.parse().ok()).unwrap_or_default()
}

impl Worker {
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
                    .get_mut(name)
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
    /// nothing; of a fair lock each version does.
    pub async fn unlock_too_late(&self, name: &str) {
        let free = !self.is_locked(name).await;
        let unlocked = self.unlock(name).await;
        match &self.side {
            Side::Java { peer, .. }
                if free && (is_before_3_10_6(&peer.version) || name.starts_with("fair/")) =>
            {
                assert_eq!(unlocked, Ok(()))
            }
            _ => assert!(
                unlocked.as_ref().is_err_and(Fail::is_not_held),
                "{unlocked:?}"
            ),
        }
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
                let neighbour = client
                    .lock_of(kind_of(name), name)
                    .owned_by(&client.owner());
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
                    .get(name)
                    .and_then(|guards| guards.last())
                    .map(|guard| guard.lost())
            }
            Side::Java { .. } => None,
        }
    }

    fn rust(&self, name: &str, lease: Option<Duration>) -> redisson_lock::Lock {
        let Side::Rust { client, owner, .. } = &self.side else {
            unreachable!("asked of our side only")
        };
        let lock = client.lock_of(kind_of(name), name).owned_by(owner);
        lease.map_or_else(|| lock.clone(), |lease| lock.lease(lease))
    }

    fn keep(&self, name: &str, guard: LockGuard) {
        if let Side::Rust { guards, .. } = &self.side {
            guards
                .lock()
                .expect("unpoisoned")
                .entry(name.to_owned())
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
        let mut all = vec![("client", client.clone()), ("name", name.to_owned())];
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

fn is_before_3_10_6(version: &str) -> bool {
    let numbers: Vec<u32> = version
        .split('.')
        .filter_map(|number| number.parse().ok())
        .collect();
    // The other libraries have no number.
    !numbers.is_empty() && numbers < vec![3, 10, 6]
}

fn millis(time: Option<Duration>) -> String {
    time.map_or_else(|| "-1".to_owned(), |time| time.as_millis().to_string())
}
