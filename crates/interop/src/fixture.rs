//! What a scenario is, and what it plays with.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::party::Party;
use crate::primaries::{Servers, Topology};
use crate::stored::{Queue, channel, fields, parts_channel};
use crate::worker::{Part, Worker};
use test_support::peer::{Build, Peer};
use test_support::{Cluster, Control, Sentinels, Server, kinds, ms, stalls};

type Play = Arc<dyn Fn(Fixture) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Something that two parties do.
#[derive(Clone)]
pub struct Scenario {
    pub name: String,
    pub play: Play,
    /// It belongs to the short run.
    pub short: bool,
    pub load: Load,
    pub topology: Topology,
    /// Versions of Redisson that cannot be the first party; the scenario, or the name of the list, says why.
    pub not_first: &'static [&'static str],
    /// Versions that cannot be the second.
    pub not_second: &'static [&'static str],
}

impl Scenario {
    pub fn new<F: Future<Output = ()> + Send + 'static>(
        name: impl Into<String>,
        play: impl Fn(Fixture) -> F + Send + Sync + 'static,
    ) -> Self {
        let play: Play = Arc::new(move |fixture| Box::pin(play(fixture)));
        Self {
            name: name.into(),
            play,
            short: false,
            load: Load::IsWaitedFor,
            topology: Topology::One,
            not_first: &[],
            not_second: &[],
        }
    }

    pub fn short(self) -> Self {
        Self {
            short: true,
            ..self
        }
    }

    pub fn load(self, load: Load) -> Self {
        Self { load, ..self }
    }

    /// It is played on servers of its own.
    pub fn on(self, topology: Topology) -> Self {
        Self {
            topology,
            load: Load::Servers,
            ..self
        }
    }

    pub fn not_first(self, versions: &'static [&'static str]) -> Self {
        Self {
            not_first: versions,
            ..self
        }
    }

    pub fn not_second(self, versions: &'static [&'static str]) -> Self {
        Self {
            not_second: versions,
            ..self
        }
    }
}

/// Every Redisson: in these scenarios that side is ours.
pub const ALL: &[&str] = &["3.6.5", "3.12.5", "3.20.0", "3.24.3", "3.52.0", "4.7.0"];

/// What a scenario does to the machine. Loads run one after the other, so that who burns the
/// processor does not run beside who measures time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Most of the time it waits.
    IsWaitedFor,
    /// It starts a process of its own.
    Process,
    /// It starts six or seven servers of its own.
    Servers,
    /// It burns the processor.
    Processor,
}

impl Load {
    /// All of them, with how many scenarios run side by side.
    pub const ALL: [(Self, usize); 4] = [
        (Self::IsWaitedFor, 16),
        (Self::Process, 6),
        (Self::Servers, 3),
        (Self::Processor, 4),
    ];
}

/// A scenario with its two parties.
pub struct Job {
    pub scenario: Scenario,
    first_is_rust: bool,
    second_is_rust: bool,
}

impl Job {
    /// How many there are of a scenario.
    pub const PAIRINGS: usize = 4;

    /// Each kind of party in each part, as far as this version of Redisson can do it.
    pub fn pairings(scenario: Scenario, version: &str) -> Vec<Self> {
        let pairs: [_; Self::PAIRINGS] =
            [(true, true), (true, false), (false, true), (false, false)];
        pairs
            .into_iter()
            .filter(|(first_is_rust, _)| *first_is_rust || !scenario.not_first.contains(&version))
            .filter(|(_, second_is_rust)| {
                *second_is_rust || !scenario.not_second.contains(&version)
            })
            .map(|(first_is_rust, second_is_rust)| Self {
                scenario: scenario.clone(),
                first_is_rust,
                second_is_rust,
            })
            .collect()
    }

    pub fn pair(&self) -> String {
        let letter = |is_rust| if is_rust { 'R' } else { 'J' };
        format!(
            "{}{}",
            letter(self.first_is_rust),
            letter(self.second_is_rust)
        )
    }
}

/// Two clients of each side, with a long and with a short watchdog timeout.
pub struct Sides {
    build: Build,
    /// The JVM lives as long as this.
    peer: Peer,
    url: String,
    pub port: u16,
    pub long: [[Party; 2]; 2],
    quick: [[Party; 2]; 2],
}

/// The short watchdog timeout: a JVM's timers tick too slowly for less.
pub const QUICK: Duration = Duration::from_millis(1_500);
pub const LONG: Duration = Duration::from_secs(30);

impl Sides {
    pub async fn open(build: &Build, server: &Server) -> Self {
        let peer = Peer::start(build).await;
        let url = server.url();
        let side = async |watchdog: Duration| {
            let rust = [
                Party::rust(&url, watchdog).await,
                Party::rust(&url, watchdog).await,
            ];
            let java = [
                Party::java(&peer, &url, watchdog, &[]).await,
                Party::java(&peer, &url, watchdog, &[]).await,
            ];
            [rust, java]
        };
        let long = side(LONG).await;
        let quick = side(QUICK).await;
        Self {
            build: build.clone(),
            peer,
            url,
            port: server.port,
            long,
            quick,
        }
    }

    /// Kills the JVM in the middle of everything, or stops it again and again.
    pub async fn fault(self: Arc<Self>, signal: String) {
        tokio::time::sleep(ms(3_000)).await;
        self.peer.signal(&signal);
        if signal != "-STOP" {
            return;
        }
        loop {
            tokio::time::sleep(ms(2_000)).await;
            self.peer.signal("-CONT");
            tokio::time::sleep(ms(1_000)).await;
            self.peer.signal(&signal);
        }
    }

    pub fn end_trouble(&self) {
        self.peer.signal("-CONT");
    }

    pub async fn close(self) {
        for party in self.long.into_iter().chain(self.quick).flatten() {
            party.close().await;
        }
    }
}

/// One run of a scenario: its parties, and names of its own.
#[derive(Clone)]
pub struct Fixture {
    sides: Arc<Sides>,
    /// Those of its own, if it has some.
    servers: Option<Arc<Servers>>,
    pub first: Party,
    pub second: Party,
    /// The same, with a watchdog timeout of [`QUICK`].
    pub quick_first: Party,
    pub quick_second: Party,
    /// The lock.
    pub name: String,
    /// Its parties have parts.
    pub is_read_write: bool,
}

impl Fixture {
    pub fn new(sides: &Arc<Sides>, job: &Job) -> Self {
        let side = |is_rust: bool| usize::from(!is_rust);
        let (first, second) = (side(job.first_is_rust), side(job.second_is_rust));
        Self {
            sides: Arc::clone(sides),
            servers: None,
            first: sides.long[first][0].clone(),
            second: sides.long[second][1].clone(),
            quick_first: sides.quick[first][0].clone(),
            quick_second: sides.quick[second][1].clone(),
            name: format!("{}:{}", job.scenario.name, job.pair()),
            is_read_write: false,
        }
    }

    /// With servers of its own, and clients of them.
    pub fn on_several(&self, servers: Servers, first: Party, second: Party) -> Self {
        Self {
            servers: Some(Arc::new(servers)),
            quick_first: first.clone(),
            quick_second: second.clone(),
            first,
            second,
            ..self.clone()
        }
    }

    /// A name at each primary of its own servers.
    pub fn names(&self) -> Vec<String> {
        let servers = self.servers.as_ref().expect("its own");
        servers.names(&self.name)
    }

    /// The same with another lock.
    pub fn with_name(&self, name: String) -> Self {
        Self {
            name,
            ..self.clone()
        }
    }

    pub fn cluster(&self) -> &Cluster {
        match self.servers.as_deref() {
            Some(Servers::Cluster(cluster)) => cluster,
            _ => unreachable!("it was asked for"),
        }
    }

    pub fn sentinels(&self) -> &Sentinels {
        match self.servers.as_deref() {
            Some(Servers::Sentinels(sentinels)) => sentinels,
            _ => unreachable!("it was asked for"),
        }
    }

    /// Ends the clients of its own servers.
    pub async fn close(self) {
        self.first.close().await;
        self.second.close().await;
    }

    /// With locks of this kind.
    pub fn of_kind(mut self, kind: &str) -> Self {
        self.name = format!("{kind}/{}", self.name);
        self
    }

    /// With these parts of a read-write lock: what the workers of the first party take, and those of the second.
    pub fn of_parts(mut self, first: Part, second: Part) -> Self {
        for (party, part) in [
            (&mut self.first, first),
            (&mut self.quick_first, first),
            (&mut self.second, second),
            (&mut self.quick_second, second),
        ] {
            *party = party.of_part(Some(part));
        }
        self.is_read_write = true;
        self
    }

    /// A worker of each party, and the name of the lock.
    pub fn workers(&self) -> (Worker, Worker, String) {
        (self.first.worker(), self.second.worker(), self.name.clone())
    }

    /// Two workers of the second party, and the name of the lock.
    pub fn second_workers(&self) -> (Worker, Worker, String) {
        let worker = || self.second.worker();
        (worker(), worker(), self.name.clone())
    }

    /// A worker of each party, with the short watchdog timeout.
    pub fn quick_workers(&self) -> (Worker, Worker, String) {
        (
            self.quick_first.worker(),
            self.quick_second.worker(),
            self.name.clone(),
        )
    }

    /// The same, by the asynchronous forms.
    pub fn async_workers(&self) -> (Worker, Worker, String) {
        (
            self.first.async_worker(),
            self.second.async_worker(),
            self.name.clone(),
        )
    }

    pub fn url(&self) -> &str {
        &self.sides.url
    }

    /// The version of Redisson.
    pub fn version(&self) -> &str {
        &self.sides.build.version
    }

    pub fn port(&self) -> u16 {
        self.sides.port
    }

    /// A plain connection, to the primary of the lock if there are several servers.
    pub fn control(&self) -> Control {
        match &self.servers {
            None => Control::connect(self.sides.port),
            Some(servers) => servers.control(&self.name),
        }
    }

    /// What stands under the lock: who has it, and how often; "" if nothing does.
    pub fn seen(&self, name: &str) -> String {
        let control = &mut self.control();
        if self.is_read_write {
            return fields(control, name).join(" ");
        }
        let holder = kinds::holder(control, name);
        holder.map_or_else(String::new, |holder| {
            format!("{holder} {}", kinds::count(control, name))
        })
    }

    /// How often it is held; a read-write lock by all of its holders.
    pub fn count(&self, name: &str) -> i64 {
        let counts = self.control().run(&["HVALS", name]);
        counts.split(' ').flat_map(str::parse::<i64>).sum()
    }

    /// The unlock channel of a lock.
    fn channel(&self, key: &str) -> String {
        match self.is_read_write {
            true => parts_channel(key),
            false => channel(key),
        }
    }

    /// A JVM, or another program of this side, that may be killed.
    pub async fn another_jvm(&self) -> Peer {
        Peer::start(&self.sides.build).await
    }

    /// Waits until a caller waits for a lock: until its unlock channel has a subscriber. A spin lock has no channel, and
    /// its waiters cannot be seen.
    pub async fn wait_for_waiter(&self, key: &str) {
        if let Some(servers) = &self.servers {
            return servers.wait_for_waiter(key).await;
        }
        match self.name.split_once('/') {
            Some(("spin", _)) => tokio::time::sleep(ms(300)).await,
            Some(("fair", _)) => Queue::of(key).waits(&mut self.control(), 1).await,
            _ => self.listeners(key, 1).await,
        }
    }

    /// Waits until nobody does.
    pub async fn nobody_waits(&self, name: &str) {
        self.listeners(name, 0).await;
    }

    async fn listeners(&self, name: &str, number: u32) {
        let (channel, number) = (self.channel(name), format!(" {number}"));
        let mut control = self.control();
        let are = || {
            control
                .run(&["PUBSUB", "NUMSUB", &channel])
                .ends_with(&number)
        };
        eventually(&format!("listeners:{number}"), are).await;
    }
}

/// Channel and payload.
pub type Messages = UnboundedReceiver<(String, String)>;

/// Hears what is published on some channels, on a connection and a thread of its own.
pub fn listen(port: u16, channels: Vec<String>) -> Messages {
    let (sender, received) = unbounded_channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let mut control = Control::connect(port);
    std::thread::spawn(move || {
        let mut pubsub = control.connection.as_pubsub();
        for channel in &channels {
            pubsub.subscribe(channel).expect("allowed");
        }
        ready.send(()).expect("the caller waits for it");
        while let Ok(message) = pubsub.get_message() {
            let payload: String = message.get_payload().expect("text");
            if sender
                .send((message.get_channel_name().to_owned(), payload))
                .is_err()
            {
                return;
            }
        }
    });
    is_ready.recv().expect("it subscribes");
    received
}

/// Waits for a fact.
pub async fn eventually(what: &str, fact: impl FnMut() -> bool) {
    test_support::eventually(what, ms(20_000), fact).await;
}

/// A time that was measured a moment ago lies between two others, the upper one widened by what the
/// machine stood still meanwhile.
pub fn between(what: &str, took: Duration, at_least: u64, at_most: u64) {
    let now = Instant::now();
    let most = ms(at_most) + stalls(now.checked_sub(took + ms(1_000)).unwrap_or(now));
    assert!(
        took >= ms(at_least) && took <= most,
        "{what} took {took:?}, not {at_least} ms to {most:?}"
    );
}
