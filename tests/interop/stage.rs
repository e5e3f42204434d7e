//! What a scenario is, and the ground it plays on.

use std::future::Future;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::peer::{Build, Peer};
use crate::common::{Control, Server, ms, stalls};
use crate::party::Party;
use crate::wire;

type Play = fn(Stage) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that two parties do.
#[derive(Clone)]
pub struct Scenario {
    pub name: &'static str,
    pub play: Play,
    /// It belongs to the short run.
    pub short: bool,
    /// It burns the processor.
    pub heavy: bool,
    /// Versions of Redisson that cannot be the first party; `docs/protocol.md` says why.
    pub not_first: &'static [&'static str],
}

impl Scenario {
    pub fn new(name: &'static str, play: Play) -> Self {
        Self { name, play, short: false, heavy: false, not_first: &[] }
    }

    pub fn short(self) -> Self {
        Self { short: true, ..self }
    }

    pub fn heavy(self) -> Self {
        Self { heavy: true, ..self }
    }

    pub fn not_first(self, versions: &'static [&'static str]) -> Self {
        Self { not_first: versions, ..self }
    }
}

/// A scenario with its two parties.
pub struct Job {
    pub scenario: Scenario,
    first_is_rust: bool,
    second_is_rust: bool,
}

impl Job {
    /// Each kind of party in each part, as far as this version of Redisson can do it.
    pub fn pairings(scenario: Scenario, version: &str) -> Vec<Self> {
        let pairs = [(true, true), (true, false), (false, true), (false, false)];
        pairs
            .into_iter()
            .filter(|(first_is_rust, _)| *first_is_rust || !scenario.not_first.contains(&version))
            .map(|(first_is_rust, second_is_rust)| Self {
                scenario: scenario.clone(),
                first_is_rust,
                second_is_rust,
            })
            .collect()
    }

    pub fn pair(&self) -> String {
        let letter = |is_rust| if is_rust { 'R' } else { 'J' };
        format!("{}{}", letter(self.first_is_rust), letter(self.second_is_rust))
    }
}

/// Two clients of each side, with a long and with a short watchdog timeout.
pub struct Sides {
    build: Build,
    /// The JVM lives as long as this.
    _peer: Peer,
    url: String,
    port: u16,
    long: [[Party; 2]; 2],
    quick: [[Party; 2]; 2],
}

/// The short watchdog timeout: a JVM's timers tick too slowly for less.
pub const QUICK: Duration = Duration::from_millis(1_500);
const LONG: Duration = Duration::from_secs(30);

impl Sides {
    pub async fn open(build: &Build, server: &Server) -> Self {
        let peer = Peer::start(build).await;
        let url = server.url();
        let side = async |watchdog: Duration, name: &str| {
            let rust = [Party::rust(&url, watchdog).await, Party::rust(&url, watchdog).await];
            let java = [
                Party::java(&peer, &format!("{name} 1"), &url, watchdog).await,
                Party::java(&peer, &format!("{name} 2"), &url, watchdog).await,
            ];
            [rust, java]
        };
        let long = side(LONG, "long").await;
        let quick = side(QUICK, "quick").await;
        Self { build: build.clone(), _peer: peer, url, port: server.port, long, quick }
    }

    /// Both sides make the same calls, and what stands in Redis is compared.
    pub async fn compare_on_the_wire(&self) {
        let [rust, java] = &self.long;
        wire::check(self.port, rust, java).await;
    }

    pub async fn close(self) {
        for party in self.long.into_iter().chain(self.quick).flatten() {
            party.close().await;
        }
    }
}

/// One run of a scenario: its parties, and names of its own.
pub struct Stage {
    sides: Arc<Sides>,
    pub first: Party,
    pub second: Party,
    /// The same, with a watchdog timeout of [`QUICK`].
    pub quick_first: Party,
    pub quick_second: Party,
    /// The lock.
    pub name: String,
}

impl Stage {
    pub fn new(sides: &Arc<Sides>, job: &Job) -> Self {
        let side = |is_rust: bool| usize::from(!is_rust);
        let (first, second) = (side(job.first_is_rust), side(job.second_is_rust));
        Self {
            sides: Arc::clone(sides),
            first: sides.long[first][0].clone(),
            second: sides.long[second][1].clone(),
            quick_first: sides.quick[first][0].clone(),
            quick_second: sides.quick[second][1].clone(),
            name: format!("{}:{}", job.scenario.name, job.pair()),
        }
    }

    pub fn url(&self) -> &str {
        &self.sides.url
    }

    /// A plain connection.
    pub fn control(&self) -> Control {
        Control::connect(self.sides.port)
    }

    /// A JVM that may be killed.
    pub async fn another_jvm(&self) -> Peer {
        Peer::start(&self.sides.build).await
    }

    /// Waits until somebody listens to the unlock channel of a lock.
    pub async fn somebody_waits(&self, name: &str) {
        let channel = channel(name);
        let mut control = self.control();
        let waits = || control.run(&["PUBSUB", "NUMSUB", &channel]).ends_with(" 1");
        eventually("somebody waits", waits).await;
    }
}

/// The unlock channel, by Redisson's rule.
pub fn channel(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}

/// Waits for a fact.
pub async fn eventually(what: &str, mut fact: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !fact() {
        assert!(Instant::now() < limit, "not within 20 s: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// A time that was measured lies between two others, the upper one widened by what the machine stood still.
pub fn between(what: &str, took: Duration, at_least: u64, at_most: u64) {
    let most = ms(at_most) + stalls();
    assert!(took >= ms(at_least) && took <= most, "{what} took {took:?}, not {at_least} ms to {most:?}");
}

/// A child process of this program that takes a lock and waits to be killed.
pub struct Doomed(std::process::Child);

impl Doomed {
    pub fn start(url: &str, name: &str) -> Self {
        let program = std::env::current_exe().expect("a program");
        let mut command = std::process::Command::new(program);
        command.env("INTEROP_HOLD", format!("{url} {name}")).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("it starts"))
    }

    /// Stops the process where it stands, or lets it go on.
    pub fn signal(&self, signal: &str) {
        let sent = std::process::Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    pub fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the child process does.
pub fn hold_until_killed(order: &str) {
    let (url, name) = order.split_once(' ').expect("url and name");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let Party::Rust(client) = Party::rust(url, QUICK).await else { unreachable!("ours") };
        let _guard = client.lock(name).lock().await.expect("free");
        // Not for ever, should its parent be killed first.
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}
