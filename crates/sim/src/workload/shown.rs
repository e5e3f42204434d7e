//! A program as text, for the report of a violation.

use std::fmt;

use redisson_lock::LockKind;
use redisson_lock_test::sim::Latency;

use super::program::Program;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency {
            usual,
            seldom,
            seldom_percent,
            ..
        } = self.latency;
        writeln!(
            f,
            "seed {}, {:?} locks: command timeout {} ms, watchdog timeout {} ms, latency up to {usual} ms, {seldom_percent} % up to {seldom} ms, {} % of the answers applied late",
            self.seed, self.kinds, self.command_ms, self.watchdog_ms, self.late_percent
        )?;
        if self.reports {
            writeln!(f, "  changes are reported")?;
        }
        if self.kinds.contains(&LockKind::Fair) {
            writeln!(f, "  a place counts for {} ms", self.fair_wait_ms)?;
        }
        if self.kinds.contains(&LockKind::Write) {
            writeln!(f, "  Java: {:?}", self.java_reads)?;
        }
        for (nth, client) in self.clients.iter().enumerate() {
            writeln!(f, "  client {nth}: {client:?}")?;
        }
        for (nth, round) in self.rounds.iter().enumerate() {
            writeln!(f, "  round {}", nth + 1)?;
            for task in &round.tasks {
                writeln!(
                    f,
                    "    client {} owner {}: {:?}",
                    task.client, task.owner, task.steps
                )?;
            }
            if !round.java.is_empty() {
                writeln!(f, "    Java: {:?}", round.java)?;
            }
            for (at, fault) in &round.faults {
                writeln!(f, "    at {at} ms: {fault:?}")?;
            }
        }
        Ok(())
    }
}
