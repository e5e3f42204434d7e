//! A server for one test, its clients, and the proof that nothing is left.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use redisson_lock::{LockClient, LockClientBuilder};
use tokio::runtime::Handle;

use crate::kinds::is_token;
use crate::server::{Control, Server, has_listener};
use crate::{eventually, ms};

/// A server, and what was there before the test began.
pub struct TestServer {
    server: Server,
    tasks: usize,
}

impl TestServer {
    pub fn new() -> Self {
        Self::with(&[])
    }

    pub fn with(settings: &[&str]) -> Self {
        Self {
            server: Server::start_with(settings),
            tasks: Handle::current().metrics().num_alive_tasks(),
        }
    }

    pub async fn client(&self) -> LockClient {
        self.client_with(|builder| builder).await
    }

    pub async fn client_with(
        &self,
        set: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
    ) -> LockClient {
        set(LockClient::builder())
            .connect(&self.server.url())
            .await
            .expect("the server answers")
    }

    /// Whether somebody listens for releases of this lock.
    pub fn has_listener(&self, key: &str) -> bool {
        has_listener(&mut self.control(), key)
    }

    /// Proves that nothing is left: no hold, waiter, channel, job or key, and once the clients are
    /// closed no connection and no task.
    pub async fn finish(self, clients: impl IntoIterator<Item = LockClient>) {
        let leaks = self.leaks(clients, Duration::from_secs(10)).await;
        assert!(leaks.is_empty(), "left behind: {leaks:?}");
    }

    /// What is still there after this time.
    pub async fn leaks(
        self,
        clients: impl IntoIterator<Item = LockClient>,
        time_limit: Duration,
    ) -> Vec<String> {
        let clients = clients.into_iter().collect();
        leaks(vec![self.control()], clients, self.tasks, time_limit).await
    }
}

/// What is still at these servers, in these clients and in the runtime after this time.
pub(crate) async fn leaks(
    mut servers: Vec<Control>,
    clients: Vec<LockClient>,
    tasks: usize,
    time_limit: Duration,
) -> Vec<String> {
    let limit = Instant::now() + time_limit;
    let left = |servers: &mut [Control]| {
        let mut left: Vec<String> = clients.iter().filter_map(busy).collect();
        for control in servers {
            let questions = [
                ("keys", ["KEYS", "*"]),
                ("channels", ["PUBSUB", "CHANNELS"]),
                // Before Redis 7.0 there are none.
                ("sharded channels", ["PUBSUB", "SHARDCHANNELS"]),
            ];
            for (what, words) in questions {
                let found = control.try_run(&words).unwrap_or_default();
                let found: Vec<_> = found.split(' ').filter(|word| !is_token(word)).collect();
                let found = found.join(" ");
                if !found.is_empty() {
                    left.push(format!("{what} {found}"));
                }
            }
        }
        left
    };
    let mut found = left(&mut servers);
    while !found.is_empty() && Instant::now() < limit {
        tokio::time::sleep(Duration::from_millis(5)).await;
        found = left(&mut servers);
    }
    for client in clients {
        client.close(Duration::ZERO).await;
    }
    let outside = |servers: &mut [Control]| {
        let mut left = Vec::new();
        let connections: usize = servers.iter_mut().map(Control::connections).sum();
        if connections > 0 {
            left.push(format!("{connections} connections"));
        }
        let tasks = Handle::current()
            .metrics()
            .num_alive_tasks()
            .saturating_sub(tasks);
        if tasks > 0 {
            left.push(format!("{tasks} tasks"));
        }
        left
    };
    // Sockets close a moment after the last byte; they have a patience of their own.
    let limit = Instant::now() + time_limit;
    let mut rest = outside(&mut servers);
    while !rest.is_empty() && Instant::now() < limit {
        tokio::time::sleep(Duration::from_millis(5)).await;
        rest = outside(&mut servers);
    }
    found.extend(rest);
    found
}

impl Deref for TestServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl DerefMut for TestServer {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn busy(client: &LockClient) -> Option<String> {
    let stats = client.stats();
    let sum = stats.held
        + stats.waiting
        + stats.subscriptions
        + stats.renewals
        + stats.releasing
        + stats.entries;
    (sum > 0).then(|| format!("{stats:?}"))
}

/// Replicas of this server that have its data, and acknowledge what comes.
pub async fn replicas_of(primary: &Server, count: usize) -> Vec<Server> {
    let mut control = primary.control();
    control.run(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let port = primary.port.to_string();
    let replicas = (0..count)
        .map(|_| Server::start_with(&["--replicaof", "127.0.0.1", &port]))
        .collect();
    let mut all = |what: &str| {
        let info = control.run(&["INFO", "REPLICATION"]);
        let offset = info
            .lines()
            .find_map(|line| line.trim_end().strip_prefix("master_repl_offset:"));
        let offset = format!(",offset={},", offset.expect("it is there"));
        info.matches(if what.is_empty() { &offset } else { what })
            .count()
            == count
    };
    eventually("all have the data", ms(20_000), || all("state=online")).await;
    let mut control = primary.control();
    // A replica that has just come acknowledges for the first time within a second.
    control.run(&["SET", "warm", "1"]);
    control.run(&["DEL", "warm"]);
    let wanted = count.to_string();
    let acknowledge = || control.number(&["WAIT", &wanted, "100"]) == count as i64;
    eventually("all acknowledge", ms(20_000), acknowledge).await;
    // And what WAIT itself has sent to them.
    eventually("all have everything", ms(20_000), || all("")).await;
    replicas
}
