//! `extend`, which renews on request what the watchdog renews by itself.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::input::{ExtendBegins, ReplicasAnswer, TimePasses};
use redisson_lock_core::{
    Ending, HoldId, LeasePolicy, LossReason, OwnerKey, RenewalAsk, Time, local_deadline,
};
use tokio::time::Instant;

use crate::error::{Error, Operation};
use crate::script::{self, RenewalKey};
use crate::state::bounds::check_lease;
use crate::state::entry::Entry;
use crate::state::hold_status::HoldStatus;

use super::RenewalCheck;

/// Moves the end of a fixed lease.
pub(crate) async fn extend(
    entry: &Arc<Entry>,
    owner: OwnerKey,
    hold: HoldId,
    status: &HoldStatus,
    lease: Duration,
) -> Result<(), Error> {
    check_lease("lease", lease)?;
    let shared = entry.shared();
    let lost = || match status.ending() {
        Some(Ending::Lost(reason)) => entry.lost(owner, reason),
        Some(Ending::Released) | None => entry.lost(owner, LossReason::Gone),
    };
    if shared.is_closed() {
        return Err(Error::Closed);
    }
    let begun = entry.steps(|core, now, out| {
        core.tell(now, TimePasses {}, out);
        let found = core.snapshot(now, owner, hold)?;
        if let Err(error) = check_policy(found.policy, local_deadline(now, lease), lease) {
            return Some(Err(error));
        }
        // Before it is sent: a release of the lock without an answer has to know of it.
        let begins = ExtendBegins { owner, hold, lease };
        if !core.tell(now, begins, out) {
            return None;
        }
        Some(Ok((core.field(owner)?, found.replicas)))
    });
    let (field, replicas) = begun.ok_or_else(lost)??;
    let asked = RenewalAsk::Extend(lease);
    let renewal = [RenewalKey::new(entry.name_of(owner), &field, asked)];
    let within = || Instant::now() + shared.command_timeout();
    let confirming = Box::pin(RenewalCheck::prepare(entry, replicas, within())).await;
    let call = || Some(script::renew(renewal.iter()));
    let answer = script::call(entry.route(), Operation::Extending, shared.retry(), call).await;
    let answer = answer.map_err(|error| error.error)?;
    let reply = answer.value.first().copied();
    if let Err(reason) = reply.unwrap_or(Err(LossReason::Gone)) {
        entry.lose(owner, hold, reason);
        return Err(lost());
    }
    let acknowledged = confirming.acknowledged(entry, renewal.iter(), answer.sent_at, within());
    let acknowledged = Box::pin(acknowledged).await;
    let leased = (shared.clock.time(answer.sent_at), lease);
    let (extended, held) = entry.steps(|core, now, out| {
        let answered = ReplicasAnswer {
            owner,
            hold,
            leased,
            acknowledged,
        };
        let extended = core.tell(now, answered, out);
        (extended, core.snapshot(now, owner, hold).is_some())
    });
    match (extended, held) {
        (true, _) => Ok(()),
        (false, false) => Err(lost()),
        (false, true) => {
            let source = format!("{acknowledged} of {replicas} replicas have confirmed the lease");
            Err(entry.route().no_answer(Operation::Extending, &source))
        }
    }
}

/// Whether a hold with this policy can be extended to a deadline.
fn check_policy(policy: LeasePolicy, deadline: Time, lease: Duration) -> Result<(), Error> {
    let LeasePolicy::Fixed { limit, .. } = policy else {
        let problem =
            "the watchdog renews this hold; only a hold with a fixed lease can be extended";
        return Err(Error::Misuse { problem });
    };
    if limit.is_some_and(|limit| deadline > limit) {
        let problem = "it reaches past the max_hold of this hold";
        return Err(Error::InvalidDuration {
            what: "lease",
            given: lease,
            problem,
        });
    }
    Ok(())
}
