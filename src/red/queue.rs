//! The queue of this process for one set of locks, whose callers would split the votes of the servers; and whether these
//! are servers of their own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::lock::{Lock, Wait};
use crate::owner::Owner;
use crate::redis::Location;
use crate::runtime::sleep_until;

/// Callers that want the same locks of the same clients, first come, first served.
pub(super) struct Queue {
    turns: Arc<Semaphore>,
    /// Those that hold or wait.
    owners: Mutex<Vec<Owner>>,
}

/// The clients and keys, in any order.
type Set = Vec<(String, String)>;

static QUEUES: Mutex<BTreeMap<Set, Weak<Queue>>> = Mutex::new(BTreeMap::new());

impl Queue {
    /// The queue of these locks, made if there is none.
    pub(super) fn of(members: &[Lock]) -> Arc<Self> {
        let name = |lock: &Lock| {
            let key = lock.key().unwrap_or_else(|| lock.name());
            (lock.client_id().to_owned(), key.to_owned())
        };
        let mut set: Set = members.iter().map(name).collect();
        set.sort_unstable();
        let mut queues = QUEUES.lock();
        if let Some(queue) = queues.get(&set).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Self {
            turns: Arc::new(Semaphore::new(1)),
            owners: Mutex::default(),
        });
        queues.insert(set, Arc::downgrade(&queue));
        queue
    }

    /// Waits for the turn of this owner. `None`: it does not come in time.
    ///
    /// Cancel safety: dropping the future leaves the queue.
    pub(super) async fn turn(
        self: &Arc<Self>,
        owner: &Owner,
        wait: Wait,
        lock: &Lock,
    ) -> Result<Option<Turn>, Error> {
        let turn = {
            let mut owners = self.owners.lock();
            if owners.contains(owner) {
                let lock = lock.name().to_owned();
                return Err(Error::AlreadyHeld { lock });
            }
            owners.push(owner.clone());
            Turn {
                queue: Arc::clone(self),
                owner: owner.clone(),
                permit: Permit::default(),
            }
        };
        let turns = Arc::clone(&self.turns);
        let permit = if matches!(wait, Wait::Never) {
            turns.try_acquire_owned().ok()
        } else {
            tokio::select! {
                biased;
                permit = turns.acquire_owned() => permit.ok(),
                () = sleep_until(wait.deadline()) => None,
            }
        };
        let has_turn = permit.is_some();
        *turn.permit.lock() = permit;
        Ok(Some(turn).filter(|_| has_turn))
    }
}

/// The turn of one owner, until it is dropped.
pub(super) struct Turn {
    queue: Arc<Queue>,
    owner: Owner,
    permit: Permit,
}

/// The next caller has its turn when this is taken out.
pub(super) type Permit = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

impl Turn {
    /// A lost quorum takes it out, and the owner stays: it has its guard.
    pub(super) fn permit(&self) -> Permit {
        Arc::clone(&self.permit)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue
            .owners
            .lock()
            .retain(|owner| *owner != self.owner);
        drop(self.permit.lock().take());
    }
}

/// Whether two members are at one server, as far as the servers have said.
#[derive(Default)]
pub(super) struct Checked {
    /// Empty before the first answers. `None`: it has not answered.
    places: Mutex<Vec<Option<Place>>>,
    /// A task asks those that have not answered.
    is_asking: AtomicBool,
}

/// Where a member is. `None`: the user may not ask.
type Place = Option<Location>;

impl Checked {
    /// Asks the servers who they are. The first call waits for the answers; later ones only have those asked again that did not
    /// answer, and hear of it afterwards: an outage does not hold up each of them. The error is the number of one that is at the
    /// server of another.
    pub(super) async fn check(
        self: &Arc<Self>,
        members: &[Lock],
        limit: Duration,
    ) -> Result<(), usize> {
        let (is_first, is_missing) = {
            let places = self.places.lock();
            (places.is_empty(), places.iter().any(Option::is_none))
        };
        if is_first {
            self.ask(members, limit).await;
        } else if is_missing && !self.is_asking.swap(true, Ordering::Relaxed) {
            let (checked, members) = (Arc::clone(self), members.to_vec());
            members[0].clone().spawn(async move {
                checked.ask(&members, limit).await;
                checked.is_asking.store(false, Ordering::Relaxed);
            });
        }
        let mut places = self.places.lock();
        let place = |nth: usize| places.get(nth)?.as_ref()?.as_ref();
        for nth in 0..members.len() {
            let is_same = |other| Some(place(nth)?.is_at_server_of(place(other)?));
            if (0..nth).any(|other| is_same(other) == Some(true)) {
                // The next call asks all of them again.
                places.clear();
                return Err(nth);
            }
        }
        Ok(())
    }

    async fn ask(&self, members: &[Lock], limit: Duration) {
        let mut known = self.places.lock().clone();
        known.resize(members.len(), None);
        let asking = members.iter().zip(known).map(|(lock, known)| async {
            match known {
                Some(place) => Some(place),
                None => tokio::time::timeout(limit, lock.location())
                    .await
                    .ok()?
                    .ok(),
            }
        });
        let places = join_all(asking).await;
        *self.places.lock() = places;
    }
}
