//! `cargo xtask mutants`: plants bugs, one at a time, in a copy of the tree, and sees whether they
//! are found.

mod bug;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use self::bug::{Bug, FOLDER, Finder};
use crate::java::Java;
use crate::{Problem, cargo, interop, sim, tools};

/// What CI plants: one bug in Lua, one in the connections, one in the client.
pub const FEW: [&str; 3] = [
    "release-steps-down-once",
    "no-fence",
    "dropped-acquire-is-not-undone",
];

/// How many schedules a bug may hide in.
const SEEDS: &str = "5000";

/// How long a bug may make a unit test, or one with a real server, stand still: it is red then.
const LIMIT: Duration = Duration::from_secs(120);

pub fn run(arguments: &[&str], install: bool) -> Result<(), Problem> {
    let mut bugs = bug::all()?;
    if arguments == ["--check"] {
        bugs.iter()
            .try_for_each(|bug| bug.planted(&tools::root()).map(|_| ()))?;
        println!("{} bugs can be planted", bugs.len());
        return Ok(());
    }
    if !arguments.is_empty() {
        if let Some(unknown) = arguments
            .iter()
            .find(|&&name| bugs.iter().all(|bug| bug.name != name))
        {
            return Err(Problem::to_do(format!(
                "there is no {FOLDER}/{unknown}.txt"
            )));
        }
        bugs.retain(|bug| arguments.contains(&bug.name.as_str()));
    }
    let finders: BTreeSet<&Finder> = bugs.iter().flat_map(|bug| &bug.found_by).collect();
    let with_server = finders
        .iter()
        .any(|finder| matches!(finder, Finder::Test(..)));
    let server = if with_server {
        Some(tools::redis_server(install)?)
    } else {
        None
    };
    let tree = Tree::new(server)?;
    println!(
        "planting {} bugs in a copy of the tree, {}",
        bugs.len(),
        tree.folder.display()
    );
    tree.sync()?;
    // What is red without a bug finds none.
    for finder in finders {
        if !tree.test(finder)?.passed {
            return Err(Problem::failed(format!(
                "{finder} fails without a planted bug"
            )));
        }
    }
    println!(
        "{:<42} {:<52} {:>9} {:>7}",
        "bug", "found by", "schedules", "time"
    );
    let mut missed = Vec::new();
    for bug in &bugs {
        let start = Instant::now();
        let found = tree
            .sync()
            .and_then(|()| tree.plant(bug))
            .and_then(|()| tree.find(bug));
        let (by, schedules) = match found {
            Ok(schedules) => (
                bug.finders(),
                schedules.map_or_else(String::new, |many| many.to_string()),
            ),
            Err(problem) => {
                missed.push(bug.name.as_str());
                (problem.text, String::new())
            }
        };
        println!(
            "{:<42} {by:<52} {schedules:>9} {:>5.0} s",
            bug.name,
            start.elapsed().as_secs_f64()
        );
    }
    println!("{} of {} bugs found", bugs.len() - missed.len(), bugs.len());
    if missed.is_empty() {
        Ok(())
    } else {
        Err(Problem::failed(format!("not found: {}", missed.join(", "))))
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
    java.build(newest())?;
    let tree = Tree::new(Some(server.to_owned()))?;
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

fn newest() -> &'static str {
    interop::VERSIONS[interop::VERSIONS.len() - 1]
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
    let trouble = variable.is_some_and(|(name, _)| name == FAULT);
    let mut command = cargo(&["run", "--quiet", "--package", "interop"]);
    command
        .current_dir(&tree.folder)
        .env("CARGO_TARGET_DIR", target())
        .env("INTEROP_JVM", tools::root().join("target/jvm"))
        .env("REDIS_SERVER_BIN", server)
        // Bugs show in the short scenarios and on the wire, where one that hangs is red soon. With
        // trouble none may.
        .env("INTEROP_SHORT", if trouble { "" } else { newest() })
        .env("INTEROP_JOB_SECS", if trouble { "120" } else { "20" })
        .env("RUST_BACKTRACE", "0")
        .envs(variable);
    java.apply(&mut command);
    let output = command
        .output()
        .map_err(|error| Problem::failed(error.to_string()))?;
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
    let stuck = trouble && text.contains("it does not end");
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

/// A copy of what git knows, or would.
struct Tree {
    folder: PathBuf,
    files: Vec<PathBuf>,
    /// For tests with a real server.
    server: Option<PathBuf>,
}

struct Tested {
    passed: bool,
    schedules: Option<u64>,
}

impl Tree {
    fn new(server: Option<PathBuf>) -> Result<Self, Problem> {
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(tools::root())
            .output()
            .map_err(|error| Problem::to_do(format!("git does not run ({error}): install git")))?;
        let listed = String::from_utf8_lossy(&listed.stdout);
        let files: Vec<PathBuf> = listed.lines().map(PathBuf::from).collect();
        Ok(Self {
            folder: tools::root().join("target/mutants/tree"),
            files,
            server,
        })
    }

    /// Makes the copy what the tree is. A file that has not changed keeps its time, so that little
    /// is built anew.
    fn sync(&self) -> Result<(), Problem> {
        for file in &self.files {
            let (from, to) = (tools::root().join(file), self.folder.join(file));
            let failed =
                |error: std::io::Error| Problem::failed(format!("{}: {error}", to.display()));
            // Deleted, and not committed yet.
            let Ok(wanted) = fs::read(&from) else {
                continue;
            };
            if fs::read(&to).is_ok_and(|found| found == wanted) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).map_err(failed)?;
            fs::write(&to, wanted).map_err(failed)?;
        }
        Ok(())
    }

    fn plant(&self, bug: &Bug) -> Result<(), Problem> {
        for (file, text) in bug.planted(&self.folder)? {
            let file = self.folder.join(file);
            fs::write(&file, text)
                .map_err(|error| Problem::failed(format!("{}: {error}", file.display())))?;
        }
        Ok(())
    }

    /// How many schedules it took, if they were looked through. `Err`: one of those that have to
    /// find it has not.
    fn find(&self, bug: &Bug) -> Result<Option<u64>, Problem> {
        let mut schedules = None;
        for finder in &bug.found_by {
            let tested = self.test(finder)?;
            if tested.passed {
                return Err(Problem::failed(format!("NOT FOUND by {finder}")));
            }
            schedules = schedules.or(tested.schedules);
        }
        Ok(schedules)
    }

    fn test(&self, finder: &Finder) -> Result<Tested, Problem> {
        let (binary, filter, limit) = match finder {
            Finder::Seeds => (self.build(&["--lib"])?, sim::TEST.to_owned(), None),
            Finder::Sim(filter) => (self.build(&["--lib"])?, format!("sim::{filter}"), None),
            Finder::Unit(filter) => (self.build(&["--lib"])?, filter.clone(), Some(LIMIT)),
            Finder::Test(file, filter) => {
                (self.build(&["--test", file])?, filter.clone(), Some(LIMIT))
            }
        };
        let said = target().join("said");
        let failed = |error: std::io::Error| Problem::failed(format!("{finder}: {error}"));
        let child = Command::new(binary)
            .args([filter.as_str(), "--nocapture", "--skip", "crosscheck"])
            .current_dir(&self.folder)
            .env("RUST_BACKTRACE", "0")
            .env("SIM_BRIEF", "1")
            .env("SIM_SEEDS", SEEDS)
            .envs(
                self.server
                    .iter()
                    .map(|server| ("REDIS_SERVER_BIN", server)),
            )
            .stdout(fs::File::create(&said).map_err(failed)?)
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let ended = within(child, limit).map_err(failed)?;
        let text = String::from_utf8_lossy(&fs::read(&said).map_err(failed)?).into_owned();
        if text.contains("running 0 tests") {
            return Err(Problem::failed(format!("THERE IS NO TEST {finder}")));
        }
        let line = text.lines().find(|line| line.contains(" schedules, "));
        let schedules = line.and_then(|line| line.split(' ').next()?.parse().ok());
        Ok(Tested {
            passed: ended.is_some_and(|status| status.success()),
            schedules,
        })
    }

    /// Builds tests of the copy. A copy that does not build proves nothing.
    fn build(&self, what: &[&str]) -> Result<PathBuf, Problem> {
        let built = cargo(&["test", "--no-run", "--package", "redisson-lock"])
            .args(what)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", target())
            .output()
            .map_err(|error| Problem::failed(format!("cargo does not run: {error}")))?;
        let said = String::from_utf8_lossy(&built.stderr);
        // `  Executable tests/waiting.rs (target/…/waiting-8e1f…)`
        let binary = said
            .lines()
            .find(|line| line.trim_start().starts_with("Executable "));
        match binary.and_then(|line| line.rsplit_once('(')?.1.strip_suffix(')')) {
            Some(binary) if built.status.success() => Ok(self.folder.join(binary)),
            _ => Err(Problem::failed("IT DOES NOT BUILD")),
        }
    }
}

/// How a test ended; `None` if it was still running at its limit. Then its servers are ended with
/// it.
fn within(mut child: Child, limit: Option<Duration>) -> std::io::Result<Option<ExitStatus>> {
    let Some(limit) = limit else {
        return child.wait().map(Some);
    };
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let servers = Command::new("pgrep")
        .args(["-P", &child.id().to_string()])
        .output()?
        .stdout;
    child.kill()?;
    child.wait()?;
    for server in String::from_utf8_lossy(&servers).split_whitespace() {
        Command::new("kill").args(["-KILL", server]).status()?;
    }
    Ok(None)
}

/// The copy builds into a folder of its own: what it builds has the names of what the tree builds,
/// and must not be taken for it.
fn target() -> PathBuf {
    tools::root().join("target/mutants/build")
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

    #[test]
    fn a_test_that_does_not_end_is_ended() {
        let start = |seconds: &str| {
            Command::new("sleep")
                .arg(seconds)
                .spawn()
                .expect("it starts")
        };
        let limit = Some(Duration::from_millis(300));
        assert!(within(start("0"), limit).expect("it ends").is_some());
        assert_eq!(within(start("600"), limit).expect("it is ended"), None);
    }
}
