//! What every test uses: a server of its own, facts to wait for, and the proof that nothing is left.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod ground;
pub mod proxy;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redisson_lock::{LockClient, LockClientBuilder};
use tokio::runtime::Handle;

/// A redis-server on a free port, ended with its handle.
pub struct Server {
    child: Child,
    pub port: u16,
    /// Where it may write; gone with the server.
    folder: std::path::PathBuf,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more settings. A port that was taken meanwhile costs another try.
    pub fn start_with(settings: &[&str]) -> Self {
        stall_watch();
        for _ in 0..20 {
            let port = free_port();
            let folder = std::env::temp_dir().join(format!("redisson-lock-{}-{port}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a temporary folder");
            let child = Command::new(server_binary())
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .arg("--dir")
                .arg(&folder)
                .args(settings)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| {
                    panic!(
                        "cannot start `{}` ({error}): run the tests with `cargo xtask test`, which finds or installs \
                         a server, or set REDIS_SERVER_BIN",
                        server_binary()
                    )
                });
            let mut server = Self { child, port, folder };
            if server.answers() {
                return server;
            }
        }
        panic!("no redis-server could be started on a free port");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection that knows nothing of the crate under test.
    pub fn control(&self) -> Control {
        let client = redis::Client::open(self.url()).expect("a valid address");
        let mut control = Control { connection: client.get_connection().expect("the server answers") };
        control.run(&["CLIENT", "SETNAME", "control"]);
        control
    }

    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    fn answers(&mut self) -> bool {
        let limit = Instant::now() + Duration::from_secs(10);
        while Instant::now() < limit {
            if self.child.try_wait().expect("the child can be asked").is_some() {
                return false;
            }
            let client = redis::Client::open(self.url()).expect("a valid address");
            if let Ok(mut connection) = client.get_connection()
                && redis::cmd("PING").query::<String>(&mut connection).is_ok()
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Found by `cargo xtask test` in this order: the variable, the PATH, `target/tools`.
fn server_binary() -> String {
    if let Ok(binary) = std::env::var("REDIS_SERVER_BIN") {
        return binary;
    }
    let on_path = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    let names = ["redis-server", "valkey-server"];
    names.into_iter().find(|name| on_path(name)).unwrap_or("redis-server").to_owned()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A plain, blocking connection for looking and for doing harm.
pub struct Control {
    pub connection: redis::Connection,
}

impl Control {
    /// Runs a command and answers as text: nil is "(nil)", lists are joined with spaces.
    pub fn run(&mut self, words: &[&str]) -> String {
        self.try_run(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_run(&mut self, words: &[&str]) -> Result<String, redis::RedisError> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query::<redis::Value>(&mut self.connection).map(|value| shown(&value))
    }

    pub fn number(&mut self, words: &[&str]) -> i64 {
        let answer = self.run(words);
        answer.parse().unwrap_or_else(|_| panic!("{words:?} answered {answer}"))
    }

    /// The lock hash as "field count", or "" if there is none.
    pub fn hash(&mut self, key: &str) -> String {
        self.run(&["HGETALL", key])
    }

    pub fn count(&mut self, key: &str) -> i64 {
        self.run(&["HVALS", key]).parse().unwrap_or(0)
    }

    pub fn pttl(&mut self, key: &str) -> i64 {
        self.number(&["PTTL", key])
    }

    /// Connections that are not a test's own.
    pub fn connections(&mut self) -> usize {
        let list = self.run(&["CLIENT", "LIST"]);
        list.lines().filter(|line| line.contains("addr=") && !line.contains("name=control ")).count()
    }

    /// How often a command was called, from `INFO commandstats`.
    pub fn calls(&mut self, command: &str) -> i64 {
        let info = self.run(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        info.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok()).unwrap_or(0)
    }
}

fn shown(value: &redis::Value) -> String {
    match value {
        redis::Value::Nil => "(nil)".to_owned(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        redis::Value::SimpleString(text) => text.clone(),
        redis::Value::Okay => "OK".to_owned(),
        redis::Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    }
}

/// Waits for a fact. The budget is a bound, not a wait.
pub async fn eventually(what: &str, budget: Duration, mut fact: impl FnMut() -> bool) {
    let limit = Instant::now() + budget;
    while !fact() {
        assert!(Instant::now() < limit, "not within {budget:?}: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// A test's ground: a server, and what was there before the test began.
pub struct Bed {
    pub server: Server,
    tasks: usize,
}

impl Bed {
    pub fn new() -> Self {
        Self::with(&[])
    }

    pub fn with(settings: &[&str]) -> Self {
        Self { server: Server::start_with(settings), tasks: Handle::current().metrics().num_alive_tasks() }
    }

    pub async fn client(&self) -> LockClient {
        self.client_with(|builder| builder).await
    }

    pub async fn client_with(&self, set: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> LockClient {
        set(LockClient::builder()).connect(&self.server.url()).await.expect("the server answers")
    }

    pub fn control(&self) -> Control {
        self.server.control()
    }

    /// Proves that nothing is left: no hold, waiter, channel, job or key, and once the clients are closed no
    /// connection and no task.
    pub async fn finish(self, clients: impl IntoIterator<Item = LockClient>) {
        let leaks = self.leaks(clients, Duration::from_secs(10)).await;
        assert!(leaks.is_empty(), "left behind: {leaks:?}");
    }

    /// What is still there after `patience`.
    pub async fn leaks(
        self,
        clients: impl IntoIterator<Item = LockClient>,
        patience: Duration,
    ) -> Vec<String> {
        let clients: Vec<_> = clients.into_iter().collect();
        let mut control = self.control();
        let limit = Instant::now() + patience;
        let left = |control: &mut Control| {
            let mut left: Vec<String> = clients.iter().filter_map(busy).collect();
            let keys = control.run(&["KEYS", "*"]);
            if !keys.is_empty() {
                left.push(format!("keys {keys}"));
            }
            let channels = control.run(&["PUBSUB", "CHANNELS"]);
            if !channels.is_empty() {
                left.push(format!("channels {channels}"));
            }
            left
        };
        let mut found = left(&mut control);
        while !found.is_empty() && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(5)).await;
            found = left(&mut control);
        }
        for client in clients {
            client.close(Duration::ZERO).await;
        }
        let outside = |control: &mut Control| {
            let mut left = Vec::new();
            let connections = control.connections();
            if connections > 0 {
                left.push(format!("{connections} connections"));
            }
            let tasks = Handle::current().metrics().num_alive_tasks().saturating_sub(self.tasks);
            if tasks > 0 {
                left.push(format!("{tasks} tasks"));
            }
            left
        };
        // Sockets close a moment after the last byte; they have a patience of their own.
        let limit = Instant::now() + patience;
        let mut rest = outside(&mut control);
        while !rest.is_empty() && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(5)).await;
            rest = outside(&mut control);
        }
        found.extend(rest);
        found
    }
}

fn busy(client: &LockClient) -> Option<String> {
    let stats = client.stats();
    let sum = stats.held + stats.waiting + stats.subscriptions + stats.renewals + stats.releasing;
    (sum > 0).then(|| format!("{stats:?}"))
}

/// Measures for how long the machine itself stood still, by a thread that sleeps a little at a time.
pub struct Stillness {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    watcher: std::thread::JoinHandle<Duration>,
}

impl Stillness {
    pub fn watch() -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let watcher = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(5));
                longest = longest.max(start.elapsed());
            }
            longest
        });
        Self { stop, watcher }
    }

    /// The longest time between two looks.
    pub fn longest(self) -> Duration {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.watcher.join().expect("no panic")
    }
}

/// For how long the machine has stood still at most since this test binary started its first server. Bounds of time
/// are for a machine that runs: they are widened by what it did not.
pub fn stalls() -> Duration {
    Duration::from_micros(stall_watch().load(std::sync::atomic::Ordering::Relaxed))
}

fn stall_watch() -> &'static std::sync::atomic::AtomicU64 {
    static LONGEST_US: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    static WATCHER: std::sync::Once = std::sync::Once::new();
    WATCHER.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(5));
                let gap = start.elapsed().saturating_sub(Duration::from_millis(10));
                LONGEST_US.fetch_max(gap.as_micros() as u64, std::sync::atomic::Ordering::Relaxed);
            }
        });
    });
    &LONGEST_US
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
