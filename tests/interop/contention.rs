//! Many workers of both sides on one lock, with a counter that a lost exclusion would spoil.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::common::{Control, ms};
use crate::party::Party;
use crate::stage::{Load, Scenario, Stage};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("mixed_workers", mixed_workers).load(Load::Processor),
        Scenario::new("a_few_mixed_workers", a_few_mixed_workers).short(),
        Scenario::new("lk03_testSubscriptionsPerConnection", lk03),
        Scenario::new("lk23_testConcurrency_SingleInstance", lk23),
        Scenario::new("lk24_testConcurrencyLoop_MultiInstance", lk24).load(Load::Processor),
        Scenario::new("lk25_testConcurrency_MultiInstance", lk25).load(Load::Processor),
    ]
}

async fn mixed_workers(stage: Stage) {
    let parties = [(stage.first.clone(), 16), (stage.second.clone(), 16)];
    sections(&stage, &parties, 5_000).await;
}

async fn a_few_mixed_workers(stage: Stage) {
    let parties = [(stage.first.clone(), 4), (stage.second.clone(), 4)];
    sections(&stage, &parties, 200).await;
}

/// 32 workers on five names, with one subscriber connection for each side; one that has room for
/// all five.
async fn lk03(stage: Stage) {
    let mut tasks = tokio::task::JoinSet::new();
    let settings = [("channels", "5".to_owned())];
    let inside: Arc<[AtomicI64; 5]> = Arc::default();
    let parties = [
        stage
            .first
            .another(stage.url(), Duration::from_secs(30), &settings)
            .await,
        stage
            .second
            .another(stage.url(), Duration::from_secs(30), &settings)
            .await,
    ];
    for nth in 0..32 {
        let worker = parties[nth % 2].worker();
        let (inside, base) = (Arc::clone(&inside), stage.name.clone());
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

async fn lk23(stage: Stage) {
    sections(
        &stage,
        &[(stage.first.clone(), 15), (stage.second.clone(), 15)],
        30,
    )
    .await;
}

/// Many clients, each with many sections.
async fn lk24(stage: Stage) {
    many_clients(&stage, 8, 800).await;
}

/// Many clients, a few sections each.
async fn lk25(stage: Stage) {
    many_clients(&stage, 10, 50).await;
}

async fn many_clients(stage: &Stage, clients: usize, total: i64) {
    let mut parties = Vec::new();
    for nth in 0..clients {
        let side = if nth % 2 == 0 {
            &stage.first
        } else {
            &stage.second
        };
        let party = side
            .another(stage.url(), Duration::from_secs(30), &[])
            .await;
        parties.push((party, 1));
    }
    sections(stage, &parties, total).await;
    for (party, _) in parties {
        party.close().await;
    }
}

/// Runs so many sections in all. In each only one worker is inside, and a counter in Redis is read,
/// and written later: a second worker inside would be seen, and its update would be lost.
async fn sections(stage: &Stage, parties: &[(Party, u32)], total: i64) {
    let inside = Arc::new(AtomicI64::new(0));
    let left = Arc::new(AtomicI64::new(total));
    let counter = format!("counter {}", stage.name);
    let mut tasks = tokio::task::JoinSet::new();
    for (party, workers) in parties {
        for _ in 0..*workers {
            let worker = party.worker();
            let (inside, left) = (Arc::clone(&inside), Arc::clone(&left));
            let (name, counter, mut control) =
                (stage.name.clone(), counter.clone(), stage.control());
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
        stage.control().run(&["GET", &counter]),
        total.to_string(),
        "no update was lost"
    );
    assert_eq!(stage.control().hash(&stage.name), "", "nothing is left");
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
