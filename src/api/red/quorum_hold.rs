//! The holds of one red lock on its servers: requested, counted, and taken again.
//!
//! One task asks the servers and keeps what they grant. A grant that comes while a quorum holds joins it; a later one is released.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use futures_util::future::select_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use redisson_lock_core::LossReason;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::rule::{self, Verdict, Vote};
use crate::base::runtime::{Job, sleep_until};
use crate::error::{Error, HeldBy};
use crate::lock::hold_handle::{HoldHandle, HoldState, Lost};
use crate::lock::{CallStage, Lock, LockGuard, Wait};
use crate::names::try_lock::TryLock;
use crate::names::wire::is_field_of;

pub(super) struct QuorumHold {
    pub(super) servers: usize,
    /// For how long a server is asked again that is held by this client: most likely for a call that has ended, whose
    /// release is on its way.
    own_for: Duration,
    state: Mutex<QuorumHoldState>,
    /// Notified of each answer, and of the end, for the call that waits for a quorum.
    answered: Notify,
    /// Notified when it is taken, and when it has ended, for the job.
    settled: Notify,
    /// Cancelled when the quorum is lost.
    pub(super) lost: CancellationToken,
}

struct QuorumHoldState {
    /// None after the end: what only tells of a hold keeps no client.
    members: Vec<Lock>,
    member_states: Vec<MemberState>,
    /// Its caller has seen the quorum.
    taken: bool,
    /// That of its caller, from then on. The guard of a lost quorum may stay for long, and there is nothing left to keep
    /// others away from.
    turn: Option<OwnedSemaphorePermit>,
    ending: Option<RedEnding>,
    /// Until when a quorum had it, after the end. Before, an instant that has passed.
    valid_until: StdInstant,
    /// When fixed leases, or `max_hold`, end it; nothing is taken again for longer.
    ends: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedEnding {
    Released,
    Lost(LossReason),
}

/// The state of one server.
enum MemberState {
    Asked,
    /// Asked for then.
    Held(LockGuard, Instant),
    Busy(Instant),
    Failed(Error, Instant),
}

impl QuorumHoldState {
    /// A member that was lost counts up to its end: the quorum was over with the last one that it needed.
    fn valid_until(&self, quorum: usize) -> StdInstant {
        let held = self
            .member_states
            .iter()
            .filter_map(|member_state| match member_state {
                MemberState::Held(guard, _) => Some(guard.valid_until()),
                _ => None,
            });
        rule::valid_until(held, quorum).unwrap_or(self.valid_until)
    }
}

impl QuorumHold {
    /// The job asks every server. What they grant is given back unless it is taken within this time, also if its caller is not
    /// polled.
    fn begin(members: &[Lock], member_timeout: Duration, within: Duration) -> (Arc<Self>, Job) {
        let now = Instant::now();
        let quorum_hold = Arc::new(Self {
            servers: members.len(),
            // The answer has to be in time.
            own_for: OWN_FOR.min(member_timeout / 2),
            state: Mutex::new(QuorumHoldState {
                members: members.to_vec(),
                member_states: members.iter().map(|_| MemberState::Asked).collect(),
                taken: false,
                turn: None,
                ending: None,
                valid_until: now.into_std(),
                ends: None,
            }),
            answered: Notify::new(),
            settled: Notify::new(),
            lost: CancellationToken::new(),
        });
        let job = Arc::clone(&quorum_hold).keep(members.to_vec(), now + within);
        (quorum_hold, job)
    }

    pub(super) fn members(&self) -> Vec<Lock> {
        self.state.lock().members.clone()
    }

    fn quorum(&self) -> usize {
        rule::quorum(self.servers)
    }

    /// Keeps what is held. Returns whether that is a quorum still.
    fn take(&self) -> bool {
        if !self.is_open() {
            return false;
        }
        let ends = self.look(|guard| (!guard.is_lost()).then(|| guard.ends()));
        // One without an end ends last.
        let ends = ends.into_iter().flatten();
        let ends = ends.map(|ends| (ends.is_none(), ends));
        let ends = rule::valid_until(ends, self.quorum());
        {
            let mut state = self.state.lock();
            if state.ending.is_some() {
                return false;
            }
            state.taken = true;
            state.ends = ends.and_then(|(_, ends)| ends);
        }
        self.settled.notify_one();
        true
    }

    fn answer(&self, (nth, member_state): (usize, MemberState)) {
        let _late = {
            let mut state = self.state.lock();
            match state.ending {
                None => Some(std::mem::replace(
                    &mut state.member_states[nth],
                    member_state,
                )),
                Some(_) => Some(member_state),
            }
        };
        self.answered.notify_one();
    }

    /// What the servers have answered until `limit`, or as soon as it is decided. `more`: for how long it goes on if too few
    /// have.
    async fn decided(
        &self,
        mut limit: Instant,
        more: impl FnOnce() -> Option<Duration>,
    ) -> Verdict {
        let (mut more, mut turns) = (Some(more), TURNS);
        loop {
            let now = Instant::now();
            let is_over = now >= limit;
            let votes: Vec<Vote> = {
                let state = self.state.lock();
                let vote = |member_state: &MemberState| match member_state {
                    MemberState::Asked if is_over => Vote::Silent,
                    MemberState::Asked => Vote::Open,
                    // It has answered.
                    MemberState::Held(guard, _) if guard.is_lost() => Vote::Busy,
                    MemberState::Held(guard, _) => Vote::Taken(guard.valid_until().into()),
                    MemberState::Busy(_) => Vote::Busy,
                    MemberState::Failed(..) => Vote::Silent,
                };
                state.member_states.iter().map(vote).collect()
            };
            match rule::verdict(&votes, now) {
                Verdict::Undecided => {}
                Verdict::Silent if is_over && turns > 0 => {
                    turns -= 1;
                    tokio::task::yield_now().await;
                    continue;
                }
                Verdict::Silent if is_over => match more.take().and_then(|more| more()) {
                    None => return Verdict::Silent,
                    Some(more) => limit = now + more,
                },
                verdict => return verdict,
            }
            tokio::select! {
                () = self.answered.notified() => {}
                () = tokio::time::sleep_until(limit) => {}
            }
        }
    }

    fn answered_by(&self) -> Answered {
        let has_answered = |member_state: &MemberState| {
            matches!(member_state, MemberState::Held(..) | MemberState::Busy(_))
        };
        self.state
            .lock()
            .member_states
            .iter()
            .map(has_answered)
            .collect()
    }

    /// The errors of the servers that have failed.
    fn errors(&self) -> Vec<Option<Error>> {
        let mut state = self.state.lock();
        let error = |member_state: &mut MemberState| match member_state {
            MemberState::Failed(error, _) => Some(std::mem::replace(error, Error::Closed)),
            _ => None,
        };
        state.member_states.iter_mut().map(error).collect()
    }

    /// A server has extended its fixed lease.
    pub(super) fn extended(&self) {
        let mut state = self.state.lock();
        let valid_until = Instant::from(state.valid_until(self.quorum()));
        state.ends = state.ends.map(|ends| ends.max(valid_until));
    }

    pub(super) fn ending(&self) -> Option<RedEnding> {
        self.state.lock().ending
    }

    /// The states of the holds that there are, each with its end.
    fn look<T>(&self, look: impl Fn(&LockGuard) -> T) -> Vec<T> {
        let state = self.state.lock();
        let held = state
            .member_states
            .iter()
            .filter_map(|member_state| match member_state {
                MemberState::Held(guard, _) => Some(guard),
                _ => None,
            });
        held.map(look).collect()
    }

    /// Until when a quorum has it, or had it.
    pub(super) fn valid_until(&self) -> StdInstant {
        self.state.lock().valid_until(self.quorum())
    }

    /// How many servers have it, and how many of those for sure.
    fn counts(&self) -> (usize, usize, Option<LossReason>) {
        let states = self.look(|guard| guard.state());
        let held = states
            .iter()
            .filter(|state| matches!(state, HoldState::Held));
        let at_risk = states
            .iter()
            .filter(|state| matches!(state, HoldState::AtRisk));
        let reason = states.iter().find_map(|state| match state {
            HoldState::Lost(reason) => Some(*reason),
            _ => None,
        });
        let sure = held.count();
        (sure + at_risk.count(), sure, reason)
    }

    /// How many servers have it now, as far as is known.
    pub(super) fn held(&self) -> usize {
        self.counts().0
    }

    pub(super) fn state(&self) -> HoldState {
        match self.ending() {
            Some(RedEnding::Released) => return HoldState::Released,
            Some(RedEnding::Lost(reason)) => return HoldState::Lost(reason),
            None => {}
        }
        let (held, sure, reason) = self.counts();
        if held < self.quorum() {
            let reason = reason.unwrap_or(LossReason::NotRenewed);
            drop(self.end(RedEnding::Lost(reason)));
            return self.state();
        }
        match sure >= self.quorum() {
            true => HoldState::Held,
            false => HoldState::AtRisk,
        }
    }

    /// Ends it, unless it has ended: what comes later is released. Returns the guards.
    pub(super) fn end(&self, ending: RedEnding) -> Vec<LockGuard> {
        self.end_if(ending, |_| true)
    }

    fn end_if(
        &self,
        ending: RedEnding,
        may_end: impl FnOnce(&QuorumHoldState) -> bool,
    ) -> Vec<LockGuard> {
        // Dropped when the mutex is free: it may have the last handle of a client, and wakes the next caller.
        let (_members, _turn);
        let member_states = {
            let mut state = self.state.lock();
            if state.ending.is_some() || !may_end(&state) {
                return Vec::new();
            }
            let now = Instant::now().into_std();
            state.valid_until = state.valid_until(self.quorum()).min(now);
            state.ending = Some(ending);
            _members = std::mem::take(&mut state.members);
            let is_lost = matches!(ending, RedEnding::Lost(_));
            _turn = state.turn.take_if(|_| is_lost);
            std::mem::take(&mut state.member_states)
        };
        if matches!(ending, RedEnding::Lost(_)) {
            self.lost.cancel();
        }
        self.answered.notify_one();
        self.settled.notify_one();
        let guards = member_states
            .into_iter()
            .filter_map(|member_state| match member_state {
                MemberState::Held(guard, _) => Some(guard),
                _ => None,
            });
        guards.collect()
    }

    /// The next caller of the process has its turn.
    pub(super) fn leave_turn(&self) {
        let _turn = self.state.lock().turn.take();
    }

    pub(super) fn handles(&self) -> Vec<HoldHandle> {
        self.look(|guard| guard.handle())
    }

    /// Asks the members, and takes those again that were lost, busy or silent, while a quorum holds.
    fn keep(self: Arc<Self>, members: Vec<Lock>, limit: Instant) -> Job {
        // If the job ends with its runtime, or never begins, no task looks for a loss any more.
        let keeper = KeepJob(self);
        Box::pin(async move {
            let quorum_hold = &keeper.0;
            let members = members.into_iter().enumerate();
            let ask = |member| ask(member, quorum_hold.own_for);
            let mut asked: FuturesUnordered<_> = members.map(ask).collect();
            let mut settled = pin!(tokio::time::timeout_at(
                limit,
                quorum_hold.settled.notified()
            ));
            loop {
                tokio::select! {
                    biased;
                    settled = &mut settled => {
                        if settled.is_err() {
                            // Its call is not polled.
                            drop(quorum_hold.end_if(RedEnding::Released, |state| !state.taken));
                        }
                        break;
                    }
                    Some(answer) = asked.next() => quorum_hold.answer(answer),
                }
            }
            while quorum_hold.is_open() {
                let (again, losses, due) = quorum_hold.take_again();
                asked.extend(due.into_iter().map(ask));
                let lost = async {
                    match losses.is_empty() {
                        true => std::future::pending().await,
                        false => _ = select_all(losses).await,
                    }
                };
                tokio::select! {
                    biased;
                    () = quorum_hold.settled.notified() => {}
                    () = lost => {}
                    Some(answer) = asked.next() => quorum_hold.answer(answer),
                    () = sleep_until(again) => {}
                }
            }
        })
    }

    fn is_open(&self) -> bool {
        matches!(self.state(), HoldState::Held | HoldState::AtRisk)
    }

    /// Those whose time to be asked again has come, when the next one's comes, and the losses to wait for.
    fn take_again(&self) -> (Option<Instant>, Vec<Lost>, Vec<(usize, Lock)>) {
        let now = Instant::now();
        let (mut again, mut ask, mut losses, mut gone) = (None::<Instant>, vec![], vec![], vec![]);
        {
            let mut state = self.state.lock();
            let is_held = |member_state: &&MemberState| matches!(member_state, MemberState::Held(guard, _) if !guard.is_lost());
            if state.member_states.iter().filter(is_held).count() < self.quorum() {
                // The next look ends it. What is left of it says until when it was valid.
                return (Some(now), vec![], vec![]);
            }
            let left = state.ends.map(|ends| ends.saturating_duration_since(now));
            let may_ask = left.is_none_or(|left| left >= LEASE_LEFT_MIN);
            let QuorumHoldState {
                member_states,
                members,
                ..
            } = &mut *state;
            for (nth, (member_state, member)) in member_states.iter_mut().zip(members).enumerate() {
                let due = match member_state {
                    MemberState::Asked => continue,
                    MemberState::Held(guard, _) if !guard.is_lost() => {
                        losses.push(guard.lost());
                        continue;
                    }
                    MemberState::Held(_, at)
                    | MemberState::Busy(at)
                    | MemberState::Failed(_, at) => *at + AGAIN_AFTER,
                };
                if !may_ask {
                    continue;
                }
                if due > now {
                    again = Some(again.map_or(due, |again| again.min(due)));
                    continue;
                }
                gone.push(std::mem::replace(member_state, MemberState::Asked));
                let bounded = left.map_or_else(|| member.clone(), |left| member.at_most(left));
                ask.push((nth, bounded));
            }
        }
        // When the mutex is free: it may be a guard.
        drop(gone);
        (again, losses, ask)
    }
}

/// Asks one server, for an owner of its own: what an earlier round has left there is never joined, but waited for.
async fn ask((nth, member): (usize, Lock), own_for: Duration) -> (usize, MemberState) {
    let lock = member.of_fresh_owner();
    let (asked_at, mut pauses) = (Instant::now(), member.pauses());
    let limit = asked_at + own_for;
    let is_ours = |holder: &HeldBy| is_field_of(member.client_id(), &holder.owner);
    let failed = |error: Error| MemberState::Failed(error.about(member.name()), Instant::now());
    let member_state = loop {
        let found = lock
            .acquire_or_find(Wait::Never(None), CallStage::GoesOn)
            .await;
        let now = Instant::now();
        match found {
            Ok(TryLock::Acquired(guard)) => break MemberState::Held(guard, asked_at),
            Ok(TryLock::Busy {
                holder: Some(holder),
            }) if now < limit && is_ours(&holder) => {
                tokio::time::sleep_until(limit.min(now + pauses.next())).await;
            }
            Ok(TryLock::Busy { holder: Some(_) }) => break MemberState::Busy(now),
            // Others of this client queue for it. The server was not asked, and may be away.
            Ok(TryLock::Busy { holder: None }) => match member.inspect().await {
                Ok(_) => break MemberState::Busy(Instant::now()),
                Err(error) => break failed(error),
            },
            Err(error) => break failed(error),
        }
    };
    (nth, member_state)
}

/// The job that keeps a hold. Dropped, it reports that the hold is kept no longer.
struct KeepJob(Arc<QuorumHold>);

impl Drop for KeepJob {
    fn drop(&mut self) {
        drop(self.0.end(RedEnding::Lost(LossReason::Closed)));
    }
}

/// A round that is not decided. Dropped, it gives back what it has.
pub(super) struct Round {
    quorum_hold: Arc<QuorumHold>,
    kept: bool,
}

pub(super) enum RoundOutcome {
    Taken,
    Busy,
    TooFew(TooFew),
}

/// Too few servers have answered a round.
pub(super) struct TooFew {
    /// For each server, why it has failed.
    pub(super) errors: Vec<Option<Error>>,
    pub(super) answered: Answered,
}

/// For each server, whether it has answered.
pub(super) type Answered = Vec<bool>;

impl Round {
    /// With the task of it.
    pub(super) fn begin(
        members: &[Lock],
        member_timeout: Duration,
        within: Duration,
    ) -> (Self, Job) {
        let (quorum_hold, job) = QuorumHold::begin(members, member_timeout, within);
        let kept = false;
        (Self { quorum_hold, kept }, job)
    }

    /// Whether a quorum holds it still; then it is not given back for want of a poll.
    pub(super) fn take(&self) -> bool {
        self.quorum_hold.take()
    }

    /// What the answers amount to, and who gave them. Without a quorum all is given back.
    pub(super) async fn found(
        &self,
        limit: Instant,
        more: impl FnOnce() -> Option<Duration>,
    ) -> (RoundOutcome, Answered) {
        let verdict = self.quorum_hold.decided(limit, more).await;
        let answered = self.quorum_hold.answered_by();
        let found = match verdict {
            Verdict::Taken => return (RoundOutcome::Taken, answered),
            Verdict::Busy | Verdict::Undecided => RoundOutcome::Busy,
            Verdict::Silent => RoundOutcome::TooFew(TooFew {
                errors: self.quorum_hold.errors(),
                answered: answered.clone(),
            }),
        };
        // The guards are dropped here: their clients release them in the background.
        drop(self.quorum_hold.end(RedEnding::Released));
        (found, answered)
    }

    /// What is held is kept, and with it the turn of its caller.
    pub(super) fn kept(mut self, turn: OwnedSemaphorePermit) -> Arc<QuorumHold> {
        self.kept = true;
        {
            let mut state = self.quorum_hold.state.lock();
            if state.ending.is_none() {
                state.turn = Some(turn);
            }
        }
        Arc::clone(&self.quorum_hold)
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if !self.kept {
            drop(self.quorum_hold.end(RedEnding::Released));
        }
    }
}

/// How often others have their turn at the end of a round before a server counts as silent: the task that reads what has
/// arrived, and then the one that asks. Both are ready if this process has stood still.
const TURNS: u32 = 3;

/// See `own_for`; at most.
const OWN_FOR: Duration = Duration::from_millis(50);

/// How long a server is left alone that was busy, did not answer, or has lost the lock since it was asked.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// With less of a fixed lease left no server is asked again.
const LEASE_LEFT_MIN: Duration = Duration::from_millis(10);
