//! The end of a client: of its runtime, and of its last handle.

use redisson_lock::{Error, LossReason, test_util};
use sim::workload::ms;

use crate::fixture::{Fixture, JAVA, KEY, begin, lock, play};

/// Holders never received a report, and waiters waited for ever.
#[test]
fn the_end_of_the_runtime_is_told_to_holders_and_waiters() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        let queued = begin(lock(&fixture.task(1))).await;
        let second = begin(lock(&fixture.task(2))).await;
        let lost = guard.lost();
        test_util::end_runtime(&fixture.client);
        let reported = tokio::time::timeout(ms(10), lost)
            .await
            .expect("immediately");
        assert_eq!(reported, LossReason::Closed);
        for waiting in [queued, second] {
            let ended = tokio::time::timeout(ms(10), waiting)
                .await
                .expect("immediately")
                .expect("no panic");
            assert!(matches!(ended, Err(Error::NoRuntime)), "{ended:?}");
        }
        assert!(matches!(
            guard.unlock().await,
            Err(Error::NoRuntime | Error::Lost { .. })
        ));
    });
}

/// It stayed in the books, with a watchdog that nobody ran.
#[test]
fn the_end_of_the_runtime_ends_a_detached_hold() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        let lost = guard.lost();
        guard.detach();
        assert_eq!(fixture.client.stats().held, 1);
        test_util::end_runtime(&fixture.client);
        let reported = tokio::time::timeout(ms(10), lost)
            .await
            .expect("immediately");
        assert_eq!(reported, LossReason::Closed);
        assert_eq!(fixture.client.stats().held, 0);
    });
}

/// A waiter that is subscribed, and one whose call is on its way.
#[test]
fn the_end_of_the_runtime_ends_every_wait_for_the_server() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        let listening = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(50)).await;
        fixture.world.hold_answers(0, true);
        let asking = begin({
            let other = fixture.client.lock("other");
            async move { other.lock().await }
        })
        .await;
        test_util::end_runtime(&fixture.client);
        for waiting in [listening, asking] {
            let ended = tokio::time::timeout(ms(10), waiting)
                .await
                .expect("immediately")
                .expect("no panic");
            assert!(matches!(ended, Err(Error::NoRuntime)), "{ended:?}");
        }
        assert_eq!(fixture.world.connections(), 0);
    });
}

/// Two releases are given up: that of the guard, and the one that would have undone the acquire.
#[test]
fn the_end_of_the_runtime_ends_what_is_under_way() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        fixture.world.hold_answers(0, true);
        let other = fixture.client.lock("other");
        let asking = begin(async move { other.lock().await }).await;
        drop(guard);
        tokio::time::sleep(ms(50)).await;
        let under_way = || {
            let stats = fixture.client.stats();
            (stats.releasing, stats.given_up_total)
        };
        assert_eq!(under_way(), (1, 0));
        test_util::end_runtime(&fixture.client);
        _ = asking.await.expect("no panic");
        assert_eq!(under_way(), (0, 2));
    });
}

/// They stayed for a lease, although the documentation said otherwise.
#[test]
fn the_last_handle_that_is_dropped_releases_detached_holds() {
    play(true, async |fixture| {
        let Fixture { world, client } = fixture;
        let other = client.lock(KEY);
        other.lock().await.expect("free").detach();
        drop((client, other));
        tokio::time::sleep(ms(1_000)).await;
        assert!(world.with_keyspace(|keyspace| keyspace.holder(KEY).is_none()));
        assert_eq!(world.connections(), 0);
    });
}

/// The thread of its call stood still between the look at it and the hand-over, and its place stayed behind its undoing.
#[test]
fn an_attempt_that_was_undone_is_not_sent_behind_that() {
    play(true, async |fixture| {
        let fair = |nth: i64| {
            let lock = fixture.client.fair_lock("fair");
            lock.owned_by(&fixture.client.owner_with_id(nth))
        };
        let held = fair(-1).lock().await.expect("free");
        // On its long way: the short one is a part of the step.
        fixture.world.flush_scripts();
        fixture.world.suspend(0, ms(10), ms(50));
        let waiting = begin(lock(&fair(-2))).await;
        let report = fixture.client.close(ms(200)).await;
        assert_eq!(report.unconfirmed, 0, "{report:?}");
        let ended = waiting.await.expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        tokio::time::sleep(ms(100)).await;
        let queue = "redisson_lock_queue:{fair}";
        let queued = fixture
            .world
            .with_keyspace(|keyspace| keyspace.list(queue).to_vec());
        assert!(queued.is_empty(), "a place is left: {queued:?}");
        drop(held);
    });
}

/// Each task that the ended runtime dropped let the next call go on, whose task it dropped inside of that: the stack overflowed.
#[test]
fn the_end_of_the_runtime_drops_the_tasks_of_many_waiters_one_after_the_other() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        for nth in 1..=2_000 {
            drop(tokio::spawn(lock(&fixture.task(nth))));
        }
        tokio::time::sleep(ms(10)).await;
        assert_eq!(fixture.client.stats().waiting, 2_000);
        // Its release has no answer when the connection is dropped.
        drop(guard);
    });
}
