//! A release whose first send enters its connection in the step that begins it, and that the task which reads the reply
//! completes: the usual way, which needs no task and no timer of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::{FirstSend, ReleaseJob, call_of, how_to_send, release_answer};
use crate::core::{Effects, LockCore, OpId, OwnerKey, ReleaseSend, ReleaseStep, Time};
use crate::redis::{Answer, BackgroundClass, Call, Limit, Received, RoutedLink, Unflushed};
use crate::script::{Released, SendOutcome};
use crate::state::entry::Entry;

/// Enters the first send of a release. `None`: there is no connection now, or too many releases are under way, or it needs
/// more than one command.
pub(super) fn enter(
    entry: &Arc<Entry>,
    (core, now, out): (&mut LockCore, Time, &mut Effects),
    owner: OwnerKey,
    op: OpId,
) -> Option<Unflushed> {
    let (shared, route) = (entry.shared(), entry.route());
    // Its script may ask for more keys.
    if route.is_in_cluster() && entry.name.kind().has_faces() {
        return None;
    }
    let way = route.now()?;
    // Of a call that is dropped, the next step says whether its owner leaves the server's queue too.
    if entry.name.kind().has_queue() && !core.is_awaited(owner) {
        return None;
    }
    let step = core.release_step(now, owner, op, true, out);
    let ReleaseStep::Send {
        field,
        awaited,
        leaves: false,
        ..
    } = &step
    else {
        return None;
    };
    // A release that a caller waits for does not queue with the others.
    let place = match awaited {
        Some(_) => None,
        None => Some(route.try_bulk(BackgroundClass::Releases)?),
    };
    let may_pass = route.is_fenced() && !shared.cannot_pass.load(Ordering::Relaxed);
    let said = core.release_sent(now, owner, op, may_pass, out)?;
    let (passes, count) = match &said {
        ReleaseSend::Count { target, .. } => (false, *target),
        ReleaseSend::Pass { .. } => (true, 0),
    };
    let call = call_of(entry, owner, field, said);
    let (_, retry) = how_to_send(shared, *awaited);
    let sent_at = Instant::now();
    let limit = Limit {
        until: sent_at + retry.timeout,
        silence: retry.timeout / retry.sends,
    };
    let unflushed = route.enter(way, call, (sent_at, limit), |way, call| {
        let entered = EnteredRelease {
            job: ReleaseJob::new(Arc::clone(entry), owner, op),
            step: step.clone(),
            way,
            call,
            sent_at,
            passes,
            count,
            place,
        };
        Box::new(|answer| entered.completed(answer))
    });
    match &unflushed {
        Some(_) => shared.tally.release_begins(),
        None => core.release_unwritten(now, owner, op, out),
    }
    unflushed
}

/// A release whose send was entered. Dropped without an answer, it says so to the core, as its job does.
struct EnteredRelease {
    job: ReleaseJob,
    step: ReleaseStep,
    way: RoutedLink,
    call: Call<Released>,
    sent_at: Instant,
    passes: bool,
    count: u32,
    place: Option<OwnedSemaphorePermit>,
}

impl EnteredRelease {
    /// Called while no mutex of a lock is held.
    fn completed(self, answer: Answer) {
        let Self {
            mut job,
            step,
            way,
            call,
            sent_at,
            passes,
            count,
            place,
        } = self;
        let entry = Arc::clone(&job.entry);
        let outcome = entry.route().outcome(&way, answer);
        drop(place);
        if let Ok(reply) = &outcome
            && let Some(released) = (call.reads.decode)(reply, call.keys.len())
            && !matches!(released, Released::NoToken)
        {
            job.open = false;
            let (owner, op) = (job.owner, job.id);
            entry.latest.reached();
            let answer = release_answer(&entry, &released, sent_at);
            return entry.step(|core, now, out| {
                if core.release_answered(now, owner, op, answer, out) {
                    // Others have joined.
                    out.jobs.push((owner, op));
                }
            });
        }
        let outcome = outcome.map(|reply| Received {
            reply,
            sent_at,
            way,
        });
        let sent = SendOutcome { call, outcome };
        let first = FirstSend {
            step,
            sent,
            passes,
            count,
        };
        entry.shared().runtime.spawn(job.run(Some(first)));
    }
}
