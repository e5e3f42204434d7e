//! The queue of this process for one set of locks: its callers would split the votes of the servers.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::lock::{Lock, Wait, sleep_until};
use crate::owner::Owner;

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
