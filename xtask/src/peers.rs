//! The peers of string locks: redis-py from its wheel, redsync built with Go, and the commands that Spring sends. What is
//! missing is fetched into `target/tools`: a pure plan, and what carries it out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::tools::{self, System};
use crate::{Problem, ended};

/// As the program `interop` calls them.
pub const PEERS: [&str; 3] = ["redis-py", "redsync", "spring"];

/// The folders that they need: the last is run with the library of the first.
const FOLDERS: [&str; 2] = ["redis-py", "redsync"];

/// Its wheel brings what it needs for the Python that fetches it.
const REDIS_PY: &str = "redis==5.2.1";

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Found {
    python: bool,
    go: bool,
    /// Peers whose folder in `target/tools` is complete.
    built: Vec<&'static str>,
    system: System,
    root: bool,
}

/// What will be done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    /// Packages of the system, and then the folders that are missing.
    Build {
        install: Vec<&'static str>,
        fetch: Vec<&'static str>,
    },
    Tell(String),
}

/// Nothing is installed or fetched if everything is there.
fn plan(found: &Found, install: bool) -> Plan {
    let missing = |peer: &&'static str| !found.built.contains(peer);
    let fetch: Vec<&'static str> = FOLDERS.into_iter().filter(missing).collect();
    // Python runs what is fetched too.
    let mut packages = Vec::new();
    if !found.python {
        packages.extend(["python3", "python3-pip"]);
    }
    if !found.go && fetch.contains(&"redsync") {
        packages.push("golang-go");
    }
    match (packages.as_slice(), found.system, found.root && install) {
        _ if !install && !fetch.is_empty() => Plan::Tell(format!(
            "not in target/tools: {}; --no-install forbids to fetch it",
            fetch.join(", ")
        )),
        ([], ..) | (_, System::Debian, true) => Plan::Build {
            install: packages,
            fetch,
        },
        (packages, System::Debian, false) => Plan::Tell(format!(
            "Python or Go is missing: apt-get install {}   (as root)",
            packages.join(" ")
        )),
        (packages, ..) => Plan::Tell(format!(
            "Python or Go is missing; install what your package manager has for {}",
            packages.join(", ")
        )),
    }
}

/// Makes all peers ready to run.
pub fn prepare(install: bool) -> Result<(), Problem> {
    let (system, root) = tools::system();
    let found = Found {
        python: runs("python3", "--version"),
        go: runs("go", "version"),
        built: FOLDERS
            .into_iter()
            .filter(|peer| is_complete(peer))
            .collect(),
        system,
        root,
    };
    match plan(&found, install) {
        Plan::Tell(what) => Err(Problem::to_do(what)),
        Plan::Build { install, fetch } => {
            if !install.is_empty() {
                println!(
                    "installing the system packages {} (--no-install forbids it)",
                    install.join(", ")
                );
                tools::apt_install(&install)?;
            }
            fetch.into_iter().try_for_each(self::fetch)
        }
    }
}

fn runs(program: &str, word: &str) -> bool {
    let run = Command::new(program)
        .arg(word)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    run.is_ok_and(|status| status.success())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Found {
        Found {
            python: true,
            go: true,
            built: FOLDERS.to_vec(),
            system: System::Debian,
            root: false,
        }
    }

    fn build(install: &[&'static str], fetch: &[&'static str]) -> Plan {
        Plan::Build {
            install: install.to_vec(),
            fetch: fetch.to_vec(),
        }
    }

    #[test]
    fn what_is_there_is_neither_installed_nor_fetched() {
        assert_eq!(plan(&everything(), true), build(&[], &[]));
        assert_eq!(plan(&everything(), false), build(&[], &[]));
        // Go is not needed to run what it has built.
        let without_go = Found {
            go: false,
            ..everything()
        };
        assert_eq!(plan(&without_go, true), build(&[], &[]));
    }

    #[test]
    fn what_is_missing_is_fetched_unless_that_is_forbidden() {
        let nothing = Found {
            built: Vec::new(),
            ..everything()
        };
        assert_eq!(plan(&nothing, true), build(&[], &FOLDERS));
        let Plan::Tell(told) = plan(&nothing, false) else {
            panic!("it is forbidden")
        };
        assert!(told.contains("redis-py, redsync"), "{told}");
    }

    #[test]
    fn python_and_go_are_installed_as_root_on_debian_and_otherwise_named() {
        let bare = Found {
            python: false,
            go: false,
            built: Vec::new(),
            root: true,
            ..everything()
        };
        let packages = ["python3", "python3-pip", "golang-go"];
        assert_eq!(plan(&bare, true), build(&packages, &FOLDERS));
        for (system, words) in [
            (
                System::Debian,
                "apt-get install python3 python3-pip golang-go",
            ),
            (System::MacOs, "package manager"),
            (System::Other, "package manager"),
        ] {
            let found = Found {
                system,
                root: false,
                ..bare.clone()
            };
            let Plan::Tell(told) = plan(&found, true) else {
                panic!("{system:?}: nothing may be installed")
            };
            assert!(told.contains(words), "{system:?}: {told}");
        }
    }
}
