//! A JVM with real Redisson, or a program with the locks of another library, driven over its standard input and output.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

/// A Redisson version, or one of [`OF_STRINGS`], that was built by `cargo xtask interop`.
#[derive(Debug, Clone)]
pub struct Build {
    pub version: String,
    /// The folder with `classes` and `jars`, or with what else it needs.
    pub folder: std::path::PathBuf,
}

/// The peers of string locks. The last has no library, but the commands that Spring's `setIfAbsent` and a Lua script
/// send.
pub const OF_STRINGS: [&str; 3] = ["redis-py", "redsync", "spring"];

impl Build {
    pub fn is_of_strings(&self) -> bool {
        OF_STRINGS.contains(&self.version.as_str())
    }

    fn command(&self, options: &[&str]) -> Command {
        if self.version == "redsync" {
            return Command::new(self.folder.join("redsync"));
        }
        if self.is_of_strings() {
            let mut python = Command::new("python3");
            python
                .arg(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../interop/peers/redis_py.py"
                ))
                .arg(&self.version)
                .env("PYTHONPATH", self.folder.with_file_name("redis-py"))
                .env("PYTHONDONTWRITEBYTECODE", "1");
            return python;
        }
        let java = match std::env::var("JAVA_HOME") {
            Ok(home) => format!("{home}/bin/java"),
            Err(_) => "java".to_owned(),
        };
        let classes = format!("{0}/classes:{0}/jars/*", self.folder.display());
        let mut java = Command::new(java);
        java.args(options)
            // Redisson before 3.13 looks into the JDK; later versions do not mind.
            .args(OPENS.iter().flat_map(|package| {
                [
                    "--add-opens".to_owned(),
                    format!("java.base/{package}=ALL-UNNAMED"),
                ]
            }))
            .args(["-cp", &classes, "Peer"]);
        java
    }
}

/// A running JVM. Dropped, its input ends, and it halts without giving anything back.
#[derive(Clone)]
pub struct Peer {
    lines: mpsc::UnboundedSender<String>,
    pending: Arc<Mutex<Pending>>,
    next: Arc<AtomicU64>,
    child: Arc<Mutex<Child>>,
    pub version: String,
}

#[derive(Default)]
struct Pending {
    calls: HashMap<u64, oneshot::Sender<Answer>>,
    ended: bool,
}

/// What a call brought: a value, or the kind and text of a Java exception.
pub type Answer = Result<serde_json::Value, (String, String)>;

impl Peer {
    /// Starts a small JVM that is soon there, and waits until it listens.
    pub async fn start(build: &Build) -> Self {
        let small = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
        Self::start_with(build, &small).await
    }

    /// Starts a JVM with these options and waits until it listens.
    pub async fn start_with(build: &Build, options: &[&str]) -> Self {
        let mut child = build
            .command(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{} cannot be started ({error}): run `cargo xtask interop`, which finds or installs what it needs",
                    build.version
                )
            });
        let mut input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (lines, mut written) = mpsc::unbounded_channel::<String>();
        tokio::spawn(async move {
            while let Some(line) = written.recv().await {
                if input.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let pending = Arc::new(Mutex::new(Pending::default()));
        let (ready, is_ready) = oneshot::channel();
        pending.lock().expect("unpoisoned").calls.insert(0, ready);
        let answers = Arc::clone(&pending);
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                let answer: serde_json::Value =
                    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
                let id = answer["id"].as_u64().expect("an id");
                let call = answers.lock().expect("unpoisoned").calls.remove(&id);
                let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
                let result = match answer.get("error") {
                    None => Ok(answer["value"].clone()),
                    Some(_) => Err((text("kind"), text("error"))),
                };
                if let Some(call) = call {
                    let _ = call.send(result);
                }
            }
            // The JVM is gone: the waiting callers get an error.
            let mut pending = answers.lock().expect("unpoisoned");
            pending.ended = true;
            pending.calls.clear();
        });
        let peer = Self {
            lines,
            pending,
            next: Arc::new(AtomicU64::new(1)),
            child: Arc::new(Mutex::new(child)),
            version: build.version.clone(),
        };
        let ready = tokio::time::timeout(Duration::from_secs(60), is_ready).await;
        assert!(
            matches!(ready, Ok(Ok(_))),
            "{} does not start: is it built?",
            build.version
        );
        peer
    }

    /// Calls a verb, values percent-encoded on the way.
    pub async fn call(&self, verb: &str, values: &[(&str, String)]) -> Answer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut pending = self.pending.lock().expect("unpoisoned");
            if pending.ended {
                return Err(("Gone".to_owned(), "the JVM has ended".to_owned()));
            }
            pending.calls.insert(id, answer);
        }
        let mut line = format!("{id} {verb}");
        for (key, value) in values {
            line.push_str(&format!(" {key}={}", encoded(value)));
        }
        line.push('\n');
        let _ = self.lines.send(line);
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(("Gone".to_owned(), "the JVM has ended".to_owned())),
        }
    }

    /// The process, for as long as it has not been waited for.
    pub fn process_id(&self) -> Option<u32> {
        self.child.lock().expect("unpoisoned").id()
    }

    /// Stops the process where it stands, or lets it go on.
    pub fn signal(&self, signal: &str) {
        let id = self.child.lock().expect("unpoisoned").id();
        if let Some(id) = id {
            let sent = std::process::Command::new("kill")
                .args([signal, &id.to_string()])
                .status();
            assert!(sent.expect("kill runs").success());
        }
    }
}

fn encoded(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._:/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// What Redisson 3.12 makes accessible; found by trying.
const OPENS: [&str; 13] = [
    "java.io",
    "java.lang",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.nio",
    "java.security",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
];
