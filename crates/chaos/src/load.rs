//! Clients and their workers: contended locks, and many that are held for long.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use redisson_lock::{Error, Lock, LockClient, LockGuard};
use test_support::ms;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::oracle::{Ending, Judged, Oracle, Reason, Release};

/// Whom everybody reports to.
#[derive(Clone)]
pub struct Judge(Arc<Mutex<Oracle>>);

impl Judge {
    pub fn new(oracle: Oracle) -> Self {
        Self(Arc::new(Mutex::new(oracle)))
    }

    pub fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the clock while nobody else reports, so that reports are in the order of their times.
    fn report<T>(&self, report: impl FnOnce(&mut Oracle, Instant) -> T) -> T {
        let mut oracle = self.oracle();
        report(&mut oracle, Instant::now())
    }
}

/// What is locked: which of the locks are contended, the others are held for long.
pub struct Plan {
    pub locks: Vec<Judged>,
    pub contended: usize,
    pub replicas: u32,
}

pub struct Load {
    pub clients: Vec<LockClient>,
    workers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Load {
    pub async fn start(url: &str, plan: &Plan, judge: &Judge, seed: u64) -> Result<Self, String> {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let builder = LockClient::builder()
                .watchdog_timeout(WATCHDOG_TIMEOUT)
                .command_timeout(COMMAND_TIMEOUT);
            let client = builder.connect(url).await;
            clients.push(client.map_err(|error| format!("a client does not connect: {error}"))?);
        }
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        let mut rng = Rng::with_seed(seed);
        for (nth, judged) in plan.locks.iter().enumerate() {
            let is_contended = nth < plan.contended;
            // Of those that are held for long every fifth has a waiter.
            let takers = match (is_contended, nth % 5) {
                (true, _) => WORKERS,
                (false, 0) => 2,
                (false, _) => 1,
            };
            for taker in 0..takers {
                let lock = clients[(nth + taker) % CLIENTS].lock(judged.name.clone());
                let lock = match judged.synced {
                    true => lock.sync_replicas(plan.replicas, COMMAND_TIMEOUT / 2),
                    false => lock,
                };
                let worker = Worker {
                    nth,
                    lock,
                    // A lease that is over before all replicas have it has been waited for in vain.
                    leases: match judged.synced {
                        true => 1_500..2_500,
                        false => 50..600,
                    },
                    judge: judge.clone(),
                    rng: rng.fork(),
                    stopped: stopped.clone(),
                };
                if is_contended {
                    workers.spawn(worker.contend());
                } else {
                    workers.spawn(worker.hold());
                }
            }
        }
        Ok(Self {
            clients,
            workers,
            stop,
        })
    }

    /// Ends the workers. What they have called for returns, now that everything is whole.
    pub async fn stop(&mut self, judge: &Judge) -> Result<(), String> {
        let _ = self.stop.send(true);
        let limit = judge.oracle().returns_within();
        let mut panics = 0;
        let ended = async {
            while let Some(ended) = self.workers.join_next().await {
                panics += u32::from(ended.is_err());
            }
        };
        let _ = tokio::time::timeout(limit, ended).await;
        let left = self.workers.len();
        let pending = judge.oracle().pending();
        self.workers.abort_all();
        match (panics, left) {
            (0, 0) => Ok(()),
            (0, _) => Err(format!(
                "{left} workers have not ended within {limit:?}: calls do not return, {}",
                pending.join(", ")
            )),
            _ => Err(format!(
                "{panics} workers have panicked, {left} have not ended"
            )),
        }
    }

    /// What the clients still remember.
    pub async fn left(&self) -> Option<String> {
        let limit = Instant::now() + ENDED_WITHIN;
        loop {
            let left = self.clients.iter().enumerate().find_map(|(nth, client)| {
                let stats = client.stats();
                let sum = stats.held + stats.waiting + stats.releasing + stats.subscriptions;
                (sum + stats.entries > 0).then(|| format!("client {nth} has {stats:?}"))
            });
            if left.is_none() || Instant::now() > limit {
                return left;
            }
            tokio::time::sleep(ms(50)).await;
        }
    }
}

struct Worker {
    nth: usize,
    lock: Lock,
    judge: Judge,
    rng: Rng,
    leases: Range<u64>,
    stopped: watch::Receiver<bool>,
}

impl Worker {
    /// Takes a contended lock in every way there is, until it is stopped.
    async fn contend(mut self) {
        while !*self.stopped.borrow() {
            match self.take().await {
                Ok(Some((guard, leased))) => {
                    let length = match self.rng.u32(..100) {
                        0 => self.rng.u64(200..1_500),
                        1..=8 => self.rng.u64(20..200),
                        _ => self.rng.u64(1..20),
                    };
                    self.inside(guard, leased, ms(length)).await;
                }
                Ok(None) => {}
                Err(error) => self.failed(&error, None),
            }
            tokio::time::sleep(ms(self.rng.u64(1..25))).await;
        }
    }

    /// The guard, and whether it has a fixed lease.
    async fn take(&mut self) -> Result<Option<(LockGuard, bool)>, Error> {
        let _pending = self.calls(false);
        let wait = ms(self.rng.u64(1..300));
        let taken = match self.rng.u32(..10) {
            // Dropped wherever it is.
            0 => match tokio::time::timeout(wait / 10, self.lock.lock()).await {
                Ok(taken) => Some(taken?),
                Err(_) => None,
            },
            1 => self.lock.try_lock().await?,
            2 | 3 => {
                let (begun, wait) = (Instant::now(), wait * 2);
                match self.lock.try_lock_for(wait).await {
                    Ok(taken) => taken,
                    // There was no time for an answer.
                    Err(Error::NoAnswer { .. }) if wait < ENOUGH => None,
                    // It got the lock late, and its deadline was over before the replicas had it.
                    Err(Error::TooFewReplicas { .. }) if begun.elapsed() >= wait => None,
                    Err(error) => return Err(error),
                }
            }
            4 => {
                let leased = self.lock.lease(ms(self.rng.u64(self.leases.clone())));
                return match leased.lock().await {
                    Ok(guard) => Ok(Some((guard, true))),
                    // On a busy machine the shortest of them are.
                    Err(error) if is_over_already(&error) => Ok(None),
                    Err(error) => Err(error),
                };
            }
            _ => Some(self.lock.lock().await?),
        };
        Ok(taken.map(|guard| (guard, false)))
    }

    /// Holds a lock for long, again and again.
    async fn hold(mut self) {
        while !*self.stopped.borrow() {
            let pending = self.calls(false);
            let taken = self.lock.lock().await;
            drop(pending);
            match taken {
                Ok(guard) => {
                    let length = match self.nth % 2 {
                        0 => self.rng.u64(1_000..6_000),
                        _ => self.rng.u64(8_000..40_000),
                    };
                    self.inside(guard, false, ms(length)).await;
                }
                Err(error) => self.failed(&error, None),
            }
            tokio::time::sleep(ms(self.rng.u64(20..200))).await;
        }
    }

    /// A section, with a nested one now and then.
    async fn inside(&mut self, guard: LockGuard, leased: bool, length: Duration) {
        let (owner, valid_until) = (guard.owner().to_string().into(), guard.valid_until());
        let begins =
            |oracle: &mut Oracle, now| oracle.begins(self.nth, owner, leased, valid_until, now);
        let id = self.judge.report(begins);
        let (nests, drops) = (self.rng.u32(..5) == 0, self.rng.u32(..6) == 0);
        let ended = {
            let body = async {
                if nests {
                    let pending = self.calls(true);
                    let nested = self.lock.lock().await;
                    drop(pending);
                    match nested {
                        Ok(_nested) => self.stays(length / 2).await,
                        Err(error) => self.failed(&error, Some(id)),
                    }
                }
                self.stays(length).await;
            };
            let (mut body, mut lost) = (std::pin::pin!(body), guard.lost());
            loop {
                tokio::select! {
                    biased;
                    reason = &mut lost => break Ending::Lost(reason),
                    () = &mut body => break Ending::Released,
                    () = tokio::time::sleep(ms(100)) => {
                        let valid_until = guard.valid_until();
                        // A hold that has ended is valid until now.
                        if valid_until > Instant::now() {
                            self.judge.oracle().is_valid_until(id, valid_until);
                        }
                    }
                }
            }
        };
        self.judge.report(|oracle, now| oracle.ends(id, ended, now));
        if ended != Ending::Released {
            return;
        }
        if drops {
            drop(guard);
            self.released(id, Release::Unknown);
            return;
        }
        match guard.unlock().await {
            Err(Error::Lost { reason, .. }) => {
                let was_lost =
                    |oracle: &mut Oracle, now| oracle.was_lost(id, self.nth, reason, now);
                self.judge.report(was_lost);
            }
            Err(error) => {
                self.released(id, Release::Unknown);
                self.failed(&error, None);
            }
            Ok(()) => self.released(id, Release::Clean),
        }
    }

    /// Until it is stopped.
    async fn stays(&self, length: Duration) {
        let mut stopped = self.stopped.clone();
        let _ = tokio::time::timeout(length, stopped.changed()).await;
    }

    fn released(&self, id: u64, release: Release) {
        self.judge
            .report(|oracle, now| oracle.released(id, release, now));
    }

    /// Until it is dropped a call is under way.
    fn calls(&self, is_nested: bool) -> Pending {
        let calls = |oracle: &mut Oracle, now| oracle.calls(self.nth, is_nested, now);
        let call = self.judge.report(calls);
        Pending {
            judge: self.judge.clone(),
            call,
        }
    }

    /// `section`: in which the call was nested.
    fn failed(&self, error: &Error, section: Option<u64>) {
        let reason = match (error, section) {
            (Error::NoAnswer { .. }, _) => Reason::NoAnswer,
            (Error::Refused { kind, .. }, _) => Reason::Refused(*kind),
            (Error::TooFewReplicas { .. }, _) => Reason::TooFewReplicas,
            (Error::Lost { .. }, Some(id)) => Reason::Lost(id),
            _ => Reason::Other,
        };
        let source = std::error::Error::source(error);
        let source = source.map_or(String::new(), |source| format!(": {source}"));
        let text = format!("{error}{source}");
        self.judge
            .report(|oracle, now| oracle.failed(self.nth, reason, text, now));
    }
}

/// A wait of this length has an answer, on a busy machine too.
const ENOUGH: Duration = Duration::from_millis(300);

/// Whether a lease was over when the answer came that it was granted.
fn is_over_already(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(|source| source.to_string().contains("the lease was already over"))
}

struct Pending {
    judge: Judge,
    call: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.judge.oracle().returned(self.call);
    }
}

const CLIENTS: usize = 4;

/// At each contended lock.
const WORKERS: usize = 6;

/// More than twice the time of a failover.
pub const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(12);

/// Below the time after which a server counts as failed.
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);

/// By then a client has forgotten what ended.
const ENDED_WITHIN: Duration = Duration::from_secs(30);
