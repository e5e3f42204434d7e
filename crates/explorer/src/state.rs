//! A state of the explored world: the core, what its effects have not done yet, the calls that drive
//! it, and the way to the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{
    Face, Generation, HoldId, Life, LockCore, OpId, OwnerKey, RenewalAsk, Time, Token, Visitor,
    WaiterId,
};

use super::Traits;
use super::coverage::Reached;
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
    pub last_taking: u64,
    /// Those that the server had, and that something may still use.
    pub gone: BTreeSet<Field>,
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

    /// The same for all states that differ only in numbers, in the time of the day, and in how long
    /// ago is long ago. Of tokens only their order is left, and of the fields of single acquisitions only which are
    /// the same.
    pub fn normal(mut self, longest: Duration, beat: Duration) -> Self {
        for caller in &mut self.callers {
            caller.woken &= !caller.is_over;
        }
        let mut found = Found::default();
        self.visit(&mut found);
        let Found {
            ids,
            tokens,
            takings,
        } = found;
        self.last_taking = takings.len() as u64;
        let gone = self.gone.iter().filter_map(|field| {
            let taking = *takings.get(&field.taking)?;
            Some(Field { taking, ..*field })
        });
        self.gone = gone.collect();
        let ranks = (1..).filter_map(NonZeroU64::new).map(Token::from);
        // Timers keep to the beat, which is counted from the start.
        let past = self.now.since_start().as_nanos() % beat.as_nanos();
        let base =
            Time::START + longest * 2 + Duration::from_nanos(u64::try_from(past).unwrap_or(0));
        let mut renamed = Renamed {
            ids: ids.into_iter().zip(1..).collect(),
            tokens: tokens.into_iter().zip(ranks).collect(),
            takings,
            now: self.now,
            base,
            longest,
        };
        self.visit(&mut renamed);
        self
    }

    fn visit(&mut self, visitor: &mut impl Visitor) {
        self.core.visit(visitor);
        self.callers
            .iter_mut()
            .for_each(|caller| caller.visit(visitor));
        let replies = self.answers.iter_mut().map(|(_, reply)| reply);
        replies.for_each(|reply| reply.visit(visitor));
        let sent = self.outbox.iter_mut().chain(&mut self.wire);
        let sent = sent.chain(&mut self.late);
        for sent in sent.chain(self.answers.iter_mut().map(|(sent, _)| sent)) {
            sent.script.visit(visitor);
            match &mut sent.sender {
                Sender::Acquire(_, op) | Sender::Release(_, op) => op.visit(visitor),
                Sender::Renewal(_, generation) => generation.visit(visitor),
                Sender::Caller(_) | Sender::Nobody => {}
            }
            visitor.time(&mut sent.sent_at);
            sent.repeats.iter_mut().for_each(|at| visitor.time(at));
        }
        let deferred = std::mem::take(&mut self.deferred)
            .into_iter()
            .map(|mut deferred| {
                match &mut deferred {
                    Deferred::Dropped(_, op) => op.visit(visitor),
                    Deferred::Forced(_, generation) => generation.visit(visitor),
                    Deferred::Timer(_)
                    | Deferred::Listens(_)
                    | Deferred::Hears(_)
                    | Deferred::LoseAll => {}
                }
                deferred
            });
        self.deferred = deferred.collect();
        for releases in [&mut self.sends, &mut self.without_room] {
            let visited = std::mem::take(releases).into_iter();
            let visited = visited.map(|(owner, mut op)| {
                op.visit(visitor);
                (owner, op)
            });
            *releases = visited.collect();
        }
        let ended = std::mem::take(&mut self.ended).into_iter().map(|mut hold| {
            hold.visit(visitor);
            hold
        });
        self.ended = ended.collect();
        self.timers.values_mut().for_each(|at| visitor.time(at));
        self.server.visit(visitor);
        if let Some((token, field)) = &mut self.latest {
            visitor.token(token);
            field.visit(visitor);
        }
        visitor.time(&mut self.now);
    }
}

impl Guard {
    fn visit(&mut self, visitor: &mut impl Visitor) {
        self.hold.visit(visitor);
        let token = self.token.iter_mut();
        token.for_each(|token| visitor.token(token));
    }
}

impl Caller {
    fn visit(&mut self, visitor: &mut impl Visitor) {
        self.guards
            .iter_mut()
            .for_each(|guard| guard.visit(visitor));
        match &mut self.at {
            At::Ready => {}
            At::Calling { waiter } => waiter.visit(visitor),
            At::Extending { hold, .. } | At::Unlocking { hold } => hold.visit(visitor),
            At::Confirming { guard, leased } => {
                guard.visit(visitor);
                visitor.time(&mut leased.0);
            }
        }
    }

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

/// The numbers that are in use.
#[derive(Default)]
struct Found {
    ids: BTreeSet<u64>,
    tokens: BTreeSet<Token>,
    /// As what each acquisition with a field of its own counts: they are counted as they are met.
    takings: BTreeMap<u64, u64>,
}

impl Visitor for Found {
    fn id(&mut self, id: &mut u64) {
        self.ids.insert(*id);
    }

    fn last_id(&mut self, _: &mut u64) {}

    fn token(&mut self, token: &mut Token) {
        self.tokens.insert(*token);
    }

    fn time(&mut self, _: &mut Time) {}

    fn field(&mut self, field: &mut Arc<str>) {
        let Field { taking, .. } = Field::of(field);
        if taking > 0 {
            let next = self.takings.len() as u64 + 1;
            self.takings.entry(taking).or_insert(next);
        }
    }
}

/// In their order, ids and tokens count from one; instants are relative to now.
struct Renamed {
    ids: BTreeMap<u64, u64>,
    tokens: BTreeMap<Token, Token>,
    takings: BTreeMap<u64, u64>,
    now: Time,
    base: Time,
    longest: Duration,
}

impl Visitor for Renamed {
    fn id(&mut self, id: &mut u64) {
        *id = self.ids[id];
    }

    fn last_id(&mut self, id: &mut u64) {
        *id = self.ids.len() as u64;
    }

    fn token(&mut self, token: &mut Token) {
        *token = self.tokens[token];
    }

    fn field(&mut self, field: &mut Arc<str>) {
        let Field { owner, taking } = Field::of(field);
        if let Some(&taking) = self.takings.get(&taking) {
            *field = Field { owner, taking }.text();
        }
    }

    fn time(&mut self, time: &mut Time) {
        *time = if *time >= self.now {
            self.base + time.since(self.now).min(self.longest)
        } else {
            self.base - self.now.since(*time).min(self.longest)
        };
    }
}

/// What a renewal asks, as the script says it.
pub fn lease_of(admit: RenewalAsk) -> Option<Duration> {
    match admit {
        RenewalAsk::Extend(lease) => Some(lease),
        RenewalAsk::Check => None,
    }
}
