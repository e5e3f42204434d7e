//! What happens in one simulated run, as plain data: it can be rolled from a seed, printed, and cut
//! down.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use redisson_lock::{Announce, LockKind};
use redisson_lock_core::HandOff;
use redisson_lock_test::sim::{APPLIED_LATE_MS, Latency};

/// Clients with tasks, a Java peer, and faults. A run is the same for the same program.
#[derive(Debug, Clone)]
pub struct Program {
    pub seed: u64,
    /// Of each lock.
    pub kinds: [LockKind; LOCKS.len()],
    /// For how long a place in the queue of a fair lock counts after its turn has come.
    pub fair_wait_ms: u64,
    /// Servers report changes of what is held.
    pub reports: bool,
    /// How Java reads.
    pub java_reads: JavaReads,
    /// Some calls take several locks as one.
    pub several: bool,
    /// Several servers, whose slots move.
    pub cluster: bool,
    pub latency: Latency,
    /// How many of a hundred answers reach a caller that is not polled immediately.
    pub late_percent: u8,
    pub watchdog_ms: u64,
    pub command_ms: u64,
    pub clients: Vec<ClientPlan>,
    pub rounds: Vec<Round>,
}

impl Program {
    /// Whether its servers know the older version of the protocol alone.
    pub fn is_old(&self) -> bool {
        self.seed % 16 == 5
    }

    /// How its clients announce releases: in a cluster in each way.
    pub fn announce(&self) -> Announce {
        use Announce::{Auto, Both, Classic, Sharded};
        match self.cluster {
            true => [Auto, Both, Classic, Sharded][(self.seed % 4) as usize],
            false => Classic,
        }
    }
}

#[derive(Debug, Clone)]
pub struct ClientPlan {
    pub fence: bool,
    /// It has the right to kill its predecessors.
    pub may_kill: bool,
    pub connections: usize,
    pub prefix: bool,
    /// The number of passes in a row.
    pub passes: u32,
}

impl ClientPlan {
    /// As most are.
    pub fn simple(fence: bool) -> Self {
        Self {
            fence,
            may_kill: fence,
            connections: 1,
            prefix: false,
            passes: HandOff::default().passes,
        }
    }
}

/// What runs side by side. Between two rounds everything comes to rest and the counts are compared.
#[derive(Debug, Clone, Default)]
pub struct Round {
    pub tasks: Vec<TaskPlan>,
    pub java: Vec<JavaStep>,
    pub faults: Vec<(u64, Fault)>,
}

#[derive(Debug, Clone)]
pub struct TaskPlan {
    pub client: usize,
    /// Tasks with the same number share an owner.
    pub owner: i64,
    pub steps: Vec<Step>,
}

/// The number of a lock is that of its name in `LOCKS`. From [`READS`] on it is the part that reads of the read-write lock
/// with that number less.
#[derive(Debug, Clone)]
pub enum Step {
    Take {
        lock: usize,
        verb: Verb,
        lease_ms: Option<u64>,
        max_hold_ms: Option<u64>,
        until: Until,
    },
    /// Two sections side by side in one task, by one owner.
    Both {
        lock: usize,
        inside_ms: u64,
    },
    /// The same, of which one writes and the other reads.
    Parts {
        lock: usize,
        inside_ms: u64,
    },
    Unlock {
        which: usize,
        until: Until,
    },
    /// Of this lock, and this part of it.
    UnlockLatest {
        lock: usize,
        drops: bool,
    },
    Drop {
        which: usize,
    },
    Detach {
        which: usize,
    },
    UnlockDetached {
        lock: usize,
        until: Until,
    },
    Extend {
        which: usize,
        lease_ms: u64,
        until: Until,
    },
    Inspect {
        lock: usize,
        what: Inspect,
        until: Until,
    },
    Force {
        lock: usize,
        until: Until,
    },
    Sleep {
        ms: u64,
    },
    /// `try_lock` again and again.
    Poll {
        lock: usize,
        times: u32,
    },
    Several(Several),
}

/// What is done with several locks as one.
#[derive(Debug, Clone)]
pub enum Several {
    Take {
        locks: Vec<usize>,
        verb: Verb,
        lease_ms: Option<u64>,
        until: Until,
    },
    Unlock {
        which: usize,
        until: Until,
    },
    Drop {
        which: usize,
    },
    Extend {
        which: usize,
        lease_ms: u64,
        until: Until,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Lock,
    Try,
    TryFor(u64),
    TryUntil(u64),
    /// `run` with a body that takes this long.
    Run(u64),
}

impl Verb {
    /// A wait of zero is none.
    pub(super) fn is_one_attempt(self) -> bool {
        matches!(self, Self::Try | Self::TryFor(0) | Self::TryUntil(0))
    }

    /// After which time the call ends, whatever the server does.
    pub(super) fn ends_within(self) -> Option<Duration> {
        match self {
            Self::TryFor(0) | Self::TryUntil(0) => Some(ONE_ANSWER + LATE),
            Self::TryFor(wait) | Self::TryUntil(wait) => Some(Duration::from_millis(wait) + LATE),
            Self::Lock | Self::Try | Self::Run(_) => None,
        }
    }
}

/// How long a call waits for the answer to its only attempt, if it has a limit that has passed.
const ONE_ANSWER: Duration = Duration::from_millis(40);

/// How late a call may end that has a limit.
pub(super) const LATE: Duration = Duration::from_millis(50);

/// The verbs that ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspect {
    HoldCount,
    IsLocked,
    IsHeld,
    LeaseLeft,
    Inspect,
}

impl Inspect {
    pub(super) const ALL: [Self; 5] = [
        Self::HoldCount,
        Self::IsLocked,
        Self::IsHeld,
        Self::LeaseLeft,
        Self::Inspect,
    ];
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How long the caller polls a future before it drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    Done,
    Polls(u32),
    Ms(u64),
    /// It is polled once, then not for this many milliseconds, and goes on.
    Kept(u64),
}

#[derive(Debug, Clone)]
pub enum JavaStep {
    Hold {
        wait_ms: u64,
        lock: usize,
        depth: u32,
        hold_ms: u64,
        dies: bool,
    },
    Force {
        wait_ms: u64,
        lock: usize,
    },
    /// It queues for a fair lock, and is never heard of again.
    DieInQueue {
        wait_ms: u64,
        lock: usize,
    },
    /// It writes, reads inside of that, and goes on reading.
    Downgrade {
        wait_ms: u64,
        lock: usize,
        hold_ms: u64,
    },
}

/// What a version of Redisson does with the keys and the lease of read holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Up to 3.8.0: it renews the lock alone, and sets its lease when it acquires it, also to less.
    First,
    /// 3.8.1 to 4.3: it renews the keys of all readers.
    Second,
    /// It renews its own keys.
    Third,
}

#[derive(Debug, Clone, Copy)]
pub struct JavaReads {
    pub generation: Generation,
    /// Its watchdog timeout.
    pub watchdog_ms: u64,
    /// It asks for this lease, and renews nothing.
    pub lease_ms: Option<u64>,
}

impl JavaReads {
    /// As our clients do it.
    pub(super) fn like_ours(watchdog_ms: u64) -> Self {
        Self {
            generation: Generation::Third,
            watchdog_ms,
            lease_ms: None,
        }
    }
}

impl JavaStep {
    pub(super) fn lock(&self) -> usize {
        match self {
            Self::Hold { lock, .. }
            | Self::Force { lock, .. }
            | Self::DieInQueue { lock, .. }
            | Self::Downgrade { lock, .. } => *lock,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Fault {
    Cut {
        client: usize,
        reported: bool,
    },
    Down {
        ms: u64,
    },
    /// The server does nothing for this time, and keeps its connections.
    Freeze {
        ms: u64,
    },
    Restart,
    Wipe,
    FlushScripts,
    Slow {
        ms: u64,
        latency: Latency,
    },
    /// No task is polled for this time.
    StandStill {
        ms: u64,
    },
    /// The thread that sends the next acquire of a client stands still for this time before it hands it over, and no other.
    Suspend {
        client: usize,
        ms: u64,
    },
    Deny {
        client: usize,
        right: &'static str,
        ms: u64,
    },
    Deafen {
        client: usize,
        ms: u64,
    },
    Noise {
        lock: usize,
    },
    Close {
        client: usize,
        grace_ms: u64,
    },
    /// The slot of a lock moves: immediately, or key by key within this time.
    Move {
        lock: usize,
        to: usize,
        ms: u64,
        /// Which of the slot's keys have moved after half of it.
        keys: KeysMoved,
        /// The other nodes have heard of it by then.
        gossip_ms: u64,
        new_epoch: bool,
    },
    /// A replica that was cut off for a while takes over. The demoted primary responds for this time.
    Promote {
        from: usize,
        lag_ms: u64,
        stale_ms: u64,
    },
    /// No slot is served for this time.
    NotServed {
        ms: u64,
    },
    /// The runtime of a client ends, with all its tasks.
    EndRuntime {
        client: usize,
    },
}

/// The keys of the locks. A client with a prefix knows them without it.
pub(crate) const LOCKS: [&str; 3] = ["app:stock", "app:{shop}:till", "app:ledger"];

/// The number of them in a program that takes each alone.
pub(super) const SINGLE: usize = 2;

pub(crate) const PREFIX: &str = "app:";

/// From this number on a lock is the part that reads.
pub(crate) const READS: usize = LOCKS.len();

/// The key of a lock, whichever part it is.
pub(crate) fn key_of(lock: usize) -> &'static str {
    LOCKS[lock % READS]
}

/// The kind of a lock, or of the part that reads.
pub(crate) fn kind_of(kinds: [LockKind; LOCKS.len()], lock: usize) -> LockKind {
    match lock < READS {
        true => kinds[lock],
        false => LockKind::Read,
    }
}

impl Fault {
    /// A slot that moves, of which everybody hears immediately. No call fails because of it.
    fn is_smooth(&self) -> bool {
        matches!(
            self,
            Self::Move {
                gossip_ms: 0,
                keys: KeysMoved::All,
                ..
            }
        )
    }
}

/// Some of the keys of a slot.
#[derive(Debug, Clone, Copy)]
pub enum KeysMoved {
    All,
    /// Each second one, by this number another half.
    Half(u64),
}

impl KeysMoved {
    pub(crate) fn has(self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Half(number) => {
                let mut hasher = DefaultHasher::new();
                (number, key).hash(&mut hasher);
                hasher.finish().is_multiple_of(2)
            }
        }
    }
}

impl Program {
    /// The longest that one thing can take on the way, or until it is noticed.
    pub fn longest(&self) -> u64 {
        let late = if self.late_percent > 0 {
            APPLIED_LATE_MS
        } else {
            0
        };
        self.latency.usual.max(self.latency.seldom) + late
    }

    /// The keys of the locks of these kinds.
    pub(super) fn locks_of(&self, kinds: &[LockKind]) -> Vec<&'static str> {
        let locks = LOCKS.into_iter().zip(self.kinds);
        let found = locks.filter(|(_, kind)| kinds.contains(kind));
        found.map(|(key, _)| key).collect()
    }

    /// For how many leases a hold may last that is not released. Java adds them when it writes and nests.
    pub(super) fn leases_in_a_row(&self) -> u32 {
        match self.kinds.contains(&LockKind::Write) {
            true => 4,
            false => 2,
        }
    }

    pub fn is_healthy(&self) -> bool {
        self.rounds.iter().all(|round| round.faults.is_empty())
            && self.longest() * self.steps_of_a_first_call() < self.command_ms / 2
    }

    /// Whether a call may be refused because nobody serves its slot in time.
    pub(super) fn may_be_not_served(&self) -> bool {
        let is_slow = self.longest() * 2 * self.steps_of_a_first_call() > self.command_ms;
        self.cluster && (is_slow || self.has(|fault| !fault.is_smooth()))
    }

    /// A first call in a cluster opens its connection: connecting, and four questions with their answers.
    fn steps_of_a_first_call(&self) -> u64 {
        if self.cluster { 9 } else { 2 }
    }

    /// What is promised about counts may be broken for the length of a lease: no fence, or a
    /// release was refused.
    pub fn is_relaxed(&self) -> bool {
        let fenced = (0..self.clients.len()).all(|nth| self.is_fenced(nth));
        let denies = |fault: &(u64, Fault)| matches!(fault.1, Fault::Deny { .. });
        !fenced
            || self
                .rounds
                .iter()
                .flat_map(|round| &round.faults)
                .any(denies)
    }

    /// Nothing of a lost connection of this client is executed after its successor was used.
    pub fn is_fenced(&self, nth: usize) -> bool {
        let takes_it_away = |fault: &Fault| matches!(fault, Fault::Deny { client, right, .. } if *client == nth && right.starts_with("client|"));
        self.clients[nth].fence && self.clients[nth].may_kill && !self.has(takes_it_away)
    }

    pub fn has(&self, what: impl Fn(&Fault) -> bool) -> bool {
        self.rounds
            .iter()
            .flat_map(|round| &round.faults)
            .any(|(_, fault)| what(fault))
    }
}
