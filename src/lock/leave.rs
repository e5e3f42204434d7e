//! Owners that leave the queue of a fair lock together. Each call reads the whole queue, so one call for each of a
//! thousand owners that are dropped or closed would keep the server busy for a second.

use std::sync::Arc;

use redisson_lock_core::input::ReleaseSent;
use redisson_lock_core::{LossReason, OpId, OwnerKey, ReleaseAnswer, ReleaseSend};
use tokio::sync::oneshot;

use crate::error::Operation;
use crate::redis::BackgroundClass;
use crate::script::{self, CallError, Released};
use crate::state::entry::{Entry, Leaver};

/// Takes an owner that holds nothing out of the queue, in one call with the others of this lock that leave. `None`: it
/// is not to leave any more, or the task that sends has ended with its runtime: its release is sent by itself.
///
/// Cancel safety: the task that sends goes on.
pub(super) async fn leave(
    entry: &Arc<Entry>,
    owner: OwnerKey,
    op: OpId,
) -> Option<Result<ReleaseAnswer, CallError>> {
    let (answer, answered) = oneshot::channel();
    let leaver = Leaver { owner, op, answer };
    if let Some(mut sending) = entry.join_leavers(leaver) {
        // Not this owner's task: it would send for others for as long as some leave.
        entry.shared().runtime.spawn(async move {
            loop {
                let entry = Arc::clone(sending.entry());
                let permit = entry.route().bulk(BackgroundClass::Releases).await;
                let Some(leavers) = sending.take(LEAVERS_MAX) else {
                    break;
                };
                send(&entry, leavers).await;
                drop(permit);
            }
        });
    }
    let left = answered.await.ok()?.transpose()?;
    Some(left.map_err(|(error, maybe_executed)| CallError {
        error,
        maybe_executed,
    }))
}

/// One call. Each send says what its moment has: an owner for which a call queues again stays.
async fn send(entry: &Arc<Entry>, leavers: Vec<Leaver>) {
    let shared = entry.shared();
    let (mut places, mut leaving) = (Vec::new(), Vec::new());
    let call = || {
        (places, leaving) = (Vec::new(), Vec::new());
        for (nth, leaver) in leavers.iter().enumerate() {
            let Leaver { owner, op, .. } = *leaver;
            let may_pass = false;
            let said = entry.steps(|core, now, out| {
                let field = core.field(owner)?;
                let says = ReleaseSent {
                    owner,
                    op,
                    may_pass,
                };
                let said = core.tell(now, says, out)?;
                Some((field, said))
            });
            if let Some((
                field,
                ReleaseSend::Count {
                    target: 0,
                    leaves: Some(wait),
                    ..
                },
            )) = said
            {
                places.push((field, wait));
                leaving.push(nth);
            }
        }
        let announce = shared.redis.announce();
        (!places.is_empty()).then(|| script::leave(&entry.name, &places, announce))
    };
    let (doing, retry) = (Operation::Releasing, shared.no_retry());
    let answer = script::call(entry.route(), doing, retry, call).await;
    let mut leaving = leaving.into_iter().enumerate().peekable();
    for (nth, leaver) in leavers.into_iter().enumerate() {
        let at = leaving.next_if(|(_, leaving)| *leaving == nth);
        let left = match (&answer, at) {
            (_, None) => Ok(None),
            (Ok(answer), Some((at, _))) => {
                let sent_at = shared.clock.time(answer.sent_at);
                let released = answer.value.get(at);
                Ok(released.map(|released| ReleaseAnswer {
                    gone: match released {
                        Released::Done { .. } => None,
                        Released::Gone => Some(LossReason::Gone),
                        _ => Some(LossReason::Taken),
                    },
                    sent_at,
                    others_listen: true,
                    token: None,
                }))
            }
            (Err(failed), Some(_)) => Err((
                failed.error.for_another_caller(doing),
                failed.maybe_executed,
            )),
        };
        // Its task may be gone, with its runtime.
        let _ = leaver.answer.send(left);
    }
}

/// How many owners leave in one call: the server does nothing else during it.
const LEAVERS_MAX: usize = 200;
