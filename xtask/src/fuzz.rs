//! `cargo xtask fuzz`: bytes that a fuzzer chooses, by what code they reach, in place of replies.
//!
//! It needs a C++ compiler for libFuzzer. Without a sanitizer the stable toolchain is enough; the library has no unsafe
//! code.

use std::num::NonZeroU32;
use std::process::Command;

use crate::{Problem, ended, tools};

#[derive(clap::Args)]
pub struct Options {
    /// For how long
    #[arg(long, value_name = "N", default_value = "60")]
    seconds: NonZeroU32,
}

pub fn run(options: &Options, install: bool) -> Result<(), Problem> {
    tools::system_package("c++", ("g++", "gcc"), install)?;
    let tool = tools::cargo_tool("cargo-fuzz", VERSION, install)?;
    let target = tools::target().join("fuzz");
    // What was found, and what reached new code, is tried first the next time.
    let (corpus, found) = (target.join("corpus"), target.join("found"));
    for folder in [&corpus, &found] {
        fs_err::create_dir_all(folder)?;
    }
    let mut fuzzer = Command::new(tool);
    fuzzer
        .args([
            "run",
            "--sanitizer",
            "none",
            "--fuzz-dir",
            "crates/fuzz",
            "--target-dir",
        ])
        .arg(&target)
        .arg("replies")
        .args([&corpus, &found])
        .args([
            "--",
            "-rss_limit_mb=512",
            "-timeout=10",
            "-print_final_stats=1",
        ])
        .arg(format!("-max_total_time={}", options.seconds))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .current_dir(tools::root());
    let failed = "the fuzzer has failed; the input that it found, if it has run, is in";
    ended(&mut fuzzer, format!("{failed} {}", found.display()))
}

/// The version that is known to work.
const VERSION: &str = "0.13.2";
