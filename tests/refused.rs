//! What `#[locked]` refuses, with its messages. `TRYBUILD=overwrite` writes them again.

use std::process::Command;
use std::time::Duration;

use test_support::{may_take, test};

/// The compiler whose own words stand in `refused_by_rustc`.
const RUSTC: &str = "rustc 1.95.";

#[test]
fn each_mistake_is_refused_with_a_sentence_that_says_what_to_write() {
    // It builds the library first.
    may_take(Duration::from_secs(600));
    let tests = trybuild::TestCases::new();
    tests.compile_fail("tests/refused/*.rs");
    // These are refused by every compiler, but each version may word it in its own way.
    let version = Command::new("rustc").arg("-V").output();
    let version = version.expect("rustc runs").stdout;
    if version.starts_with(RUSTC.as_bytes()) {
        tests.compile_fail("tests/refused_by_rustc/*.rs");
    } else {
        println!("the messages of {RUSTC}x were not compared");
    }
}
