//! A JVM with Redisson, which does beside us what a line tells it to.

use std::process::{Command, Stdio};
use std::sync::mpsc;

use super::SOLD_OUT;
use crate::sellers::{Announced, Seller};

/// With `DEMO_JAVA`, the class path of the Java side.
pub struct Jvm {
    process: Seller,
    said: Announced,
}

impl Jvm {
    /// `None`: Java is left out.
    pub fn start(url: &str) -> Result<Option<Self>, String> {
        let Ok(classes) = std::env::var("DEMO_JAVA") else {
            return Ok(None);
        };
        let java = std::env::var("JAVA_HOME")
            .map_or_else(|_| "java".to_owned(), |home| format!("{home}/bin/java"));
        let (announce, said) = mpsc::channel();
        let mut command = Command::new(java);
        command
            .args(["-Xmx256m", "-cp", &classes, "Kinds", url])
            .stderr(Stdio::null());
        let jvm = Self {
            process: Seller::start(&mut command, 0, &announce)?,
            said,
        };
        jvm.answer("ready").map(|_| Some(jvm))
    }

    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        self.process.say(line)
    }

    /// The rest of its next line, which begins so.
    pub fn answer(&self, begin: &str) -> Result<String, String> {
        let said = self.said.recv_timeout(SOLD_OUT);
        let (_, line) = said.map_err(|_| format!("the JVM did not say `{begin}`"))?;
        let rest = line.strip_prefix(begin).map(str::to_owned);
        rest.ok_or_else(|| format!("the JVM said `{line}` instead of `{begin}`"))
    }

    /// Has it end.
    pub fn end(mut self) -> Result<(), String> {
        let problem = self.process.end();
        problem.map_or(Ok(()), |problem| Err(format!("the JVM {problem}")))
    }
}
