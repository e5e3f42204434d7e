//! Locks without a server.

use redisson_lock::{DistributedLock, Error};
use redisson_lock_test::FakeLock;
use test_support::tokio;

#[tokio::test]
async fn a_double_without_a_connection_fails_as_a_lock_does() {
    let fake = FakeLock::new("a");
    let guard = fake.lock().await.expect("free");
    fake.disconnect();
    let failed = fake.lock().await.expect_err("disconnected");
    assert!(matches!(failed, Error::NoAnswer { .. }), "{failed:?}");
    assert!(failed.is_retryable() && failed.to_string().contains("lock `a`"));
    assert!(fake.is_held(), "open guards keep their hold");
    fake.recover();
    drop(guard);
    assert!(fake.try_lock().await.expect("connected").is_some());
}

#[cfg(feature = "blocking")]
mod on_threads {
    use std::thread;

    use redisson_lock::blocking::{DistributedLock, HeldLock};
    use redisson_lock::{HoldState, LossReason};
    use redisson_lock_test::FakeLock;
    use test_support::test;

    use crate::ms;

    fn taken<L: DistributedLock>(lock: &L) -> L::Guard {
        lock.lock().expect("free")
    }

    #[test]
    fn a_thread_waits_for_a_double_until_it_is_free() {
        let fake = FakeLock::new("a");
        assert_eq!(DistributedLock::name(&fake), "a");
        let guard = taken(&fake);
        let busy = DistributedLock::try_lock_for(&fake, ms(20));
        assert!(busy.expect("connected").is_none());
        let other = fake;
        let waiter = thread::spawn(move || taken(&other).unlock());
        guard.unlock().expect("held");
        waiter.join().expect("no panic").expect("held");
    }

    #[test]
    fn a_thread_is_told_of_a_loss() {
        let fake = FakeLock::new("a");
        let guard = taken(&fake);
        assert_eq!(guard.lost_within(ms(20)).expect("no error"), None);
        fake.take();
        let lost = guard.lost_within(ms(5_000)).expect("no error");
        assert_eq!(lost, Some(LossReason::Taken));
        assert_eq!(guard.state(), HoldState::Lost(LossReason::Taken));
        guard.unlock().expect_err("lost");
    }
}
