//! Packages of the system: a pure plan of what becomes of those that are missing, and what carries it out.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Problem, ended};

/// Its name for apt-get, and for brew.
pub type Package = (&'static str, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// It has apt-get.
    Debian,
    MacOs,
    Other,
}

/// Installs what is missing where that is safe, and otherwise tells the caller how. `what_for` says what is missing, and
/// `instead` what can be done without it.
pub fn install(
    missing: &[Package],
    what_for: &str,
    instead: &str,
    may_install: bool,
) -> Result<(), Problem> {
    if missing.is_empty() {
        return Ok(());
    }
    let system = if cfg!(target_os = "macos") {
        System::MacOs
    } else if Path::new("/usr/bin/apt-get").is_file() {
        System::Debian
    } else {
        System::Other
    };
    let id = Command::new("id").arg("-u").output();
    let is_root = id.is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    let names = plan(missing, system, is_root && may_install).map_err(|command| {
        Problem::to_do(format!(
            "{what_for}. Install what is missing with\n\n    {command}\n\n{instead}"
        ))
    })?;
    println!(
        "installing the system packages {} (--no-install forbids it)",
        names.join(", ")
    );
    apt_get(&["update", "-qq"])?;
    // The package of a server starts one unless it is told not to; the tests never use that one.
    let words = ["install", "-y", "-qq", "--no-install-recommends"];
    apt_get(&[&words[..], &names].concat())
}

/// What is installed, or the command that the caller is told.
fn plan(
    missing: &[Package],
    system: System,
    may_install: bool,
) -> Result<Vec<&'static str>, String> {
    let (debian, brew): (Vec<_>, Vec<_>) = missing.iter().copied().unzip();
    match system {
        System::Debian if may_install => Ok(debian),
        System::Debian => Err(format!("apt-get install {}   (as root)", debian.join(" "))),
        System::MacOs => Err(format!("brew install {}", brew.join(" "))),
        System::Other => Err(format!(
            "your system's package manager, for {}",
            brew.join(", ")
        )),
    }
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

/// Whether a command is there and runs.
pub fn runs(command: &str, word: &str) -> bool {
    let run = Command::new(command).arg(word).output();
    run.is_ok_and(|done| done.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_installed_as_root_on_debian_and_otherwise_named() {
        let both = [("a-dev", "a"), ("b-dev", "b")];
        let told = |system, may_install| plan(&both, system, may_install).expect_err("told");
        assert_eq!(
            plan(&both, System::Debian, true),
            Ok(vec!["a-dev", "b-dev"])
        );
        assert_eq!(
            told(System::Debian, false),
            "apt-get install a-dev b-dev   (as root)"
        );
        assert_eq!(told(System::MacOs, true), "brew install a b");
        assert!(told(System::Other, true).ends_with("package manager, for a, b"));
    }
}
