//! Many locks held and renewed: what that costs a process that does nothing else.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{LockClient, LockGuard, Owner};
use serde::{Deserialize, Serialize};
use test_support::peer::Peer;
use test_support::{Control, ms};
use tokio::process::Command;

use crate::context::{Amount, Context, Played, System, script_calls};
use crate::process::{self, Cpu};
use crate::sample::{self, Sample};
use crate::scenario::OURS;
use crate::{heap, jvm};

/// What is held, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Memory is what is used at `count` more than at `first`, so that a client without locks costs
    /// nothing.
    pub first: usize,
    pub count: usize,
    pub time: Duration,
}

impl Plan {
    pub fn of(count: usize, time: Duration) -> Self {
        let first = count / 10;
        Self { first, count, time }
    }
}

/// Memory at one moment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Memory {
    heap: f64,
    resident: f64,
}

/// From the two moments, and what was counted while all were held.
fn sample(plan: Plan, memory: [Memory; 2], kept: Kept, took: Duration) -> Sample {
    let locks = (plan.count - plan.first) as f64;
    let gone = plan.count as i64 - kept.keys;
    let figures = BTreeMap::from([
        (sample::CPU, kept.cpu_ms / kept.seconds),
        (sample::CALLS, kept.calls as f64 / kept.seconds),
        (sample::HEAP, (memory[1].heap - memory[0].heap) / locks),
        (
            sample::RSS,
            (memory[1].resident - memory[0].resident) / locks,
        ),
        (sample::LOST, gone.max(kept.lost) as f64),
        (sample::TAKE, took.as_secs_f64()),
    ]);
    Sample {
        figures,
        nanos: Vec::new(),
    }
}

/// What was counted while all locks were held.
#[derive(Serialize, Deserialize)]
struct Kept {
    cpu_ms: f64,
    calls: i64,
    keys: i64,
    /// What the holder itself knows of.
    lost: i64,
    seconds: f64,
}

/// Lets the holder renew for that long.
async fn keep(control: &mut Control, holder: u32, time: Duration) -> Kept {
    let (cpu, calls, begin) = (Cpu::of(holder).sum(), script_calls(control), Instant::now());
    tokio::time::sleep(time).await;
    Kept {
        cpu_ms: Cpu::of(holder).sum() - cpu,
        calls: script_calls(control) - calls,
        seconds: begin.elapsed().as_secs_f64(),
        keys: control.number(&["DBSIZE"]),
        lost: 0,
    }
}

/// This program again, as a process that does nothing but hold: [`child`].
pub struct Ours(pub Plan);

impl System for Ours {
    fn play<'a>(&'a self, context: &'a Context, _: Amount) -> Played<'a> {
        Box::pin(async move {
            let own = std::env::current_exe().expect("this program");
            let numbers = [
                usize::from(context.server.port),
                self.0.first,
                self.0.count,
                self.0.time.as_millis() as usize,
            ];
            let output = Command::new(own)
                .arg("hold-locks")
                .args(numbers.map(|number| number.to_string()))
                .stderr(Stdio::inherit())
                .output()
                .await
                .expect("it runs");
            assert!(output.status.success(), "the process that holds has failed");
            let (memory, kept, took) = serde_json::from_slice(&output.stdout).expect("JSON");
            let sample = sample(self.0, memory, kept, took);
            if context.is_checked() {
                assert_eq!(sample.figures[sample::LOST], 0.0, "locks were lost");
            }
            vec![(OURS, sample)]
        })
    }

    /// Every round has a process of its own.
    fn warm(&self, _: crate::context::Form) -> Duration {
        Duration::ZERO
    }
}

/// Holds locks, prints what that took as JSON, and gives them back.
pub async fn child(port: u16, plan: Plan) {
    heap::count();
    let mut control = Control::connect(port);
    let client = LockClient::builder()
        .watchdog_timeout(WATCHDOG)
        .command_timeout(WATCHDOG / 4)
        .connect(&format!("redis://127.0.0.1:{port}"))
        .await
        .expect("the server answers");
    let owner = client.owner();
    // Allocated before the first look at memory; its pages are used later, and subtracted.
    let mut guards = Vec::with_capacity(plan.count);
    let begin = Instant::now();
    take(&client, &owner, &mut guards, plan.first).await;
    let mut took = begin.elapsed();
    let first = memory(0).await;
    let begin = Instant::now();
    take(&client, &owner, &mut guards, plan.count).await;
    took += begin.elapsed();
    let all = memory((plan.count - plan.first) * size_of::<LockGuard>()).await;
    let mut kept = keep(&mut control, std::process::id(), plan.time).await;
    kept.lost = client.stats().lost_total as i64;
    release(guards).await;
    let held = serde_json::to_string(&([first, all], kept, took));
    println!("{}", held.expect("plain data"));
}

/// Acquires locks until there are this many, 200 in flight.
async fn take(client: &LockClient, owner: &Owner, guards: &mut Vec<LockGuard>, count: usize) {
    let next = Arc::new(AtomicUsize::new(guards.len()));
    let tasks: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (client, owner, next) = (client.clone(), owner.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return taken;
                    }
                    // 16 bytes.
                    let lock = client.lock(format!("hold:{number:011}")).owned_by(&owner);
                    taken.push(lock.lock().await.expect("free"));
                }
            })
        })
        .collect();
    for task in tasks {
        guards.extend(task.await.expect("it does not panic"));
    }
}

async fn release(mut guards: Vec<LockGuard>) {
    let share = guards.len().div_ceil(IN_FLIGHT);
    let mut tasks = Vec::new();
    while !guards.is_empty() {
        let own = guards.split_off(guards.len().saturating_sub(share));
        tasks.push(tokio::spawn(async move {
            for guard in own {
                // What was lost until now has been counted.
                let _ = guard.unlock().await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("it does not panic");
    }
}

/// What is used now, less what the harness has of it.
async fn memory(own_bytes: usize) -> Memory {
    tokio::time::sleep(ms(200)).await;
    Memory {
        heap: heap::live() as f64,
        resident: process::resident(std::process::id()) - own_bytes as f64,
    }
}

/// A JVM of its own for every round.
pub struct InJvm(pub Plan);

impl InJvm {
    async fn memory(peer: &Peer, process: u32) -> Memory {
        let heap = jvm::call(peer, &work("heap")).await;
        Memory {
            heap: heap.as_f64().expect("a number"),
            resident: process::resident(process),
        }
    }

    async fn take(peer: &Peer, count: usize) -> Duration {
        let mut values = work("hold");
        values.push(("count", count.to_string()));
        values.push(("name", "hold:".to_owned()));
        let nanos = jvm::call(peer, &values).await;
        Duration::from_nanos(nanos.as_u64().expect("a number"))
    }
}

fn work(work: &str) -> Vec<(&'static str, String)> {
    vec![("work", work.to_owned()), ("clients", "1".to_owned())]
}

impl System for InJvm {
    fn play<'a>(&'a self, context: &'a Context, _: Amount) -> Played<'a> {
        Box::pin(async move {
            let plan = self.0;
            let peer = context.jvm(1, WATCHDOG).await.expect("Java is there");
            let process = peer.process_id().expect("it runs");
            let mut took = Self::take(&peer, plan.first).await;
            let first = Self::memory(&peer, process).await;
            took += Self::take(&peer, plan.count).await;
            let all = Self::memory(&peer, process).await;
            tokio::time::sleep(context.form.warm_jvm()).await;
            let mut control = context.server.control();
            let kept = keep(&mut control, process, plan.time).await;
            jvm::call(&peer, &work("release")).await;
            // Redisson deletes a second key of each lock after its unlock has returned.
            context.empty(jvm::NAME).await;
            vec![(jvm::NAME, sample(plan, [first, all], kept, took))]
        })
    }

    fn warm(&self, _: crate::context::Form) -> Duration {
        Duration::ZERO
    }
}

pub const WATCHDOG: Duration = Duration::from_secs(3);
const IN_FLIGHT: usize = 200;
