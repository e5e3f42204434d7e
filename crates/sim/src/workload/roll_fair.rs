//! Programs with fair locks.

use fastrand::Rng;
use redisson_lock::LockKind;

use super::program::{Fault, JavaStep, Program};

impl Program {
    /// The program of a seed with fair locks, in whose queues Java waits too, and dies now and then.
    #[must_use]
    pub fn roll_fair(seed: u64) -> Self {
        let mut program = Self::roll(seed).of_kind(LockKind::Fair);
        let mut rng = Rng::with_seed(seed ^ APART);
        let dies = rng.u8(0..4) == 0;
        for round in &mut program.rounds {
            for _ in 0..rng.usize(0..=usize::from(dies) * 2) {
                let (wait_ms, lock) = (rng.u64(0..2_000), usize::from(rng.u8(0..4) == 0));
                let at = rng.usize(0..=round.java.len());
                round
                    .java
                    .insert(at, JavaStep::DieInQueue { wait_ms, lock });
            }
        }
        // A place that is not given up holds all others up for as long.
        let is_left = |fault: &Fault| {
            matches!(
                fault,
                Fault::Close { .. } | Fault::EndRuntime { .. } | Fault::Deny { .. }
            )
        };
        let stay = dies || program.is_relaxed() || program.has(is_left);
        program.fair_wait_ms = match stay {
            true => [1_500, 5_000][rng.usize(0..2)],
            false => [1_500, 5_000, 300_000, 300_000][rng.usize(0..4)],
        };
        program
    }
}

/// A row of random numbers of its own.
const APART: u64 = 0x000f_a125_eed0;
