//! `cargo xtask weight`: what a program that takes one lock costs to build, with and without the feature `fred`, beside
//! `rslock` and a bare client. The part of the README is written.
//!
//! Each program is built from nothing in a folder of its own, with the versions of this repository's `Cargo.lock`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::{Problem, ended, tools};

struct Program {
    name: &'static str,
    dependency: String,
    main: &'static str,
}

struct Weight {
    packages: usize,
    /// Processor time of a release build.
    seconds: f64,
    /// Of the stripped program.
    bytes: u64,
}

pub fn run() -> Result<(), Problem> {
    let programs = programs();
    let weights: Vec<Weight> = programs.iter().map(weigh).collect::<Result<_, _>>()?;
    let text = table(&programs, &weights);
    println!("{text}");
    let readme = tools::root().join("README.md");
    let page = read(&readme)?;
    let page = with_part(&page, &text).ok_or_else(|| {
        Problem::failed(format!("README.md has no part between {BEGIN} and {END}"))
    })?;
    write(&readme, &page)
}

const BEGIN: &str = "<!-- Written by `cargo xtask weight`: do not edit this part. -->";
const END: &str = "<!-- End of the part. -->";

fn programs() -> [Program; 4] {
    let root = tools::root();
    let ours = |more: &str| format!("redisson-lock = {{ path = \"{}\"{more} }}", root.display());
    [
        Program {
            name: "redisson-lock",
            dependency: ours(""),
            main: OURS,
        },
        Program {
            name: "without `fred`",
            dependency: ours(", default-features = false"),
            main: OURS,
        },
        Program {
            name: "rslock 0.10",
            dependency: "rslock = { version = \"0.10\", features = [\"tokio-comp\"] }".into(),
            main: RSLOCK,
        },
        Program {
            name: "redis 1 (no lock)",
            dependency: "redis = { version = \"1\", features = [\"tokio-comp\"] }".into(),
            main: REDIS,
        },
    ]
}

const OURS: &str = r#"
#[tokio::main]
async fn main() {
    let client = redisson_lock::LockClient::connect("redis://127.0.0.1").await.unwrap();
    client.lock("a").lock().await.unwrap().unlock().await.unwrap();
}
"#;

const RSLOCK: &str = r#"
#[tokio::main]
async fn main() {
    let locks = rslock::LockManager::new(vec!["redis://127.0.0.1"]);
    let lock = locks.lock("a", std::time::Duration::from_secs(30)).await.unwrap();
    locks.unlock(&lock).await;
}
"#;

const REDIS: &str = r#"
#[tokio::main]
async fn main() {
    let client = redis::Client::open("redis://127.0.0.1").unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let _: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
}
"#;

fn weigh(program: &Program) -> Result<Weight, Problem> {
    println!("building {}", program.name);
    let folder = tools::target().join("weight");
    if folder.exists() {
        fs_err::remove_dir_all(&folder).map_err(|error| Problem::failed(error.to_string()))?;
    }
    fs_err::create_dir_all(folder.join("src"))
        .map_err(|error| Problem::failed(error.to_string()))?;
    let manifest = format!("{MANIFEST}{}\n", program.dependency);
    write(&folder.join("Cargo.toml"), &manifest)?;
    write(&folder.join("src/main.rs"), program.main)?;
    let versions = read(&tools::root().join("Cargo.lock"))?;
    write(&folder.join("Cargo.lock"), &versions)?;
    // What is downloaded is no part of a build.
    let packages = packages(&folder)?;
    let before = processor_seconds()?;
    ended(
        cargo(&folder).args(["build", "--quiet", "--release"]),
        format!("the program of {} does not build", program.name),
    )?;
    let seconds = processor_seconds()? - before;
    let built = folder.join("target/release/weight");
    let built = fs_err::metadata(built).map_err(|error| Problem::failed(error.to_string()))?;
    Ok(Weight {
        packages,
        seconds,
        bytes: built.len(),
    })
}

const MANIFEST: &str = r#"[package]
name = "weight"
version = "0.0.0"
edition = "2024"
publish = false

[workspace]

[profile.release]
strip = true

[dependencies]
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
"#;

fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"));
    command
}

/// How many packages are compiled, the program's own not counted.
fn packages(folder: &Path) -> Result<usize, Problem> {
    let tree = cargo(folder)
        .args(["tree", "--edges", "normal,build", "--prefix", "none"])
        .output();
    let tree =
        tree.map_err(|error| Problem::failed(format!("cargo tree does not run: {error}")))?;
    if !tree.status.success() {
        let why = String::from_utf8_lossy(&tree.stderr).into_owned();
        return Err(Problem::failed(why));
    }
    let text = String::from_utf8_lossy(&tree.stdout);
    Ok(distinct(&text).saturating_sub(1))
}

/// The packages of `cargo tree`, each once: it shows one again for each that depends on it.
fn distinct(tree: &str) -> usize {
    let name = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        words.join(" ")
    };
    let names: BTreeSet<String> = tree.lines().map(name).filter(|it| !it.is_empty()).collect();
    names.len()
}

/// Of the children that have ended, in user and system mode.
fn processor_seconds() -> Result<f64, Problem> {
    let stat = read(Path::new("/proc/self/stat")).map_err(|_| {
        Problem::to_do("the processor time of a build is read from /proc, on Linux")
    })?;
    let ticks = ticks_of_children(&stat);
    let ticks = ticks.ok_or_else(|| Problem::failed("/proc/self/stat is not as documented"))?;
    Ok(ticks / TICKS_PER_SECOND)
}

/// `USER_HZ`, which Linux has on every platform that Rust runs on but Alpha.
const TICKS_PER_SECOND: f64 = 100.0;

/// The fields `cutime` and `cstime`. The name before them may contain blanks.
fn ticks_of_children(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(13);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some(next()? + next()?)
}

fn table(programs: &[Program], weights: &[Weight]) -> String {
    let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    let row = |of: &dyn Fn(&Weight) -> String| {
        let cells: Vec<String> = weights.iter().map(of).collect();
        cells.join(" | ")
    };
    let mut text = format!("| | {} |\n|---|---:|---:|---:|---:|\n", names.join(" | "));
    let packages = row(&|weight| weight.packages.to_string());
    let _ = writeln!(text, "| packages of a build | {packages} |");
    let seconds = row(&|weight| format!("{:.0}", weight.seconds));
    let _ = writeln!(text, "| processor seconds of a release build | {seconds} |");
    let bytes = row(&|weight| {
        let tenths = weight.bytes / 100_000;
        format!("{}.{}", tenths / 10, tenths % 10)
    });
    let _ = writeln!(text, "| MB of a stripped program | {bytes} |");
    text
}

/// A text with another part between the marks.
fn with_part(text: &str, new: &str) -> Option<String> {
    let begin = text.find(BEGIN)? + BEGIN.len();
    let end = begin + text[begin..].find(END)?;
    Some(format!("{}\n\n{new}\n{}", &text[..begin], &text[end..]))
}

fn read(path: &Path) -> Result<String, Problem> {
    fs_err::read_to_string(path).map_err(|error| Problem::failed(error.to_string()))
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    fs_err::write(path, text).map_err(|error| Problem::failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_is_shown_again_is_one() {
        let tree = "weight v0.0.0 (/a)\ntokio v1.0.0\nlibc v0.2.0\n\nlibc v0.2.0 (*)\n";
        assert_eq!(distinct(tree), 3);
    }

    #[test]
    fn the_ticks_of_children_are_behind_a_name_with_blanks() {
        let stat = "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 30 12 20 0";
        assert_eq!(ticks_of_children(stat), Some(42.0));
    }

    #[test]
    fn a_part_takes_the_place_of_another() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb");
        let new = with_part(&text, "new").expect("it has one");
        assert_eq!(new, format!("a\n{BEGIN}\n\nnew\n{END}\nb"));
    }
}
