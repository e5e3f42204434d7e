//! Clients and their workers: contended locks, and many that are held for long.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use redisson_lock::{Error, Lock, LockClient, LockGuard};
use test_support::ms;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::oracle::{Ending, Judged, Oracle};

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
            // Of those that are held for long every fifth has somebody who waits for it.
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

    /// Ends the workers.
    pub async fn stop(&mut self) -> Result<(), String> {
        let _ = self.stop.send(true);
        let mut panics = 0;
        let ended = async {
            while let Some(ended) = self.workers.join_next().await {
                panics += u32::from(ended.is_err());
            }
        };
        let _ = tokio::time::timeout(ENDED_WITHIN, ended).await;
        let left = self.workers.len();
        self.workers.abort_all();
        match (panics, left) {
            (0, 0) => Ok(()),
            (0, _) => Err(format!(
                "{left} workers have not ended: their calls do not return"
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
                Err(error) => self.failed(&error),
            }
            tokio::time::sleep(ms(self.rng.u64(1..25))).await;
        }
    }

    /// The guard, and whether it has a fixed lease.
    async fn take(&mut self) -> Result<Option<(LockGuard, bool)>, Error> {
        let wait = ms(self.rng.u64(1..300));
        let taken = match self.rng.u32(..10) {
            // Dropped wherever it is.
            0 => match tokio::time::timeout(wait / 10, self.lock.lock()).await {
                Ok(taken) => Some(taken?),
                Err(_) => None,
            },
            1 => self.lock.try_lock().await?,
            2 | 3 => self.lock.try_lock_for(wait).await?,
            4 => {
                let leased = self.lock.lease(ms(self.rng.u64(50..600)));
                return leased.lock().await.map(|guard| Some((guard, true)));
            }
            _ => Some(self.lock.lock().await?),
        };
        Ok(taken.map(|guard| (guard, false)))
    }

    /// Holds a lock for long, again and again.
    async fn hold(mut self) {
        while !*self.stopped.borrow() {
            let mut stopped = self.stopped.clone();
            let taken = tokio::select! {
                taken = self.lock.lock() => taken,
                _ = stopped.changed() => return,
            };
            match taken {
                Ok(guard) => {
                    let length = match self.nth % 2 {
                        0 => self.rng.u64(1_000..6_000),
                        _ => self.rng.u64(8_000..40_000),
                    };
                    self.inside(guard, false, ms(length)).await;
                }
                Err(error) => self.failed(&error),
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
        let mut stopped = self.stopped.clone();
        let ended = {
            let body = async {
                if nests {
                    match self.lock.lock().await {
                        Ok(_nested) => tokio::time::sleep(length / 2).await,
                        Err(error) => self.failed(&error),
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(length) => {}
                    _ = stopped.changed() => {}
                }
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
        if drops || ended != Ending::Released {
            return;
        }
        match guard.unlock().await {
            Err(Error::Lost { reason, .. }) => {
                let was_lost =
                    |oracle: &mut Oracle, now| oracle.was_lost(id, self.nth, reason, now);
                self.judge.report(was_lost);
            }
            Err(error) => self.failed(&error),
            Ok(()) => {}
        }
    }

    /// Errors are expected of servers that are away; others are not.
    fn failed(&self, error: &Error) {
        let mut oracle = self.judge.oracle();
        let now = Instant::now();
        oracle.note(self.nth, now, format!("a call fails: {error}"));
        let is_expected = matches!(
            error,
            Error::NoAnswer { .. }
                | Error::Refused { .. }
                | Error::TooFewReplicas { .. }
                | Error::Lost { .. }
        );
        if !is_expected {
            oracle.violated(
                Some(self.nth),
                now,
                &format!("a call failed with {error:?}"),
            );
        }
    }
}

const CLIENTS: usize = 4;

/// At each contended lock.
const WORKERS: usize = 6;

/// More than twice the time of a failover.
pub const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(12);

/// Below the time after which a server counts as failed.
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);

/// More than the longest wait for a lease.
const ENDED_WITHIN: Duration = Duration::from_secs(30);
