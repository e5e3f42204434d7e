//! One fair lock: ours, Redisson's, and the calls without which it does not go from one owner to the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::interfaces::{EventInterface, PubsubInterface};
use futures_util::stream::{FuturesUnordered, StreamExt};
use test_support::ms;

use crate::bare::{Argument, BUSY, BareFred, Scripts, Which};
use crate::context::{Amount, Context, Played, System};
use crate::jvm::Redisson;
use crate::looping::Looping;
use crate::sample::{self, Sample};
use crate::scenario::{OURS, own};
use crate::workers::{self, LEASE_MS, channel, connect, owner, text};

/// All of them with this many owners of one client each.
pub async fn systems(context: &Context, owners: usize) -> Vec<Box<dyn System>> {
    let lock = connect(&context.server.url()).await.fair_lock(NAME);
    let ours = (0..owners).map(|_| workers::Ours(lock.clone()));
    let mut systems = vec![Looping::contending(OURS, ours.collect())];
    if let Some(peer) = context.jvm(1, ms(30_000)).await {
        let redisson = Redisson::looping(peer, &own(NAME, "jvm"), 1, owners, false);
        systems.push(Box::new(redisson.of_kind("fair")));
    }
    systems.push(Turns::open(context, owners).await);
    systems
}

/// Owners who are always all in the queue or have the lock: each releases, hears of its turn, acquires, and queues up.
struct Turns {
    commands: Arc<BareFred>,
    messages: Arc<BareFred>,
    owners: Vec<String>,
    keys: [String; 3],
    channel: String,
}

impl Turns {
    async fn open(context: &Context, owners: usize) -> Box<dyn System> {
        let key = own(NAME, "fred");
        let part = |what: &str| format!("redisson_lock_{what}:{{{key}}}");
        let turns = Self {
            commands: BareFred::connect(context).await,
            messages: BareFred::connect(context).await,
            owners: (0..owners).map(owner).collect(),
            keys: [key.clone(), part("queue"), part("timeout")],
            channel: channel(&key),
        };
        for owner in &turns.owners {
            let channel = format!("{}:{owner}", turns.channel);
            let subscribed = turns.messages.client.subscribe(channel).await;
            subscribed.expect("subscribed");
        }
        Box::new(turns)
    }

    async fn call(&self, which: Which, arguments: &[Argument<'_>]) -> i64 {
        let keys = self.keys.each_ref().map(String::as_str);
        self.commands.call(which, &keys, arguments).await
    }

    /// 1, or [`BUSY`]: then it has a place in the queue.
    async fn acquire(&self, owner: &str) -> i64 {
        let (hold, wanted) = (Argument::Number(1), text("1"));
        let (channel, way) = (text(&self.channel), text("publish"));
        let arguments = [text(owner), hold, LEASE_MS, WAIT_MS, wanted, channel, way];
        self.call(Which::FairAcquire, &arguments).await
    }

    async fn release(&self, owner: &str) -> i64 {
        let (none, lease) = (Argument::Number(0), Argument::Number(1));
        let (channel, way, leaves) = (text(&self.channel), text("publish"), text("0"));
        let arguments = [text(owner), none, lease, channel, way, WAIT_MS, leaves];
        self.call(Which::FairRelease, &arguments).await
    }

    /// Until the time is over; then nothing is left.
    async fn run(&self, context: &Context, time: Duration) -> (Vec<u64>, Duration) {
        for (nth, owner) in self.owners.iter().enumerate() {
            let answer = self.acquire(owner).await;
            assert_eq!(answer, if nth == 0 { 1 } else { BUSY });
        }
        let mut messages = self.messages.client.message_rx();
        // The next turn does not wait for them.
        let mut queue_up = FuturesUnordered::new();
        let (mut nanos, begin) = (Vec::new(), Instant::now());
        for turn in 0.. {
            let owner = |nth: usize| &self.owners[nth % self.owners.len()];
            let (holder, next) = (owner(turn), owner(turn + 1));
            let before = Instant::now();
            queue_up.push(async move {
                assert_eq!(self.release(holder).await, 2, "one has heard it");
                assert_eq!(self.acquire(holder).await, BUSY);
            });
            let turn = async {
                let message = messages.recv().await.expect("a message");
                assert!(message.channel.ends_with(next.as_str()), "its turn");
                assert_eq!(self.acquire(next).await, 1);
            };
            tokio::pin!(turn);
            loop {
                tokio::select! {
                    biased;
                    Some(()) = queue_up.next() => {}
                    () = &mut turn => break,
                }
            }
            nanos.push(before.elapsed().as_nanos() as u64);
            if begin.elapsed() >= time {
                break;
            }
        }
        let took = begin.elapsed();
        while queue_up.next().await.is_some() {}
        context.with_control(|control| control.run(&["FLUSHDB"]));
        (nanos, took)
    }
}

impl System for Turns {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let (before, cpu) = (context.scripts(), context.cpu());
            let (nanos, took) = self.run(context, amount.time).await;
            let [client, server] = context.cpu_since(cpu);
            // Those with which all of them queue up before the first turn are none of its turns.
            let calls = context.scripts() - before - self.owners.len() as i64;
            let sample = Sample::of_tasks(vec![nanos], took)
                .with_scripts(calls)
                .with_cpu(client, server, took)
                .without(sample::FAIRNESS);
            vec![(TURNS, sample)]
        })
    }
}

pub const TURNS: &str = "floor: release, message, acquire, queue up (fred)";

const NAME: &str = "fair";

/// For how long a place counts after its turn has come; the crate's default.
const WAIT_MS: Argument<'static> = Argument::Number(300_000);
