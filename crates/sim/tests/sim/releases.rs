//! Releases by hand: what an unlock waits for, what goes on in the background, and what is given
//! up immediately.

use redisson_lock::{Error, test_util};
use redisson_lock_test::sim::{Gossip, Latency, NODES};
use sim::workload::{ClientPlan, World, connect, ms, runtime};
use tokio::time::Instant;

use crate::fixture::{JAVA, KEY, begin, end, lock, play};

/// One by the call, and one by the entry that is dropped after the unlock.
#[test]
fn a_pair_looks_up_its_entry_twice() {
    play(true, async |fixture| {
        let lock = fixture.task(0);
        for _ in 0..3 {
            let before = test_util::look_ups(&fixture.client);
            lock.lock()
                .await
                .expect("free")
                .unlock()
                .await
                .expect("held");
            assert_eq!(test_util::look_ups(&fixture.client) - before, 2);
        }
    });
}

#[test]
fn an_unlock_waits_for_a_nested_acquire_that_is_on_its_way() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        fixture.world.hold_answers(0, true);
        let nested = begin(lock(&fixture.task(0))).await;
        let unlocking = begin(guard.unlock()).await;
        tokio::time::sleep(ms(50)).await;
        fixture.world.hold_answers(0, false);
        let nested = end(nested).await.expect("held");
        end(unlocking).await.expect("it waited");
        assert_eq!(fixture.count(), 1);
        nested.unlock().await.expect("held");
        fixture.rest().await;
        assert_eq!(fixture.server(), None);
    });
}

#[test]
fn an_unlock_that_could_not_be_sent_is_carried_on() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        fixture.world.down_for(ms(1_500));
        // By now it is known that there is no connection.
        tokio::time::sleep(ms(10)).await;
        let unlocked = guard.unlock().await;
        assert!(
            matches!(unlocked, Err(Error::NoAnswer { .. })),
            "{unlocked:?}"
        );
        tokio::time::sleep(ms(2_500)).await;
        assert_eq!(fixture.server(), None);
        assert_eq!(
            (
                fixture.client.stats().releasing,
                fixture.client.stats().given_up_total
            ),
            (0, 0)
        );
    });
}

/// Only the lease can help where a right is missing.
#[test]
fn without_the_right_to_call_scripts_nothing_is_tried_again() {
    play(true, async |fixture| {
        let (released, dropped) = (
            fixture.client.lock("released"),
            fixture.client.lock("dropped"),
        );
        let (released, dropped) = (
            released.lock().await.expect("free"),
            dropped.lock().await.expect("free"),
        );
        let figures = || {
            (
                fixture.client.stats().releasing,
                fixture.client.stats().given_up_total,
            )
        };
        fixture.world.deny(0, "evalsha", true);
        let refused = released.unlock().await;
        assert!(
            matches!(refused, Err(Error::PermissionDenied { .. })),
            "{refused:?}"
        );
        assert_eq!(figures(), (0, 1), "immediately");
        drop(dropped);
        assert_eq!(figures(), (1, 1));
        tokio::time::sleep(ms(10)).await;
        assert_eq!(figures(), (0, 2), "after one answer");
        fixture.world.deny(0, "evalsha", false);
    });
}

/// The second unlock joins while the first is refused for good (seed 432): it was told that there is no runtime.
#[test]
fn an_unlock_that_joins_a_release_that_is_given_up_has_its_error() {
    play(true, async |fixture| {
        let lock_of = fixture.task(0);
        let outer = lock_of.lock().await.expect("free");
        let inner = lock_of.lock().await.expect("re-entered");
        fixture.world.deny(0, "evalsha", true);
        fixture.world.hold_answers(0, true);
        let first = begin(inner.unlock()).await;
        tokio::time::sleep(ms(5)).await;
        let second = begin(outer.unlock()).await;
        fixture.world.hold_answers(0, false);
        for unlock in [first, second] {
            let refused = unlock.await.expect("no panic");
            assert!(
                matches!(refused, Err(Error::PermissionDenied { .. })),
                "{refused:?}"
            );
        }
        let stats = fixture.client.stats();
        assert_eq!((stats.releasing, stats.given_up_total), (0, 1));
        fixture.world.deny(0, "evalsha", false);
    });
}

/// The process stands still until the lease is over (seed 35,467): the first attempt has no answer, and the second
/// unlock, which had joined, was told that there is no runtime.
#[test]
fn an_unlock_that_joins_a_release_is_sent_although_the_lease_is_over() {
    play(true, async |fixture| {
        let lock_of = fixture.task(0).lease(ms(200));
        let outer = lock_of.lock().await.expect("free");
        let inner = lock_of.lock().await.expect("re-entered");
        fixture.world.down_for(ms(1_100));
        let first = begin(inner.unlock()).await;
        let second = begin(outer.unlock()).await;
        let first = first.await.expect("no panic");
        assert!(matches!(first, Err(Error::NoAnswer { .. })), "{first:?}");
        let second = second.await.expect("no panic");
        assert!(matches!(second, Err(Error::Lost { .. })), "{second:?}");
        fixture.rest().await;
        assert_eq!(fixture.client.stats().releasing, 0);
    });
}

/// It joins a release of a dropped guard, and the process stands still until the lease is over: it was given up with what
/// the guard had left, without an attempt for the unlock.
#[test]
fn an_unlock_that_joins_a_failed_release_is_sent_although_the_lease_is_over() {
    play(true, async |fixture| {
        let lock_of = fixture.task(0).lease(ms(200));
        let outer = lock_of.lock().await.expect("free");
        let inner = lock_of.lock().await.expect("re-entered");
        let lose_an_attempt = || {
            fixture.world.cut(0, true);
            fixture.world.hold_answers(0, false);
        };
        fixture.world.hold_answers(0, true);
        drop(inner);
        tokio::time::sleep(ms(5)).await;
        lose_an_attempt();
        // There is another connection, and soon another attempt.
        tokio::time::sleep(ms(15)).await;
        fixture.world.hold_answers(0, true);
        tokio::time::sleep(ms(15)).await;
        let unlock = begin(outer.unlock()).await;
        tokio::time::advance(ms(400)).await;
        lose_an_attempt();
        let unlock = unlock.await.expect("no panic");
        assert!(matches!(unlock, Err(Error::Lost { .. })), "{unlock:?}");
        fixture.rest().await;
        assert_eq!(fixture.client.stats().releasing, 0);
    });
}

/// The first send of a release is answered late, with "unknown script", and the next one not at all (seed 73,002,295): that one
/// had another command timeout, and the unlock a third.
#[test]
fn an_unlock_that_joins_a_release_fails_after_two_command_timeouts() {
    play(true, async |fixture| {
        let lock_of = fixture.task(0);
        let outer = lock_of.lock().await.expect("free");
        let inner = lock_of.lock().await.expect("re-entered");
        fixture.world.hold_answers(0, true);
        fixture.world.flush_scripts();
        drop(inner);
        tokio::time::sleep(ms(5)).await;
        let began = Instant::now();
        let unlock = begin(outer.unlock()).await;
        tokio::time::sleep(ms(900)).await;
        fixture.world.hold_scripts(0, true);
        fixture.world.hold_answers(0, false);
        let unlock = unlock.await.expect("no panic");
        assert!(matches!(unlock, Err(Error::NoAnswer { .. })), "{unlock:?}");
        assert!(began.elapsed() < ms(2_100), "{:?}", began.elapsed());
        fixture.world.hold_scripts(0, false);
        fixture.rest().await;
        assert_eq!(fixture.client.stats().releasing, 0);
    });
}

#[test]
fn extending_reaches_the_limit_of_a_hold_and_not_past_it() {
    play(true, async |fixture| {
        // The margin is a hundredth and 2 ms: the end of 500 ms from 99 ms on is that of 600 ms
        // from 0 on.
        let start = Instant::now();
        let guard = fixture
            .task(0)
            .max_hold(ms(600))
            .lease(ms(300))
            .lock()
            .await
            .expect("free");
        tokio::time::sleep_until(start + ms(99)).await;
        let too_long = guard.extend(ms(501)).await;
        assert!(
            matches!(too_long, Err(Error::InvalidDuration { .. })),
            "{too_long:?}"
        );
        assert_eq!(Instant::now(), start + ms(99), "nothing was sent");
        guard.extend(ms(500)).await.expect("as long as it may be");
        guard.unlock().await.expect("held");
    });
}

/// The limit is by the clock of the server that named the holder: another server's may be hours ahead.
#[test]
fn a_force_unlock_that_is_redirected_asks_the_new_server_first() {
    runtime().block_on(async {
        let world = World::cluster(1, FAR);
        world.spawn();
        let plan = ClientPlan::simple(true);
        let client = connect(&world, 0, ms(30_000), ms(1_000), &plan).await;
        java_locks(&world);
        let lock = client.lock(KEY);
        assert_eq!(lock.is_locked().await.ok(), Some(true), "connected");
        let forcing = tokio::spawn(async move { lock.force_unlock().await });
        // The answer to its look is on its way.
        tokio::time::sleep(ms(30)).await;
        let gossip = Gossip {
            within: ms(0),
            new_epoch: true,
        };
        let moves = (0..NODES).find(|node| world.begin_to_move(KEY, *node));
        assert!(moves.is_some(), "another server may take the slot");
        world.end_move(KEY, gossip);
        let forced = forcing.await.expect("no panic");
        assert_eq!(forced.map_err(|error| error.to_string()), Ok(true));
        assert!(!is_locked(&world));
    });
}

fn java_locks(world: &World) {
    world.with_home(KEY, |keyspace| {
        for words in [
            ["hincrby", KEY, JAVA, "1"].as_slice(),
            &["pexpire", KEY, "30000"],
        ] {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            keyspace.call(&words).expect("allowed");
        }
    });
}

fn is_locked(world: &World) -> bool {
    world.with_home(KEY, |keyspace| keyspace.holder(KEY).is_some())
}

/// Every way takes 20 ms.
const FAR: Latency = Latency {
    least: 20,
    usual: 20,
    seldom: 20,
    seldom_percent: 0,
};
