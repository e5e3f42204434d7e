//! `cargo xtask pair`: which files of the library an uncontended lock and unlock enter, and how many functions; and how
//! many instructions a pair costs, uncontended and contended.
//!
//! Valgrind's callgrind counts while the pairs run, with everything that their runtime does meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::tools::{self, Server};
use crate::{Problem, cargo, ended};

pub fn run(install: bool) -> Result<(), Problem> {
    let server = tools::redis_server(install)?;
    tools::system_package("valgrind", ("valgrind", "valgrind"), install)?;
    for release in [false, true] {
        let profile: &[&str] = if release { &["--release"] } else { &[] };
        let build = ["build", "--quiet", "--package", "bench", "--bin", "pair"];
        ended(
            &mut cargo(&[&build, profile].concat()),
            "the program does not build",
        )?;
    }
    let server = Server::start(&server)?;
    let text = counted(&tools::built("pair"), &server.url, ONE_TASK)?;
    let root = format!("{}/", tools::root().display());
    let entered = entered(&text, &root);
    for (file, functions) in &entered {
        println!("{:>4} {file}", functions.len());
    }
    let functions: usize = entered.values().map(BTreeSet::len).sum();
    println!(
        "\nan uncontended pair enters {} files and {functions} functions",
        entered.len()
    );
    for (what, tasks) in [
        ("uncontended", ONE_TASK),
        ("contended, of sixteen tasks", "16"),
    ] {
        let text = counted(&tools::target().join("release/pair"), &server.url, tasks)?;
        let pairs = PAIRS * tasks.parse::<u64>().expect("a number");
        println!(
            "instructions a pair, {what}: {}",
            instructions(&text) / pairs
        );
    }
    Ok(())
}

const ONE_TASK: &str = "1";

/// Of each task: see `bench/src/bin/pair.rs`.
const PAIRS: u64 = 100;

/// What callgrind writes of the pairs.
fn counted(program: &Path, url: &str, tasks: &str) -> Result<String, Problem> {
    let out = tools::root().join("target/callgrind.pair");
    let done = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--toggle-collect=*pairs_that_are_counted*",
        ])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([url, tasks])
        .stdin(Stdio::null())
        .output();
    let text = match done {
        Ok(done) if done.status.success() => std::fs::read_to_string(&out),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            return Err(Problem::failed(format!("valgrind failed:\n{said}")));
        }
        Err(error) => Err(error),
    };
    text.map_err(|error| Problem::failed(format!("valgrind: {error}")))
}

fn instructions(text: &str) -> u64 {
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.unwrap_or_default()
}

/// The functions by file, of what callgrind has written. A name stands there once, and is a number after that; a
/// function that was inlined is under the file of its lines.
fn entered(text: &str, root: &str) -> BTreeMap<String, BTreeSet<String>> {
    let is_ours = |file: &&str| SOURCES.iter().any(|source| file.starts_with(source));
    let (mut files, mut functions) = (BTreeMap::new(), BTreeMap::new());
    let mut entered = BTreeMap::<String, BTreeSet<String>>::new();
    let (mut file, mut function) = (String::new(), String::new());
    for line in text.lines() {
        let Some((word, value)) = line.split_once('=') else {
            // A line with costs begins with its number.
            let has_cost =
                line.starts_with(|first: char| "+-*".contains(first) || first.is_ascii_digit());
            let file = file.strip_prefix(root).filter(is_ours);
            if let Some(file) = file.filter(|_| has_cost) {
                let functions = entered.entry(file.to_owned()).or_default();
                functions.insert(function.clone());
            }
            continue;
        };
        match word {
            "fl" | "fi" | "fe" => file = name(&mut files, value),
            "cfl" | "cfi" => _ = name(&mut files, value),
            "fn" => function = name(&mut functions, value),
            "cfn" => _ = name(&mut functions, value),
            _ => {}
        }
    }
    entered
}

/// The library, and its core.
const SOURCES: [&str; 2] = ["src/", "crates/core/src/"];

/// `(7) name`, and after that `(7)`.
fn name<'a>(names: &mut BTreeMap<&'a str, &'a str>, value: &'a str) -> String {
    let (number, name) = value.split_once(' ').unwrap_or((value, ""));
    if !name.is_empty() {
        names.insert(number, name);
    }
    names.get(number).copied().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_entered_by_what_costs_there_and_not_by_what_is_only_called() {
        let text = "events: Ir\nfl=(1) /a/src/one.rs\nfn=(1) one\n12 5\ncfi=(2) /a/src/two.rs\ncfn=(2) two\n\
                    calls=1 3\n13 7\nfi=(3) /b/other.rs\n1 1\nfe=(1)\n14 1\n\nfl=(2)\nfn=(2)\n";
        let found = entered(text, "/a/");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["src/one.rs"]);
        assert_eq!(found["src/one.rs"].len(), 1);
        let found = entered(&format!("{text}3 7\n"), "/a/");
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["src/one.rs", "src/two.rs"]
        );
    }
}
