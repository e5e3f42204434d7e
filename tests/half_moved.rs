//! A slot of a cluster that is on its way, with some of a lock's keys at each of its two nodes: every kind, every verb,
//! every set of keys that have moved. No second owner gets in, no hold is lost, the move can be finished, and nothing is left
//! behind.

use std::cell::Cell;
use std::time::Duration;

use redisson_lock::{Error, HoldState, Lock, LockClient, LockGuard, LockKind};
use test_support::kinds::{HANDED_OVER, NESTED, against};
use test_support::{
    Cluster, cases, eventually, lock_and_unlock, ms, nothing_is_left, slot, tokio, within,
};
use tokio::task::JoinHandle;

/// No renewal is due for twenty seconds.
async fn connect(cluster: &Cluster) -> LockClient {
    LockClient::builder()
        .watchdog_timeout(ms(60_000))
        .command_timeout(ms(5_000))
        .connect(&cluster.url())
        .await
        .expect("it answers")
}

/// A slot that moves from the first primary to the second, key by key.
struct Move<'a> {
    cluster: &'a Cluster,
    slot: u16,
}

impl<'a> Move<'a> {
    fn begin(cluster: &'a Cluster, lock: &str) -> Self {
        let slot = slot(lock);
        cluster.begin_to_move(slot, 0, 1);
        Self { cluster, slot }
    }

    /// The keys of the slot that are still at the first primary.
    fn keys(&self) -> Vec<String> {
        let words = ["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "1000"];
        let keys = self.cluster.control(0).run(&words);
        let keys = keys.split(' ').filter(|key| !key.is_empty());
        keys.map(str::to_owned).collect()
    }

    fn take(&self, key: &str) {
        let port = self.cluster.port(1).to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        self.cluster.control(0).run(&words);
    }

    /// The rest follows, and the slot is handed over. A key that is at both nodes fails this.
    fn finish(self) {
        self.cluster.move_keys(self.slot, 0, 1);
        self.cluster.end_move(self.slot, 0, 1);
    }
}

/// Neither has it, or it is not known yet.
fn is_kept_out<T>(attempt: Result<Option<T>, Error>) -> bool {
    match attempt {
        Ok(attempt) => attempt.is_none(),
        Err(error) => error.is_retryable(),
    }
}

/// The last key that covers the other reader is still at the source when this one releases at the target.
#[tokio::test]
async fn a_reader_whose_key_has_not_moved_yet_keeps_writers_out() {
    let cluster = Cluster::start(false).await;
    let [a, b, c] = [
        connect(&cluster).await,
        connect(&cluster).await,
        connect(&cluster).await,
    ];
    let key = cluster.key_at(0, "lock");
    let reads = |client: &LockClient| client.lock_of(LockKind::Read, key.clone());
    let (leaves, stays) = (reads(&a).lock().await, reads(&b).lock().await);
    let (leaves, stays) = (leaves.expect("free"), stays.expect("shared"));
    let moving = Move::begin(&cluster, &key);
    let theirs = stays.owner().to_string();
    for key in moving.keys().iter().filter(|key| !key.contains(&theirs)) {
        moving.take(key);
    }
    let _ = leaves.unlock().await;
    let writes = c.lock_of(LockKind::Write, key.clone());
    let writer = writes.try_lock().await;
    println!("the writer: {writer:?}, the reader: {:?}", stays.state());
    assert!(is_kept_out(writer), "beside a reader");
    moving.finish();
    assert_eq!(stays.state(), HoldState::Held);
    stays.unlock().await.expect("held");
    lock_and_unlock(&writes).await;
    nothing_is_left(&cluster, [a, b, c]).await;
}

/// What happens to a lock while its keys are at two nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verb {
    Attempt,
    Nest,
    Inspect,
    Extend,
    Release,
    HandOver,
    Force,
}

const VERBS: [Verb; 7] = [
    Verb::Attempt,
    Verb::Nest,
    Verb::Inspect,
    Verb::Extend,
    Verb::Release,
    Verb::HandOver,
    Verb::Force,
];

/// Three clients of one cluster, and locks whose slots the first primary has.
struct Scene {
    cluster: Cluster,
    clients: [LockClient; 3],
    next: Cell<u32>,
}

/// A lock that the first client holds, twice if it may, beside a reader or before a waiter of the second client.
struct Held {
    lock: Lock,
    own: Vec<LockGuard>,
    beside: Option<LockGuard>,
    waiting: Option<JoinHandle<Result<LockGuard, Error>>>,
}

type Waiting = JoinHandle<Result<LockGuard, Error>>;

fn waits(lock: &Lock) -> Waiting {
    let lock = lock.retry_for(ms(30_000));
    tokio::spawn(async move { lock.lock().await })
}

impl Scene {
    async fn start() -> Self {
        let cluster = Cluster::start(false).await;
        let clients = [
            connect(&cluster).await,
            connect(&cluster).await,
            connect(&cluster).await,
        ];
        let next = Cell::new(0);
        Self {
            cluster,
            clients,
            next,
        }
    }

    /// Of a slot that no other has had.
    fn key(&self) -> String {
        loop {
            let nth = self.next.get();
            self.next.set(nth + 1);
            let key = format!("lock:{nth}");
            let earlier = |nth| slot(&format!("lock:{nth}")) == slot(&key);
            if slot(&key) <= 5_460 && !(0..nth).any(earlier) {
                return key;
            }
        }
    }

    async fn hold(&self, kind: LockKind, verb: Verb) -> Held {
        let key = self.key();
        let [first, second, _] = &self.clients;
        let mut lock = first.lock_of(kind, key.clone());
        if verb == Verb::Extend {
            lock = lock.lease(ms(60_000));
        }
        let mut own = vec![lock.lock().await.expect("free")];
        if NESTED.contains(&kind) {
            own.push(lock.lock().await.expect("nested"));
        }
        if kind == LockKind::Write {
            let reads = first.lock_of(LockKind::Read, key.clone());
            own.push(reads.lock().await.expect("beside the own writer"));
        }
        let (mut beside, mut waiting) = (None, None);
        let theirs = second.lock_of(kind, key);
        if kind == LockKind::Read {
            beside = Some(theirs.lock().await.expect("shared"));
        }
        if kind == LockKind::Fair {
            waiting = Some(waits(&theirs));
            let waits = || second.stats().waiting == 1;
            eventually("it has a place", ms(5_000), waits).await;
            let has_place = || theirs_have_a_place(&self.cluster, lock.name());
            eventually("the server has it", ms(5_000), has_place).await;
        }
        Held {
            lock,
            own,
            beside,
            waiting,
        }
    }

    /// Every set of keys that may have moved, with this verb after it.
    async fn halves(&self, kind: LockKind, verb: Verb) {
        let mut moved = 0;
        loop {
            let mut held = self.hold(kind, verb).await;
            let moving = Move::begin(&self.cluster, held.lock.name());
            let keys = moving.keys();
            for (nth, key) in keys.iter().enumerate() {
                if moved >> nth & 1 == 1 {
                    moving.take(key);
                }
            }
            let what = format!("{kind}, {verb:?}, {moved:b} of {keys:?}");
            let is_held = self.act(verb, &mut held, &what).await;
            let third = self.clients[2].lock_of(against(kind), held.lock.name());
            if is_held {
                assert!(is_kept_out(third.try_lock().await), "{what}");
            }
            moving.finish();
            self.end(held, &third, is_held, &what).await;
            moved += 1;
            if moved >> keys.len() > 0 {
                return;
            }
        }
    }

    /// Whether the lock is held by those that held it before.
    async fn act(&self, verb: Verb, held: &mut Held, what: &str) -> bool {
        let [first, _, third] = &self.clients;
        let kind = held.lock.kind();
        let other = third.lock_of(kind, held.lock.name());
        match verb {
            Verb::Attempt => {}
            Verb::Nest if !NESTED.contains(&kind) => {}
            Verb::Nest => match held.lock.try_lock().await {
                Ok(guard) => held.own.push(guard.expect("it is held by this owner")),
                Err(error) => assert!(error.is_retryable(), "{what}: {error}"),
            },
            Verb::Inspect => self.inspects(held, what).await,
            Verb::Extend => {
                let extended = held.own[0].extend(ms(90_000)).await;
                assert!(is_retryable(&extended), "{what}: {extended:?}");
            }
            Verb::Release | Verb::HandOver => {
                if verb == Verb::HandOver {
                    held.waiting = Some(waits(&held.lock.owned_by(&first.owner())));
                    let waits = || first.stats().waiting == 1;
                    eventually("it waits", ms(5_000), waits).await;
                }
                // The rest of a release that is refused follows in the background.
                while let Some(guard) = held.own.pop() {
                    let released = guard.unlock().await;
                    assert!(is_retryable(&released), "{what}: {released:?}");
                }
                return held.beside.is_some();
            }
            Verb::Force => {
                let forced = other.force_unlock().await;
                assert!(is_retryable(&forced), "{what}: {forced:?}");
                return forced.is_err();
            }
        }
        true
    }

    async fn inspects(&self, held: &Held, what: &str) {
        let name = held.lock.name();
        let third = &self.clients[2];
        let found = match held.lock.kind() {
            LockKind::Read | LockKind::Write => {
                let found = third.rw_lock(name).inspect().await;
                found.map(|found| {
                    let found = found.expect("held");
                    found
                        .readers
                        .into_iter()
                        .chain(found.writer)
                        .collect::<Vec<_>>()
                })
            }
            kind => {
                let found = third.lock_of(kind, name).inspect().await;
                found.map(|found| vec![found.expect("held")])
            }
        };
        let Ok(found) = found else {
            return assert!(is_retryable(&found), "{what}: {found:?}");
        };
        let has_lease = |left: Option<Duration>| left.is_some_and(|left| !left.is_zero());
        let have_lease = found.iter().all(|holder| has_lease(holder.lease_left));
        assert!(have_lease, "{what}: {found:?}");
    }

    /// The slot has moved: its holder keeps the lock until it is released, and then the next caller gets it.
    async fn end(&self, held: Held, third: &Lock, is_held: bool, what: &str) {
        let Held {
            own,
            beside,
            waiting,
            ..
        } = held;
        for guard in own.into_iter().rev().chain(beside) {
            if is_held {
                assert_eq!(guard.state(), HoldState::Held, "{what}");
                let released = guard.unlock().await;
                released.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
        if let Some(waiting) = waiting {
            let waited = within(ms(20_000), waiting).await;
            let guard = waited.unwrap_or_else(|| panic!("{what}: nobody wakes it"));
            let guard = guard.expect("no panic");
            let guard = guard.unwrap_or_else(|error| panic!("{what}: {error}"));
            guard.unlock().await.expect("held");
        }
        let taken = within(ms(20_000), third.lock()).await;
        let taken = taken.unwrap_or_else(|| panic!("{what}: it is not free"));
        let guard = taken.unwrap_or_else(|error| panic!("{what}: {error}"));
        guard.unlock().await.expect("held");
    }

    async fn end_scene(self) {
        nothing_is_left(&self.cluster, self.clients).await;
    }
}

fn theirs_have_a_place(cluster: &Cluster, key: &str) -> bool {
    let places = format!("redisson_lock_timeout:{{{key}}}");
    cluster.control(0).run(&["EXISTS", &places]) == "1"
}

fn is_retryable<T>(done: &Result<T, Error>) -> bool {
    done.as_ref().err().is_none_or(Error::is_retryable)
}

async fn every_half_of(kinds: &[LockKind]) {
    test_support::may_take(ms(180_000));
    let scene = Scene::start().await;
    for kind in kinds {
        let hands_over = HANDED_OVER.contains(kind);
        for verb in VERBS {
            if verb == Verb::HandOver && !hands_over {
                continue;
            }
            let start = std::time::Instant::now();
            scene.halves(*kind, verb).await;
            println!("{kind}, {verb:?}: {:?}", start.elapsed());
        }
    }
    scene.end_scene().await;
}

cases! {
    every_half_of;
    fn every_half_of_a_lock_with_one_key(&[LockKind::Plain, LockKind::Spin, LockKind::String]);
    fn every_half_of_a_fenced_lock(&[LockKind::Fenced]);
    fn every_half_of_a_fair_lock(&[LockKind::Fair]);
    fn every_half_of_a_read_lock(&[LockKind::Read]);
    fn every_half_of_a_write_lock_that_also_reads(&[LockKind::Write]);
}

/// Renewals that find some keys at the other node write none of them, so that the move can be finished; and a move that is
/// shorter than the lease loses no hold.
#[tokio::test]
async fn a_move_that_is_shorter_than_the_lease_loses_no_hold_of_any_kind() {
    let mut scene = Scene::start().await;
    let lease = ms(12_000);
    for client in &mut scene.clients {
        let builder = LockClient::builder().watchdog_timeout(lease);
        let builder = builder.command_timeout(ms(1_500));
        *client = builder
            .connect(&scene.cluster.url())
            .await
            .expect("it answers");
    }
    let mut halves = Vec::new();
    for kind in [
        LockKind::Read,
        LockKind::Write,
        LockKind::Fenced,
        LockKind::Plain,
    ] {
        for moved in 0.. {
            let held = scene.hold(kind, Verb::Attempt).await;
            let moving = Move::begin(&scene.cluster, held.lock.name());
            let keys = moving.keys();
            for (nth, key) in keys.iter().enumerate() {
                if moved >> nth & 1 == 1 {
                    moving.take(key);
                }
            }
            let what = format!("{kind}, {moved:b} of {keys:?}");
            let is_last = (moved + 1) >> keys.len() > 0;
            halves.push((what, moving, held));
            if is_last {
                break;
            }
        }
    }
    // Each is renewed, or refused, at least once.
    tokio::time::sleep(lease / 2).await;
    let mut ends = Vec::new();
    for (what, moving, held) in halves {
        moving.finish();
        ends.push((what, held));
    }
    let renewed = scene
        .clients
        .each_ref()
        .map(|client| client.stats().renewed_total);
    println!("renewed while they moved: {renewed:?}");
    tokio::time::sleep(lease).await;
    for (what, held) in ends {
        let third = scene.clients[2].lock_of(against(held.lock.kind()), held.lock.name());
        assert!(third.try_lock().await.expect("asked").is_none(), "{what}");
        scene.end(held, &third, true, &what).await;
    }
    scene.end_scene().await;
}

/// How many scripts the first primary has run since this was asked last.
fn script_calls(cluster: &Cluster) -> u64 {
    let mut control = cluster.control(0);
    let stats = control.run(&["INFO", "COMMANDSTATS"]);
    control.run(&["CONFIG", "RESETSTAT"]);
    let evals = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"));
    let calls = evals.filter_map(|line| {
        line.split_once("calls=")?
            .1
            .split(',')
            .next()?
            .parse::<u64>()
            .ok()
    });
    calls.sum()
}

/// All that a script decides by is there, or named by the call. Only a reader whose keys have expired costs another call.
#[tokio::test]
async fn while_no_slot_moves_a_call_is_sent_once() {
    let mut scene = Scene::start().await;
    for client in &mut scene.clients {
        // A report of a change costs a look.
        let builder = LockClient::builder().watchdog_timeout(ms(60_000));
        let builder = builder.tracking(false);
        let connected = builder.connect(&scene.cluster.url()).await;
        *client = connected.expect("it answers");
    }
    let [first, second, _] = &scene.clients;
    // The servers know the scripts.
    for warm in 0..2 {
        let key = scene.key();
        let reads = first.lock_of(LockKind::Read, key.clone());
        script_calls(&scene.cluster);
        let mut own = Vec::new();
        for _ in 0..3 {
            own.push(reads.lock().await.expect("free"));
        }
        let theirs = second.lock_of(LockKind::Read, key.clone());
        let theirs = theirs.lock().await.expect("shared");
        second.rw_lock(key.clone()).inspect().await.expect("asked");
        for guard in own {
            guard.unlock().await.expect("held");
        }
        let calls = script_calls(&scene.cluster);
        assert!(warm == 0 || calls == 8, "{calls} calls for eight verbs");
        assert_eq!(theirs.state(), HoldState::Held);
        // Its keys have expired.
        let mine = reads.lock().await.expect("shared");
        let keys = scene.cluster.control(0).run(&["KEYS", "*"]);
        let field = theirs.owner().to_string();
        for key in keys.split(' ').filter(|key| key.contains(&field)) {
            scene.cluster.control(0).run(&["DEL", key]);
        }
        script_calls(&scene.cluster);
        mine.unlock().await.expect("held");
        assert_eq!(script_calls(&scene.cluster), 2, "again, with that key");
        assert_eq!(
            scene.cluster.control(0).run(&["EXISTS", &key]),
            "0",
            "nobody reads"
        );
        let released = theirs.unlock().await;
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    }
    scene.end_scene().await;
}

/// One call renews them, and the server refuses it.
#[tokio::test]
async fn two_locks_of_one_slot_are_renewed_at_both_nodes() {
    let cluster = Cluster::start(false).await;
    let client = LockClient::builder()
        .connections(1)
        .watchdog_timeout(ms(3_000))
        .command_timeout(ms(500))
        .connect(&cluster.url())
        .await
        .expect("it answers");
    let tag = cluster.key_at(0, "lock");
    let [one, two] = [1, 2].map(|nth| client.lock(format!("{{{tag}}}{nth}")));
    let [one, two] = [one.lock().await, two.lock().await].map(|guard| guard.expect("free"));
    let moving = Move::begin(&cluster, &tag);
    moving.take(two.name());
    let before = client.stats().renewed_total;
    let renewed = || client.stats().renewed_total >= before + 6;
    eventually("both are renewed", ms(8_000), renewed).await;
    assert_eq!([one.state(), two.state()], [HoldState::Held; 2]);
    moving.finish();
    one.unlock().await.expect("held");
    two.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}
