//! Runs a program under paused time, round by round, and judges it.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock::test_util;
use redisson_lock::{LockClient, LockClientBuilder, LockKind};
use redisson_lock_core::HandOff;
use redisson_lock_test::sim::Latency;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::actors::Actor;
use super::faults;
use super::java::{JAVA, Java};
use super::program::{ClientPlan, Fault, JavaStep, LOCKS, PREFIX, Program, READS, Round, ms};
use super::world::World;
use crate::oracle::{Counts, Terms, queue_keys};

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub violation: Option<String>,
    pub history: Vec<String>,
    pub counts: Counts,
}

pub fn run(program: &Program, recording: bool) -> Outcome {
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| {
        runtime().block_on(async {
            let world = match program.cluster {
                true => World::cluster(program.seed, program.latency),
                false => World::new(program.seed, program.latency),
            };
            let session = Session::start(program, &world, recording).await;
            if tokio::time::timeout(RUN_MAX, Box::pin(session.play(program)))
                .await
                .is_err()
            {
                world
                    .oracle
                    .violated(format!("never ends: {:?}", world.oracle.pending_calls()));
            }
            Outcome {
                violation: world.oracle.violation(),
                history: world.oracle.history(),
                counts: world.oracle.counts(),
            }
        })
    }));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let violation = Some(format!("panicked: {}", text.unwrap_or_default()));
        Outcome {
            violation,
            history: Vec::new(),
            counts: Counts::default(),
        }
    })
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs nothing")
}

/// Connects a simulated client.
pub async fn connect(
    world: &Arc<World>,
    client: usize,
    watchdog_timeout: Duration,
    command_timeout: Duration,
    plan: &ClientPlan,
) -> LockClient {
    let builder = LockClient::builder();
    connect_with(
        builder,
        world,
        client,
        watchdog_timeout,
        command_timeout,
        plan,
    )
    .await
}

async fn connect_with(
    builder: LockClientBuilder,
    world: &Arc<World>,
    client: usize,
    watchdog_timeout: Duration,
    command_timeout: Duration,
    plan: &ClientPlan,
) -> LockClient {
    builder
        .watchdog_timeout(watchdog_timeout)
        .command_timeout(command_timeout)
        .connections(plan.connections)
        .connection_fence(plan.fence)
        .handoff_bounds(HandOff {
            passes: plan.passes,
            ..HandOff::default()
        })
        .key_prefix(if plan.prefix { PREFIX } else { "" })
        .connect_over(world.access(client))
        .await
        .expect("nothing is wrong yet")
}

/// A program under way.
struct Session {
    world: Arc<World>,
    clients: Vec<LockClient>,
    running: tokio::task::JoinHandle<()>,
}

impl Session {
    async fn start(program: &Program, world: &Arc<World>, recording: bool) -> Self {
        let running = world.spawn();
        // Connecting is not what is tried here; it is slow and fails often enough later.
        world.set_latency(CALM);
        if program.reports {
            world.report();
        }
        if program.is_old() {
            world.speak_the_older_version();
        }
        let mut clients = Vec::new();
        for (nth, plan) in program.clients.iter().enumerate() {
            world.deny(nth, "client|kill", !plan.may_kill);
            let (watchdog, command) = (ms(program.watchdog_ms), ms(program.command_ms));
            let builder = LockClient::builder().fair_wait(ms(program.fair_wait_ms));
            let builder = builder.announce(program.announce());
            clients.push(connect_with(builder, world, nth, watchdog, command, plan).await);
        }
        world.set_latency(program.latency);
        world.apply_late(program.late_percent);
        let longest = program.longest();
        let deaf = program.has(|fault| matches!(fault, Fault::Deafen { .. } | Fault::Deny { .. }));
        let terms = Terms {
            watchdog_timeout: ms(program.watchdog_ms),
            command_timeout: ms(program.command_ms),
            cluster: program.cluster,
            // The queue of fair locks is looked at by itself.
            silent: program.locks_of(&[LockKind::Spin, LockKind::String, LockKind::Fair]),
            strings: program.locks_of(&[LockKind::String]),
            fair: program.locks_of(&[LockKind::Fair]),
            fair_wait: ms(program.fair_wait_ms),
            read_write: program.locks_of(&[LockKind::Write]),
            given_back: !program.is_relaxed(),
            clients: clients
                .iter()
                .map(|client| client.id().to_owned())
                .collect(),
            fenced: (0..clients.len())
                .map(|nth| program.is_fenced(nth))
                .collect(),
            one_lane: program
                .clients
                .iter()
                .map(|plan| plan.connections == 1)
                .collect(),
            healthy: program.is_healthy(),
            answers_in_time: 2 * longest < program.command_ms,
            // A message, and two attempts with their answers; a lost message costs as much as a
            // watchdog timeout. And where answers take as long as a command may, connections are
            // replaced again and again.
            wake_up: ms(if deaf { program.watchdog_ms } else { 0 }
                + if 4 * longest < program.command_ms {
                    0
                } else {
                    10_000
                }
                + 250
                + 8 * longest
                + 4 * program.command_ms),
        };
        world.oracle.begin(terms, recording);
        Self {
            world: Arc::clone(world),
            clients,
            running,
        }
    }

    async fn play(self, program: &Program) {
        let oracle = &self.world.oracle;
        let mut actors: Vec<Actor> = Vec::new();
        for round in &program.rounds {
            actors = self.round(round, program, actors).await;
            if oracle.violation().is_some() {
                let said = self.clients.iter();
                return said.for_each(|client| oracle.say(|| test_util::inputs(client)));
            }
        }
        self.world.set_latency(CALM);
        self.world.apply_late(0);
        for actor in actors {
            actor.give_everything_back().await;
        }
        self.rest(program).await;
        if !program.is_relaxed() {
            self.compare_counts();
        }
        for client in &self.clients {
            let stats = client.stats();
            oracle.count(|counts| {
                counts.redirects += stats.redirects_total;
                counts.failovers += stats.failovers_total;
            });
        }
        // What was abandoned by design ends with its lease.
        let longest = LONGEST_LEASE.max(ms(program.watchdog_ms));
        tokio::time::sleep(longest * program.leases_in_a_row()).await;
        self.nothing_is_left(program);
        let Self {
            world,
            clients,
            running,
        } = self;
        for client in clients {
            client.close(Duration::ZERO).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        if world.connections() > 0 {
            world.oracle.violated("connections are open after closing");
        }
        let tasks = Handle::current().metrics().num_alive_tasks();
        if tasks > 1 {
            world
                .oracle
                .violated(format!("{} tasks are alive after closing", tasks - 1));
        }
        running.abort();
    }

    async fn round(&self, round: &Round, program: &Program, mut before: Vec<Actor>) -> Vec<Actor> {
        let world = &self.world;
        world.set_latency(program.latency);
        world.apply_late(program.late_percent);
        let mut actors = tokio::task::JoinSet::new();
        for task in &round.tasks {
            let known = before.iter().position(|actor| actor.is(task));
            let actor = known.map(|nth| before.swap_remove(nth));
            let actor = actor
                .unwrap_or_else(|| Actor::new(world, &self.clients[task.client], task, program));
            actors.spawn(actor.act(task.steps.clone()));
        }
        let java: Vec<_> = threads_of_java(round, program)
            .into_iter()
            .zip(0..)
            .map(|(steps, number)| tokio::spawn(Java::new(world, program, number).act(steps)))
            .collect();
        let faults = tokio::spawn(faults::happen(
            Arc::clone(world),
            self.clients.clone(),
            round.faults.clone(),
            program.latency,
            ms(program.watchdog_ms),
        ));
        let limit = Instant::now() + ROUND_MAX;
        while Instant::now() < limit && world.oracle.violation().is_none() {
            match tokio::time::timeout(Duration::from_millis(100), actors.join_next()).await {
                Ok(Some(actor)) => before.push(actor.expect("no panic")),
                Ok(None) => break,
                Err(_) => {}
            }
        }
        if !actors.is_empty() && world.oracle.violation().is_none() {
            world
                .oracle
                .violated(format!("never ends: {:?}", world.oracle.pending_calls()));
        }
        if world.oracle.violation().is_some() {
            return before;
        }
        for java in java {
            java.await.expect("no panic");
        }
        faults.await.expect("no panic");
        self.rest(program).await;
        if !program.is_relaxed() {
            self.compare_counts();
        }
        before
    }

    /// No more faults, and time enough for what is under way.
    async fn rest(&self, program: &Program) {
        let living = || {
            let ended = |nth: &usize| {
                program.has(|fault| matches!(fault, Fault::EndRuntime { client } if client == nth))
            };
            self.clients
                .iter()
                .enumerate()
                .filter(move |(nth, _)| !ended(nth))
                .map(|(_, client)| client)
        };
        self.world.set_latency(CALM);
        self.world.apply_late(0);
        let reported = ms(program.watchdog_ms / 3 + 2 * program.command_ms);
        tokio::time::sleep_until(self.world.oracle.calm_since().max(Instant::now()) + reported)
            .await;
        let limit = Instant::now() + REST_MAX;
        loop {
            let releasing: usize = living().map(|client| client.stats().releasing).sum();
            living().for_each(test_util::check);
            if releasing == 0 && !self.world.is_busy() {
                return;
            }
            if Instant::now() >= limit {
                if releasing > 0 {
                    self.world
                        .oracle
                        .violated(format!("{releasing} releases do not end"));
                }
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The counts in Redis are what the callers hold.
    fn compare_counts(&self) {
        self.world.observe();
        let open = self.world.oracle.open_holds();
        for key in LOCKS {
            let expected = open.iter().filter(|((lock, _), _)| lock == key);
            let expected = expected.map(|((_, field), count)| (field.clone(), *count));
            let expected: BTreeMap<_, _> = expected.collect();
            let found = self.world.with_home(key, |keyspace| keyspace.holders(key));
            let found: BTreeMap<_, _> = found.into_iter().collect();
            let (oracle, now) = (&self.world.oracle, self.world.now());
            let missing = expected.keys().any(|field| !found.contains_key(field));
            let mut more = found
                .iter()
                .filter(|(field, count)| expected.get(*field) != Some(count));
            let is_left =
                |field: &str| oracle.lingers(key, field) || oracle.is_ended_read(key, field, now);
            if missing || more.any(|(field, _)| !is_left(field)) {
                let text =
                    format!("at rest {key} is held as {expected:?}, the server has {found:?}");
                self.world.oracle.violated(text);
            }
        }
    }

    /// At the end: no key, no channel, nothing in any registry.
    fn nothing_is_left(&self, program: &Program) {
        let oracle = &self.world.oracle;
        let mut keys: Vec<String> = Vec::new();
        self.world
            .with_every_keyspace(|keyspace| keys.extend(keyspace.keys().map(str::to_owned)));
        // Tokens stay.
        keys.retain(|key| !key.starts_with("redisson_lock_token:"));
        self.no_place_is_left(program, &mut keys);
        if !keys.is_empty() {
            oracle.violated(format!("left in Redis: {keys:?}"));
        }
        let channels = self.world.channels();
        if !channels.is_empty() {
            oracle.violated(format!("still subscribed: {channels:?}"));
        }
        for (nth, client) in self.clients.iter().enumerate() {
            // Nothing is tidied where nothing runs any more.
            if program.has(|fault| matches!(fault, Fault::EndRuntime { client } if *client == nth))
            {
                continue;
            }
            let stats = client.stats();
            let left = [
                stats.held,
                stats.waiting,
                stats.subscriptions,
                stats.renewals,
                stats.releasing,
            ];
            if left != [0; 5] || stats.entries > 0 {
                oracle.violated(format!(
                    "left in a client: {left:?}, {} entries",
                    stats.entries
                ));
            }
        }
    }
}

impl Session {
    /// But those that end by themselves: of programs that died, and of releases that were refused or never confirmed.
    /// Takes the keys of these out.
    fn no_place_is_left(&self, program: &Program, keys: &mut Vec<String>) {
        for key in program.locks_of(&[LockKind::Fair]) {
            let [list, set] = queue_keys(key);
            let queue = self
                .world
                .with_home(&list, |keyspace| keyspace.list(&list).to_vec());
            let may_stay = |field: &String| {
                let (of_java, oracle) = (field.starts_with(JAVA), &self.world.oracle);
                let is_given_up = oracle.lingers(key, field) || oracle.is_abandoned(key, field);
                of_java || program.is_relaxed() || is_given_up
            };
            if queue.iter().all(may_stay) {
                keys.retain(|key| ![&list, &set].contains(&key));
            }
        }
    }
}

/// One, or a reader and a writer at read-write locks.
fn threads_of_java(round: &Round, program: &Program) -> Vec<Vec<JavaStep>> {
    let steps = round.java.iter().cloned();
    if program.kinds[0] != LockKind::Write {
        return vec![steps.collect()];
    }
    let (readers, others) = steps.partition(|step| step.lock() >= READS);
    vec![readers, others]
}

const CALM: Latency = Latency {
    least: 0,
    usual: 1,
    seldom: 1,
    seldom_percent: 0,
};
const ROUND_MAX: Duration = Duration::from_secs(300);
const RUN_MAX: Duration = Duration::from_secs(1_500);
const REST_MAX: Duration = Duration::from_secs(40);
const LONGEST_LEASE: Duration = Duration::from_secs(9);
