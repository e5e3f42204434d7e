//! The queue of this process for one set of locks, whose callers would otherwise split the servers' votes, and the
//! check that the servers are different ones.

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::base::runtime::sleep_until;
use crate::base::table::Table;
use crate::error::{Cause, Error, Operation};
use crate::lock::{Lock, Retry, Wait};
use crate::names::owner::Owner;
use crate::redis::Location;

/// Callers that want the same locks of the same clients, first come, first served.
pub(super) struct RedQueue {
    /// Its name in the table.
    set: Arc<str>,
    turns: Arc<Semaphore>,
    /// Those that hold or wait.
    owners: Mutex<Vec<Owner>>,
    /// Of all of them.
    rounds: watch::Sender<Rounds>,
}

/// The answers of the servers to the rounds of one queue.
#[derive(Default)]
struct Rounds {
    /// Whether the lock is held, at some time.
    was_answered: bool,
    /// Those since the latest answer.
    failed: Option<FailedRounds>,
}

/// Rounds that too few servers have answered, one after the other.
#[derive(Clone, Copy)]
pub(super) struct FailedRounds {
    /// When the first of them had failed.
    pub(super) since: Instant,
    /// The latest.
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

static QUEUES: LazyLock<Table<RedQueue>> = LazyLock::new(Table::default);

impl RedQueue {
    /// The servers have said whether the lock is held.
    pub(super) fn note_answer(&self) {
        self.rounds.send_if_modified(|rounds| {
            rounds.was_answered = true;
            rounds.failed.take().is_some()
        });
    }

    /// Whether the latest round has found that others have the lock, as far as the servers have said.
    pub(super) fn is_known_busy(&self) -> bool {
        let rounds = self.rounds.borrow();
        rounds.was_answered && rounds.failed.is_none()
    }

    /// Too few servers have answered a round that began then.
    pub(super) fn note_failure(&self, began: Instant) {
        let ended = Instant::now();
        self.rounds.send_modify(|rounds| {
            let since = rounds.failed.map_or(ended, |failed| failed.since);
            let latest = FailedRounds {
                since,
                began,
                ended,
            };
            rounds.failed = Some(latest);
        });
    }

    /// The queue of these locks, in any order, made if there is none.
    pub(super) fn of(members: &[Lock]) -> Arc<Self> {
        let key = |lock| Lock::key(lock).unwrap_or_else(|| lock.name());
        let members = members.iter();
        let mut set: Vec<_> = members.map(|lock| (lock.client_id(), key(lock))).collect();
        set.sort_unstable();
        // With quotes, so that no two sets have one name.
        let set = Arc::from(format!("{set:?}"));
        QUEUES.get_or_insert_with(Arc::clone(&set), || Self {
            set: Arc::clone(&set),
            turns: Arc::new(Semaphore::new(1)),
            owners: Mutex::default(),
            rounds: watch::Sender::default(),
        })
    }

    /// As [`turn`](Self::turn). A call without a deadline does not wait while nothing but an outage, as judged by the failed
    /// rounds of the others, keeps those before it, unless it tries again for a while.
    pub(super) async fn turn_unless_away(
        self: &Arc<Self>,
        owner: Owner,
        (wait, lock): (Wait, &Lock),
        retry: &mut Retry<'_>,
        outage: impl Fn(FailedRounds) -> Option<Error>,
    ) -> Result<Option<(RedCaller, OwnedSemaphorePermit)>, Error> {
        let turn = pin!(self.turn(owner, wait, lock));
        if !matches!(wait, Wait::Forever) {
            return turn.await;
        }
        let (mut seen, mut rounds) = (None, self.rounds.subscribe());
        let turn = {
            let waiting = async {
                // Not closed: the sender is here.
                while rounds.changed().await.is_ok() {
                    let failed = rounds.borrow_and_update().failed;
                    let Some((error, failed)) = failed.and_then(|it| Some((outage(it)?, it)))
                    else {
                        continue;
                    };
                    if seen.replace(failed.since) != Some(failed.since) {
                        retry.answered();
                    }
                    retry.failed(error).await?;
                }
                Ok(None)
            };
            tokio::select! {
                biased;
                turn = turn => turn?,
                failed = waiting => return failed,
            }
        };
        if self.rounds.borrow().failed.map(|failed| failed.since) != seen {
            retry.answered();
        }
        Ok(turn)
    }

    /// Waits for the turn of this owner: the next caller has its own when the permit is dropped. `None`: it does not come in
    /// time, and others have the lock; if the one before it has not been answered, that is an error.
    ///
    /// Cancel safety: dropping the future leaves the queue.
    async fn turn(
        self: &Arc<Self>,
        owner: Owner,
        wait: Wait,
        lock: &Lock,
    ) -> Result<Option<(RedCaller, OwnedSemaphorePermit)>, Error> {
        {
            let mut owners = self.owners.lock();
            if owners.contains(&owner) {
                let lock = lock.name().to_owned();
                return Err(Error::AlreadyHeld { lock });
            }
            owners.push(owner.clone());
        }
        let queue = Arc::clone(self);
        let caller = RedCaller { queue, owner };
        let turns = Arc::clone(&self.turns);
        let turn = match wait {
            Wait::Never(_) => turns.try_acquire_owned().ok(),
            _ => tokio::select! {
                biased;
                turn = turns.acquire_owned() => turn.ok(),
                () = sleep_until(wait.deadline()) => None,
            },
        };
        if let Some(turn) = turn {
            return Ok(Some((caller, turn)));
        }
        // One that does not wait does not wait for the first round of another either.
        let is_first = matches!(wait, Wait::Never(_)) && self.rounds.borrow().failed.is_none();
        match is_first || self.is_known_busy() {
            true => Ok(None),
            false => Err(too_few(Operation::Acquiring, lock.name())),
        }
    }
}

impl Drop for RedQueue {
    fn drop(&mut self) {
        QUEUES.remove(&self.set, self);
    }
}

/// One that holds or waits, until it is dropped: its owner makes no other call.
pub(super) struct RedCaller {
    queue: Arc<RedQueue>,
    owner: Owner,
}

impl Drop for RedCaller {
    fn drop(&mut self) {
        self.queue
            .owners
            .lock()
            .retain(|owner| *owner != self.owner);
    }
}

/// Whether two members are at one server, as far as the servers have said.
#[derive(Default)]
pub(super) struct Checked {
    /// Empty before the first call.
    members: Mutex<Vec<MemberLocation>>,
    /// Notified of each answer.
    answered: Notify,
}

/// The location of a member, as far as it is known.
#[derive(Clone, Default)]
struct MemberLocation {
    /// `Some(None)`: the user may not ask.
    location: Option<Option<Location>>,
    asked_at: Option<Instant>,
    is_asked: bool,
    /// A round has waited for its answer until the limit: no other round waits.
    is_late: bool,
}

impl MemberLocation {
    /// Whether it has to be asked now.
    fn begin(&mut self, now: Instant) -> bool {
        let is_due = self.asked_at.is_none_or(|at| at + AGAIN_AFTER <= now);
        let begins = self.location.is_none() && !self.is_asked && is_due;
        if begins {
            (self.is_asked, self.asked_at) = (true, Some(now));
        }
        begins
    }
}

impl Checked {
    /// Asks the servers who they are that have not said so, each in a task of its own, which outlives the call.
    pub(super) fn begin(self: &Arc<Self>, members: &[Lock]) {
        let now = Instant::now();
        let due: Vec<usize> = {
            let mut known = self.members.lock();
            known.resize(members.len(), MemberLocation::default());
            (0..members.len())
                .filter(|&nth| known[nth].begin(now))
                .collect()
        };
        // When the mutex is free: a runtime that has ended drops the task here.
        for nth in due {
            let (question, lock) = (AskedServer(Arc::clone(self), nth), members[nth].clone());
            members[nth].spawn(async move {
                if let Ok(location) = lock.location().await {
                    question.answer(Some(location));
                }
            });
        }
    }

    /// Waits until the limit for the answers of those that have `answered` the round: only their votes count, and a
    /// server that is away holds up no call. The error is the number of a member that is at the server of another.
    pub(super) async fn check(&self, answered: &[bool], limit: Instant) -> Result<(), usize> {
        loop {
            let is_answered = self.answered.notified();
            let is_over = Instant::now() >= limit;
            {
                let mut known = self.members.lock();
                if let Some(nth) = same(&known) {
                    // The next call asks all of them again.
                    known.clear();
                    return Err(nth);
                }
                let is_missing = |(known, answered): (&MemberLocation, &bool)| {
                    *answered && known.is_asked && !known.is_late
                };
                if !known.iter().zip(answered).any(is_missing) {
                    return Ok(());
                }
                if is_over {
                    known
                        .iter_mut()
                        .for_each(|known| known.is_late |= known.is_asked);
                    return Ok(());
                }
            }
            tokio::select! {
                () = is_answered => {}
                () = tokio::time::sleep_until(limit) => {}
            }
        }
    }
}

/// The number of a member that is at the server of an earlier one.
fn same(known: &[MemberLocation]) -> Option<usize> {
    let place = |nth: usize| known[nth].location.as_ref()?.as_ref();
    let is_same = |nth| {
        let mut others = (0..nth).filter_map(place);
        place(nth).is_some_and(|here| others.any(|there| here.is_at_server_of(there)))
    };
    (0..known.len()).find(|&nth| is_same(nth))
}

/// A server is asked who it is. Dropped without an answer, it may be asked again by another call.
struct AskedServer(Arc<Checked>, usize);

impl AskedServer {
    fn answer(&self, location: Option<Option<Location>>) {
        let Self(checked, nth) = self;
        if let Some(known) = checked.members.lock().get_mut(*nth)
            && known.is_asked
        {
            known.is_asked = false;
            known.location = location;
        }
        checked.answered.notify_waiters();
    }
}

impl Drop for AskedServer {
    fn drop(&mut self) {
        self.answer(None);
    }
}

/// How long a server that has not said who it is is left alone.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The error of a call that most of the servers have not answered.
pub(super) fn too_few(doing: Operation, lock: &str) -> Error {
    let text = "fewer than a quorum of the servers have answered in time";
    Error::no_answer(doing, Cause::new(None, text)).about(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::client::LockClient;
    use test_support::{Server, test, tokio};

    #[tokio::test]
    async fn nothing_is_left_of_a_queue_whose_last_lock_was_dropped() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port);
        let client = LockClient::connect(&url).await.expect("it answers");
        let members = ["a", "b", "c"].map(|name| client.lock(name));
        let queue = RedQueue::of(&members);
        let [one, two, three] = members;
        let other = RedQueue::of(&[three, one, two]);
        assert!(Arc::ptr_eq(&queue, &other));
        drop(queue);
        // No other test here has such locks.
        assert_eq!(QUEUES.len(), 1);
        drop(other);
        assert_eq!(QUEUES.len(), 0);
        client.close(Duration::ZERO).await;
    }

    #[test]
    fn a_server_that_has_not_said_who_it_is_is_asked_again_after_a_while() {
        let (mut known, now) = (MemberLocation::default(), Instant::now());
        assert!(known.begin(now));
        assert!(!known.begin(now + AGAIN_AFTER), "it may still answer");
        known.is_asked = false;
        assert!(!known.begin(now + AGAIN_AFTER / 2));
        assert!(known.begin(now + AGAIN_AFTER));
    }
}
