//! `cargo xtask mutants`: plants bugs, one at a time, in a copy of the tree, and sees whether they are found.
//!
//! A bug is a patch in `tests/mutants/`. Above the patch stand the promise that it breaks and everything that has to
//! find it: `seeds`, and names of tests of the simulator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::java::Java;
use crate::{Problem, cargo, interop, sim, tools};

/// What CI plants: one bug in Lua, one in the connections, one in the client.
pub const FEW: [&str; 3] = ["release-steps-down-once", "no-fence", "dropped-acquire-is-not-undone"];

/// How many schedules a bug may hide in.
const SEEDS: &str = "5000";

pub fn run(arguments: &[&str]) -> Result<(), Problem> {
    let mut mutants = mutants()?;
    if !arguments.is_empty() {
        if let Some(unknown) =
            arguments.iter().find(|&&name| mutants.iter().all(|mutant| mutant.name != name))
        {
            return Err(Problem::to_do(format!("there is no tests/mutants/{unknown}.patch")));
        }
        mutants.retain(|mutant| arguments.contains(&mutant.name.as_str()));
    }
    let tree = Tree::new()?;
    println!("planting {} bugs in a copy of the tree, {}", mutants.len(), tree.folder.display());
    tree.sync()?;
    if !tree.test("sim::")?.passed {
        return Err(Problem::failed("the simulator fails without a planted bug: run cargo xtask sim"));
    }
    println!("{:<42} {:<52} {:>9} {:>7}", "bug", "found by", "schedules", "time");
    let mut missed = Vec::new();
    for mutant in &mutants {
        let start = Instant::now();
        let result = tree.sync().and_then(|()| mutant.plant(&tree));
        let found = result.and_then(|()| tree.find(mutant));
        let (by, schedules) = match &found {
            Ok(Some(schedules)) => (mutant.found_by.as_str(), schedules.to_string()),
            Ok(None) => (mutant.found_by.as_str(), format!("> {SEEDS}")),
            Err(problem) => (problem.text.as_str(), String::new()),
        };
        println!("{:<42} {by:<52} {schedules:>9} {:>5.0} s", mutant.name, start.elapsed().as_secs_f64());
        if found.is_err() {
            missed.push(mutant.name.as_str());
        }
    }
    println!("{} of {} bugs found", mutants.len() - missed.len(), mutants.len());
    if missed.is_empty() { Ok(()) } else { Err(Problem::failed(format!("not found: {}", missed.join(", ")))) }
}

/// What the tests with Java have to find as well, each with a scenario that has to go red: ours is silent, ours forgets a
/// lease, ours frees what it does not hold.
const FOR_JAVA: [(&str, &str); 3] = [
    ("release-is-silent", "woken_by_unlock_R"),
    ("reentry-keeps-the-short-lease", "wire"),
    ("release-without-owner-check", "unlock_of_what_another_took_R"),
];

/// The same for what is wrong with the JVM, by what the tests are told in variables. Killed, it takes scenarios with it;
/// paused, perhaps.
const OF_JAVA: [(&str, &str, &str, Option<&str>); 3] = [
    ("a Java worker that skips the lock", "PEER_SKIPS", "1", Some("a_few_mixed_workers")),
    ("a JVM that is killed on the way", FAULT, "-KILL", Some("_J")),
    ("a JVM that stands still on the way", FAULT, "-STOP", None),
];

/// Has a run send a signal to its JVM in the middle of the scenarios.
const FAULT: &str = "INTEROP_FAULT";

/// Plants bugs on our side, and trouble on Java's, and has the tests with Java find them, to their end.
pub fn run_with_java(java: &Java, server: &Path) -> Result<(), Problem> {
    java.build(newest())?;
    let tree = Tree::new()?;
    let mut missed = 0;
    for (name, finder) in FOR_JAVA {
        let mutants = mutants()?;
        let mutant = mutants.iter().find(|mutant| mutant.name == name);
        tree.sync()?;
        mutant
            .ok_or_else(|| Problem::failed(format!("there is no tests/mutants/{name}.patch")))?
            .plant(&tree)?;
        missed += u32::from(!caught(java, server, &tree, name, None, Some(finder))?);
    }
    tree.sync()?;
    for (name, variable, value, finder) in OF_JAVA {
        missed += u32::from(!caught(java, server, &tree, name, Some((variable, value)), finder)?);
    }
    let planted = FOR_JAVA.len() + OF_JAVA.len();
    println!("{} of {planted} as they should be", planted as u32 - missed);
    if missed == 0 { Ok(()) } else { Err(Problem::failed("not every planted bug was found")) }
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
    let mut command = cargo(&["test", "--quiet", "--package", "redisson-lock", "--test", "interop"]);
    command
        .current_dir(&tree.folder)
        .env("CARGO_TARGET_DIR", target())
        .env("INTEROP_JVM", tools::root().join("target/jvm"))
        .env("REDIS_SERVER_BIN", server)
        // Bugs show in the short scenarios and on the wire, where one that hangs is red soon. With trouble none may.
        .env("INTEROP_SHORT", if trouble { "" } else { newest() })
        .env("INTEROP_JOB_SECS", if trouble { "120" } else { "20" })
        .env("RUST_BACKTRACE", "0")
        .envs(variable);
    java.apply(&mut command);
    let output = command.output().map_err(|error| Problem::failed(error.to_string()))?;
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

/// A planted bug.
#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    name: String,
    patch: PathBuf,
    found_by: String,
}

/// Every patch, by name.
fn mutants() -> Result<Vec<Mutant>, Problem> {
    let folder = tools::root().join("tests/mutants");
    let entries =
        fs::read_dir(&folder).map_err(|error| Problem::failed(format!("{}: {error}", folder.display())))?;
    let mut patches: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    patches.sort();
    patches.into_iter().map(Mutant::read).collect()
}

impl Mutant {
    fn read(patch: PathBuf) -> Result<Self, Problem> {
        let text = fs::read_to_string(&patch).unwrap_or_default();
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match header(&text) {
            Some(found_by) => Ok(Self { name, patch, found_by: found_by.to_owned() }),
            None => Err(Problem::failed(format!(
                "{} must open with the lines `Breaks: …` and `Found by: …`",
                patch.display()
            ))),
        }
    }

    fn plant(&self, tree: &Tree) -> Result<(), Problem> {
        let planted = Command::new("git")
            .args(["apply", "--whitespace=nowarn"])
            .arg(&self.patch)
            .current_dir(&tree.folder)
            // The copy lies inside of this repository and is not a part of it.
            .env("GIT_CEILING_DIRECTORIES", tree.folder.parent().unwrap_or(&tree.folder))
            .status();
        match planted {
            Ok(status) if status.success() => Ok(()),
            _ => Err(Problem::failed("THE PATCH DOES NOT APPLY")),
        }
    }
}

/// What has to find the bug.
fn header(patch: &str) -> Option<&str> {
    let mut lines = patch.lines();
    lines.next()?.strip_prefix("Breaks: ")?;
    lines.next()?.strip_prefix("Found by: ")
}

/// A copy of what git knows, or would.
struct Tree {
    folder: PathBuf,
    files: Vec<PathBuf>,
}

struct Tested {
    passed: bool,
    schedules: Option<u64>,
}

impl Tree {
    fn new() -> Result<Self, Problem> {
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(tools::root())
            .output()
            .map_err(|error| Problem::to_do(format!("git does not run ({error}): install git")))?;
        let listed = String::from_utf8_lossy(&listed.stdout);
        let files: Vec<PathBuf> = listed.lines().map(PathBuf::from).collect();
        Ok(Self { folder: tools::root().join("target/mutants/tree"), files })
    }

    /// Makes the copy what the tree is. A file that has not changed keeps its time, so that little is built anew.
    fn sync(&self) -> Result<(), Problem> {
        for file in &self.files {
            let (from, to) = (tools::root().join(file), self.folder.join(file));
            let failed = |error: std::io::Error| Problem::failed(format!("{}: {error}", to.display()));
            // Deleted, and not committed yet.
            let Ok(wanted) = fs::read(&from) else { continue };
            if fs::read(&to).is_ok_and(|found| found == wanted) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).map_err(failed)?;
            fs::write(&to, wanted).map_err(failed)?;
        }
        Ok(())
    }

    /// How many schedules it took, if so few were enough. `Err`: one of those that have to find the bug has not.
    fn find(&self, mutant: &Mutant) -> Result<Option<u64>, Problem> {
        let seeds = self.test(sim::TEST)?;
        for finder in mutant.found_by.split(", ") {
            let passed =
                if finder == "seeds" { seeds.passed } else { self.test(&format!("sim::{finder}"))?.passed };
            if passed {
                return Err(Problem::failed(format!("NOT FOUND by {finder}")));
            }
        }
        Ok(seeds.schedules.filter(|_| !seeds.passed))
    }

    /// Runs tests of the simulator in the copy. A copy that does not build proves nothing.
    fn test(&self, filter: &str) -> Result<Tested, Problem> {
        let words = ["test", "--quiet", "--package", "redisson-lock", "--lib"];
        let mut built = cargo(&words);
        let built =
            built.arg("--no-run").current_dir(&self.folder).env("CARGO_TARGET_DIR", target()).output();
        if !built.is_ok_and(|built| built.status.success()) {
            return Err(Problem::failed("IT DOES NOT BUILD"));
        }
        let output = cargo(&words)
            .args([filter, "--", "--nocapture", "--skip", "crosscheck"])
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", target())
            .env("RUST_BACKTRACE", "0")
            .env("SIM_BRIEF", "1")
            .env("SIM_SEEDS", SEEDS)
            .output()
            .map_err(|error| Problem::failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("running 0 tests") {
            return Err(Problem::failed("THERE IS NO SUCH TEST"));
        }
        let line = text.lines().find(|line| line.contains(" schedules, "));
        let schedules = line.and_then(|line| line.split(' ').next()?.parse().ok());
        Ok(Tested { passed: output.status.success(), schedules })
    }
}

/// The copy builds into a folder of its own: what it builds has the names of what the tree builds, and must not be taken
/// for it.
fn target() -> PathBuf {
    tools::root().join("target/mutants/build")
}

#[cfg(test)]
mod tests {
    use super::header;

    #[test]
    fn a_patch_says_what_it_breaks_and_what_finds_it() {
        assert_eq!(header("Breaks: a promise.\nFound by: seeds\n\ndiff"), Some("seeds"));
        assert_eq!(header("Found by: seeds\n\ndiff"), None);
        assert_eq!(header("diff"), None);
    }
}
