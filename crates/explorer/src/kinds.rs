//! What kinds of locks do differently: fields of one acquisition, tokens, pauses in the place of messages. And the
//! fields that a client uses when no fence keeps late scripts away.

use std::collections::BTreeSet;
use std::time::Duration;

use redisson_lock_core::input::MessageArrives;
use redisson_lock_core::{Face, Generation, OwnerKey, Permit, Then, Time, Token, Untaken};

use super::RULES;
use super::script::Field;
use super::state::{Caller, Deferred, State};

/// The properties of a kind of lock.
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

impl Traits {
    pub const PLAIN: Self = Self {
        announces: true,
        is_reentrant: true,
        has_token: false,
        has_value_per_hold: false,
    };
    pub const SPIN: Self = Self {
        announces: false,
        ..Self::PLAIN
    };
    pub const FENCED: Self = Self {
        has_token: true,
        ..Self::PLAIN
    };
    pub const STRING: Self = Self {
        announces: false,
        is_reentrant: false,
        has_token: false,
        has_value_per_hold: true,
    };
}

impl State {
    /// What the core has in Redis for an owner.
    pub(super) fn field(&self, owner: OwnerKey) -> Option<Field> {
        self.core.field(owner).map(|field| Field::of(&field))
    }

    /// Since when an owner holds the lock.
    pub(super) fn generation(&self, owner: OwnerKey) -> Option<Generation> {
        self.core.generation(owner)
    }

    /// An owner with each of its faces.
    pub(super) fn faces_of(&self, owner: OwnerKey) -> impl Iterator<Item = OwnerKey> + use<> {
        let faces: &[_] = match self.server.faces {
            Some(_) => &[Face::Read, Face::Write],
            None => &[Face::Only],
        };
        faces
            .iter()
            .map(move |face| OwnerKey::of(owner.thread, *face))
    }

    /// What a call asks with: the field of its owner, or one that was never used before.
    pub(super) fn next_field(&mut self, owner: OwnerKey) -> Field {
        let taking = match self.kind.has_value_per_hold || self.is_unfenced {
            true => {
                *self.last_taking += 1;
                *self.last_taking
            }
            false => 0,
        };
        let owner = owner.thread;
        Field { owner, taking }
    }

    /// A late release of an earlier hold may remove the field of the one that this acquire is about to take: its call asks
    /// again, for one of its own. Returns whether it does.
    pub(super) fn leaves_a_used_field(&mut self, permit: &Permit, was_sent: bool) -> bool {
        let is_used = Field::of(&permit.field).taking == 0 && permit.target == 1;
        if !is_used || !self.is_unfenced {
            return false;
        }
        let untaken = match was_sent {
            true => Untaken::Unknown,
            false => Untaken::NotExecuted,
        };
        self.ends_attempt(permit, untaken, Then::AsksAgain);
        true
    }

    /// The server has run a script: no field of one acquisition is back that was gone.
    pub(super) fn note_holder(&mut self, before: Option<Field>) {
        let after = self.server.field();
        if before == after {
            return;
        }
        self.gone.extend(before.filter(|field| field.taking > 0));
        let is_back = after.is_some_and(|field| self.gone.contains(&field));
        // An acquire that is repeated may find that its lease is over, or that its field was taken away.
        if is_back && !(self.is_unfenced || self.has_expired || self.robbed) {
            self.wrong = Some("two acquisitions have the same value");
        }
    }

    /// A call is handed a hold with this token.
    pub(super) fn note_token(&mut self, field: Field, token: Option<Token>) {
        if token.is_some() != self.kind.has_token {
            self.wrong = Some("a hold has no token, or one that its kind has not");
        }
        let Some(token) = token else { return };
        let grows = match self.latest {
            // It nests, or nothing was in between of which a client could know.
            Some((latest, of)) if of == field => token >= latest,
            Some((latest, _)) => token > latest,
            None => true,
        };
        // An answer may come late of a hold that was taken away meanwhile.
        if !grows && !self.robbed {
            self.wrong = Some("the token of a hold is not larger than those of all before");
        }
        if grows {
            self.latest = Some((token, field));
        }
    }

    /// A call waits for no message: it attempts again after a pause.
    pub fn pauses(&self) -> bool {
        let mut waiters = self.callers.iter().filter_map(Caller::waiter);
        !self.kind.announces && waiters.any(|waiter| self.core.waits_for_others(waiter))
    }

    /// Until when a call waits that found the lock held.
    pub(super) fn until_retry(&self, left: Duration) -> Time {
        // Without messages a pause ends at any time.
        let most = match self.server.queue.is_some() {
            true => RULES.fair_wait / 3,
            false => RULES.watchdog_timeout,
        };
        match self.kind.announces {
            true => self.now + left.min(most),
            false => self.now + most,
        }
    }

    /// Whose subscription a call of this owner waits for.
    pub(super) fn channel_of(&self, owner: OwnerKey) -> OwnerKey {
        match self.server.queue.is_some() {
            true => owner,
            false => OwnerKey::QUEUE,
        }
    }

    /// With the last call that waits, a subscription ends.
    pub(super) fn unsubscribe(&mut self) {
        let callers = self.callers.iter();
        let waiting = callers.filter(|caller| caller.waiter().is_some());
        let wanted: BTreeSet<_> = waiting
            .map(|caller| self.channel_of(caller.owner))
            .collect();
        self.subscribed.retain(|channel| wanted.contains(channel));
        self.deferred.retain(|deferred| match deferred {
            Deferred::Listens(channel) | Deferred::Hears(channel) => wanted.contains(channel),
            _ => true,
        });
    }

    /// What is heard on a channel arrives.
    pub(super) fn hears(&mut self, channel: OwnerKey) {
        let next = Some(channel).filter(|channel| *channel != OwnerKey::QUEUE);
        let rows = self.rows();
        self.run_step(&rows, MessageArrives { next });
    }
}
