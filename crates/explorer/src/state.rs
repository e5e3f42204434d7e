//! A state of the explored world: the core, what its effects have not done yet, the calls that drive
//! it, and the way to the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use redisson_lock_core::{
    Face, Generation, HoldId, Life, LockCore, OpId, OwnerKey, RenewalAsk, Time, Token, WaiterId,
};

use super::Traits;
use super::coverage::Reached;
use super::normal::Unseen;
use super::script::{Field, Reply, Script};
use super::server::Server;

/// What one call does next, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// With the face that its latest call is for.
    pub owner: OwnerKey,
    /// The next of its script.
    pub next: usize,
    pub at: At,
    /// Guards that are open, the latest last.
    pub guards: Vec<Guard>,
    /// It was woken since it last looked.
    pub woken: bool,
    /// Its call is over, without the lock.
    pub is_over: bool,
}

/// What a call was handed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guard {
    pub owner: OwnerKey,
    pub hold: HoldId,
    /// If the kind of lock has them.
    pub token: Option<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum At {
    Ready,
    /// It waits for the lock, or for the end of its call.
    Calling {
        waiter: WaiterId,
    },
    /// It waits for the outcome of its unlock.
    Unlocking {
        hold: HoldId,
    },
    /// It has taken the lock then, and waits for the replicas.
    Confirming {
        guard: Guard,
        leased: (Time, Duration),
    },
    /// Its fixed lease is being extended.
    Extending {
        hold: HoldId,
        lease: Duration,
    },
}

/// Which caller waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sender {
    Caller(usize),
    Acquire(OwnerKey, OpId),
    Release(OwnerKey, OpId),
    Renewal(OwnerKey, Generation),
    /// Nobody any more.
    Nobody,
}

/// A script on its way, in the order of the connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sent {
    pub sender: Sender,
    pub face: Face,
    pub script: Script,
    pub sent_at: Time,
    /// Before the first send of the same call, if this is not it.
    pub repeats: Option<Time>,
}

/// What a step has left to be done, each at any later moment and in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deferred {
    Timer(OwnerKey),
    /// A subscription is confirmed: that of an owner, if each has one.
    Listens(OwnerKey),
    /// A message arrives.
    Hears(OwnerKey),
    /// A send was dropped with its runtime.
    Dropped(OwnerKey, OpId),
    /// A forced unlock says whose hold it was.
    Forced(OwnerKey, Generation),
    /// Every hold ends with the runtime.
    LoseAll,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub core: LockCore,
    /// What the kind of lock does differently.
    pub kind: Traits,
    pub now: Time,
    pub server: Server,
    pub callers: Vec<Caller>,
    /// Built, and not handed to the connection yet: tasks on other threads may be quicker.
    pub outbox: Vec<Sent>,
    /// Handed over, in order.
    pub wire: VecDeque<Sent>,
    /// Whether a server has ended a connection before another one is used in its place.
    pub has_fence: bool,
    /// A connection was replaced without that.
    pub is_unfenced: bool,
    /// What was on that connection, in order: it may be executed still.
    pub late: VecDeque<Sent>,
    /// The last field of one acquisition alone.
    pub last_taking: Unseen<u64>,
    /// Those that the server had, and that something may still use.
    pub gone: Unseen<BTreeSet<Field>>,
    /// On its way to the task that waits for it; each task is woken when it is woken.
    pub answers: Vec<(Sent, Reply)>,
    pub deferred: BTreeSet<Deferred>,
    /// The subscriptions that are confirmed: that of an owner, if each has one.
    pub subscribed: BTreeSet<OwnerKey>,
    /// The timers that are set.
    pub timers: BTreeMap<OwnerKey, Time>,
    /// Acquires and releases whose next send is to be made: at any later moment, as on its long way.
    pub sends: BTreeSet<(OwnerKey, OpId)>,
    /// Those that wait for room.
    pub without_room: BTreeSet<(OwnerKey, OpId)>,
    /// Holds that have ended and whose guard is open.
    pub ended: BTreeSet<HoldId>,
    pub budget: Budget,
    /// How many replicas must confirm a lease.
    pub replicas: u32,
    pub life: Life,
    /// How far `close` has come.
    pub closing: u8,
    /// The lock was taken away by somebody, which excuses a hold that is not there.
    pub robbed: bool,
    /// How long the script that has set the lease was on its way: the lease ends so much earlier for its owner.
    pub late_by: Duration,
    /// The lock is free because its lease ended, which is not announced.
    pub expired: bool,
    /// It has been, once.
    pub has_expired: bool,
    /// A release was given up: the lease frees the lock.
    pub given_up: bool,
    /// The largest token that a call was handed, and with which field.
    pub latest: Option<(Token, Field)>,
    /// What a call was told that must not be.
    pub wrong: Option<&'static str>,
    pub reached: Reached,
}

/// How often something may still happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub losses: u8,
    pub cancels: u8,
    pub ticks: u8,
    /// Another process takes the lock.
    pub foreign: u8,
    /// Somebody deletes the key.
    pub wipes: u8,
    /// How many steps of `close` are done.
    pub closes: u8,
    /// The server refuses a script.
    pub refusals: u8,
    /// Somebody forces the lock open.
    pub forces: u8,
    /// The runtime ends.
    pub ends: u8,
    /// Replicas do not confirm something in time.
    pub lags: u8,
    /// There are too many releases under way for another one.
    pub crowds: u8,
}

impl State {
    pub fn send(&mut self, sender: Sender, script: Script) {
        let (sent_at, repeats) = (self.now, None);
        let face = match sender {
            Sender::Caller(nth) => self.callers[nth].owner.face,
            Sender::Acquire(owner, _) | Sender::Release(owner, _) | Sender::Renewal(owner, _) => {
                owner.face
            }
            Sender::Nobody => Face::Only,
        };
        self.outbox.push(Sent {
            sender,
            face,
            script,
            sent_at,
            repeats,
        });
    }
}

impl Caller {
    /// What it does next is for this face, if its lock has two.
    pub fn turns_to(&mut self, face: Face) {
        if self.owner.face != Face::Only {
            self.owner.face = face;
        }
    }

    pub fn waiter(&self) -> Option<WaiterId> {
        match &self.at {
            At::Calling { waiter } => Some(*waiter),
            At::Ready | At::Unlocking { .. } | At::Confirming { .. } | At::Extending { .. } => None,
        }
    }
}

/// What a renewal asks, as the script says it.
pub fn lease_of(admit: RenewalAsk) -> Option<Duration> {
    match admit {
        RenewalAsk::Extend(lease) => Some(lease),
        RenewalAsk::Check => None,
    }
}
