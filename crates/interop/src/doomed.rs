//! A process of one side that takes a lock, and is killed or stopped while it waits or holds.

use std::process::{Child, Stdio};
use std::time::Duration;

use redisson_lock::{Lock, LockGuard};

use crate::fixture::{Fixture, LONG, QUICK};
use crate::party::{Client, Party};
use crate::worker::{Worker, lock_named};
use test_support::ms;
use test_support::peer::Peer;

pub enum Doomed {
    /// This program, again.
    Rust(Child),
    Java {
        jvm: Peer,
        worker: Worker,
    },
}

impl Doomed {
    /// Starts a process of the first party's side that acquires the fixture's lock this many times,
    /// waiting for it if it has to, with a watchdog timeout of [`QUICK`].
    pub async fn start(fixture: &Fixture, holds: usize) -> Self {
        let (url, name) = (fixture.url(), fixture.name.clone());
        if fixture.first.is_rust() {
            let name = fixture.first.named(&name);
            return Self::this_program("INTEROP_HOLD", format!("{holds} {url} {name}"));
        }
        let jvm = fixture.another_jvm().await;
        let party = Party::java(&jvm, url, QUICK, &[]).await;
        let worker = party.like(&fixture.first).worker();
        let taker = worker.clone();
        tokio::spawn(async move {
            for _ in 0..holds {
                // It may die on the way. Otherwise, this is why nothing is held.
                if let Err(error) = taker.lock(&name, None).await {
                    eprintln!("{name}: the JVM that is stopped or killed: {error:?}");
                }
            }
        });
        Self::Java { jvm, worker }
    }

    /// Starts a process of the first party's side that tries once to acquire the lock, for as long as this, with a
    /// watchdog timeout of 30 s.
    pub async fn tries(fixture: &Fixture, wait: Duration) -> Self {
        let (url, name) = (fixture.url(), fixture.name.clone());
        if fixture.first.is_rust() {
            return Self::this_program("INTEROP_TRY", format!("{} {url} {name}", wait.as_millis()));
        }
        let jvm = fixture.another_jvm().await;
        let worker = Party::java(&jvm, url, LONG, &[]).await.worker();
        let taker = worker.clone();
        tokio::spawn(async move { taker.try_lock(&name, Some(wait), None).await });
        Self::Java { jvm, worker }
    }

    pub fn this_program(variable: &str, order: String) -> Self {
        let program = std::env::current_exe().expect("a program");
        let mut command = std::process::Command::new(program);
        command.env(variable, order);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self::Rust(command.spawn().expect("it starts"))
    }

    /// Kills the process, stops it where it stands, or lets it go on.
    pub fn signal(&self, signal: &str) {
        let Self::Rust(child) = self else {
            let Self::Java { jvm, .. } = self else {
                unreachable!("one of two")
            };
            return jvm.signal(signal);
        };
        let sent = std::process::Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits until a JVM waits for a message. Stopped before it has read the reply to its attempt, it takes that for lost
    /// when it goes on, and sends the attempt again for a caller whose time is over.
    pub async fn sleeps(&self) {
        if let Self::Java { worker, .. } = self {
            worker.sleeps().await;
        }
    }

    /// Ours has no caller who would unlock: its watchdog finds out by itself.
    pub async fn unlocks_too_late(&self, name: &str) {
        if let Self::Java { worker, .. } = self {
            worker.unlock_too_late(name).await;
        }
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        if let Self::Rust(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub async fn hold(order: &str) -> Vec<LockGuard> {
    let (holds, lock) = ordered(order, QUICK).await;
    let mut guards = Vec::new();
    for _ in 0..holds {
        guards.push(lock.lock().await.expect("in the end"));
    }
    guards
}

/// The client stays, and with it what it does in the background.
pub async fn try_once(order: &str) -> (Lock, Option<LockGuard>) {
    let (wait, lock) = ordered(order, LONG).await;
    let guard = lock.try_lock_for(ms(wait)).await.expect("answered");
    (lock, guard)
}

/// What a process is told: a number, and its lock.
async fn ordered(order: &str, watchdog: Duration) -> (u64, Lock) {
    let mut words = order.splitn(3, ' ');
    let mut word = || words.next().expect("a number, url and name");
    let (number, url, name) = (word().parse().expect("a number"), word(), word());
    let Client::Rust(client) = Party::rust(url, watchdog).await.client else {
        unreachable!("ours")
    };
    (number, lock_named(&client, name))
}
