//! Clients without some of their rights. That a real server answers the same is compared in the
//! simulator's tests.

use redisson_lock::{Error, LockClient};

use crate::{everywhere, ms, quick};

#[track_caller]
fn assert_lacks<T: std::fmt::Debug>(result: Result<T, Error>, expected: &str) {
    match result {
        Err(Error::PermissionDenied { permission, .. }) if permission.starts_with(expected) => {}
        other => panic!("not without {expected}: {other:?}"),
    }
}

/// How the missing right to a channel begins.
const CHANNEL: &str = "&redisson_lock__channel:";

/// Waits for a lock that another client holds, until the end of the lease.
async fn wait(client: &LockClient, name: &str) -> Result<(), Error> {
    client.lock(name).try_lock_for(ms(300)).await.map(drop)
}

#[test]
fn a_lock_that_cannot_be_announced_stays_until_it_can() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let lock = client.lock("a");
        let guard = lock.lock().await.unwrap();
        fake.acl("-publish");
        assert_lacks(guard.unlock().await, "+publish");
        assert!(fake.holder("a").is_some());
        assert_lacks(lock.force_unlock().await, "+publish");

        fake.acl("+publish");
        assert!(lock.force_unlock().await.unwrap());
        assert!(fake.holder("a").is_none());
    });
}

#[test]
fn single_channels_are_refused_and_granted() {
    everywhere(|fake| async move {
        let holder = quick(&fake).await;
        let guards = [
            holder.lock("a").lock().await.unwrap(),
            holder.lock("b").lock().await.unwrap(),
        ];
        fake.acl("resetchannels &redisson_lock__channel:{b}");
        let client = quick(&fake).await;
        assert_lacks(wait(&client, "a").await, CHANNEL);
        wait(&client, "b").await.unwrap();

        let [a, b] = guards;
        b.unlock().await.unwrap();
        assert_lacks(a.unlock().await, CHANNEL);
        fake.acl("&redisson_lock__channel:*");
        wait(&client, "a").await.unwrap();
    });
}

#[test]
fn a_channel_that_is_taken_away_ends_its_subscription() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let _other = fake.taken_by_another("a");
        let lock = client.lock("a");
        let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
        while client.stats().subscriptions == 0 {
            tokio::time::sleep(ms(1)).await;
        }
        fake.acl("resetchannels");
        assert_lacks(waiting.await.unwrap(), CHANNEL);
    });
}

#[test]
fn another_holder_has_rights_of_its_own() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        fake.acl("-@all");
        let other = fake.taken_by_another("a");
        other.release();
        assert!(fake.holder("a").is_none());
        assert_lacks(client.lock("a").try_lock().await, "+evalsha");
    });
}

#[test]
fn what_is_missing_is_named_by_a_check() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        assert!(client.check("a").await.unwrap().is_empty());
        fake.acl("-hdel -publish");
        assert_eq!(client.check("a").await.unwrap(), ["+hdel", "+publish"]);
    });
}

#[test]
#[should_panic(expected = "does not know the rule ~stock:*")]
fn an_unknown_rule_is_a_mistake_of_the_test() {
    redisson_lock_test::FakeRedis::start().acl("-publish ~stock:*");
}
