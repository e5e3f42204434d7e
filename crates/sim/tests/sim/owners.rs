//! What the operations of one owner, and of its neighbours in the queue, do to each other: by hand,
//! each as the shortest trace that once went wrong.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use redisson_lock::{Error, HoldState, LossReason};
use redisson_lock_test::sim::Latency;
use sim::oracle::channel;
use sim::workload::ms;

use crate::fixture::{JAVA, KEY, begin, end, lock, play};

/// Polls a future once; then it is kept and not polled.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// They were remembered for the life of the client, 2.9 kB each, and counted as lost.
#[test]
fn detached_leases_that_have_run_out_are_forgotten() {
    play(true, async |fixture| {
        let before = fixture.client.stats().lost_total;
        for nth in 0..50 {
            let once = fixture.client.lock(format!("once in a while {nth}"));
            once.lease(ms(400))
                .try_lock()
                .await
                .expect("answered")
                .expect("free")
                .detach();
        }
        fixture
            .client
            .lock("with a limit")
            .max_hold(ms(400))
            .lock()
            .await
            .expect("free")
            .detach();
        assert_eq!(fixture.client.stats().entries, 51);
        tokio::time::sleep(ms(1_000)).await;
        let stats = fixture.client.stats();
        assert_eq!((stats.entries, stats.held), (0, 0), "{stats:?}");
        assert_eq!(
            stats.lost_total,
            before + 1,
            "a limit is no lease: reaching it is a loss"
        );
    });
}

/// One whose end was not its own is remembered until its owner asks.
#[test]
fn a_detached_hold_that_is_lost_otherwise_is_told_to_the_unlock() {
    play(true, async |fixture| {
        let task = fixture.task(0);
        task.lock().await.expect("free").detach();
        fixture.java_unlocks();
        tokio::time::sleep(ms(11_000)).await;
        assert!(matches!(
            task.lock().await,
            Err(Error::Lost {
                reason: LossReason::Gone,
                ..
            })
        ));
        assert!(matches!(
            task.unlock().await,
            Err(Error::Lost {
                reason: LossReason::Gone,
                ..
            })
        ));
        task.lock()
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
        assert_eq!(fixture.client.stats().entries, 0);
    });
}

/// It ended the owner's next hold, whose key then stayed, unrenewed and unreleased, for a lease.
#[test]
fn an_answer_of_force_unlock_that_is_applied_late_ends_no_later_hold() {
    play(true, async |fixture| {
        let first = fixture.task(0).lock().await.expect("free");
        let other = fixture.task(1);
        let mut forcing = Box::pin(other.force_unlock());
        while fixture.count() == 1 {
            assert!(poll_once(forcing.as_mut()).await.is_pending());
            tokio::time::sleep(ms(1)).await;
        }
        // Its answer lies there while nobody polls for it.
        assert!(matches!(
            first.unlock().await,
            Err(Error::Lost {
                reason: LossReason::Gone,
                ..
            })
        ));
        let second = fixture.task(0).lock().await.expect("free");
        assert_eq!(forcing.await.ok(), Some(true));
        assert_eq!(second.state(), HoldState::Held);
        assert_eq!(fixture.count(), 1);
        second.unlock().await.expect("held");
        assert_eq!(fixture.server(), None);
    });
}

/// With many pollers there was always one whose attempt was under way, and the head of the queue
/// waited for all of them.
#[test]
fn an_attempt_past_the_queue_does_not_keep_its_head_from_attempting() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        let attempts = || fixture.world.oracle.times_executed("acquire");
        let before = attempts();
        fixture.world.hold_answers(0, true);
        let poller = fixture.task(1);
        let polling = begin(async move { poller.try_lock().await }).await;
        let queued = begin(lock(&fixture.task(0))).await;
        assert_eq!(
            attempts(),
            before + 2,
            "the head has attempted, the poller has no answer yet"
        );
        fixture.world.hold_answers(0, false);
        assert!(end(polling).await.expect("answered").is_none());
        fixture.java_unlocks();
        fixture.world.publish(&channel(KEY));
        end(queued)
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
    });
}

/// A late call in a row of calls of one owner reported that there was no answer, on a server
/// that gave all of them.
#[test]
fn a_thousand_nested_calls_of_one_owner_are_all_served() {
    play(true, async |fixture| {
        fixture.world.set_latency(Latency {
            least: 5,
            usual: 5,
            seldom: 5,
            seldom_percent: 0,
        });
        let calls: Vec<_> = (0..1_000)
            .map(|_| tokio::spawn(lock(&fixture.task(0))))
            .collect();
        let mut guards = Vec::new();
        for call in calls {
            guards.push(call.await.expect("no panic").expect("nested"));
        }
        assert_eq!(fixture.count(), 1_000);
        let unlocks: Vec<_> = guards
            .into_iter()
            .map(|guard| tokio::spawn(guard.unlock()))
            .collect();
        for unlock in unlocks {
            unlock.await.expect("no panic").expect("held");
        }
        assert_eq!(fixture.server(), None);
    });
}

/// The same for an unlock behind calls that take the lock.
#[test]
fn an_unlock_behind_many_nested_calls_is_served() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        fixture.world.set_latency(Latency {
            least: 5,
            usual: 5,
            seldom: 5,
            seldom_percent: 0,
        });
        let calls: Vec<_> = (0..300)
            .map(|_| tokio::spawn(lock(&fixture.task(0))))
            .collect();
        tokio::time::sleep(ms(1)).await;
        guard.unlock().await.expect("held");
        for call in calls {
            call.await
                .expect("no panic")
                .expect("nested")
                .unlock()
                .await
                .expect("held");
        }
        assert_eq!(fixture.server(), None);
    });
}

/// Nothing was released, and nobody was left to do it.
#[test]
fn a_dropped_unlock_of_a_detached_hold_gives_it_back_behind_a_nested_call() {
    play(true, async |fixture| {
        let task = fixture.task(0);
        task.lock().await.expect("free").detach();
        fixture.world.hold_answers(0, true);
        let nested = begin(lock(&task)).await;
        let mut unlocking = Box::pin(task.unlock());
        assert!(poll_once(unlocking.as_mut()).await.is_pending());
        drop(unlocking);
        fixture.world.hold_answers(0, false);
        end(nested)
            .await
            .expect("nested")
            .unlock()
            .await
            .expect("held");
        fixture.rest().await;
        assert_eq!(
            (fixture.server(), fixture.client.stats().entries),
            (None, 0)
        );
    });
}

/// Both chose the same hold.
#[test]
fn two_unlocks_of_two_detached_holds_give_both_back() {
    play(true, async |fixture| {
        let task = fixture.task(0);
        task.lock().await.expect("free").detach();
        task.lock().await.expect("nested").detach();
        fixture.world.hold_answers(0, true);
        let nested = begin(lock(&task)).await;
        let unlock = || {
            let task = task.clone();
            async move { task.unlock().await }
        };
        let (one, other) = (begin(unlock()).await, begin(unlock()).await);
        fixture.world.hold_answers(0, false);
        end(nested)
            .await
            .expect("nested")
            .unlock()
            .await
            .expect("held");
        end(one).await.expect("held");
        end(other).await.expect("held");
        assert_eq!(fixture.server(), None);
    });
}

/// The nested call was undone by a release to nought, which freed the lock under the section.
#[test]
fn a_section_that_reached_its_limit_keeps_its_lock_when_a_nested_call_is_undone() {
    play(true, async |fixture| {
        let guard = fixture
            .task(0)
            .max_hold(ms(500))
            .lock()
            .await
            .expect("free");
        fixture.world.hold_answers(0, true);
        let nested = begin(lock(&fixture.task(0))).await;
        assert_eq!(guard.lost().await, LossReason::MaxHold);
        fixture.world.hold_answers(0, false);
        let nested = end(nested).await;
        assert!(
            matches!(
                nested,
                Err(Error::Lost {
                    reason: LossReason::MaxHold,
                    ..
                })
            ),
            "{nested:?}"
        );
        fixture.rest().await;
        assert_eq!(fixture.count(), 1, "the section may still be running");
        assert!(!fixture.java_locks(JAVA));
        drop(guard);
        fixture.rest().await;
        assert_eq!(fixture.server(), None, "it is over");
    });
}

#[test]
fn a_section_that_reached_its_limit_keeps_its_lock_when_an_inner_hold_is_released() {
    play(true, async |fixture| {
        let outer = fixture
            .task(0)
            .max_hold(ms(500))
            .lock()
            .await
            .expect("free");
        let inner = fixture.task(0).lock().await.expect("nested");
        assert_eq!(outer.lost().await, LossReason::MaxHold);
        assert_eq!(inner.state(), HoldState::Held);
        inner.unlock().await.expect("held");
        fixture.rest().await;
        assert_eq!(fixture.count(), 1, "the outer section may still be running");
        assert!(matches!(
            outer.unlock().await,
            Err(Error::Lost {
                reason: LossReason::MaxHold,
                ..
            })
        ));
        fixture.rest().await;
        assert_eq!(
            (fixture.server(), fixture.client.stats().entries),
            (None, 0)
        );
    });
}

#[test]
fn a_section_that_reaches_its_limit_keeps_its_lock_while_a_release_waits() {
    play(true, async |fixture| {
        let outer = fixture
            .task(0)
            .max_hold(ms(500))
            .lock()
            .await
            .expect("free");
        let inner = fixture
            .task(0)
            .max_hold(ms(500))
            .lock()
            .await
            .expect("nested");
        fixture.world.hold_answers(0, true);
        // Its release waits behind a call of the same owner that has no answer yet.
        let third = begin(lock(&fixture.task(0))).await;
        drop(inner);
        assert_eq!(outer.lost().await, LossReason::MaxHold);
        fixture.world.hold_answers(0, false);
        assert!(end(third).await.is_err());
        fixture.rest().await;
        assert_eq!(fixture.count(), 1);
        drop(outer);
        fixture.rest().await;
        assert_eq!(fixture.server(), None);
    });
}

/// Its owner's neighbours waited for it, and for ever.
#[test]
fn an_unlock_that_is_not_polled_any_more_stops_nobody_for_longer_than_a_command() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        let mut unlocking = Box::pin(guard.unlock());
        fixture.hold_commands();
        assert!(poll_once(unlocking.as_mut()).await.is_pending());
        // Lost with its connection; its job sends it again.
        fixture.lose_connection();
        let next = tokio::time::timeout(ms(1_200), fixture.task(1).lock())
            .await
            .expect("soon")
            .expect("free");
        fixture.believe(&next);
        // Polled again, it has the outcome.
        unlocking.await.expect("released");
        assert_eq!(fixture.count(), 1);
        fixture.nobody_is_wrong();
        next.unlock().await.expect("held");
    });
}

/// The same owner acquires the lock again while its old unlock is still around.
#[test]
fn an_unlock_that_is_polled_too_late_does_not_touch_its_owners_next_hold() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        let mut unlocking = Box::pin(guard.unlock());
        fixture.world.hold_answers(0, true);
        assert!(poll_once(unlocking.as_mut()).await.is_pending());
        tokio::time::sleep(ms(5)).await;
        assert_eq!(fixture.server(), None, "executed");
        fixture.lose_connection();
        let next = tokio::time::timeout(ms(1_500), fixture.task(0).lock())
            .await
            .expect("soon")
            .expect("free");
        fixture.believe(&next);
        unlocking.await.expect("released");
        assert_eq!((fixture.count(), next.state()), (1, HoldState::Held));
        next.unlock().await.expect("held");
        assert_eq!(fixture.server(), None);
    });
}
