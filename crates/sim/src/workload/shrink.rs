//! Cuts a program down for as long as it still shows its violation.

use redisson_lock_test::sim::Latency;

use super::program::{Program, Step, Until};
use super::run::{Outcome, run};

/// The smallest program found that still ends in a violation of the same kind, with its history.
pub fn shrink(program: Program, outcome: Outcome) -> (Program, Outcome) {
    let kind = kind(&outcome);
    let mut best = (program, outcome);
    let mut tries = 0;
    loop {
        let smaller = candidates(&best.0).into_iter().find_map(|candidate| {
            tries += 1;
            if tries > TRIES_MAX {
                return None;
            }
            let outcome = run(&candidate, true);
            (self::kind(&outcome) == kind).then_some((candidate, outcome))
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

/// The words of a violation without names and numbers.
fn kind(outcome: &Outcome) -> String {
    let text = outcome.violation.as_deref().unwrap_or_default();
    let word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
    text.split(' ')
        .filter(word)
        .take(5)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Every program that is one piece smaller, big pieces first.
fn candidates(program: &Program) -> Vec<Program> {
    let mut smaller = Vec::new();
    let mut without = |change: &mut dyn FnMut(&mut Program)| {
        let mut candidate = program.clone();
        change(&mut candidate);
        smaller.push(candidate);
    };
    for round in 0..program.rounds.len() {
        if program.rounds.len() > 1 {
            without(&mut |program| _ = program.rounds.remove(round));
        }
    }
    for (round, plan) in program.rounds.iter().enumerate() {
        if !plan.java.is_empty() {
            without(&mut |program| program.rounds[round].java.clear());
        }
        for task in 0..plan.tasks.len() {
            without(&mut |program| _ = program.rounds[round].tasks.remove(task));
        }
        for fault in 0..plan.faults.len() {
            without(&mut |program| _ = program.rounds[round].faults.remove(fault));
        }
        for step in 0..plan.java.len() {
            without(&mut |program| _ = program.rounds[round].java.remove(step));
        }
        for (task, tasks) in plan.tasks.iter().enumerate() {
            for step in 0..tasks.steps.len() {
                without(&mut |program| _ = program.rounds[round].tasks[task].steps.remove(step));
            }
        }
    }
    let Latency { usual, seldom, .. } = program.latency;
    if program.late_percent > 0 {
        without(&mut |program| program.late_percent = 0);
    }
    if usual > 1 {
        without(&mut |program| program.latency.usual = 1);
    }
    if seldom > 1 {
        without(&mut |program| program.latency.seldom = 1);
    }
    for (round, plan) in program.rounds.iter().enumerate() {
        for (task, tasks) in plan.tasks.iter().enumerate() {
            for (nth, step) in tasks.steps.iter().enumerate() {
                if let Step::Unlock { until, .. } | Step::Take { until, .. } = step
                    && *until != Until::Done
                {
                    without(&mut |program| {
                        let step = &mut program.rounds[round].tasks[task].steps[nth];
                        if let Step::Unlock { until, .. } | Step::Take { until, .. } = step {
                            *until = Until::Done;
                        }
                    });
                }
            }
        }
    }
    smaller
}

const TRIES_MAX: u32 = 3_000;
