//! Every example, run as a user would, against a real server.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::tools::{self, Server};
use crate::{Problem, cargo, ended};

/// An example, its features, and what it has to print.
type Example = (&'static str, &'static str, &'static [&'static str]);

const EXAMPLES: [Example; 9] = [
    ("any_lock", "", &["sold: true, false", "swept 2"]),
    ("basic", "", &["sold"]),
    ("blocking", "blocking", &["hold count 2", "sold 3"]),
    ("cron", "", &["cleaned up"]),
    ("current_thread", "", &["4 left"]),
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
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !expected.iter().all(|text| said.contains(text)) {
            wrong.push(format!("{name}: {}\n{said}", output.status));
        }
    }
    if let Err(problem) = leaders_take_over(&server.url) {
        wrong.push(format!("{LEADER}: {}", problem.text));
    }
    if wrong.is_empty() {
        println!("{} examples", EXAMPLES.len() + 1);
        Ok(())
    } else {
        Err(Problem::failed(wrong.join("\n")))
    }
}

/// The example that runs until it is told to end.
const LEADER: &str = "leader";

/// A leader that is told to end releases its lock, so that another one leads long before the lease is over.
fn leaders_take_over(url: &str) -> Result<(), Problem> {
    let mut build = cargo(&["build", "--quiet", "--example", LEADER]);
    ended(&mut build, "it does not build")?;
    let first = Leader::start(url)?;
    first.leads()?;
    let second = Leader::start(url)?;
    first.terminate()?;
    second.leads()?;
    second.terminate()
}

/// A process of the example, killed with its handle.
struct Leader {
    process: Child,
    lines: Receiver<String>,
}

impl Leader {
    /// Half of the time that a lease has left at least, when its holder is gone.
    const TAKES_OVER: Duration = Duration::from_secs(10);

    fn start(url: &str) -> Result<Self, Problem> {
        let mut process = Command::new(tools::built("examples/leader"))
            .arg(url)
            .stdout(Stdio::piped())
            .spawn()?;
        let (sender, lines) = channel();
        let stdout = process.stdout.take().map(BufReader::new);
        std::thread::spawn(move || {
            let said = stdout.into_iter().flat_map(BufRead::lines).flatten();
            said.for_each(|line| _ = sender.send(line));
        });
        Ok(Self { process, lines })
    }

    fn leads(&self) -> Result<(), Problem> {
        for expected in ["leading as", "report 1"] {
            let line = self.lines.recv_timeout(Self::TAKES_OVER);
            if !line.is_ok_and(|line| line.starts_with(expected)) {
                return Err(Problem::failed(format!("it does not say `{expected}`")));
            }
        }
        Ok(())
    }

    fn terminate(mut self) -> Result<(), Problem> {
        let id = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status()?;
        let limit = Instant::now() + Self::TAKES_OVER;
        while Instant::now() < limit {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(Problem::failed(format!("SIGTERM: {status}"))),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err(Problem::failed("SIGTERM does not end it"))
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An example that is not in the table would not be run.
fn listed() -> Result<(), Problem> {
    let found: BTreeSet<String> = fs_err::read_dir(tools::root().join("examples"))?
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter_map(|file| Some(file.strip_suffix(".rs")?.to_owned()))
        .collect();
    let names = EXAMPLES.iter().map(|(name, ..)| *name);
    let listed = names.chain([LEADER]).map(str::to_owned).collect();
    if found == listed {
        Ok(())
    } else {
        Err(Problem::failed(format!(
            "xtask/src/test/examples.rs lists {listed:?}, examples/ has {found:?}"
        )))
    }
}
