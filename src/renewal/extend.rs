//! `extend`, which asks by hand for what the watchdog asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::core::{
    Effects, Ending, HoldId, LeasePolicy, LockCore, LossReason, RenewalAsk, ThreadId,
    local_deadline,
};
use crate::entry::Entry;
use crate::error::{Error, Operation};
use crate::script::{self, RenewReply, RenewalKey};
use crate::shared::{HoldStatus, check_lease};

/// Moves the end of a fixed lease.
pub(crate) async fn extend(
    entry: &Arc<Entry>,
    owner: ThreadId,
    hold: HoldId,
    status: &HoldStatus,
    lease: Duration,
) -> Result<(), Error> {
    check_lease("lease", lease)?;
    let shared = entry.shared();
    let lost = || match status.ending() {
        Some(Ending::Lost(reason)) => Error::lost(entry.name.given(), reason),
        Some(Ending::Released) | None => Error::lost(entry.name.given(), LossReason::Gone),
    };
    if shared.is_closed() {
        return Err(Error::Closed);
    }
    let found = entry.step(|core, now, out| {
        core.tick(now, out);
        Some((now, core.snapshot(now, owner, hold)?, core.field(owner)?))
    });
    let (now, snapshot, field) = found.ok_or_else(lost)?;
    let LeasePolicy::Fixed { limit, .. } = snapshot.policy else {
        let problem =
            "the watchdog renews this hold; only a hold with a fixed lease can be extended"
                .to_owned();
        return Err(Error::InvalidConfig {
            what: "extend",
            problem,
        });
    };
    if limit.is_some_and(|limit| local_deadline(now, lease) > limit) {
        let problem = "it reaches past the max_hold of this hold";
        return Err(Error::InvalidDuration {
            what: "lease",
            given: lease,
            problem,
        });
    }
    // Before it is sent: a job that releases the lock without an answer has to know of it.
    let extending =
        |core: &mut LockCore, now, out: &mut Effects| core.extending(now, owner, hold, lease, out);
    entry.step(extending).ok_or_else(lost)?;
    let asked = RenewalAsk::Extend(lease);
    let renewal = [RenewalKey {
        key: Arc::clone(entry.name.key()),
        field,
        asked,
    }];
    let call = || Some(script::renew(&renewal));
    let answer = script::call(entry.route(), Operation::Extending, shared.retry(), call).await;
    let answer = answer.map_err(|error| error.error)?;
    let sent_at = shared.clock.time(answer.sent_at);
    let reason = match answer.value.first() {
        Some(RenewReply::Held) => None,
        Some(RenewReply::Taken) => Some(LossReason::Taken),
        Some(RenewReply::Changed) => Some(LossReason::Changed),
        Some(RenewReply::Gone) | None => Some(LossReason::Gone),
    };
    let held = entry.step(|core, now, out| {
        match reason {
            None => core.extended(now, owner, hold, sent_at, lease, out),
            // It may have ended meanwhile, and its owner may have begun another one.
            Some(reason) if core.snapshot(now, owner, hold).is_some() => {
                core.lose_owner(now, owner, None, reason, out);
            }
            Some(_) => {}
        }
        core.snapshot(now, owner, hold).is_some()
    });
    if held { Ok(()) } else { Err(lost()) }
}
