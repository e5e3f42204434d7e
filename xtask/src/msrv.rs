//! `cargo xtask msrv`: whether the declared Rust version is enough for the newest versions of the
//! dependencies, which is what a new user gets.
//!
//! The test of the declared version (`tests/api.rs`) reads the lock file, so that it says the same every
//! day; this command asks the registry, and is a chore of a release.

use fs_err as fs;
use serde_json::Value;

use crate::{Problem, cargo, tools};

pub fn run() -> Result<(), Problem> {
    let declared = version(env!("CARGO_PKG_RUST_VERSION"));
    let metadata = fresh_metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let asked = packages.filter_map(|package| {
        let text = |key| package[key].as_str();
        Some((
            version(text("rust_version")?),
            text("name")?,
            text("version")?,
        ))
    });
    let Some((highest, name, number)) = asked.max() else {
        return Err(Problem::failed("cargo metadata names no Rust version"));
    };
    println!(
        "declared: 1.{declared}; {name} {number} asks for 1.{highest}, no dependency for more"
    );
    if highest <= declared {
        Ok(())
    } else {
        Err(Problem::failed(format!(
            "raise rust-version in Cargo.toml to 1.{highest}, and in .github/workflows/ci.yml"
        )))
    }
}

/// What cargo resolves for a package that depends on the library and has no lock file.
fn fresh_metadata() -> Result<Value, Problem> {
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
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Problem::failed(format!("cargo metadata: {error}")))
}

/// The second part of `1.89` or `1.89.0`.
fn version(text: &str) -> u32 {
    let second = text.split('.').nth(1);
    second.and_then(|second| second.parse().ok()).unwrap_or(0)
}
