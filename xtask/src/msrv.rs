//! `cargo xtask msrv`: whether the declared Rust version is enough for the newest versions of the
//! dependencies, which is what a new user gets.
//!
//! The test of the declared version (`tests/api.rs`) reads the lock file, so that it says the same every
//! day; this command asks the registry, and is a chore of a release.

use fs_err as fs;

use crate::{Problem, cargo, tools};

pub fn run() -> Result<(), Problem> {
    let declared = version(env!("CARGO_PKG_RUST_VERSION"));
    let metadata = fresh_metadata()?;
    let mut asked = rust_versions(&metadata);
    asked.sort_unstable();
    let Some((highest, by)) = asked.pop() else {
        return Err(Problem::failed("cargo metadata names no Rust version"));
    };
    println!("declared: 1.{declared}; {by} asks for 1.{highest}, no dependency for more");
    if highest <= declared {
        Ok(())
    } else {
        Err(Problem::failed(format!(
            "raise rust-version in Cargo.toml to 1.{highest}, and in .github/workflows/ci.yml"
        )))
    }
}

/// What cargo resolves for a package that depends on the library and has no lock file.
fn fresh_metadata() -> Result<String, Problem> {
    let folder = tools::root().join("target/msrv");
    fs::create_dir_all(&folder)?;
    let manifest = folder.join("Cargo.toml");
    let library = tools::root();
    let text = format!(
        "[package]\nname = \"fresh\"\nversion = \"0.0.0\"\nedition = \"2021\"\nresolver = \"2\"\n\n[workspace]\n\n\
         [lib]\npath = \"lib.rs\"\n\n[dependencies]\nredisson-lock = {{ path = {:?} }}\n",
        library.display().to_string()
    );
    fs::write(&manifest, text)?;
    fs::write(folder.join("lib.rs"), "")?;
    match fs::remove_file(folder.join("Cargo.lock")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let output = cargo(&["metadata", "--format-version", "1", "--manifest-path"])
        .arg(&manifest)
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Problem::failed(format!("cargo metadata: {said}")));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| Problem::failed(format!("cargo metadata: {error}")))
}

/// The Rust versions that packages ask for, with their names. A package begins with its name, its version
/// and its id, and says its Rust version further on.
fn rust_versions(metadata: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let mut read = 0;
    for (at, key) in metadata.match_indices("\"rust_version\":\"") {
        let asked = metadata[at + key.len()..].split('"').next();
        let before = &metadata[read..at];
        let package = before
            .rmatch_indices("{\"name\":\"")
            .find_map(|(start, key)| {
                let mut words = before[start + key.len()..].split('"');
                let (name, version) = (words.next()?, words.nth(3)?);
                (words.nth(1) == Some("id")).then(|| format!("{name} {version}"))
            });
        if let (Some(asked), Some(package)) = (asked, package) {
            found.push((version(asked), package));
        }
        read = at;
    }
    found
}

/// The second part of `1.89` or `1.89.0`.
fn version(text: &str) -> u32 {
    let second = text.split('.').nth(1);
    second.and_then(|second| second.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rust_version_belongs_to_the_package_before_it() {
        let metadata = r#"{"packages":[{"name":"a","version":"1.2.3","id":"x#a","dependencies":[{"name":"b","source":null}],"rust_version":"1.70"},
            {"name":"b","version":"0.1.0","id":"x#b","dependencies":[],"rust_version":null},
            {"name":"c","version":"3.0.0","id":"x#c","rust_version":"1.89.0"}]}"#;
        let expected = [(70, "a 1.2.3".to_owned()), (89, "c 3.0.0".to_owned())];
        assert_eq!(rust_versions(metadata), expected);
    }
}
