//! Finding a server, or installing one: a pure plan, and the few lines that carry it out.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Problem, cargo, ended};

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// What `REDIS_SERVER_BIN` says, and whether there is such a file.
    variable: Option<(PathBuf, bool)>,
    /// Servers on the PATH.
    on_path: Vec<(&'static str, PathBuf)>,
    /// A server in `target/tools`.
    in_tools: Option<PathBuf>,
    system: System,
    root: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum System {
    /// It has apt-get.
    Debian,
    MacOs,
    #[default]
    Other,
}

/// What will be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    Use(PathBuf),
    /// Packages of the system.
    Install(&'static str),
    /// Something that the caller has to do.
    Tell(String),
}

/// The variable wins, then the PATH, then `target/tools`; what is missing is installed where that
/// is safe.
pub fn plan(found: &Found, install: bool) -> Plan {
    match &found.variable {
        Some((path, true)) => return Plan::Use(path.clone()),
        Some((path, false)) => {
            return Plan::Tell(format!(
                "REDIS_SERVER_BIN names {}, which does not exist: correct or unset it",
                path.display()
            ));
        }
        None => {}
    }
    let on_path = |wanted: &str| found.on_path.iter().find(|(name, _)| *name == wanted);
    if let Some((_, path)) = on_path("redis-server").or_else(|| on_path("valkey-server")) {
        return Plan::Use(path.clone());
    }
    if let Some(path) = &found.in_tools {
        return Plan::Use(path.clone());
    }
    match (found.system, found.root && install) {
        (System::Debian, true) => Plan::Install("redis-server"),
        (System::Debian, false) => missing("apt-get install redis-server   (as root)"),
        (System::MacOs, _) => missing("brew install redis"),
        (System::Other, _) => {
            missing("your system's package manager, for the package redis or valkey")
        }
    }
}

fn missing(command: &str) -> Plan {
    Plan::Tell(format!(
        "redis-server is missing. Install it with\n\n    {command}\n\nor set REDIS_SERVER_BIN to a redis-server or \
         valkey-server (6.2 or newer)."
    ))
}

/// Finds a server, installing it if that is the plan.
pub fn redis_server(install: bool) -> Result<PathBuf, Problem> {
    match plan(&search(), install) {
        Plan::Use(path) => Ok(path),
        Plan::Tell(text) => Err(Problem::to_do(text)),
        Plan::Install(package) => {
            println!(
                "installing the system package {package} with apt-get (--no-install forbids it)"
            );
            // The package starts a server of its own unless it is told not to; the tests never use
            // that one.
            apt_install(&[package])?;
            // Where the package puts it, in case the PATH does not lead there.
            let installed = PathBuf::from("/usr/bin/redis-server");
            match plan(&search(), false) {
                Plan::Use(path) => Ok(path),
                _ if installed.is_file() => Ok(installed),
                _ => Err(Problem::failed(format!(
                    "{package} is installed, but there is no redis-server"
                ))),
            }
        }
    }
}

/// Installs the package of a command that does not run.
pub fn system_package(command: &str, package: &str, install: bool) -> Result<(), Problem> {
    let runs = Command::new(command).arg("--version").output();
    if runs.is_ok_and(|done| done.status.success()) {
        return Ok(());
    }
    match system() {
        (System::Debian, true) if install => {
            println!(
                "installing the system package {package} with apt-get (--no-install forbids it)"
            );
            apt_install(&[package])
        }
        _ => Err(Problem::to_do(format!(
            "{command} is missing: install it with your system's package manager"
        ))),
    }
}

/// Installs packages of the system.
pub fn apt_install(packages: &[&str]) -> Result<(), Problem> {
    apt_get(&["update", "-qq"])?;
    apt_get(
        &[
            &["install", "-y", "-qq", "--no-install-recommends"],
            packages,
        ]
        .concat(),
    )
}

fn apt_get(words: &[&str]) -> Result<(), Problem> {
    let mut command = Command::new("apt-get");
    command
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    ended(
        &mut command,
        format!("apt-get {} has failed", words.join(" ")),
    )
}

/// A script that ends where one of its commands fails.
pub fn shell(script: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

fn search() -> Found {
    let file = |path: &Path| path.is_file();
    let variable = std::env::var_os("REDIS_SERVER_BIN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let on_path = |name: &'static str| {
        let found = folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| file(path));
        found.map(|path| (name, path))
    };
    let tools = root().join("target/tools/redis-server");
    Found {
        variable: variable.map(|path| (path.clone(), file(&path))),
        on_path: ["redis-server", "valkey-server"]
            .into_iter()
            .filter_map(on_path)
            .collect(),
        in_tools: Some(tools).filter(|path| file(path)),
        system: system().0,
        root: system().1,
    }
}

/// What system this is, and whether we may install packages.
pub fn system() -> (System, bool) {
    let system = if cfg!(target_os = "macos") {
        System::MacOs
    } else if Path::new("/usr/bin/apt-get").is_file() {
        System::Debian
    } else {
        System::Other
    };
    let id = Command::new("id").arg("-u").output();
    (system, id.is_ok_and(|id| id.stdout.trim_ascii() == b"0"))
}

/// The repository.
pub fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or_else(|| own.clone(), Path::to_path_buf)
}

/// Where cargo puts a program that it builds: `demo`, `examples/leader`.
pub fn built(program: &str) -> PathBuf {
    target().join("debug").join(program)
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| root().join("target"), PathBuf::from)
}

/// Every member of the workspace with every feature. All parts of the tests are built so: for another set of features
/// cargo compiles the library and its dependencies again.
pub const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];

/// Builds a program as the tests are built; returns where it is.
pub fn program(name: &str) -> Result<PathBuf, Problem> {
    let mut build = cargo(&["build", "--quiet", "--bin", name]);
    build
        .args(EVERYTHING)
        // Without a test, cargo leaves out the features that only dev-dependencies turn on.
        .args(["--test", "lock"]);
    ended(&mut build, format!("{name} does not build"))?;
    Ok(built(name))
}

/// The files that git knows, or would with `git add`, without those that are deleted.
pub fn files() -> Result<Vec<PathBuf>, Problem> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| Problem::to_do(format!("git does not run ({error}): install git")))?;
    Ok(String::from_utf8_lossy(&listed.stdout)
        .lines()
        .map(PathBuf::from)
        .filter(|file| root().join(file).is_file())
        .collect())
}

/// A server of our own on a free port, ended with its handle.
pub struct Server {
    child: Child,
    pub url: String,
}

impl Server {
    pub fn start(binary: &Path) -> Result<Self, Problem> {
        for _ in 0..20 {
            let port = std::net::TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| listener.local_addr())
                .map_err(|error| Problem::failed(format!("no free port: {error}")))?
                .port();
            let child = Command::new(binary)
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .map_err(|error| {
                    Problem::failed(format!("{} does not start: {error}", binary.display()))
                })?;
            let mut server = Self {
                child,
                url: format!("redis://127.0.0.1:{port}"),
            };
            let limit = Instant::now() + Duration::from_secs(10);
            while Instant::now() < limit && matches!(server.child.try_wait(), Ok(None)) {
                if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Ok(server);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Err(Problem::failed(format!(
            "{} does not get ready on any free port",
            binary.display()
        )))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(system: System, root: bool) -> Found {
        Found {
            system,
            root,
            ..Found::default()
        }
    }

    fn says(plan: &Plan, text: &str) -> bool {
        matches!(plan, Plan::Tell(reported) if reported.contains(text))
    }

    #[test]
    fn nothing_there_as_root_on_debian_installs_the_package() {
        assert_eq!(
            plan(&nothing(System::Debian, true), true),
            Plan::Install("redis-server")
        );
    }

    #[test]
    fn nothing_there_without_root_or_with_no_install_tells_the_command() {
        assert!(says(
            &plan(&nothing(System::Debian, false), true),
            "apt-get install redis-server"
        ));
        assert!(says(
            &plan(&nothing(System::Debian, true), false),
            "apt-get install redis-server"
        ));
        assert!(says(
            &plan(&nothing(System::Other, true), true),
            "package manager"
        ));
    }

    #[test]
    fn on_macos_nothing_is_installed_whoever_asks() {
        assert!(says(
            &plan(&nothing(System::MacOs, true), true),
            "brew install redis"
        ));
    }

    #[test]
    fn only_valkey_is_good_enough_and_redis_is_preferred() {
        let valkey = ("valkey-server", PathBuf::from("/v/valkey-server"));
        let redis = ("redis-server", PathBuf::from("/r/redis-server"));
        let only = Found {
            on_path: vec![valkey.clone()],
            ..nothing(System::Debian, true)
        };
        assert_eq!(plan(&only, true), Plan::Use(valkey.1.clone()));
        let both = Found {
            on_path: vec![valkey, redis.clone()],
            ..Found::default()
        };
        assert_eq!(plan(&both, true), Plan::Use(redis.1));
    }

    #[test]
    fn the_variable_wins_and_a_wrong_one_is_not_passed_over() {
        let redis = ("redis-server", PathBuf::from("/r/redis-server"));
        let there = |there| Found {
            variable: Some((PathBuf::from("/mine"), there)),
            on_path: vec![redis.clone()],
            ..Found::default()
        };
        assert_eq!(plan(&there(true), true), Plan::Use(PathBuf::from("/mine")));
        assert!(says(
            &plan(&there(false), true),
            "REDIS_SERVER_BIN names /mine"
        ));
    }

    #[test]
    fn unpacked_tools_come_last() {
        let tools = Found {
            in_tools: Some(PathBuf::from("/t/redis-server")),
            ..nothing(System::Debian, true)
        };
        assert_eq!(
            plan(&tools, true),
            Plan::Use(PathBuf::from("/t/redis-server"))
        );
    }
}
