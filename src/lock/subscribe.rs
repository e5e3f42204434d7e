//! The subscription of a call that waits: requested, and confirmed by the server.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::waiter::Waiter;
use crate::core::{OwnerKey, ThreadId};
use crate::entry::Entry;
use crate::error::{Cause, Error, Operation, missing_channel};
use crate::wait::{Hears, Subscription, UNCONFIRMED};

impl Hears for Entry {
    fn note_change(self: Arc<Self>, told: Option<i64>) {
        let told = told.map(|thread| OwnerKey::only(ThreadId(thread)));
        self.step(|core, now, out| core.note_change(now, told, out));
    }
}

/// Subscribes and has it confirmed. `None`: another caller of this client hands the lock over, or has just freed it.
pub(super) async fn subscribe(
    entry: &Arc<Entry>,
    waiter: &Waiter,
) -> Result<Option<Subscription>, Error> {
    let shared = entry.shared();
    let timeout = Instant::now() + shared.command_timeout();
    let subscription = shared.channels.subscribe(&waiter.channel());
    let hearer: Weak<dyn Hears> = Arc::<Entry>::downgrade(entry);
    let told = entry.name.kind().has_queue().then(|| waiter.thread());
    subscription.report_to(&hearer, told);
    tokio::select! {
        biased;
        confirmed = confirmed(entry, &subscription) => confirmed?,
        () = waiter.until_reason() => return Ok(None),
        () = tokio::time::sleep_until(timeout) => return Err(unconfirmed(entry, &subscription)),
    }
    Ok(Some(subscription))
}

/// Waits until the server has confirmed the subscription; fails if it refuses it.
async fn confirmed(entry: &Entry, subscription: &Subscription) -> Result<(), Error> {
    tokio::select! {
        biased;
        confirmed = subscription.confirmed() => {
            confirmed.map_err(|cause| not_subscribed(entry, cause))
        }
        // No task is left to confirm it.
        () = entry.shared().gone.cancelled() => Err(Error::Closed),
    }
}

/// Why it was not confirmed in time.
fn unconfirmed(entry: &Entry, subscription: &Subscription) -> Error {
    match subscription.problem() {
        Some(cause) => not_subscribed(entry, cause),
        None => entry.route().no_answer(Operation::Subscribing, UNCONFIRMED),
    }
}

fn not_subscribed(entry: &Entry, cause: Box<Cause>) -> Error {
    let name = &entry.name;
    let permission = missing_channel(name.channel(), name.kind().has_queue());
    Error::of_connection(Operation::Subscribing, &permission, cause)
}
