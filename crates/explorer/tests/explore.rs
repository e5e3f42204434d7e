//! Every small world, explored to its end, with exactly as many states and steps as are written down,
//! and exactly those pairs of an input and of what was under way when it came.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use explorer::coverage::{Case, Row};
use explorer::{Traits, World, unreached};
use redisson_lock::{LockKind, test_util};
use stateright::{Checker, Model};
use test_support::{Limited, may_take, test};

/// Where the counts are written down. `UPDATE_EXPLORED=1` writes them again.
const COUNTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/explored.txt");

/// The same of the larger worlds.
const COUNTS_DEEP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/explored-deep.txt");

/// Where it is written down what has come while what was under way.
const COVERED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/covered.txt");

/// The line of a world in a file of counts, if it has at most this many steps.
fn is_small(line: &str, most: usize) -> bool {
    let words = line.split_whitespace().rev();
    let steps = words.skip_while(|word| *word != "steps").nth(1);
    steps.is_some_and(|steps| steps.parse().is_ok_and(|steps: usize| steps <= most))
}

/// All of them, or the one that `WORLD` names.
fn wanted(worlds: Vec<World>) -> impl Iterator<Item = World> {
    let only = std::env::var("WORLD").ok();
    let worlds = worlds.into_iter();
    worlds.filter(move |world| only.as_deref().is_none_or(|only| world.name == only))
}

/// Explores one world. Answers with a line for the file, and with the pairs that were reached.
fn explore(world: World) -> (String, BTreeSet<(Row, Case)>) {
    let start = Instant::now();
    let (name, reached) = (world.name, world.reached);
    let checker = world.checker().threads(2).spawn_bfs().join();
    if let Some(path) = checker.discovery("nothing is wrong") {
        let problem = path.last_state().problem(checker.model());
        let inputs = checker.model().inputs(path.into_actions());
        panic!("{name}: {problem:?} after\n{inputs}");
    }
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    let reached = reached.pairs();
    println!(
        "{name}: {states} states, {steps} steps, {} pairs, {:.1} s",
        reached.len(),
        start.elapsed().as_secs_f64()
    );
    let line = format!("{name:<52} {states:>7} states {steps:>8} steps\n");
    (line, reached)
}

/// The counts say that nothing became unreachable: a change of the core that should not change them
/// does not, and one that should says so in its diff. The pairs say what the worlds leave out: each
/// that is not reached has its reason. With `EXPLORE_AT_MOST`, only the worlds with at most that many steps are explored,
/// and nothing is said about pairs.
#[test]
fn every_world_is_explored_to_its_end() {
    // Each world has a limit of its own.
    may_take(Duration::MAX);
    let explore = |world: World| {
        let _limited = Limited::new(world.name);
        explore(world)
    };
    let mut worlds = explorer::all();
    let most = std::env::var("EXPLORE_AT_MOST").ok();
    if let Some(most) = most.and_then(|most| most.parse().ok()) {
        let written = std::fs::read_to_string(COUNTS).expect("written");
        let small = written.lines().filter(|line| is_small(line, most));
        let small: String = small.flat_map(|line| [line, "\n"]).collect();
        let starts = |name: &str| {
            small
                .lines()
                .any(|line| line.starts_with(&format!("{name:<52} ")))
        };
        worlds.retain(|world| starts(world.name));
        assert!(worlds.len() > 50, "{} worlds", worlds.len());
        let lines: String = worlds.into_iter().map(|world| explore(world).0).collect();
        return is_as_written(&lines, &small, "every_world");
    }
    let (lines, reached): (String, Vec<_>) = wanted(worlds).map(explore).unzip();
    if std::env::var_os("WORLD").is_some() {
        return;
    }
    let reached = reached.into_iter().flatten().collect();
    let table = unreached::table(&reached);
    if std::env::var_os("UPDATE_EXPLORED").is_some() {
        std::fs::write(COUNTS, &lines).expect("written");
        std::fs::write(COVERED, &table).expect("written");
    }
    let problems = unreached::problems(&reached);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    as_written(&lines, COUNTS, "every_world");
    as_written(&table, COVERED, "every_world");
}

fn as_written(found: &str, file: &str, test: &str) {
    let written = std::fs::read_to_string(file).unwrap_or_default();
    is_as_written(found, &written, test);
}

fn is_as_written(found: &str, written: &str, test: &str) {
    assert_eq!(
        found, written,
        "the explored worlds have changed; if that is meant, run\n  \
         UPDATE_EXPLORED=1 cargo test --config crates/sim/optimised.toml -p sim --test explore {test} -- --include-ignored"
    );
}

#[test]
#[ignore = "minutes: `cargo xtask explore --deep`"]
fn the_larger_worlds_are_explored_to_their_end() {
    may_take(Duration::from_secs(3_600));
    let worlds = wanted(explorer::deep());
    let (lines, _): (String, Vec<_>) = worlds.map(explore).unzip();
    if std::env::var_os("WORLD").is_some() {
        return;
    }
    if std::env::var_os("UPDATE_EXPLORED").is_some() {
        std::fs::write(COUNTS_DEEP, &lines).expect("written");
    }
    as_written(&lines, COUNTS_DEEP, "the_larger");
}

/// The properties of the kinds are those of the crate.
#[test]
fn the_kinds_are_those_of_the_locks() {
    for (kind, ours) in [
        (LockKind::Plain, Traits::PLAIN),
        (LockKind::Fair, Traits::PLAIN),
        (LockKind::Read, Traits::PLAIN),
        (LockKind::Write, Traits::PLAIN),
        (LockKind::Spin, Traits::SPIN),
        (LockKind::Fenced, Traits::FENCED),
        (LockKind::String, Traits::STRING),
    ] {
        let of_crate = test_util::Traits::from(kind);
        let properties = Traits {
            announces: of_crate.announces,
            is_reentrant: of_crate.is_reentrant,
            has_token: of_crate.has_token,
            has_value_per_hold: of_crate.has_value_per_hold,
        };
        assert_eq!(properties, ours, "{kind:?}");
    }
}
