//! Servers that are killed, stopped, moved and failed over under load, and an oracle that judges what the locks
//! did meanwhile. `cargo xtask chaos` builds and runs this.
//!
//! The faults follow from the seed. What they meet does not: time is real.

#![allow(
    clippy::missing_errors_doc,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "a program, not a library"
)]

#[cfg(test)]
#[macro_use]
extern crate test_support;

mod cluster;
mod events;
mod faults;
mod inject;
mod load;
mod oracle;
mod plain;
mod run;
mod sentinel;
mod watch;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use faults::{Schedule, Servers};
use load::{Judge, Load, Plan};
use oracle::{Judged, Needed, Oracle, Terms};
use run::Run;
use test_support::ms;

#[derive(Parser)]
#[command(bin_name = "cargo xtask chaos")]
struct Options {
    /// Which servers
    #[arg(long)]
    topology: Topology,
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// What the faults follow from
    #[arg(long, default_value_t = fastrand::u64(..1_000_000), hide_default_value = true)]
    seed: u64,
    /// Where the events of the clients are written
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Topology {
    Cluster,
    Sentinel,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options = Options::parse();
    match chaos(&options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("seed {}: {problem}", options.seed);
            ExitCode::FAILURE
        }
    }
}

/// Answers whether everything was as promised.
async fn chaos(options: &Options) -> Result<bool, String> {
    let is_cluster = options.topology == Topology::Cluster;
    let topology = if is_cluster { "cluster" } else { "sentinel" };
    println!("{topology}, {} s, seed {}", options.seconds, options.seed);
    let servers = blocking(move || start(is_cluster)).await??;
    let start = Instant::now();
    if let Some(path) = &options.log {
        events::write_to(path)?;
    }
    let locks = plan();
    let terms = Terms {
        watchdog_timeout: load::WATCHDOG_TIMEOUT,
        command_timeout: load::COMMAND_TIMEOUT,
        reported_within: REPORTED_WITHIN,
    };
    let judge = Judge::new(Oracle::new(terms, locks.clone(), start));
    watch_stalls(judge.clone());
    let plan = Plan {
        locks,
        contended: TAGS + TAGS / 2,
        replicas: servers.replicas(),
    };
    let mut load = Load::start(&servers.url(), &plan, &judge, options.seed).await?;
    let run = Run {
        schedule: Schedule::new(options.seed, servers.kinds()),
        servers,
        judge: judge.clone(),
        start,
        until: start + Duration::from_secs(options.seconds),
        interrupted: interrupted(),
        made: BTreeSet::new(),
    };
    let run = blocking(move || {
        let mut run = run;
        let done = run.all();
        (run, done)
    });
    let (run, done) = run.await?;
    let mut problems = Vec::from_iter(done.err());
    let missing = run.not_made();
    let is_long = start.elapsed() >= long(is_cluster);
    let redirections = end(&mut load, &judge, &mut problems).await;
    let left = blocking(move || {
        let mut run = run;
        run.last_words();
        run.left()
    });
    problems.extend(left.await?.err());
    let needed = Needed {
        contended: plan.contended,
        missing,
        is_long,
        redirections: is_cluster.then_some(redirections),
    };
    let mut oracle = judge.oracle();
    judge_all(&mut oracle, problems, &needed);
    println!(
        "{topology}: {}",
        line(&oracle, options.seed, start.elapsed(), redirections)
    );
    Ok(oracle.violations().is_empty())
}

fn judge_all(oracle: &mut Oracle, mut problems: Vec<String>, needed: &Needed) {
    let now = Instant::now();
    oracle.judge(now);
    if problems.is_empty() && oracle.violations().is_empty() {
        problems = oracle.too_little(needed, now);
    }
    for problem in problems {
        oracle.violated(None, now, &problem);
    }
    for violation in oracle.violations() {
        println!("\n{violation}");
    }
}

/// Ends the load; answers how often the clients were sent on.
async fn end(load: &mut Load, judge: &Judge, problems: &mut Vec<String>) -> u64 {
    problems.extend(load.stop(judge).await.err());
    problems.extend(load.left().await);
    let mut redirections = 0;
    for client in &load.clients {
        redirections += client.stats().redirects_total;
        let report = client.close(ms(2_000)).await;
        if !report.abandoned.is_empty() || report.unconfirmed > 0 {
            problems.push(format!("a client leaves behind: {report:?}"));
        }
    }
    redirections
}

fn line(oracle: &Oracle, seed: u64, took: Duration, redirections: u64) -> String {
    let sums = oracle.sums;
    format!(
        "{:.0} s, seed {seed}, {} sections, {} compared with the servers, overlaps {} allowed ({} with a loss, \
         {} released at the former primary) and {} not, {redirections} redirections, {} failovers, \
         {} holds lost and reported (at most {:.2} s after the switch), \
         {} at their deadline, calls failed in outages: {} without an answer, {} refused, {} for their replicas \
         (at most {:.2} s behind one), {:.2} s credited at most, {} violations",
        took.as_secs_f64(),
        sums.sections,
        sums.compared,
        sums.overlaps_allowed,
        sums.with_a_loss,
        sums.released_before,
        sums.overlaps_not_allowed,
        sums.failovers,
        sums.lost,
        sums.longest.as_secs_f64(),
        sums.not_renewed,
        sums.no_answer,
        sums.refused,
        sums.too_few_replicas,
        sums.failed_behind.as_secs_f64(),
        sums.credit.as_secs_f64(),
        oracle.violations().len()
    )
}

/// By then every kind of fault has been made, some of them twice.
fn long(is_cluster: bool) -> Duration {
    Duration::from_secs(if is_cluster { 90 } else { 180 })
}

fn start(is_cluster: bool) -> Result<Box<dyn Servers>, String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    Ok(if is_cluster {
        Box::new(cluster::Nodes::start(&runtime)?)
    } else {
        Box::new(sentinel::Watched::start(&runtime)?)
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| error.to_string())
}

/// Contended locks first, then those that are held for long; in each third of the hash slots two groups, so
/// that a slot that moves has many of them.
fn plan() -> Vec<Judged> {
    let tag = |nth: usize| {
        (0..)
            .map(|salt| format!("t{nth}-{salt}"))
            .find(|tag| usize::from(test_support::slot(tag)) / 5_462 == nth % 3)
    };
    let tags: Vec<String> = (0..TAGS).filter_map(tag).collect();
    let lock = |tag: &str, name: String, synced| Judged {
        name: format!("{{{tag}}}:{name}"),
        slot: test_support::slot(tag),
        synced,
    };
    let busy = tags.iter().map(|tag| lock(tag, "busy".to_owned(), false));
    let synced = tags.iter().step_by(2);
    let synced = synced.map(|tag| lock(tag, "busy:synced".to_owned(), true));
    let held = (0..HELD).map(|nth| lock(&tags[nth % TAGS], format!("held:{nth}"), nth % 7 == 0));
    busy.chain(synced).chain(held).collect()
}

/// A thread that sleeps a little at a time, and sees for how long the machine stood still.
fn watch_stalls(judge: Judge) {
    std::thread::spawn(move || {
        let mut before = Instant::now();
        loop {
            std::thread::sleep(NAP);
            let now = Instant::now();
            let stall = (now - before).saturating_sub(NAP);
            if stall > ms(1) {
                judge.oracle().stalled(now, stall);
            }
            before = Instant::now();
        }
    });
}

/// Set by Ctrl-C: the servers are ended in order.
fn interrupted() -> Arc<AtomicBool> {
    let interrupted = Arc::<AtomicBool>::default();
    let set = Arc::clone(&interrupted);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            set.store(true, Ordering::Relaxed);
        }
    });
    interrupted
}

/// Groups of locks that share a hash slot.
const TAGS: usize = 6;

/// Locks that are held for long.
const HELD: usize = 240;

/// `docs/guarantees.md`: how long after the switch a loss is reported.
const REPORTED_WITHIN: Duration = Duration::from_secs(2);

const NAP: Duration = Duration::from_millis(5);
