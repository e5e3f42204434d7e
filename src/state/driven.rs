//! Jobs that a caller drives: the future of an unlock polls the job of its release in place, and that of a red lock the
//! job of its round, so that an answer wakes one task and not two. What the job says while it is polled wakes none: its
//! caller looks for it in the same poll. tokio would poll the task another time, and wake a thread to share it with.
//!
//! Between two polls a job is kept here, and not in the caller's future. If the caller leaves, its job is spawned; if
//! it does not poll its future for a quarter of a command timeout, the renewal task takes the job. So those who wait
//! for a release have its outcome in time, and a caller that only waits for a slow server loses nothing by it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::runtime::Runtime;
use crate::core::small_map::SmallMap;

/// Goes on without its caller.
pub(crate) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Driven {
    runtime: Runtime,
    /// For how long a job is left to a caller that does not poll it.
    limit: Duration,
    jobs: Mutex<Jobs>,
    /// A time to look for jobs has been set.
    begun: Notify,
}

#[derive(Default)]
struct Jobs {
    next: u64,
    /// In the order in which they were last polled, with the time of that.
    all: SmallMap<u64, (Instant, Job)>,
    /// Left as it is when the last job ends: the next one comes soon, and needs no wake-up.
    look_at: Option<Instant>,
    /// The renewal task has ended: no job is kept any more.
    over: bool,
}

impl Driven {
    pub(crate) fn new(runtime: Runtime, command_timeout: Duration) -> Self {
        Self {
            runtime,
            limit: command_timeout / 4,
            jobs: Mutex::default(),
            begun: Notify::new(),
        }
    }

    /// Drives a job while a caller waits.
    pub(crate) async fn drive<T>(&self, job: Option<Job>, wait: impl Future<Output = T>) -> T {
        if job.is_none() {
            return wait.await;
        }
        let mut driver = Driver {
            driven: self,
            first: job,
            kept: None,
        };
        let caller = Arc::new(CallerWaker::default());
        let waker = Waker::from(Arc::clone(&caller));
        let mut wait = std::pin::pin!(wait);
        std::future::poll_fn(|context| {
            caller.quietly(context.waker(), || driver.poll(context));
            wait.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }

    /// Waits for jobs whose caller does not poll them.
    pub(crate) async fn unpolled(&self) -> Vec<Job> {
        loop {
            let look_at = self.jobs.lock().look_at;
            let Some(look_at) = look_at else {
                self.begun.notified().await;
                continue;
            };
            tokio::time::sleep_until(look_at).await;
            let unpolled = self.jobs.lock().take_unpolled(self.limit);
            if !unpolled.is_empty() {
                return unpolled;
            }
        }
    }

    /// From now on no renewal task takes jobs.
    pub(crate) fn end(&self) {
        let left = {
            let mut jobs = self.jobs.lock();
            jobs.over = true;
            std::mem::take(&mut jobs.all)
        };
        left.into_iter().for_each(|(_, (_, job))| self.spawn(job));
    }

    pub(crate) fn spawn(&self, job: Job) {
        self.runtime.spawn(job);
    }

    /// Keeps a job until its caller polls it again. `None`: it was spawned instead.
    fn keep(&self, job: Job) -> Option<u64> {
        let now = Instant::now();
        let mut jobs = self.jobs.lock();
        if jobs.over {
            drop(jobs);
            self.spawn(job);
            return None;
        }
        jobs.next += 1;
        let id = jobs.next;
        jobs.all.insert(id, (now, job));
        if jobs.look_at.is_none() {
            jobs.look_at = Some(now + self.limit);
            drop(jobs);
            self.begun.notify_one();
        }
        Some(id)
    }

    fn take(&self, id: u64) -> Option<Job> {
        self.jobs.lock().all.remove(&id).map(|(_, job)| job)
    }
}

impl Jobs {
    fn take_unpolled(&mut self, limit: Duration) -> Vec<Job> {
        let now = Instant::now();
        let mut unpolled = Vec::new();
        self.look_at = loop {
            let Some((&id, (polled, _))) = self.all.first_entry() else {
                break None;
            };
            let due = *polled + limit;
            if due > now {
                break Some(due);
            }
            unpolled.extend(self.all.remove(&id).map(|(_, job)| job));
        };
        unpolled
    }
}

/// Wakes the caller of a job, unless it is just polling the job.
#[derive(Default)]
struct CallerWaker(Mutex<Caller>);

#[derive(Default)]
struct Caller {
    waker: Option<Waker>,
    polls_job: bool,
}

impl CallerWaker {
    /// Polls the job. Its caller has to look afterwards for what was said meanwhile, here or on another thread.
    fn quietly(&self, waker: &Waker, poll_job: impl FnOnce()) {
        {
            let mut caller = self.0.lock();
            caller.polls_job = true;
            if !caller
                .waker
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
            {
                caller.waker = Some(waker.clone());
            }
        }
        poll_job();
        self.0.lock().polls_job = false;
    }
}

impl Wake for CallerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = {
            let caller = self.0.lock();
            match caller.polls_job {
                true => None,
                false => caller.waker.clone(),
            }
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The caller that drives a job.
struct Driver<'a> {
    driven: &'a Driven,
    /// Until the first poll.
    first: Option<Job>,
    /// Where it is kept from then on.
    kept: Option<u64>,
}

impl Driver<'_> {
    /// The job is nowhere else while it is polled: what it wakes may poll the caller's future from inside.
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(mut job) = self.take()
            && job.as_mut().poll(context).is_pending()
        {
            self.kept = self.driven.keep(job);
        }
    }

    fn take(&mut self) -> Option<Job> {
        let kept = self.kept.take();
        self.first.take().or_else(|| self.driven.take(kept?))
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if let Some(job) = self.take() {
            self.driven.spawn(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::*;
    use test_support::{ms, tokio};
    use tokio::sync::oneshot;

    fn driven() -> Driven {
        Driven::new(Runtime::current().expect("in a runtime"), ms(400))
    }

    /// A job that ends when it is told, and says so.
    fn job() -> (Job, oneshot::Sender<()>, oneshot::Receiver<()>) {
        let (end, ends) = oneshot::channel();
        let (over, is_over) = oneshot::channel();
        let job = Box::pin(async move {
            ends.await.expect("it is told");
            over.send(()).expect("it is heard");
        });
        (job, end, is_over)
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_drives_its_job() {
        let driven = driven();
        let (job, end, is_over) = job();
        end.send(()).expect("it is there");
        driven
            .drive(Some(job), is_over)
            .await
            .expect("it has ended");
        assert!(driven.jobs.lock().all.is_empty());
    }

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_job_says_while_it_is_polled_wakes_no_task_and_is_heard() {
        let driven = driven();
        let (job, end, is_over) = job();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut caller = pin!(driven.drive(Some(job), is_over));
        assert!(caller.as_mut().poll(&mut context).is_pending());
        end.send(()).expect("it is there");
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "for the job");
        assert!(caller.as_mut().poll(&mut context).is_ready());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    /// A job that the renewal task has taken, or one that says more than its end.
    #[tokio::test(start_paused = true)]
    async fn what_is_said_elsewhere_wakes_the_caller_that_polled_last() {
        let driven = driven();
        let (say, said) = oneshot::channel();
        let job: Job = Box::pin(std::future::pending());
        let mut caller = pin!(driven.drive(Some(job), said));
        let wakes: [_; 2] = std::array::from_fn(|_| Arc::new(Wakes::default()));
        for wakes in &wakes {
            let waker = Waker::from(Arc::clone(wakes));
            let mut context = Context::from_waker(&waker);
            assert!(caller.as_mut().poll(&mut context).is_pending());
        }
        let said = std::thread::spawn(|| say.send(7));
        said.join().expect("no panic").expect("it is heard");
        let counts = wakes.map(|wakes| wakes.0.load(Ordering::Relaxed));
        assert_eq!(counts, [0, 1]);
        assert_eq!(caller.await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_job_of_a_caller_that_leaves_is_spawned() {
        let driven = driven();
        let (job, end, is_over) = job();
        driven.drive(Some(job), async {}).await;
        end.send(()).expect("it is there");
        is_over.await.expect("it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_not_polled_is_taken_and_each_job_in_its_time() {
        let driven = driven();
        let start = Instant::now();
        let mut context = Context::from_waker(Waker::noop());
        let never = || {
            let job: Job = Box::pin(std::future::pending());
            Box::pin(driven.drive(Some(job), std::future::pending::<()>()))
        };
        let (mut callers, mut polled) = ([(never(), 0), (never(), 60)], never());
        let mut taken = Vec::new();
        let mut unpolled = pin!(driven.unpolled());
        for now in 0..200 {
            for (caller, at) in &mut callers {
                if *at == now {
                    assert!(caller.as_mut().poll(&mut context).is_pending());
                }
            }
            if now % 10 == 0 {
                assert!(polled.as_mut().poll(&mut context).is_pending());
            }
            while let Poll::Ready(jobs) = unpolled.as_mut().poll(&mut context) {
                taken.extend(jobs.iter().map(|_| start.elapsed()));
                unpolled.set(driven.unpolled());
            }
            tokio::time::advance(ms(1)).await;
        }
        assert_eq!(taken, [ms(100), ms(160)]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_end_no_job_is_kept() {
        let driven = driven();
        let mut context = Context::from_waker(Waker::noop());
        let jobs: [_; 2] = std::array::from_fn(|_| job());
        let [(before, ends, is_over), (after, ends_too, is_over_too)] = jobs;
        let waits = || std::future::pending::<()>();
        let mut caller = Box::pin(driven.drive(Some(before), waits()));
        assert!(caller.as_mut().poll(&mut context).is_pending());
        driven.end();
        let mut later = Box::pin(driven.drive(Some(after), waits()));
        assert!(later.as_mut().poll(&mut context).is_pending());
        ends.send(()).expect("it is there");
        ends_too.send(()).expect("it is there");
        is_over.await.expect("it has ended");
        is_over_too.await.expect("it has ended");
        assert!(driven.jobs.lock().all.is_empty());
    }
}
