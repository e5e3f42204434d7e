//! `cargo xtask mutants`: plants bugs, one at a time, in a copy of the tree, and sees whether they
//! are found.

mod bug;
mod record;
mod tree;
mod under_way;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, RwLock};
use std::time::Instant;

use self::bug::{Bug, FOLDER, Finder};
use self::record::{Finders, Row};
use self::tree::Tree;
use crate::java::{self, Java};
use crate::{Problem, cargo, tools};

/// What CI plants: one bug in Lua, one in the connections, one in the client.
pub const FEW: [&str; 3] = [
    "release-steps-down-once",
    "no-fence",
    "dropped-acquire-is-not-undone",
];

#[derive(clap::Args)]
pub struct Options {
    /// Those of these names, instead of all
    names: Vec<String>,
    /// Only see whether they can be planted
    #[arg(long, exclusive = true)]
    check: bool,
    /// Only see whether the library builds with each
    #[arg(long, exclusive = true)]
    build: bool,
    /// Do not run the tests without a bug first: they have passed on this tree
    #[arg(long)]
    tested: bool,
}

/// Plants the bugs that are named, or all; their rows are written as soon as they are known.
pub fn run(options: &Options, install: bool) -> Result<(), Problem> {
    let mut bugs = bug::all()?;
    if options.check {
        bugs.iter()
            .try_for_each(|bug| bug.planted(&tools::root()).map(|_| ()))?;
        println!("{} bugs can be planted", bugs.len());
        return Ok(());
    }
    if options.build {
        return build_each(&bugs);
    }
    let all_finders: Finders = bugs
        .iter()
        .map(|bug| (bug.name.clone(), bug.finders()))
        .collect();
    let names = &options.names;
    if let Some(unknown) = names.iter().find(|name| !all_finders.contains_key(*name)) {
        return Err(Problem::to_do(format!(
            "there is no {FOLDER}/{unknown}.txt"
        )));
    }
    bugs.retain(|bug| names.is_empty() || names.contains(&bug.name));
    let mut finders: BTreeSet<_> = bugs.iter().flat_map(|bug| &bug.found_by).collect();
    if options.tested {
        finders.clear();
    }
    plant(&bugs, &finders, install, |row| {
        record::record(row, &all_finders)
    })
}

/// A bug whose text no longer compiles is found by nothing.
fn build_each(bugs: &[Bug]) -> Result<(), Problem> {
    let tree = Tree::new(None, 0)?;
    let mut broken = Vec::new();
    for bug in bugs {
        tree.sync()?;
        tree.plant(bug)?;
        if !tree.library_builds()? {
            println!("{} does not build", bug.name);
            broken.push(bug.name.clone());
        }
    }
    println!("{} of {} bugs build", bugs.len() - broken.len(), bugs.len());
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Problem::failed(format!(
            "they do not build: {}",
            broken.join(", ")
        )))
    }
}

/// What CI does. It leaves the page alone, and the other parts of CI show that the finders pass without
/// a bug.
pub fn run_few() -> Result<(), Problem> {
    let mut bugs = bug::all()?;
    bugs.retain(|bug| FEW.contains(&bug.name.as_str()));
    plant(&bugs, &BTreeSet::new(), false, |_| Ok(()))
}

/// Plants bugs. `first`: what has to pass without one.
fn plant(
    bugs: &[Bug],
    first: &BTreeSet<&Finder>,
    install: bool,
    done: impl Fn(Row) -> Result<(), Problem> + Sync,
) -> Result<(), Problem> {
    let with_server = bugs
        .iter()
        .flat_map(|bug| &bug.found_by)
        .any(|finder| matches!(finder, Finder::Test(..)));
    let server = if with_server {
        Some(tools::redis_server(install)?)
    } else {
        None
    };
    let side_by_side = if bugs.len() < MANY { 1 } else { TREES };
    println!("planting {} bugs, one at a time in a tree:", bugs.len());
    let mut trees = Vec::new();
    for nth in 0..side_by_side {
        let tree = Tree::new(server.clone(), nth)?;
        tree.sync()?;
        println!("  {}", tree.folder.display());
        trees.push(tree);
    }
    let missed = plant_in(&trees, bugs, first, done)?;
    println!("{} of {} bugs found", bugs.len() - missed.len(), bugs.len());
    if missed.is_empty() {
        Ok(())
    } else {
        Err(Problem::failed(format!("not found: {}", missed.join(", "))))
    }
}

/// From this many bugs on they are planted in two copies side by side. A build uses one processor for
/// most of its time.
const MANY: usize = 8;
const TREES: usize = 2;

/// Plants one bug after the other in each of the trees; answers which were not found.
fn plant_in(
    trees: &[Tree],
    bugs: &[Bug],
    first: &BTreeSet<&Finder>,
    done: impl Fn(Row) -> Result<(), Problem> + Sync,
) -> Result<Vec<String>, Problem> {
    let (left, missed) = (Mutex::new(bugs.iter()), Mutex::new(Vec::new()));
    // What measures time has the machine for itself.
    let machine = RwLock::new(());
    let alone_if = |alone| {
        if alone {
            (Some(machine.write().expect("no panic")), None)
        } else {
            (None, Some(machine.read().expect("no panic")))
        }
    };
    let unproven = Mutex::new(first.iter());
    let one_after_the_other = |tree: &Tree| -> Result<(), Problem> {
        // What is red without a bug finds none.
        loop {
            let next = unproven.lock().expect("no panic").next();
            let Some(finder) = next else { break };
            let _turn = alone_if(finder.is_alone());
            if !tree.test(finder)?.passed {
                return Err(Problem::failed(format!(
                    "{finder} fails without a planted bug"
                )));
            }
        }
        loop {
            let next = left.lock().expect("no panic").next();
            let Some(bug) = next else { return Ok(()) };
            let _turn = alone_if(bug.found_by.iter().any(Finder::is_alone));
            let row = plant_one(tree, bug);
            let mut missed = missed.lock().expect("no panic");
            if row.by != bug.finders() {
                missed.push(bug.name.clone());
            }
            // Under the mutex: the page is read and written.
            done(row)?;
        }
    };
    println!(
        "{:<42} {:<52} {:>9} {:>7}",
        "bug", "found by", "schedules", "time"
    );
    std::thread::scope(|scope| {
        let threads: Vec<_> = trees
            .iter()
            .map(|tree| scope.spawn(|| one_after_the_other(tree)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    Ok(missed.into_inner().expect("no panic"))
}

fn plant_one(tree: &Tree, bug: &Bug) -> Row {
    let start = Instant::now();
    let result = tree
        .sync()
        .and_then(|()| tree.plant(bug))
        .and_then(|()| tree.find(bug));
    let (by, schedules) = match result {
        Ok(schedules) => (
            bug.finders(),
            schedules.map_or_else(String::new, |many| many.to_string()),
        ),
        // In a line of the page.
        Err(problem) => (problem.text.replace(['\n', '|'], " "), String::new()),
    };
    let took = start.elapsed();
    println!(
        "{:<42} {by:<52} {schedules:>9} {:>5.0} s",
        bug.name,
        took.as_secs_f64()
    );
    Row {
        bug: bug.name.clone(),
        by,
        schedules,
        took,
    }
}

/// What the tests with Java have to find as well, each with a scenario that has to go red: ours is
/// silent, ours forgets a lease, ours frees what it does not hold.
const FOR_JAVA: [(&str, &str); 3] = [
    ("release-is-silent", "woken_by_unlock_R"),
    ("reentry-keeps-the-short-lease", "wire"),
    (
        "release-without-owner-check",
        "unlock_of_what_another_took_R",
    ),
];

/// The same for what is wrong with the JVM, by what the tests are told in variables. Killed, it
/// takes scenarios with it; paused, perhaps.
const OF_JAVA: [(&str, &str, &str, Option<&str>); 3] = [
    (
        "a Java worker that skips the lock",
        "PEER_SKIPS",
        "1",
        Some("a_few_mixed_workers"),
    ),
    (
        "a JVM that is killed on the way",
        FAULT,
        "-KILL",
        Some("_J"),
    ),
    ("a JVM that stands still on the way", FAULT, "-STOP", None),
];

/// Has a run send a signal to its JVM in the middle of the scenarios.
const FAULT: &str = "INTEROP_FAULT";

/// Plants bugs on our side, and trouble on Java's, and has the tests with Java find them, to their
/// end.
pub fn run_with_java(java: &Java, server: &Path) -> Result<(), Problem> {
    java.build(java::newest())?;
    let tree = Tree::new(Some(server.to_owned()), 0)?;
    let bugs = bug::all()?;
    let mut missed = 0;
    for (name, finder) in FOR_JAVA {
        let bug = bugs.iter().find(|bug| bug.name == name);
        tree.sync()?;
        tree.plant(
            bug.ok_or_else(|| Problem::failed(format!("there is no {FOLDER}/{name}.txt")))?,
        )?;
        missed += u32::from(!caught(java, server, &tree, name, None, Some(finder))?);
    }
    tree.sync()?;
    for (name, variable, value, finder) in OF_JAVA {
        missed += u32::from(!caught(
            java,
            server,
            &tree,
            name,
            Some((variable, value)),
            finder,
        )?);
    }
    let planted = FOR_JAVA.len() + OF_JAVA.len();
    println!("{} of {planted} as they should be", planted as u32 - missed);
    if missed == 0 {
        Ok(())
    } else {
        Err(Problem::failed("not every planted bug was found"))
    }
}

/// Whether the tests with Java end, and the one that has to find it goes red.
fn caught(
    java: &Java,
    server: &Path,
    tree: &Tree,
    name: &str,
    variable: Option<(&str, &str)>,
    finder: Option<&str>,
) -> Result<bool, Problem> {
    let start = Instant::now();
    let problem = variable.is_some_and(|(name, _)| name == FAULT);
    let mut command = cargo(&["run", "--quiet", "--package", "interop"]);
    command
        .current_dir(&tree.folder)
        .env("CARGO_TARGET_DIR", &tree.target)
        .env("INTEROP_JVM", tools::root().join("target/jvm"))
        .env("REDIS_SERVER_BIN", server)
        // Bugs show in the short scenarios and on the wire, where one that hangs is red soon. With
        // trouble none may.
        .env("INTEROP_SHORT", if problem { "" } else { java::newest() })
        .env("INTEROP_JOB_SECS", if problem { "120" } else { "20" })
        .env("RUST_BACKTRACE", "0")
        .envs(variable);
    java.apply(&mut command);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.contains("test result:") {
        return Err(Problem::failed(format!("{name}: the run broke off")));
    }
    let red: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(" ... FAILED"))
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    let found = finder.is_none_or(|finder| red.iter().any(|name| name.contains(finder)));
    let stuck = problem && text.contains("it does not end");
    let shown: Vec<&str> = red.iter().copied().take(6).collect();
    println!(
        "{name}: {} red{}, {:.0} s; {}",
        red.len(),
        if stuck { ", STUCK" } else { "" },
        start.elapsed().as_secs_f64(),
        shown.join(", ")
    );
    Ok(found && !stuck)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_that_are_named_elsewhere_exist() {
        let bugs = bug::all().expect("they can be read");
        for name in FEW.into_iter().chain(FOR_JAVA.map(|(name, _)| name)) {
            assert!(bugs.iter().any(|bug| bug.name == name), "{name}");
        }
    }
}
