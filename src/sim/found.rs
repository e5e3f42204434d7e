//! What random schedules found in the client, each as the shortest trace that shows it.

use std::time::Duration;

use super::actors::ms;
use super::stage::{Stage, begin, end, lock, play};
use crate::error::Error;

/// The client ended its connection while the acquire was on its way: the lock stayed taken for a lease.
#[test]
fn closing_undoes_an_acquire_that_is_on_its_way() {
    play(true, async |stage| {
        stage.world.hold_answers(0, true);
        let taking = begin(lock(&stage.task(0))).await;
        assert_eq!(stage.count(), 1, "the server has executed it");
        let closing = begin(close(&stage, Duration::ZERO)).await;
        stage.world.hold_answers(0, false);
        let report = end(closing).await;
        assert_eq!((stage.server(), report.unconfirmed), (None, 0));
        let taken = end(taking).await;
        assert!(matches!(taken, Err(Error::Closed)), "{taken:?}");
    });
}

/// What cannot be undone in time is reported.
#[test]
fn closing_reports_an_acquire_that_is_not_answered_in_time() {
    play(true, async |stage| {
        stage.world.hold_answers(0, true);
        let taking = begin(lock(&stage.task(0))).await;
        stage.world.down_for(ms(60_000));
        let report = end(begin(close(&stage, Duration::ZERO)).await).await;
        assert_eq!(report.unconfirmed, 1);
        assert!(end(taking).await.is_err());
    });
}

/// `stats()` of a closed client went on counting the channel that nobody listened to any more.
#[test]
fn a_closed_client_listens_to_nothing() {
    play(true, async |stage| {
        assert!(stage.java_locks("java:1"));
        let waited = stage.task(0).try_lock_for(ms(50)).await;
        assert!(matches!(waited, Ok(None)), "{waited:?}");
        assert_eq!(stage.client.stats().subscriptions, 1, "it lingers");
        end(begin(close(&stage, Duration::ZERO)).await).await;
        assert_eq!(stage.client.stats().subscriptions, 0);
    });
}

/// Its caller waited for the confirmation until the command timeout, and was then told `NoAnswer`.
#[test]
fn a_caller_that_subscribes_while_the_client_closes_is_told_so() {
    play(true, async |stage| {
        assert!(stage.java_locks("java:1"));
        stage.world.hold_confirmations(0);
        let waiting = begin(lock(&stage.task(0))).await;
        end(begin(close(&stage, Duration::ZERO)).await).await;
        let waited = tokio::time::timeout(ms(100), waiting).await.expect("at once").expect("no panic");
        assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    });
}

/// They were told in an order of its own by the channel between them: first come was not first served.
#[test]
fn callers_that_wait_for_a_connection_are_served_in_their_order() {
    play(true, async |stage| {
        stage.world.down_for(ms(100));
        let mut calls = Vec::new();
        for nth in 0..20 {
            let lock = stage.client.lock(format!("lock {nth}"));
            calls.push(tokio::spawn(async move { lock.lock().await }));
            tokio::task::yield_now().await;
        }
        for call in calls {
            end(call).await.expect("connected again").detach();
        }
        let keys = stage.world.watch.keys_in_order("acquire");
        let expected: Vec<String> = (0..20).map(|nth| format!("lock {nth}")).collect();
        assert_eq!(keys, expected);
        end(begin(close(&stage, Duration::ZERO)).await).await;
    });
}

fn close(stage: &Stage, grace: Duration) -> impl Future<Output = crate::stats::CloseReport> + Send + 'static {
    let client = stage.client.clone();
    async move { client.close(grace).await }
}
