//! A server, the program, and a folder into which commands write what they see.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{Control, Server, TempDir, temporary_folder};

pub(crate) const LOCK: &str = "stock:42";

/// A lease that is renewed every two seconds: a loss is noticed soon, and a busy machine causes none.
pub(crate) const SHORT: &str = "6s";

/// A lease of which no third passes in a test.
pub(crate) const LONG: &str = "1h";

/// No wait is longer.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Fixture {
    pub(crate) server: Server,
    folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self {
            server: Server::start(),
            folder: temporary_folder(),
        }
    }

    pub(crate) fn control(&self) -> Control {
        self.server.control()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program with these arguments, told where the server is, in the folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command
            .args(arguments)
            .env("REDISSON_LOCK_URL", self.server.url())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.command(arguments))
    }

    /// Runs a script of the shell under the lock, with these options.
    pub(crate) fn start_script(&self, options: &[&str], script: &str) -> Running {
        self.start(&[&["run"], options, &[LOCK, "--", "sh", "-c", script]].concat())
    }

    /// Runs the program to its end.
    pub(crate) fn finish(&self, arguments: &[&str]) -> Finished {
        self.start(arguments).end()
    }

    /// Another holder takes the lock, as a JVM writes it.
    pub(crate) fn take_as_java(&self, lock: &str, count: u32) {
        let mut control = self.control();
        control.run(&["HSET", lock, JAVA, &count.to_string()]);
        control.run(&["PEXPIRE", lock, "600000"]);
    }

    /// Frees the lock as a JVM does.
    pub(crate) fn release_as_java(&self, lock: &str) {
        let mut control = self.control();
        control.run(&["DEL", lock]);
        control.run(&[
            "PUBLISH",
            &format!("redisson_lock__channel:{{{lock}}}"),
            "0",
        ]);
    }

    /// A pipe from which a command reads its lines, opened so that neither side waits for the
    /// other. A command that is to be stopped waits with this: a shell that is just about to
    /// start a program can be stopped only afterwards.
    pub(crate) fn pipe(&self, name: &str) -> File {
        let path = self.path(name);
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo runs").success());
        let mut options = File::options();
        options.read(true).write(true);
        options.open(path).expect("opened")
    }

    /// Waits until the file has a line in it, and answers what it has.
    pub(crate) fn written(&self, name: &str) -> String {
        let path = self.path(name);
        let read = || std::fs::read_to_string(&path).unwrap_or_default();
        wait(&format!("`{name}` is written"), || read().ends_with('\n'));
        read().trim_end().to_owned()
    }

    /// Waits until a trap of a shell that reads lines from the pipe has written the file. The shell handles a signal
    /// that comes just before it begins to read only after that line.
    pub(crate) fn written_by_trap(&self, name: &str, pipe: &mut File) {
        wait(&format!("`{name}` is written"), || {
            pipe.write_all(b"again\n").expect("written");
            self.path(name).exists()
        });
    }

    /// Waits until the file names a process.
    pub(crate) fn process(&self, name: &str) -> Pid {
        Pid::from_raw(self.written(name).parse().expect("a process id"))
    }

    /// Waits until somebody waits for the lock.
    pub(crate) fn wait_for_a_waiter(&self) {
        let mut control = self.control();
        let channel = format!("redisson_lock__channel:{{{LOCK}}}");
        wait("somebody waits", || {
            control.run(&["PUBSUB", "NUMSUB", &channel]) == format!("{channel} 1")
        });
    }

    /// Waits until the lock has been renewed twice more, by what the server counts: each renewal is a PEXPIRE of a
    /// lock. The second one was sent after this was called.
    pub(crate) fn wait_for_renewals(&self) {
        let mut control = self.control();
        let before = control.calls("pexpire");
        wait("two renewals", || control.calls("pexpire") >= before + 2);
        assert_eq!(control.count(LOCK), 1);
    }

    pub(crate) fn is_free(&self) -> bool {
        self.control().number(&["EXISTS", LOCK]) == 0
    }
}

/// The program while it runs. Its output is read all the time, so that it never waits for that.
pub(crate) struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        Self {
            stdout: child.stdout.take().map(collect),
            stderr: child.stderr.take().map(collect),
            child,
        }
    }

    pub(crate) fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"))
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill(self.id(), signal).expect("the program runs");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    pub(crate) fn end(mut self) -> Finished {
        wait("the program ends", || self.has_ended());
        // A survivor still has its output open.
        let text = |reader: Option<JoinHandle<String>>| {
            let Some(reader) = reader else {
                return String::new();
            };
            wait("nobody has its output open", || reader.is_finished());
            reader.join().expect("read")
        };
        Finished {
            status: self.child.wait().expect("a child"),
            stdout: text(self.stdout.take()),
            stderr: text(self.stderr.take()),
        }
    }
}

impl Drop for Running {
    /// Only of a test that failed in between.
    fn drop(&mut self) {
        if !self.has_ended() {
            self.send(Signal::SIGTERM);
        }
    }
}

pub(crate) struct Finished {
    status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    #[track_caller]
    pub(crate) fn with_code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}", self.stderr);
        self
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a fact.
#[track_caller]
pub(crate) fn wait(what: &str, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the process is gone. One that nobody has reaped runs no more.
pub(crate) fn is_gone(process: Pid) -> bool {
    matches!(state(process), None | Some('Z'))
}

/// The state of a process, as `ps` writes it, which not every machine has.
#[cfg(target_os = "linux")]
pub(crate) fn state(process: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // After the name, which may contain anything.
    stat.rsplit(") ").next()?.chars().next()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn state(process: Pid) -> Option<char> {
    let output = Command::new("ps")
        .args(["-o", "stat=", "-p", &process.to_string()])
        .output()
        .expect("ps runs");
    let state = String::from_utf8_lossy(&output.stdout);
    state.trim_start().chars().next()
}

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_redisson-lock");

/// The program, with every signal as a terminal has it. Tests that were started in the background, or
/// below `nohup`, would hand on that some are ignored, and the program leaves those alone.
#[cfg(target_os = "linux")]
pub(crate) fn program() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", PROGRAM]);
    command
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn program() -> Command {
    Command::new(PROGRAM)
}

/// An owner as Redisson writes it.
pub(crate) const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:31";
