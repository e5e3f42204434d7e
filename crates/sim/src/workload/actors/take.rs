//! Taking a lock, by every verb.

use std::sync::OnceLock;
use std::time::Duration;

use redisson_lock::{Error, HoldHandle, Lock, LockGuard, LockKind, LossReason, test_util};
use tokio::time::Instant;

use super::{Actor, Kept, PATIENCE_MS, is_over, limited, ms};
use crate::workload::program::{READS, Until, Verb, key_of};

/// A call that takes the lock.
struct Attempt {
    /// Which lock.
    nth: usize,
    lock: Lock,
    /// A lease of 10 ms is over before a slow answer is there.
    too_short: bool,
    ends_within: Option<Duration>,
    until: Until,
    began: Instant,
    call: u64,
}

impl Actor {
    pub(super) async fn take(
        &mut self,
        nth: usize,
        verb: Verb,
        lease_ms: Option<u64>,
        max_hold_ms: Option<u64>,
        until: Until,
    ) {
        let lock = self.lock(nth);
        let lock = lease_ms.map_or_else(|| lock.clone(), |lease| lock.lease(ms(lease)));
        let lock = max_hold_ms.map_or_else(|| lock.clone(), |limit| lock.max_hold(ms(limit)));
        let began = Instant::now();
        let reenters = self.holds(nth) || self.holds_other_part(nth);
        let (owner, name) = (self.owner.thread_id(), self.shown(nth));
        let what = format!("owner {owner} {verb:?} {name} {lease_ms:?} {max_hold_ms:?} {until:?}");
        let (waits, limit) = match verb {
            // A re-entry waits for no other owner, nor does a read inside of a write, and a write inside of a read is refused.
            // It waits for the operations of its own one, one after the other: other tasks may have it too, with two
            // branches each.
            Verb::Lock if reenters => (false, self.limit(6)),
            Verb::Lock => (true, None),
            // Without a fence an attempt begins again once, after a reconnect, and waits for what undoes the first.
            _ if verb.is_one_attempt() && !self.may_kill => (false, self.limit(6)),
            _ if verb.is_one_attempt() => (false, self.limit(4)),
            Verb::TryFor(_) | Verb::TryUntil(_) => (true, verb.ends_within()),
            Verb::Run(_) | Verb::Try => (false, None),
        };
        // No call waits forever here: two tasks may wait for each other.
        let until = if until == Until::Done {
            Until::Ms(PATIENCE_MS)
        } else {
            until
        };
        let queues = !verb.is_one_attempt();
        let call = self.begins(what, waits.then(|| key_of(nth).to_owned()), limit);
        let too_short = lease_ms == Some(10);
        if queues {
            self.wants(call, nth);
        }
        if too_short {
            self.world.oracle.too_short(call);
        }
        let attempt = Attempt {
            nth,
            lock,
            too_short,
            ends_within: verb.ends_within(),
            until,
            began,
            call,
        };
        match verb {
            Verb::Run(inside_ms) => self.run(attempt, inside_ms).await,
            verb => self.take_guard(attempt, verb).await,
        }
    }

    async fn run(&self, attempt: Attempt, inside_ms: u64) {
        let (world, call) = (&self.world, attempt.call);
        let field = OnceLock::new();
        let body = |held: HoldHandle| {
            let _ = field.set(test_util::field(&held));
            let token = self.token(attempt.nth, held, attempt.began);
            async move {
                let _token = token;
                tokio::time::sleep(ms(inside_ms)).await;
                world.oracle.call_ends(call, || "inside".to_owned());
                Ok(())
            }
        };
        let done = limited(attempt.until, attempt.lock.run(body)).await;
        self.ends(call, &done);
        let Some(Err(error)) = done else { return };
        if attempt.excuses(&error) {
            return;
        }
        if matches!(
            error,
            Error::Lost {
                reason: LossReason::MaxHold | LossReason::Closed,
                ..
            }
        ) {
            let own = || match self.kind(attempt.nth) {
                LockKind::Write => format!("{}:write", self.field()).into(),
                _ => test_util::field_of(&self.owner),
            };
            let field = field.get_or_init(own);
            self.world.oracle.left_behind(key_of(attempt.nth), field);
        }
        self.judge(&error, None);
    }

    async fn take_guard(&mut self, attempt: Attempt, verb: Verb) {
        let lock = &attempt.lock;
        let done = limited(attempt.until, async {
            match verb {
                Verb::TryFor(wait) => lock.try_lock_for(ms(wait)).await,
                Verb::TryUntil(wait) => {
                    lock.try_lock_until(Instant::now().into_std() + ms(wait))
                        .await
                }
                Verb::Try => lock.try_lock().await,
                Verb::Lock | Verb::Run(_) => lock.lock().await.map(Some),
            }
        })
        .await;
        self.ends(attempt.call, &done);
        match done {
            Some(Ok(Some(guard))) => self.keep(attempt.nth, guard, attempt.began),
            Some(Err(error)) => {
                let is_over = attempt.excuses(&error);
                if !self.excuses(&error, is_over, &[attempt.nth], attempt.began) {
                    self.judge(&error, None);
                }
            }
            Some(Ok(None)) | None => {}
        }
    }

    /// Its owner may have a place in the queue of a fair lock until the call ends, and wants one part of a read-write lock.
    fn wants(&self, call: u64, nth: usize) {
        let (oracle, key) = (&self.world.oracle, key_of(nth));
        match self.kind(nth) {
            LockKind::Fair => oracle.queues(call, key, self.field()),
            kind @ (LockKind::Read | LockKind::Write) => {
                oracle.wants(call, key, self.field(), kind == LockKind::Read);
            }
            _ => {}
        }
    }

    fn holds(&self, nth: usize) -> bool {
        let mut guards = self.guards.iter().filter(|kept| kept.lock == nth);
        guards.any(|kept| !test_util::has_ended(&kept.guard))
    }

    fn holds_other_part(&self, nth: usize) -> bool {
        match self.kind(nth) {
            LockKind::Read => self.holds(nth - READS),
            LockKind::Write => self.holds(nth + READS),
            _ => false,
        }
    }

    fn keep(&mut self, nth: usize, guard: LockGuard, began: Instant) {
        let token = self.token(nth, guard.handle(), began);
        self.guards.push(Kept {
            guard,
            lock: nth,
            token,
        });
    }

    /// Two branches of one task: they are one owner, and re-enter.
    pub(super) async fn both(&self, [first, second]: [usize; 2], inside_ms: u64) {
        let section = |nth: usize| async move {
            let began = Instant::now();
            let lock = self.client.lock_of(self.kind(nth), self.name(nth));
            let owner = self.owner.thread_id();
            let what = format!("owner {owner} branch at {}", self.shown(nth));
            let call = self.begins(what, None, None);
            self.wants(call, nth);
            let taken = tokio::time::timeout(ms(PATIENCE_MS), lock.lock()).await;
            self.world.oracle.call_ends(call, || format!("{taken:?}"));
            match taken {
                Ok(Ok(guard)) => {
                    let token = self.token(nth, guard.handle(), began);
                    tokio::time::sleep(ms(inside_ms)).await;
                    self.unlock(
                        Kept {
                            guard,
                            lock: nth,
                            token,
                        },
                        Until::Done,
                    )
                    .await;
                }
                Ok(Err(error)) => self.judge(&error, None),
                Err(_) => {}
            }
        };
        let both = async { tokio::join!(Box::pin(section(first)), Box::pin(section(second))) };
        self.owner.scope(both).await;
    }
}

impl Attempt {
    fn excuses(&self, error: &Error) -> bool {
        let is_over = is_over(self.began, self.ends_within);
        (self.too_short || is_over) && matches!(error, Error::NoAnswer { .. })
    }
}
