//! What is written: `target/bench/results.json` after every run; after a full one `docs/benchmarks.md`
//! with its plots, and a part of the README.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use fs_err as fs;
use serde_json::json;

use crate::context::{Context, Form};
use crate::jvm;
use crate::plots;
use crate::results::{self, Outcome};
use crate::sample;
use crate::scenario::{OURS, RSLOCK, SCENARIOS};
use crate::sweeps::Sweep;
use crate::targets;

/// When and where a run was. `cargo xtask bench` knows the day and the compiler.
pub fn when_and_where(context: &Context) -> String {
    let given = std::env::var("BENCH_RUN").unwrap_or_else(|_| "run by hand".to_owned());
    let info = context.with_control(|control| control.run(&["INFO", "server"]));
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .unwrap_or("of an unknown version");
    format!("{given}, Redis {}", version.trim())
}

pub fn write_json(outcomes: &[Outcome], sweeps: &[Sweep], form: Form, run: &str) {
    let all = json!({ "run": run, "form": form, "scenarios": outcomes, "sweeps": sweeps });
    let text = serde_json::to_string_pretty(&all).expect("plain data");
    fs::create_dir_all(root().join("target/bench")).expect("a folder");
    println!("{run}");
    write_file("target/bench/results.json", &text);
}

/// Writes the page, whole, and its plots.
pub fn write(outcomes: &[Outcome], sweeps: &[Sweep], run: &str) {
    let folder = root().join("docs/benchmarks");
    let drawn = plots::draw(&folder, outcomes, sweeps).expect("drawn");
    write_file(PAGE, &text(outcomes, &drawn, run));
    let readme = fs::read_to_string(root().join("README.md")).expect("it is there");
    write_file("README.md", &with_part(&readme, BEGIN, &short(outcomes)));
}

/// Writes the part of the page that has a run of its own.
pub fn write_kinds(outcomes: &[Outcome], run: &str) {
    let page = fs::read_to_string(root().join(PAGE)).expect("it is there");
    write_file(PAGE, &with_part(&page, KINDS_BEGIN, &kinds(outcomes, run)));
}

fn write_file(name: &str, text: &str) {
    fs::write(root().join(name), text).expect("it can be written");
    println!("written: {name}");
}

const PAGE: &str = "docs/benchmarks.md";

/// A text with another part after the mark.
fn with_part(text: &str, mark: &str, new: &str) -> String {
    let begin = text.find(mark).map(|at| at + mark.len());
    let begin = begin.unwrap_or_else(|| panic!("there is no line {mark}"));
    let end = text[begin..].find(END).map(|at| begin + at);
    let end = end.unwrap_or_else(|| panic!("there is no line {END} after {mark}"));
    format!("{}\n\n{new}\n{}", &text[..begin], &text[end..])
}

const BEGIN: &str = "<!-- Written by `cargo xtask bench`: do not edit this part. -->";
const KINDS_BEGIN: &str =
    "<!-- Written by `cargo xtask bench --only fair16 --only readers16`, or with the page. -->";
const END: &str = "<!-- End of the part. -->";

/// The part of the README: rates and CPU of the systems that people compare.
fn short(outcomes: &[Outcome]) -> String {
    let cell = |scenario: &str, system: &str, figure: &str, digits| {
        let median = || {
            let outcome = outcomes.iter().find(|one| one.scenario.name == scenario)?;
            Some(outcome.row(system)?.spread(figure)?.median)
        };
        median().map_or_else(|| "–".to_owned(), |value| results::number(value, digits))
    };
    let systems = [OURS, jvm::NAME, RSLOCK];
    let mut text = format!("| | {} |\n|---|---:|---:|---:|\n", systems.join(" | "));
    for (what, scenario, figure, digits) in [
        ("cycles per second, one task", "solo", sample::PER_SECOND, 0),
        ("64 tasks, a lock each", "spread64", sample::PER_SECOND, 0),
        ("16 tasks, one lock", "contend16", sample::PER_SECOND, 0),
        (
            "CPU ms per second, 10,000 locks held",
            "hold10k",
            sample::CPU,
            0,
        ),
        ("50,000 locks held", "hold50k", sample::CPU, 0),
    ] {
        let cells = systems.map(|system| cell(scenario, system, figure, digits));
        let _ = writeln!(text, "| {what} | {} |", cells.join(" | "));
    }
    text
}

fn text(outcomes: &[Outcome], drawn: &[(String, String)], run: &str) -> String {
    let mut text = format!("{HEAD}{run}.\n\n| scenario | what is done |\n|---|---|\n");
    for scenario in SCENARIOS {
        let _ = writeln!(text, "| {} | {} |", scenario.name, scenario.text);
    }
    let (others, rest): (Vec<Outcome>, Vec<Outcome>) = outcomes
        .iter()
        .cloned()
        .partition(|outcome| outcome.scenario.has_own_part());
    let table = results::table(&rest);
    let targets = targets::table(&rest);
    let _ = write!(text, "\n{READING}\n## Targets\n\n{targets}");
    let _ = write!(text, "\n## Results\n\n{table}\n{LIMITS}");
    let kinds = kinds(&others, run);
    let _ = write!(
        text,
        "\n## Fair and read-write locks\n\n{KINDS_BEGIN}\n\n{kinds}\n{END}\n"
    );
    text.push_str("\n## Plots\n\nBoth axes are logarithmic.\n");
    for (file, title) in drawn {
        let _ = write!(text, "\n![{title}][benchmarks/{file}]\n");
    }
    text.push('\n');
    for (file, _) in drawn {
        let _ = writeln!(text, "[benchmarks/{file}]: benchmarks/{file}");
    }
    text
}

/// The scenarios that can be measured without the rest.
fn kinds(outcomes: &[Outcome], run: &str) -> String {
    let targets = targets::table(outcomes);
    let table = results::table(outcomes);
    format!("This run: {run}.\n\n{targets}\n{table}\n{LIMITS_OF_KINDS}")
}

fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own).to_path_buf()
}

const HEAD: &str = "\
# Benchmarks

<!-- Written by `cargo xtask bench`: do not edit it. -->

```console
$ cargo xtask bench            # everything, in about 40 minutes; writes this page
$ cargo xtask bench --only fair16 --only readers16    # in about three minutes; writes their part of this page
$ cargo xtask bench --quick    # three short rounds, in about four minutes
$ cargo bench --bench uncontended    # each kind of lock beside its own two scripts; docs/testing.md has its figures
```

Client and server share one machine, so compare only numbers of one run.
This one: ";

const READING: &str = "\
- The systems of a scenario take turns, round by round, on one server without persistence. A figure is the median of the
  rounds; a ratio is taken in each round, and given as median, least and most.
- Each system has its own contended lock, except in `beside-jvm`. There is a pause before each turn, and the order changes
  with each round, because a system is faster after a busy one has kept the cores awake.
- *p50*, *p99* and *longest* are of lock and unlock together in `solo`, `spread64` and the `far` ones, of the call of lock for a
  contended lock, from the unlock to the other client's lock in `handoff`, and from the first unlock in `herd1000`, where
  herds repeat until the round ends.
- `readers16` has the calls of those that read and of those that write apart; *scripts each* and CPU time are per section of
  either.
- *fairness* is Jain's index of acquisitions per task: 1 if all have as many, 1/n if one has all. Throughput for one lock
  means little without it.
- *scripts each*: EVALSHA and EVAL per acquisition, as counted by the server. rslock locks with SET, which is not counted.
- *client*, *kernel* and *server*: CPU time per acquisition of the client's program, of the kernel for it, and of the
  server with its kernel, in steps of 10 ms, but not of a JVM; *cores*: all three per second. In `handoff` it is the mean
  of a round's two acquisitions; there and in `herd1000` ours includes making the tasks and waiting until all of them wait.
- `far1` to `farther64` have a proxy that delays everything by half a round trip in both directions, in the client's program.
- Redisson and rslock have their own defaults. The JVM (`-Xmx2g`) is warmed for 5 s with the same work; for held locks each
  round has a new process and JVM.
- The *floors* are calls without a lock around them: this crate's scripts on a bare client with the crate's socket
  settings; a lock that one script call passes from owner to owner; a message and a script. In `fair16` all owners are in the
  queue or have the lock: each releases, hears of its turn, acquires and queues up. In `readers16` there is no writer.
- Held locks: *heap* and *RSS* are a process's growth per lock from a tenth of the locks to all, without the list of
  guards; Redisson's heap is read after collections. CPU is the client process's. *lost* locks are no longer renewed.
";

/// What keeps each rate from being higher. The figures are in the table before it.
const LIMITS: &str = "\
## What limits it

**The floors bound the ratios to Redisson.** A lock that cost nothing would have the rate of its floor, or a higher one only
where it sends commands together that the floor sends one by one. Client and server share two cores, and one script call
costs most of an acquisition.

**One call at a time** (`solo`, `contend16`, `handoff`, `herd1000`). Of the time of a lock/unlock cycle, a second divided by
*per second*, the client computes for *client* µs, the kernel for it for *kernel* µs, and the server with its kernel for
*server* µs. In the rest, at least, one side waits for the other to wake.

**Asleep between two calls** (`handoff`). The waiter of one floor reads the message itself; the other has a task that reads for
many waiters and wakes them, as a client has.

**Many concurrent calls** (`spread64`). A cycle costs the sum of *client*, *kernel* and *server*. The two floors with fred
differ in `TCP_NODELAY` alone: with it each command is a write of its own, because fred flushes after each script call.
Ours writes together what is ready.

**A remote server** (`far8`, `farther64`). With fred's own sockets a small write waits for the reply to the one before.

**More connections** (`spread64`). Each of them has writes of its own, so fewer commands share one.
";

/// The same for the scenarios that have a part of their own.
const LIMITS_OF_KINDS: &str = "\
**One turn after another** (`fair16`). A release, its message and the next owner's acquisition follow one another, two round
trips, and the call with which the last owner queues up comes beside them: that is the floor's p50. Ours makes no other calls;
the rest is what its queue and its wake-ups cost.

**Readers beside each other** (`readers16`). The server's script looks at the keys of all readers when one leaves. A writer
needs a moment in which none reads, and a round ends after 4 s.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_readme_is_replaced_and_nothing_else() {
        let readme = fs::read_to_string(root().join("README.md")).expect("it is there");
        let with = |text: &str, new| with_part(text, BEGIN, new);
        let once = with(&readme, "| a |\n");
        assert_eq!(with(&once, "| b |\n"), once.replace("| a |", "| b |"));
        let (before, part) = readme.split_once(BEGIN).expect("a part");
        // Other parts have the same end.
        let (_, behind) = part.split_once(END).expect("a part");
        assert!(once.starts_with(before) && once.ends_with(behind));
    }

    #[test]
    fn the_page_names_its_run_its_scenarios_and_its_plots() {
        let plot = ("solo.svg".to_owned(), "One task".to_owned());
        let text = text(&[], &[plot], "today, 2 cores");
        assert!(with_part(&text, KINDS_BEGIN, "another").contains("-->\n\nanother\n<!-- End"));
        assert!(text.contains("This one: today, 2 cores.\n"));
        assert!(
            SCENARIOS
                .iter()
                .all(|scenario| text.contains(scenario.text))
        );
        let plot =
            "![One task][benchmarks/solo.svg]\n\n[benchmarks/solo.svg]: benchmarks/solo.svg\n";
        assert!(text.ends_with(plot), "{text}");
    }
}
