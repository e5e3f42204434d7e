//! Three primaries and their replicas: locks in every slot, slots that move, failovers.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{
    Announce, Error, HoldState, LockClient, LockClientBuilder, LockGuard, LossReason, RefusedKind,
};
use test_support::{
    Cluster, assert_matches, eventually, ms, nothing_is_left, slot, stalls, tokio, within,
};

fn brisk(builder: LockClientBuilder) -> LockClientBuilder {
    builder.watchdog_timeout(ms(6_000)).command_timeout(ms(900))
}

async fn connect(cluster: &Cluster) -> LockClient {
    brisk(LockClient::builder())
        .connect(&cluster.url())
        .await
        .expect("the cluster answers")
}

#[tokio::test]
async fn a_name_whose_channel_is_in_another_slot_is_refused_before_anything_is_sent() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    for name in ["a{b", "a}b", "{}x", "}a", "a{}b{c}"] {
        let refused = client.lock(name).try_lock().await.expect_err("refused");
        assert!(
            refused.to_string().contains("different slots"),
            "{name}: {refused}"
        );
    }
    for name in ["a", "{t}:a", "a}b{c}", "a{b}c{d", "{{t}}", "x{y}z{w}"] {
        let guard = client.lock(name).try_lock().await.expect("accepted");
        guard.expect("free").unlock().await.expect("held");
    }
    nothing_is_left(&cluster, [client]).await;
}

/// ASKING is used up by the next command on its connection, whichever caller sends that.
#[tokio::test]
async fn calls_that_are_sent_on_at_once_do_not_use_up_each_others_asking() {
    const CALLS: u64 = 64;
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    let tag = cluster.key_at(0, "asked");
    let at_home = cluster.key_at(1, "at-home");
    cluster.begin_to_move(slot(&tag), 0, 1);
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..CALLS {
        // Keys that are not there are made at the target, which has locks of its own too.
        for name in [format!("{{{tag}}}:{nth}"), format!("{{{at_home}}}:{nth}")] {
            let lock = client.lock(name);
            tasks.spawn(async move { lock.lock().await.expect("free") });
        }
    }
    let guards = tasks.join_all().await;
    let redirections = client.stats().redirects_total;
    assert_eq!(redirections, CALLS, "each is sent on once");
    cluster.end_move(slot(&tag), 0, 1);
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    nothing_is_left(&cluster, [client]).await;
}

/// Where it was sent on to, nothing arrives; and where it was sent on from, nothing was executed.
#[tokio::test]
async fn a_call_that_was_only_sent_on_was_not_executed() {
    let settings = ["--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::start_with(false, &settings).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "sent-on");
    let lock = client.lock(key.clone());
    let guard = lock.lock().await.expect("free");
    guard.unlock().await.expect("held");
    let new = cluster.add_primary().await;
    cluster.move_slot(slot(&key), 0, new);
    // The client has no connection to it yet.
    cluster.server(new).pause();
    let refused = lock
        .try_lock()
        .await
        .expect_err("the new primary is silent");
    assert_matches!(
        refused,
        Error::Refused {
            kind: RefusedKind::ClusterDown,
            ..
        }
    );
    assert!(refused.is_retryable());
    let source = refused.source().expect("a source").to_string();
    assert!(
        source.starts_with("the node was not reached in time: MOVED "),
        "{source}"
    );
    assert_eq!(client.stats().releasing, 0, "there is nothing to undo");
    cluster.server(new).resume();
    eventually("it is back", ms(20_000), || cluster.is_working(new)).await;
    let guard = lock.lock().await.expect("free");
    guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}

#[tokio::test]
async fn a_killed_primary_is_replaced_and_what_was_not_replicated_is_told() {
    let mut cluster = Cluster::start(true).await;
    // No renewal is due for twenty seconds.
    let client = LockClient::builder()
        .watchdog_timeout(ms(60_000))
        .command_timeout(ms(900))
        .connect(&cluster.url())
        .await
        .expect("the cluster answers");
    let kept = cluster.key_at(0, "kept");
    let lost = cluster.key_at(0, "lost");
    let elsewhere = cluster.key_at(1, "elsewhere");
    let kept_guard = client.lock(kept.clone()).lock().await.expect("free");
    let elsewhere_guard = client.lock(elsewhere).lock().await.expect("free");
    let replicated = || cluster.control(3).count_on_replica(&kept) == 1;
    eventually("it is replicated", ms(5_000), replicated).await;
    // From here on the replica hears nothing.
    cluster.server(3).pause();
    cluster
        .control(0)
        .run(&["CLIENT", "KILL", "TYPE", "replica"]);
    let lost_guard = client.lock(lost).lock().await.expect("free");
    cluster.server(0).kill();
    cluster.server(3).resume();
    cluster.is_primary(3, ms(15_000)).await;
    let promoted = Instant::now();
    let reason = within(ms(2_000), lost_guard.lost()).await;
    assert_eq!(reason, Some(LossReason::Gone), "told within two seconds");
    println!("told {:?} after the promotion", promoted.elapsed());
    assert_eq!(kept_guard.state(), HoldState::Held);
    assert_eq!(elsewhere_guard.state(), HoldState::Held);
    drop(lost_guard);
    kept_guard.unlock().await.expect("held");
    elsewhere_guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}

/// All of them at the primary that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_holds_those_that_are_lost_are_told_of_in_time() {
    const KEPT: usize = 9_700;
    const LOST: usize = 300;
    let mut cluster = Cluster::start(true).await;
    let client = LockClient::builder()
        .watchdog_timeout(ms(60_000))
        // However busy the machine is, ten thousand are answered in that time.
        .command_timeout(ms(15_000))
        .connect(&cluster.url())
        .await
        .expect("the cluster answers");
    let mut names = (0..)
        .map(|nth| format!("held:{nth}"))
        .filter(|name| slot(name) <= 5_460);
    let mut take = async |count: usize| {
        let mut tasks = tokio::task::JoinSet::new();
        let mut guards = Vec::new();
        for name in names.by_ref().take(count) {
            let lock = client.lock(name);
            tasks.spawn(async move { lock.lock().await.expect("free") });
            if tasks.len() == 100 {
                guards.extend(
                    tasks
                        .join_next()
                        .await
                        .map(|guard| guard.expect("no panic")),
                );
            }
        }
        guards.extend(tasks.join_all().await);
        guards
    };
    let kept = take(KEPT).await;
    let replicated = || cluster.control(3).run(&["DBSIZE"]) == KEPT.to_string();
    eventually("they are replicated", ms(10_000), replicated).await;
    // From here on the replica hears nothing.
    cluster.server(3).pause();
    let cut_off = ["CLIENT", "KILL", "TYPE", "replica"];
    cluster.control(0).run(&cut_off);
    let lost = take(LOST).await;
    cluster.server(0).kill();
    cluster.server(3).resume();
    cluster.is_primary(3, ms(15_000)).await;
    let promoted = Instant::now();
    let all_are_told = || {
        let told = |guard: &LockGuard| guard.state() == HoldState::Lost(LossReason::Gone);
        lost.iter().all(told)
    };
    eventually("the losses are told", ms(10_000), all_are_told).await;
    let took = promoted.elapsed().saturating_sub(stalls(promoted));
    println!("the last was told {took:?} after the promotion");
    assert!(took <= ms(2_000), "{took:?}");
    let others = kept.iter().filter(|guard| guard.state() != HoldState::Held);
    assert_eq!(others.count(), 0, "what the replica has is held");
    drop(lost);
    // Their releases wait for nobody.
    drop(kept);
    nothing_is_left(&cluster, [client]).await;
}

/// A primary that stands still while a replica takes over executes what was sent to it when it goes on.
#[tokio::test]
async fn what_a_former_primary_answers_is_not_believed() {
    let mut cluster = Cluster::start(true).await;
    // Longer than a failover: the call is still waiting when the former primary goes on.
    let patient = async || {
        LockClient::builder()
            .watchdog_timeout(ms(60_000))
            .command_timeout(ms(15_000))
            .connect(&cluster.url())
            .await
            .expect("the cluster answers")
    };
    let (client, other) = (patient().await, patient().await);
    let key = cluster.key_at(0, "stale");
    // Both have their connections.
    for client in [&client, &other] {
        let guard = client.lock(key.clone()).lock().await.expect("free");
        guard.unlock().await.expect("held");
    }
    cluster.server(0).pause();
    let lock = client.lock(key.clone());
    let pending = tokio::spawn(async move { lock.try_lock().await });
    cluster.is_primary(3, ms(20_000)).await;
    let others = other.lock(key.clone()).try_lock().await;
    // Until then an answer of the former primary is one of the primary.
    let switched = || client.stats().failovers_total >= 1;
    eventually("it is noticed", ms(15_000), switched).await;
    cluster.server(0).resume();
    let ours = pending.await.expect("no panic");
    println!("ours {ours:?}, the other's {others:?}");
    let holders = [ours, others].map(|taken| taken.expect("answered"));
    assert_eq!(holders.iter().flatten().count(), 1, "one of them has it");
    for guard in holders.into_iter().flatten() {
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
    other.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_slot_that_nobody_has_for_a_moment_is_waited_for() {
    let settings = ["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::start_with(false, &settings).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "nobody");
    // The connection is there.
    let guard = client.lock(key.clone()).lock().await.expect("free");
    guard.unlock().await.expect("held");
    let number = slot(&key).to_string();
    for nth in 0..3 {
        cluster.control(nth).run(&["CLUSTER", "DELSLOTS", &number]);
    }
    let lock = client.lock(key.clone());
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(300)).await;
    assert!(
        !waiting.is_finished(),
        "it is not given up at the first refusal"
    );
    cluster.control(0).run(&["CLUSTER", "ADDSLOTS", &number]);
    let guard = waiting.await.expect("no panic").expect("its slot is back");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Nobody had it when the client connected: it is not in its map at all.
#[tokio::test]
async fn a_slot_that_nobody_has_had_yet_is_usable_as_soon_as_somebody_has_it() {
    let settings = ["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::start_with(false, &settings).await;
    let key = cluster.key_at(0, "nobody");
    let number = slot(&key).to_string();
    for nth in 0..3 {
        cluster.control(nth).run(&["CLUSTER", "DELSLOTS", &number]);
    }
    let client = LockClient::builder()
        .watchdog_timeout(ms(60_000))
        .command_timeout(ms(10_000))
        .connect(&cluster.url())
        .await
        .expect("the cluster answers");
    let lock = client.lock(key.clone());
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished());
    cluster.control(0).run(&["CLUSTER", "ADDSLOTS", &number]);
    let start = Instant::now();
    let guard = waiting.await.expect("no panic").expect("its slot is back");
    let took = start.elapsed().saturating_sub(stalls(start));
    assert!(took < ms(1_500), "{took:?}");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Longer than the time of one command: each attempt is refused, and the next is made.
#[tokio::test]
async fn a_slot_that_nobody_has_for_longer_is_tried_again() {
    let settings = ["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::start_with(false, &settings).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "nobody");
    let number = slot(&key).to_string();
    for nth in 0..3 {
        cluster.control(nth).run(&["CLUSTER", "DELSLOTS", &number]);
    }
    let retrying = client.lock(key.clone()).retry_for(ms(60_000));
    let retrying = tokio::spawn(async move { retrying.lock().await });
    let once = client.lock(format!("{{{key}}}:once"));
    // The second failure lies behind every attempt that was under way at the first.
    for _ in 0..2 {
        let failed = loop {
            match once.try_lock().await.expect_err("nobody has its slot") {
                // Beside other programs a node may be silent for that long.
                Error::NoAnswer { .. } => {}
                failed => break failed,
            }
        };
        let kind = RefusedKind::ClusterDown;
        let is_down = matches!(failed, Error::Refused { kind: found, .. } if found == kind);
        assert!(is_down, "{failed:?}");
        assert!(failed.is_retryable());
    }
    assert!(!retrying.is_finished(), "it is tried again");
    cluster.control(0).run(&["CLUSTER", "ADDSLOTS", &number]);
    let guard = retrying.await.expect("no panic").expect("its slot is back");
    guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}

/// Workers at a few locks, each with a counter that two of them inside together would spoil.
struct Load {
    /// Sections so far.
    sections: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<(u64, u64)>>,
    stop: Arc<AtomicBool>,
}

impl Load {
    fn start(clients: &[LockClient], names: &[String], workers: usize) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let done = Arc::<AtomicU64>::default();
        let inside: Vec<Arc<AtomicI64>> = names.iter().map(|_| Arc::default()).collect();
        let tasks = (0..workers)
            .map(|nth| {
                let lock = clients[nth % clients.len()].lock(names[nth % names.len()].clone());
                let (inside, stop) = (Arc::clone(&inside[nth % names.len()]), Arc::clone(&stop));
                let done = Arc::clone(&done);
                tokio::spawn(async move {
                    let (mut sections, mut failed) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let Ok(guard) = lock.lock().await else {
                            failed += 1;
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two are inside");
                        tokio::time::sleep(ms(1)).await;
                        inside.fetch_sub(1, Ordering::AcqRel);
                        sections += 1;
                        done.fetch_add(1, Ordering::Relaxed);
                        failed += u64::from(guard.unlock().await.is_err());
                    }
                    (sections, failed)
                })
            })
            .collect();
        Self {
            sections: done,
            tasks,
            stop,
        }
    }

    /// Waits for this many more sections.
    async fn goes_on(&self, sections: u64) {
        let goal = self.sections.load(Ordering::Relaxed) + sections;
        let reached = || self.sections.load(Ordering::Relaxed) >= goal;
        eventually("the workers go on", ms(20_000), reached).await;
    }

    /// Sections, and calls that failed.
    async fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = (0, 0);
        for task in self.tasks {
            let (sections, failed) = task.await.expect("nobody was inside beside another");
            all = (all.0 + sections, all.1 + failed);
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_with_contended_locks_moves_ten_times_under_load() {
    let cluster = Cluster::start(false).await;
    let clients = [connect(&cluster).await, connect(&cluster).await];
    let tag = cluster.key_at(0, "load");
    let names: Vec<String> = (0..4).map(|nth| format!("{{{tag}}}:{nth}")).collect();
    let held: Vec<String> = (0..20).map(|nth| format!("{{{tag}}}:held:{nth}")).collect();
    let mut guards = Vec::new();
    for name in &held {
        guards.push(clients[0].lock(name.clone()).lock().await.expect("free"));
    }
    let load = Load::start(&clients, &names, 16);
    for nth in 0..10 {
        let (from, to) = (nth % 2, (nth + 1) % 2);
        cluster.begin_to_move(slot(&tag), from, to);
        load.goes_on(30).await;
        for _ in 0..5 {
            cluster.move_keys(slot(&tag), from, to);
            load.goes_on(10).await;
        }
        cluster.end_move(slot(&tag), from, to);
        load.goes_on(20).await;
    }
    let (sections, failed) = load.end().await;
    let redirects: u64 = clients.iter().map(|one| one.stats().redirects_total).sum();
    println!("{sections} sections, {failed} failed calls, {redirects} redirections");
    assert_eq!(failed, 0);
    assert!(sections > 100 && redirects >= 10);
    for guard in guards {
        assert_eq!(guard.state(), HoldState::Held);
        guard.unlock().await.expect("held");
    }
    nothing_is_left(&cluster, clients).await;
}

#[tokio::test]
async fn slots_of_a_new_primary_are_found() {
    let mut cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "new");
    let guard = client.lock(key.clone()).lock().await.expect("free");
    let new = cluster.add_primary().await;
    cluster.move_slot(slot(&key), 0, new);
    let nested = client.lock(key.clone()).lock().await.expect("ours");
    assert_eq!(cluster.control(new).count(&key), 2);
    nested.unlock().await.expect("held");
    guard.unlock().await.expect("held");
    eventually("it is in the statistics", ms(7_000), || {
        client.stats().nodes == 4
    })
    .await;
    nothing_is_left(&cluster, [client]).await;
}

/// Without full coverage a primary that dies without a replica takes its own slots with it, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_primary_delays_no_other_and_loses_no_other_holds() {
    // Enough of the dead one for all the calls that may be under way at a primary.
    const LOCKS: usize = 1_500;
    // With a command timeout above what a call elsewhere may take: none of them waits for one.
    let lease = ms(12_000);
    let settings = ["--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::start_with(false, &settings).await;
    let client = LockClient::builder()
        .watchdog_timeout(lease)
        .command_timeout(ms(3_900))
        .connect(&cluster.url())
        .await
        .expect("the cluster answers");
    let (mut dead, mut living) = (Vec::new(), Vec::new());
    for nth in 0..LOCKS {
        let name = format!("held:{nth}");
        let of_the_dead = slot(&name) <= 5_460;
        let guard = client.lock(name).lock().await.expect("free");
        if of_the_dead { &mut dead } else { &mut living }.push(guard);
    }
    assert!(dead.len() > LOCKS / 4, "a third of them: {}", dead.len());
    cluster.server(0).kill();
    let (start, mut longest, mut calls) = (Instant::now(), Duration::ZERO, 0);
    let names = [cluster.key_at(1, "call"), cluster.key_at(2, "call")];
    let all_are_told = || {
        dead.iter()
            .all(|guard| guard.state() == HoldState::Lost(LossReason::NotRenewed))
    };
    // So that every hold that lives on has been renewed several times.
    while start.elapsed() < lease * 3 / 2 || !all_are_told() {
        for name in &names {
            let before = Instant::now();
            let guard = client.lock(name.clone()).lock().await;
            let unlocked = guard.expect("its primary lives").unlock().await;
            unlocked.expect("held");
            longest = longest.max(before.elapsed().saturating_sub(stalls(before)));
            calls += 1;
        }
        let lost: Vec<_> = living
            .iter()
            .filter(|guard| guard.state() != HoldState::Held)
            .collect();
        assert!(lost.is_empty(), "{} of others: {:?}", lost.len(), lost[0]);
        let limit = 3 * lease + stalls(start);
        assert!(start.elapsed() < limit, "the losses are not told");
        tokio::time::sleep(ms(5)).await;
    }
    println!("{calls} calls elsewhere, {longest:?} at most");
    assert!(longest <= ms(1_000), "{longest:?}");
    for guard in living {
        guard.unlock().await.expect("held");
    }
    drop(dead);
    client.close(Duration::ZERO).await;
}

/// The list of `docs/operations.md`.
const RIGHTS: &str = "+evalsha +eval +hget +hincrby +hdel +hlen +hkeys +hexists +exists +pttl +pexpire +del +publish +time \
                      +subscribe +unsubscribe +ping +client|info +client|kill +client|tracking +hello +auth +select +info \
                      +cluster|info +cluster|slots +cluster|myid +asking +spublish +ssubscribe +sunsubscribe +pubsub|numsub \
                      +pubsub|shardnumsub +wait";

#[tokio::test]
async fn the_rights_that_are_written_down_are_enough() {
    let cluster = Cluster::start(true).await;
    for nth in 0..cluster.len() {
        let mut words = vec![
            "ACL", "SETUSER", "locker", "on", ">secret", "-@all", "~lock:*",
        ];
        words.push("&redisson_lock__channel:{lock:*");
        words.extend(RIGHTS.split_whitespace());
        cluster.control(nth).run(&words);
    }
    let url = cluster.url().replace("://", "://locker:secret@");
    let connect = async || {
        brisk(LockClient::builder())
            .connect(&url)
            .await
            .expect("it may")
    };
    let (client, other) = (connect().await, connect().await);
    for nth in 0..3 {
        let key = cluster.key_at(nth, "lock:rights");
        let lock = client.lock(key.clone()).sync_replicas(1, ms(900));
        let guard = lock.lock().await.expect("it may, and its replica has it");
        let others = other.lock(key.clone());
        let waiting = tokio::spawn(async move { others.lock().await });
        let listens = || {
            let channel = format!("redisson_lock__channel:{{{key}}}");
            let mut owner = cluster.control(nth);
            owner
                .run(&["PUBSUB", "SHARDNUMSUB", &channel])
                .ends_with(" 1")
        };
        eventually("the other listens", ms(5_000), listens).await;
        let nested = lock.lock().await.expect("ours");
        nested.unlock().await.expect("it may");
        guard.unlock().await.expect("it may");
        let guard = waiting.await.expect("no panic").expect("it may");
        guard.unlock().await.expect("it may");
        assert!(client.lock(key.clone()).lock().await.is_ok());
        assert!(client.lock(key).inspect().await.is_ok());
    }

    // In a slot on its way as well.
    let key = cluster.key_at(0, "lock:on-its-way");
    cluster.begin_to_move(slot(&key), 0, 1);
    let guard = client.lock(key.clone()).lock().await.expect("it may");
    guard.unlock().await.expect("it may");
    for nth in 0..cluster.len() {
        let words = ["ACL", "SETUSER", "locker", "-asking"];
        cluster.control(nth).run(&words);
    }
    let refused = client.lock(key).lock().await.expect_err("it may not ask");
    assert_matches!(&refused, Error::PermissionDenied { permission, .. } if permission == "+asking");
    nothing_is_left(&cluster, [client, other]).await;
}

/// What `check` says without each right of `docs/operations.md`, and what it says with all of them.
#[tokio::test]
async fn a_check_names_every_missing_right_in_a_cluster() {
    /// What every server permits, and what an address without a database does not need.
    const NOT_NEEDED: &[&str] = &["+hello", "+auth", "+select"];
    let cluster = Cluster::start(false).await;
    let key = cluster.key_at(1, "lock:check");
    let all: Vec<&str> = RIGHTS.split_whitespace().collect();
    let grant = |missing: &str| {
        let user = "ACL SETUSER locker reset on >secret ~lock:* &redisson_lock__channel:{lock:*";
        let rights = all.iter().copied().filter(|right| *right != missing);
        let words: Vec<&str> = user.split(' ').chain(rights).collect();
        for nth in 0..cluster.len() {
            cluster.control(nth).run(&words);
        }
    };
    let url = cluster.url().replace("://", "://locker:secret@");
    let mut wrong = Vec::new();
    for announce in [Announce::Auto, Announce::Both, Announce::Sharded] {
        for missing in [""].iter().chain(&all).copied() {
            grant("");
            let builder = brisk(LockClient::builder()).announce(announce);
            let builder = builder.sync_replicas(1, ms(900));
            let client = builder.connect(&url).await.expect("it may");
            cluster.control(1).run(&["SCRIPT", "FLUSH"]);
            grant(missing);
            let said = client.check(&key).await.expect("answered");
            let is_needed = match missing {
                "" => false,
                "+pubsub|numsub" => announce == Announce::Auto,
                "+publish" | "+subscribe" | "+unsubscribe" => announce != Announce::Sharded,
                missing => !NOT_NEEDED.contains(&missing),
            };
            let expected = is_needed.then_some(missing);
            if !said.iter().eq(expected.iter()) {
                wrong.push(format!("{announce:?} without {missing:?}: {said:?}"));
            }
            grant("");
            client.close(Duration::ZERO).await;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_check_names_all_that_is_missing_in_a_cluster_at_once() {
    let cluster = Cluster::start(false).await;
    let url = cluster.url().replace("://", "://locker:secret@");
    for nth in 0..cluster.len() {
        let user = "ACL SETUSER locker on >secret ~* &* +@all";
        cluster
            .control(nth)
            .run(&user.split(' ').collect::<Vec<_>>());
    }
    let client = brisk(LockClient::builder())
        .connect(&url)
        .await
        .expect("it may");
    let key = cluster.key_at(2, "check");
    assert_eq!(client.check(&key).await.expect("answered"), [""; 0]);
    let taken = "ACL SETUSER locker -spublish -pubsub -subscribe -ssubscribe -asking -wait";
    cluster
        .control(2)
        .run(&taken.split(' ').collect::<Vec<_>>());
    // A channel is listened to for a while.
    let key = cluster.key_at(2, "another");
    let said = client.check(&key).await.expect("answered");
    // Without replicas nobody waits for them.
    let mut expected = vec![
        "+spublish",
        "+pubsub|shardnumsub",
        "+pubsub|numsub",
        "+asking",
    ];
    expected.extend(["+subscribe", "+ssubscribe"]);
    assert_eq!(said, expected);
    let elsewhere = cluster.key_at(1, "check");
    assert_eq!(client.check(&elsewhere).await.expect("answered"), [""; 0]);
    client.close(Duration::ZERO).await;
}
