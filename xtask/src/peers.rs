//! The peers of string locks: redis-py from its wheel, redsync built with Go, and the commands that Spring sends. What is
//! missing is fetched into `target/tools`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Problem, ended, packages, tools};

/// As the program `interop` calls them.
pub const PEERS: [&str; 3] = ["redis-py", "redsync", "spring"];

/// The folders that they need: the last is run with the library of the first.
const FOLDERS: [&str; 2] = ["redis-py", "redsync"];

/// Its wheel brings what it needs for the Python that fetches it.
const REDIS_PY: &str = "redis==5.2.1";

/// Makes all peers ready to run. Nothing is installed or fetched if everything is there.
pub fn prepare(install: bool) -> Result<(), Problem> {
    let fetched: Vec<&str> = FOLDERS
        .into_iter()
        .filter(|peer| !is_complete(peer))
        .collect();
    if !install && !fetched.is_empty() {
        return Err(Problem::to_do(format!(
            "not in target/tools: {}; --no-install forbids to fetch it",
            fetched.join(", ")
        )));
    }
    let mut missing = Vec::new();
    // Python runs what is fetched too; Go is not needed to run what it has built.
    if !packages::runs("python3", "--version") {
        missing.extend([("python3", "python"), ("python3-pip", "python")]);
    }
    if fetched.contains(&"redsync") && !packages::runs("go", "version") {
        missing.push(("golang-go", "go"));
    }
    let what_for = "Python or Go is missing";
    packages::install(&missing, what_for, "and try again.", install)?;
    fetched.into_iter().try_for_each(fetch)
}

fn folder(peer: &str) -> PathBuf {
    tools::root().join("target/tools").join(peer)
}

fn source() -> PathBuf {
    tools::root().join("crates/interop/peers/redsync")
}

/// Whether this version was fetched, or built since its source has changed.
fn is_complete(peer: &str) -> bool {
    if peer == "redis-py" {
        return folder(peer).join(REDIS_PY).is_file();
    }
    let time = |path: PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let sources = ["main.go", "go.mod", "go.sum"].map(|file| time(source().join(file)));
    let built = time(folder(peer).join("redsync"));
    built.is_some() && sources.iter().all(|source| *source < built)
}

fn fetch(peer: &str) -> Result<(), Problem> {
    let folder = folder(peer);
    fs_err::create_dir_all(&folder)?;
    let mut command = match peer {
        "redsync" => go(&folder),
        _ => wheel(&folder),
    };
    let failed = "could not be fetched: it comes from a Python wheel (pip), or is built with Go";
    ended(&mut command, format!("{peer} {failed}"))
}

fn wheel(folder: &Path) -> Command {
    println!("fetching {REDIS_PY} into {}", folder.display());
    let script = format!(
        "rm -f *.whl
         python3 -m pip --quiet download --only-binary :all: --dest . {REDIS_PY}
         for wheel in *.whl; do python3 -m zipfile -e \"$wheel\" .; done
         touch {REDIS_PY}"
    );
    tools::shell(&script, folder)
}

/// Modules and the cache of builds stay in `target`, and can be deleted with it.
fn go(folder: &Path) -> Command {
    let go = tools::root().join("target/tools/go");
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(folder.join("redsync"))
        .arg(".")
        .current_dir(source())
        .env("GOPATH", &go)
        .env("GOCACHE", go.join("cache"))
        .env("GOFLAGS", "-modcacherw -mod=readonly")
        .stdin(Stdio::null());
    build
}
