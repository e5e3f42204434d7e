//! A lock in the hands of another client.

use redisson_lock::LossReason;
use redisson_lock_test::FakeRedis;
use test_support::tokio;
use tokio::time::Instant;

use crate::{everywhere, ms, quick};

#[test]
fn it_is_shown_as_a_jvm() {
    let fake = FakeRedis::start();
    let other = fake.taken_by_another("a");
    let holder = fake.holder("a").unwrap();
    assert_eq!(holder.owner, other.field());
    let id = holder.owner.strip_suffix(":1").unwrap();
    let groups: Vec<usize> = id.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
    assert_eq!(holder.hold_count, 1);
    assert!(holder.lease_left > Some(ms(29_000)) && holder.lease_left <= Some(ms(30_000)));
    assert!(fake.taken_by_another("b").field() != other.field());
    assert!(format!("{other:?}").contains(id));
}

#[test]
fn it_excludes_clients_until_it_releases_and_then_wakes_them() {
    everywhere(|fake| async move {
        let client = fake.client().await;
        let other = fake.taken_by_another("a");
        assert!(client.lock("a").try_lock().await.unwrap().is_none());
        let lock = client.lock("a");
        let waiting = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(ms(300)).await;
        assert!(!waiting.is_finished());

        let start = Instant::now();
        assert!(other.release());
        let guard = waiting.await.unwrap().unwrap();
        // Without a message it would take until the end of the lease.
        assert!(start.elapsed() < ms(10_000), "{:?}", start.elapsed());
        guard.unlock().await.unwrap();
    });
}

#[test]
fn the_former_holder_is_told() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let guard = client.lock("a").lock().await.unwrap();
        let other = fake.taken_by_another("a");
        assert_eq!(guard.lost().await, LossReason::Taken);
        drop(guard);
        tokio::time::sleep(ms(50)).await;
        assert_eq!(fake.holder("a").unwrap().owner, other.field(), "still its");
        assert!(other.release());
    });
}

#[test]
fn it_does_not_release_what_it_has_lost() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        for lose in [FakeRedis::wipe as fn(&FakeRedis), |fake| {
            _ = fake.expire("a")
        }] {
            let other = fake.taken_by_another("a");
            lose(&fake);
            let guard = client.lock("a").lock().await.unwrap();
            assert!(!other.release());
            assert_eq!(fake.holder("a").unwrap().owner, guard.owner().to_string());
            guard.unlock().await.unwrap();
        }
        let first = fake.taken_by_another("a");
        let second = fake.taken_by_another("a");
        assert!(!first.release());
        assert_eq!(fake.holder("a").unwrap().owner, second.field());
        assert!(second.release());
    });
}

#[tokio::test(start_paused = true)]
async fn it_renews_its_lease_as_long_as_it_lives() {
    let fake = FakeRedis::start();
    let client = fake.client().await;
    let other = fake.taken_by_another("a");
    for _ in 0..200 {
        tokio::time::sleep(ms(7_777)).await;
        let left = fake.holder("a").unwrap().lease_left.unwrap();
        assert!(left > ms(20_000) && left <= ms(30_000), "{left:?}");
    }
    // Also when nobody looked for an hour.
    tokio::time::sleep(ms(3_600_000)).await;
    assert!(
        client
            .lock("a")
            .try_lock_for(ms(100_000))
            .await
            .unwrap()
            .is_none()
    );

    drop(other);
    let left = fake.holder("a").unwrap().lease_left.unwrap();
    assert!(left > ms(20_000), "{left:?}");
    let start = Instant::now();
    let guard = client.lock("a").try_lock_for(ms(60_000)).await.unwrap();
    let took = start.elapsed();
    assert!(
        took >= left && took < left + ms(100),
        "{took:?} of {left:?}"
    );
    guard.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_cannot_renew_while_the_server_is_paused() {
    let fake = FakeRedis::start();
    let short = fake.taken_by_another("a");
    fake.pause();
    tokio::time::sleep(ms(15_000)).await;
    fake.resume();
    tokio::time::sleep(ms(60_000)).await;
    assert!(short.release(), "the pause was shorter than its lease");

    let long = fake.taken_by_another("a");
    fake.pause();
    tokio::time::sleep(ms(31_000)).await;
    assert!(fake.holder("a").is_none());
    fake.resume();
    assert!(!long.release());
}

#[tokio::test(start_paused = true)]
async fn its_message_waits_for_the_end_of_a_pause() {
    let fake = FakeRedis::start();
    let client = fake.client().await;
    let other = fake.taken_by_another("a");
    let lock = client.lock("a");
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(1_000)).await;
    fake.pause();
    assert!(other.release());
    tokio::time::sleep(ms(1_000)).await;
    assert!(!waiting.is_finished());
    fake.resume();
    let start = Instant::now();
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    assert!(start.elapsed() < ms(50), "{:?}", start.elapsed());
}

/// Of every kind: it excludes, renews its lease, tells a holder of its loss, and is found to be gone when it releases.
#[tokio::test(start_paused = true)]
async fn it_holds_a_lock_of_any_kind() {
    let fake = FakeRedis::start();
    let client = quick(&fake).await;
    for kind in test_support::kinds::KINDS {
        let name = kind.to_string();
        let lock = client.lock_of(kind, name.clone());
        let guard = lock.lock().await.unwrap();
        let other = fake.taken_by_another_of(kind, &name);
        assert_eq!(guard.lost().await, LossReason::Taken, "{kind}");
        drop(guard);
        let lock = client.lock_of(test_support::kinds::against(kind), name.clone());
        tokio::time::sleep(ms(3_600_000)).await;
        assert_eq!(fake.holder(&name).unwrap().owner, other.field(), "{kind}");
        assert!(lock.try_lock().await.unwrap().is_none(), "{kind}");
        let waiting = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(ms(300)).await;
        assert!(!waiting.is_finished(), "{kind}");
        let start = Instant::now();
        assert!(other.release(), "{kind}");
        let guard = waiting.await.unwrap().unwrap();
        assert!(start.elapsed() < ms(1_000), "{kind}: {:?}", start.elapsed());
        let lost = fake.taken_by_another_of(kind, &name);
        fake.wipe();
        assert!(!lost.release(), "{kind}");
        drop(guard);
    }
}

#[test]
#[should_panic(expected = "a lock name must not be empty")]
fn a_name_that_is_none_is_refused() {
    let _other = FakeRedis::start().taken_by_another("");
}
