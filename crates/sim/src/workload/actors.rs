//! The tasks of a program: each works off its steps as a caller would, and tells the oracle what it
//! believes.

mod several;
mod take;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redisson_lock::{
    Error, HoldHandle, Lock, LockClient, LockGuard, LockKind, Owner, RefusedKind, test_util,
};
use tokio::time::Instant;

use super::expected::Expected;
use super::program::{
    Inspect, LATE, LOCKS, PREFIX, Program, READS, Step, TaskPlan, Until, Verb, key_of, kind_of, ms,
};
use super::world::World;

/// A task with the guards that it keeps from round to round.
pub(crate) struct Actor {
    world: Arc<World>,
    client: LockClient,
    nth: usize,
    kinds: [LockKind; LOCKS.len()],
    /// What the client puts in front of its names.
    prefix: &'static str,
    owner: Owner,
    guards: Vec<Kept>,
    several: Vec<several::Kept>,
    detached: Vec<Kept<()>>,
    has_detached: bool,
    /// It may end its own late connections.
    may_kill: bool,
    expected: Expected,
}

struct Kept<G = LockGuard> {
    guard: G,
    lock: usize,
    token: Token,
}

/// Says to the oracle for how long a hold is believed in.
struct Token {
    world: Arc<World>,
    hold: u64,
    field: Arc<str>,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.world.oracle.gone(self.hold);
    }
}

impl Actor {
    pub(crate) fn new(
        world: &Arc<World>,
        client: &LockClient,
        task: &TaskPlan,
        program: &Program,
    ) -> Self {
        Self {
            world: Arc::clone(world),
            client: client.clone(),
            nth: task.client,
            kinds: program.kinds,
            prefix: if program.clients[task.client].prefix {
                PREFIX
            } else {
                ""
            },
            owner: client.owner_with_id(task.owner),
            guards: Vec::new(),
            several: Vec::new(),
            detached: Vec::new(),
            has_detached: false,
            may_kill: program.clients[task.client].may_kill,
            expected: Expected::in_program(program),
        }
    }

    pub(crate) fn is(&self, task: &TaskPlan) -> bool {
        self.nth == task.client && self.owner.thread_id() == task.owner
    }

    pub(crate) async fn act(mut self, steps: Vec<Step>) -> Self {
        for step in steps {
            Box::pin(self.step(step)).await;
            self.look_at_losses();
        }
        self
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Take {
                lock,
                verb,
                lease_ms,
                max_hold_ms,
                until,
            } => {
                Box::pin(self.take(lock, verb, lease_ms, max_hold_ms, until)).await;
            }
            Step::Both { lock, inside_ms } => self.both([lock; 2], inside_ms).await,
            Step::Parts { lock, inside_ms } => self.both([lock, lock + READS], inside_ms).await,
            Step::Unlock { which, until } => {
                if let Some(kept) = self.pick(which) {
                    self.unlock(kept, until).await;
                }
            }
            Step::UnlockLatest { lock, drops } => {
                let Some(nth) = self.guards.iter().rposition(|kept| kept.lock == lock) else {
                    return;
                };
                let kept = self.guards.swap_remove(nth);
                match drops {
                    true => self.let_go(kept),
                    false => self.unlock(kept, Until::Done).await,
                }
            }
            Step::Drop { which } => drop(self.pick(which).map(|kept| self.let_go(kept))),
            Step::Detach { which } => {
                if let Some(Kept { guard, lock, token }) = self.pick(which) {
                    guard.detach();
                    self.has_detached = true;
                    self.detached.push(Kept {
                        guard: (),
                        lock,
                        token,
                    });
                }
            }
            Step::UnlockDetached { lock, until } => self.unlock_detached(lock, until).await,
            Step::Extend {
                which,
                lease_ms,
                until,
            } => self.extend(which, lease_ms, until).await,
            Step::Inspect { lock, what, until } => self.observe(lock, what, until).await,
            Step::Force { lock, until } => self.force(lock, until).await,
            Step::Sleep { ms: time } => tokio::time::sleep(ms(time)).await,
            Step::Poll { lock, times } => {
                for _ in 0..times {
                    let before = self.guards.len();
                    Box::pin(self.take(lock, Verb::Try, None, None, Until::Done)).await;
                    if self.guards.len() > before
                        && let Some(kept) = self.guards.pop()
                    {
                        self.unlock(kept, Until::Done).await;
                    }
                }
            }
            Step::Several(step) => Box::pin(self.several(step)).await,
        }
    }

    async fn extend(&mut self, which: usize, lease_ms: u64, until: Until) {
        let nth = which % self.guards.len().max(1);
        let Some(kept) = self.guards.get(nth) else {
            return;
        };
        let call = self.begins(format!("extend {}", kept.token.field), None, self.limit(1));
        let done = limited(until, kept.guard.extend(ms(lease_ms))).await;
        self.ends(call, &done);
        if let Some(Err(error)) = done
            && !matches!(error, Error::Misuse { .. } | Error::InvalidDuration { .. })
        {
            self.judge(&error, Some(&kept.token));
        }
    }

    async fn observe(&self, nth: usize, observe: Inspect, until: Until) {
        let lock = self.lock(nth);
        let call = self.begins(
            format!("{observe:?} {}", self.shown(nth)),
            None,
            self.limit(1),
        );
        let done = limited(until, async {
            match observe {
                Inspect::HoldCount => lock.hold_count().await.map(|_| ()),
                Inspect::IsLocked => lock.is_locked().await.map(|_| ()),
                Inspect::IsHeld => lock.is_held().await.map(|_| ()),
                Inspect::LeaseLeft => lock.lease_left().await.map(|_| ()),
                Inspect::Inspect => lock.inspect().await.map(|_| ()),
            }
        })
        .await;
        self.ends(call, &done);
        if let Some(Err(error)) = done {
            self.judge(&error, None);
        }
    }

    async fn unlock(&self, kept: Kept, until: Until) {
        let Kept { guard, token, .. } = kept;
        self.world.oracle.begins_to_release(token.hold);
        let call = self.begins(
            format!("unlock {} {until:?}", token.field),
            None,
            self.limit(2),
        );
        let done = limited(until, guard.unlock()).await;
        self.ends(call, &done);
        if let Some(Err(error)) = done {
            self.judge(&error, Some(&token));
        }
    }

    /// Which of several detached holds is released is the client's choice; its status says so.
    async fn unlock_detached(&mut self, nth: usize, until: Until) {
        if !self.detached.iter().any(|kept| kept.lock == nth) {
            return;
        }
        let call = self.begins(
            format!("unlock detached {}", self.shown(nth)),
            None,
            self.limit(2),
        );
        let done = limited(until, self.lock(nth).unlock()).await;
        self.ends(call, &done);
        // Another task of the same owner may have been quicker, and a loss is judged where it
        // happens.
        if let Some(Err(error)) = done
            && !matches!(error, Error::NotHeld { .. })
        {
            self.judge(&error, None);
        }
        self.world.observe();
        self.detached
            .retain(|kept| !self.world.oracle.has_ended(kept.token.hold));
    }

    async fn force(&self, nth: usize, until: Until) {
        self.world.oracle.forcing(self.nth, true);
        let call = self.begins(format!("force_unlock {}", self.shown(nth)), None, None);
        let done = limited(until, self.lock(nth).force_unlock()).await;
        self.ends(call, &done);
        match &done {
            Some(Err(Error::NoAnswer { .. })) if self.expected.no_answer_to_force => {}
            Some(Err(error)) => self.judge(error, None),
            Some(Ok(_)) | None => {}
        }
        if matches!(done, None | Some(Err(Error::NoRuntime))) {
            // Dropped, or without the runtime that would wait: what was handed over takes effect until its limit.
            let (world, nth) = (Arc::clone(&self.world), self.nth);
            let limit = self.expected.command_timeout;
            tokio::spawn(async move {
                tokio::time::sleep(limit).await;
                world.oracle.forcing(nth, false);
            });
        } else {
            self.world.oracle.forcing(self.nth, false);
        }
    }

    /// The end of the program, for this task.
    pub(crate) async fn give_everything_back(mut self) {
        while let Some(kept) = self.guards.pop() {
            self.unlock(kept, Until::Done).await;
        }
        self.give_several_back().await;
        for nth in 0..LOCKS.len() + READS {
            if nth >= READS && self.kinds[nth - READS] != LockKind::Write {
                continue;
            }
            // Lost ones as well: they are remembered until their owner has asked.
            while self.has_detached
                && !matches!(
                    self.lock(nth).unlock().await,
                    Err(Error::NotHeld { .. } | Error::Closed | Error::NoRuntime)
                )
            {}
        }
    }

    fn lock(&self, nth: usize) -> Lock {
        let lock = self.client.lock_of(self.kind(nth), self.name(nth));
        lock.owned_by(&self.owner)
    }

    fn kind(&self, nth: usize) -> LockKind {
        kind_of(self.kinds, nth)
    }

    /// The key of a lock, and which part of it.
    fn shown(&self, nth: usize) -> String {
        let key = key_of(nth);
        match self.kind(nth) {
            kind @ (LockKind::Read | LockKind::Write) => format!("{kind} {key}"),
            _ => key.to_owned(),
        }
    }

    fn name(&self, nth: usize) -> &'static str {
        &key_of(nth)[self.prefix.len()..]
    }

    /// Of its owner, in all locks.
    fn field(&self) -> String {
        test_util::field_of(&self.owner).to_string()
    }

    fn pick(&mut self, which: usize) -> Option<Kept> {
        (!self.guards.is_empty()).then(|| self.guards.swap_remove(which % self.guards.len()))
    }

    fn let_go(&self, kept: Kept) {
        self.world.oracle.count(|counts| counts.drops += 1);
        self.world.oracle.begins_to_release(kept.token.hold);
        self.world
            .oracle
            .say(|| format!("client {} drops {}", self.nth, kept.token.field));
        drop(kept.guard);
    }

    fn token(&self, nth: usize, held: HoldHandle, began: Instant) -> Token {
        let field = test_util::field(&held);
        let hold = self.world.oracle.taken(self.nth, key_of(nth), held, began);
        Token {
            world: Arc::clone(&self.world),
            hold,
            field,
        }
    }

    /// This many command timeouts, and what a busy machine adds.
    fn limit(&self, timeouts: u32) -> Option<Duration> {
        Some(self.expected.command_timeout * timeouts + ms(200))
    }

    fn begins(
        &self,
        what: String,
        waits_for: impl IntoIterator<Item = String>,
        limit: Option<Duration>,
    ) -> u64 {
        self.world
            .oracle
            .call_begins(self.nth, what, waits_for.into_iter().collect(), limit)
    }

    fn ends<T: std::fmt::Debug>(&self, call: u64, done: &Option<T>) {
        if done.is_none() {
            self.world.oracle.count(|counts| counts.drops += 1);
        }
        self.world.oracle.call_ends(call, || match done {
            None => "dropped".to_owned(),
            Some(done) => short(done),
        });
    }

    /// Whether a call that began then has an excuse. A limit that passes before the answer comes leaves the other calls of the
    /// client as ignorant, until it does.
    fn excuses(&self, error: &Error, is_over: bool, locks: &[usize], began: Instant) -> bool {
        let unheard = self.world.unheard();
        let mut keys = locks.iter().map(|nth| key_of(*nth));
        if is_over {
            keys.for_each(|key| unheard.note(self.nth, key));
            return true;
        }
        matches!(error, Error::NoAnswer { .. })
            && keys.any(|key| unheard.excuses(self.nth, key, began))
    }

    /// Every error must have a cause in the program.
    fn judge(&self, error: &Error, hold: Option<&Token>) {
        let justified = match error {
            Error::NoAnswer { .. } => {
                self.world.oracle.count(|counts| counts.ambiguous += 1);
                self.expected.no_answer
            }
            Error::PermissionDenied { .. } => self.expected.denied,
            Error::AlreadyHeld { .. } => self.kinds.contains(&LockKind::String),
            Error::WouldDeadlock { lock } => {
                let (key, owner) = (format!("{}{lock}", self.prefix), self.field());
                self.world.oracle.may_read(self.nth, &key, &owner)
            }
            Error::Refused {
                kind: RefusedKind::ClusterDown,
                ..
            } => self.expected.not_served,
            Error::Closed | Error::NoRuntime => self.expected.closed,
            Error::Lost { reason, .. } => match hold {
                Some(token) => {
                    self.world.oracle.told_lost(token.hold, *reason);
                    true
                }
                // An outer hold was lost, which its own guard was told.
                None => true,
            },
            _ => false,
        };
        if !justified {
            self.world.oracle.violated(format!(
                "client {}: an error without a cause: {error}",
                self.nth
            ));
        }
    }
}

/// Whether so much of the time of a call is over that it makes no other attempt.
fn is_over(began: Instant, ends_within: Option<Duration>) -> bool {
    ends_within.is_some_and(|limit| began.elapsed() + LATE + ms(20) >= limit)
}

/// Polls a future for as long as the plan says. `None`: it was dropped before it was ready.
pub async fn limited<F: Future>(until: Until, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match until {
        Until::Done => Some(future.await),
        Until::Ms(time) => tokio::time::timeout(ms(time), future).await.ok(),
        Until::Kept(time) => {
            let first = std::future::poll_fn(|context| {
                Poll::Ready(match future.as_mut().poll(context) {
                    Poll::Ready(output) => Some(output),
                    Poll::Pending => None,
                })
            });
            if let Some(output) = first.await {
                return Some(output);
            }
            tokio::time::sleep(ms(time)).await;
            tokio::time::timeout(ms(PATIENCE_MS), future).await.ok()
        }
        Until::Polls(polls) => {
            let mut left = polls;
            let polled = std::future::poll_fn(|context| {
                if left == 0 {
                    return Poll::Ready(None);
                }
                left -= 1;
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    // The last poll: the call is not polled again.
                    Poll::Pending if left == 0 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            tokio::time::timeout(ms(PATIENCE_MS), polled)
                .await
                .ok()
                .flatten()
        }
    }
}

fn short<T: std::fmt::Debug>(value: &T) -> String {
    let text = format!("{value:?}");
    let start = text.split(" { ").next().unwrap_or_default();
    if text.starts_with("Err") {
        text.chars().take(SHOWN_MAX).collect()
    } else {
        start.to_owned()
    }
}

/// So much of an error is shown.
const SHOWN_MAX: usize = 200;

/// Nobody waits for longer than this.
const PATIENCE_MS: u64 = 40_000;
