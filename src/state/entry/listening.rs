//! What a client hears of a lock: one subscription for all of its calls, or for those of each owner of a fair lock.

use std::sync::{Arc, Weak};

use redisson_lock_core::input::{MessageArrives, SubscriptionKnown};
use redisson_lock_core::small_map::SmallMap;
use redisson_lock_core::{Listens, OwnerKey, ThreadId, WaiterId};
use tokio::time::Instant;

use super::{CallEnd, Entry, Facts};
use crate::error::{Cause, Error, Operation, missing_channel};
use crate::redis::channels::{ChannelObserver, Subscription};

/// The subscriptions of a lock.
pub(crate) type Listening = SmallMap<OwnerKey, LockListener>;

pub(crate) struct LockListener {
    subscription: Arc<Subscription>,
    /// Of the owner that has the channel, if each has one.
    field: Option<Arc<str>>,
}

impl Entry {
    /// As whose the subscription of an owner is kept.
    fn listener_of(&self, owner: OwnerKey) -> OwnerKey {
        self.audience(owner).unwrap_or(OwnerKey::QUEUE)
    }

    /// Whose calls wait for the subscription of this owner. `None`: all.
    fn audience(&self, owner: OwnerKey) -> Option<OwnerKey> {
        self.name.kind().has_queue().then_some(owner)
    }

    /// Subscribes for the calls of an owner with this field. Not under the mutex: the registry of channels comes before it.
    pub(super) fn subscribe(self: &Arc<Self>, owner: OwnerKey, field: Arc<str>) {
        // One that is there has its confirmation heard by all that wait for it.
        if self.state.lock().listener_for(self, owner).is_some() {
            return;
        }
        let field = Some(field).filter(|_| self.name.kind().has_queue());
        let _unused = self.join(owner, field);
        self.look_at_subscription(owner);
    }

    /// Answers with a subscription that is not needed: a former one, or this one if the calls have left meanwhile.
    fn join(self: &Arc<Self>, owner: OwnerKey, field: Option<Arc<str>>) -> Option<LockListener> {
        let channel = match &field {
            Some(field) => self.name.channel_of(field),
            None => Arc::clone(self.name.channel()),
        };
        let subscription = Arc::new(self.route().subscribe(&channel));
        let observer: Weak<dyn ChannelObserver> = Arc::<Self>::downgrade(self);
        let thread = field.as_ref().map(|_| owner.thread.0);
        subscription.report_to(&observer, thread);
        let joined = LockListener {
            subscription,
            field,
        };
        let mut state = self.state.lock();
        if !state.has_calls(self, owner) {
            return Some(joined);
        }
        let listening = state.listening.get_or_insert_default();
        listening.insert(self.listener_of(owner), joined)
    }

    /// A subscription may have been confirmed, or refused, before it was joined.
    fn look_at_subscription(self: &Arc<Self>, owner: OwnerKey) {
        let Some(subscription) = self.subscription(owner) else {
            return;
        };
        if subscription.is_refused() {
            return self.refused(owner, &subscription);
        }
        // What changes from here on is reported.
        self.step_with(|state, now, out| {
            let calls = state.core.subscribing(self.audience(owner));
            let sent = calls.into_iter().filter_map(|id| {
                let call = state.calls.get(&id)?;
                Some((id, call.attempts(|attempts| attempts.asked_at)?))
            });
            let (unchanged, changed): (Vec<_>, Vec<_>) =
                sent.partition(|(_, sent_at)| subscription.is_unchanged_since(*sent_at));
            let ids = |calls: Vec<(WaiterId, Instant)>| calls.into_iter().map(|(id, _)| id);
            let mut known = |calls, how| {
                let calls = ids(calls).collect();
                state.core.tell(now, SubscriptionKnown { calls, how }, out);
            };
            known(unchanged, Listens::Unchanged);
            if subscription.is_confirmed() {
                known(changed, Listens::Changed);
            }
        });
    }

    /// The calls that wait for this subscription are over. Why is said in this step: the next call may subscribe again.
    fn refused(self: &Arc<Self>, owner: OwnerKey, subscription: &Subscription) {
        self.step_with(|state, now, out| {
            let calls = state.core.subscribing(self.audience(owner));
            for call in calls.iter().filter_map(|id| state.calls.get(id)) {
                call.ends(CallEnd::Failed(self.not_confirmed(subscription.problem())));
            }
            let how = Listens::Refused;
            state.core.tell(now, SubscriptionKnown { calls, how }, out);
        });
    }

    fn subscription(&self, owner: OwnerKey) -> Option<Arc<Subscription>> {
        let listener = self.listener_of(owner);
        let state = self.state.lock();
        let found = state.listening.as_ref()?.get(&listener)?;
        Some(Arc::clone(&found.subscription))
    }

    /// Why the server has not confirmed that the calls of this owner hear of the lock.
    pub(crate) fn not_subscribed(&self, owner: OwnerKey) -> Error {
        let subscription = self.subscription(owner);
        self.not_confirmed(subscription.and_then(|found| found.problem()))
    }

    fn not_confirmed(&self, cause: Option<Box<Cause>>) -> Error {
        let cause = cause.unwrap_or_else(|| self.route().deafness());
        let name = &self.name;
        let permission = missing_channel(name.channel(), name.kind().has_queue());
        Error::of_connection(Operation::Subscribing, &permission, cause)
    }
}

impl Facts {
    /// Whether a call of this owner hears of the lock.
    pub(super) fn listens_for(&self, entry: &Entry, owner: OwnerKey) -> bool {
        let listener = || self.listener_for(entry, owner);
        !entry.name.kind().announces()
            || listener().is_some_and(|found| found.subscription.is_confirmed())
    }

    /// By what a call of this owner hears of the lock, once that is confirmed. Its owner may have got another field, which has a
    /// channel of its own.
    fn listener_for(&self, entry: &Entry, owner: OwnerKey) -> Option<&LockListener> {
        let listening = self.listening.as_ref()?;
        let found = listening.get(&entry.listener_of(owner))?;
        let is_its_own = match (&found.field, self.core.field(owner)) {
            (Some(known), Some(field)) => *known == field,
            _ => true,
        };
        (is_its_own && !found.subscription.is_refused()).then_some(found)
    }

    /// Whether any call needs what this owner hears.
    fn has_calls(&self, entry: &Entry, owner: OwnerKey) -> bool {
        match entry.name.kind().has_queue() {
            true => self.core.has_calls(owner),
            false => !self.calls.is_empty(),
        }
    }

    /// The subscription that no call needs any more.
    pub(super) fn take_unused(&mut self, entry: &Entry, owner: OwnerKey) -> Option<LockListener> {
        self.listening.as_ref()?;
        if self.has_calls(entry, owner) {
            return None;
        }
        let listening = self.listening.as_mut()?;
        let unused = listening.remove(&entry.listener_of(owner));
        self.listening.take_if(|listening| listening.is_empty());
        unused
    }
}

impl ChannelObserver for Entry {
    fn note_change(self: Arc<Self>, next: Option<i64>) {
        let next = next.map(|thread| OwnerKey::only(ThreadId(thread)));
        let owner = next.unwrap_or(OwnerKey::QUEUE);
        let subscription = self.subscription(owner);
        if let Some(refused) = subscription.filter(|found| found.is_refused()) {
            self.refused(owner, &refused);
        }
        self.step(MessageArrives { next });
    }
}
