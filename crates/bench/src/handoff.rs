//! From the call of unlock in one client to the return of lock in another, whose task was asleep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::interfaces::{EventInterface, PubsubInterface};
use redisson_lock::LockClient;
use test_support::{eventually, ms};
use tokio::sync::Notify;

use crate::bare::{Argument, BareFred, Scripts, Which};
use crate::context::{Amount, Context, Form, Played, System};
use crate::jvm::{self, Redisson};
use crate::process::Cpu;
use crate::sample::{self, Sample};
use crate::scenario::{OURS, own};
use crate::workers::{LEASE_MS, channel, connect, owner, text};

/// For how long the waiter has been asleep before the unlock.
const ASLEEP: Duration = Duration::from_millis(10);

/// How many of them a round has.
fn rounds(context: &Context, amount: Amount) -> usize {
    let fit = amount.time.as_millis() / ASLEEP.as_millis();
    context.form.pick(fit.max(10), fit.max(10), 5) as usize
}

/// One hand-off after the other: their number says nothing about throughput.
fn sample(nanos: Vec<u64>) -> Sample {
    Sample::of_tasks(vec![nanos], ms(1_000))
        .without(sample::PER_SECOND)
        .without(sample::FAIRNESS)
}

/// One after the other. Each of them has two locks and two unlocks.
async fn played<O: Future<Output = u64>>(
    context: &Context,
    amount: Amount,
    name: &'static str,
    once: impl Fn() -> O,
) -> Vec<(&'static str, Sample)> {
    let (mut nanos, before, cpu) = (Vec::new(), context.scripts(), context.cpu());
    for _ in 0..rounds(context, amount) {
        nanos.push(once().await);
    }
    let [client, server] = context.cpu_since(cpu).map(|cpu| Cpu {
        user: cpu.user / 2.0,
        system: cpu.system / 2.0,
    });
    let sample = sample(nanos)
        .with_scripts((context.scripts() - before) / 2)
        .with_cpu(client, server, ms(1_000))
        .without(sample::CORES);
    vec![(name, sample)]
}

pub struct Ours {
    holder: LockClient,
    waiter: LockClient,
}

impl Ours {
    pub async fn open(context: &Context) -> Box<dyn System> {
        let url = context.server.url();
        Box::new(Self {
            holder: connect(&url).await,
            waiter: connect(&url).await,
        })
    }

    async fn once(&self) -> u64 {
        let held = self.holder.lock(NAME).lock().await.expect("free");
        let lock = self.waiter.lock(NAME);
        let waiting = tokio::spawn(async move {
            let guard = lock.lock().await.expect("the server answers");
            (Instant::now(), guard)
        });
        eventually("it waits", ms(5_000), || self.waiter.stats().waiting == 1).await;
        tokio::time::sleep(ASLEEP).await;
        assert!(!waiting.is_finished(), "the lock is held");
        let before = Instant::now();
        held.unlock().await.expect("held");
        let (locked, guard) = waiting.await.expect("it does not panic");
        guard.unlock().await.expect("held");
        (locked - before).as_nanos() as u64
    }
}

impl System for Ours {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(played(context, amount, OURS, || self.once()))
    }
}

/// Publish, hear, acquire: what a waiter that sleeps cannot do without.
pub struct Bare {
    name: &'static str,
    lock: &'static str,
    /// One task hears the messages and wakes the waiter, as for a client with many waiters one has to.
    relayed: bool,
    holder: Arc<BareFred>,
    waiter: Arc<BareFred>,
    messages: Arc<BareFred>,
}

impl Bare {
    pub async fn open(context: &Context) -> Box<dyn System> {
        Self::open_with(context, BARE, BARE_NAME, false).await
    }

    pub async fn open_relayed(context: &Context) -> Box<dyn System> {
        Self::open_with(context, RELAYED, RELAYED_NAME, true).await
    }

    async fn open_with(
        context: &Context,
        name: &'static str,
        lock: &'static str,
        relayed: bool,
    ) -> Box<dyn System> {
        let bare = Self {
            name,
            lock,
            relayed,
            holder: BareFred::connect(context).await,
            waiter: BareFred::connect(context).await,
            messages: BareFred::connect(context).await,
        };
        let subscribed = bare.messages.client.subscribe(channel(lock)).await;
        subscribed.expect("subscribed");
        Box::new(bare)
    }

    async fn acquire(lock: &'static str, client: &BareFred, task: usize) {
        let owner = owner(task);
        let arguments = [text(&owner), Argument::Number(1), LEASE_MS];
        let answer = client.call(Which::Acquire, &[lock], &arguments).await;
        assert_eq!(answer, 1, "free");
    }

    async fn release(&self, client: &BareFred, task: usize) {
        let (owner, channel) = (owner(task), channel(self.lock));
        let (zero, one) = (Argument::Number(0), Argument::Number(1));
        let arguments = [text(&owner), zero, one, text(&channel)];
        let answer = client.call(Which::Release, &[self.lock], &arguments).await;
        // One more than have heard the message.
        assert!(answer >= 1, "held");
    }

    async fn once(&self) -> u64 {
        let lock = self.lock;
        Self::acquire(lock, &self.holder, 1).await;
        // The message of the release before this one may still be on its way.
        tokio::time::sleep(ASLEEP / 5).await;
        let (mut messages, waiter) = (self.messages.client.message_rx(), Arc::clone(&self.waiter));
        let woken = Arc::new(Notify::new());
        let relay = self.relayed.then(|| {
            let (woken, mut messages) = (Arc::clone(&woken), self.messages.client.message_rx());
            tokio::spawn(async move {
                messages.recv().await.expect("a message");
                woken.notify_one();
            })
        });
        let relayed = self.relayed;
        let waiting = tokio::spawn(async move {
            if relayed {
                woken.notified().await;
            } else {
                messages.recv().await.expect("a message");
            }
            Self::acquire(lock, &waiter, 2).await;
            Instant::now()
        });
        tokio::time::sleep(ASLEEP).await;
        let before = Instant::now();
        self.release(&self.holder, 1).await;
        let locked = waiting.await.expect("it does not panic");
        self.release(&self.waiter, 2).await;
        if let Some(relay) = relay {
            relay.await.expect("it does not panic");
        }
        (locked - before).as_nanos() as u64
    }
}

impl System for Bare {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(played(context, amount, self.name, || self.once()))
    }
}

pub struct InJvm(Redisson);

impl InJvm {
    pub async fn open(context: &Context) -> Option<Box<dyn System>> {
        let peer = context.jvm(2, ms(30_000)).await?;
        let values = vec![
            ("work", "handoff".to_owned()),
            ("clients", "1,2".to_owned()),
            ("name", own(NAME, "jvm")),
            ("asleep", ASLEEP.as_millis().to_string()),
        ];
        Some(Box::new(Self(Redisson {
            peer,
            values,
            tasks: 1,
            one_lock: true,
            readers: 0,
        })))
    }
}

impl System for InJvm {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let (mut work, rounds) = (self.0.clone(), rounds(context, amount));
            work.values.push(("rounds", rounds.to_string()));
            let before = context.scripts();
            let report = work.report(context, amount).await;
            let calls = (context.scripts() - before) / 2;
            let nanos = report.times.concat();
            vec![(jvm::NAME, sample(nanos).with_scripts(calls))]
        })
    }

    fn warm(&self, form: Form) -> Duration {
        form.warm_jvm()
    }
}

const NAME: &str = "handoff";
const BARE_NAME: &str = "handoff-bare";
const RELAYED_NAME: &str = "handoff-relayed";
pub const BARE: &str = "floor: publish, message, script (fred)";
pub const RELAYED: &str = "floor: the same, heard by a task that wakes the waiter";
