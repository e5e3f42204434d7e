//! One lock of a client: the core under its mutex, and what its effects are applied to.
//!
//! Every change goes through [`Entry::step`] and its like. Under the mutex it reads the clock, runs a step
//! of the core, and writes down the facts: which holds have ended, and the client's tally. Everything else a
//! step asks for is done when the mutex is free: wakers are called, tasks spawned, events logged. That
//! code is not all ours. It may call back into this client, and it may panic.
//!
//! The table has weak references. An entry exists while a call or a guard refers to it, and keeps
//! itself while its core remembers an owner: a detached hold or a release needs no other reference.

mod attempts;
mod calls;
mod latest;
mod leavers;
mod listening;
mod unlocks;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use redisson_lock_core::input::{Happens, LifeChanges, OwnerLost, ReportArrives};
use redisson_lock_core::small_map::SmallMap;
use redisson_lock_core::{
    Counts, Discipline, Effects, Event, Face, HoldId, Life, LockCore, LossReason, OpId, OwnerKey,
    Time, Unlocked, WaiterId,
};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::base::runtime::{HasMutex, event, isolated};
use crate::base::table::Table;
use crate::base::timers::{Timed, TimerPlace, Timers};
use crate::error::Error;
use crate::names::wire::{ByKey, LockName};
use crate::redis::{Route, Unflushed, slot_of};
use crate::state::hold_status::HoldStatus;
use crate::state::measure;
use crate::state::shared::Shared;

pub(crate) use attempts::{Attempts, CallEnd, CallFinds, ReplicaLink, WaitingCall};
pub(crate) use calls::AfterAttempt;
pub(crate) use latest::LatestAnswer;
pub(crate) use leavers::{Leaver, Sending};
pub(crate) use listening::Listening;
pub(crate) use unlocks::{BegunUnlock, CallOf, SendWay, Sends};

/// All locks of a client.
pub(crate) struct Locks {
    pub(crate) shared: Arc<Shared>,
    pub(crate) timers: Timers<Entry>,
    pub(crate) table: Table<Entry, ByKey>,
    /// Owners that leave the queue of a fair lock, by lock, while a task sends for all.
    leavers: Mutex<BTreeMap<usize, Vec<Leaver>>>,
    sends: Sends,
}

impl Locks {
    pub(crate) fn new(shared: Arc<Shared>, sends: Sends) -> Self {
        Self {
            shared,
            timers: Timers::new(),
            table: Table::default(),
            leavers: Mutex::default(),
            sends,
        }
    }

    /// The entry of a lock, made if there is none. Fails while the name is in use as another kind of lock.
    pub(crate) fn get(self: &Arc<Self>, name: &Arc<LockName>) -> Result<Arc<Entry>, Error> {
        let entry = self.table.get_or_insert_with(ByKey(Arc::clone(name)), || {
            // Read under the table's mutex: `set_life` changes it before it goes through the table,
            // so an entry is either made with the new one or found there.
            let rules = Arc::clone(&self.shared.config.rules);
            let discipline = match name.kind() {
                kind if kind.has_queue() => Discipline::Fair,
                kind if kind.has_faces() => Discipline::ReadWrite,
                _ => Discipline::Plain,
            };
            let core = LockCore::new(discipline, rules, self.shared.life());
            let state = Mutex::new(Facts::new(core));
            Entry {
                locks: Arc::clone(self),
                name: Arc::clone(name),
                latest: LatestAnswer::default(),
                state,
            }
        });
        entry.of_kind(name)
    }

    /// The entry of a lock that a call, a guard, a handle, a hold or a release refers to.
    pub(crate) fn find(&self, name: &LockName) -> Result<Option<Arc<Entry>>, Error> {
        let found = self.table.find(name.key());
        found.map(|entry| entry.of_kind(name)).transpose()
    }

    /// Others have changed this key. Returns whether anything is held under it that is to be looked at.
    pub(crate) fn note_report(&self, key: &str) -> bool {
        let entry = self.table.find(key);
        entry.is_some_and(|entry| entry.note_report())
    }

    /// Locks that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.table.all()
    }

    /// Enters a later part of the client's life, and has every call look at it.
    pub(crate) fn set_life(&self, life: Life) {
        self.shared.set_life(life);
        for entry in self.all() {
            entry.step(LifeChanges { life });
        }
    }
}

/// One lock of a client.
pub(crate) struct Entry {
    pub(crate) locks: Arc<Locks>,
    /// Of a lock with two parts, that of one of them.
    pub(crate) name: Arc<LockName>,
    pub(crate) latest: LatestAnswer,
    state: Mutex<Facts>,
}

struct Facts {
    core: LockCore,
    /// The objects that the core's numbers stand for: holds and waiters.
    holds: SmallMap<HoldId, HoldCells>,
    calls: SmallMap<WaiterId, Arc<WaitingCall>>,
    /// On the heap: nearly no lock is waited for.
    listening: Option<Box<Listening>>,
    /// Of timers that are set: see `timers.rs`.
    timers: SmallMap<OwnerKey, TimerPlace>,
    /// Itself, while the core remembers an owner.
    self_ref: Option<Arc<Entry>>,
}

#[derive(Default)]
struct HoldCells {
    /// Until it has ended.
    status: Option<Arc<HoldStatus>>,
    /// Of an unlock that waits for its outcome.
    unlock: Option<OutcomeCell>,
}

impl Facts {
    fn new(core: LockCore) -> Self {
        Self {
            core,
            holds: SmallMap::default(),
            calls: SmallMap::default(),
            listening: None,
            timers: SmallMap::default(),
            self_ref: None,
        }
    }

    fn status(&self, hold: HoldId) -> Option<&Arc<HoldStatus>> {
        self.holds.get(&hold)?.status.as_ref()
    }

    /// Takes one of the objects of a hold out.
    fn take_of<T>(
        &mut self,
        hold: HoldId,
        take: impl FnOnce(&mut HoldCells) -> Option<T>,
    ) -> Option<T> {
        let cells = self.holds.get_mut(&hold)?;
        let taken = take(cells);
        if cells.status.is_none() && cells.unlock.is_none() {
            self.holds.remove(&hold);
        }
        taken
    }
}

/// The work that is left when the mutex is free.
#[derive(Default)]
struct Deferred {
    effects: Effects,
    /// Commands that were entered: they are written first, so that the server works while callers are woken, and by a reader
    /// when it has answered what had arrived.
    unflushed: SmallVec<[Unflushed; 1]>,
    long_ways: Vec<(OwnerKey, OpId)>,
    ended: SmallVec<[Arc<HoldStatus>; 1]>,
    woken: SmallVec<[Arc<WaitingCall>; 2]>,
    /// Calls that ask in another step.
    left: Vec<WaiterId>,
    unlocked: SmallVec<[(OutcomeCell, Unlocked); 1]>,
    progress: bool,
    /// Dropped last: the entry may go with it.
    self_ref: Option<Arc<Entry>>,
}

impl Entry {
    /// The name, with the kind of which the holds of this owner are.
    pub(crate) fn name_of(&self, owner: OwnerKey) -> &LockName {
        self.name.of_face(owner.face)
    }

    /// Tells it apart from all others that exist.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The error for a hold of this owner that was lost.
    pub(crate) fn lost(&self, owner: OwnerKey, reason: LossReason) -> Error {
        Error::lost(self.name.given(), self.name_of(owner).kind(), reason)
    }

    /// Itself, unless it is of another kind than this name.
    fn of_kind(self: Arc<Self>, name: &LockName) -> Result<Arc<Self>, Error> {
        match self.name.kind() {
            kind if kind.shares_names_with(name.kind()) => Ok(self),
            in_use => Err(Error::OtherKind {
                lock: name.given().to_string(),
                kind: name.kind(),
                in_use,
            }),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.locks.shared
    }

    /// The way of every command of this lock.
    pub(crate) fn route(&self) -> Route<'_> {
        self.shared().redis.route(self.name.key())
    }

    /// Whether a script of this lock may use this key too: in a cluster it has to be in the same slot.
    pub(crate) fn is_beside(&self, key: &str) -> bool {
        !self.shared().redis.is_cluster() || slot_of(key) == slot_of(self.name.key())
    }

    /// The server has said whether the lock is held.
    pub(crate) fn note_answer(&self) {
        self.latest.answered(self.shared().clock.now());
    }

    /// Tells the core what happens.
    pub(crate) fn step<I: Happens>(self: &Arc<Self>, input: I) -> I::Answer {
        self.steps(|core, now, out| core.tell(now, input, out))
    }

    /// The same for what depends on how the core is, or for several inputs at the same moment.
    pub(crate) fn steps<T>(
        self: &Arc<Self>,
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> T,
    ) -> T {
        self.step_with(|state, now, out| run(&mut state.core, now, out))
    }

    fn step_with<T>(self: &Arc<Self>, run: impl FnOnce(&mut Facts, Time, &mut Effects) -> T) -> T {
        // Written in place and never moved: it is large, and a pair of lock and unlock takes several
        // steps.
        let mut deferred = Deferred::default();
        let answer = self.locked_step(&mut deferred, run);
        self.finish(&mut deferred);
        answer
    }

    /// The same, and the call that it returns is woken.
    fn step_and_wake(
        self: &Arc<Self>,
        run: impl FnOnce(&mut Facts, Time, &mut Effects) -> Option<Arc<WaitingCall>>,
    ) {
        let mut deferred = Deferred::default();
        let woken = self.locked_step(&mut deferred, run);
        deferred.woken.extend(woken);
        self.finish(&mut deferred);
    }

    /// Does what is left when the mutex is free.
    fn finish(self: &Arc<Self>, deferred: &mut Deferred) {
        self.apply(deferred);
        if !deferred.left.is_empty() {
            self.ask_next(std::mem::take(&mut deferred.left));
        }
    }

    /// Runs a step of a batch: the caller sets the timers that change, those of all its steps together.
    pub(crate) fn step_of_batch<I: Happens>(
        self: &Arc<Self>,
        timers: &mut Vec<(Arc<Self>, OwnerKey)>,
        input: I,
    ) -> I::Answer {
        let mut deferred = Deferred::default();
        let run = |state: &mut Facts, now, out: &mut _| state.core.tell(now, input, out);
        let answer = self.locked_step(&mut deferred, run);
        let changed = deferred.effects.timers.drain(..);
        timers.extend(changed.map(|owner| (Arc::clone(self), owner)));
        self.finish(&mut deferred);
        answer
    }

    fn locked_step<T>(
        self: &Arc<Self>,
        deferred: &mut Deferred,
        run: impl FnOnce(&mut Facts, Time, &mut Effects) -> T,
    ) -> T {
        let mut state = self.state.lock();
        let _has_mutex = HasMutex::begin();
        // Read here and not before: a step that waited for the mutex is later than the one that
        // had it.
        let now = self.shared().clock.now();
        let counted = state.core.counts();
        let answer = run(&mut state, now, &mut deferred.effects);
        self.drive(&mut state, now, deferred);
        while !deferred.effects.sends.is_empty() {
            self.enter_sends(&mut state, now, deferred);
            self.drive(&mut state, now, deferred);
        }
        self.record_facts(&mut state, counted, deferred);
        answer
    }

    /// Enters what a step sends into its connection, in its order: it comes behind whatever an earlier step has sent for
    /// its owners.
    fn enter_sends(self: &Arc<Self>, state: &mut Facts, now: Time, deferred: &mut Deferred) {
        let out = &mut deferred.effects;
        for (owner, op) in std::mem::take(&mut out.sends) {
            let Facts { core, calls, .. } = state;
            let call = |call: WaiterId| calls.get(&call);
            match (self.locks.sends.enter)(self, (core, now, out), &call, (owner, op)) {
                SendWay::Short(unflushed) => deferred.unflushed.push(unflushed),
                SendWay::Long => deferred.long_ways.push((owner, op)),
                SendWay::Nothing => {}
            }
        }
    }

    /// The facts of a step, and the cells that its effects are about.
    fn record_facts(self: &Arc<Self>, state: &mut Facts, counted: Counts, deferred: &mut Deferred) {
        let effects = &deferred.effects;
        for (hold, valid_until) in &effects.over {
            if let Some(status) = state.status(*hold) {
                status.set_valid_until(*valid_until);
            }
        }
        for (hold, ending) in &effects.ended {
            if let Some(status) = state.take_of(*hold, |cells| cells.status.take()) {
                status.set_ending(*ending);
                deferred.ended.push(status);
            }
        }
        for (hold, outcome) in &effects.unlocked {
            if let Some(unlock) = state.take_of(*hold, |cells| cells.unlock.take()) {
                deferred.unlocked.push((unlock, *outcome));
            }
        }
        let counts = state.core.counts();
        if counts != counted {
            deferred.progress = self.shared().tally.change(counted, counts);
        }
        if !state.core.keeps_itself() {
            deferred.self_ref = state.self_ref.take();
        } else if state.self_ref.is_none() {
            state.self_ref = Some(Arc::clone(self));
        }
    }

    /// Writes, sets timers, wakes, spawns, logs, counts, in this order. Nothing here is a fact, so it may come
    /// late. What may run code that is not ours is isolated: a panic in there stops nothing else.
    fn apply(self: &Arc<Self>, deferred: &mut Deferred) {
        #[cfg(feature = "test-util")]
        super::effects_hook::before_effects();
        let Deferred {
            effects,
            unflushed,
            long_ways,
            ended,
            woken,
            left: _,
            unlocked,
            progress,
            self_ref: _,
        } = deferred;
        let shared = self.shared();
        unflushed.drain(..).for_each(Unflushed::flush);
        if !effects.timers.is_empty() {
            let timers = effects.timers.iter();
            self.locks.timers.set(timers.map(|owner| (self, *owner)));
        }
        ended.iter().for_each(|status| isolated(|| status.wake()));
        for (unlock, outcome) in unlocked.drain(..) {
            let outcome = match outcome {
                Unlocked::Released => Ok(Ok(())),
                Unlocked::Lost(reason) => Ok(Err(reason)),
                // The receiver learns it from the end of the channel.
                Unlocked::Failed => continue,
            };
            // Its future may be dropped by now.
            isolated(|| _ = unlock.send(outcome));
        }
        // Behind those that are done with the lock: the task that is woken last runs next, on this thread. The other order wakes
        // one thread less, and passes the lock on less often (`contend16` of `cargo xtask bench`).
        woken
            .iter()
            .for_each(|waiter| isolated(|| waiter.notify.notify_one()));
        if *progress {
            isolated(|| shared.tally.announce());
        }
        for (owner, op) in long_ways {
            let long_way = (self.locks.sends.long_way)(Arc::clone(self), *owner, *op);
            shared.runtime.spawn(long_way);
        }
        for (owner, field) in effects.subscribes.drain(..) {
            self.subscribe(owner, field);
        }
        if effects.is_reported {
            shared.redis.reports().add(self.name.key());
        }
        for event in &effects.events {
            self.log(event);
        }
        for (total, amount) in &effects.totals {
            shared.totals.count(*total, *amount);
            measure::count(*total, *amount);
        }
    }

    fn log(&self, event: &Event) {
        let lock = self.name.given();
        match event {
            Event::Lost {
                field,
                face,
                reason,
            } => {
                let kind = self.shown_face(*face);
                event!(WARN, %lock, owner = %field, kind, %reason, "lock lost");
            }
            Event::RenewalOverdue { field, face } => {
                let kind = self.shown_face(*face);
                event!(WARN, %lock, owner = %field, kind, "renewal overdue: the lock is at risk");
            }
            Event::GaveUp { field, text } => self.log_given_up(field, text),
            Event::Reconciled { field, count } => {
                event!(INFO, %lock, owner = %field, count, "outcome reconciled");
            }
        }
    }

    /// A release has given up.
    pub(crate) fn log_given_up(&self, field: &str, error: &str) {
        let lock = self.name.given();
        event!(WARN, %lock, owner = %field, %error, "background release failed: the lease frees the lock");
    }

    /// Which part of the lock it is about, if it has two.
    fn shown_face(&self, face: Face) -> Option<&'static str> {
        let kind = self.name.of_face(face).kind();
        kind.has_faces().then(|| kind.name())
    }

    /// Reads the core, and changes nothing.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&LockCore, Time) -> T) -> T {
        read(&self.state.lock().core, self.shared().clock.now())
    }

    /// Reads the core where the time does not matter.
    pub(crate) fn peek<T>(&self, peek: impl FnOnce(&LockCore) -> T) -> T {
        peek(&self.state.lock().core)
    }

    /// Whether replicas confirm what is held.
    pub(crate) fn asks_replicas(&self) -> bool {
        self.peek(LockCore::asks_replicas)
    }

    /// Others have changed the lock. Returns whether anything is to be looked at.
    pub(crate) fn note_report(self: &Arc<Self>) -> bool {
        self.step(ReportArrives {})
    }

    /// An owner leaves the queue with the next call. `Some`: the task that has it sends for all that join.
    pub(crate) fn join_leavers(self: &Arc<Self>, leaver: Leaver) -> Option<Sending> {
        let mut leavers = self.locks.leavers.lock();
        let is_first = !leavers.contains_key(&self.address());
        leavers.entry(self.address()).or_default().push(leaver);
        is_first.then(|| Sending::new(self))
    }

    /// The server has said that a hold is lost: that ends all of its owner. It may have ended meanwhile, and its owner
    /// may have begun another one.
    pub(crate) fn lose(self: &Arc<Self>, owner: OwnerKey, hold: HoldId, reason: LossReason) {
        self.steps(|core, now, out| {
            if core.snapshot(now, owner, hold).is_some() {
                let lost = OwnerLost {
                    owner,
                    generation: None,
                    reason,
                };
                core.tell(now, lost, out);
            }
        });
    }

    /// The status of a hold that has not ended.
    pub(crate) fn status(&self, hold: HoldId) -> Option<Arc<HoldStatus>> {
        self.state.lock().status(hold).cloned()
    }

    /// Everything that is kept twice agrees, and the invariants hold.
    #[cfg(feature = "test-util")]
    pub(crate) fn check(&self) {
        let state = self.state.lock();
        state.core.check();
        assert_eq!(state.core.keeps_itself(), state.self_ref.is_some());
    }

    /// Whether the timer of an owner is set to what is due. Only while no call is at this lock.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_timer_right(&self, owner: OwnerKey) -> bool {
        let due = self.peek(|core| core.timer(owner));
        let set = self.locks.timers.due(self, owner);
        let set = set.map(|at| self.shared().clock.time(at));
        // The timers count in milliseconds.
        let off = due
            .zip(set)
            .map(|(due, set)| due.since(set).max(set.since(due)));
        due.is_some() == set.is_some() && off.is_none_or(|off| off.as_millis() <= 2)
    }
}

impl Timed for Entry {
    fn timer(&self, owner: OwnerKey) -> (Option<Instant>, Option<TimerPlace>) {
        let state = self.state.lock();
        let due = state.core.timer(owner);
        let due = due.map(|at| self.shared().clock.instant(at));
        (due, state.timers.get(&owner).copied())
    }

    fn set_place(&self, owner: OwnerKey, place: Option<TimerPlace>) {
        let timers = &mut self.state.lock().timers;
        match place {
            Some(place) => _ = timers.insert(owner, place),
            None => _ = timers.remove(&owner),
        }
    }
}

/// Released or lost; an error if neither is known.
pub(crate) type Settled = Result<Result<(), LossReason>, Error>;
type OutcomeCell = oneshot::Sender<Settled>;

/// The outcome of an unlock that is under way.
pub(crate) type Outcome = oneshot::Receiver<Settled>;

impl Drop for Entry {
    fn drop(&mut self) {
        self.locks.table.remove(self.name.key(), self);
    }
}
