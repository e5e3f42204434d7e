//! What is not this crate's own: the runtime that created a client, where its tasks run and how its
//! end is detected; and the subscriber that its events go to.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redisson_lock_core::Time;

use parking_lot::Mutex;
use tokio::runtime::{EnterGuard, Handle};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Span;
use tracing::span::Entered;

/// A task of a client.
pub(crate) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handle to a runtime, for spawning on it.
#[derive(Clone)]
pub(crate) struct Runtime {
    handle: Handle,
    /// A test runs many clients on one runtime, and ends a client's runtime by dropping its tasks.
    #[cfg(feature = "test-util")]
    ended: tokio_util::sync::CancellationToken,
}

impl Runtime {
    /// The caller's runtime, if there is one.
    pub(crate) fn current() -> Option<Self> {
        let handle = Handle::try_current().ok()?;
        Some(Self {
            handle,
            #[cfg(feature = "test-util")]
            ended: tokio_util::sync::CancellationToken::new(),
        })
    }

    /// Spawns a task. On a runtime that has ended, the task is dropped instead.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(self.bound(task));
    }

    /// Spawns a task that is awaited at shutdown.
    pub(crate) fn spawn_tracked(
        &self,
        tasks: &TaskTracker,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        tasks.spawn_on(self.bound(task), &self.handle);
    }

    /// Whether it drops what is spawned there.
    pub(crate) fn has_ended(&self) -> bool {
        let probe = pin!(tokio::task::unconstrained(self.handle.spawn(async {})));
        let mut context = Context::from_waker(Waker::noop());
        matches!(probe.poll(&mut context), Poll::Ready(Err(_)))
    }

    /// Timers created until the guard is dropped belong to this runtime.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    #[cfg(not(feature = "test-util"))]
    fn bound<F: Future<Output = ()>>(&self, task: F) -> F {
        task
    }

    #[cfg(feature = "test-util")]
    fn bound<F: Future<Output = ()>>(&self, task: F) -> impl Future<Output = ()> + use<F> {
        let ended = self.ended.clone();
        async move {
            tokio::select! {
                biased;
                () = ended.cancelled() => {}
                () = task => {}
            }
        }
    }

    /// Ends the tasks of a client as the end of its runtime would.
    #[cfg(feature = "test-util")]
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}

/// Sums up what would be logged more often than every five seconds.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    last: Option<Instant>,
    pending: Option<usize>,
}

impl Throttle {
    /// Adds to the sum. Returns it when it is time to log it.
    pub(crate) fn add(&mut self, amount: Option<usize>) -> Option<usize> {
        if let Some(amount) = amount {
            *self.pending.get_or_insert(0) += amount;
        }
        if self.last.is_some_and(|last| last.elapsed() < LOGGED_EVERY) {
            return None;
        }
        let sum = self.pending.take()?;
        self.last = Some(Instant::now());
        Some(sum)
    }

    /// When there will be something to log.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pending?;
        Some(self.last? + LOGGED_EVERY)
    }
}

const LOGGED_EVERY: Duration = Duration::from_secs(5);

/// The events logged within the last minute, so that a repeating event is logged once a minute.
#[derive(Default)]
pub(crate) struct Lately(Mutex<Logged>);

#[derive(Default)]
struct Logged {
    at: HashMap<u64, Instant>,
    /// When all of them were last looked at.
    pruned: Option<Instant>,
}

impl Lately {
    /// Whether this was not logged within the last minute, and is to be logged now. Of more than some thousands only those
    /// are remembered that came first, and the others are not logged.
    pub(crate) fn is_news(&self, what: impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        let (what, now) = (hasher.finish(), Instant::now());
        let mut logged = self.0.lock();
        if logged.at.len() >= LATELY_MAX {
            logged.prune(now);
        }
        let is_known = logged.at.get(&what).is_some_and(|at| now - *at < LATELY);
        let has_room = logged.at.len() < LATELY_MAX || logged.at.contains_key(&what);
        let is_news = !is_known && has_room;
        if is_news {
            logged.at.insert(what, now);
        }
        is_news
    }
}

impl Logged {
    /// Once a second at most: if the renewals of 50,000 locks fail, each of them asks.
    fn prune(&mut self, now: Instant) {
        if self.pruned.is_none_or(|at| now - at >= PRUNED_EVERY) {
            self.at.retain(|_, at| now - *at < LATELY);
            self.pruned = Some(now);
        }
    }
}

const LATELY: Duration = Duration::from_secs(60);
const LATELY_MAX: usize = 4_096;
const PRUNED_EVERY: Duration = Duration::from_secs(1);

/// Tasks whose end is waited for.
#[derive(Clone)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    runtime: Runtime,
}

impl Tasks {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self {
            tracker: TaskTracker::new(),
            runtime,
        }
    }

    /// No task is added any more.
    pub(crate) fn close(&self) {
        self.tracker.close();
    }

    /// Waits until every task has ended.
    pub(crate) async fn ended(&self) {
        self.tracker.wait().await;
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn_tracked(&self.tracker, task);
    }
}

/// The client's clock: tokio's instants as times since the client was made, and back.
///
/// It does not run backwards. tokio's own does where a runtime whose time is paused is left: a guard
/// that is dropped outside of it would be dropped before it was taken.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// The latest time that was read, in nanoseconds.
    latest: AtomicU64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            latest: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Time {
        let now = self.time(Instant::now()).since_start().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let latest = self.latest.fetch_max(now, Ordering::Relaxed);
        Time::after_start(Duration::from_nanos(now.max(latest)))
    }

    pub(crate) fn time(&self, at: Instant) -> Time {
        Time::after_start(at.saturating_duration_since(self.start))
    }

    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.start + time.since_start()
    }
}

/// Sleeps until then, or for ever.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Waits for a future until then, or for ever. `None`: the deadline came first; the caller drops the future.
///
/// The timer is on the heap, because a call without a deadline would keep the room for it; and made when it is first
/// polled, in the runtime whose timers it needs.
pub(crate) fn by_deadline<T, F: Future<Output = Result<T, E>>, E>(
    deadline: Option<Instant>,
    future: Pin<&mut F>,
) -> impl Future<Output = Result<Option<T>, E>> {
    by_deadline_or_later(deadline, || None, future)
}

/// As [`by_deadline`]. `more`: for how long the future is waited for once the deadline has come.
pub(crate) fn by_deadline_or_later<T, F: Future<Output = Result<T, E>>, E>(
    deadline: Option<Instant>,
    more: impl FnOnce() -> Option<Duration>,
    mut future: Pin<&mut F>,
) -> impl Future<Output = Result<Option<T>, E>> {
    let (mut timer, mut more) = (None, Some(more));
    std::future::poll_fn(move |context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(output.map(Some));
        }
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        std::task::ready!(timer.as_mut().poll(context));
        let Some(more) = more.take().and_then(|more| more()) else {
            return Poll::Ready(Ok(None));
        };
        timer.set(tokio::time::sleep(more));
        timer.as_mut().poll(context).map(|()| Ok(None))
    })
}

/// Whether this runtime has timers, which tokio only shows by a panic when one is created.
pub(crate) fn has_timers() -> bool {
    std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

/// This thread holds the mutex of a lock. Foreign code may call back into the lock, so debug builds panic if it would run now.
pub(crate) struct HasMutex(());

#[cfg(debug_assertions)]
thread_local! {
    /// How many this thread holds.
    static MUTEXES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl HasMutex {
    pub(crate) fn begin() -> Self {
        #[cfg(debug_assertions)]
        MUTEXES.set(MUTEXES.get() + 1);
        Self(())
    }
}

impl Drop for HasMutex {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        MUTEXES.set(MUTEXES.get() - 1);
    }
}

/// Runs code that is not ours. What it panics with was printed by the panic hook; no other
/// wake-up, job or lease is to be lost by it.
pub(crate) fn isolated(foreign: impl FnOnce()) {
    #[cfg(debug_assertions)]
    assert_eq!(
        MUTEXES.get(),
        0,
        "foreign code does not run under a lock's mutex"
    );
    let _ = catch_unwind(AssertUnwindSafe(foreign));
}

/// `tracing::debug_span!` for this crate, with the same care. `None`: no subscriber wants it.
macro_rules! span {
    ($($rest:tt)+) => {{
        let mut span = None;
        $crate::base::runtime::isolated(|| {
            let made = ::tracing::debug_span!(target: "redisson_lock", $($rest)+);
            span = (!made.is_disabled()).then(|| Box::new(made));
        });
        span
    }};
}

pub(crate) use span;

/// Inside of a span for as long as this lives.
pub(crate) struct InSpan<'a>(Option<Entered<'a>>);

impl<'a> InSpan<'a> {
    pub(crate) fn enter(span: Option<&'a Span>) -> Self {
        let mut entered = None;
        if let Some(span) = span {
            isolated(|| entered = Some(span.enter()));
        }
        Self(entered)
    }
}

impl Drop for InSpan<'_> {
    fn drop(&mut self) {
        if let Some(entered) = self.0.take() {
            isolated(|| drop(entered));
        }
    }
}

/// Runs `body` until it ends, or until `stopped` does, which drops it. If `stopped` has ended already, `body` does not
/// begin.
pub(crate) async fn until<S, F, Fut>(
    stopped: S,
    span: Option<&Span>,
    body: F,
) -> Result<Fut::Output, S::Output>
where
    S: Future,
    F: FnOnce() -> Fut,
    Fut: Future,
{
    let running = pin!(async { body().await });
    tokio::select! {
        biased;
        why = stopped => Err(why),
        ended = in_span(span, running) => Ok(ended),
    }
}

/// Polls a future inside of a span. It stays where the caller pinned it, and is dropped outside of the span: what
/// a subscriber does then is not between a guard and its release.
pub(crate) fn in_span<'a, F: Future>(
    span: Option<&'a Span>,
    mut future: Pin<&'a mut F>,
) -> impl Future<Output = F::Output> + 'a {
    std::future::poll_fn(move |context| {
        let _inside = InSpan::enter(span);
        future.as_mut().poll(context)
    })
}

/// `tracing::event!` for this crate. A subscriber is the user's code: it may call back into the client,
/// and it may panic. So nothing is logged while a mutex is held, and a panic ends with the event.
macro_rules! event {
    ($level:ident, $($rest:tt)+) => {
        $crate::base::runtime::isolated(|| {
            ::tracing::event!(target: "redisson_lock", ::tracing::Level::$level, $($rest)+)
        })
    };
}

pub(crate) use event;

#[cfg(test)]
mod tests {
    use test_support::tokio;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_event_is_news_once_a_minute() {
        let lately = Lately::default();
        assert!(lately.is_news("this") && lately.is_news("that"));
        tokio::time::advance(LATELY - SECOND).await;
        assert!(!lately.is_news("this"));
        tokio::time::advance(SECOND).await;
        assert!(lately.is_news("this"));
    }

    /// All renewals of a client may fail together, and each of them asks.
    #[tokio::test(start_paused = true)]
    async fn a_full_memory_is_searched_once_a_second() {
        let lately = Lately::default();
        assert!((0..LATELY_MAX).all(|nth| lately.is_news(nth)));
        tokio::time::advance(LATELY - SECOND / 2).await;
        assert!(!lately.is_news("more"));
        tokio::time::advance(SECOND / 2).await;
        assert!(!lately.is_news("more"), "it was searched half a second ago");
        assert!(
            lately.is_news(0_usize),
            "what has its place needs no search"
        );
        tokio::time::advance(SECOND / 2).await;
        assert!(lately.is_news("more"));
    }
}
