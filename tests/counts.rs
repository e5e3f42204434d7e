//! What a lock spends beyond what it must: script calls, polls of its callers, and threads that are woken. Counts, which a
//! busy machine changes little; each limit stands beside its minimum.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use redisson_lock::{Lock, LockClient};
use test_support::{Server, test};
use tokio::runtime::{Builder, Runtime};

/// A runtime that counts how often its threads are woken.
struct Counted {
    runtime: Runtime,
    unparks: Arc<AtomicU64>,
    server: Server,
}

/// Counts of one run.
struct Counts {
    /// Of all callers.
    polls: f64,
    /// Of a thread of the runtime.
    unparks: f64,
    scripts: f64,
}

impl Counted {
    fn new(threads: usize) -> Self {
        let unparks = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&unparks);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .on_thread_unpark(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            })
            .build()
            .expect("a runtime");
        let server = Server::start();
        Self {
            runtime,
            unparks,
            server,
        }
    }

    fn client(&self) -> LockClient {
        let connected = self
            .runtime
            .block_on(LockClient::connect(&self.server.url()));
        connected.expect("the server answers")
    }

    /// Runs the callers at the same time, and divides what they cost by the number of sections.
    fn measure<F>(&self, sections: u64, callers: impl IntoIterator<Item = F>) -> Counts
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut control = self.server.control();
        let scripts = control.calls("evalsha");
        let unparks = self.unparks.load(Ordering::Relaxed);
        let polls = Arc::new(AtomicU64::new(0));
        self.runtime.block_on(async {
            let tasks = callers.into_iter().map(|caller| {
                let polls = Arc::clone(&polls);
                let caller = Box::pin(caller);
                tokio::spawn(Polled { polls, caller })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.expect("no panic");
            }
        });
        let of = |count: u64| count as f64 / sections as f64;
        Counts {
            polls: of(polls.load(Ordering::Relaxed)),
            unparks: of(self.unparks.load(Ordering::Relaxed) - unparks),
            scripts: (control.calls("evalsha") - scripts) as f64 / sections as f64,
        }
    }

    fn close(self, clients: impl IntoIterator<Item = LockClient>) {
        for client in clients {
            self.runtime.block_on(client.close(test_support::ms(1_000)));
        }
    }
}

/// A caller whose polls are counted.
struct Polled<F> {
    polls: Arc<AtomicU64>,
    caller: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for Polled<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.caller.as_mut().poll(context)
    }
}

impl Counts {
    /// The limits are of polls, unparks and scripts, each after what it is at the least.
    #[track_caller]
    fn at_most(&self, what: &str, limits: [(f64, f64); 3]) {
        let found = [self.polls, self.unparks, self.scripts];
        println!(
            "{what}: polls {:.2}, unparks {:.2}, scripts {:.2}",
            found[0], found[1], found[2]
        );
        let names = ["polls", "unparks", "scripts"];
        for ((name, (minimum, limit)), found) in names.into_iter().zip(limits).zip(found) {
            assert!(
                found <= limit,
                "{what}: {found:.2} {name}, minimum {minimum}, limit {limit}"
            );
        }
    }
}

async fn sections(lock: Lock, count: u64) {
    for _ in 0..count {
        let guard = lock.lock().await.expect("no outage");
        guard.unlock().await.expect("held");
    }
}

const SECTIONS: u64 = 960;

/// Each of two answers wakes the thread that reads it, and its caller is polled once for it.
#[test]
fn of_a_lock_that_no_other_owner_wants() {
    let counted = Counted::new(2);
    let client = counted.client();
    let lock = client.lock("solo");
    let counts = counted.measure(SECTIONS, [sections(lock, SECTIONS)]);
    counts.at_most("solo", [(2.0, 2.1), (2.0, 2.3), (2.0, 2.01)]);
    counted.close([client]);
}

/// One answer, which hands the lock over: it is for the owner before and for the next, and each of them is polled for it. The
/// thread that reads it goes on with the next owner, and a second one is woken for the owner before.
#[test]
fn of_a_lock_that_sixteen_tasks_want() {
    let counted = Counted::new(2);
    let client = counted.client();
    let lock = client.lock("contended");
    let callers = (0..16).map(|_| sections(lock.clone(), SECTIONS / 16));
    let counts = counted.measure(SECTIONS, callers);
    // A row of hand-offs ends after a while: on a busy machine there are more rows.
    counts.at_most("contended", [(2.0, 2.5), (2.0, 2.3), (1.0, 1.3)]);
    counted.close([client]);
}

/// A place is taken, the lock is taken in its turn and released: three answers, and a message that says whose turn it is.
#[test]
fn of_a_fair_lock_that_sixteen_tasks_want() {
    // One read has the reply of a release and the message of the next turn, and so a reason for two tasks: one thread is
    // woken for the read, a second one to share them.
    for (threads, unparks) in [(1, (2.0, 2.5)), (2, (4.0, 4.5))] {
        let counted = Counted::new(threads);
        let client = counted.client();
        let lock = client.fair_lock("fair");
        let callers = (0..16).map(|_| sections(lock.clone(), SECTIONS / 16));
        let counts = counted.measure(SECTIONS, callers);
        counts.at_most("fair", [(4.0, 5.0), unparks, (3.0, 3.5)]);
        counted.close([client]);
    }
}

/// Two answers to each reader, which share wake-ups, and a call that all may go in.
#[test]
fn of_readers_with_and_without_writers() {
    let counted = Counted::new(2);
    let client = counted.client();
    let both = client.rw_lock("both");
    for writers in [0, 2] {
        let (each, of_writer) = (SECTIONS / 16, SECTIONS / 128);
        let reading = (0..16).map(|_| sections(both.read(), each));
        let writing = (0..writers).map(|_| sections(both.write(), of_writer));
        let counts = counted.measure(SECTIONS + writers * of_writer, reading.chain(writing));
        counts.at_most(
            &format!("readers beside {writers} writers"),
            [(2.0, 4.0), (0.2, 1.5), (2.0, 2.05)],
        );
    }
    counted.close([client]);
}

/// Two scripts each, and one attempt more where the lock was not known to be held.
#[test]
fn of_a_lock_that_two_clients_want() {
    let counted = Counted::new(2);
    let clients = [counted.client(), counted.client()];
    let locks = clients.each_ref().map(|client| client.lock("handoff"));
    let callers = locks.map(|lock| sections(lock, SECTIONS / 2));
    let counts = counted.measure(SECTIONS, callers);
    counts.at_most("hand-off", [(3.0, 4.0), (2.0, 3.5), (2.5, 3.0)]);
    counted.close(clients);
}

/// The message and the answer wake a thread each, and their caller. That its key has changed is reported to the waiter's
/// connection too, and wakes nobody.
#[test]
fn of_a_waiter_that_hears_of_a_release() {
    const WAITS: u64 = 100;
    let counted = Counted::new(2);
    let other = Builder::new_current_thread().enable_all().build();
    let (other, url) = (other.expect("a runtime"), counted.server.url());
    let connected = other.block_on(LockClient::connect(&url));
    let clients = [counted.client(), connected.expect("the server answers")];
    let [lock, others] = clients.each_ref().map(|client| client.lock("heard"));
    let mut control = counted.server.control();
    let scripts = control.calls("evalsha");
    let polls = Arc::new(AtomicU64::new(0));
    let (mut polled, mut unparks) = (0, 0);
    for _ in 0..WAITS {
        let held = other.block_on(others.lock()).expect("free");
        let (waiter, (tell, told)) = (lock.clone(), std::sync::mpsc::channel());
        let caller = Box::pin(async move {
            tell.send(waiter.lock().await).expect("it is heard");
        });
        let polls_of_it = Arc::clone(&polls);
        let task = Polled {
            polls: polls_of_it,
            caller,
        };
        counted.runtime.spawn(task);
        eventually_still(|| {
            (
                clients[0].stats().waiting,
                counted.unparks.load(Ordering::Relaxed),
            )
        });
        let before = [&polls, &counted.unparks].map(|count| count.load(Ordering::Relaxed));
        other.block_on(held.unlock()).expect("held");
        let guard = told.recv().expect("it is told").expect("no outage");
        let after = [&polls, &counted.unparks].map(|count| count.load(Ordering::Relaxed));
        polled += after[0] - before[0];
        unparks += after[1] - before[1];
        counted.runtime.block_on(guard.unlock()).expect("held");
    }
    let of = |count: u64| count as f64 / WAITS as f64;
    let counts = Counts {
        polls: of(polled),
        unparks: of(unparks),
        scripts: of((control.calls("evalsha") - scripts) as u64),
    };
    // Two owners' pairs, and the attempt that has found the lock held.
    counts.at_most("heard", [(2.0, 2.2), (2.0, 2.4), (5.0, 5.2)]);
    let [waiter, holder] = clients;
    counted.close([waiter]);
    other.block_on(holder.close(test_support::ms(1_000)));
}

/// Waits until one waits, and no thread has been woken for a while.
fn eventually_still(look: impl Fn() -> (usize, u64)) {
    let mut before = look();
    loop {
        std::thread::sleep(test_support::ms(5));
        let now = look();
        if now.0 == 1 && now == before {
            return;
        }
        before = now;
    }
}
