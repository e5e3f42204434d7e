//! A `tracing` subscriber and a waker are the user's code: they may call back into the client, and
//! they may panic. Nothing of ours is locked while they run, and no other lock pays for a panic.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use redisson_lock::{Error, HoldState, LockClient, LockGuard, LossReason};
use test_support::{TestServer, eventually, lock_and_unlock, ms, tokio};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What the user's code does when it is called.
type CallBack = Box<dyn Fn() + Send + Sync>;

/// User code, as a subscriber and as a waker. It counts how often it was called.
#[derive(Clone, Default)]
struct UserCode {
    call_back: Arc<Mutex<Option<Arc<CallBack>>>>,
    calls: Arc<AtomicUsize>,
}

impl UserCode {
    fn set(&self, call_back: impl Fn() + Send + Sync + 'static) {
        *self.call_back.lock().expect("unpoisoned") = Some(Arc::new(Box::new(call_back)));
    }

    fn call(&self) {
        let call_back = self.call_back.lock().expect("unpoisoned").clone();
        if let Some(call_back) = call_back {
            self.calls.fetch_add(1, Ordering::SeqCst);
            call_back();
        }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Subscriber for UserCode {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "redisson_lock"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.call();
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Wake for UserCode {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

/// Everything that can be asked without waiting, and a guard that is dropped.
fn everything(
    client: &LockClient,
    name: &str,
    guard: LockGuard,
) -> impl Fn() + Send + Sync + use<> {
    let (client, name) = (client.clone(), name.to_owned());
    let guard = Mutex::new(Some(guard));
    move || {
        let _ = client.stats();
        let lock = client.lock(&*name);
        let mut attempt = pin!(lock.try_lock());
        let polled = attempt
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending() || matches!(polled, Poll::Ready(_)));
        if let Some(guard) = guard.lock().expect("unpoisoned").take() {
            let _ = (guard.state(), guard.valid_until(), format!("{guard:?}"));
            drop(guard);
        }
    }
}

fn brisk(builder: redisson_lock::LockClientBuilder) -> redisson_lock::LockClientBuilder {
    builder.watchdog_timeout(ms(900)).command_timeout(ms(290))
}

#[tokio::test]
async fn a_subscriber_may_call_back_into_the_client() {
    let server = TestServer::new();
    let client = server.client_with(brisk).await;
    let user = UserCode::default();
    let _default = tracing::subscriber::set_default(user.clone());
    let guard = client.lock("stock").lock().await.expect("free");
    let lost = guard.lost();
    user.set(everything(&client, "stock", guard));
    // The renewal finds it gone, and that is logged.
    server.control().run(&["DEL", "stock"]);
    assert_eq!(lost.await, LossReason::Gone);
    eventually("it was logged", ms(2_000), || user.calls() > 0).await;
    server.finish([client]).await;
}

#[tokio::test]
async fn a_waker_may_call_back_into_the_client() {
    let server = TestServer::new();
    let client = server.client_with(brisk).await;
    let first = client.lock("stock").lock().await.expect("free");
    let (user, owner) = (UserCode::default(), client.owner());
    let waker = Waker::from(Arc::new(user.clone()));
    let lock = client.lock("stock").owned_by(&owner);
    {
        // A queued call, and one that waits for the end of the hold, with a waker of the user's.
        let (mut waiting, mut ended) = (pin!(lock.lock()), pin!(first.ended()));
        let mut context = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(ended.as_mut().poll(&mut context).is_pending());
        let other = client.lock("other").lock().await.expect("free");
        user.set(everything(&client, "stock", other));
        first.unlock().await.expect("held");
        eventually("it was woken", ms(2_000), || user.calls() > 0).await;
        waiting
            .await
            .expect("free now")
            .unlock()
            .await
            .expect("held");
    }
    user.call_back.lock().expect("unpoisoned").take();
    server.finish([client]).await;
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_wake_up() {
    let server = TestServer::new();
    // Each panic prints its backtrace, which takes a busy machine long.
    let patient = |builder: redisson_lock::LockClientBuilder| {
        builder.watchdog_timeout(ms(3_000)).command_timeout(ms(900))
    };
    let client = server.client_with(patient).await;
    let user = UserCode::default();
    let _default = tracing::subscriber::set_default(user.clone());
    let guard = client.lock("stock").lock().await.expect("free");
    let kept = client.lock("kept").lock().await.expect("free");
    let (lock, owner) = (client.lock("stock"), client.owner());
    let waiting = tokio::spawn(async move { lock.owned_by(&owner).lock().await });
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    let lost = guard.lost();
    user.set(|| panic!("a subscriber of the user's"));
    server.control().run(&["DEL", "stock"]);
    assert_eq!(lost.await, LossReason::Gone);
    drop(guard);
    let taken = waiting.await.expect("no panic").expect("free");
    assert!(user.calls() > 0);
    // The watchdog goes on, for this lock and for all others.
    for _ in 0..40 {
        tokio::time::sleep(ms(100)).await;
        assert_eq!(
            (kept.state(), taken.state()),
            (HoldState::Held, HoldState::Held)
        );
    }
    taken.unlock().await.expect("held");
    kept.unlock().await.expect("held");
    server.finish([client]).await;
}

/// Notes the spans that it is told about, and how it was entered; panics there if it is to.
#[derive(Clone, Default)]
struct Spans {
    made: Arc<Mutex<Vec<String>>>,
    entered: Arc<AtomicUsize>,
    panics: bool,
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "redisson_lock" && metadata.is_span()
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut made = self.made.lock().expect("unpoisoned");
        made.push(format!("{} {}", span.metadata().name(), span.values()));
        Id::from_u64(made.len() as u64)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {
        self.entered.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "it panics when it is entered");
    }
    fn exit(&self, _: &Id) {
        self.entered.fetch_sub(1, Ordering::SeqCst);
        assert!(!self.panics, "it panics when it is left");
    }
}

#[tokio::test]
async fn spans_are_around_calls_and_bodies_and_name_the_lock() {
    let server = TestServer::new();
    let client = server.client_with(brisk).await;
    let spans = Spans::default();
    let _default = tracing::subscriber::set_default(spans.clone());
    let lock = client.lock("stock");
    let inside = || spans.entered.load(Ordering::SeqCst);
    let seen = lock.run(async |_| Ok::<_, Error>(inside())).await;
    assert_eq!(seen.expect("held"), 1);
    let seen = lock.lead(async |_| Ok::<_, Error>(inside())).await;
    assert_eq!(seen.expect("held"), 1);
    assert_eq!(inside(), 0);
    let made = spans.made.lock().expect("unpoisoned").clone();
    let names: Vec<&str> = made
        .iter()
        .filter_map(|made| made.split(' ').next())
        .collect();
    assert_eq!(names, ["acquire", "run", "acquire", "lead"]);
    assert!(
        made.iter()
            .all(|made| made.contains("lock: stock, owner: ")),
        "{made:?}"
    );
    // A plain lock need not say what it is.
    assert!(!made.iter().any(|made| made.contains("kind: ")), "{made:?}");
    let ledger = client.fenced_lock("ledger");
    ledger
        .run(async |_| Ok::<_, Error>(()))
        .await
        .expect("held");
    let made = spans.made.lock().expect("unpoisoned").clone();
    let says = |made: &String| made.contains("kind: ") && made.contains("fenced");
    assert!(made.len() == 6 && made[4..].iter().all(says), "{made:?}");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_subscriber_that_panics_in_a_span_costs_nobody_a_lock() {
    let server = TestServer::new();
    let client = server.client_with(brisk).await;
    let spans = Spans {
        panics: true,
        ..Spans::default()
    };
    let _default = tracing::subscriber::set_default(spans.clone());
    let lock = client.lock("stock");
    lock.run(async |_| Ok::<_, Error>(())).await.expect("held");
    // Dropped in the middle, and ended by a panic of its own.
    let begun = tokio::sync::Notify::new();
    let endless = lock.run(async |_| {
        begun.notify_one();
        std::future::pending::<Result<(), Error>>().await
    });
    tokio::select! {
        ended = endless => panic!("{ended:?}"),
        () = begun.notified() => {}
    }
    let other = client.clone();
    let panics = tokio::spawn(async move {
        let lock = other.lock("stock");
        lock.run(async |_| -> Result<(), Error> { panic!("the body does too") })
            .await
    });
    assert!(panics.await.expect_err("it panics").is_panic());
    lock_and_unlock(&lock).await;
    assert!(spans.made.lock().expect("unpoisoned").len() >= 6);
    server.finish([client]).await;
}
