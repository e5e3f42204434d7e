//! A primary, two replicas and three sentinels for one test, and what happens to them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::server::{Control, Server, answers, free_port, server_binary, temporary_folder};
use crate::{eventually, ms};

/// Servers behind sentinels.
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    child: Child,
    port: u16,
    tls_port: Option<u16>,
    /// Gone with it.
    _folder: TempDir,
}

/// After that long without an answer a server counts as down.
pub const DOWN_AFTER: Duration = Duration::from_secs(1);

/// What the sentinels call the primary.
pub const SERVICE: &str = "shop";

impl Sentinels {
    pub async fn start() -> Self {
        Self::start_on(None).await
    }

    /// All of them with a port for TLS too, over which they talk with each other; the settings name their certificate.
    pub async fn start_with_tls(settings: &[&str]) -> Self {
        Self::start_on(Some(settings)).await
    }

    async fn start_on(tls: Option<&[&str]>) -> Self {
        let by_tls = ["--tls-replication", "yes"];
        let settings = tls.map(|settings| [settings, &by_tls].concat());
        let fast = ["--repl-diskless-sync-delay", "0"];
        let fast = [&fast, settings.as_deref().unwrap_or_default()].concat();
        let primary = Server::start_on(tls.is_some(), &fast);
        let port = primary.tls_port.unwrap_or(primary.port).to_string();
        let mut servers = vec![primary];
        for _ in 0..2 {
            let words = [&fast[..], &["--replicaof", "127.0.0.1", &port]].concat();
            servers.push(Server::start_on(tls.is_some(), &words));
        }
        let sentinel = || Sentinel::start(&port, settings.as_deref());
        let sentinels = std::iter::repeat_with(sentinel).take(3).collect();
        let this = Self { servers, sentinels };
        for nth in 1..3 {
            let synced = || {
                let info = this.control(nth).run(&["INFO", "REPLICATION"]);
                info.contains("master_link_status:up")
            };
            eventually("a replica has its data", ms(20_000), synced).await;
        }
        for nth in 0..3 {
            let knows = || {
                let Some(mut control) = this.sentinel(nth) else {
                    return false;
                };
                let report = control.run(&["SENTINEL", "MASTER", SERVICE]);
                report.contains("num-slaves 2") && report.contains("num-other-sentinels 2")
            };
            eventually("a sentinel knows all", ms(20_000), knows).await;
        }
        this
    }

    pub fn url(&self) -> String {
        self.url_from(0)
    }

    /// The same, with the sentinels in an order that begins with this one.
    pub fn url_from(&self, first: usize) -> String {
        let port = |nth: usize| self.sentinels[(first + nth) % 3].port;
        format!(
            "redis-sentinel://127.0.0.1:{}?sentinelServiceName={SERVICE}&node=127.0.0.1:{}&node=127.0.0.1:{}",
            port(0),
            port(1),
            port(2)
        )
    }

    /// The URL with this sentinel alone.
    pub fn url_of(&self, nth: usize) -> String {
        let port = self.sentinels[nth].port;
        format!("redis-sentinel://127.0.0.1:{port}?sentinelServiceName={SERVICE}")
    }

    /// Where a server listens.
    pub fn port(&self, nth: usize) -> u16 {
        self.servers[nth].port
    }

    /// Where a sentinel listens.
    pub fn sentinel_port(&self, nth: usize) -> u16 {
        self.sentinels[nth].port
    }

    /// Where a sentinel listens for TLS.
    pub fn tls_port(&self, nth: usize) -> u16 {
        self.sentinels[nth].tls_port.expect("started with one")
    }

    /// The addresses of all sentinels, as a JVM takes them.
    pub fn addresses(&self) -> String {
        let address = |sentinel: &Sentinel| format!("redis://127.0.0.1:{}", sentinel.port);
        let addresses: Vec<String> = self.sentinels.iter().map(address).collect();
        addresses.join(" ")
    }

    pub fn control(&self, nth: usize) -> Control {
        self.servers[nth].control()
    }

    pub fn server(&mut self, nth: usize) -> &mut Server {
        &mut self.servers[nth]
    }

    /// One command to a server, which closes its connections when its role changes.
    pub fn try_run(&self, nth: usize, words: &[&str]) -> Option<String> {
        let client = redis::Client::open(self.servers[nth].url()).expect("a valid address");
        let connection = client.get_connection().ok()?;
        Control { connection }.try_run(words).ok()
    }

    /// A connection to a sentinel.
    pub fn sentinel(&self, nth: usize) -> Option<Control> {
        let url = format!("redis://127.0.0.1:{}", self.sentinels[nth].port);
        let client = redis::Client::open(url).expect("a valid address");
        let connection = client.get_connection().ok()?;
        Some(Control { connection })
    }

    pub fn signal_sentinel(&self, nth: usize, signal: &str) {
        let id = self.sentinels[nth].child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Has a sentinel forget what it knows, and watch this server as the primary, in the lowest epoch. The
    /// others cannot tell it better any more.
    pub fn falls_behind(&self, nth: usize, server: usize) {
        let port = self.servers[server].port.to_string();
        let mut sentinel = self.sentinel(nth).expect("it runs");
        sentinel.run(&["ACL", "SETUSER", "default", "-publish"]);
        sentinel.run(&["SENTINEL", "REMOVE", SERVICE]);
        sentinel.run(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port, "2"]);
        let down_after = DOWN_AFTER.as_millis().to_string();
        let words = ["down-after-milliseconds", &down_after];
        sentinel.run(&[&["SENTINEL", "SET", SERVICE], &words[..]].concat());
        // A stall of this machine is no reason for the others to fail over again.
        for other in (0..3).filter(|other| *other != nth) {
            let mut sentinel = self.sentinel(other).expect("it runs");
            sentinel.run(&[
                "SENTINEL",
                "SET",
                SERVICE,
                "down-after-milliseconds",
                "60000",
            ]);
        }
    }

    /// Makes this server the primary and has these sentinels watch it, as an operator does by hand.
    pub fn watch(&mut self, nths: &[usize], server: usize) {
        let port = self.servers[server].port.to_string();
        for &nth in nths {
            let mut sentinel = self.sentinel(nth).expect("it runs");
            sentinel.run(&["SENTINEL", "REMOVE", SERVICE]);
        }
        self.control(server).run(&["REPLICAOF", "NO", "ONE"]);
        for nth in (0..self.servers.len()).filter(|nth| *nth != server) {
            self.control(nth).run(&["REPLICAOF", "127.0.0.1", &port]);
        }
        for &nth in nths {
            let mut sentinel = self.sentinel(nth).expect("it runs");
            sentinel.run(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port, "2"]);
            let down_after = DOWN_AFTER.as_millis().to_string();
            let words = ["down-after-milliseconds", &down_after];
            sentinel.run(&[&["SENTINEL", "SET", SERVICE], &words[..]].concat());
        }
    }

    /// Whether a sentinel tells that this server is the primary.
    pub fn tells(&self, nth: usize, server: usize) -> bool {
        let port = self.servers[server].port;
        self.report(nth).contains(&format!(" port {port} "))
    }

    fn report(&self, nth: usize) -> String {
        let mut sentinel = self.sentinel(nth).expect("it runs");
        sentinel.run(&["SENTINEL", "MASTER", SERVICE])
    }

    /// The primary of which all sentinels tell, with no failover under way, if it is not `except`.
    pub async fn agreed_primary(&self, except: usize, time_limit: Duration) -> usize {
        let is_agreed = |server: usize| {
            (0..3).all(|nth| {
                let report = self.report(nth);
                let is_under_way =
                    report.contains("failover_in_progress") || report.contains("_down");
                self.tells(nth, server) && !is_under_way
            })
        };
        let mut agreed = None;
        eventually("they agree", time_limit, || {
            agreed = (0..3).find(|&server| server != except && is_agreed(server));
            agreed.is_some()
        })
        .await;
        agreed.expect("they agree")
    }

    /// The server that is the primary by its own word, of those that are not `except`.
    pub async fn new_primary(&self, except: usize, time_limit: Duration) -> usize {
        let limit = Instant::now() + time_limit;
        loop {
            for nth in (0..3).filter(|nth| *nth != except) {
                let role = self.try_run(nth, &["ROLE"]);
                if role.is_some_and(|role| role.starts_with("master")) {
                    return nth;
                }
            }
            assert!(Instant::now() < limit, "no replica became the primary");
            tokio::time::sleep(ms(10)).await;
        }
    }

    /// Has the sentinels make a replica the primary, as an operator does.
    pub async fn fail_over(&self) {
        let asked = || {
            let mut control = self.sentinel(0).expect("it runs");
            control.try_run(&["SENTINEL", "FAILOVER", SERVICE]).is_ok()
        };
        eventually("a sentinel takes the order", ms(20_000), asked).await;
    }
}

impl Sentinel {
    /// A port that was taken meanwhile costs another try.
    fn start(primary: &str, tls: Option<&[&str]>) -> Self {
        for _ in 0..20 {
            let mut sentinel = Self::start_once(primary, tls);
            if answers(&mut sentinel.child, sentinel.port) {
                return sentinel;
            }
        }
        panic!("no sentinel could be started on a free port");
    }

    fn start_once(primary: &str, tls: Option<&[&str]>) -> Self {
        let port = free_port();
        let tls_port = tls.map(|_| free_port());
        let folder = temporary_folder();
        let file = folder.path().join("sentinel.conf");
        let down_after = DOWN_AFTER.as_millis();
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {SERVICE} {down_after}\nsentinel failover-timeout {SERVICE} 5000\n",
            folder.path().display()
        );
        std::fs::write(&file, settings).expect("written");
        let child = Command::new(server_binary())
            .arg(&file)
            .arg("--sentinel")
            .args(tls.unwrap_or_default())
            .args(
                tls_port
                    .iter()
                    .flat_map(|port| ["--tls-port".to_owned(), port.to_string()]),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server can be started as a sentinel");
        Self {
            child,
            port,
            tls_port,
            _folder: folder,
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
