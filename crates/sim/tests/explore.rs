//! Every small world, explored to its end, with exactly as many states and steps as are written down.

use std::fmt::Write as _;
use std::time::Instant;

use sim::explorer::{self, World};
use stateright::{Checker, Model};

/// Where the counts are written down. `UPDATE_EXPLORED=1` writes them anew.
const COUNTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/explored.txt");

/// Explores one world. Answers with a line for the file.
fn explore(world: World) -> String {
    let start = Instant::now();
    let name = world.name;
    let checker = world.checker().threads(2).spawn_bfs().join();
    if let Some(path) = checker.discovery("nothing is wrong") {
        panic!("{name}: {:#?}", path.into_actions());
    }
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!(
        "{name}: {states} states, {:.1} s",
        start.elapsed().as_secs_f64()
    );
    format!("{name:<28} {states:>9} states {steps:>9} steps")
}

/// The counts say that nothing became unreachable: a change of the core that should not change them
/// does not, and one that should says so in its diff.
#[test]
fn every_world_is_explored_to_its_end() {
    let only = std::env::var("WORLD").ok();
    let is_wanted = |world: &World| only.as_deref().is_none_or(|only| world.name == only);
    let found = explorer::all().into_iter().filter(is_wanted).map(explore);
    let found = found.fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    });
    if only.is_some() {
        return;
    }
    if std::env::var_os("UPDATE_EXPLORED").is_some() {
        std::fs::write(COUNTS, &found).expect("written");
    }
    let written = std::fs::read_to_string(COUNTS).unwrap_or_default();
    assert_eq!(
        found, written,
        "the explored worlds have changed; if that is meant, run\n  \
         UPDATE_EXPLORED=1 cargo test --profile sim -p sim --test explore"
    );
}

#[test]
#[ignore = "minutes: `cargo xtask explore --deep`"]
fn the_larger_worlds_are_explored_to_their_end() {
    for world in explorer::deep() {
        explore(world);
    }
}
