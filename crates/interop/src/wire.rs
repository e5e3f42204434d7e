//! The same calls made by Java and by us, step by step: after each the keys, fields, counts,
//! leases, listeners and messages are compared. What differs by design is a list; a difference that
//! is not on it fails, and so does an entry that no longer shows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::fixture::{eventually, listen};
use crate::party::Party;
use crate::stored::channel;
use crate::worker::Worker;
use test_support::{Control, Monitor, ms, stalls};

/// One thing that both do.
#[derive(Debug, Clone, Copy)]
enum Act {
    Lock(usize, Option<u64>),
    /// Somebody else's attempt, which is refused.
    Refused(usize),
    Unlock(usize),
    /// An unlock of what is not held.
    UnlockRefused(usize),
    Force(usize),
    /// The lease ends.
    RunOut,
    /// A second worker begins to wait.
    Wait(usize),
    /// It has the lock.
    Served,
    /// Nothing, for this time.
    Pause(u64),
}

/// What differs after a step, and how: ours first.
#[derive(Debug, Clone, Copy)]
enum Differs {
    Nothing,
    /// About this many milliseconds are left.
    Lease(i64, i64),
    Listeners(i64, i64),
    /// This many messages.
    Messages(usize, usize),
}

use Act::{Force, Lock, Pause, Refused, RunOut, Served, Unlock, UnlockRefused, Wait};
use Differs::{Lease, Listeners, Messages, Nothing};

/// The watchdog timeout of both is 30 s.
const FULL: &[(Act, Differs)] = &[
    (Force(0), Nothing),
    (UnlockRefused(0), Nothing),
    (Lock(0, None), Nothing),
    (Lock(0, None), Nothing),
    (Refused(1), Nothing),
    (UnlockRefused(1), Nothing),
    (Unlock(0), Nothing),
    (Unlock(0), Nothing),
    (UnlockRefused(0), Nothing),
    // A fixed lease inside a watchdog hold: Redisson shortens the lease, we never do.
    (Lock(0, None), Nothing),
    (Lock(0, Some(10_000)), Lease(30_000, 10_000)),
    (Unlock(0), Lease(30_000, 10_000)),
    (Unlock(0), Nothing),
    // The reverse: an `RLock` remembers the last lease that it was given, and takes it for the
    // watchdog's own.
    (Lock(0, Some(10_000)), Nothing),
    (Lock(0, None), Lease(30_000, 10_000)),
    (Unlock(0), Lease(30_000, 10_000)),
    (Unlock(0), Nothing),
    // A lease that is over: ours is released at its local end, with a message; Redisson's runs
    // out in silence.
    (Lock(0, Some(1_000)), Nothing),
    (RunOut, Messages(1, 0)),
    (UnlockRefused(0), Nothing),
    // Forced open while it is held.
    (Lock(0, Some(60_000)), Nothing),
    (Force(1), Nothing),
    (UnlockRefused(0), Nothing),
    // A waiter listens, and is served; our subscription lingers for a second.
    (Lock(0, Some(60_000)), Nothing),
    (Wait(1), Nothing),
    (Unlock(0), Listeners(1, 0)),
    (Served, Listeners(1, 0)),
    (Pause(1_300), Nothing),
    (Unlock(1), Nothing),
];

/// For names that are not so plain.
const SHORT: &[(Act, Differs)] = &[
    (Lock(0, Some(20_000)), Nothing),
    (Refused(1), Nothing),
    (Lock(0, Some(20_000)), Nothing),
    (Unlock(0), Nothing),
    (Unlock(0), Nothing),
];

const NAMES: [&str; 6] = [
    "{wire}:tag",
    "wire{unclosed",
    "wire with spaces",
    "wire \"quoted' one",
    "wire 🔒",
    "wire:}{",
];

/// Everything that is on the list shows, and nothing else does.
pub async fn check(port: u16, rust: &[Party; 2], java: &[Party; 2]) {
    play("wire", FULL, port, rust, java).await;
    for name in NAMES {
        play(name, SHORT, port, rust, java).await;
    }
}

/// One side of the comparison.
struct Side {
    name: String,
    workers: [Worker; 2],
    waiting: Option<tokio::task::JoinHandle<()>>,
    /// Fields in the order in which they were first seen.
    fields: Vec<String>,
}

/// What stands in Redis, ids normalised.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: String,
    holds: BTreeMap<usize, String>,
    messages: Vec<String>,
}

/// The workers of a side belong to two clients: within one, ours would wait without listening.
async fn play(
    base: &str,
    script: &[(Act, Differs)],
    port: u16,
    rust: &[Party; 2],
    java: &[Party; 2],
) {
    let mut sides = [rust, java].map(|parties| Side {
        name: format!(
            "{base} {}",
            if parties[0].is_rust() {
                "of Rust"
            } else {
                "of Java"
            }
        ),
        workers: [parties[0].worker(), parties[1].worker()],
        waiting: None,
        fields: Vec::new(),
    });
    let control = &mut Control::connect(port);
    let mark = format!("{base}: heard");
    let channels = sides
        .iter()
        .map(|side| channel(&side.name))
        .chain([mark.clone()]);
    let mut received = listen(port, channels.collect());
    let monitor = Monitor::start(port);
    for (nth, &(act, differs)) in script.iter().enumerate() {
        let step = format!("{base}, step {nth}, {act:?}");
        let [ours, theirs] = &mut sides;
        let start = Instant::now();
        let answers = [ours.act(act, control).await, theirs.act(act, control).await];
        assert_eq!(answers[0], answers[1], "{step}: the answers");
        let executed = monitor.take(control);
        // What was published before the mark is heard before it.
        control.run(&["PUBLISH", &mark, ""]);
        let mut messages = Vec::new();
        while let Some(message) = received
            .recv()
            .await
            .filter(|(channel, _)| *channel != mark)
        {
            messages.push(message);
        }
        let seen = [
            ours.seen(control, &messages),
            theirs.seen(control, &messages),
        ];
        compare_ends(
            &step,
            act,
            [ours.end(&executed), theirs.end(&executed)],
            &seen[1],
        );
        compare_states(&step, differs, seen, stalls(start));
        let leases = [control.pttl(&ours.name), control.pttl(&theirs.name)];
        compare_leases(&step, differs, leases, stalls(start));
        compare_listeners(&step, differs, || {
            [ours.listeners(control), theirs.listeners(control)]
        })
        .await;
    }
    for side in &sides {
        assert_eq!(control.hash(&side.name), "", "nothing is left");
    }
}

/// How a script ends a hold always differs. We tell the channel before we delete: were the message
/// refused, the lock would not be free in silence. And Redisson sets a latch that a repeated unlock
/// would find; we need none.
fn compare_ends(step: &str, act: Act, ends: [Vec<&'static str>; 2], theirs: &Seen) {
    let freed = !theirs.messages.is_empty();
    let by_design: [&[&str]; 2] = match act {
        Unlock(_) if freed => [&["publish", "del"], &["del", "publish", "set"]],
        Unlock(_) => [&[], &["set"]],
        Force(_) if freed => [&["publish", "del"], &["del", "publish"]],
        _ => return,
    };
    assert_eq!(ends, by_design, "{step}: this difference is on the list");
}

fn compare_states(step: &str, differs: Differs, mut seen: [Seen; 2], stalled: Duration) {
    if let Messages(ours, theirs) = differs {
        let counts = seen.each_ref().map(|side| side.messages.len());
        // Our release comes at the local end of the lease. On a machine that stood still the lock is free before it.
        let is_late = counts == [0, theirs] && stalled >= ms(10);
        assert!(
            counts == [ours, theirs] || is_late,
            "{step}: this difference is on the list: {counts:?}"
        );
        for side in &mut seen {
            side.messages.clear();
        }
    }
    assert_eq!(seen[0], seen[1], "{step}: ours, and Java's");
}

fn compare_leases(step: &str, differs: Differs, [ours, theirs]: [i64; 2], stalls: Duration) {
    let near = |left: i64, expected: i64| (left - expected).abs() <= 1_000;
    let agree = match differs {
        Lease(our_own, their_own) => near(ours, our_own) && near(theirs, their_own),
        _ => (ours - theirs).unsigned_abs() <= 500 + stalls.as_millis() as u64,
    };
    assert!(
        agree,
        "{step}: {ours} and {theirs} ms left; on the list is {differs:?}"
    );
}

/// A waiter that was served leaves the channel a moment later.
async fn compare_listeners(step: &str, differs: Differs, mut pair: impl FnMut() -> [i64; 2]) {
    let agree = || match (differs, pair()) {
        (Listeners(ours, theirs), pair) => pair == [ours, theirs],
        (_, [ours, theirs]) => ours == theirs,
    };
    eventually(
        &format!("{step}: listeners; on the list is {differs:?}"),
        agree,
    )
    .await;
}

impl Side {
    /// Answers what a forced unlock says.
    async fn act(&mut self, act: Act, control: &mut Control) -> Option<bool> {
        let name = &self.name;
        match act {
            Lock(worker, lease) => {
                self.workers[worker]
                    .lock(name, lease.map(Duration::from_millis))
                    .await
                    .expect("free, or its own");
            }
            Refused(worker) => assert_eq!(
                self.workers[worker].try_lock(name, None, None).await,
                Ok(false)
            ),
            Unlock(worker) => {
                self.workers[worker].unlock(name).await.expect("held");
                if let Some(waiting) = &self.waiting {
                    eventually("the waiter has it", || waiting.is_finished()).await;
                }
            }
            UnlockRefused(worker) => self.workers[worker].unlock_too_late(name).await,
            Force(worker) => {
                return self.workers[worker]
                    .force_unlock(name)
                    .await
                    .expect("answered");
            }
            RunOut => eventually("the lease ends", || control.hash(name).is_empty()).await,
            Wait(worker) => {
                let (worker, name) = (self.workers[worker].clone(), name.clone());
                let before = control.run(&["PUBSUB", "NUMSUB", &channel(&name)]);
                let waits_for = name.clone();
                self.waiting = Some(tokio::spawn(async move {
                    worker.lock(&waits_for, None).await.expect("in the end");
                }));
                eventually("it listens", || {
                    control.run(&["PUBSUB", "NUMSUB", &channel(&name)]) != before
                })
                .await;
                tokio::time::sleep(ms(50)).await;
            }
            Served => self
                .waiting
                .take()
                .expect("somebody waits")
                .await
                .expect("no panic"),
            Pause(time) => tokio::time::sleep(ms(time) / 2).await,
        }
        None
    }

    /// What scripts deleted, told and latched of this side's lock, in their order.
    fn end(&self, executed: &[String]) -> Vec<&'static str> {
        let (name, channel) = (escaped(&self.name), escaped(&channel(&self.name)));
        let exactly = |text: &str, what: &str| text.contains(&format!("\"{what}\""));
        let verb = |line: &String| {
            let (_, call) = line.split_once(" lua] ")?;
            let (verb, rest) = call.split_once(' ')?;
            match verb.to_lowercase().as_str() {
                "\"publish\"" if exactly(rest, &channel) => Some("publish"),
                "\"del\"" if exactly(rest, &name) => Some("del"),
                "\"set\"" if rest.contains("redisson_unlock_latch:") && rest.contains(&name) => {
                    Some("set")
                }
                _ => None,
            }
        };
        executed.iter().filter_map(verb).collect()
    }

    /// How many listen to the channel, this test left out.
    fn listeners(&self, control: &mut Control) -> i64 {
        let text = control.run(&["PUBSUB", "NUMSUB", &channel(&self.name)]);
        text.rsplit(' ')
            .next()
            .and_then(|number| number.parse::<i64>().ok())
            .expect("a number")
            - 1
    }

    fn seen(&mut self, control: &mut Control, messages: &[(String, String)]) -> Seen {
        let kind = control.run(&["TYPE", &self.name]);
        let mut holds = BTreeMap::new();
        if kind == "hash" {
            let field = control.run(&["HKEYS", &self.name]);
            assert_eq!(control.number(&["HLEN", &self.name]), 1, "one field");
            let (client, thread) = field.rsplit_once(':').expect("a client and a thread");
            assert_eq!(client.len(), 36, "a client id is a UUID: {field}");
            thread.parse::<i64>().expect("a thread is a Java long");
            let nth = self
                .fields
                .iter()
                .position(|known| *known == field)
                .unwrap_or_else(|| {
                    self.fields.push(field.clone());
                    self.fields.len() - 1
                });
            holds.insert(nth, control.run(&["HGET", &self.name, &field]));
        }
        let own = channel(&self.name);
        let messages = messages.iter().filter(|(channel, _)| *channel == own);
        Seen {
            kind,
            holds,
            messages: messages.map(|(_, payload)| payload.clone()).collect(),
        }
    }
}

/// A name as MONITOR shows it.
fn escaped(name: &str) -> String {
    let shown = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    name.bytes().map(shown).collect()
}
