//! What every scenario is given: the server, the form of the run, a JVM when it wants one.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use test_support::peer::{Build, Peer};
use test_support::{Control, Server, eventually, ms};

use crate::process::Cpu;
use crate::sample::Sample;

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    Full,
    /// Three short rounds.
    Quick,
    /// A moment of each, for its counts.
    Smoke,
}

impl Form {
    pub fn rounds(self) -> usize {
        match self {
            Self::Full => 5,
            Self::Quick => 3,
            Self::Smoke => 1,
        }
    }

    /// The one that applies, in the order of the forms.
    pub fn pick<T>(self, full: T, quick: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }

    /// How long a JVM is warmed with the work that is measured afterwards.
    pub fn warm_jvm(self) -> Duration {
        self.pick(ms(5_000), ms(1_000), ms(50))
    }

    /// The same for a program that is compiled already: connections and caches.
    pub fn warm(self) -> Duration {
        self.pick(ms(500), ms(200), ms(20))
    }
}

/// How much one system does in one round.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub time: Duration,
    /// This many acquisitions, even if it takes longer than that.
    pub at_least: u64,
}

impl Amount {
    pub fn time(time: Duration) -> Self {
        Self { time, at_least: 0 }
    }
}

/// Measured systems with their names: most rounds measure one.
pub type Played<'a> = Pin<Box<dyn Future<Output = Vec<(&'static str, Sample)>> + Send + 'a>>;

/// Something that can do the work of a scenario again and again.
pub trait System: Send + Sync {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a>;

    /// For how long it does the work before it is measured.
    fn warm(&self, form: Form) -> Duration {
        form.warm()
    }
}

pub struct Context {
    pub server: Server,
    pub form: Form,
    /// The folder of the Java peer; `None` leaves the JVMs out.
    java: Option<PathBuf>,
    control: Mutex<Control>,
}

impl Context {
    pub fn start(form: Form, java: Option<PathBuf>) -> Self {
        let server = Server::start();
        let control = Mutex::new(server.control());
        Self {
            server,
            form,
            java,
            control,
        }
    }

    /// Whether every section is made long enough for a second owner to be seen in it.
    pub fn is_checked(&self) -> bool {
        self.form == Form::Smoke
    }

    pub fn with_java(&self) -> bool {
        self.java.is_some()
    }

    /// A JVM as its users run it, or a small one, with this many clients, named `1`, `2`, …
    pub async fn jvm(&self, clients: usize, watchdog: Duration) -> Option<Peer> {
        let build = Build {
            version: REDISSON.to_owned(),
            folder: self.java.clone()?,
        };
        // For its counts it is soon there, also on a busy machine.
        let is_small = self.is_checked();
        let peer = if is_small {
            Peer::start(&build).await
        } else {
            Peer::start_with(&build, &["-Xmx2g"]).await
        };
        for client in 1..=clients {
            let mut values = vec![
                ("client", client.to_string()),
                ("address", self.server.url()),
                ("watchdog", watchdog.as_millis().to_string()),
            ];
            if !is_small {
                values.push(("defaults", "true".to_owned()));
            }
            let opened = peer.call("open", &values).await;
            opened
                .unwrap_or_else(|(kind, text)| panic!("Redisson does not connect: {kind} {text}"));
        }
        Some(peer)
    }

    pub fn with_control<T>(&self, act: impl FnOnce(&mut Control) -> T) -> T {
        act(&mut self.control.lock().expect("unpoisoned"))
    }

    /// The script calls that the server has had.
    pub fn scripts(&self) -> i64 {
        self.with_control(script_calls)
    }

    /// The processor time so far, of this process and of the server's.
    pub fn cpu(&self) -> [Cpu; 2] {
        [std::process::id(), self.server.process()].map(Cpu::of)
    }

    pub fn cpu_since(&self, before: [Cpu; 2]) -> [Cpu; 2] {
        let [client, server] = self.cpu();
        [client.since(before[0]), server.since(before[1])]
    }

    /// Waits until no key is left: every lock has been released.
    pub async fn empty(&self, who: &str) {
        let left = || self.with_control(|control| control.number(&["DBSIZE"]));
        let what = format!("all keys of {who} are gone");
        eventually(&what, ms(30_000), || left() == 0).await;
    }
}

pub fn script_calls(control: &mut Control) -> i64 {
    control.calls("evalsha") + control.calls("eval")
}

/// The version that is measured.
pub const REDISSON: &str = "4.7.0";
