//! The core of the locks, explored: every order of steps, losses, cancellations and ticks of small worlds.
//!
//! The transition function is the core that ships. A [`World`] says who calls what, and how often
//! something may go wrong; [stateright](https://docs.rs/stateright) goes through every state that can
//! be reached, each in normal form ([`Normal`]). What a step defers is an action of its own.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    reason = "only the tests of this crate use it, and a panic is how a test fails"
)]

mod answers;
pub mod coverage;
mod ends;
pub mod fair;
mod holds;
mod kinds;
mod normal;
mod noted;
pub mod read_write;
mod replicas;
pub mod script;
pub mod server;
pub mod state;
mod steps;
pub mod unreached;
mod verdict;
mod worlds;

use std::time::Duration;

use redisson_lock_core::{
    Discipline, Face, HandOff, LeaseKind, Life, LockCore, Order, OwnerKey, Rules, Terms, ThreadId,
    Time,
};
use stateright::{Model, Property};

pub use kinds::Traits;
pub use normal::{Normal, Unseen};
pub use state::{Budget, State};
pub use worlds::{all, deep};

use coverage::Reached;
use read_write::Faces;
use server::Server;
use state::{At, Caller, Deferred};

/// A small world.
#[derive(Debug, Clone)]
pub struct World {
    pub name: &'static str,
    pub kind: Traits,
    pub discipline: Discipline,
    /// Who calls what, in order. Callers may share an owner.
    pub callers: Vec<(i64, Vec<Verb>)>,
    pub budget: Budget,
    /// Whether owners hand the lock to each other.
    pub handoff: HandOff,
    /// How many replicas must confirm a lease.
    pub replicas: u32,
    /// Whether the server has ended a lost connection before the next one is used. Otherwise it may still execute what
    /// was on it.
    pub has_fence: bool,
    /// Which inputs have come while which operation was under way.
    pub reached: Reached,
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Lock,
    /// In a hold of its own, which no other call nests in.
    LockAlone,
    TryLock,
    /// With a fixed lease, shorter than the watchdog's.
    LockFixed,
    /// Renewed, and limited.
    LockLimited,
    /// Gives up before a lease ends.
    LockWithin,
    /// Unlocks the latest guard.
    Unlock,
    /// Drops the latest guard.
    Drop,
    /// Detaches the latest guard.
    Detach,
    /// Unlocks without a guard.
    UnlockDetached,
    /// Extends the fixed lease of the latest guard.
    Extend,
    /// Reads, where the others write.
    Read,
    TryRead,
    ReadFixed,
    /// Unlocks the first guard.
    UnlockFirst,
    /// Drops the first guard.
    DropFirst,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A call goes on, claims the lock, or sees that it is over.
    Run(usize),
    /// Its future is dropped.
    Cancel(usize),
    /// The server runs the next script.
    Execute,
    /// The server runs the next script of a connection that was replaced.
    ExecuteLate,
    /// A send is handed to the connection.
    HandOff(usize),
    /// An answer is read by the task that waits for it.
    Deliver(usize),
    /// The same of a renewal or an `extend`, which too few replicas confirm in time.
    DeliverUnconfirmed(usize),
    /// Replicas confirm what a call has taken, or too few do.
    Confirm(usize),
    DoNotConfirm(usize),
    /// The connection is lost, with everything on it.
    Lose,
    /// Something that was deferred is done.
    Apply(Deferred),
    /// A pause between two attempts is over, where there are no messages.
    PauseEnds,
    TimerFires(OwnerKey),
    /// A release is sent.
    Sends(OwnerKey),
    /// There are too many releases under way for this one, and then there is room.
    NoRoom(OwnerKey),
    Room(OwnerKey),
    /// Time goes on to the next instant at which something is due.
    Tick,
    ForeignTakes,
    /// Another process reads.
    ForeignReads,
    ForeignReleases,
    /// Somebody deletes the key.
    Wipe,
    /// `close` goes on.
    Close,
    RuntimeEnds,
    /// The server refuses the next script.
    Refuse,
    /// Somebody forces the lock open.
    Force,
}

pub const RULES: Rules = Rules {
    watchdog_timeout: Duration::from_secs(30),
    command_timeout: Duration::from_secs(3),
    handoff: HandOff::off(),
    fair_wait: Duration::from_secs(10),
    // The next send may come at any time.
    release_pause: Duration::ZERO,
};

/// The longest lease: what is further away is far away.
const LONGEST: Duration = Duration::from_secs(30);

/// A fixed lease, and the limit of a hold.
const FIXED_LEASE: Duration = Duration::from_secs(12);

impl Verb {
    /// What of a lock the call is for, if it has two faces.
    fn face(self) -> Face {
        match self {
            Self::Read | Self::TryRead | Self::ReadFixed => Face::Read,
            _ => Face::Write,
        }
    }

    fn terms(self, replicas: u32, is_reentrant: bool) -> (Order, Terms) {
        let limit = (self == Self::LockLimited).then_some(FIXED_LEASE);
        let (order, kind, lease) = match self {
            Self::TryLock | Self::TryRead => (
                Order::Immediate,
                LeaseKind::Watchdog,
                RULES.watchdog_timeout,
            ),
            Self::LockFixed | Self::ReadFixed => (Order::Queued, LeaseKind::Fixed, FIXED_LEASE),
            Self::LockLimited => (Order::Queued, LeaseKind::Watchdog, FIXED_LEASE),
            _ => (Order::Queued, LeaseKind::Watchdog, RULES.watchdog_timeout),
        };
        let terms = Terms {
            lease,
            kind,
            limit,
            replicas,
            reentrant: is_reentrant && self != Self::LockAlone,
            wait: RULES.fair_wait,
        };
        (order, terms)
    }
}

impl World {
    /// What the core is told along a path, in its own words.
    pub fn inputs(&self, actions: Vec<Action>) -> String {
        let Normal(mut state) = self.init_states().remove(0);
        let mut text = String::new();
        for action in actions {
            // A copy has no record of what was before.
            state = state.clone();
            state.act(action, self);
            text += &format!("{action:?}\n{}", state.core.inputs_text());
        }
        text
    }
}

impl Model for World {
    type State = Normal;
    type Action = Action;

    fn init_states(&self) -> Vec<Normal> {
        let face = match self.discipline {
            Discipline::Plain | Discipline::Fair => Face::Only,
            Discipline::ReadWrite => Face::Write,
        };
        let caller = |(owner, _): &(i64, Vec<Verb>)| Caller {
            owner: OwnerKey::of(ThreadId(*owner), face),
            next: 0,
            at: At::Ready,
            guards: Vec::new(),
            woken: false,
            is_over: false,
        };
        let kind = self.kind;
        let state = State {
            kind,
            core: LockCore::new(
                self.discipline,
                Rules {
                    handoff: self.handoff,
                    ..RULES
                },
                Life::Open,
            ),
            now: Time::START,
            server: Server {
                has_token: kind.has_token,
                queue: (self.discipline == Discipline::Fair).then(Vec::new),
                faces: (self.discipline == Discipline::ReadWrite).then(Faces::default),
                ..Server::default()
            },
            callers: self.callers.iter().map(caller).collect(),
            outbox: Vec::new(),
            wire: std::collections::VecDeque::new(),
            has_fence: self.has_fence,
            is_unfenced: false,
            late: std::collections::VecDeque::new(),
            last_taking: Unseen(0),
            gone: Unseen::default(),
            answers: Vec::new(),
            deferred: std::collections::BTreeSet::new(),
            subscribed: std::collections::BTreeSet::new(),
            timers: std::collections::BTreeMap::new(),
            sends: std::collections::BTreeSet::new(),
            without_room: std::collections::BTreeSet::new(),
            ended: std::collections::BTreeSet::new(),
            budget: self.budget,
            replicas: self.replicas,
            life: Life::Open,
            closing: 0,
            robbed: false,
            late_by: Duration::ZERO,
            expired: false,
            has_expired: false,
            given_up: false,
            latest: None,
            wrong: None,
            reached: self.reached,
        };
        vec![Normal(state)]
    }

    fn actions(&self, Normal(state): &Normal, actions: &mut Vec<Action>) {
        let callers = 0..state.callers.len();
        actions.extend(
            callers
                .clone()
                .filter(|nth| state.can_run(*nth, self))
                .map(Action::Run),
        );
        if state.budget.cancels > 0 || state.has_ended() {
            let cancelled = callers.filter(|nth| state.callers[*nth].at != At::Ready);
            actions.extend(cancelled.map(Action::Cancel));
        }
        if !state.has_ended() {
            actions.extend((0..state.outbox.len()).map(Action::HandOff));
        }
        if !state.wire.is_empty() {
            actions.push(Action::Execute);
        }
        if !state.late.is_empty() {
            actions.push(Action::ExecuteLate);
        }
        actions.extend((0..state.answers.len()).map(Action::Deliver));
        state.replica_actions(actions);
        if state.budget.losses > 0 && state.wire.len() + state.answers.len() > 0 {
            actions.push(Action::Lose);
        }
        actions.extend(state.deferred.iter().copied().map(Action::Apply));
        if state.pauses() {
            actions.push(Action::PauseEnds);
        }
        let fires = state.timers.iter().filter(|(_, at)| **at <= state.now);
        actions.extend(fires.map(|(owner, _)| Action::TimerFires(*owner)));
        actions.extend(state.sends.iter().map(|(owner, _)| Action::Sends(*owner)));
        if state.budget.crowds > 0 {
            let background = state.sends.iter();
            let background = background.filter(|(owner, _)| !state.core.is_awaited(*owner));
            actions.extend(background.map(|(owner, _)| Action::NoRoom(*owner)));
        }
        let without_room = state.without_room.iter();
        actions.extend(without_room.map(|(owner, _)| Action::Room(*owner)));
        if state.budget.ticks > 0 && state.next_due().is_some() {
            actions.push(Action::Tick);
        }
        state.foreign_actions(actions);
        state.end_actions(actions);
    }

    fn next_state(&self, Normal(before): &Normal, action: Action) -> Option<Normal> {
        let mut state = before.clone();
        state.act(action, self);
        Some(Normal(state))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(
            "nothing is wrong",
            |world: &Self, Normal(state): &Normal| match state.problem(world) {
                None => true,
                Some(problem) => {
                    eprintln!("{}: {problem}", world.name);
                    false
                }
            },
        )]
    }
}
