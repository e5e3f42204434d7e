//! Client internals for the tests of this repository and for the crate `redisson-lock-test`, with the feature
//! `test-util`. Hidden, and outside of semantic versioning.
//!
//! [`Transport`] replaces real connections with those of a test. The functions show a client's internal state, and
//! cause events that no network can.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::input::RenewalEnds;
use redisson_lock_core::{
    Ending, Generation, HandOff, LockCore, LossReason, OwnerKey, RenewOutcome, RenewalAsk,
};
use tokio::time::Instant;

use crate::api::builder::LockClientBuilder;
use crate::api::client::LockClient;
use crate::error::{Cause, Error, Operation};
use crate::kind::LockKind;
use crate::lock::Holder;
use crate::lock::hold_handle::Hold;
use crate::names::owner::Owner;
use crate::names::wire::{Announce, LockName};
use crate::redis::{self, Call};
use crate::script::{self, RenewalKey};
use crate::state::entry::Entry;

pub use crate::redis::transport::{
    Arg, BoxFuture, ByteStream, ConnectionError, Refusal, Reply, Transport,
};

pub use crate::state::effects_hook::{before_next_effects, delay_effects};

/// The properties of a kind of lock, for the explorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traits {
    /// A release is announced to those who wait. Otherwise they pause.
    pub announces: bool,
    /// An owner may hold it several times.
    pub is_reentrant: bool,
    /// A holder has a token.
    pub has_token: bool,
    /// Each acquisition has a value of its own.
    pub has_value_per_hold: bool,
}

impl From<LockKind> for Traits {
    fn from(kind: LockKind) -> Self {
        Self {
            announces: kind.announces(),
            is_reentrant: kind.is_reentrant(),
            has_token: kind.has_token(),
            has_value_per_hold: kind.has_value_per_hold(),
        }
    }
}

impl LockClientBuilder {
    /// Changes the bounds of a row of hand-offs.
    #[doc(hidden)]
    pub fn handoff_bounds(mut self, bounds: HandOff) -> Self {
        self.handoff = bounds;
        self
    }

    /// Connects over a transport of a test.
    #[doc(hidden)]
    pub async fn connect_over(self, transport: Arc<dyn Transport>) -> Result<LockClient, Error> {
        self.open_over(transport).await
    }
}

/// What a fuzzer tries: whether it matters where the bytes of replies are cut.
///
/// # Panics
///
/// If it does.
pub fn check_reply_path(input: &[u8]) {
    redis::check_reply_path(input);
}

/// A reply as an error message shows it.
pub fn shown(reply: &Reply) -> String {
    reply.shown()
}

/// What the core says of a hold that has not ended.
#[derive(Debug, Clone)]
pub struct HoldFacts {
    /// The field in the lock hash, without the ending for a hold that writes.
    pub field: Arc<str>,
    /// Until when the lease is certain.
    pub deadline: Instant,
    /// From when on the hold is at risk, if it is renewed.
    pub at_risk_from: Option<Instant>,
    /// When the hold ends by itself.
    pub ends: Option<Instant>,
}

impl HoldFacts {
    /// The earlier of deadline and end.
    pub fn valid_until(&self) -> Instant {
        self.ends
            .map_or(self.deadline, |ends| ends.min(self.deadline))
    }
}

/// What was last written down about a hold, without a look at the clock. `None`: it has ended.
pub fn snapshot(hold: &Hold) -> Option<HoldFacts> {
    let (owner, clock) = (hold.key(), &hold.entry.shared().clock);
    hold.entry.read(|core, now| {
        let snapshot = core.snapshot(now, owner, hold.id)?;
        Some(HoldFacts {
            field: core.field(owner)?,
            deadline: clock.instant(snapshot.deadline),
            at_risk_from: snapshot.at_risk_from.map(|at| clock.instant(at)),
            ends: snapshot.ends.map(|at| clock.instant(at)),
        })
    })
}

/// Whether a hold was released or lost, by what was last written down.
pub fn has_ended(hold: &Hold) -> bool {
    hold.status.ending().is_some()
}

/// Why a hold was lost, by what was last written down.
pub fn loss(hold: &Hold) -> Option<LossReason> {
    match hold.status.ending() {
        Some(Ending::Lost(reason)) => Some(reason),
        Some(Ending::Released) | None => None,
    }
}

/// The field of a hold in the lock hash.
pub fn field(hold: &Hold) -> Arc<str> {
    let name = hold.entry.name_of(hold.key());
    name.counted_in(&field_of_owner(hold))
}

fn field_of_owner(hold: &Hold) -> Arc<str> {
    snapshot(hold).map_or_else(|| Arc::clone(hold.owner.field()), |hold| hold.field)
}

/// The field that an owner has in lock hashes.
pub fn field_of(owner: &Owner) -> Arc<str> {
    Arc::clone(owner.field())
}

/// What a renewal that is under way has: the generation of the hold that it was sent for.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "hidden")]
pub struct Renewing {
    entry: Arc<Entry>,
    owner: OwnerKey,
    generation: Generation,
}

/// Begins the renewal of a hold, as far as the client is concerned.
pub fn renewing(hold: &Hold) -> Option<Renewing> {
    let (entry, field) = (Arc::clone(&hold.entry), field_of_owner(hold));
    let (owner, generation) = entry.peek(|core| core.owner_of(&field, hold.face))?;
    Some(Renewing {
        entry,
        owner,
        generation,
    })
}

impl Renewing {
    /// Its answer comes now, and says that the hold is gone.
    pub fn finds_it_lost(self, reason: LossReason) {
        let Self {
            entry,
            owner,
            generation,
        } = self;
        let outcome = RenewOutcome::Lost(reason);
        entry.step(RenewalEnds {
            owner,
            generation,
            outcome,
        });
    }
}

/// Checks the invariants of every lock that a client remembers.
pub fn check(client: &LockClient) {
    client
        .handle
        .locks
        .all()
        .iter()
        .for_each(|entry| entry.check());
}

/// The latest inputs of every lock that a client remembers, one a line, below the name of the lock.
pub fn inputs(client: &LockClient) -> String {
    let entries = client.handle.locks.all();
    let inputs = entries.iter().map(|entry| {
        let inputs = entry.peek(LockCore::inputs_text);
        format!("{}:\n{inputs}", entry.name.given())
    });
    inputs.collect()
}

/// How often a client has looked for a lock's entry in its table.
pub fn look_ups(client: &LockClient) -> u64 {
    client.handle.locks.table.look_ups()
}

/// Whether the timer that keeps a hold is set to what is due. Only while no call is at its lock.
pub fn is_timer_right(hold: &Hold) -> bool {
    hold.entry.is_timer_right(hold.key())
}

/// Whether closing the client is over.
pub fn is_closed(client: &LockClient) -> bool {
    client.handle.shared().is_closed()
}

/// Ends the tasks of a client as the end of their runtime would.
pub fn end_runtime(client: &LockClient) {
    client.handle.shared().runtime.end();
}

/// The slot of a key in a cluster.
pub fn slot_of(key: &str) -> u16 {
    crate::redis::slot_of(key)
}

/// A script call as a client sends it.
#[derive(Debug, Clone)]
pub struct ScriptCall {
    /// The text of the script.
    pub source: &'static str,
    /// KEYS.
    pub keys: Vec<Arc<str>>,
    /// ARGV.
    pub args: Vec<Arg>,
}

impl<T> From<Call<T>> for ScriptCall {
    fn from(call: Call<T>) -> Self {
        Self {
            source: call.script.source,
            keys: call.keys.into_vec(),
            args: call.args.into_vec(),
        }
    }
}

const FAIR_WAIT: Duration = Duration::from_secs(300);

/// The call that acquires a lock of this kind.
pub fn acquire_of(
    kind: LockKind,
    key: &str,
    field: &str,
    target: u32,
    lease: Duration,
) -> Result<ScriptCall, Error> {
    let name = LockName::new(kind, "", key)?;
    let (wait, stays) = (FAIR_WAIT, Some(FAIR_WAIT));
    let place = (script::QueuePlace { wait, stays }, Announce::Classic);
    Ok(script::acquire(&name, &field.into(), target, lease, place).into())
}

/// The call that releases a lock of this kind.
pub fn release_of(
    kind: LockKind,
    key: &str,
    field: &str,
    target: u32,
    lease: Duration,
) -> Result<ScriptCall, Error> {
    let name = LockName::new(kind, "", key)?;
    let leaves = (Some(FAIR_WAIT), Announce::Classic);
    Ok(script::release(&name, &field.into(), target, lease, leaves).into())
}

/// The call that hands a lock of this kind over.
pub fn pass_of(
    kind: LockKind,
    key: &str,
    from: &str,
    to: &str,
    lease: Duration,
) -> Result<ScriptCall, Error> {
    let name = LockName::new(kind, "", key)?;
    Ok(script::pass(&name, &from.into(), &to.into(), lease, Announce::Classic).into())
}

/// The call that renews locks of this kind, by key, field and lease.
pub fn renew_of(kind: LockKind, batch: &[(&str, &str, Option<Duration>)]) -> ScriptCall {
    let renewals: Vec<_> = batch
        .iter()
        .map(|&(key, field, lease)| RenewalKey {
            kind,
            key: key.into(),
            field: field.into(),
            asked: lease.map_or(RenewalAsk::Check, RenewalAsk::Extend),
        })
        .collect();
    script::renew(renewals.iter()).into()
}

/// The call that force-unlocks a lock of this kind. `limit`: what the server's clock may show, since 1970.
pub fn force_unlock_of(
    kind: LockKind,
    key: &str,
    holder: &[u8],
    limit: Option<Duration>,
) -> Result<ScriptCall, Error> {
    let name = LockName::new(kind, "", key)?;
    Ok(script::force_unlock(
        &name,
        &holder.into(),
        std::iter::empty(),
        limit,
        Announce::Classic,
    )
    .into())
}

/// The call that looks at a lock of this kind.
pub fn inspect_of(kind: LockKind, key: &str, with_clock: bool) -> Result<ScriptCall, Error> {
    Ok(script::inspect(&LockName::new(kind, "", key)?, with_clock).into())
}

/// The error of an acquire while the server cannot be reached.
pub fn no_answer(lock: &str) -> Error {
    let cause = Cause::new(None, "not connected");
    Error::no_answer(Operation::Acquiring, cause).about(lock)
}

/// A holder as [`Lock::inspect`](crate::Lock::inspect) returns it.
pub fn holder(owner: String, hold_count: u32, lease_left: Option<Duration>) -> Holder {
    Holder {
        owner,
        hold_count,
        lease_left,
        token: None,
    }
}
