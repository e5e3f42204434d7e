//! The seller processes: starting them, hearing them, ending them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::PROCESSES;
use crate::sell::{BUYERS, LEASE, Way};

/// Lines of the sellers, with their numbers.
pub type Announced = mpsc::Receiver<(usize, String)>;

/// Starts the seller processes; what they say arrives with their numbers.
///
/// With `DEMO_JAVA`, the class path of the Java seller, every other process is a JVM with Redisson.
pub fn sellers_of(url: &str, way: Way) -> Result<(Vec<Seller>, Announced), String> {
    let java = std::env::var("DEMO_JAVA")
        .ok()
        .filter(|_| way == Way::RedissonLock);
    let program = std::env::current_exe().map_err(|error| format!("who am I: {error}"))?;
    let (announce, announced) = mpsc::channel();
    let mut children = Vec::new();
    for nth in 0..PROCESSES {
        let mut seller = match &java {
            Some(classes) if nth % 2 == 1 => java_seller(classes, url, nth),
            _ => {
                let mut seller = Command::new(&program);
                seller.args([
                    "--url",
                    url,
                    "--seller",
                    way.name(),
                    "--process",
                    &nth.to_string(),
                ]);
                seller
            }
        };
        children.push(Seller::start(&mut seller, nth, &announce)?);
    }
    Ok((children, announced))
}

fn java_seller(classes: &str, url: &str, nth: usize) -> Command {
    let java = std::env::var("JAVA_HOME")
        .map_or_else(|_| "java".to_owned(), |home| format!("{home}/bin/java"));
    let mut seller = Command::new(java);
    seller
        .args(["-Xmx256m", "-cp", classes, "Seller", url, &nth.to_string()])
        .args([LEASE.as_millis().to_string(), BUYERS.to_string()])
        .stderr(Stdio::null());
    seller
}

/// Waits until every process is connected, and starts the clock. Those that are quick sell already:
/// one of them may say that it holds.
pub fn wait_ready(announced: &Announced) -> Result<(Instant, Option<usize>), String> {
    let (mut ready, mut holding) = (0, None);
    while ready < PROCESSES {
        match announced.recv_timeout(Duration::from_secs(20)) {
            Ok((_, line)) if line == "ready" => ready += 1,
            Ok((nth, line)) if line == "holding" => holding = Some(nth),
            Ok((nth, line)) => {
                return Err(format!(
                    "seller process {nth} said `{line}` instead of `ready`"
                ));
            }
            Err(_) => return Err("the sellers did not get ready within 20 s".to_owned()),
        }
    }
    Ok((Instant::now(), holding))
}

pub struct Seller {
    child: Child,
    /// It was killed on purpose.
    planned: bool,
}

impl Seller {
    /// Starts a seller process; what it says arrives with its number.
    pub fn start(
        seller: &mut Command,
        nth: usize,
        announce: &mpsc::Sender<(usize, String)>,
    ) -> Result<Self, String> {
        let mut child = seller
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start a seller: {error}"))?;
        let lines = BufReader::new(child.stdout.take().ok_or("a seller without output")?).lines();
        let announce = announce.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = announce.send((nth, line));
            }
        });
        Ok(Self {
            child,
            planned: false,
        })
    }

    /// Sends a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) -> Result<(), String> {
        let process = self.child.id().to_string();
        match Command::new("kill").args([signal, &process]).status() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("kill {signal}: {other:?}")),
        }
    }

    /// Writes an empty line to its standard input.
    pub fn go_on(&mut self) -> Result<(), String> {
        self.say("")
    }

    /// Writes a line to its standard input.
    pub fn say(&mut self, line: &str) -> Result<(), String> {
        let input = self.child.stdin.as_mut().ok_or("its input is closed")?;
        input
            .write_all(format!("{line}\n").as_bytes())
            .map_err(|error| format!("cannot write to a seller: {error}"))
    }

    pub fn runs(&mut self) -> bool {
        !self.planned && matches!(self.child.try_wait(), Ok(None))
    }

    pub fn kill(&mut self) {
        self.planned = true;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the process to stop; answers how it ended otherwise than planned.
    pub fn end(&mut self) -> Option<String> {
        if self.planned {
            return None;
        }
        drop(self.child.stdin.take());
        let limit = Instant::now() + Duration::from_secs(4);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return None,
                Ok(Some(status)) => return Some(format!("ended with {status}")),
                Ok(None) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => {
                    self.kill();
                    return Some("did not stop when it was asked to".to_owned());
                }
                Err(error) => return Some(error.to_string()),
            }
        }
    }
}

impl Drop for Seller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
