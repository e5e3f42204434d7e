//! Locks that replicas are to have.

use redisson_lock::Error;
use tokio::time::Instant;

use crate::{everywhere, free, ms, quick};

#[test]
fn a_server_without_replicas_refuses_a_lock_that_one_is_to_have() {
    everywhere(|fake| async move {
        let lock = quick(&fake).await.lock("a");
        let start = Instant::now();
        let refused = lock.sync_replicas(1, ms(100)).try_lock().await;
        let acknowledged = match refused {
            Err(Error::TooFewReplicas { acknowledged, .. }) => acknowledged,
            other => panic!("{other:?}"),
        };
        assert_eq!(acknowledged, 0);
        assert!(start.elapsed() >= ms(100), "{:?}", start.elapsed());
        assert!(fake.holder("a").is_none(), "it is released again");
    });
}

#[test]
fn replicas_have_a_lock_that_is_taken() {
    everywhere(|fake| async move {
        fake.set_replicas(2);
        let client = quick(&fake).await;
        let lock = client.lock("a");
        let guard = lock.sync_replicas(2, ms(100)).lock().await.unwrap();
        guard.unlock().await.unwrap();

        let refused = lock.sync_replicas(3, ms(100)).lock().await;
        let Err(Error::TooFewReplicas { acknowledged, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(acknowledged, 2);

        // A replica that is lost is missed by the next lock.
        fake.set_replicas(1);
        let refused = lock.sync_replicas(2, ms(100)).lock().await;
        assert!(refused.is_err(), "{refused:?}");
        free(&fake, "a").await;
    });
}

#[test]
fn without_the_right_to_wait_no_replica_counts() {
    everywhere(|fake| async move {
        fake.set_replicas(2);
        fake.acl("-wait");
        let lock = quick(&fake).await.lock("a");
        let refused = lock.sync_replicas(1, ms(100)).try_lock().await;
        let Err(Error::TooFewReplicas { acknowledged, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(acknowledged, 0);
    });
}
