//! `cargo xtask release`: whether this commit could be released. It publishes nothing, and says which commands do.

use std::process::Command;

use fs_err as fs;

use crate::published::{PUBLISHED, Published, published};
use crate::{Problem, cargo, docs, ended, tools};

/// The version that knows the documentation of today's compiler.
const SEMVER_CHECKS: &str = "0.51.0";

pub fn run(install: bool) -> Result<(), Problem> {
    let published = published()?;
    let changelog = fs::read_to_string(tools::root().join("CHANGELOG.md"))?;
    let changes = git(&["status", "--porcelain"])?;
    let tags = git(&["tag", "--list", "v*"])?;
    let missing = missing(&published, &changelog, &changes, &tags);
    if !missing.is_empty() {
        return Err(Problem::to_do(format!(
            "nothing can be released yet:\n\n- {}",
            missing.join("\n- ")
        )));
    }
    docs::run()?;
    compatible(install)?;
    packages()?;
    // What crates.io would say of their manifests. The tarballs have been built.
    let mut publish = cargo(&["publish", "--dry-run", "--no-verify"]);
    for name in PUBLISHED {
        publish.args(["--package", name]);
    }
    ended(&mut publish, "the packages cannot be published")?;
    println!("\nThis publishes it, and cannot be undone:\n");
    for package in &published {
        println!("    cargo publish --package {}", package.name);
    }
    let version = &published[0].version;
    println!("    git tag --annotate v{version} --message {version} && git push origin v{version}");
    Ok(())
}

/// What somebody has to do before a release.
fn missing(published: &[Published], changelog: &str, changes: &str, tags: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let without = published.iter().filter(|package| !package.has_addresses);
    let without: Vec<&str> = without.map(|package| &*package.name).collect();
    if !without.is_empty() {
        missing.push(format!(
            "crates.io needs the address of the repository, because the links of a README lead there. Set `repository` and \
             `homepage` in `[workspace.package]` of Cargo.toml, and `repository.workspace = true` and \
             `homepage.workspace = true` in `[package]` of {}",
            without.join(", ")
        ));
    }
    let version = published.first().map_or("", |package| &*package.version);
    if published.iter().any(|package| package.version != version) {
        missing.push("the crates have different versions: give all the same".to_owned());
    }
    let is_heading = |line: &str| {
        let words = line.strip_prefix("## ");
        words.and_then(|words| words.split(' ').next()) == Some(version)
    };
    if !changelog.lines().any(is_heading) {
        missing.push(format!(
            "CHANGELOG.md has no section {version}: give `Unreleased` this number and the day"
        ));
    }
    if !changes.is_empty() {
        missing.push("the working tree has changes: commit them".to_owned());
    }
    if tags.lines().any(|tag| tag == format!("v{version}")) {
        missing.push(format!(
            "v{version} is tagged already: raise `version` in `[workspace.package]`"
        ));
    }
    missing
}

/// Builds each published crate from what would be uploaded. It needs nothing of them on crates.io: cargo takes those that
/// depend on each other from their tarballs.
pub fn packages() -> Result<(), Problem> {
    // A folder of this run: cargo unpacks a tarball that others depend on once for each folder, whatever has changed since.
    let folder = tools::target().join(format!("packages-{}", std::process::id()));
    // What is in the working tree, also before it is committed.
    let package = |more: &[&str]| {
        let mut package = cargo(&["package", "--quiet", "--allow-dirty", "--target-dir"]);
        package.arg(&folder);
        for name in PUBLISHED {
            package.args(["--package", name]);
        }
        package.args(more);
        package
    };
    let built = ended(&mut package(&[]), "the packages do not build");
    // Without a connection the dependencies that are here are enough.
    let built = built.or_else(|problem| match package(&["--offline"]).status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(problem),
    });
    let removed = fs::remove_dir_all(&folder);
    built?;
    removed?;
    let unwanted = unwanted()?;
    match unwanted.is_empty() {
        true => Ok(()),
        false => Err(Problem::failed(format!(
            "packages have what no user needs: {}",
            unwanted.join(", ")
        ))),
    }
}

/// Files in the packages that are neither a source, a script, a page nor a licence.
fn unwanted() -> Result<Vec<String>, Problem> {
    let mut unwanted = Vec::new();
    for name in PUBLISHED {
        let list = ["package", "--list", "--quiet", "--allow-dirty", "--offline"];
        let listed = cargo(&list).args(["--package", name]).output()?;
        if !listed.status.success() {
            let said = String::from_utf8_lossy(&listed.stderr);
            return Err(Problem::failed(format!("{name}: {said}")));
        }
        let files = String::from_utf8_lossy(&listed.stdout);
        let files = files.lines().filter(|file| !is_wanted(name, file));
        unwanted.extend(files.map(|file| format!("{name}: {file}")));
    }
    Ok(unwanted)
}

fn is_wanted(package: &str, file: &str) -> bool {
    let always = [
        // Cargo's own.
        ".cargo_vcs_info.json",
        "Cargo.lock",
        "Cargo.toml",
        "Cargo.toml.orig",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
    ];
    let is_test = file.ends_with("/tests.rs") || file.contains("/tests/");
    // The pages are part of the library's documentation.
    let of_the_library = file == "CHANGELOG.md"
        || file.starts_with("lua/") && file.ends_with(".lua")
        || file.starts_with("docs/") && (file.ends_with(".md") || file.ends_with(".svg"));
    always.contains(&file)
        || file.starts_with("src/") && file.ends_with(".rs") && !is_test
        || package == "redisson-lock" && of_the_library
}

/// Compares the public surface with that of the last release.
pub fn compatible(install: bool) -> Result<(), Problem> {
    let tags = git(&["tag", "--list", "v*", "--sort=-version:refname"])?;
    let Some(last) = tags.lines().next() else {
        println!("no release is tagged, so there is nothing to compare with");
        return Ok(());
    };
    let tool = tools::cargo_tool("cargo-semver-checks", SEMVER_CHECKS, install)?;
    for package in published()? {
        // A program has no surface that another crate uses.
        if package.name == "redisson-lock-cli" {
            continue;
        }
        let mut compare = Command::new(&tool);
        compare
            .args(["semver-checks", "--baseline-rev", last, "--package"])
            .args([&*package.name, "--only-explicit-features"])
            .current_dir(tools::root());
        if !package.docs_rs_features.is_empty() {
            compare.args(["--features", &package.docs_rs_features.join(",")]);
        }
        let name = &package.name;
        let failed = format!("{name}: the number does not allow what has changed since {last}");
        ended(&mut compare, failed)?;
    }
    Ok(())
}

fn git(words: &[&str]) -> Result<String, Problem> {
    let output = Command::new("git")
        .args(words)
        .current_dir(tools::root())
        .output()
        .map_err(|error| Problem::to_do(format!("git does not run ({error}): install git")))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(has_addresses: bool) -> Published {
        Published {
            name: "a".to_owned(),
            version: "0.2.0".to_owned(),
            has_addresses,
            docs_rs_features: Vec::new(),
            docs_rs_flags: Vec::new(),
        }
    }

    #[test]
    fn a_release_is_refused_with_what_is_to_be_done() {
        let log = "# Changelog\n\n## 0.2.0 (2026-12-01)\n";
        assert_eq!(missing(&[package(true)], log, "", "v0.1.0\n"), [""; 0]);
        let refused = |packages: &[Published], log, changes, tags| {
            let missing = missing(packages, log, changes, tags);
            assert_eq!(missing.len(), 1, "{missing:?}");
            missing.concat()
        };
        let no_address = refused(&[package(true), package(false)], log, "", "");
        assert!(no_address.contains("Set `repository` and `homepage` in `[workspace.package]`"));
        let mut other = package(true);
        other.version = "0.1.9".to_owned();
        assert!(refused(&[package(true), other], log, "", "").contains("different versions"));
        assert!(refused(&[package(true)], "## Unreleased\n", "", "").contains("no section 0.2.0"));
        assert!(refused(&[package(true)], log, " M a\n", "").contains("commit"));
        assert!(refused(&[package(true)], log, "", "v0.2.0\n").contains("tagged already"));
    }

    #[test]
    fn a_package_has_what_users_need_and_nothing_else() {
        assert_eq!(unwanted().expect("listed"), [""; 0]);
        assert!(is_wanted("redisson-lock", "docs/guarantees.md"));
        for (package, file) in [
            ("redisson-lock", "tests/lock.rs"),
            ("redisson-lock-core", "src/tests.rs"),
            ("redisson-lock", "mutants/a.txt"),
            ("redisson-lock-cli", "docs/guarantees.md"),
            ("redisson-lock-test", "CHANGELOG.md"),
        ] {
            assert!(!is_wanted(package, file), "{package}: {file}");
        }
    }
}
