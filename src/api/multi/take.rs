//! How several locks are taken, by the methods of each.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::rule::{Gather, Step};
use crate::base::backoff::Backoff;
use crate::base::runtime::{by_deadline, sleep_until};
use crate::error::{Error, Operation};
use crate::lock::hold_handle::HoldState;
use crate::lock::{CallStage, Lock, LockGuard, MemberPlace, NOT_IN_TIME, Wait};

/// Takes all of them, or none; with a lease none ends before that of the last. Returns them in their order. `None`: not
/// in time, and the latest round has found one of them busy.
///
/// Cancel safety: guards that are dropped, here or with this future, are released in the background by their own
/// clients, and so is what an attempt without an answer has left.
pub(super) async fn take(
    members: &[Lock],
    wait: Wait,
    lease: Option<Duration>,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let call = (members, wait, Instant::now());
    let answered_by = wait.answered_by(call.2);
    let mut gather = Gather::new(in_one_order(members));
    let mut guards: Vec<Option<LockGuard>> = members.iter().map(|_| None).collect();
    let (mut places, mut pauses, mut latest) = (Vec::new(), Pauses::default(), Latest::Nothing);
    let mut heard = vec![Heard::default(); members.len()];
    loop {
        let (nth, found) = match gather.next() {
            Step::Wait(nth) => {
                match acquire_first(&members[nth], wait, &mut heard[nth], &latest).await? {
                    MemberFound::Busy { .. } => return Ok(None),
                    found => (nth, Ok(found)),
                }
            }
            Step::Queue => {
                match places_in_all(call, gather.is_impatient(Instant::now())).await? {
                    QueueWait::First(first) => places = first,
                    QueueWait::Late => return latest.not_in_time(call, &heard, None),
                    QueueWait::Silent(nth, error) => {
                        latest = heard[nth].fails(&members[nth], wait, error)?;
                    }
                }
                gather.queued();
                continue;
            }
            Step::Try(nth) if is_over(answered_by) => {
                return latest.not_in_time(call, &heard, Some(nth));
            }
            Step::Try(nth) => {
                let once = Wait::Never(answered_by);
                let how = (once, latest.stage(wait, &heard[nth]));
                (nth, acquire(&members[nth], how, &mut heard[nth]).await)
            }
            Step::Done => match settle(&guards, gather.last(), lease, answered_by).await {
                Ok(()) => return Ok(Some(guards.into_iter().flatten().collect())),
                Err((nth, error)) => (nth, Err(error)),
            },
        };
        let is_local = match found {
            Ok(MemberFound::Taken(guard)) => {
                guards[nth] = Some(guard);
                gather.taken();
                continue;
            }
            Ok(MemberFound::Busy { is_answer }) => {
                latest = note_busy(&mut heard, nth, is_answer);
                members[nth].is_contended()?
            }
            // It is the next that is waited for; what is lost is taken again.
            Err(error) => {
                latest = heard[nth].fails(&members[nth], wait, error)?;
                false
            }
        };
        // Not awaited: a server that does not answer would hold up this call.
        guards.iter_mut().for_each(|guard| *guard = None);
        places.clear();
        if matches!(wait, Wait::Never(_)) {
            return Ok(None);
        }
        let now = Instant::now();
        gather.busy(now, is_local);
        let again = now + pauses.next(&members[nth], gather.is_impatient(now));
        pause(&members[nth], again, wait.deadline()).await?;
        if is_over(wait.deadline()) {
            return latest.not_in_time(call, &heard, None);
        }
    }
}

/// The outcome of an attempt at one lock.
#[allow(
    clippy::large_enum_variant,
    reason = "it is taken apart immediately; its size depends on features"
)]
enum MemberFound {
    Taken(LockGuard),
    /// `is_answer`: its server has answered meanwhile. Otherwise only owners of its client are known to be in the way.
    Busy {
        is_answer: bool,
    },
}

/// How the latest round has ended.
enum Latest {
    Nothing,
    /// This one was, at the server or in the queue of its client.
    Busy(usize),
    Failed(Error),
}

impl Latest {
    /// The stage of the next attempt of a call that waits so, at a lock of which it has heard this.
    fn stage(&self, wait: Wait, heard: &Heard) -> CallStage {
        match (wait, self) {
            (Wait::Forever | Wait::Standby, _) => CallStage::GoesOn,
            (_, Self::Busy(_)) if heard.has_answered => CallStage::AfterBusy,
            _ => CallStage::Only,
        }
    }

    /// What a call that waits so since then answers when there is no time left; `next` is the lock that it would have tried.
    fn not_in_time<T>(
        self,
        (members, wait, began): (&[Lock], Wait, Instant),
        heard: &[Heard],
        next: Option<usize>,
    ) -> Result<Option<T>, Error> {
        match self {
            Self::Nothing => Err(members[next.unwrap_or(0)].not_in_time()),
            // The server of either may have said nothing since, or never.
            Self::Busy(busy) => {
                let unknown = |nth: usize| {
                    let has_answered = heard[nth].has_answered;
                    members[nth].not_known_busy(wait, began, has_answered)
                };
                let unknown = unknown(busy).or_else(|| next.and_then(unknown));
                unknown.map_or(Ok(None), Err)
            }
            Self::Failed(error) => Err(error),
        }
    }
}

/// The order in which all calls take these locks, whatever order they were given in: those of one client then queue for the
/// same lock first, and each finds the others free behind it.
fn in_one_order(members: &[Lock]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|nth| members[*nth].key());
    order
}

/// The answers that a call has had about one lock.
#[derive(Clone, Default)]
struct Heard {
    /// Since when rounds have failed because of it, without an answer about it.
    failing_since: Option<Instant>,
    has_lost: bool,
    /// Its server has answered, and nothing has failed since.
    has_answered: bool,
}

impl Heard {
    /// `Err`: the error does not pass, or there is no time left.
    fn fails(&mut self, member: &Lock, wait: Wait, error: Error) -> Result<Latest, Error> {
        if !passes(&error) {
            return Err(error);
        }
        self.has_answered = false;
        self.has_lost |= matches!(error, Error::Lost { .. });
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        match member.failing_since(since).retries(wait) && !is_over(wait.deadline()) {
            true => Ok(Latest::Failed(error)),
            false => Err(error),
        }
    }

    /// Its server is there again. What is lost in each round is acquired in each round, too.
    fn note_acquired(&mut self) {
        self.has_answered = true;
        self.failing_since = self.failing_since.filter(|_| self.has_lost);
    }
}

/// This lock is busy. What its server has not said is no answer, and none of the other servers: only what was lost, and
/// not what was silent, is forgotten after a round that finds a lock busy.
fn note_busy(heard: &mut [Heard], nth: usize, is_answer: bool) -> Latest {
    if !is_answer {
        return Latest::Busy(nth);
    }
    for heard in heard.iter_mut().filter(|heard| heard.has_lost) {
        (heard.failing_since, heard.has_lost) = (None, false);
    }
    heard[nth] = Heard {
        has_answered: true,
        ..Heard::default()
    };
    Latest::Busy(nth)
}

fn passes(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::Lost { .. })
}

/// Those between rounds. Two callers that go on in the same rhythm would find each other's locks busy for ever.
#[derive(Default)]
struct Pauses {
    usual: Option<Backoff>,
    /// Of a call that has waited for a second: shorter than those of the others.
    short: Option<Backoff>,
}

impl Pauses {
    fn next(&mut self, member: &Lock, is_impatient: bool) -> Duration {
        let pauses = match is_impatient {
            true => self.short.get_or_insert_with(|| member.short_pauses()),
            false => self.usual.get_or_insert_with(|| member.pauses()),
        };
        pauses.next()
    }
}

async fn pause(member: &Lock, until: Instant, deadline: Option<Instant>) -> Result<(), Error> {
    let limit = deadline.map_or(until, |deadline| deadline.min(until));
    let pausing = async {
        sleep_until(Some(limit)).await;
        Ok(())
    };
    member.on_runtime(pausing).await
}

/// The one that is waited for.
async fn acquire_first(
    member: &Lock,
    wait: Wait,
    heard: &mut Heard,
    latest: &Latest,
) -> Result<MemberFound, Error> {
    let since = heard.failing_since;
    let since = since.map(|since| member.failing_since(since));
    let how = (wait, latest.stage(wait, heard));
    acquire(since.as_ref().unwrap_or(member), how, heard).await
}

async fn acquire(
    member: &Lock,
    (wait, stage): (Wait, CallStage),
    heard: &mut Heard,
) -> Result<MemberFound, Error> {
    let found = member.acquire_and_look(wait, stage).await;
    let (taken, is_answer) = found.map_err(|error| error.about(member.name()))?;
    let Some(guard) = taken else {
        return Ok(MemberFound::Busy { is_answer });
    };
    heard.note_acquired();
    Ok(MemberFound::Taken(guard))
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// How a wait in the queues has ended.
enum QueueWait {
    /// All places are the first.
    First(Vec<MemberPlace>),
    Late,
    /// The server of this lock does not answer.
    Silent(usize, Error),
}

/// A place in the queue of each lock that is contended in its client, or of all, when all of them are the first.
///
/// The places of a call are taken together: of two calls that meet in several queues, one is before the other in all.
///
/// A place whose turn has come does not ask again before the others have had theirs. Its queue passes over it after a
/// command timeout, and it is back at its place when it asks: the first as soon as the lock is free.
async fn places_in_all(
    (members, wait, began): (&[Lock], Wait, Instant),
    in_all: bool,
) -> Result<QueueWait, Error> {
    let mut places = Vec::new();
    {
        // Only for a moment, because a waker that is called meanwhile may come here itself, or take its time.
        let _placing = PLACING.try_lock_for(PLACING_MAX);
        for member in members {
            if in_all || member.is_contended()? {
                places.push(member.place()?);
            }
        }
    }
    let queueing = async {
        let mut had_turn = vec![false; places.len()];
        loop {
            places.iter().try_for_each(MemberPlace::is_open)?;
            for (place, had_turn) in places.iter().zip(&mut had_turn) {
                *had_turn = *had_turn || place.poll_turn();
            }
            if !had_turn.contains(&false) {
                had_turn = places.iter().map(MemberPlace::poll_turn).collect();
            }
            if !had_turn.contains(&false) {
                return Ok(None);
            }
            select_all(places.iter().map(|place| Box::pin(place.woken()))).await;
        }
    };
    let silence = async {
        let silence = members.iter().map(|member| Box::pin(member.silence()));
        let (error, nth, _) = select_all(silence).await;
        Ok(Some(QueueWait::Silent(nth, error)))
    };
    let late = async {
        sleep_until(wait.deadline()).await;
        let more = members.iter().filter_map(|it| it.catches_up(wait, began));
        if let Some(more) = more.max() {
            tokio::time::sleep(more).await;
        }
    };
    let queued = async {
        tokio::select! {
            biased;
            first = queueing => first,
            () = late => Ok(Some(QueueWait::Late)),
            silent = silence, if matches!(wait, Wait::Forever) => silent,
        }
    };
    let queued = members[0].on_runtime(queued).await?;
    Ok(queued.unwrap_or(QueueWait::First(places)))
}

/// Extends the leases of all but the one that was taken last: none ends before it. One that is lost by now is an error.
async fn settle(
    guards: &[Option<LockGuard>],
    last: usize,
    lease: Option<Duration>,
    deadline: Option<Instant>,
) -> Result<(), (usize, Error)> {
    let held = || {
        let numbered = guards.iter().enumerate();
        numbered.filter_map(|(nth, guard)| Some((nth, guard.as_ref()?)))
    };
    if let Some(lease) = lease {
        let earlier = held().filter(|(nth, _)| *nth != last);
        let extending = earlier.map(|(nth, guard)| async move {
            let extending = pin!(guard.extend(lease));
            let extended = by_deadline(deadline, extending).await;
            // As with each other error here, nothing stays held.
            let late = || {
                guard
                    .entry
                    .route()
                    .no_answer(Operation::Acquiring, NOT_IN_TIME)
            };
            let extended = extended.and_then(|in_time| in_time.ok_or_else(late));
            (
                nth,
                extended.map_err(|error| error.about(guard.entry.name.given())),
            )
        });
        let extending = join_all(extending);
        for (nth, extended) in pin!(extending).await {
            match extended {
                // Its `max_hold` comes before that.
                Ok(()) | Err(Error::InvalidDuration { .. }) => {}
                Err(error) => return Err((nth, error)),
            }
        }
    }
    for (nth, guard) in held() {
        if let HoldState::Lost(reason) = guard.state() {
            return Err((nth, guard.lost_by(reason)));
        }
    }
    Ok(())
}

/// Locked while the places of a call are taken.
static PLACING: Mutex<()> = Mutex::new(());

const PLACING_MAX: Duration = Duration::from_millis(1);
