//! Programs with read-write locks.

use fastrand::Rng;
use redisson_lock::LockKind;

use super::program::{
    Fault, Generation, JavaReads, JavaStep, LOCKS, Program, READS, Step, Until, Verb, kind_of,
};

impl Program {
    /// The program of a seed with read-write locks, at which two threads of Java read and write. In every fourth program
    /// the second lock is of another kind.
    #[must_use]
    pub fn roll_read_write(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ APART);
        let rng = &mut rng;
        let mut kinds = [LockKind::Write; LOCKS.len()];
        if rng.u8(0..4) == 0 {
            kinds[1] = OTHERS[rng.usize(0..OTHERS.len())];
        }
        let mut program = Self::roll(seed).of_kinds(kinds);
        program.java_reads = JavaReads::roll(rng, program.watchdog_ms);
        for round in &mut program.rounds {
            for task in &mut round.tasks {
                let steps = std::mem::take(&mut task.steps).into_iter();
                task.steps = steps.flat_map(|step| changed(step, kinds, rng)).collect();
            }
            for step in &mut round.java {
                change_of_java(step, kinds, rng);
            }
        }
        program
    }

    /// The same in a cluster, whose slots move key by key. Without Java, whose scripts take a read hold for over whose
    /// key is at another node.
    pub fn roll_read_write_in_cluster(seed: u64) -> Self {
        let mut program = Self::roll_read_write(seed);
        program.cluster = true;
        let mut rng = Rng::with_seed(!seed);
        for round in &mut program.rounds {
            round.java.clear();
            let moves = 0..rng.usize(0..=3);
            let moves = moves.map(|_| (rng.u64(0..3_000), Fault::half_moved(&mut rng)));
            round.faults.extend(moves);
        }
        program
    }
}

impl JavaReads {
    fn roll(rng: &mut Rng, watchdog_ms: u64) -> Self {
        let generations = [Generation::First, Generation::Second, Generation::Third];
        // With a shorter lease than ours it shortens that of the lock, and of other readers.
        let shortens = rng.u8(0..3) == 0;
        Self {
            generation: generations[rng.usize(0..3)],
            watchdog_ms: match shortens {
                true => watchdog_ms / [2, 3, 10][rng.usize(0..3)],
                false => watchdog_ms,
            },
            lease_ms: (shortens && rng.bool()).then(|| [50, 400, 1_000][rng.usize(0..3)]),
        }
    }
}

/// The step at one of the parts, or what is done with both instead.
fn changed(mut step: Step, kinds: [LockKind; LOCKS.len()], rng: &mut Rng) -> Vec<Step> {
    let (Step::Take { lock, .. }
    | Step::Both { lock, .. }
    | Step::UnlockDetached { lock, .. }
    | Step::Inspect { lock, .. }
    | Step::Force { lock, .. }
    | Step::Poll { lock, .. }) = &mut step
    else {
        return vec![step];
    };
    let write = *lock;
    if kind_of(kinds, write) != LockKind::Write {
        return vec![step];
    }
    if rng.u8(0..5) > 1 {
        *lock = write + READS;
    }
    match step {
        Step::Both { inside_ms, .. } if rng.bool() => vec![Step::Parts {
            lock: write,
            inside_ms,
        }],
        Step::Take { .. } if rng.u8(0..6) == 0 => downgrade(write, rng),
        step => vec![step],
    }
}

/// Writes, reads inside of that, gives the first up, and goes on reading.
fn downgrade(write: usize, rng: &mut Rng) -> Vec<Step> {
    let read = write + READS;
    let take = |lock, verb, lease_ms, until| Step::Take {
        lock,
        verb,
        lease_ms,
        max_hold_ms: None,
        until,
    };
    let lease_ms = (rng.u8(0..4) == 0).then(|| [300, 2_000, 8_000][rng.usize(0..3)]);
    let until = match rng.u8(0..8) {
        0 => Until::Polls(rng.u32(0..8)),
        1 => Until::Ms(rng.u64(0..40)),
        _ => Until::Done,
    };
    let pause = |rng: &mut Rng| Step::Sleep {
        ms: [0, 2, 30, 600, 2_500][rng.usize(0..5)],
    };
    let mut steps = vec![take(write, Verb::TryFor(2_000), None, Until::Done)];
    steps.extend((0..rng.u8(0..2)).map(|_| pause(rng)));
    steps.extend((0..rng.u8(1..3)).map(|_| take(read, Verb::Lock, lease_ms, until)));
    let lock = write;
    let drops = rng.u8(0..3) == 0;
    steps.push(Step::UnlockLatest { lock, drops });
    steps.push(pause(rng));
    if rng.u8(0..4) > 0 {
        let (lock, drops) = (read, rng.u8(0..3) == 0);
        steps.push(Step::UnlockLatest { lock, drops });
    }
    steps
}

fn change_of_java(step: &mut JavaStep, kinds: [LockKind; LOCKS.len()], rng: &mut Rng) {
    if kind_of(kinds, step.lock()) != LockKind::Write {
        return;
    }
    let reads = rng.bool();
    match step {
        JavaStep::Hold {
            wait_ms,
            lock,
            hold_ms,
            ..
        } if rng.u8(0..6) == 0 => {
            *step = JavaStep::Downgrade {
                wait_ms: *wait_ms,
                lock: *lock,
                hold_ms: *hold_ms,
            };
        }
        JavaStep::Hold { lock, .. } | JavaStep::Force { lock, .. } if reads => *lock += READS,
        _ => {}
    }
}

/// The kinds beside which read-write locks are.
const OTHERS: [LockKind; 5] = [
    LockKind::Plain,
    LockKind::Fair,
    LockKind::Fenced,
    LockKind::Spin,
    LockKind::String,
];

/// A row of random numbers of its own.
const APART: u64 = 0x2ead_0071_7e00;
