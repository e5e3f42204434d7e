//! A job that is run at most once in a period, for every kind of lock.

use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient, LockClientBuilder, LockKind};
use test_support::kinds::KINDS;
use test_support::{TestServer, assert_matches, eventually, ms, stalls, tokio};

const PERIOD: Duration = ms(1_000);
/// Of it, the lock is kept for this long.
const KEPT: Duration = ms(950);

/// The kinds that exclude other owners.
fn kinds() -> impl Iterator<Item = LockKind> {
    KINDS.into_iter().filter(|kind| *kind != LockKind::Read)
}

async fn runs(lock: &Lock, period: Duration) -> bool {
    let ran = lock.once_per(period, async |_held| Ok::<_, Error>(()));
    ran.await.expect("asked").is_some()
}

/// Each client has the job of each kind.
fn jobs(clients: &[LockClient]) -> Vec<(LockKind, Lock, Lock)> {
    let job = |kind| {
        let jobs = [0, 1].map(|nth: usize| clients[nth].lock_of(kind, format!("job-of-{kind}")));
        let [one, other] = jobs;
        (kind, one, other)
    };
    kinds().map(job).collect()
}

#[tokio::test]
async fn one_of_several_runs_it_and_each_may_one_period_later() {
    let server = TestServer::new();
    let clients = [server.client().await, server.client().await];
    let jobs = jobs(&clients);
    for nth in 0..3 {
        let begun = Instant::now();
        for (kind, one, other) in &jobs {
            let first = if nth % 2 == 0 { one } else { other };
            assert!(runs(first, PERIOD).await, "{kind}, {nth}");
            assert!(!runs(one, PERIOD).await, "{kind}: it has run");
            assert!(!runs(other, PERIOD).await, "{kind}: it has run");
        }
        let all = begun.elapsed();
        tokio::time::sleep(PERIOD.saturating_sub(all)).await;
        // In no order: each is released at its end.
        eventually("all are free", PERIOD, || {
            let mut control = server.control();
            jobs.iter().all(|job| control.count(job.1.name()) == 0)
        })
        .await;
    }
    let [one, other] = clients;
    server.finish([one, other]).await;
}

/// A failure, a panic, a future that is dropped and a client that is closed leave it for as long.
#[tokio::test]
async fn however_the_body_ends_the_lock_stays_for_its_time() {
    let server = TestServer::new();
    let other = server.client().await;
    let period = ms(20_000);
    let mut control = server.control();
    for kind in kinds() {
        for end in ["fails", "is dropped", "panics"] {
            let client = server.client().await;
            let name = format!("job-of-{kind}-{end}");
            let job = client.lock_of(kind, &*name);
            match end {
                "fails" => {
                    let failed = job.once_per(period, async |_held| Err::<(), _>(Error::Closed));
                    assert_matches!(failed.await, Err(Error::Closed), "{kind}");
                }
                "is dropped" => {
                    let stuck = job.once_per(period, async |_held| {
                        std::future::pending::<()>().await;
                        Ok::<_, Error>(())
                    });
                    let left = tokio::time::timeout(ms(100), stuck).await;
                    assert!(left.is_err(), "{kind}: it does not end");
                }
                _ => {
                    let panics = tokio::spawn(async move {
                        let ran = job.once_per(period, async |_held| {
                            assert!(Instant::now().elapsed() > PERIOD, "on purpose");
                            Ok::<_, Error>(())
                        });
                        ran.await.map(drop)
                    });
                    assert!(panics.await.expect_err("a panic").is_panic(), "{kind}");
                }
            }
            assert!(
                !runs(&other.lock_of(kind, &*name), period).await,
                "{kind} {end}"
            );
            let report = client.close(ms(3_000)).await;
            assert!(report.abandoned.is_empty(), "{kind} {end}: {report:?}");
            assert_eq!(report.released, 0, "{kind} {end}");
            let left = control.pttl(&name);
            assert!((1..=19_000).contains(&left), "{kind} {end}: {left} ms");
            assert!(
                !runs(&other.lock_of(kind, &*name), period).await,
                "{kind} {end}"
            );
            control.run(&["DEL", &name]);
        }
    }
    control.run(&["FLUSHALL"]);
    server.finish([other]).await;
}

/// It extends the lease, and frees the lock at its end, or when its time is over.
#[tokio::test]
async fn a_body_that_takes_longer_keeps_the_lock_until_its_end() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    for (takes, kept) in [(ms(2_500), ms(2_500)), (ms(800), KEPT)] {
        let job = client.lock("job");
        let begun = Instant::now();
        let running = tokio::spawn(async move {
            let ran = job.once_per(PERIOD, async |held| {
                tokio::time::sleep(takes).await;
                assert!(!held.is_lost(), "it is extended");
                Ok::<_, Error>(7)
            });
            (ran.await, begun.elapsed())
        });
        tokio::time::sleep(takes - ms(50)).await;
        assert!(!runs(&other.lock("job"), PERIOD).await, "it still runs");
        let (ran, took) = running.await.expect("no panic");
        assert_eq!(ran.expect("held"), Some(7));
        assert!(took >= kept, "{took:?}");
        assert!(runs(&other.lock("job"), ms(100)).await, "it is free");
        eventually("it is free again", ms(5_000), || {
            server.control().count("job") == 0
        })
        .await;
    }
    server.finish([client, other]).await;
}

#[tokio::test]
async fn a_limit_of_holds_does_not_shorten_the_time() {
    let server = TestServer::new();
    let limited = |builder: LockClientBuilder| builder.max_hold(ms(100));
    let (client, other) = (server.client_with(limited).await, server.client().await);
    for job in [client.lock("one"), other.lock("two").max_hold(ms(100))] {
        assert!(runs(&job, ms(10_000)).await);
        let left = server.control().pttl(job.name());
        assert!(left > 8_000, "{left}");
    }
    client.close(ms(0)).await;
    other.close(ms(0)).await;
}

/// It is dropped when it has extended the lease: within its time, and after it.
#[tokio::test]
async fn a_call_that_is_dropped_late_keeps_the_lock_no_longer() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    for dropped in [ms(750), ms(1_300)] {
        let (job, begun) = (client.lock("job"), Instant::now());
        let stuck = job.once_per(PERIOD, async |_held| {
            std::future::pending::<()>().await;
            Ok::<_, Error>(())
        });
        assert!(tokio::time::timeout(dropped, stuck).await.is_err());
        if dropped < KEPT {
            assert!(!runs(&other.lock("job"), PERIOD).await, "it stays");
        }
        eventually("it is free", ms(5_000), || {
            server.control().count("job") == 0
        })
        .await;
        let (took, stays) = (begun.elapsed(), dropped.max(KEPT));
        assert!(
            (stays..stays + ms(100) + stalls(begun)).contains(&took),
            "{dropped:?}: {took:?}"
        );
    }
    server.finish([client, other]).await;
}

/// The caller's own hold is another owner\'s, and so is a call within the body.
#[tokio::test]
async fn each_call_has_an_owner_of_its_own() {
    let server = TestServer::new();
    let client = server.client().await;
    let job = client.lock("job");
    let guard = job.lock().await.expect("free");
    assert!(!runs(&job, PERIOD).await, "it is held");
    guard.unlock().await.expect("held");
    let ran = job.once_per(PERIOD, async |_held| {
        Ok::<_, Error>(runs(&job, PERIOD).await)
    });
    assert_eq!(ran.await.expect("asked"), Some(false));
    let reading = client.rw_lock("read").read();
    let refused = reading
        .once_per(PERIOD, async |_held| Ok::<_, Error>(()))
        .await;
    assert_matches!(refused, Err(Error::Misuse { .. }));
    let short = job.once_per(ms(5), async |_held| Ok::<_, Error>(())).await;
    assert_matches!(short, Err(Error::InvalidDuration { .. }));
    server.control().run(&["FLUSHALL"]);
    server.finish([client]).await;
}

/// A lost lock ends the body, as of `run`.
#[tokio::test]
async fn a_body_whose_lock_is_lost_is_dropped() {
    let server = TestServer::new();
    let client = server.client().await;
    let job = client.lock("job");
    let lost = job.once_per(PERIOD, async |_held| {
        server.control().run(&["DEL", "job"]);
        std::future::pending::<()>().await;
        Ok::<_, Error>(())
    });
    assert_matches!(lost.await, Err(Error::Lost { .. }));
    server.finish([client]).await;
}
