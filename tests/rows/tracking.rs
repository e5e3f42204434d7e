//! Locks that somebody else takes away, on one server and in a cluster.

use std::time::Duration;

use redisson_lock::{LockGuard, LockKind, LossReason};
use test_support::kinds::{KINDS, NESTED, against, count, delete, rob};
use test_support::{Control, eventually, lock_and_unlock, ms, tokio, within};

use super::TestServer;

/// The first renewal is further away.
pub(super) const SOON: Duration = ms(3_000);

pub(super) async fn lost<T>(guard: &LockGuard<T>, what: &str) -> LossReason {
    let reason = within(SOON, guard.lost()).await;
    reason.unwrap_or_else(|| panic!("not noticed: {what}"))
}

/// In the slot of the key that the control's server has in a cluster.
fn name(of: &str) -> String {
    format!("{{a}}:{of}")
}

/// Changes the type of what stands there.
fn replace(control: &mut Control, kind: LockKind, key: &str) {
    control.run(&["DEL", key]);
    match kind {
        LockKind::String => control.run(&["HSET", key, "a", "1"]),
        _ => control.run(&["SET", key, "a"]),
    };
    control.run(&["PEXPIRE", key, "30000"]);
}

fn expire(control: &mut Control, _: LockKind, key: &str) {
    control.run(&["PEXPIRE", key, "1"]);
}

fn deleted(control: &mut Control, _: LockKind, key: &str) {
    delete(control, key);
}

type Change = fn(&mut Control, LockKind, &str);

const CHANGES: [(&str, Change); 4] = [
    ("deleted", deleted),
    ("expired", expire),
    ("taken over", rob),
    ("replaced", replace),
];

#[tokio::test]
async fn whatever_takes_a_lock_away_is_noticed_before_the_next_renewal() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in KINDS {
        for (what, change) in CHANGES {
            let lock = client.lock_of(kind, name(&format!("{what}-{kind}").replace(' ', "-")));
            let guard = lock.lock().await.expect("free");
            change(&mut control, kind, lock.name());
            lost(&guard, &format!("{what} {kind}")).await;
            drop(guard);
            delete(&mut control, lock.name());
        }
        let lock = client.lock_of(kind, name(&format!("forced-{kind}")));
        let guard = lock.lock().await.expect("free");
        let other = server.client().await;
        let theirs = other.lock_of(kind, lock.name());
        assert!(theirs.force_unlock().await.expect("answered"));
        assert_eq!(
            lost(&guard, &format!("forced {kind}")).await,
            LossReason::Gone
        );
        drop((guard, theirs));
        other.close(SOON).await;
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn it_is_noticed_after_every_command_that_has_written() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in NESTED {
        let lock = client.lock_of(kind, name(&format!("nested-{kind}")));
        let outer = lock.lock().await.expect("free");
        let inner = lock.lock().await.expect("nested");
        delete(&mut control, lock.name());
        lost(&inner, &format!("after a nested acquire {kind}")).await;
        drop((outer, inner));
        let outer = lock.lock().await.expect("free");
        lock_and_unlock(&lock).await;
        assert_eq!(count(&mut control, lock.name()), 1);
        delete(&mut control, lock.name());
        lost(&outer, &format!("after a nested release {kind}")).await;
    }
    for kind in KINDS {
        let lock = client.lock_of(kind, name(&format!("extended-{kind}")));
        let guard = lock.lease(ms(20_000)).lock().await.expect("free");
        guard.extend(ms(50_000)).await.expect("held");
        delete(&mut control, lock.name());
        lost(&guard, &format!("after extend {kind}")).await;
    }
    for kind in KINDS {
        let lock = client.lock_of(kind, name(&format!("passed-{kind}")));
        let guard = lock.lock().await.expect("free");
        let next = client.lock_of(against(kind), lock.name());
        let next = tokio::spawn(async move { next.lock().await });
        eventually("it waits", SOON, || client.stats().waiting == 1).await;
        guard.unlock().await.expect("held");
        let next = next.await.expect("no panic").expect("its turn");
        delete(&mut control, lock.name());
        lost(
            &next,
            &format!("after the lock came from another caller {kind}"),
        )
        .await;
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn it_is_noticed_after_a_renewal() {
    let server = TestServer::new();
    // The next renewal comes too late to be what notices it.
    let brisk = |builder: redisson_lock::LockClientBuilder| builder.watchdog_timeout(ms(18_000));
    let client = server.client_with(brisk).await;
    let mut control = server.control();
    let mut guards = Vec::new();
    for kind in KINDS {
        let lock = client.lock_of(kind, name(&format!("renewed-{kind}")));
        guards.push((lock.name().to_owned(), lock.lock().await.expect("free")));
    }
    eventually("all are renewed", ms(12_000), || {
        client.stats().renewed_total >= KINDS.len() as u64
    })
    .await;
    for (name, guard) in guards {
        delete(&mut control, &name);
        let reason = within(ms(1_500), guard.lost()).await;
        reason.unwrap_or_else(|| panic!("not noticed: {name}"));
    }
    server.finish([client]).await;
}
