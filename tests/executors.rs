//! Executors of all sorts: each public future of every kind of lock on one that knows nothing of tokio, on one that polls it inside of
//! its waker, and with wakers that panic or block.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient, LockKind};
use test_support::kinds::{KINDS, against};
use test_support::{TestServer, eventually, lock_and_unlock, ms, tokio};

type Boxed = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// A future of a lock, whose owner holds nothing before and after it.
type Verb = fn(Lock) -> Boxed;

const VERBS: [(&str, Verb); 9] = [
    ("lock and unlock", |lock| {
        Box::pin(async move { lock.lock().await?.unlock().await })
    }),
    ("try_lock", |lock| {
        Box::pin(async move {
            if let Some(guard) = lock.try_lock().await? {
                guard.unlock().await?;
            }
            Ok(())
        })
    }),
    ("try_lock_for", |lock| {
        Box::pin(async move {
            let guard = lock.try_lock_for(Duration::from_secs(20)).await?;
            guard.expect("it is freed").unlock().await
        })
    }),
    ("run", |lock| {
        Box::pin(async move { lock.run(|_| async { Ok(()) }).await })
    }),
    ("extend", |lock| {
        Box::pin(async move {
            let guard = lock.lease(Duration::from_secs(30)).lock().await?;
            guard.extend(Duration::from_secs(60)).await?;
            guard.unlock().await
        })
    }),
    ("detach and unlock", |lock| {
        Box::pin(async move {
            lock.lock().await?.detach();
            lock.unlock().await
        })
    }),
    ("looks", |lock| {
        Box::pin(async move {
            lock.is_locked().await?;
            lock.hold_count().await?;
            lock.inspect().await.map(drop)
        })
    }),
    ("ended", |lock| {
        Box::pin(async move {
            let guard = lock.lease(Duration::from_millis(300)).lock().await?;
            guard.ended().await;
            Ok(())
        })
    }),
    ("dropped guard", |lock| {
        Box::pin(async move { lock.lock().await.map(drop) })
    }),
];

/// Runs a future on a thread that does nothing else, without a runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut context) = (Box::pin(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A future that is polled inside of its waker, in whatever thread that is called.
struct InPlace {
    future: Mutex<Option<Boxed>>,
    is_woken: AtomicBool,
    done: mpsc::Sender<Result<(), Error>>,
    own: Weak<Self>,
}

impl InPlace {
    fn run(future: Boxed) -> Result<(), Error> {
        let (done, is_done) = mpsc::channel();
        let task = Arc::new_cyclic(|own| Self {
            future: Mutex::new(Some(future)),
            is_woken: AtomicBool::new(false),
            done,
            own: Weak::clone(own),
        });
        Arc::clone(&task).wake();
        is_done
            .recv_timeout(Duration::from_secs(20))
            .expect("its waker is called")
    }
}

impl Wake for InPlace {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        // One that is polled now, perhaps further up in this thread, sees it afterwards.
        while self.is_woken.load(Ordering::SeqCst) {
            let Ok(mut future) = self.future.try_lock() else {
                return;
            };
            self.is_woken.store(false, Ordering::SeqCst);
            let Some(polled) = future.as_mut() else {
                return;
            };
            let waker = Waker::from(self.own.upgrade().expect("it is called"));
            if let Poll::Ready(result) = polled.as_mut().poll(&mut Context::from_waker(&waker)) {
                future.take();
                let _ = self.done.send(result);
            }
        }
    }
}

fn brisk(builder: redisson_lock::LockClientBuilder) -> redisson_lock::LockClientBuilder {
    builder.command_timeout(ms(600))
}

/// Each verb of each kind on a lock that is free, and on one that another client holds for a while.
async fn on_an_executor(run: fn(Boxed) -> Result<(), Error>) {
    let server = TestServer::new();
    let (ours, theirs) = (server.client_with(brisk).await, server.client().await);
    for kind in KINDS {
        for (name, verb) in VERBS {
            for is_held in [false, true] {
                let (key, what) = (kind.to_string(), format!("{kind}: {name}"));
                let lock = ours.lock_of(kind, &key).owned_by(&ours.owner());
                let held = match is_held {
                    true => Some(
                        theirs
                            .lock_of(against(kind), &key)
                            .lock()
                            .await
                            .expect("free"),
                    ),
                    false => None,
                };
                let running = tokio::task::spawn_blocking(move || run(verb(lock)));
                if let Some(held) = held {
                    let waits_or_is_over = || running.is_finished() || ours.stats().waiting > 0;
                    eventually(&what, ms(5_000), waits_or_is_over).await;
                    held.unlock().await.expect("held");
                }
                running.await.expect("no panic").expect(&what);
                let taken = theirs
                    .lock_of(against(kind), &key)
                    .try_lock_for(ms(2_000))
                    .await;
                let taken = taken.expect("connected").expect(&what);
                taken.unlock().await.expect("held");
            }
        }
    }
    finish(server, ours, theirs).await;
}

/// Nothing is left but the counter of the fenced lock.
async fn finish(server: TestServer, ours: LockClient, theirs: LockClient) {
    server
        .control()
        .run(&["DEL", "redisson_lock_token:{fenced}"]);
    server.finish([ours, theirs]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_future_of_every_kind_runs_on_a_thread_without_a_runtime() {
    on_an_executor(block_on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_future_of_every_kind_may_be_polled_inside_of_its_waker() {
    on_an_executor(InPlace::run).await;
}

/// It counts how often it is called, and panics or blocks then.
struct Rude {
    calls: AtomicUsize,
    does: fn(),
}

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        (self.does)();
    }
}

/// A call and an unlock of each kind whose waker is called, and what another lock of the same client waits meanwhile at most.
async fn beside_a_waker(does: fn(), kinds: &[LockKind]) -> Duration {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let (mut longest, mut unlocks) = (Duration::ZERO, 0);
    for &kind in kinds {
        let rude = Arc::new(Rude {
            calls: AtomicUsize::new(0),
            does,
        });
        let (waker, key) = (Waker::from(Arc::clone(&rude)), kind.to_string());
        let mut context = Context::from_waker(&waker);
        let held = theirs
            .lock_of(against(kind), &key)
            .lock()
            .await
            .expect("free");
        let lock = ours.lock_of(kind, &key).owned_by(&ours.owner());
        let mut waiting = Box::pin(async move { lock.lock().await });
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        held.unlock().await.expect("held");
        let calls = || rude.calls.load(Ordering::SeqCst);
        while calls() == 0 {
            let start = Instant::now();
            lock_and_unlock(&ours.lock("beside")).await;
            longest = longest.max(start.elapsed());
        }
        let start = Instant::now();
        lock_and_unlock(&ours.lock("beside")).await;
        longest = longest.max(start.elapsed());
        // It was granted the lock, or will be: polled by somebody else, it goes on.
        let guard = waiting.await.expect("free");
        let mut unlocking = Box::pin(guard.unlock());
        let before = calls();
        match unlocking.as_mut().poll(&mut context) {
            // Its reply was quicker.
            Poll::Ready(unlocked) => unlocked.expect("held"),
            Poll::Pending => {
                unlocks += 1;
                eventually("the unlock is done", ms(5_000), || calls() > before).await;
            }
        }
        drop(unlocking);
        let taken = theirs
            .lock_of(against(kind), &key)
            .try_lock_for(ms(2_000))
            .await;
        let taken = taken.expect("connected").expect("it was released");
        taken.unlock().await.expect("held");
    }
    finish(server, ours, theirs).await;
    assert!(unlocks > 0, "the waker of an unlock was called");
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_costs_its_own_call_alone() {
    let longest = beside_a_waker(|| panic!("the waker's"), &KINDS).await;
    println!("another lock of the client took {longest:?} at most");
}

/// A waker is called by the task that reads the connection. While it blocks, that task reads nothing: the other calls on the
/// same connection wait for it, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_blocks_delays_its_connection_for_as_long() {
    let kinds = [LockKind::Plain, LockKind::Fair, LockKind::Write];
    let longest = beside_a_waker(|| std::thread::sleep(ms(1_000)), &kinds).await;
    println!("another lock of the client took {longest:?} at most");
    assert!(longest >= ms(900), "{longest:?}");
}
