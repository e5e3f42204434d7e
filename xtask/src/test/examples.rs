//! Every example, run as a user would, against a real server.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::tools::{self, Server};
use crate::{Problem, cargo};

/// An example, its features, and what it has to print.
type Example = (&'static str, &'static str, &'static [&'static str]);

const EXAMPLES: [Example; 9] = [
    ("basic", "", &["sold"]),
    ("blocking", "blocking", &["hold count 2", "sold 3"]),
    ("cron", "", &["cleaned up"]),
    ("current_thread", "", &["4 left"]),
    ("leader", "", &["leading as", "report 3"]),
    ("library", "", &["sold, 0 left", "sold out"]),
    ("lost", "", &["run: Ok(3)", "5 pages, valid until"]),
    ("metrics", "", &["redisson_lock_held 1"]),
    ("spawn_blocking", "", &["5 pages"]),
];

pub fn run(server: &Path) -> Result<(), Problem> {
    listed()?;
    let server = Server::start(server)?;
    let mut wrong = Vec::new();
    for (name, features, expected) in EXAMPLES {
        let output = cargo(&["run", "--quiet", "--example", name, "--features", features])
            .args(["--", &server.url])
            // The one whose code the README shows has no arguments.
            .env("REDIS_URL", &server.url)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| Problem::failed(format!("cargo does not run: {error}")))?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !expected.iter().all(|text| said.contains(text)) {
            wrong.push(format!("{name}: {}\n{said}", output.status));
        }
    }
    if wrong.is_empty() {
        println!("{} examples", EXAMPLES.len());
        Ok(())
    } else {
        Err(Problem::failed(wrong.join("\n")))
    }
}

/// An example that is not in the table would not be run.
fn listed() -> Result<(), Problem> {
    let folder = tools::root().join("examples");
    let files = fs::read_dir(&folder)
        .map_err(|error| Problem::failed(format!("{}: {error}", folder.display())))?;
    let found: BTreeSet<String> = files
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter_map(|file| Some(file.strip_suffix(".rs")?.to_owned()))
        .collect();
    let listed = EXAMPLES
        .iter()
        .map(|(name, ..)| (*name).to_owned())
        .collect();
    if found == listed {
        Ok(())
    } else {
        Err(Problem::failed(format!(
            "xtask/src/test/examples.rs lists {listed:?}, examples/ has {found:?}"
        )))
    }
}
