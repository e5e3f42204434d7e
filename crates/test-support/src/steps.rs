//! A future that a test polls by hand, to drop it after any number of polls.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use redisson_lock::Lock;

/// Polls a future each time after it asked to be polled; then it is the caller's to drop.
pub struct Steps<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    woken: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<T> Steps<T> {
    pub fn of(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            future: Box::pin(future),
            woken: Arc::new(Flag(AtomicBool::new(true))),
        }
    }

    fn poll(&mut self) -> Poll<T> {
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = Arc::clone(&self.woken).into();
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Says, whenever it is called, whether the future has asked to be polled.
    pub fn woken(&self) -> impl Fn() -> bool + use<T> {
        let woken = Arc::clone(&self.woken);
        move || woken.0.load(Ordering::SeqCst)
    }

    /// `Some` if the future completed within this many polls.
    pub async fn times(&mut self, polls: usize) -> Option<T> {
        for _ in 0..polls {
            if let Poll::Ready(value) = self.poll() {
                return Some(value);
            }
            let limit = Instant::now() + Duration::from_millis(30);
            while !self.woken.0.load(Ordering::SeqCst) && Instant::now() < limit {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        None
    }

    /// Polls whenever it asks for it, until the fact holds.
    pub async fn until(&mut self, what: &str, mut fact: impl FnMut() -> bool) {
        let limit = Instant::now() + Duration::from_millis(3000);
        while !fact() {
            assert!(Instant::now() < limit, "stage not reached: {what}");
            if self.woken.0.load(Ordering::SeqCst) {
                assert!(
                    self.poll().is_pending(),
                    "completed before the stage: {what}"
                );
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Drops a call after no poll, after one, and so on, until it completes, and asks each time what it has left. Another
/// holder has the lock until the call sleeps, so that what wakes it and what follows is cut as well.
pub async fn drop_at_each_poll<T, F: Future<Output = T> + Send + 'static>(
    what: &str,
    holder: Option<&Lock>,
    call: impl Fn() -> F,
    mut is_over: impl AsyncFnMut(&str),
) -> usize {
    for polls in 0..64 {
        let held = match holder {
            Some(lock) => Some(lock.lock().await.expect("free")),
            None => None,
        };
        let mut steps = Steps::of(call());
        let before = if held.is_some() { polls.min(6) } else { polls };
        let mut ended = steps.times(before).await.is_some();
        if let Some(held) = held {
            held.unlock().await.expect("held");
        }
        ended = ended || steps.times(polls - before).await.is_some();
        drop(steps);
        is_over(&format!("{what}, after {polls} polls")).await;
        if ended {
            return polls;
        }
    }
    panic!("{what} does not end");
}
