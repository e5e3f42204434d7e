//! A release whose send enters its connection in the step that decides it, and that the task which reads the reply
//! completes: the usual way, which needs no task and no timer of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redisson_lock_core::input::{ReleaseAnswered, ReleaseBegins, ReleaseSent, ReleaseUnwritten};
use redisson_lock_core::{Effects, LockCore, OpId, OwnerKey, ReleaseSend, ReleaseStep, Time};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::{FirstSend, LongWay, call_of, how_to_send, release_answer};
use crate::redis::{Answer, BackgroundClass, Call, Received, RoutedLink};
use crate::script::{Released, SendOutcome};
use crate::state::entry::{Entry, SendWay};

/// Enters a send of a release. It goes the long way if there is no connection now, or too many releases are under way, or it
/// needs more than one command.
pub(in crate::lock) fn enter(
    entry: &Arc<Entry>,
    (core, now, out): (&mut LockCore, Time, &mut Effects),
    owner: OwnerKey,
    op: OpId,
) -> SendWay {
    let (shared, route) = (entry.shared(), entry.route());
    // Its script may ask for more keys.
    if route.is_in_cluster() && entry.name.kind().has_faces() {
        return SendWay::Long;
    }
    let Some(way) = route.now() else {
        return SendWay::Long;
    };
    // Of a call that is dropped, the next step says whether its owner leaves the server's queue too.
    if entry.name.kind().has_queue() && !core.is_awaited(owner) {
        return SendWay::Long;
    }
    let carrier = route.carrier();
    let step = core.tell(now, ReleaseBegins { owner, op, carrier }, out);
    let ReleaseStep::Send {
        field,
        awaited,
        leaves,
        is_first,
    } = &step
    else {
        return SendWay::Nothing;
    };
    shared.tally.release_moves(*is_first);
    if *leaves {
        return SendWay::Long;
    }
    // A release that a caller waits for does not queue with the others.
    let place = match awaited {
        Some(_) => None,
        None => match route.try_bulk(BackgroundClass::Releases) {
            None => return SendWay::Long,
            place => place,
        },
    };
    let may_pass = route.is_fenced() && !shared.cannot_pass.load(Ordering::Relaxed);
    let sent = ReleaseSent {
        owner,
        op,
        may_pass,
    };
    let Some(said) = core.tell(now, sent, out) else {
        return SendWay::Nothing;
    };
    let passes = matches!(said, ReleaseSend::Pass { .. });
    let call = call_of(entry, owner, field, said);
    let sent_at = shared.clock.instant(now);
    let (_, retry) = how_to_send(shared, (*awaited, now), now);
    let limit = retry.limit(sent_at);
    let unflushed = route.enter(way, call, (sent_at, limit), |way, call| {
        let entered = EnteredRelease {
            long_way: LongWay::new(Arc::clone(entry), owner, op),
            step: step.clone(),
            way,
            call,
            sent_at,
            passes,
            place,
        };
        Box::new(|answer| entered.completed(answer))
    });
    let Some(unflushed) = unflushed else {
        core.tell(now, ReleaseUnwritten { owner, op }, out);
        return SendWay::Long;
    };
    SendWay::Short(unflushed)
}

/// A release whose send was entered. Dropped without an answer, it says so to the core, as one on its long way does.
struct EnteredRelease {
    long_way: LongWay,
    step: ReleaseStep,
    way: RoutedLink,
    call: Call<Released>,
    sent_at: Instant,
    passes: bool,
    place: Option<OwnedSemaphorePermit>,
}

impl EnteredRelease {
    /// Called while no mutex of a lock is held.
    fn completed(self, answer: Answer) {
        let Self {
            mut long_way,
            step,
            way,
            call,
            sent_at,
            passes,
            place,
        } = self;
        let entry = Arc::clone(&long_way.entry);
        let outcome = entry.route().outcome(&way, answer);
        drop(place);
        if let Ok(reply) = &outcome
            && let Some(released) = (call.reads.decode)(reply, call.keys.len())
            && !matches!(released, Released::NoToken)
        {
            long_way.open = false;
            let (owner, op) = (long_way.owner, long_way.id);
            entry.latest.reached();
            let answer = release_answer(&entry, &released, sent_at);
            return entry.step(ReleaseAnswered { owner, op, answer });
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
            sent_at,
            passes,
        };
        entry.shared().runtime.spawn(long_way.run(Some(first)));
    }
}
