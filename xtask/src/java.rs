//! Finding a JDK and Maven, or installing them, and building the Java peer with them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Problem, ended, packages, tools};

/// One of every era of the protocol, oldest first.
pub const VERSIONS: [&str; 6] = ["3.6.5", "3.12.5", "3.20.0", "3.24.3", "3.52.0", "4.7.0"];

/// The newest of them.
pub fn newest() -> &'static str {
    VERSIONS[VERSIONS.len() - 1]
}

/// A JDK and Maven, ready to use.
#[derive(Debug, Clone)]
pub struct Java {
    home: Option<PathBuf>,
}

/// Which JDKs are there.
#[derive(Debug, Clone, Default)]
struct Jdks {
    /// What `JAVA_HOME` says, and the version of the compiler in it.
    variable: Option<(PathBuf, Option<u32>)>,
    /// The version of the compiler on the PATH.
    on_path: Option<u32>,
    /// One that the system has and the PATH does not lead to.
    elsewhere: Option<PathBuf>,
}

impl Jdks {
    fn search() -> Self {
        let variable = std::env::var_os("JAVA_HOME").map(PathBuf::from);
        let elsewhere = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten();
        let elsewhere = elsewhere.flatten().map(|entry| entry.path());
        Self {
            variable: variable.map(|home| (home.clone(), compiler(&home.join("bin/javac")))),
            on_path: compiler(Path::new("javac")),
            elsewhere: elsewhere
                .filter(|home| is_good(compiler(&home.join("bin/javac"))))
                .min(),
        }
    }

    /// The one in `JAVA_HOME`, on the PATH (no home), or of the system. `Err`: what has to be done about `JAVA_HOME`.
    fn best(self) -> Result<Option<Java>, Problem> {
        let java = |home| Some(Java { home });
        match self.variable {
            Some((home, version)) if is_good(version) => Ok(java(Some(home))),
            Some((home, version)) => {
                let found = version
                    .map_or_else(|| "no JDK".to_owned(), |version| format!("a JDK {version}"));
                Err(Problem::to_do(format!(
                    "JAVA_HOME is {}, where there is {found}: point it to a JDK {OLDEST} or newer, or unset it",
                    home.display()
                )))
            }
            None if is_good(self.on_path) => Ok(java(None)),
            None => Ok(self.elsewhere.and_then(|home| java(Some(home)))),
        }
    }
}

fn is_good(version: Option<u32>) -> bool {
    version.is_some_and(|version| version >= OLDEST)
}

/// Finds a JDK and Maven, or installs them.
pub fn find(install: bool) -> Result<Java, Problem> {
    let jdk = Jdks::search().best()?;
    let mut missing = Vec::new();
    missing.extend(
        jdk.is_none()
            .then_some(("openjdk-17-jdk-headless", "openjdk@17")),
    );
    missing.extend((!packages::runs("mvn", "--version")).then_some(("maven", "maven")));
    packages::install(
        &missing,
        &format!("The tests with Java need a JDK {OLDEST} or newer, and Maven"),
        "or leave Java out: cargo xtask test --without java",
        install,
    )?;
    let installed = || Problem::failed("installed, but there is no JDK 17");
    match jdk {
        Some(java) => Ok(java),
        None => Jdks::search().best()?.ok_or_else(installed),
    }
}

impl Java {
    /// Has a command use this JDK.
    pub fn apply(&self, command: &mut Command) {
        if let Some(home) = &self.home {
            command.env("JAVA_HOME", home);
        }
    }

    /// `javac 17.0.15`
    pub fn reported(&self) -> String {
        let javac = self
            .home
            .as_ref()
            .map_or_else(|| "javac".into(), |home| home.join("bin/javac"));
        let said = Command::new(javac).arg("-version").output();
        let said = said.map(|said| [said.stdout, said.stderr].concat());
        String::from_utf8_lossy(&said.unwrap_or_default())
            .trim()
            .to_owned()
    }

    /// Builds the peer for one version of Redisson, unless it is built already.
    pub fn build(&self, version: &str) -> Result<(), Problem> {
        let peer = tools::root().join("crates/interop/jvm");
        let built = folder(version).join("classes/Peer.class");
        let time = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
        let sources = [
            "pom.xml",
            "src/main/java/Bench.java",
            "src/main/java/Kinds.java",
            "src/main/java/Peer.java",
            "src/main/java/Seller.java",
        ]
        .map(|file| peer.join(file));
        if time(&built).is_some_and(|built| {
            sources
                .iter()
                .all(|source| time(source).is_some_and(|time| time < built))
        }) {
            return Ok(());
        }
        println!("building the Java peer with Redisson {version}");
        let mut maven = Command::new("mvn");
        maven
            .args(["--quiet", "--batch-mode", "compile"])
            .arg(format!("-Dredisson.version={version}"))
            .arg(format!(
                "-Dmaven.repo.local={}",
                tools::root().join("target/jvm/repository").display()
            ))
            .current_dir(&peer)
            .stdin(Stdio::null());
        self.apply(&mut maven);
        ended(
            &mut maven,
            "mvn has failed: the first build of a version needs a Maven repository that it can reach",
        )
    }
}

/// The class path of the peer with a version of Redisson.
pub fn classes(version: &str) -> String {
    format!("{0}/classes:{0}/jars/*", folder(version).display())
}

/// What the peer with a version of Redisson is built into.
pub fn folder(version: &str) -> PathBuf {
    tools::root().join("target/jvm").join(version)
}

/// `javac 17.0.15` is 17.
fn compiler(javac: &Path) -> Option<u32> {
    let said = Command::new(javac).arg("-version").output().ok()?;
    let text = [said.stdout, said.stderr].concat();
    version(&String::from_utf8_lossy(&text))
}

fn version(said: &str) -> Option<u32> {
    let numbers = said.trim().strip_prefix("javac ")?;
    let mut numbers = numbers
        .split(['.', '-', ' '])
        .map_while(|number| number.parse::<u32>().ok());
    match numbers.next()? {
        // Java 8 called itself 1.8.
        1 => numbers.next(),
        first => Some(first),
    }
}

/// The peer is written for it.
const OLDEST: u32 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_wins_and_a_wrong_one_is_not_passed_over() {
        let home = |version| Jdks {
            variable: Some(("/mine".into(), version)),
            on_path: Some(17),
            elsewhere: None,
        };
        let best = home(Some(21)).best().expect("good").expect("there");
        assert_eq!(best.home, Some("/mine".into()));
        for (version, said) in [(Some(8), "a JDK 8:"), (None, "no JDK:")] {
            let told = home(version).best().expect_err("it is told").text;
            assert!(
                told.contains("JAVA_HOME is /mine") && told.contains(said),
                "{told}"
            );
        }
    }

    #[test]
    fn one_that_is_too_old_is_none_and_another_one_may_lie_beside_it() {
        let old = Jdks {
            on_path: Some(11),
            ..Jdks::default()
        };
        assert!(old.clone().best().expect("no variable").is_none());
        let beside = Jdks {
            elsewhere: Some("/jvm/17".into()),
            ..old
        };
        let best = beside.best().expect("no variable").expect("there");
        assert_eq!(best.home, Some("/jvm/17".into()));
    }

    #[test]
    fn versions_old_and_new_are_read() {
        assert_eq!(version("javac 17.0.15\n"), Some(17));
        assert_eq!(version("javac 1.8.0_412"), Some(8));
        assert_eq!(version("javac 21-ea"), Some(21));
        assert_eq!(version("command not found"), None);
    }
}
