//! The list of scenarios, and the names of the systems and locks in them.

use serde::Serialize;

use crate::sample;

pub const OURS: &str = "redisson-lock";
pub const RSLOCK: &str = "rslock 0.10";
pub const FRED: &str = "floor: two scripts (fred)";
pub const FRED_DEFAULT: &str = "floor: two scripts (fred, default sockets)";
pub const REDIS: &str = "floor: two scripts (redis-rs)";

/// A name, what is done, and which figures are compared.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Scenario {
    pub name: &'static str,
    pub text: &'static str,
    pub compared: &'static [&'static str],
}

impl Scenario {
    /// Whether it can be measured and written to the page without the rest.
    pub fn has_own_part(&self) -> bool {
        OWN_PART.contains(&self.name)
    }
}

pub const OWN_PART: [&str; 2] = ["fair16", "readers16"];

const RATES: &[&str] = &[sample::PER_SECOND, sample::P50];
/// At one lock the middle says little: a task that keeps the lock does not wait.
const SHARED: &[&str] = &[sample::PER_SECOND, sample::P99];

pub const SCENARIOS: [Scenario; 15] = [
    Scenario {
        name: "solo",
        text: "one task, one lock: lock, unlock, again",
        compared: RATES,
    },
    Scenario {
        name: "spread64",
        text: "64 tasks, each with its own lock",
        compared: RATES,
    },
    Scenario {
        name: "far1",
        text: "one task, one lock, on a server a millisecond away",
        compared: RATES,
    },
    Scenario {
        name: "far8",
        text: "8 tasks, each with its own lock, on a server a millisecond away",
        compared: RATES,
    },
    Scenario {
        name: "farther1",
        text: "one task, one lock, on a server ten milliseconds away",
        compared: RATES,
    },
    Scenario {
        name: "farther64",
        text: "64 tasks, each with its own lock, on a server ten milliseconds away",
        compared: RATES,
    },
    Scenario {
        name: "contend16",
        text: "16 tasks of one client, one lock, an empty critical section",
        compared: SHARED,
    },
    Scenario {
        name: "contend4x4",
        text: "4 clients with 4 tasks each, one lock",
        compared: SHARED,
    },
    Scenario {
        name: "beside-jvm",
        text: "8 tasks beside 8 threads of a JVM, one lock",
        compared: SHARED,
    },
    Scenario {
        name: "handoff",
        text: "from the call of unlock to the return of lock in another client, whose task was asleep for 10 ms",
        compared: &[sample::P50, sample::P99],
    },
    Scenario {
        name: "herd1000",
        text: "1,000 waiters of one client, one lock; from the unlock until all had it once",
        compared: &[sample::PER_SECOND],
    },
    Scenario {
        name: "fair16",
        text: "16 tasks of one client, one fair lock, an empty critical section",
        compared: SHARED,
    },
    Scenario {
        name: "readers16",
        text: "16 tasks that read and 2 that write, of one client, one read-write lock, empty critical sections",
        compared: &[sample::READS, sample::WRITES],
    },
    Scenario {
        name: "hold10k",
        text: "10,000 locks held, renewed every second",
        compared: HELD,
    },
    Scenario {
        name: "hold50k",
        text: "50,000 locks held, renewed every second",
        compared: HELD,
    },
];

pub const MORE_CONNECTIONS: [(usize, &str); 2] = [
    (2, "redisson-lock, 2 connections"),
    (4, "redisson-lock, 4 connections"),
];

const HELD: &[&str] = &[sample::CPU, sample::HEAP, sample::RSS];

/// The name of a system's lock beside ours. Each has its own: a client that has just waited listens on
/// for a while, and would be woken by every message of the next system.
pub fn own(name: &str, system: &str) -> String {
    format!("{name}-{system}")
}
