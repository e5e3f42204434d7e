//! Programs that take several locks as one, beside callers of each.

use fastrand::Rng;
use redisson_lock::LockKind;

use super::program::{LOCKS, Program, Several, Step, Until};

impl Program {
    /// The same program with locks of several kinds, some of whose calls take two or three of them as one.
    #[must_use]
    pub fn with_several(self) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ APART);
        let mixed = rng.bool();
        // A slot moves without the tokens of its locks here.
        let kinds = if self.cluster { &KINDS[1..] } else { &KINDS };
        let kinds = LOCKS.map(|_| match mixed {
            true => kinds[rng.usize(0..kinds.len())],
            false => LockKind::Plain,
        });
        let mut program = self.of_kinds(kinds);
        program.several = true;
        for task in program.rounds.iter_mut().flat_map(|round| &mut round.tasks) {
            task.steps = std::mem::take(&mut task.steps)
                .into_iter()
                .flat_map(|step| changed(step, &mut rng))
                .collect();
        }
        program
    }
}

/// The step, or what is done instead of it with several locks.
fn changed(step: Step, rng: &mut Rng) -> Vec<Step> {
    if rng.bool() {
        return vec![elsewhere(step, rng)];
    }
    match step {
        Step::Take {
            verb,
            lease_ms,
            until,
            ..
        } => {
            let mut locks: Vec<usize> = (0..LOCKS.len()).collect();
            rng.shuffle(&mut locks);
            locks.truncate(rng.usize(2..=LOCKS.len()));
            let mut steps = vec![Step::Several(Several::Take {
                locks,
                verb,
                lease_ms,
                until,
            })];
            if rng.u8(0..3) > 0 {
                let ms = [0, 3, 60, 700, 2_500][rng.usize(0..5)];
                let last = usize::MAX;
                let until = Until::Done;
                steps.push(Step::Sleep { ms });
                steps.push(Step::Several(Several::Unlock { which: last, until }));
            }
            steps
        }
        Step::Unlock { which, until } => vec![Step::Several(Several::Unlock { which, until })],
        Step::Drop { which } => vec![Step::Several(Several::Drop { which })],
        Step::Extend {
            which,
            lease_ms,
            until,
        } => vec![Step::Several(Several::Extend {
            which,
            lease_ms,
            until,
        })],
        step => vec![step],
    }
}

/// Some callers of one lock are at the last one.
fn elsewhere(mut step: Step, rng: &mut Rng) -> Step {
    if let Step::Take { lock, .. } | Step::Force { lock, .. } | Step::Poll { lock, .. } = &mut step
        && rng.u8(0..4) == 0
    {
        *lock = LOCKS.len() - 1;
    }
    step
}

const KINDS: [LockKind; 4] = [
    LockKind::Fenced,
    LockKind::Plain,
    LockKind::Spin,
    LockKind::String,
];

/// A row of random numbers of its own.
const APART: u64 = 0x5eed_0f5e;
