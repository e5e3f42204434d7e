//! A process of one side that takes a lock, and is killed or stopped while it waits or holds.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::fixture::{Fixture, QUICK};
use crate::party::Party;
use crate::worker::{Worker, kind_of};
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
            let program = std::env::current_exe().expect("a program");
            let mut command = std::process::Command::new(program);
            command.env("INTEROP_HOLD", format!("{holds} {url} {name}"));
            return Self::Rust(
                command
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("it starts"),
            );
        }
        let jvm = fixture.another_jvm().await;
        let worker = Party::java(&jvm, url, QUICK, &[]).await.worker();
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

/// What the child process does.
pub fn hold_until_killed(order: &str) {
    let mut words = order.splitn(3, ' ');
    let mut word = || words.next().expect("how often, url and name");
    let (holds, url, name) = (word().parse().expect("a number"), word(), word());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let Party::Rust(client) = Party::rust(url, QUICK).await else {
            unreachable!("ours")
        };
        let mut guards = Vec::new();
        for _ in 0..holds {
            guards.push(
                client
                    .lock_of(kind_of(name), name)
                    .lock()
                    .await
                    .expect("in the end"),
            );
        }
        // Not for ever, should its parent be killed first.
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}
