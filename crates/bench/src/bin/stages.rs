//! Where the time of a hand-off goes: `handoff` again, with perf, which writes down when client and
//! server read and write.
//!
//! `cargo build --release -p bench && target/release/stages`, as root, with `linux-perf` installed.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// What happens between two reads or writes, in order.
const STAGES: [&str; 9] = [
    "the unlock is written → the server has read it",
    "server: until it writes the message",
    "the message is written → the waiter's client has read it",
    "client: until the acquisition is written",
    "the acquisition is written → the server has read it",
    "server: until it writes the reply",
    "the reply is written → the client has read it",
    "client: until its next command is written",
    "all of it",
];

/// As `scenarios.rs` opens them.
const SYSTEMS: [&str; 3] = [
    "redisson-lock",
    "floor",
    "floor with a task that wakes the waiter",
];

/// A hand-off begins after at least this many microseconds without a write.
const SILENCE: f64 = 6_000.0;

/// A longer one was disturbed.
const LONGEST: f64 = 5_000.0;

/// A read or a write that has moved something.
struct Passed {
    /// Microseconds.
    at: f64,
    fd: u64,
    writes: bool,
}

fn main() -> ExitCode {
    match record().map(|(text, server)| evaluate(&text, server)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// What perf has written down, and which process is the server.
fn record() -> Result<(String, u32), String> {
    let failed = |what: &str, error: std::io::Error| {
        format!(
            "{what} does not run: {error}\nperf comes with the package linux-perf, and has to be run as root"
        )
    };
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = here.parent().ok_or("no folder")?.to_owned();
    let mut bench = Command::new(folder.join("bench"))
        .args(["--quick", "--only", "handoff"])
        .env_remove("BENCH_JAVA")
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| failed("bench", error))?;
    let limit = Instant::now() + Duration::from_secs(20);
    let server = loop {
        if let Some(server) = child_of(bench.id()) {
            break server;
        }
        if Instant::now() > limit {
            return Err("bench has started no server".to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let data = std::env::temp_dir().join(format!("stages-{}.data", bench.id()));
    let mut perf = Command::new("perf");
    perf.args(["record", "-m", "2048", "-o"]).arg(&data);
    for call in ["writev", "sendto", "write", "recvfrom", "read"] {
        for end in ["enter", "exit"] {
            perf.args(["-e", &format!("syscalls:sys_{end}_{call}")]);
        }
    }
    perf.args(["-p", &format!("{},{server}", bench.id())]);
    let mut perf = perf
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed("perf", error))?;
    let ended = bench.wait().map_err(|error| failed("bench", error))?;
    // It ends with the processes that it watches.
    let recorded = perf.wait().map_err(|error| failed("perf", error))?;
    if !ended.success() || !recorded.success() {
        return Err(format!("bench ended with {ended}, perf with {recorded}"));
    }
    let script = Command::new("perf")
        .args(["script", "-F", "pid,tid,time,event,trace", "-i"])
        .arg(&data)
        .output()
        .map_err(|error| failed("perf", error));
    let _ = std::fs::remove_file(&data);
    Ok((
        String::from_utf8_lossy(&script?.stdout).into_owned(),
        server,
    ))
}

/// The only process that another one has started.
fn child_of(process: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

/// What passed at the clients, and at the server, in order.
fn read(text: &str, server: u32) -> [Vec<Passed>; 2] {
    let mut passed = [Vec::new(), Vec::new()];
    // By thread: which file it reads or writes, and since when.
    let mut begun: BTreeMap<u32, (u64, f64)> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some((ids, rest)) = words.next().zip(words.next().zip(words.next())) else {
            continue;
        };
        let (Some((process, thread)), (time, event)) = (ids.split_once('/'), rest) else {
            continue;
        };
        let (Ok(process), Ok(thread)) = (process.parse::<u32>(), thread.parse::<u32>()) else {
            continue;
        };
        let Ok(seconds) = time.trim_end_matches(':').parse::<f64>() else {
            continue;
        };
        let (at, side) = (seconds * 1e6, usize::from(process == server));
        let hex = |word: &str| {
            u64::from_str_radix(word.trim_start_matches("0x").trim_end_matches(','), 16).ok()
        };
        if event.contains("sys_enter") {
            let fd = words.nth(1).and_then(hex).unwrap_or_default();
            begun.insert(thread, (fd, at));
            continue;
        }
        let moved = words.next().and_then(hex).unwrap_or_default() as i64;
        let Some((fd, since)) = begun.remove(&thread) else {
            continue;
        };
        let writes = event.contains("write") || event.contains("sendto");
        // Eight bytes wake another thread of the same process.
        if moved > 0 && !(writes && moved == 8) {
            let at = if writes { since } else { at };
            passed[side].push(Passed { at, fd, writes });
        }
    }
    passed
        .iter_mut()
        .for_each(|side| side.sort_by(|one, other| one.at.total_cmp(&other.at)));
    passed
}

fn evaluate(text: &str, server: u32) {
    let [clients, server] = read(text, server);
    let writes: Vec<usize> = (0..clients.len())
        .filter(|&nth| clients[nth].writes)
        .collect();
    let mut found: BTreeMap<[u64; 2], Vec<[f64; 9]>> = BTreeMap::new();
    for nth in writes.windows(4) {
        let [before, unlock, acquire, next] =
            [nth[0], nth[1], nth[2], nth[3]].map(|nth| &clients[nth]);
        if unlock.at - before.at < SILENCE || next.at - unlock.at > LONGEST {
            continue;
        }
        let read_last = |from: usize, to: usize| {
            let mut reads = clients[from..to].iter().filter(|passed| !passed.writes);
            reads.next_back().map(|passed| passed.at)
        };
        let at_server = |writes: bool, from: f64, to: f64| {
            let within = server.iter().filter(move |passed| passed.writes == writes);
            within
                .map(|passed| passed.at)
                .filter(move |at| (from..to).contains(at))
        };
        let times = (|| {
            let (message, reply) = (read_last(nth[1], nth[2])?, read_last(nth[2], nth[3])?);
            Some([
                unlock.at,
                at_server(false, unlock.at, message).next()?,
                at_server(true, unlock.at, message).next_back()?,
                message,
                acquire.at,
                at_server(false, acquire.at, reply).next()?,
                at_server(true, acquire.at, reply).next_back()?,
                reply,
                next.at,
            ])
        })();
        if let Some(times) = times {
            let mut stages: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            stages.push(next.at - unlock.at);
            let stages = <[f64; 9]>::try_from(stages).expect("nine");
            found
                .entry([unlock.fd, acquire.fd])
                .or_default()
                .push(stages);
        }
    }
    found.retain(|_, stages| stages.len() >= 20);
    println!(
        "medians in µs, of {:?} hand-offs",
        found.values().map(Vec::len).collect::<Vec<_>>()
    );
    println!("| | {} |", SYSTEMS.join(" | "));
    println!("|---|---:|---:|---:|");
    for (nth, stage) in STAGES.iter().enumerate() {
        let median = |all: &Vec<[f64; 9]>| {
            let mut times: Vec<f64> = all.iter().map(|stages| stages[nth]).collect();
            times.sort_by(f64::total_cmp);
            format!("{:.0}", times[times.len() / 2])
        };
        let medians: Vec<String> = found.values().map(median).collect();
        println!("| {stage} | {} |", medians.join(" | "));
    }
}
