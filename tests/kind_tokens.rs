//! The tokens of a fenced lock between processes, and a resource that checks them.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redisson_lock::{Error, FencedGuard, LockClient};
use test_support::{Control, TestServer, may_take, ms, resource, stalls, tokio};

/// Writes as this holder, whether it still is one or not.
fn write(control: &mut Control, token: u64, owner: &str) -> i64 {
    resource::write(control, ["resource", "writes"], token, owner)
}

const PROCESSES: usize = 4;
const TOKENS: usize = 5_000;

/// Each hundredth holder stands still until its lease is over, and writes then.
const LATE_EVERY: usize = 100;

/// In the environment of a worker: where the server is.
const PORT: &str = "TOKENS_PORT";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_holders_of_four_processes_have_tokens_that_grow_and_no_stale_write_is_accepted()
 {
    may_take(Duration::from_secs(120));
    if let Ok(port) = std::env::var(PORT) {
        return work(port.parse().expect("a port")).await;
    }
    let server = TestServer::new();
    let mut control = server.control();
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(server.port)).collect();
    for worker in &mut workers {
        assert!(worker.0.wait().expect("it ends").success());
    }
    let writes = resource::accepted(&mut control, "writes");
    let tokens: Vec<u64> = writes.iter().map(|(token, _)| *token).collect();
    assert!(tokens.len() >= TOKENS, "{}", tokens.len());
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let owners = writes.iter().map(|(_, owner)| owner.split_once(':'));
    let clients: BTreeSet<&str> = owners.map(|owner| owner.expect("a field").0).collect();
    assert_eq!(clients.len(), PROCESSES, "all of them have written");
    let late = control.number(&["GET", "late"]);
    let refused = control.number(&["HGET", "resource", "refused"]);
    println!(
        "{} holders, {late} late writes, {refused} refused",
        tokens.len()
    );
    assert!(
        late >= (TOKENS / LATE_EVERY / 2) as i64,
        "{late} late writes"
    );
    assert_eq!(refused, late, "every late write, and no other");
    assert_eq!(control.run(&["GET", "accepted late"]), "(nil)");
    control.run(&["DEL", "resource", "writes", "late"]);
    server.finish([]).await;
}

/// This program again, as a worker.
struct Worker(Child);

impl Worker {
    fn start(port: u16) -> Self {
        let name = "five_thousand_holders_of_four_processes_have_tokens_that_grow_and_no_stale_write_is_accepted";
        let program = std::env::current_exe().expect("this binary");
        let worker = Command::new(program)
            .args(["--exact", name])
            .env(PORT, port.to_string())
            .stdout(Stdio::null())
            .spawn();
        Self(worker.expect("started"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Four tasks of one process, until there are tokens enough.
async fn work(port: u16) {
    let client = LockClient::connect(&format!("redis://127.0.0.1:{port}"))
        .await
        .expect("the server answers");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        tasks.spawn(task(client.clone(), Control::connect(port)));
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic").expect("every call is answered");
    }
    client.close(Duration::ZERO).await;
}

async fn task(client: LockClient, mut control: Control) -> Result<(), Error> {
    let lock = client.fenced_lock("shared");
    while control.number(&["LLEN", "writes"]) < TOKENS as i64 {
        let guard = lock.lock().await?;
        let (token, owner) = (guard.token(), guard.owner().to_string());
        assert_eq!(
            write(&mut control, token, &owner),
            2,
            "of a holder: {token}"
        );
        assert_eq!(write(&mut control, token, &owner), 1, "again: {token}");
        guard.unlock().await?;
        if token % LATE_EVERY as u64 == 0 {
            let guard = lock.lease(ms(40)).lock().await?;
            late(guard, &mut control).await;
        }
    }
    Ok(())
}

/// A holder that stands still until another one has written, and does not look before it writes.
async fn late(guard: FencedGuard, control: &mut Control) {
    let (token, owner) = (guard.token(), guard.owner().to_string());
    guard.lost().await;
    let start = Instant::now();
    let last = |control: &mut Control| control.run(&["HGET", "resource", "token"]);
    // Others hold it as soon as the server has ended the lease. In the end there may be no others.
    while last(control).parse::<u64>().is_ok_and(|last| last <= token) {
        if start.elapsed() > ms(2_000) + stalls(start) {
            return;
        }
        tokio::time::sleep(ms(5)).await;
    }
    control.run(&["INCR", "late"]);
    if write(control, token, &owner) != 0 {
        control.run(&["INCR", "accepted late"]);
    }
}
