//! Tokens of fenced locks that processes of both sides hold in turn, and a resource that checks them.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, eventually};
use crate::party::Party;
use crate::worker::Worker;
use test_support::kinds::token_key;
use test_support::resource::{accepted, write};
use test_support::{Control, ms, stalls};

const PROCESSES: usize = 4;
const TOKENS: usize = 5_000;

/// After each hundredth hold its worker stands still with the next one until its lease is over, and writes then.
const LATE_EVERY: u64 = 100;

/// Four processes of ours and workers of the other side: each holder has a larger token than all before it, and the
/// resource refuses each write that comes too late, and no other.
pub async fn of_processes(fixture: Fixture) {
    let fixture = fixture.of_kind("fenced");
    let (port, name) = (fixture.port(), &fixture.name);
    let mut processes = Processes::start(port, name);
    work(&fixture.second, port, name, 4).await;
    eventually("all processes end", || processes.have_ended()).await;
    let (control, keys) = (&mut fixture.control(), Keys::of(name));
    let writes = accepted(control, &keys.writes);
    assert!(writes.len() >= TOKENS, "{}", writes.len());
    assert!(
        writes.is_sorted_by(|(one, _), (next, _)| one < next),
        "{writes:?}"
    );
    let client = |owner: &str| owner.split(':').next().unwrap_or_default().to_owned();
    let clients: BTreeSet<String> = writes.iter().map(|(_, owner)| client(owner)).collect();
    assert_eq!(clients.len(), PROCESSES + 1, "all of them have written");
    let late = control.number(&["GET", &keys.late]);
    let refused = control.number(&["HGET", &keys.resource, "refused"]);
    println!("{name}: {} holders, {late} late writes", writes.len());
    let wanted = (TOKENS as u64 / LATE_EVERY / 2) as i64;
    assert!(late >= wanted, "{late} late writes");
    assert_eq!(refused, late, "every late write, and no other");
    control.run(&["DEL", &keys.resource, &keys.writes, &keys.late]);
}

struct Keys {
    resource: String,
    writes: String,
    late: String,
}

impl Keys {
    fn of(name: &str) -> Self {
        Self {
            resource: format!("resource of {name}"),
            writes: format!("writes of {name}"),
            late: format!("late writes of {name}"),
        }
    }
}

/// This program, several times.
struct Processes(Vec<Child>);

impl Processes {
    fn start(port: u16, name: &str) -> Self {
        let program = std::env::current_exe().expect("a program");
        let start = |_| {
            let mut command = Command::new(&program);
            command.env("INTEROP_TOKENS", format!("{port} {name}"));
            command.stdout(Stdio::null()).spawn().expect("it starts")
        };
        Self((0..PROCESSES).map(start).collect())
    }

    fn have_ended(&mut self) -> bool {
        self.0.iter_mut().all(|child| {
            let ended = child.try_wait().expect("asked");
            assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
            ended.is_some()
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What one of them does.
pub async fn process(order: &str) {
    let (port, name) = order.split_once(' ').expect("a port and a name");
    let port = port.parse().expect("a number");
    let party = Party::rust(&format!("redis://127.0.0.1:{port}"), ms(30_000)).await;
    work(&party, port, name, 2).await;
    party.close().await;
}

/// Several workers of a client, until there are tokens enough.
async fn work(party: &Party, port: u16, name: &str, workers: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..workers {
        let (worker, name) = (party.worker(), name.to_owned());
        tasks.spawn(async move {
            let (control, keys) = (&mut Control::connect(port), &Keys::of(&name));
            while control.number(&["LLEN", &keys.writes]) < TOKENS as i64 {
                section(&worker, control, &name, keys).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}

async fn section(worker: &Worker, control: &mut Control, name: &str, keys: &Keys) {
    let resource = [&*keys.resource, &*keys.writes];
    worker.lock(name, None).await.expect("in the end");
    let (owner, token) = holder(control, name).expect("held");
    assert_eq!(write(control, resource, token, &owner), 2, "{token}");
    assert_eq!(write(control, resource, token, &owner), 1, "again: {token}");
    worker.unlock(name).await.expect("held");
    if token % LATE_EVERY != 0 {
        return;
    }
    worker.lock(name, Some(ms(200))).await.expect("in the end");
    // Its lease may be over already.
    let held = holder(control, name).filter(|(holder, _)| *holder == owner);
    if let Some((_, token)) = held
        && others_have_written(control, keys, token).await
    {
        control.run(&["INCR", &keys.late]);
        assert_eq!(write(control, resource, token, &owner), 0, "too late");
    }
    worker.unlock_too_late(name).await;
}

/// Whose the lock is, and its token, in one look.
fn holder(control: &mut Control, name: &str) -> Option<(String, u64)> {
    const LOOK: &str =
        "return {redis.call('hkeys', KEYS[1])[1] or '', redis.call('get', KEYS[2]) or ''}";
    let found = control.run(&["EVAL", LOOK, "2", name, &token_key(name)]);
    let (owner, token) = found.split_once(' ')?;
    Some((owner.to_owned(), token.parse().ok()?))
}

/// Stands still until somebody else has written. In the end there may be no others.
async fn others_have_written(control: &mut Control, keys: &Keys, token: u64) -> bool {
    let start = Instant::now();
    let last = |control: &mut Control| control.run(&["HGET", &keys.resource, "token"]);
    while last(control).parse::<u64>().is_ok_and(|last| last <= token) {
        if start.elapsed() > Duration::from_secs(2) + stalls(start) {
            return false;
        }
        tokio::time::sleep(ms(5)).await;
    }
    true
}
