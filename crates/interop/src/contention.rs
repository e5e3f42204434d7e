//! Many workers of both sides on one lock, with a counter that a lost exclusion would spoil.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, Load, Scenario};
use crate::party::{Client, Party};
use crate::stored::Queue;
use test_support::kinds::token_key;
use test_support::{Control, Fate, Proxy, ms, stalls};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("mixed_workers", mixed_workers).load(Load::Processor),
        Scenario::new("a_few_mixed_workers", a_few_mixed_workers).short(),
        Scenario::new("waits_beside_many_of_one_client", waits_beside_many).load(Load::Processor),
        Scenario::new("scripts_executed_twice", scripts_executed_twice).load(Load::Processor),
        Scenario::new("lk03_testSubscriptionsPerConnection", lk03),
        Scenario::new("lk23_testConcurrency_SingleInstance", lk23),
        Scenario::new("lk24_testConcurrencyLoop_MultiInstance", lk24).load(Load::Processor),
        Scenario::new("lk25_testConcurrency_MultiInstance", lk25).load(Load::Processor),
    ]
}

pub async fn mixed_workers(fixture: Fixture) {
    let parties = [(fixture.first.clone(), 16), (fixture.second.clone(), 16)];
    // A fair lock is sent for by each worker in its turn.
    let total = match fixture.name.starts_with("fair/") {
        true => 1_000,
        false => 5_000,
    };
    sections(&fixture, &parties, total).await;
}

pub async fn a_few_mixed_workers(fixture: Fixture) {
    let parties = [(fixture.first.clone(), 4), (fixture.second.clone(), 4)];
    sections(&fixture, &parties, 200).await;
}

/// The parties of a scenario, of which ours reaches the server through this proxy.
pub async fn through(proxy: &Proxy, fixture: &Fixture) -> [Party; 2] {
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let mut parties = [fixture.first.clone(), fixture.second.clone()];
    for party in parties.iter_mut().filter(|party| party.is_rust()) {
        *party = party.another(&url, Duration::from_secs(30), &[]).await;
    }
    parties
}

/// Each script of ours is executed again when others may have come in between.
pub async fn scripts_executed_twice(fixture: Fixture) {
    // Waiters of a string lock poll.
    let total = match fixture.name.starts_with("string/") {
        true => 80,
        false => 400,
    };
    let proxy = Proxy::start(fixture.port()).await;
    let parties = through(&proxy, &fixture).await.map(|party| (party, 8));
    // The server is to know the scripts: of a call that it refuses for that, only the copy would be executed.
    let few: Vec<_> = parties
        .iter()
        .map(|(party, _)| (party.clone(), 2))
        .collect();
    sections(&fixture, &few, 40).await;
    let mut control = fixture.control();
    control.run(&["DEL", &counter(&fixture.name)]);
    let mut token = || match fixture.name.starts_with("fenced/") {
        true => control.number(&["GET", &token_key(&fixture.name)]),
        false => 0,
    };
    let before = token();
    proxy.rule(Fate::Again, usize::MAX, |words| words[0] == "EVALSHA");
    sections(&fixture, &parties, total).await;
    let ours = parties.iter().filter(|(party, _)| party.is_rust());
    let ours: Vec<Party> = ours.map(|(party, _)| party.clone()).collect();
    let twice = proxy.hit.load(Ordering::SeqCst);
    assert!(ours.is_empty() || twice >= 8, "{twice} scripts");
    if fixture.name.starts_with("fenced/") {
        assert_eq!(token() - before, total, "raised once for each");
    }
    for party in ours {
        party.close().await;
    }
}

/// Eight workers of one client never leave the lock alone, and one of the other side wants it again
/// and again. This crate hands the lock from one to the next, and still the other has it soon. A
/// Redisson in the first part promises no such thing: it only excludes.
async fn waits_beside_many(fixture: Fixture) {
    const WAITS: usize = 20;
    let (name, counter) = (&fixture.name, counter(&fixture.name));
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let worker = fixture.first.worker();
        let (stop, name, counter) = (Arc::clone(&stop), name.clone(), counter.clone());
        let mut control = fixture.control();
        tasks.spawn(async move {
            let mut sections = 0;
            while !stop.load(Ordering::Relaxed) {
                worker.lock(&name, None).await.expect("in the end");
                add_one(&mut control, &counter).await;
                worker.unlock(&name).await.expect("held");
                sections += 1;
            }
            sections
        });
    }
    let (other, passed) = (fixture.second.worker(), passes(&fixture.first));
    let (mut control, mut waits) = (fixture.control(), Vec::new());
    let begin = Instant::now();
    while waits.len() < WAITS && (begin.elapsed() < ms(5_000) || fixture.first.is_rust()) {
        let start = Instant::now();
        other.lock(name, None).await.expect("in the end");
        waits.push(start.elapsed());
        add_one(&mut control, &counter).await;
        other.unlock(name).await.expect("held");
    }
    let stalls = stalls(begin);
    stop.store(true, Ordering::Relaxed);
    let mut total = waits.len();
    while let Some(done) = tasks.join_next().await {
        total += done.expect("no panic");
    }
    let counted = fixture.control().run(&["GET", &counter]);
    assert_eq!(counted, total.to_string(), "no update was lost");
    if fixture.first.is_rust() {
        assert!(passes(&fixture.first) > passed, "none was handed over");
        waits.sort_unstable();
        let (middle, longest) = (waits[WAITS / 2], waits[WAITS - 1]);
        // A row of passes takes 50 ms; behind it the others go first for 5 ms.
        assert!(
            middle <= ms(200) + stalls && longest <= ms(1_000) + stalls,
            "it waited for {waits:?}, while the machine stood still for {stalls:?}"
        );
    }
}

fn passes(party: &Party) -> u64 {
    match &party.client {
        Client::Rust(client) => client.stats().passes_total,
        Client::Java { .. } => 0,
    }
}

/// 32 workers on five names, with one subscriber connection for each side; one that has room for
/// all five.
async fn lk03(fixture: Fixture) {
    let mut tasks = tokio::task::JoinSet::new();
    let settings = [("channels", "5".to_owned())];
    let inside: Arc<[AtomicI64; 5]> = Arc::default();
    let parties = [
        fixture
            .first
            .another(fixture.url(), Duration::from_secs(30), &settings)
            .await,
        fixture
            .second
            .another(fixture.url(), Duration::from_secs(30), &settings)
            .await,
    ];
    for nth in 0..32 {
        let worker = parties[nth % 2].worker();
        let (inside, base) = (Arc::clone(&inside), fixture.name.clone());
        tasks.spawn(async move {
            for round in 0..16 {
                let key = (nth + round * 3) % 5;
                let name = format!("{base} {key}");
                worker.lock(&name, None).await.expect("in the end");
                assert_eq!(
                    inside[key].fetch_add(1, Ordering::AcqRel),
                    0,
                    "somebody else is inside"
                );
                tokio::time::sleep(ms((nth + round) as u64 % 20)).await;
                inside[key].fetch_sub(1, Ordering::AcqRel);
                worker.unlock(&name).await.expect("held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    for party in parties {
        party.close().await;
    }
}

async fn lk23(fixture: Fixture) {
    sections(
        &fixture,
        &[(fixture.first.clone(), 15), (fixture.second.clone(), 15)],
        30,
    )
    .await;
}

/// Many clients, each with many sections.
async fn lk24(fixture: Fixture) {
    many_clients(&fixture, 8, 800).await;
}

/// Many clients, a few sections each.
async fn lk25(fixture: Fixture) {
    many_clients(&fixture, 10, 50).await;
}

async fn many_clients(fixture: &Fixture, clients: usize, total: i64) {
    let mut parties = Vec::new();
    for nth in 0..clients {
        let side = if nth % 2 == 0 {
            &fixture.first
        } else {
            &fixture.second
        };
        let party = side
            .another(fixture.url(), Duration::from_secs(30), &[])
            .await;
        parties.push((party, 1));
    }
    sections(fixture, &parties, total).await;
    for (party, _) in parties {
        party.close().await;
    }
}

/// Runs this many sections in all. In each only one worker is inside, and a counter in Redis is read,
/// and written later: a second worker inside would be seen, and its update would be lost.
async fn sections(fixture: &Fixture, parties: &[(Party, u32)], total: i64) {
    let inside = Arc::new(AtomicI64::new(0));
    let left = Arc::new(AtomicI64::new(total));
    let counter = counter(&fixture.name);
    let mut tasks = tokio::task::JoinSet::new();
    for (party, workers) in parties {
        for _ in 0..*workers {
            let worker = party.worker();
            let (inside, left) = (Arc::clone(&inside), Arc::clone(&left));
            let (name, counter, mut control) =
                (fixture.name.clone(), counter.clone(), fixture.control());
            tasks.spawn(async move {
                while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    worker.lock(&name, None).await.expect("in the end");
                    assert_eq!(
                        inside.fetch_add(1, Ordering::AcqRel),
                        0,
                        "somebody else is inside"
                    );
                    add_one(&mut control, &counter).await;
                    inside.fetch_sub(1, Ordering::AcqRel);
                    worker.unlock(&name).await.expect("held");
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    assert_eq!(
        fixture.control().run(&["GET", &counter]),
        total.to_string(),
        "no update was lost"
    );
    assert_eq!(fixture.seen(&fixture.name), "", "nothing is left");
    assert!(
        Queue::of(&fixture.name)
            .owners(&mut fixture.control())
            .is_empty(),
        "no place is left"
    );
}

/// Beside a lock in a cluster.
fn counter(name: &str) -> String {
    format!("{{{name}}} counter")
}

async fn add_one(control: &mut Control, counter: &str) {
    let found = control.run(&["GET", counter]);
    let found: i64 = if found == "(nil)" {
        0
    } else {
        found.parse().expect("a number")
    };
    // Long enough for anybody who is not kept out.
    tokio::time::sleep(ms(1)).await;
    control.run(&["SET", counter, &(found + 1).to_string()]);
}
