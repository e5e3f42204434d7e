//! The same lock as Java: our client and real Redisson JVMs on one server, in every pairing.
//!
//! Run it with `cargo xtask interop`, which builds the JVMs' side. A scenario with two parties runs
//! four times: Rust and Rust, Rust and Java, Java and Rust, and Java and Java, the control that the
//! scenario itself is right. What is planned is computed before anything runs; what did not run has
//! failed.

#![allow(unreachable_pub, reason = "a test is no library")]

mod contention;
mod doomed;
mod failures;
mod fair;
mod fixture;
mod holding;
mod joint;
mod kinds;
mod party;
mod primaries;
mod read_write;
mod scripts;
mod servers;
mod several;
mod stored;
mod strings;
mod tokens;
mod waiting;
mod wire;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use fixture::{Fixture, Job, Load, Scenario, Sides};
use primaries::Topology;
use test_support::Server;
use test_support::peer::Build;

fn main() {
    if is_child() {
        return;
    }
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let failed = runtime.expect("a runtime").block_on(run(&filters));
    if failed > 0 {
        std::process::exit(101);
    }
}

/// What the child process does, if this is one.
fn is_child() -> bool {
    let order = std::env::var("INTEROP_HOLD");
    let joint = std::env::var("INTEROP_JOINT");
    let tokens = std::env::var("INTEROP_TOKENS");
    let once = std::env::var("INTEROP_TRY");
    if order.is_err() && joint.is_err() && tokens.is_err() && once.is_err() {
        return false;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        if let Ok(tokens) = tokens {
            return tokens::process(&tokens).await;
        }
        let mut guards = Vec::new();
        if let Ok(order) = order {
            guards = doomed::hold(&order).await;
        }
        let once = match once {
            Ok(once) => Some(doomed::try_once(&once).await),
            Err(_) => None,
        };
        let caller = match joint {
            Ok(joint) => Some(joint::hold(&joint).await),
            Err(_) => None,
        };
        // Not for ever, should its parent be killed first.
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop((guards, caller, once));
    });
    true
}

/// Every scenario, by theme.
fn scenarios() -> Vec<Scenario> {
    [
        holding::scenarios(),
        kinds::scenarios(),
        fair::scenarios(),
        read_write::scenarios(),
        joint::scenarios(),
        waiting::scenarios(),
        failures::scenarios(),
        servers::scenarios(),
        several::scenarios(),
        contention::scenarios(),
    ]
    .concat()
}

async fn run(filters: &[String]) -> usize {
    let builds = builds();
    let short = std::env::var("INTEROP_SHORT").unwrap_or_default();
    let short: Vec<&str> = short
        .split(',')
        .filter(|version| !version.is_empty())
        .collect();
    let (mut passed, mut failed) = (0, 0);
    for build in builds {
        let is_short = short.contains(&build.version.as_str());
        let start = Instant::now();
        let Played { results, left_out } = version(&build, is_short, filters).await;
        let fine = results.values().filter(|&&passed| passed).count();
        let cell = format!("{fine}/{}", results.len());
        if !build.is_of_strings() {
            for (kind, (passed, planned)) in by_kind(&results) {
                println!("kind {} {kind} {passed}/{planned}", build.version);
            }
        }
        println!(
            "interop {} {cell} {left_out} left out {:.1} s{}",
            build.version,
            start.elapsed().as_secs_f64(),
            if is_short { " short" } else { "" }
        );
        passed += fine;
        failed += results.len() - fine;
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    failed
}

/// How many of each kind have passed, of how many. The name of a scenario begins with its kind, or with its servers and
/// its kind, unless it is plain.
fn by_kind(results: &BTreeMap<String, bool>) -> BTreeMap<&str, (usize, usize)> {
    let mut kinds = BTreeMap::new();
    for (name, passed) in results {
        let mut words = name.split('_').skip(4).take(2);
        let kind =
            words.find(|word| ["fenced", "spin", "fair", "rw", "multi", "red"].contains(word));
        let counts: &mut (usize, usize) = kinds.entry(kind.unwrap_or("plain")).or_default();
        *counts = (counts.0 + usize::from(*passed), counts.1 + 1);
    }
    kinds
}

/// The Redisson versions and other peers that `INTEROP_VERSIONS` names, or the newest Redisson.
fn builds() -> Vec<Build> {
    let versions = std::env::var("INTEROP_VERSIONS").unwrap_or_else(|_| "4.7.0".to_owned());
    let folder = std::env::var_os("INTEROP_JVM").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/jvm"),
        std::path::PathBuf::from,
    );
    let tools = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let build = |version: &str| {
        let of_strings = Build {
            version: version.to_owned(),
            folder: tools.join(version),
        };
        if of_strings.is_of_strings() {
            return of_strings;
        }
        let folder = folder.join(version);
        assert!(
            folder.join("classes/Peer.class").is_file(),
            "Redisson {version} is not built: run `cargo xtask interop`, which builds it, or leave Java out with \
             `cargo xtask test --without java`"
        );
        Build {
            version: version.to_owned(),
            folder,
        }
    };
    versions.split(',').map(build).collect()
}

/// What one version has shown.
struct Played {
    results: BTreeMap<String, bool>,
    /// Pairings that this version cannot play.
    left_out: usize,
}

/// What this version plays, and how many pairings it cannot play.
fn planned(build: &Build, short: bool, only: Option<&str>) -> (Vec<Job>, usize) {
    let scenarios = match build.is_of_strings() {
        true => strings::scenarios(),
        false => scenarios(),
    };
    let scenarios: Vec<Scenario> = scenarios
        .into_iter()
        .filter(|scenario| match only {
            Some(word) => word == scenario.topology.word() && (!short || scenario.short),
            // Of those with several servers a selection; a failover of Sentinel takes a while.
            None => match scenario.topology {
                Topology::One => scenario.short || !short,
                Topology::Cluster => scenario.short,
                Topology::Sentinel => {
                    scenario.short && ["3.20.0", "4.7.0"].contains(&&*build.version)
                }
            },
        })
        .collect();
    let all = scenarios.len() * Job::PAIRINGS;
    let jobs: Vec<Job> = scenarios
        .into_iter()
        .flat_map(|scenario| Job::pairings(scenario, &build.version))
        .collect();
    let left_out = all - jobs.len();
    (jobs, left_out)
}

/// Runs what is planned for one version. What is planned and has no result has failed.
async fn version(build: &Build, short: bool, filters: &[String]) -> Played {
    let server = Server::start();
    let sides = Arc::new(Sides::open(build, &server).await);
    let side = if build.is_of_strings() { "peer" } else { "jvm" };
    let full = |what: &str| format!("{side}_{}_{what}", build.version.replace('.', "_"));
    let wanted =
        |name: &String| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
    let only = std::env::var("INTEROP_TOPOLOGY").ok();
    let (jobs, left_out) = planned(build, short, only.as_deref());
    let jobs: Vec<(String, Job)> = jobs
        .into_iter()
        .map(|job| (full(&format!("{}_{}", job.scenario.name, job.pair())), job))
        .filter(|(name, _)| wanted(name))
        .collect();
    let mut results: BTreeMap<String, bool> =
        jobs.iter().map(|(name, _)| (name.clone(), false)).collect();
    assert_eq!(
        results.len(),
        jobs.len(),
        "every scenario has a name of its own"
    );
    let has_one = only
        .as_deref()
        .is_none_or(|word| word == Topology::One.word());
    if has_one {
        results.extend(without_pairings(build, &sides, full, wanted).await);
    }
    let fault = std::env::var("INTEROP_FAULT").ok();
    let fault = fault.map(|signal| tokio::spawn(Arc::clone(&sides).fault(signal)));
    for (load, at_once) in Load::ALL {
        let permits = Arc::new(Semaphore::new(at_once));
        let mut running = tokio::task::JoinSet::new();
        for (name, job) in jobs.iter().filter(|(_, job)| job.scenario.load == load) {
            let (name, permits) = (name.clone(), Arc::clone(&permits));
            let (fixture, scenario) = (Fixture::new(&sides, job), Arc::clone(&job.scenario.play));
            running.spawn(async move {
                let _permit = permits.acquire().await.expect("open");
                let passed = play(&name, scenario(fixture)).await;
                (name, passed)
            });
        }
        while let Some(result) = running.join_next().await {
            let (name, passed) = result.expect("no panic outside of a scenario");
            results.insert(name, passed);
        }
    }
    if let Some(fault) = fault {
        // A process that is stopped now cannot be asked to close; its input ends with this process.
        fault.abort();
        sides.end_trouble();
        return Played { results, left_out };
    }
    // What has failed may have left somebody behind; the end of the process takes care of that.
    if let Some(sides) = Arc::into_inner(sides) {
        sides.close().await;
    }
    Played { results, left_out }
}

/// What is no scenario of two parties.
async fn without_pairings(
    build: &Build,
    sides: &Arc<Sides>,
    full: impl Fn(&str) -> String,
    wanted: impl Fn(&String) -> bool,
) -> BTreeMap<String, bool> {
    let mut results = BTreeMap::new();
    let (wire, scripts) = (full("wire"), full("uncalled"));
    // Compared with the newest; the others are known by what they do.
    if build.version == NEWEST && wanted(&wire) {
        let sides = Arc::clone(sides);
        let passed = play(&wire, async move {
            let [rust, java] = &sides.long;
            wire::check(sides.port, rust, java).await;
            read_write::wire::check(sides.port, rust, java).await;
        })
        .await;
        results.insert(wire, passed);
    }
    if !build.is_of_strings() && wanted(&scripts) {
        let sides = Arc::clone(sides);
        let passed = play(&scripts, async move {
            scripts::check(sides.port, &sides.long[1]).await;
        })
        .await;
        results.insert(scripts, passed);
    }
    results
}

/// Plays a scenario in a task of its own, so that a panic is a result.
async fn play(name: &str, scenario: impl Future<Output = ()> + Send + 'static) -> bool {
    let start = Instant::now();
    let mut scenario = tokio::spawn(scenario);
    let ended = tokio::time::timeout(job_max(), &mut scenario).await;
    scenario.abort();
    let word = match ended {
        Ok(Ok(())) => "ok",
        Ok(Err(_)) => "FAILED",
        Err(_) => "FAILED: it does not end",
    };
    println!(
        "test {name} ... {word} ({:.1} s)",
        start.elapsed().as_secs_f64()
    );
    word == "ok"
}

/// The Redisson that our steps are compared with.
const NEWEST: &str = "4.7.0";

/// Killing or pausing a side ends in take-over, never in a stuck run.
fn job_max() -> Duration {
    let seconds = std::env::var("INTEROP_JOB_SECS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(120))
}
