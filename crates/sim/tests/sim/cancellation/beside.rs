//! The same while another operation of the same owner is under way, and of a client that holds.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock::test_util;
use redisson_lock::{Error, LockGuard};
use sim::workload::{Until, limited, ms, runtime};

use super::{Fault, Fixture, pause};

cases![
    Lock,
    LockFixed,
    TryLock,
    TryLockFor,
    TryLockUntil,
    Run,
    Scope,
    Unlock,
    UnlockDetached,
    ForceUnlock,
    IsLocked,
    IsHeld,
    HoldCount,
    LeaseLeft,
    Inspect,
    Extend,
    Lost,
    Ended,
    Close,
];

use Case::*;

/// What is under way for the same owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    NestedLock,
    Unlock,
    /// A guard was dropped.
    BackgroundRelease,
}

/// Whether the future became ready, and the guards that are open then.
async fn act(
    fixture: &Fixture,
    case: Case,
    beside: Beside,
    cut_after: Option<u64>,
    polls: u32,
) -> (bool, Vec<LockGuard>) {
    let lock = fixture.lock();
    let outer = lock.lock().await.expect("free");
    // After closing with open guards the lease is waited out.
    let lease = ms(if case == Close { 3_500 } else { 60_000 });
    let mine = lock.lease(lease).lock().await.expect("nested");
    let other = lock.lock().await.expect("nested");
    let mut guards = vec![outer];
    // What the future needs is there before the other operation begins.
    let mine = if case == UnlockDetached {
        mine.detach();
        None
    } else {
        Some(mine)
    };
    let beside = match beside {
        Beside::NestedLock => {
            guards.push(other);
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await.ok() })
        }
        Beside::Unlock => tokio::spawn(async move {
            let _ = other.unlock().await;
            None
        }),
        Beside::BackgroundRelease => {
            drop(other);
            tokio::spawn(async { None })
        }
    };
    if let Some(after) = cut_after {
        let world = Arc::clone(&fixture.world);
        tokio::spawn(async move {
            tokio::time::sleep(ms(after)).await;
            world.cut(0, true);
        });
    }
    // It is sent, and not answered yet.
    tokio::time::sleep(ms(1)).await;
    let ready = Box::pin(poll(fixture, case, Until::Polls(polls), mine, &mut guards)).await;
    if case == UnlockDetached && polls == 0 {
        // Dropped before it was polled, it has done nothing.
        let rest = lock.unlock().await;
        assert!(
            matches!(rest, Ok(()) | Err(Error::NoAnswer { .. })),
            "{rest:?}"
        );
    }
    guards.extend(beside.await.expect("no panic"));
    (ready, guards)
}

/// Polls the future itself. `mine` is the hold that it is about.
async fn poll(
    fixture: &Fixture,
    case: Case,
    until: Until,
    mine: Option<LockGuard>,
    guards: &mut Vec<LockGuard>,
) -> bool {
    let lock = fixture.lock();
    let mut kept = |done: Option<Result<Option<LockGuard>, Error>>| {
        let ready = done.is_some();
        guards.extend(done.and_then(Result::ok).flatten());
        ready
    };
    if case == Unlock {
        let mine = mine.expect("it is about a guard");
        return limited(until, mine.unlock()).await.is_some();
    }
    let ready = match case {
        Lock => kept(limited(until, lock.lock()).await.map(|done| done.map(Some))),
        LockFixed => {
            let lock = lock.lease(ms(60_000));
            kept(limited(until, lock.lock()).await.map(|done| done.map(Some)))
        }
        TryLock => kept(limited(until, lock.try_lock()).await),
        TryLockFor => kept(limited(until, lock.try_lock_for(ms(50))).await),
        TryLockUntil => {
            let deadline = tokio::time::Instant::now().into_std() + ms(50);
            kept(limited(until, lock.try_lock_until(deadline)).await)
        }
        Scope => {
            let (owner, lock) = (fixture.ours.owner_with_id(-1), fixture.ours.lock("stock"));
            let scoped = owner.scope(async { Box::pin(lock.lock()).await });
            kept(limited(until, scoped).await.map(|done| done.map(Some)))
        }
        Run => limited(until, lock.run(|_| pause())).await.is_some(),
        UnlockDetached => limited(until, lock.unlock()).await.is_some(),
        ForceUnlock => limited(until, lock.force_unlock()).await.is_some(),
        IsLocked => limited(until, lock.is_locked()).await.is_some(),
        IsHeld => limited(until, lock.is_held()).await.is_some(),
        HoldCount => limited(until, lock.hold_count()).await.is_some(),
        LeaseLeft => limited(until, lock.lease_left()).await.is_some(),
        Inspect => limited(until, lock.inspect()).await.is_some(),
        Close => limited(until, fixture.ours.close(ms(30))).await.is_some(),
        Extend | Lost | Ended | Unlock => {
            let mine = mine.as_ref().expect("it is about a guard");
            match case {
                Extend => limited(until, mine.extend(ms(90_000))).await.is_some(),
                Lost => limited(until, mine.lost()).await.is_some(),
                _ => limited(until, mine.ended()).await.is_some(),
            }
        }
    };
    guards.extend(mine);
    ready
}

async fn drop_it(case: Case, beside: Beside, cut_after: Option<u64>, polls: u32) -> bool {
    let fixture = Fixture::new(redisson_lock::LockKind::Plain, Fault::None).await;
    let (ready, mut guards) = Box::pin(act(&fixture, case, beside, cut_after, polls)).await;
    if case == ForceUnlock {
        // It may have been forced: then the next renewal says so, a third of the watchdog timeout
        // later.
        tokio::time::sleep(ms(1_600)).await;
        guards.retain(|guard| !test_util::has_ended(guard));
    }
    fixture.nothing_is_left(guards).await;
    ready
}

#[test]
fn every_future_may_be_dropped_beside_another_operation_of_its_owner() {
    let (mut drops, mut failed) = (0, Vec::new());
    for &case in ALL {
        // These two are not ready before the hold ends, and one poll is like another.
        let most = if matches!(case, Lost | Ended) { 4 } else { 64 };
        for beside in [
            Beside::NestedLock,
            Beside::Unlock,
            Beside::BackgroundRelease,
        ] {
            for cut_after in [None, Some(1), Some(3), Some(5)] {
                for polls in 0..=most {
                    let what =
                        format!("{case:?} beside {beside:?}, cut {cut_after:?}, {polls} polls");
                    let dropped = || {
                        runtime().block_on(async {
                            let dropped = drop_it(case, beside, cut_after, polls);
                            tokio::time::timeout(Duration::from_secs(600), dropped).await
                        })
                    };
                    // The panic has said what, and this says where.
                    match std::panic::catch_unwind(dropped) {
                        Ok(Ok(true)) => break,
                        Ok(Ok(false)) => {}
                        Ok(Err(_)) => failed.push(format!("{what}: it waits for ever")),
                        Err(_) => failed.push(what),
                    }
                    drops += 1;
                }
            }
        }
    }
    println!(
        "{drops} drops of {} futures beside another operation",
        ALL.len()
    );
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(
        drops > 300,
        "only {drops} futures were dropped before they were ready"
    );
}
