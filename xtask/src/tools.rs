//! Finding a server, or installing one; what cargo builds, and where.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::packages::{self, Package};
use crate::{Problem, cargo, ended};

/// What is there.
#[derive(Debug, Default)]
struct Found {
    /// What `REDIS_SERVER_BIN` says, and whether there is such a file.
    variable: Option<(PathBuf, bool)>,
    /// Servers on the PATH, in `target/tools` and where a package puts one, the best first.
    files: Vec<PathBuf>,
}

impl Found {
    fn search() -> Self {
        let variable = std::env::var_os("REDIS_SERVER_BIN").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let on_path = ["redis-server", "valkey-server"]
            .into_iter()
            .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let others = [
            root().join("target/tools/redis-server"),
            "/usr/bin/redis-server".into(),
        ];
        Self {
            variable: variable.map(|path| (path.clone(), path.is_file())),
            files: on_path
                .chain(others)
                .filter(|path| path.is_file())
                .collect(),
        }
    }

    /// The variable wins, and a wrong one is not passed over.
    fn server(self) -> Result<Option<PathBuf>, Problem> {
        match self.variable {
            Some((path, true)) => Ok(Some(path)),
            Some((path, false)) => Err(Problem::to_do(format!(
                "REDIS_SERVER_BIN names {}, which does not exist: correct or unset it",
                path.display()
            ))),
            None => Ok(self.files.into_iter().next()),
        }
    }
}

/// Finds a server, or installs one.
pub fn redis_server(install: bool) -> Result<PathBuf, Problem> {
    if let Some(server) = Found::search().server()? {
        return Ok(server);
    }
    packages::install(
        &[("redis-server", "redis")],
        "redis-server is missing",
        "or set REDIS_SERVER_BIN to a redis-server or valkey-server (6.2 or newer).",
        install,
    )?;
    let installed = Found::search().server()?;
    installed
        .ok_or_else(|| Problem::failed("its package is installed, but there is no redis-server"))
}

/// Installs the package of a command that does not run.
pub fn system_package(command: &str, package: Package, install: bool) -> Result<(), Problem> {
    if packages::runs(command, "--version") {
        return Ok(());
    }
    let what_for = format!("{command} is missing");
    packages::install(&[package], &what_for, "and try again.", install)
}

/// Finds a program of cargo's, or installs it: this version, into the target folder.
pub fn cargo_tool(name: &str, version: &str, install: bool) -> Result<PathBuf, Problem> {
    let folder = target().join("tools");
    let tool = folder.join("bin").join(name);
    if tool.is_file() {
        return Ok(tool);
    }
    let folder_shown = folder.display();
    if !install {
        return Err(Problem::to_do(format!(
            "{name} is missing: cargo install {name} --version {version} --locked --root {folder_shown}"
        )));
    }
    println!("installing {name} {version} into {folder_shown} (--no-install forbids it)");
    let mut installation = cargo(&["install", "--quiet", "--locked", name]);
    installation.args(["--version", version, "--root"]);
    ended(
        installation.arg(&folder),
        format!("{name} does not install"),
    )?;
    Ok(tool)
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

    #[test]
    fn the_variable_wins_and_a_wrong_one_is_not_passed_over() {
        let found = |variable| Found {
            variable,
            files: vec!["/r/redis-server".into(), "/v/valkey-server".into()],
        };
        let server = |variable| found(variable).server();
        let mine = server(Some(("/mine".into(), true))).expect("it exists");
        assert_eq!(mine, Some("/mine".into()));
        let wrong = server(Some(("/mine".into(), false))).expect_err("it does not");
        assert!(wrong.text.contains("REDIS_SERVER_BIN names /mine"));
        let best = server(None).expect("one is there");
        assert_eq!(best, Some("/r/redis-server".into()));
    }
}
