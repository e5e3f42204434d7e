//! Finding a JDK and Maven, or installing them, and building the Java peer with them: a pure plan,
//! and what carries it out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::tools::{self, System};
use crate::{Problem, ended};

/// One of every era of the protocol, oldest first.
pub const VERSIONS: [&str; 6] = ["3.6.5", "3.12.5", "3.20.0", "3.24.3", "3.52.0", "4.7.0"];

/// The newest of them.
pub fn newest() -> &'static str {
    VERSIONS[VERSIONS.len() - 1]
}

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Found {
    /// What `JAVA_HOME` says, and the version of the compiler in it.
    variable: Option<(PathBuf, Option<u32>)>,
    /// The version of the compiler on the PATH.
    on_path: Option<u32>,
    /// A JDK that the system has and the PATH does not lead to.
    elsewhere: Option<PathBuf>,
    maven: bool,
    system: System,
    root: bool,
}

/// What will be done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    /// The JDK is there; `Some`: not the one on the PATH.
    Use(Option<PathBuf>),
    Install(Vec<&'static str>),
    Tell(String),
}

/// `JAVA_HOME` wins, then the PATH, then what the system has; what is missing is installed where
/// that is safe.
fn plan(found: &Found, install: bool) -> Plan {
    let good = |version: Option<u32>| version.is_some_and(|version| version >= OLDEST);
    let (jdk, problem) = match &found.variable {
        Some((home, version)) if !good(*version) => {
            let found = version.map_or("no JDK".to_owned(), |version| format!("a JDK {version}"));
            return Plan::Tell(format!(
                "JAVA_HOME is {}, where there is {found}: point it to a JDK {OLDEST} or newer, or unset it",
                home.display()
            ));
        }
        Some((home, _)) => (Some(Some(home.clone())), String::new()),
        None if good(found.on_path) => (Some(None), String::new()),
        None => match (&found.elsewhere, found.on_path) {
            (Some(home), _) => (Some(Some(home.clone())), String::new()),
            (None, Some(version)) => (None, format!("The JDK {version} on the PATH is too old. ")),
            (None, None) => (None, "A JDK is missing. ".to_owned()),
        },
    };
    let mut packages = Vec::new();
    if jdk.is_none() {
        packages.push("openjdk-17-jdk-headless");
    }
    if !found.maven {
        packages.push("maven");
    }
    match (
        jdk,
        packages.as_slice(),
        found.system,
        found.root && install,
    ) {
        (Some(jdk), [], ..) => Plan::Use(jdk),
        (_, packages, System::Debian, true) => Plan::Install(packages.to_vec()),
        (_, packages, System::Debian, false) => missing(
            &problem,
            &format!("apt-get install {}   (as root)", packages.join(" ")),
        ),
        (_, packages, System::MacOs, _) => {
            let names: Vec<_> = packages
                .iter()
                .map(|name| {
                    if name.contains("jdk") {
                        "openjdk@17"
                    } else {
                        name
                    }
                })
                .collect();
            missing(&problem, &format!("brew install {}", names.join(" ")))
        }
        (_, _, System::Other, _) => missing(
            &problem,
            "your system's package manager, for a JDK 17 and Maven",
        ),
    }
}

fn missing(problem: &str, command: &str) -> Plan {
    Plan::Tell(format!(
        "{problem}The tests with Java need a JDK {OLDEST} or newer, and Maven. Install what is missing with\n\n    \
         {command}\n\nor leave Java out: cargo xtask test --without java"
    ))
}

/// A JDK and Maven, ready to use.
#[derive(Debug, Clone)]
pub struct Java {
    home: Option<PathBuf>,
}

/// Finds a JDK and Maven, installing them if that is the plan.
pub fn find(install: bool) -> Result<Java, Problem> {
    match plan(&search(), install) {
        Plan::Use(home) => Ok(Java { home }),
        Plan::Tell(text) => Err(Problem::to_do(text)),
        Plan::Install(packages) => {
            println!(
                "installing the system packages {} (--no-install forbids it)",
                packages.join(", ")
            );
            tools::apt_install(&packages)?;
            match plan(&search(), false) {
                Plan::Use(home) => Ok(Java { home }),
                Plan::Install(_) | Plan::Tell(_) => Err(Problem::failed(
                    "installed, but there is no JDK 17 and Maven",
                )),
            }
        }
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

fn search() -> Found {
    let (system, root) = tools::system();
    let variable = std::env::var_os("JAVA_HOME").map(PathBuf::from);
    let elsewhere = std::fs::read_dir("/usr/lib/jvm")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    Found {
        variable: variable.map(|home| (home.clone(), compiler(&home.join("bin/javac")))),
        on_path: compiler(Path::new("javac")),
        elsewhere: elsewhere
            .filter(|home| {
                compiler(&home.join("bin/javac")).is_some_and(|version| version >= OLDEST)
            })
            .min(),
        maven: Command::new("mvn")
            .arg("--version")
            .output()
            .is_ok_and(|said| said.status.success()),
        system,
        root,
    }
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

    fn nothing(system: System, root: bool) -> Found {
        Found {
            system,
            root,
            ..Found::default()
        }
    }

    fn says(plan: &Plan, text: &str) -> bool {
        matches!(plan, Plan::Tell(sentence) if sentence.contains(text))
    }

    #[test]
    fn nothing_there_as_root_on_debian_installs_both() {
        let both = vec!["openjdk-17-jdk-headless", "maven"];
        assert_eq!(
            plan(&nothing(System::Debian, true), true),
            Plan::Install(both)
        );
    }

    #[test]
    fn nothing_there_without_root_or_with_no_install_tells_the_command() {
        for (found, install) in [
            (nothing(System::Debian, false), true),
            (nothing(System::Debian, true), false),
        ] {
            assert!(says(
                &plan(&found, install),
                "apt-get install openjdk-17-jdk-headless maven"
            ));
            assert!(says(&plan(&found, install), "--without java"));
        }
        assert!(says(
            &plan(&nothing(System::Other, true), true),
            "package manager"
        ));
    }

    #[test]
    fn on_macos_nothing_is_installed_whoever_asks() {
        assert!(says(
            &plan(&nothing(System::MacOs, true), true),
            "brew install openjdk@17 maven"
        ));
    }

    #[test]
    fn a_java_that_is_too_old_is_said_to_be_and_a_newer_one_is_installed_beside_it() {
        let old = |root| Found {
            on_path: Some(11),
            maven: true,
            ..nothing(System::Debian, root)
        };
        assert_eq!(
            plan(&old(true), true),
            Plan::Install(vec!["openjdk-17-jdk-headless"])
        );
        assert!(says(
            &plan(&old(false), true),
            "The JDK 11 on the PATH is too old"
        ));
        let beside = Found {
            elsewhere: Some("/jvm/17".into()),
            ..old(true)
        };
        assert_eq!(plan(&beside, true), Plan::Use(Some("/jvm/17".into())));
    }

    #[test]
    fn only_what_is_missing_is_installed() {
        let found = Found {
            on_path: Some(21),
            ..nothing(System::Debian, true)
        };
        assert_eq!(plan(&found, true), Plan::Install(vec!["maven"]));
        assert_eq!(
            plan(
                &Found {
                    maven: true,
                    ..found
                },
                true
            ),
            Plan::Use(None)
        );
    }

    #[test]
    fn the_variable_wins_and_a_wrong_one_is_not_passed_over() {
        let home = |version| Found {
            variable: Some(("/mine".into(), version)),
            on_path: Some(17),
            maven: true,
            ..Found::default()
        };
        assert_eq!(plan(&home(Some(21)), true), Plan::Use(Some("/mine".into())));
        assert!(says(
            &plan(&home(Some(8)), true),
            "JAVA_HOME is /mine, where there is a JDK 8"
        ));
        assert!(says(&plan(&home(None), true), "no JDK"));
    }

    #[test]
    fn versions_old_and_new_are_read() {
        assert_eq!(version("javac 17.0.15\n"), Some(17));
        assert_eq!(version("javac 1.8.0_412"), Some(8));
        assert_eq!(version("javac 21-ea"), Some(21));
        assert_eq!(version("command not found"), None);
    }
}
