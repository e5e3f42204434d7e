//! Background work: brings Redis to the count that is left when a caller went away, gave up, or
//! dropped a guard.
//!
//! At most one job an owner and lock. A job knows no history: every copy it sends is built from the
//! count of that moment, so whatever happens meanwhile is included. It ends when Redis has
//! confirmed the count, or when the lease is over and has done the work.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use crate::entry::{EntryRef, Step};
use crate::error::Error;
use crate::redis::Bulk;
use crate::script::{self, RetryPolicy};
use crate::shared::Totals;

/// Starts a job on the client's runtime. If that runtime is gone, so is the job: the lease frees
/// the lock.
pub(crate) fn start(entry: EntryRef, owner: i64) {
    let runtime = entry.shared.runtime.clone();
    runtime.spawn(run(entry, owner));
}

async fn run(entry: EntryRef, owner: i64) {
    let start = Instant::now();
    let mut pause = PAUSE_MIN;
    let mut tried = false;
    loop {
        let (field, give_up_at) = match entry.releaser_step(owner) {
            Step::Done => return,
            Step::Wait(place) => {
                place.await;
                continue;
            }
            Step::Send { field, lease_max } => (field, start + lease_max),
        };
        let place = entry.shared.redis.place(entry.lane, Bulk::Releases);
        // Behind a lease that is over there is nothing left to free.
        let Ok(place) = tokio::time::timeout_at(give_up_at, place).await else {
            give_up(
                &entry,
                owner,
                &field,
                &Error::no_answer("releasing", "earlier releases have no answer yet"),
            );
            continue;
        };
        let patience = RetryPolicy {
            timeout: entry.shared.config.command_timeout,
            sends: 1,
        };
        let sent = AtomicBool::new(false);
        let mut target = 0;
        let answer = script::call(
            &entry.shared.redis,
            entry.lane,
            "releasing",
            patience,
            &sent,
            || {
                let (count, lease) = entry.release_target(owner);
                target = count;
                script::release(&entry.name, &field, count, lease)
            },
        )
        .await;
        let error = match answer {
            Ok(answer) => {
                entry.released(owner, target, answer.value);
                if tried {
                    Totals::add(&entry.shared.totals.reconciled, 1);
                    tracing::info!(
                        target: "redisson_lock",
                        lock = %entry.name.given(), owner = %field, count = target,
                        "outcome reconciled"
                    );
                }
                continue;
            }
            Err(unanswered) => unanswered.error,
        };
        drop(place);
        tried = true;
        if Instant::now() >= give_up_at || is_final(&error) {
            give_up(&entry, owner, &field, &error);
            continue;
        }
        tokio::time::sleep(pause.min(give_up_at.saturating_duration_since(Instant::now()))).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn give_up(entry: &EntryRef, owner: i64, field: &str, error: &Error) {
    tracing::warn!(
        target: "redisson_lock",
        lock = %entry.name.given(), owner = %field, %error,
        "background release failed: the lease frees the lock"
    );
    entry.abandon(owner);
}

/// Whether trying again cannot help.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. } | Error::NotALock { .. } | Error::Closed | Error::NoRuntime
    )
}

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
