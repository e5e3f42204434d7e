//! How several locks are taken, by the methods of each.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::Instant;

use super::rule::{Gather, Step};
use crate::error::Error;
use crate::hold_handle::HoldState;
use crate::lock::{Lock, LockGuard, Place, Wait};
use crate::runtime::sleep_until;

/// Takes all of them, or none; with a lease none ends before that of the last. Returns them in their order. `None`: not
/// in time.
///
/// Cancel safety: guards that are dropped, here or with this future, are released in the background by their own
/// clients, and so is what an attempt without an answer has left.
pub(super) async fn take(
    members: &[Lock],
    wait: Wait,
    lease: Option<Duration>,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let mut gather = Gather::new(in_one_order(members));
    let mut guards: Vec<Option<LockGuard>> = members.iter().map(|_| None).collect();
    let mut places = Vec::new();
    let (mut pauses, mut impatient) = (None, None);
    let mut failing = vec![Failing::default(); members.len()];
    loop {
        let (nth, taken) = match gather.next() {
            Step::Wait(nth) => {
                let since = failing[nth].since;
                let member = since.map(|since| members[nth].failing_since(since));
                let taken = acquire(member.as_ref().unwrap_or(&members[nth]), wait).await?;
                if taken.is_none() {
                    return Ok(None);
                }
                failing[nth].note_acquired();
                (nth, Ok(taken))
            }
            Step::Queue => {
                let Some(first) = places_in_all(members, wait.deadline()).await? else {
                    return Ok(None);
                };
                places = first;
                gather.queued();
                continue;
            }
            Step::Try(_) if is_over(wait) => return Ok(None),
            Step::Try(nth) => (nth, acquire(&members[nth], Wait::Never).await),
            Step::Done => match settle(&guards, gather.last(), lease).await {
                Ok(()) => return Ok(Some(guards.into_iter().flatten().collect())),
                Err((nth, error)) => (nth, Err(error)),
            },
        };
        match taken {
            Ok(Some(guard)) => {
                guards[nth] = Some(guard);
                gather.taken();
                continue;
            }
            Ok(None) => failing.fill(Failing::default()),
            // It is the next that is waited for; what is lost is taken again.
            Err(error) if passes(&error) => {
                let since = failing[nth].note_failure(&error);
                if !members[nth].failing_since(since).retries(wait) || is_over(wait) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        // Not awaited: a server that does not answer would hold up this call.
        guards.iter_mut().for_each(|guard| *guard = None);
        places.clear();
        if matches!(wait, Wait::Never) {
            return Ok(None);
        }
        let now = Instant::now();
        gather.busy(now);
        // Two callers that go on in the same rhythm would find each other's locks busy for ever. One that has waited for
        // a second pauses shorter than the others.
        let pauses = match gather.is_impatient(now) {
            true => impatient.get_or_insert_with(|| members[nth].short_pauses()),
            false => pauses.get_or_insert_with(|| members[nth].pauses()),
        };
        let again = now + pauses.next();
        pause(&members[nth], again, wait.deadline()).await?;
        if is_over(wait) {
            return Ok(None);
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

/// Since when rounds have failed because of one lock, without one that found a lock busy.
#[derive(Clone, Default)]
struct Failing {
    since: Option<Instant>,
    has_lost: bool,
}

impl Failing {
    fn note_failure(&mut self, error: &Error) -> Instant {
        self.has_lost |= matches!(error, Error::Lost { .. });
        *self.since.get_or_insert_with(Instant::now)
    }

    /// Its server is there again. What is lost in each round is acquired in each round, too.
    fn note_acquired(&mut self) {
        self.since = self.since.filter(|_| self.has_lost);
    }
}

fn passes(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::Lost { .. })
}

async fn pause(member: &Lock, until: Instant, deadline: Option<Instant>) -> Result<(), Error> {
    let limit = deadline.map_or(until, |deadline| deadline.min(until));
    let pausing = async {
        sleep_until(Some(limit)).await;
        Ok(())
    };
    member.on_runtime(pausing).await
}

async fn acquire(member: &Lock, wait: Wait) -> Result<Option<LockGuard>, Error> {
    let taken = member.acquire(wait).await;
    taken.map_err(|error| error.about(member.given_name()))
}

fn is_over(wait: Wait) -> bool {
    wait.deadline()
        .is_some_and(|deadline| deadline <= Instant::now())
}

/// A place in the queue of each lock, when all of them are the first. `None`: they were not in time.
///
/// A place whose turn has come does not ask again before the others have had theirs. Its queue passes over it after a
/// command timeout, and it is back at its place when it asks: the first as soon as the lock is free.
async fn places_in_all(
    members: &[Lock],
    deadline: Option<Instant>,
) -> Result<Option<Vec<Place>>, Error> {
    let places: Result<Vec<_>, _> = members.iter().map(Lock::place).collect();
    let places = places?;
    let queueing = async {
        let mut had_turn = vec![false; places.len()];
        loop {
            places.iter().try_for_each(Place::is_open)?;
            for (place, had_turn) in places.iter().zip(&mut had_turn) {
                *had_turn = *had_turn || place.asks();
            }
            if !had_turn.contains(&false) {
                had_turn = places.iter().map(Place::asks).collect();
            }
            if !had_turn.contains(&false) {
                return Ok(true);
            }
            select_all(places.iter().map(|place| Box::pin(place.woken()))).await;
        }
    };
    let in_time = async {
        tokio::select! {
            biased;
            first = queueing => first,
            () = sleep_until(deadline) => Ok(false),
        }
    };
    let in_time = members[0].on_runtime(in_time).await?;
    Ok(Some(places).filter(|_| in_time))
}

/// Extends the leases of all but the one that was taken last: none ends before it. One that is lost by now is an error.
async fn settle(
    guards: &[Option<LockGuard>],
    last: usize,
    lease: Option<Duration>,
) -> Result<(), (usize, Error)> {
    let held = || {
        let numbered = guards.iter().enumerate();
        numbered.filter_map(|(nth, guard)| Some((nth, guard.as_ref()?)))
    };
    if let Some(lease) = lease {
        let earlier = held().filter(|(nth, _)| *nth != last);
        let extending = earlier.map(|(nth, guard)| async move {
            let extended = guard.extend(lease).await;
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
            return Err((nth, Error::lost(guard.name(), reason)));
        }
    }
    Ok(())
}
