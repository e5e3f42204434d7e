//! Many readers and writers of both sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::task::JoinSet;

use super::*;
use crate::party::Party;
use test_support::{Fate, Proxy, Rolls};

/// A reader that is about to wait misses the message of a writer in Java, which costs it what is left of this.
pub const WATCHDOG: u64 = 5_000;

pub fn scenarios() -> Vec<Scenario> {
    let [storm] = of_readers! { "rw_storm", storm; };
    vec![storm.load(Load::Processor)]
}

/// Eight workers of each side, which read and write, while each script of ours is executed twice.
async fn storm(fixture: Fixture) {
    let proxy = Proxy::start(fixture.port()).await;
    let through = format!("redis://127.0.0.1:{}", proxy.port);
    let mut parties = Vec::new();
    for party in [&fixture.first, &fixture.second] {
        let url = if party.is_rust() {
            &through
        } else {
            fixture.url()
        };
        parties.push(party.another(url, ms(WATCHDOG), &[]).await);
    }
    // The server is to know the scripts.
    work(&parties, &fixture.name, 3).await;
    proxy.rule(Fate::Again, usize::MAX, |words| words[0] == "EVALSHA");
    work(&parties, &fixture.name, 25).await;
    nothing_left(&mut fixture.control(), &fixture.name).await;
    let twice = proxy.hit.load(Ordering::SeqCst);
    let ours = parties.iter().any(Party::is_rust);
    assert!(twice >= 100 || !ours, "{twice} scripts");
    for party in parties {
        party.close().await;
    }
}

/// How many are inside: a reader counts as one, a writer as this.
const WRITER: i64 = 1_000_000;

/// Eight workers of each party on one lock.
pub async fn work(parties: &[Party], key: &str, sections: usize) {
    let inside = Arc::<AtomicI64>::default();
    let mut workers = JoinSet::new();
    for nth in 0..16 {
        let worker = parties[nth % 2].worker();
        let (inside, key) = (Arc::clone(&inside), key.to_owned());
        workers.spawn(async move {
            let (mut rolls, mut own) = (Rolls(nth as u64 + 1), 0);
            for _ in 0..sections {
                // Half of those who write read as well before they have done.
                let (writes, reads) = match rolls.below(6) {
                    0 => (true, false),
                    1 => (true, true),
                    _ => (false, true),
                };
                if writes {
                    worker.writes().lock(&key, None).await.expect("in the end");
                    is_inside(&inside, WRITER).await;
                    own += 1;
                }
                if reads {
                    worker.reads().lock(&key, None).await.expect("in the end");
                }
                if writes {
                    worker.writes().unlock(&key).await.expect("held");
                }
                if reads {
                    is_inside(&inside, 1).await;
                    worker.reads().unlock(&key).await.expect("held");
                }
            }
            own
        });
    }
    let mut written = 0;
    while let Some(done) = workers.join_next().await {
        written += done.expect("no panic");
    }
    assert!(written > 0, "some have written");
}

/// A section of a reader, or of a writer.
async fn is_inside(inside: &AtomicI64, who: i64) {
    let others = inside.fetch_add(who, Ordering::SeqCst);
    assert!(
        others == 0 || who == 1 && others < WRITER,
        "{others} inside"
    );
    tokio::time::sleep(ms(1)).await;
    inside.fetch_sub(who, Ordering::SeqCst);
}
