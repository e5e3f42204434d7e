//! Every future of the public surface, polled k times and dropped, for every k: nothing stays
//! behind.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock::test_util;
use redisson_lock::{Error, Lock, LockClient, LockGuard, LockKind};
use redisson_lock_test::sim::Latency;
use sim::workload::{ClientPlan, Until, World, connect, limited, ms, runtime};
use test_support::kinds::{KINDS, against};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// An enum with the list of all its cases.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Case { $($case),* }

        const ALL: &[Case] = &[$(Case::$case),*];
    };
}

mod beside;

impl Case {
    /// Whether a guard is open while its future is pending.
    fn holds(self) -> bool {
        matches!(
            self,
            LockNested | UnlockNested | Extend | Lost | Ended | Close
        )
    }
}

/// What runs with a lock held.
async fn pause() -> Result<(), Error> {
    tokio::time::sleep(ms(3)).await;
    Ok(())
}

cases![
    Connect,
    Lock,
    LockContended,
    LockNested,
    LockFixed,
    TryLock,
    TryLockBusy,
    TryLockFor,
    TryLockForContended,
    TryLockUntil,
    Run,
    RunContended,
    Unlock,
    UnlockNested,
    UnlockDetached,
    ForceUnlock,
    IsLocked,
    IsHeld,
    HoldCount,
    LeaseLeft,
    Inspect,
    Extend,
    Scope,
    Lost,
    Ended,
    Close,
];

use Case::*;

/// What happens to the connection meanwhile.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// The command connection is cut after this many milliseconds.
    Cut(u64),
}

struct Fixture {
    kind: LockKind,
    world: Arc<World>,
    ours: LockClient,
    theirs: LockClient,
}

impl Fixture {
    async fn new(kind: LockKind, fault: Fault) -> Self {
        let world = World::new(
            7,
            Latency {
                least: 0,
                usual: 2,
                seldom: 2,
                seldom_percent: 0,
            },
        );
        world.spawn();
        let ours = connect(&world, 0, ms(3_000), ms(400), &ClientPlan::simple(true)).await;
        let theirs = connect(&world, 1, ms(3_000), ms(400), &ClientPlan::simple(true)).await;
        if let Fault::Cut(at) = fault {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                tokio::time::sleep(ms(at)).await;
                world.cut(0, true);
            });
        }
        Self {
            kind,
            world,
            ours,
            theirs,
        }
    }

    fn lock(&self) -> Lock {
        self.ours
            .lock_of(self.kind, "stock")
            .owned_by(&self.ours.owner_with_id(-1))
    }

    /// The lock of others, whose hold is in the way of this one.
    fn theirs(&self) -> Lock {
        self.theirs.lock_of(against(self.kind), "stock")
    }

    /// Somebody else holds the lock for a while.
    async fn contend(&self) {
        let guard = self.theirs().lock().await.expect("free");
        tokio::spawn(async move {
            tokio::time::sleep(ms(20)).await;
            // It may have been forced open meanwhile.
            let _ = guard.unlock().await;
        });
    }

    /// Whether the future became ready, and the guards that are open now. Futures that take the
    /// lock are here.
    async fn act(&self, case: Case, until: Until) -> (bool, Vec<LockGuard>) {
        let lock = self.lock();
        let taken = |done: Option<Result<Option<LockGuard>, Error>>| match done {
            None => (false, Vec::new()),
            Some(done) => (true, done.ok().flatten().into_iter().collect()),
        };
        match case {
            Lock => taken(limited(until, lock.lock()).await.map(|done| done.map(Some))),
            LockContended => {
                self.contend().await;
                taken(limited(until, lock.lock()).await.map(|done| done.map(Some)))
            }
            LockNested => {
                let outer = lock.lock().await.ok();
                let (ready, mut guards) =
                    taken(limited(until, lock.lock()).await.map(|done| done.map(Some)));
                guards.extend(outer);
                (ready, guards)
            }
            LockFixed => {
                let lock = lock.lease(ms(60_000));
                taken(limited(until, lock.lock()).await.map(|done| done.map(Some)))
            }
            TryLock => taken(limited(until, lock.try_lock()).await),
            TryLockBusy => {
                self.contend().await;
                taken(limited(until, lock.try_lock()).await)
            }
            TryLockFor => taken(limited(until, lock.try_lock_for(ms(50))).await),
            TryLockForContended => {
                self.contend().await;
                taken(limited(until, lock.try_lock_for(ms(200))).await)
            }
            TryLockUntil => {
                let deadline = tokio::time::Instant::now().into_std() + ms(50);
                taken(limited(until, lock.try_lock_until(deadline)).await)
            }
            Run => (
                limited(until, lock.run(|_| pause())).await.is_some(),
                Vec::new(),
            ),
            RunContended => {
                self.contend().await;
                (
                    limited(until, lock.run(|_| pause())).await.is_some(),
                    Vec::new(),
                )
            }
            Scope => {
                let owner = self.ours.owner();
                let lock = self.ours.lock_of(self.kind, "stock");
                let scoped = owner.scope(async { Box::pin(lock.lock()).await });
                taken(limited(until, scoped).await.map(|done| done.map(Some)))
            }
            other => self.act_otherwise(other, until).await,
        }
    }

    /// The same for connecting and releasing.
    async fn act_otherwise(&self, case: Case, until: Until) -> (bool, Vec<LockGuard>) {
        let lock = self.lock();
        match case {
            Connect => {
                let open = LockClient::builder()
                    .command_timeout(ms(400))
                    .connect_over(self.world.access(2));
                let done = limited(until, open).await;
                if let Some(Ok(client)) = &done {
                    client.close(Duration::ZERO).await;
                }
                (done.is_some(), Vec::new())
            }
            Unlock => match lock.lock().await {
                Ok(guard) => (limited(until, guard.unlock()).await.is_some(), Vec::new()),
                Err(_) => (true, Vec::new()),
            },
            UnlockNested => match (lock.lock().await, lock.lock().await) {
                (Ok(outer), Ok(inner)) => {
                    (limited(until, inner.unlock()).await.is_some(), vec![outer])
                }
                (outer, inner) => (true, outer.into_iter().chain(inner).collect()),
            },
            UnlockDetached => {
                if let Ok(guard) = lock.lock().await {
                    guard.detach();
                }
                let ready = limited(until, lock.unlock()).await.is_some();
                // Dropped before it was polled, it has done nothing.
                let rest = lock.unlock().await;
                assert!(
                    matches!(
                        rest,
                        Ok(()) | Err(Error::NotHeld { .. } | Error::NoAnswer { .. })
                    ),
                    "{rest:?}"
                );
                (ready, Vec::new())
            }
            other => self.act_holding(other, until).await,
        }
    }

    /// The same for what is left: looking, extending, waiting for an end, closing.
    async fn act_holding(&self, case: Case, until: Until) -> (bool, Vec<LockGuard>) {
        let lock = self.lock();
        match case {
            ForceUnlock => {
                self.contend().await;
                (
                    limited(until, lock.force_unlock()).await.is_some(),
                    Vec::new(),
                )
            }
            IsLocked => (limited(until, lock.is_locked()).await.is_some(), Vec::new()),
            IsHeld => (limited(until, lock.is_held()).await.is_some(), Vec::new()),
            HoldCount => (
                limited(until, lock.hold_count()).await.is_some(),
                Vec::new(),
            ),
            LeaseLeft => (
                limited(until, lock.lease_left()).await.is_some(),
                Vec::new(),
            ),
            Inspect => (limited(until, lock.inspect()).await.is_some(), Vec::new()),
            Extend => match lock.lease(ms(5_000)).lock().await {
                Ok(guard) => (
                    limited(until, guard.extend(ms(60_000))).await.is_some(),
                    vec![guard],
                ),
                Err(_) => (true, Vec::new()),
            },
            Lost => match lock.lock().await {
                Ok(guard) => (limited(until, guard.lost()).await.is_some(), vec![guard]),
                Err(_) => (true, Vec::new()),
            },
            Ended => match lock.lock().await {
                Ok(guard) => (limited(until, guard.ended()).await.is_some(), vec![guard]),
                Err(_) => (true, Vec::new()),
            },
            Close => {
                let guard = lock.lock().await.ok();
                let ready = limited(until, self.ours.close(ms(30))).await.is_some();
                (ready, guard.into_iter().collect())
            }
            other => unreachable!("{other:?} takes the lock"),
        }
    }

    async fn rest(&self) {
        for _ in 0..400 {
            tokio::time::sleep(ms(20)).await;
            let releasing = self.ours.stats().releasing + self.theirs.stats().releasing;
            if releasing == 0 && !self.world.is_busy() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    async fn nothing_is_left(&self, guards: Vec<LockGuard>) {
        // Those of `contend` release after 20 ms.
        tokio::time::sleep(ms(30)).await;
        self.rest().await;
        let open = guards
            .iter()
            .filter(|guard| !test_util::has_ended(guard))
            .count();
        let count = self
            .world
            .with_keyspace(|keyspace| keyspace.holder("stock").map_or(0, |(_, count)| count));
        let closed = test_util::is_closed(&self.ours);
        assert!(
            closed || count == open as i64,
            "{open} guards are open, the server counts {count}"
        );
        for guard in guards {
            let unlocked = guard.unlock().await;
            assert!(unlocked.is_ok() || closed, "{unlocked:?}");
        }
        // After closing with an open guard its lease has to run out first.
        let time_limit = ms(if closed { 4_000 } else { 300 });
        let taken = self.theirs().try_lock_for(time_limit).await;
        taken
            .expect("connected")
            .expect("nobody holds it any more")
            .unlock()
            .await
            .expect("held");
        tokio::time::sleep(ms(1_200)).await;
        for client in [&self.ours, &self.theirs] {
            let stats = client.stats();
            let left = [
                stats.held,
                stats.waiting,
                stats.subscriptions,
                stats.renewals,
                stats.releasing,
            ];
            assert_eq!(
                left, [0; 5],
                "held, waiting, subscriptions, renewals, releasing"
            );
            assert_eq!(stats.entries, 0, "locks are remembered");
            client.close(Duration::ZERO).await;
        }
        tokio::time::sleep(ms(100)).await;
        assert_eq!(self.world.connections(), 0, "connections");
        let tasks = Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 1, "tasks besides the simulation itself");
    }
}

/// Runs in a world of its own, in which time passes by itself.
fn in_a_world<T>(what: &str, act: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(600);
    let acted = runtime().block_on(async { tokio::time::timeout(limit, Box::pin(act)).await });
    acted.unwrap_or_else(|_| panic!("{what} waits for ever"))
}

/// Drops each future after every number of polls; answers how many drops that were.
fn drops(kind: LockKind, faults: &[Fault]) -> u32 {
    let mut drops = 0;
    for &case in ALL {
        for &fault in faults {
            for polls in 0..=64 {
                let what = format!("{kind:?}: {case:?}, {fault:?}, after {polls} polls");
                let ready = in_a_world(&what, async {
                    let fixture = Fixture::new(kind, fault).await;
                    let (ready, guards) = Box::pin(fixture.act(case, Until::Polls(polls))).await;
                    fixture.nothing_is_left(guards).await;
                    ready
                });
                // More polls than it needs make no difference.
                if ready {
                    break;
                }
                drops += 1;
            }
        }
    }
    drops
}

#[test]
fn every_future_may_be_dropped_after_any_number_of_polls() {
    let faults = [0, 1, 3, 6, 21].map(|at| match at {
        0 => Fault::None,
        at => Fault::Cut(at),
    });
    let drops = drops(LockKind::Plain, &faults);
    println!("{drops} drops of {} futures", ALL.len());
    assert!(
        drops > 300,
        "only {drops} futures were dropped before they were ready"
    );
}

#[test]
fn so_may_those_of_every_kind() {
    for kind in KINDS {
        let drops = drops(kind, &[Fault::None, Fault::Cut(3)]);
        assert!(drops > 100, "{kind:?}: only {drops} futures");
    }
}

/// What a future has that is polled once and then kept, others get after two command timeouts: what was granted to it, and
/// what it has released. Then it goes on, or finds why it does not.
#[test]
fn every_future_may_be_kept_for_ten_command_timeouts_after_its_first_poll() {
    for kind in KINDS {
        for &case in ALL {
            let what = format!("{kind:?}: {case:?}, kept");
            in_a_world(&what, async {
                let fixture = Fixture::new(kind, Fault::None).await;
                let kept = fixture.act(case, Until::Kept(4_000));
                let (lock, start) = (fixture.theirs(), Instant::now());
                let others = async {
                    tokio::time::sleep(ms(50)).await;
                    let mut times = 0;
                    while start.elapsed() < ms(3_900) {
                        let taken = lock.try_lock_for(ms(900)).await.expect("connected");
                        // The caller may hold it all the time.
                        if let Some(guard) = taken {
                            guard.unlock().await.expect("held");
                            times += 1;
                        }
                        tokio::time::sleep(ms(50)).await;
                    }
                    times
                };
                let ((_, guards), times) = Box::pin(async { tokio::join!(kept, others) }).await;
                assert!(
                    times > 20 || case.holds(),
                    "{what}: others had it {times} times"
                );
                fixture.nothing_is_left(guards).await;
            });
        }
    }
}
