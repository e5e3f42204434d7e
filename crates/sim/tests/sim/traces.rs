//! The traces that broke weaker protocols, step by step: each was found by an exhaustive search of
//! the protocol before this one, and each goes wrong again when its rule is switched off
//! (`mutants/`).
//!
//! A0, A1 are tasks of our client; Java is the peer. "Late" is what a connection that was replaced
//! had not delivered.
//! V2, V10 and V11 hand the lock from one task to the next: `passes.rs`.

use redisson_lock::{Error, HoldState, LossReason, test_util};
use sim::workload::ms;
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, JAVA, begin, end, lock, play};

#[test]
fn v01_a_late_unlock_does_not_free_the_next_hold() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        fixture.hold_commands();
        let unlock = begin(guard.unlock()).await;
        fixture.lose_connection();
        end(unlock).await.expect("sent again");
        let guard = fixture.task(0).lock().await.expect("free again");
        fixture.believe(&guard);
        fixture.world.execute_late_now(0);
        assert!(!fixture.java_locks(JAVA), "it is held");
        fixture.nobody_is_wrong();
        guard.unlock().await.expect("held");
    });
}

#[test]
fn v03_a_late_acquire_leaves_no_hold_that_nobody_has() {
    play(true, async |fixture| {
        fixture.hold_commands();
        let taking = begin(lock(&fixture.task(0))).await;
        fixture.lose_connection();
        end(taking)
            .await
            .expect("sent again")
            .unlock()
            .await
            .expect("held");
        fixture.world.execute_late_now(0);
        assert_eq!(fixture.server(), None);
        fixture.nobody_is_wrong();
    });
}

#[test]
fn v03_without_a_fence_a_ghost_of_this_client_is_released() {
    play(false, async |fixture| {
        fixture.hold_commands();
        let taking = begin(lock(&fixture.task(0))).await;
        fixture.lose_connection();
        end(taking)
            .await
            .expect("sent again")
            .unlock()
            .await
            .expect("held");
        assert_eq!(fixture.world.execute_late_now(0), 1, "there is no fence");
        assert_eq!(fixture.count(), 1, "a ghost");
        let next = tokio::time::timeout(ms(1_000), fixture.task(1).lock())
            .await
            .expect("soon");
        next.expect("released first").unlock().await.expect("held");
    });
}

#[test]
fn v04_the_last_unlock_frees_the_lock_whatever_the_count_was() {
    play(true, async |fixture| {
        let short = fixture.task(0).lease(ms(300));
        let (outer, inner) = (
            short.lock().await.expect("free"),
            short.lock().await.expect("held"),
        );
        // It leaves a long lease behind, so that the server does not clean up by itself.
        let third = fixture.task(0).lock().await.expect("held");
        third.unlock().await.expect("held");
        assert_eq!(fixture.count(), 2);
        // In one jump: both leases end in the same step, so that one release says 0 to a count of 2.
        tokio::time::advance(ms(400)).await;
        assert_eq!(outer.state(), HoldState::Lost(LossReason::LeaseOver));
        assert_eq!(inner.state(), HoldState::Lost(LossReason::LeaseOver));
        fixture.rest().await;
        assert_eq!(
            fixture.server(),
            None,
            "two were counted, and one release frees"
        );
    });
}

#[test]
fn v05_a_nested_lock_that_gave_up_does_not_lock_the_task_out() {
    play(false, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        let before = fixture.server();
        fixture.hold_commands();
        let nested = begin(lock(&fixture.task(0))).await;
        let gave_up = end(nested).await;
        assert!(
            matches!(gave_up, Ok(_) | Err(Error::NoAnswer { .. })),
            "{gave_up:?}"
        );
        drop(gave_up);
        // Somebody else of this client stands in the queue.
        let other = begin(lock(&fixture.task(1))).await;
        let again = tokio::time::timeout(ms(3_000), fixture.task(0).lock())
            .await
            .expect("no queueing");
        again.expect("it holds").unlock().await.expect("held");
        assert_eq!(fixture.server(), before, "the same field");
        guard.unlock().await.expect("held");
        end(other)
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
    });
}

#[test]
fn v06_a_reentry_into_a_lost_hold_creates_nothing() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        fixture.java_unlocks();
        let nested = fixture.task(0).lock().await;
        assert!(
            matches!(
                nested,
                Err(Error::Lost {
                    reason: LossReason::Gone,
                    ..
                })
            ),
            "{nested:?}"
        );
        assert_eq!(fixture.server(), None);
        assert_eq!(guard.state(), HoldState::Lost(LossReason::Gone));
    });
}

#[test]
fn v07_a_partial_unlock_leaves_the_longer_lease() {
    play(true, async |fixture| {
        let outer = fixture.task(0).lock().await.expect("free");
        let long = fixture
            .task(0)
            .lease(ms(90_000))
            .lock()
            .await
            .expect("held");
        fixture.believe(&outer);
        long.unlock().await.expect("held");
        assert!(outer.valid_until() > tokio::time::Instant::now().into_std() + ms(80_000));
        fixture.nobody_is_wrong();
    });
}

#[test]
fn v08_a_renewal_leaves_the_longer_lease() {
    play(true, async |fixture| {
        let outer = fixture.task(0).lock().await.expect("free");
        let long = fixture
            .task(0)
            .lease(ms(90_000))
            .lock()
            .await
            .expect("held");
        fixture.believe(&outer);
        fixture.believe(&long);
        tokio::time::sleep(ms(25_000)).await;
        assert!(fixture.client.stats().renewed_total > 0);
        fixture.nobody_is_wrong();
    });
}

#[test]
fn v09_a_cancelled_acquire_is_over_before_its_owner_takes_the_lock_again() {
    play(true, async |fixture| {
        fixture.world.hold_scripts(0, true);
        let cancelled = begin(lock(&fixture.task(0))).await;
        cancelled.abort();
        let again = begin(lock(&fixture.task(0))).await;
        // All of it is sent again over the next connection: the acquire immediately, the release after
        // a pause. It would be built for a count of nought, and be executed after the acquire.
        fixture.lose_connection();
        tokio::time::sleep(ms(200)).await;
        fixture.world.hold_scripts(0, false);
        let guard = end(again).await.expect("free");
        fixture.believe(&guard);
        fixture.rest().await;
        assert_eq!(fixture.count(), 1);
        guard.unlock().await.expect("held");
    });
}

#[test]
fn v12_a_renewals_answer_counts_for_the_generation_it_was_sent_for() {
    play(true, async |fixture| {
        let first = fixture.task(0).lock().await.expect("free");
        let renewing = test_util::renewing(&first).expect("held");
        first.unlock().await.expect("held");
        let second = fixture.task(0).lock().await.expect("free");
        // All commands of a lock share one connection, so the network cannot bring this about: it
        // is said by hand.
        renewing.finds_it_lost(LossReason::Gone);
        assert_eq!(second.state(), HoldState::Held);
        second.unlock().await.expect("held");
    });
}

#[test]
fn v13_a_late_force_unlock_deletes_no_later_hold() {
    for fence in [true, false] {
        play(fence, async |fixture| {
            assert!(fixture.java_locks(JAVA));
            let forcing = force_on_its_way(&fixture).await;
            fixture.lose_connection();
            let forced = end(forcing).await;
            assert!(matches!(forced, Err(Error::NoAnswer { .. })), "{forced:?}");
            fixture.java_unlocks();
            assert!(fixture.java_locks(JAVA));
            let late = fixture.world.execute_late_now(0);
            assert_eq!(late, usize::from(!fence));
            assert_eq!(fixture.server(), Some((JAVA.to_owned(), 1)));
        });
    }
}

#[test]
fn v13_a_forced_unlock_frees_the_holder_that_was_seen_and_nobody_else() {
    play(false, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        let forcing = force_on_its_way(&fixture).await;
        fixture.lose_connection();
        fixture.java_unlocks();
        assert!(fixture.java_locks("java:2"));
        assert_eq!(fixture.world.execute_late_now(0), 1, "there is no fence");
        assert_eq!(fixture.server(), Some(("java:2".to_owned(), 1)));
        let forced = end(forcing).await;
        assert!(matches!(forced, Err(Error::NoAnswer { .. })), "{forced:?}");
    });
}

#[test]
fn v13_a_forced_unlock_is_not_sent_again() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        let forcing = force_on_its_way(&fixture).await;
        fixture.world.hold_answers(0, true);
        fixture.world.hold_commands(0, false);
        tokio::time::sleep(ms(10)).await;
        fixture.lose_connection();
        assert!(fixture.java_locks(JAVA), "it was freed");
        let forced = end(forcing).await;
        assert!(matches!(forced, Err(Error::NoAnswer { .. })), "{forced:?}");
        assert_eq!(
            fixture.server(),
            Some((JAVA.to_owned(), 1)),
            "that is a later hold"
        );
    });
}

/// The holder is seen, and the script that frees it is on its way.
async fn force_on_its_way(fixture: &Fixture) -> JoinHandle<Result<bool, Error>> {
    let lock = fixture.task(0);
    let looks = || fixture.world.oracle.times_executed("inspect");
    let before = looks();
    fixture.world.hold_answers(0, true);
    let forcing = tokio::spawn(async move { lock.force_unlock().await });
    while looks() == before {
        tokio::time::sleep(ms(1)).await;
    }
    fixture.hold_commands();
    fixture.world.hold_answers(0, false);
    tokio::time::sleep(ms(10)).await;
    forcing
}

#[test]
fn v14_a_lost_hold_does_not_come_back() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lease(ms(300)).lock().await.expect("free");
        fixture.world.hold_answers(0, true);
        let nested = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(350)).await;
        assert_eq!(guard.state(), HoldState::Lost(LossReason::LeaseOver));
        assert_eq!(fixture.count(), 2, "the nested acquire was executed");
        fixture.world.hold_answers(0, false);
        let nested = end(nested).await;
        assert!(
            matches!(
                nested,
                Err(Error::Lost {
                    reason: LossReason::LeaseOver,
                    ..
                })
            ),
            "{nested:?}"
        );
        fixture.rest().await;
        assert_eq!(fixture.server(), None);
    });
}

#[test]
fn v15_an_unlock_that_was_repeated_reports_no_loss() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        fixture.world.hold_answers(0, true);
        let unlock = begin(guard.unlock()).await;
        assert_eq!(fixture.server(), None, "it was executed");
        fixture.lose_connection();
        end(unlock).await.expect("an earlier copy did it");
    });
}
