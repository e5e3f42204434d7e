//! Schedules by the thousand: each is a program rolled from a seed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::LockKind;
use sim::oracle::Counts;
use sim::workload::{Program, run, shrink};
use test_support::{Limited, may_take};

#[test]
fn every_schedule_keeps_the_promises() {
    every(Program::roll, |_, _| {});
}

#[test]
fn every_schedule_of_spin_locks_keeps_the_promises() {
    every(
        |seed| Program::roll(seed).of_kind(LockKind::Spin),
        |_, _| {},
    );
}

#[test]
fn every_schedule_of_fenced_locks_keeps_the_promises() {
    every(
        |seed| Program::roll(seed).of_kind(LockKind::Fenced),
        |_, _| {},
    );
}

#[test]
fn every_schedule_of_string_locks_keeps_the_promises() {
    every(
        |seed| Program::roll(seed).of_kind(LockKind::String),
        |_, _| {},
    );
}

/// With Java in the queue, which dies there now and then.
#[test]
fn every_schedule_of_fair_locks_keeps_the_promises() {
    every(Program::roll_fair, places_are_taken_and_used);
}

/// An empty queue would otherwise pass everything.
fn places_are_taken_and_used(schedules: u64, counts: &Counts) {
    let (queued, turns) = (counts.queued, counts.turns);
    let enough = schedules < 1_000 || queued >= schedules && turns >= schedules / 2;
    assert!(
        enough,
        "{queued} places, {turns} of them used, in {schedules} schedules"
    );
}

/// With two threads of Java that read and write, as three generations of Redisson do it.
#[test]
fn every_schedule_of_read_write_locks_keeps_the_promises() {
    every(Program::roll_read_write, owners_are_beside_each_other);
}

/// Of the keys of a slot that moves, some are at one node and some at another for a while.
#[test]
fn every_schedule_of_read_write_locks_in_a_cluster_keeps_the_promises() {
    every(Program::roll_read_write_in_cluster, |schedules, counts| {
        let enough = schedules < 1_000 || counts.redirects >= schedules / 4;
        assert!(
            enough,
            "{} redirections in {schedules} schedules",
            counts.redirects
        );
        owners_are_beside_each_other(schedules, counts);
    });
}

/// A lock that one owner has at a time would otherwise pass everything.
fn owners_are_beside_each_other(schedules: u64, counts: &Counts) {
    let (beside, downgrades) = (counts.beside, counts.downgrades);
    let enough = schedules < 1_000 || beside >= schedules / 2 && downgrades >= schedules / 20;
    assert!(
        enough,
        "{beside} readers beside others, {downgrades} downgrades, in {schedules} schedules"
    );
}

/// With locks of several kinds, of which some callers take two or three as one.
#[test]
fn every_schedule_with_several_locks_keeps_the_promises() {
    every(|seed| Program::roll(seed).with_several(), several_are_taken);
}

#[test]
fn every_schedule_with_several_locks_in_a_cluster_keeps_the_promises() {
    every(
        |seed| Program::roll_in_cluster(seed).with_several(),
        |schedules, counts| {
            several_are_taken(schedules, counts);
            what_a_cluster_is_for_has_happened(schedules, counts);
        },
    );
}

/// Calls that always give up would otherwise pass everything.
fn several_are_taken(schedules: u64, counts: &Counts) {
    let seen = counts.several;
    let enough = schedules < 1_000 || seen >= schedules / 2;
    assert!(
        enough,
        "several locks {seen} times in {schedules} schedules"
    );
}

/// With slots that move, and primaries that are taken over from.
#[test]
fn every_schedule_in_a_cluster_keeps_the_promises() {
    every(Program::roll_in_cluster, what_a_cluster_is_for_has_happened);
}

/// A server that refuses to move a slot or to take over would otherwise pass everything. A quarter or a
/// third of what is usually seen.
fn what_a_cluster_is_for_has_happened(schedules: u64, counts: &Counts) {
    if schedules < 1_000 {
        return;
    }
    let least = |what: &str, seen: u64, least: u64| {
        assert!(seen >= least, "{seen} {what} in {schedules} schedules");
    };
    least("redirections", counts.redirects, schedules / 4);
    least("failovers", counts.failovers, schedules / 4);
    least(
        "losses by a promotion",
        counts.lost_by_promotion,
        schedules / 50,
    );
}

/// `SIM_FIRST`, `SIM_SEEDS`, `SIM_SEED`, `SIM_SECONDS`: see `cargo xtask sim`.
fn every(roll: fn(u64) -> Program, has_happened: fn(u64, &Counts)) {
    // Each schedule has a limit of its own.
    may_take(Duration::MAX);
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    if let Some(seed) = number("SIM_SEED") {
        return replay(&roll(seed));
    }
    let first = number("SIM_FIRST").unwrap_or(1);
    let seeds = number("SIM_SEEDS").unwrap_or(100);
    let end = number("SIM_SECONDS").map(Duration::from_secs);
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    let counts = Mutex::new((Counts::default(), 0));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let (next, found, counts) = (&next, &found, &counts);
        for _ in 0..workers {
            scope.spawn(move || {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let over = end.map_or(nth >= seeds, |end| start.elapsed() >= end);
                    if over || !found.lock().expect("unpoisoned").is_empty() {
                        return;
                    }
                    let seed = first.wrapping_add(nth);
                    // Something may spin, and paused time stand still.
                    let _limited = Limited::new(format!("seed {seed}"));
                    let outcome = run(&roll(seed), false);
                    let mut counts = counts.lock().expect("unpoisoned");
                    counts.0.add(outcome.counts);
                    counts.1 += 1;
                    if outcome.violation.is_some() {
                        found.lock().expect("unpoisoned").push(seed);
                    }
                }
            });
        }
    });
    let (counts, schedules) = *counts.lock().expect("unpoisoned");
    let found = found.into_inner().expect("unpoisoned");
    println!(
        "{schedules} schedules, {} scripts ({} late), {} holds ({} of several locks), {} drops, {} ambiguous outcomes, {} losses reported \
         ({} by a promotion), {} faults, {} redirections, {} failovers, {} places ({} used), {} readers beside others, {} downgrades, {} violations, {:.1} s",
        counts.scripts,
        counts.late,
        counts.taken,
        counts.several,
        counts.drops,
        counts.ambiguous,
        counts.lost,
        counts.lost_by_promotion,
        counts.faults,
        counts.redirects,
        counts.failovers,
        counts.queued,
        counts.turns,
        counts.beside,
        counts.downgrades,
        found.len(),
        start.elapsed().as_secs_f64()
    );
    if let Some(&seed) = found.iter().min() {
        // Planted bugs only have to be found.
        assert!(std::env::var_os("SIM_BRIEF").is_none(), "seed {seed}");
        replay(&roll(seed));
    }
    has_happened(schedules, &counts);
}

/// Runs one seed again, cut down to what is needed to see the violation.
fn replay(program: &Program) {
    let seed = program.seed;
    let outcome = run(program, true);
    let Some(violation) = outcome.violation.clone() else {
        println!(
            "seed {seed}: no violation\n{program}\n{}",
            outcome.history.join("\n")
        );
        return;
    };
    let (program, outcome) = shrink(program.clone(), outcome);
    println!("{}", outcome.history.join("\n"));
    println!("\n{program}");
    let cluster = match program.cluster {
        true => "--topology cluster ",
        false => "",
    };
    let kind = match program.kinds {
        _ if program.several => "--kind multi ".to_owned(),
        [LockKind::Plain, ..] => String::new(),
        [LockKind::Write, ..] => "--kind read-write ".to_owned(),
        [kind, ..] => format!("--kind {kind} "),
    };
    panic!("seed {seed}: {violation}\nreplay with: cargo xtask sim {cluster}{kind}--seed {seed}");
}

#[test]
fn a_seed_is_the_same_schedule_every_time() {
    for seed in 1..40 {
        let program = match seed % 2 {
            0 => Program::roll(seed),
            _ => Program::roll_in_cluster(seed),
        };
        let [first, second] = [(); 2].map(|()| run(&program, true).history);
        let ids = |history: Vec<String>| {
            let mut known: Vec<String> = Vec::new();
            let text = history.join("\n");
            let words = text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            // Client ids are new in every run.
            words
                .map(|word| {
                    let id =
                        word.trim_end_matches(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
                    // So are owner ids that the crate gives out.
                    let own = id.len() == 19 && id.starts_with("46116860");
                    if id.len() != 36 && !own {
                        return word.to_owned();
                    }
                    let nth = known
                        .iter()
                        .position(|known| known == id)
                        .unwrap_or_else(|| {
                            known.push(id.to_owned());
                            known.len() - 1
                        });
                    format!("id{nth}{}", &word[id.len()..])
                })
                .collect::<String>()
        };
        let (first, second) = (ids(first), ids(second));
        if first != second {
            let differs = first
                .lines()
                .zip(second.lines())
                .find(|(one, other)| one != other);
            panic!("seed {seed} went two ways: {differs:#?}");
        }
    }
}
