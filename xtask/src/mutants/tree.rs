//! The copy of the tree in which bugs are planted.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fs_err as fs;

use super::bug::{Bug, Finder};
use super::under_way::UnderWay;
use crate::{Problem, cargo, sim, tools};

/// How many schedules a bug may hide in.
const SEEDS: &str = "5000";

/// A copy of what git knows, or would.
pub struct Tree {
    pub folder: PathBuf,
    /// The copy builds into a folder of its own: what it builds has the names of what the tree builds,
    /// and must not be taken for it.
    pub target: PathBuf,
    files: Vec<PathBuf>,
    /// For tests with a real server.
    server: Option<PathBuf>,
    /// For as long as there is this tree, so is its mark.
    _under_way: UnderWay,
}

pub struct Tested {
    pub passed: bool,
    schedules: Option<u64>,
}

impl Tree {
    /// The first copy, or another one beside it.
    pub fn new(server: Option<PathBuf>, nth: usize) -> Result<Self, Problem> {
        let folder = match nth {
            0 => tools::root().join("target/mutants"),
            nth => tools::root().join(format!("target/mutants/beside-{nth}")),
        };
        let target = folder.join("build");
        Ok(Self {
            folder: folder.join("tree"),
            files: tools::files()?,
            server,
            _under_way: UnderWay::begin(&target)?,
            target,
        })
    }

    /// Makes the copy what the tree is. A file that has not changed keeps its time, so that little
    /// is built again.
    pub fn sync(&self) -> Result<(), Problem> {
        for file in &self.files {
            let (from, to) = (tools::root().join(file), self.folder.join(file));
            let wanted = fs::read(&from)?;
            if fs::read(&to).is_ok_and(|found| found == wanted) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(&self.folder))?;
            fs::write(&to, wanted)?;
        }
        self.remove_strays(Path::new(""))
    }

    /// A file that the tree has no more may still be a module, a test or a member of the workspace.
    fn remove_strays(&self, folder: &Path) -> Result<(), Problem> {
        for entry in fs::read_dir(self.folder.join(folder))? {
            let entry = entry?;
            let inside = folder.join(entry.file_name());
            if !self.files.iter().any(|file| file.starts_with(&inside)) {
                if entry.path().is_dir() {
                    fs::remove_dir_all(entry.path())?;
                } else {
                    fs::remove_file(entry.path())?;
                }
            } else if entry.path().is_dir() {
                self.remove_strays(&inside)?;
            }
        }
        Ok(())
    }

    pub fn plant(&self, bug: &Bug) -> Result<(), Problem> {
        for (file, text) in bug.planted(&self.folder)? {
            fs::write(self.folder.join(file), text)?;
        }
        Ok(())
    }

    /// How many schedules it took, if they were looked through. `Err`: one of those that have to
    /// find it has not.
    pub fn find(&self, bug: &Bug) -> Result<Option<u64>, Problem> {
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

    pub fn test(&self, finder: &Finder) -> Result<Tested, Problem> {
        let (binary, filter) = match finder {
            Finder::Seeds => (self.build(&sim::BUILD)?, sim::TEST),
            Finder::Explorer => (self.build(&sim::EXPLORER)?, "every_world"),
            Finder::Sim(filter) => match filter.split_once("::") {
                Some(("threads", filter)) => (self.build(&sim::THREADS)?, filter),
                Some(("waiters", filter)) => (self.build(&sim::WAITERS)?, filter),
                _ => (self.build(&sim::BUILD)?, filter.as_str()),
            },
            Finder::Unit(filter) => {
                let (package, filter) = match filter.strip_prefix("core::") {
                    Some(filter) => ("redisson-lock-core", filter),
                    None => ("redisson-lock", filter.as_str()),
                };
                (self.build(&["--package", package, "--lib"])?, filter)
            }
            Finder::Test(file, filter) => {
                let (package, file) = file.split_once('/').unwrap_or(("redisson-lock", file));
                let selected = ["--package", package, "--test", file, "--all-features"];
                (self.build(&selected)?, filter.as_str())
            }
        };
        let said = self.target.join("said");
        // A test that a bug makes hang ends at its time limit.
        let ended = Command::new(binary)
            .args([filter, "--nocapture", "--skip", "crosscheck"])
            .current_dir(&self.folder)
            .env("RUST_BACKTRACE", "0")
            .env("SIM_BRIEF", "1")
            .env("SIM_SEEDS", SEEDS)
            .envs(
                self.server
                    .iter()
                    .map(|server| ("REDIS_SERVER_BIN", server)),
            )
            .stdout(std::fs::File::create(&said)?)
            .stderr(Stdio::null())
            .status()?;
        let text = String::from_utf8_lossy(&fs::read(&said)?).into_owned();
        if text.contains("running 0 tests") {
            return Err(Problem::failed(format!("THERE IS NO TEST {finder}")));
        }
        let line = text.lines().find(|line| line.contains(" schedules, "));
        let schedules = line.and_then(|line| line.split(' ').next()?.parse().ok());
        Ok(Tested {
            passed: ended.success(),
            schedules,
        })
    }

    /// Whether the library of the copy compiles.
    pub fn library_builds(&self) -> Result<bool, Problem> {
        let checked = cargo(&[
            "check",
            "--package",
            "redisson-lock",
            "--features",
            "test-util",
        ])
        .current_dir(&self.folder)
        .env("CARGO_TARGET_DIR", &self.target)
        .output()?;
        Ok(checked.status.success())
    }

    /// Builds tests of the copy. A copy that does not build proves nothing.
    fn build(&self, what: &[&str]) -> Result<PathBuf, Problem> {
        let built = cargo(&["test", "--no-run"])
            .args(what)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.target)
            .output()?;
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
