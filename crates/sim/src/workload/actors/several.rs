//! Several locks as one, by every verb of theirs.

use std::sync::OnceLock;
use std::time::Duration;

use redisson_lock::{Error, LossReason, MemberLoss, MultiGuard, MultiHold, MultiLock, test_util};
use tokio::time::Instant;

use super::{Actor, PATIENCE_MS, Token, is_over, limited, ms};
use crate::workload::program::{LOCKS, Several, Until, Verb};

/// A guard that the task keeps.
pub(super) struct Kept {
    guard: MultiGuard,
    locks: Vec<usize>,
    /// Of each hold.
    tokens: Vec<Token>,
    /// The loss that was named.
    named: Option<MemberLoss>,
}

struct Attempt {
    locks: Vec<usize>,
    lock: MultiLock,
    until: Until,
    /// A lease of 10 ms is over before a slow answer is there.
    too_short: bool,
    ends_within: Option<Duration>,
    began: Instant,
    call: u64,
}

impl Actor {
    pub(super) async fn several(&mut self, step: Several) {
        match step {
            Several::Take {
                locks,
                verb,
                lease_ms,
                until,
            } => self.take_several(locks, verb, lease_ms, until).await,
            Several::Unlock { which, until } => {
                if let Some(kept) = self.pick_several(which) {
                    self.unlock_several(kept, until).await;
                }
            }
            Several::Drop { which } => {
                if let Some(kept) = self.pick_several(which) {
                    self.world.oracle.count(|counts| counts.drops += 1);
                    self.give_up(&kept);
                    drop(kept.guard);
                }
            }
            Several::Extend {
                which,
                lease_ms,
                until,
            } => {
                let nth = which % self.several.len().max(1);
                let Some(kept) = self.several.get(nth) else {
                    return;
                };
                let call = self.begins("extend all".to_owned(), None, self.limit(1));
                let done = limited(until, kept.guard.extend(ms(lease_ms))).await;
                self.ends(call, &done);
                if let Some(Err(error)) = done
                    && !matches!(error, Error::Misuse { .. } | Error::InvalidDuration { .. })
                {
                    self.judge_several(&error, &kept.locks, &kept.tokens);
                }
            }
        }
    }

    async fn take_several(
        &mut self,
        locks: Vec<usize>,
        verb: Verb,
        lease_ms: Option<u64>,
        until: Until,
    ) {
        let members = locks.iter().map(|&nth| self.lock(nth));
        let lock = MultiLock::new(members).expect("different names");
        let lock = lease_ms.map_or_else(|| lock.clone(), |lease| lock.lease(ms(lease)));
        let owner = self.owner.thread_id();
        let what = format!("owner {owner} {verb:?} all of {locks:?} {lease_ms:?} {until:?}");
        let keys: Vec<String> = locks.iter().map(|&nth| LOCKS[nth].to_owned()).collect();
        // Each is tried, and the leases are evened out.
        let tries = self.limit(6 * (u32::try_from(locks.len()).unwrap_or(u32::MAX) + 1));
        let (waits, limit) = match verb {
            Verb::Lock => (true, None),
            _ if verb.is_one_attempt() => (false, tries),
            Verb::TryFor(_) | Verb::TryUntil(_) => (true, verb.ends_within()),
            Verb::Run(_) | Verb::Try => (false, None),
        };
        // No call waits forever here: two tasks may wait for each other.
        let until = match until {
            Until::Done => Until::Ms(PATIENCE_MS),
            until => until,
        };
        let waits_for = if waits { keys.clone() } else { Vec::new() };
        let attempt = Attempt {
            locks,
            lock,
            until,
            too_short: lease_ms == Some(10),
            ends_within: verb.ends_within(),
            began: Instant::now(),
            call: self.begins(what, waits_for, limit),
        };
        let field = test_util::field_of(&self.owner).to_string();
        self.world.oracle.gathers(attempt.call, field, keys);
        match verb {
            Verb::Run(inside_ms) => self.run_several(attempt, inside_ms).await,
            verb => self.take_guard_of_several(attempt, verb).await,
        }
    }

    async fn run_several(&self, attempt: Attempt, inside_ms: u64) {
        let (world, call) = (&self.world, attempt.call);
        let fields = OnceLock::new();
        let body = |held: MultiHold| {
            let tokens = self.tokens(&attempt.locks, &held, attempt.began);
            let _ = fields.set(tokens.iter().map(|token| token.field.clone()).collect());
            async move {
                let _tokens = tokens;
                world.oracle.call_ends(call, || "inside".to_owned());
                tokio::time::sleep(ms(inside_ms)).await;
                Ok(())
            }
        };
        let done = limited(attempt.until, attempt.lock.run(body)).await;
        self.ends(call, &done);
        let Some(Err(error)) = done else { return };
        if attempt.excuses(&error) {
            return;
        }
        let leaves = matches!(
            error,
            Error::Lost {
                reason: LossReason::MaxHold | LossReason::Closed,
                ..
            }
        );
        if leaves {
            let own = || vec![test_util::field_of(&self.owner); attempt.locks.len()];
            let fields: &Vec<_> = fields.get_or_init(own);
            for (&nth, field) in attempt.locks.iter().zip(fields) {
                world.oracle.left_behind(LOCKS[nth], field);
            }
        }
        self.judge_several(&error, &attempt.locks, &[]);
    }

    async fn take_guard_of_several(&mut self, attempt: Attempt, verb: Verb) {
        let lock = &attempt.lock;
        let done = limited(attempt.until, async {
            match verb {
                Verb::TryFor(wait) => lock.try_lock_for(ms(wait)).await,
                Verb::TryUntil(wait) => {
                    let deadline = Instant::now().into_std() + ms(wait);
                    lock.try_lock_until(deadline).await
                }
                Verb::Try => lock.try_lock().await,
                Verb::Lock | Verb::Run(_) => lock.lock().await.map(Some),
            }
        })
        .await;
        self.ends(attempt.call, &done);
        match done {
            Some(Ok(Some(guard))) => {
                let tokens = self.tokens(&attempt.locks, &guard, attempt.began);
                self.several.push(Kept {
                    guard,
                    locks: attempt.locks,
                    tokens,
                    named: None,
                });
            }
            Some(Err(error)) => {
                let is_over = attempt.excuses(&error);
                if !self.excuses(&error, is_over, &attempt.locks, attempt.began) {
                    self.judge_several(&error, &attempt.locks, &[]);
                }
            }
            Some(Ok(None)) | None => {}
        }
    }

    fn tokens(&self, locks: &[usize], held: &MultiHold, began: Instant) -> Vec<Token> {
        self.world.oracle.count(|counts| counts.several += 1);
        let members = locks.iter().zip(held.members());
        members
            .map(|(&nth, hold)| self.token(nth, hold.handle(), began))
            .collect()
    }

    async fn unlock_several(&self, mut kept: Kept, until: Until) {
        self.look_at_loss(&mut kept);
        self.give_up(&kept);
        let call = self.begins(format!("unlock all {until:?}"), None, self.limit(2));
        let done = limited(until, kept.guard.unlock()).await;
        self.ends(call, &done);
        let Some(Err(error)) = done else { return };
        if let (Some(named), Some(lock)) = (&kept.named, error.lock())
            && named.lock != lock
        {
            let text = format!("{} was lost first, and {lock} is named", named.lock);
            self.world.oracle.violated(text);
        }
        self.judge_several(&error, &kept.locks, &kept.tokens);
    }

    pub(super) async fn give_several_back(&mut self) {
        while let Some(kept) = self.several.pop() {
            self.unlock_several(kept, Until::Done).await;
        }
    }

    /// The first loss is named, and stays the one that is named.
    pub(super) fn look_at_losses(&mut self) {
        let mut several = std::mem::take(&mut self.several);
        several.iter_mut().for_each(|kept| self.look_at_loss(kept));
        self.several = several;
    }

    fn look_at_loss(&self, kept: &mut Kept) {
        let found = kept.guard.loss();
        if kept.named.is_some() {
            if found != kept.named {
                let text = format!("{:?} was the loss, now it is {found:?}", kept.named);
                self.world.oracle.violated(text);
            }
            return;
        }
        if let Some(loss) = &found {
            let nth = kept
                .locks
                .iter()
                .position(|&nth| self.name(nth) == loss.lock);
            let holds: Vec<u64> = kept.tokens.iter().map(|token| token.hold).collect();
            match nth {
                Some(nth) => self.world.oracle.named_as_lost(holds[nth], &holds),
                None => self
                    .world
                    .oracle
                    .violated(format!("{loss} of another lock")),
            }
        }
        kept.named = found;
    }

    fn give_up(&self, kept: &Kept) {
        let (oracle, nth) = (&self.world.oracle, self.nth);
        for token in &kept.tokens {
            oracle.begins_to_release(token.hold);
        }
        oracle.say(|| format!("client {nth} gives up {:?}", kept.locks));
    }

    fn pick_several(&mut self, which: usize) -> Option<Kept> {
        let last = self.several.len().checked_sub(1)?;
        let nth = match which {
            usize::MAX => last,
            which => which % (last + 1),
        };
        Some(self.several.remove(nth))
    }

    /// The error says which of the locks it is about.
    fn judge_several(&self, error: &Error, locks: &[usize], tokens: &[Token]) {
        let about = locks
            .iter()
            .position(|&nth| Some(self.name(nth)) == error.lock());
        if about.is_none() && !matches!(error, Error::Closed | Error::NoRuntime) {
            let text = format!("an error of several locks names none of them: {error}");
            self.world.oracle.violated(text);
        }
        self.judge(error, about.and_then(|nth| tokens.get(nth)));
    }
}

impl Attempt {
    fn excuses(&self, error: &Error) -> bool {
        let is_over = is_over(self.began, self.ends_within);
        (self.too_short || is_over) && matches!(error, Error::NoAnswer { .. })
    }
}
