//! Cases of Redisson's own suite for the plain lock.

use std::time::Instant;

use crate::fixture::{Fixture, between, eventually};
use crate::worker::Fail;
use test_support::ms;

/// A partial unlock leaves the lease (in Redisson it is set to the last lease given).
pub async fn lk05(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let start = Instant::now();
    for _ in 0..3 {
        first
            .lock(name, Some(ms(10_000)))
            .await
            .expect("free, or held by itself");
    }
    first.unlock(name).await.expect("held");
    first.unlock(name).await.expect("held");
    let left = second.lease_left(name).await.expect("held");
    between("what is left", left, 9_000 - since(start), 10_000);
    first.unlock(name).await.expect("held");
}

pub async fn lk08(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, None).await.expect("free");
    second.force_unlock(name).await.expect("answered");
    assert!(!first.is_locked(name).await && !second.is_locked(name).await);
    first.unlock_too_late(name).await;
}

/// Of Redisson 3.6: a lock that is deleted was there, or was not. `forceUnlock` says the same.
pub async fn delete(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let says = |forced: Result<Option<bool>, Fail>, was_held: bool| {
        assert!(
            forced
                .expect("answered")
                .is_none_or(|said| said == was_held)
        );
    };
    says(second.force_unlock(name).await, false);
    first.lock(name, None).await.expect("free");
    says(second.force_unlock(name).await, true);
    says(second.force_unlock(name).await, false);
    assert!(!first.is_locked(name).await);
}

pub async fn lk10(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let start = Instant::now();
    first.lock(name, Some(ms(3_600_000))).await.expect("free");
    let left = second.lease_left(name).await.expect("held");
    between("an hour", left, 3_599_000 - since(start), 3_600_000);
    first.unlock(name).await.expect("held");
    assert_eq!(second.lease_left(name).await, None);
    let start = Instant::now();
    first.lock(name, None).await.expect("free");
    let left = second.lease_left(name).await.expect("held");
    between("the watchdog timeout", left, 29_000 - since(start), 30_000);
    first.unlock(name).await.expect("held");
}

/// Milliseconds: what a lease has run down meanwhile.
fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).expect("a short test")
}

pub async fn lk13(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    assert_eq!(first.hold_count(name).await, 0);
    for count in 1..=2 {
        first
            .lock(name, None)
            .await
            .expect("free, or held by itself");
        assert_eq!(
            (first.hold_count(name).await, second.hold_count(name).await),
            (count, 0)
        );
    }
    for count in (0..2).rev() {
        first.unlock(name).await.expect("held");
        assert_eq!(first.hold_count(name).await, count);
    }
}

pub async fn lk14(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let neighbour = fixture.first.worker();
    first.lock(name, None).await.expect("free");
    assert!(!second.is_held(name).await && !neighbour.is_held(name).await);
    first.unlock(name).await.expect("held");
    assert!(!second.is_held(name).await && !neighbour.is_held(name).await);
}

pub async fn lk15(fixture: Fixture) {
    let (first, name) = (fixture.first.worker(), &fixture.name);
    assert!(!first.is_held(name).await);
    first.lock(name, None).await.expect("free");
    assert!(first.is_held(name).await);
    first.unlock(name).await.expect("held");
    assert!(!first.is_held(name).await);
}

pub async fn lk16(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    first.lock(name, None).await.expect("free");
    assert!(second.is_locked(name).await);
    first.unlock(name).await.expect("held");
    assert!(!second.is_locked(name).await);
}

pub async fn lk18(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    assert!(!first.is_locked(name).await);
    first.lock(name, None).await.expect("free");
    assert!(first.is_locked(name).await && second.is_locked(name).await);
    first.unlock(name).await.expect("held");
    assert!(!first.is_locked(name).await);
}

pub async fn lk19(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    let neighbour = fixture.first.worker();
    first.lock(name, None).await.expect("free");
    assert_eq!(second.unlock(name).await, Err(Fail::NotHeld));
    assert_eq!(
        neighbour.unlock(name).await,
        Err(Fail::NotHeld),
        "another worker of the same client"
    );
    assert!(first.is_held(name).await);
    first.unlock(name).await.expect("held");
}

pub async fn lk20(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    for worker in [&first, &second, &first, &second] {
        worker.lock(name, None).await.expect("free");
        worker.unlock(name).await.expect("held");
    }
    eventually("nothing is left", || {
        fixture.control().hash(name).is_empty()
    })
    .await;
}

pub async fn lk21(fixture: Fixture) {
    let (first, second, name) = &fixture.workers();
    assert_eq!(first.try_lock(name, None, None).await, Ok(true));
    assert_eq!(first.try_lock(name, None, None).await, Ok(true));
    first.unlock(name).await.expect("held");
    assert_eq!(
        second.try_lock(name, None, None).await,
        Ok(false),
        "once is left"
    );
    first.unlock(name).await.expect("held");
    assert_eq!(second.try_lock(name, None, None).await, Ok(true));
    second.unlock(name).await.expect("held");
}
