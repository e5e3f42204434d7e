//! `cargo xtask features`: whether the library builds with every two of its optional features, a chore of a release. CI
//! builds it with each of them.

use crate::test::DENY;
use crate::{Problem, cargo, ended};

/// A feature that needs another one, and does not say so, does not build by itself.
pub fn each() -> Result<(), Problem> {
    FEATURES.iter().try_for_each(|feature| builds_with(feature))
}

/// Every two of them together.
pub fn run() -> Result<(), Problem> {
    let mut pairs = 0;
    for (nth, one) in FEATURES.iter().enumerate() {
        for other in &FEATURES[nth + 1..] {
            builds_with(&format!("{one},{other}"))?;
            pairs += 1;
        }
    }
    println!("{pairs} pairs of features build without a warning");
    Ok(())
}

const FEATURES: [&str; 8] = [
    "blocking",
    "fred",
    "macros",
    "metrics",
    "redisson-config",
    "serde",
    "test-util",
    "tls-rustls",
];

fn builds_with(features: &str) -> Result<(), Problem> {
    let mut check = cargo(&["clippy", "--package", "redisson-lock", "--lib"]);
    ended(
        check
            .args(["--no-default-features", "--features", features])
            .args(DENY),
        format!("the library does not build with `{features}`"),
    )
}
