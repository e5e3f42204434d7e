//! A real server as a child process, and a plain connection to it. Knows nothing of the crate under
//! test.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A redis-server on a free port, ended with its handle.
pub struct Server {
    child: Child,
    pub port: u16,
    /// For connections by TLS, if it was started with such a port.
    pub tls_port: Option<u16>,
    /// Where it may write; gone with the server. Its own: another start that fails on the same port removes nothing here.
    folder: TempDir,
    settings: Vec<String>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more settings. A port that was taken meanwhile costs another try.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::start_on(false, settings)
    }

    /// The same with a port for TLS as well; the settings name its certificate.
    pub fn start_with_tls(settings: &[&str]) -> Self {
        Self::start_on(true, settings)
    }

    pub(crate) fn start_on(tls: bool, settings: &[&str]) -> Self {
        crate::stalls::watch();
        (0..20)
            .find_map(|_| Self::start_once(free_port(), tls.then(free_port), settings))
            .expect("a redis-server can be started on a free port")
    }

    /// `None`: it could not have the port.
    fn start_once(port: u16, tls_port: Option<u16>, settings: &[&str]) -> Option<Self> {
        let folder = temporary_folder();
        let mut settings: Vec<String> = settings.iter().map(|&word| word.to_owned()).collect();
        if let Some(tls_port) = tls_port {
            settings.extend(["--tls-port".to_owned(), tls_port.to_string()]);
        }
        let child = spawn(port, folder.path(), &settings);
        let mut server = Self {
            child,
            port,
            tls_port,
            folder,
            settings,
        };
        server.answers().then_some(server)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection that knows nothing of the crate under test.
    pub fn control(&self) -> Control {
        Control::connect(self.port)
    }

    /// Kills the server and starts another on its port, which knows nothing of what the first one
    /// held.
    pub fn lose_everything(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Kills the server; it does not come back by itself.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after [`kill`](Self::kill), with nothing in it.
    pub fn start_again(&mut self) {
        // A connection of another program may have come from this port meanwhile.
        for _ in 0..20 {
            self.child = spawn(self.port, self.folder.path(), &self.settings);
            if self.answers() {
                return;
            }
            self.kill();
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("a port that was free a moment ago is taken");
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    fn answers(&mut self) -> bool {
        answers(&mut self.child, self.port)
    }
}

/// Waits until a server, or a sentinel, answers. Another one may have taken the port, of which this one is about
/// to hear.
pub(crate) fn answers(child: &mut Child, port: u16) -> bool {
    let limit = Instant::now() + Duration::from_secs(10);
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("an address");
    let own = format!("process_id:{}\r", child.id());
    while Instant::now() < limit {
        if child.try_wait().expect("the child can be asked").is_some() {
            return false;
        }
        if let Ok(mut connection) = client.get_connection()
            && let Ok(info) = redis::cmd("INFO")
                .arg("server")
                .query::<String>(&mut connection)
            && info.contains(&own)
        {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A folder of a test, gone with it.
pub fn temporary_folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("redisson-lock-").tempdir();
    folder.expect("a temporary folder")
}

fn spawn(port: u16, folder: &std::path::Path, settings: &[String]) -> Child {
    Command::new(server_binary())
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder)
        .args(settings)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "cannot start `{}` ({error}): run the tests with `cargo xtask test`, which finds or installs a \
                 server, or set REDIS_SERVER_BIN",
                server_binary()
            )
        })
}

/// Found by `cargo xtask test` in this order: the variable, the PATH, `target/tools`.
pub(crate) fn server_binary() -> String {
    if let Ok(binary) = std::env::var("REDIS_SERVER_BIN") {
        return binary;
    }
    let on_path = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    let names = ["redis-server", "valkey-server"];
    names
        .into_iter()
        .find(|name| on_path(name))
        .unwrap_or("redis-server")
        .to_owned()
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A plain, blocking connection for looking and for doing harm.
pub struct Control {
    pub connection: redis::Connection,
}

impl Control {
    pub fn connect(port: u16) -> Self {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a valid address");
        let mut control = Self {
            connection: client.get_connection().expect("the server answers"),
        };
        control.run(&["CLIENT", "SETNAME", "control"]);
        control
    }

    /// Runs a command and answers as text: nil is "(nil)", lists are joined with spaces.
    pub fn run(&mut self, words: &[&str]) -> String {
        self.try_run(words)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_run(&mut self, words: &[&str]) -> Result<String, redis::RedisError> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command
            .query::<redis::Value>(&mut self.connection)
            .map(|value| shown(&value))
    }

    pub fn number(&mut self, words: &[&str]) -> i64 {
        let answer = self.run(words);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{words:?} answered {answer}"))
    }

    /// The lock hash as "field count", or "" if there is none.
    pub fn hash(&mut self, key: &str) -> String {
        self.run(&["HGETALL", key])
    }

    pub fn count(&mut self, key: &str) -> i64 {
        self.run(&["HVALS", key]).parse().unwrap_or(0)
    }

    /// The same of a replica in a cluster, which sends everybody on otherwise.
    pub fn count_on_replica(&mut self, key: &str) -> i64 {
        self.run(&["READONLY"]);
        self.count(key)
    }

    pub fn pttl(&mut self, key: &str) -> i64 {
        self.number(&["PTTL", key])
    }

    /// Connections that are not a test's own.
    pub fn connections(&mut self) -> usize {
        let list = self.run(&["CLIENT", "LIST"]);
        list.lines()
            .filter(|line| line.contains("addr=") && !line.contains("name=control "))
            .count()
    }

    /// How often a command was called, from `INFO commandstats`.
    pub fn calls(&mut self, command: &str) -> i64 {
        let info = self.run(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        info.lines()
            .find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }
}

/// Whether somebody listens for releases of this lock at a server, on a classic or on a sharded channel.
pub fn has_listener(control: &mut Control, key: &str) -> bool {
    // The second one is that of a read-write lock.
    let channels = ["redisson_lock__channel", "redisson_rwlock"];
    let channels = channels.map(|channel| format!("{channel}:{{{key}}}"));
    // Before Redis 7.0 there are no sharded channels.
    ["NUMSUB", "SHARDNUMSUB"].into_iter().any(|kind| {
        let listeners = control.try_run(&["PUBSUB", kind, &channels[0], &channels[1]]);
        listeners.is_ok_and(|listeners| listeners.split(' ').any(|word| word == "1"))
    })
}

/// Every command that a server executes, those inside scripts as well, as MONITOR shows them.
pub struct Monitor {
    lines: std::sync::mpsc::Receiver<String>,
}

impl Monitor {
    pub fn start(port: u16) -> Self {
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
        socket
            .write_all(b"CLIENT SETNAME control\r\nMONITOR\r\n")
            .expect("sent");
        let mut answers = BufReader::new(socket).lines();
        for _ in 0..2 {
            assert_eq!(answers.next().expect("an answer").expect("read"), "+OK");
        }
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // It ends with the server, or with its reader.
            while let Some(Ok(line)) = answers.next() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { lines }
    }

    /// What was executed since the last look, up to now.
    pub fn take(&self, control: &mut Control) -> Vec<String> {
        const MARK: &str = "so far";
        control.run(&["ECHO", MARK]);
        let next = || {
            self.lines
                .recv_timeout(Duration::from_secs(10))
                .expect("the server says all of it")
        };
        std::iter::repeat_with(next)
            .take_while(|line| !line.contains(MARK))
            .collect()
    }
}

fn shown(value: &redis::Value) -> String {
    match value {
        redis::Value::Nil => "(nil)".to_owned(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::BulkString(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            // As `inspect` shows it.
            Err(_) => bytes.escape_ascii().to_string(),
        },
        redis::Value::SimpleString(text) => text.clone(),
        redis::Value::Okay => "OK".to_owned(),
        redis::Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster's server ends itself if it cannot write its folder.
    #[test]
    fn a_start_that_fails_leaves_the_server_that_has_the_port_alone() {
        let server = Server::start_with(&["--cluster-enabled", "yes"]);
        assert!(Server::start_once(server.port, None, &[]).is_none());
        let mut control = server.control();
        assert_eq!(control.run(&["CLUSTER", "ADDSLOTS", "1"]), "OK");
        assert_eq!(control.run(&["PING"]), "PONG");
    }
}
