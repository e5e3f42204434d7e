//! Many waiters of one client: from the unlock until all have had the lock once.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redisson_lock::LockClient;
use test_support::{eventually, ms};

use crate::bare::{BareFred, BareRedis, Scripts};
use crate::context::{Amount, Context, Form, Played, System};
use crate::jvm::{self, Redisson};
use crate::looping::{Worker, check};
use crate::process::Cpu;
use crate::sample::{self, Sample};
use crate::scenario::{OURS, own};
use crate::workers::{Pass, connect};

/// One herd after the other until the time is over; in each everybody has the lock exactly once.
struct Herds {
    until: Instant,
    times: Vec<Vec<u64>>,
    took: Duration,
    calls: i64,
    cpu: [Cpu; 2],
}

impl Herds {
    fn of(context: &Context, amount: Amount) -> Self {
        Self {
            until: Instant::now() + amount.time,
            times: Vec::new(),
            took: Duration::ZERO,
            calls: -context.scripts(),
            cpu: context.cpu(),
        }
    }

    /// Whether there is time for another one.
    fn note(&mut self, times: Vec<Vec<u64>>, took: Duration) -> bool {
        self.times.extend(times);
        self.took += took;
        Instant::now() < self.until
    }

    /// Processor time is that of the calls before and behind a herd too, and of the tasks that are made
    /// for it.
    fn sample(self, context: &Context) -> Sample {
        let [client, server] = context.cpu_since(self.cpu);
        let calls = self.calls + context.scripts();
        Sample::of_tasks(self.times, self.took)
            .with_scripts(calls)
            .with_cpu(client, server, self.took)
            .without(sample::CORES)
            .without(sample::FAIRNESS)
    }
}

pub struct Ours {
    client: LockClient,
    waiters: usize,
}

impl Ours {
    pub async fn open(context: &Context, waiters: usize) -> Box<dyn System> {
        let client = connect(&context.server.url()).await;
        Box::new(Self { client, waiters })
    }

    async fn once(&self) -> (Vec<Vec<u64>>, Duration) {
        let lock = self.client.lock(NAME);
        let held = lock.lock().await.expect("free");
        let begin = Arc::new(OnceLock::new());
        let tasks: Vec<_> = (0..self.waiters)
            .map(|_| {
                let (lock, begin) = (lock.clone(), Arc::clone(&begin));
                tokio::spawn(async move {
                    let guard = lock.lock().await.expect("the server answers");
                    let since: &Instant = begin.get().expect("the lock was held until then");
                    let waited = since.elapsed().as_nanos() as u64;
                    guard.unlock().await.expect("held");
                    vec![waited]
                })
            })
            .collect();
        let waiting = || self.client.stats().waiting == self.waiters;
        eventually("all of them wait", ms(30_000), waiting).await;
        // Until the subscription is there, and nobody is on the way any more.
        tokio::time::sleep(ms(20)).await;
        let now = Instant::now();
        begin.set(now).expect("set once");
        held.unlock().await.expect("held");
        let mut times = Vec::with_capacity(tasks.len());
        for task in tasks {
            times.push(task.await.expect("it does not panic"));
        }
        check(&times, self.waiters);
        (times, now.elapsed())
    }
}

impl System for Ours {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let mut herds = Herds::of(context, amount);
            loop {
                let (times, took) = self.once().await;
                if !herds.note(times, took) {
                    return vec![(OURS, herds.sample(context))];
                }
            }
        })
    }
}

/// The lock passed on as often as there are waiters.
pub struct Passing<S> {
    name: &'static str,
    lock: String,
    pass: Pass<S>,
}

impl<S: Scripts> Passing<S> {
    fn boxed(name: &'static str, scripts: &Arc<S>, waiters: usize) -> Box<dyn System> {
        let other = match name {
            PASS_FRED => "fred",
            _ => "redis-rs",
        };
        let lock = own(NAME, other);
        let pass = Pass::new(scripts, &lock, waiters);
        Box::new(Self { name, lock, pass })
    }
}

impl<S: Scripts> System for Passing<S> {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let mut herds = Herds::of(context, amount);
            loop {
                let (mut times, begin) = (Vec::new(), Instant::now());
                for _ in 0..self.pass.owners.len() {
                    self.pass.lock().await;
                    times.push(vec![begin.elapsed().as_nanos() as u64]);
                }
                let is_over = !herds.note(times, begin.elapsed());
                context.with_control(|control| control.run(&["DEL", &self.lock]));
                if is_over {
                    return vec![(self.name, herds.sample(context))];
                }
            }
        })
    }
}

pub struct InJvm(Redisson);

impl System for InJvm {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let mut herds = Herds::of(context, amount);
            loop {
                let report = self.0.report(context, amount).await;
                if !herds.note(report.times, report.took) {
                    let sample = herds.sample(context);
                    return vec![(jvm::NAME, sample.without_cpu())];
                }
            }
        })
    }

    fn warm(&self, form: Form) -> Duration {
        form.warm_jvm()
    }
}

/// All systems with this many waiters.
pub async fn systems(context: &Context, waiters: usize) -> Vec<Box<dyn System>> {
    let mut systems = vec![Ours::open(context, waiters).await];
    if let Some(peer) = context.jvm(1, ms(30_000)).await {
        let values = vec![
            ("work", "herd".to_owned()),
            ("clients", "1".to_owned()),
            ("name", own(NAME, "jvm")),
            ("threads", waiters.to_string()),
        ];
        systems.push(Box::new(InJvm(Redisson {
            peer,
            values,
            tasks: waiters,
            one_lock: true,
            readers: 0,
        })));
    }
    let (fred, redis) = (
        BareFred::connect(context).await,
        BareRedis::connect(context).await,
    );
    systems.push(Passing::boxed(PASS_FRED, &fred, waiters));
    systems.push(Passing::boxed(PASS_REDIS, &redis, waiters));
    systems
}

pub const PASS_FRED: &str = "floor: passing by one script (fred)";
pub const PASS_REDIS: &str = "floor: passing by one script (redis-rs)";
const NAME: &str = "herd";
