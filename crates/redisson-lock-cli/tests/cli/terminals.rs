//! The program at a terminal: below a shell with job control, and as the only one there.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, tcgetpgrp};

use crate::fixture::{Fixture, LOCK, LONG, PROGRAM, Running, SHORT, state, wait};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A terminal with a process that leads its session.
struct Terminal {
    keyboard: File,
    shown: Arc<Mutex<String>>,
    leader: Running,
}

impl Terminal {
    fn start(fixture: &Fixture, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let pair = openpty(None, None).expect("a terminal");
        let own = || Stdio::from(pair.slave.try_clone().expect("a handle"));
        let mut command = Command::new("setsid");
        // Makes its stdin the terminal of the new session.
        command
            .args(["--ctty", "env", "--default-signal=HUP,INT,QUIT,TERM"])
            .args(words)
            .env("REDISSON_LOCK_URL", fixture.server.url())
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .current_dir(fixture.path("."))
            .stdin(own())
            .stdout(own())
            .stderr(own());
        let leader = Running::start(&mut command);
        drop(command);
        let keyboard = File::from(pair.master);
        let mut screen = keyboard.try_clone().expect("a handle");
        let shown = Arc::new(Mutex::new(String::new()));
        let showing = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]);
                showing.lock().expect("unpoisoned").push_str(&text);
            }
        });
        Self {
            keyboard,
            shown,
            leader,
        }
    }

    /// A shell with job control runs this script.
    fn shell(fixture: &Fixture, script: &str) -> Self {
        let script = format!("set -m; {script}");
        Self::start(fixture, &["sh", "-c", &script], &[])
    }

    fn enter(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("written");
    }

    fn wait_for_foreground(&self, group: Pid) {
        self.wait_for_foreground_of(&[group]);
    }

    fn wait_for_foreground_of(&self, groups: &[Pid]) {
        wait("the group is in the foreground", || {
            tcgetpgrp(&self.keyboard).is_ok_and(|group| groups.contains(&group))
        });
    }

    fn shown(&self) -> String {
        self.shown.lock().expect("unpoisoned").clone()
    }
}

/// The program with a command that runs in `sh`.
fn run(script: &str) -> String {
    format!("'{PROGRAM}' run --lease {LONG} {LOCK} -- sh -c '{script}'")
}

#[test]
fn the_command_reads_the_terminal_and_can_be_stopped_and_continued() {
    let fixture = Fixture::new();
    let job = run("echo $$ > in; read line; echo \"$line\" > line; exit 5");
    let script = format!(
        "{job}; echo $? > stopped; while [ ! -e go ]; do sleep 0.02; done; fg; echo $? > ended; \
         read line; echo \"$line\" > after"
    );
    let mut terminal = Terminal::shell(&fixture, &script);
    let command = fixture.process("in");
    terminal.wait_for_foreground(command);
    terminal.enter(CTRL_Z);
    // 128 and the number of SIGSTOP.
    assert_eq!(fixture.written("stopped"), "147");
    assert_eq!(state(command), Some('T'));
    assert_eq!(fixture.control().count(LOCK), 1);

    std::fs::write(fixture.path("go"), "").expect("written");
    terminal.wait_for_foreground(command);
    terminal.enter("typed\n");
    assert_eq!(fixture.written("line"), "typed");
    assert_eq!(fixture.written("ended"), "5");
    assert!(fixture.is_free());
    // The shell has its terminal back.
    terminal.enter("more\n");
    assert_eq!(fixture.written("after"), "more");
    terminal.leader.end().with_code(0);
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let fixture = Fixture::new();
    let job = run(
        "trap \"echo got >> got\" INT; echo $$ > in; while [ ! -e go ]; do sleep 0.02; done; exit 3",
    );
    let mut terminal = Terminal::shell(&fixture, &format!("{job}; echo $? > ended"));
    let command = fixture.process("in");
    terminal.wait_for_foreground(command);
    terminal.enter(CTRL_C);
    assert_eq!(fixture.written("got"), "got");
    std::fs::write(fixture.path("go"), "").expect("written");
    assert_eq!(fixture.written("ended"), "3");
    assert_eq!(fixture.written("got"), "got");
    terminal.leader.end().with_code(0);
}

#[test]
fn in_the_background_the_command_does_not_get_the_terminal_until_it_is_called() {
    let fixture = Fixture::new();
    let job = run("echo $$ > in; read line < /dev/tty; echo \"$line\" > line; exit 6");
    let script = format!(
        "{job} & echo $$ > shell; while [ ! -e go ]; do sleep 0.02; done; fg; echo $? > ended"
    );
    let mut terminal = Terminal::shell(&fixture, &script);
    let command = fixture.process("in");
    // It wanted to read, which stopped it and the program.
    wait("the command is stopped", || state(command) == Some('T'));
    std::fs::write(fixture.path("go"), "").expect("written");
    terminal.wait_for_foreground(command);
    terminal.enter("typed\n");
    assert_eq!(fixture.written("line"), "typed");
    assert_eq!(fixture.written("ended"), "6");
    terminal.leader.end().with_code(0);
}

#[test]
fn in_the_background_a_command_that_is_stopped_keeps_its_lock() {
    let fixture = Fixture::new();
    let _go = fixture.pipe("go");
    let job = format!(
        "'{PROGRAM}' run --lease {SHORT} {LOCK} -- sh -c 'echo $$ > in; read line < go; exit 6'"
    );
    let script = format!(
        "{job} & echo $! > program; while [ ! -e called ]; do sleep 0.02; done; fg; echo $? > ended"
    );
    let mut terminal = Terminal::shell(&fixture, &script);
    let (command, program) = (fixture.process("in"), fixture.process("program"));
    for stop in [Signal::SIGSTOP, Signal::SIGTSTP] {
        kill(command, stop).expect("it runs");
        wait("the command is stopped", || state(command) == Some('T'));
        fixture.wait_for_renewals();
        assert_ne!(state(program), Some('T'), "the program stopped too");
        kill(command, Signal::SIGCONT).expect("it runs");
        wait("the command continues", || state(command) != Some('T'));
    }
    // In the foreground the shell has to hear of it.
    std::fs::write(fixture.path("called"), "").expect("written");
    // Not every shell continues a job that it believes to run: then the program's own group stays there.
    terminal.wait_for_foreground_of(&[command, program]);
    terminal.enter(CTRL_Z);
    assert_eq!(fixture.written("ended"), "147");
    kill(program, Signal::SIGTERM).expect("it exists");
    kill(program, Signal::SIGCONT).expect("it exists");
    terminal.leader.end().with_code(0);
}

#[test]
fn without_a_shell_above_a_stop_does_not_last() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    // The hand-off of the terminal continues it too: the trap is set after that.
    let script = "echo $$ > in; while [ ! -e given ]; do sleep 0.02; done; \
                  trap 'echo on > on' CONT; echo ready > ready; \
                  until [ \"$line\" = end ]; do read line < go; done; exit 4";
    let words = [
        PROGRAM, "run", "--lease", SHORT, LOCK, "--", "sh", "-c", script,
    ];
    let mut terminal = Terminal::start(&fixture, &words, &[]);
    let command = fixture.process("in");
    terminal.wait_for_foreground(command);
    // The program has done what it does at the start.
    fixture.wait_for_renewals();
    std::fs::write(fixture.path("given"), "").expect("written");
    fixture.written("ready");
    terminal.enter(CTRL_Z);
    fixture.written_by_trap("on", &mut go);
    go.write_all(b"end\n").expect("written");
    terminal.leader.end().with_code(4);
    assert!(fixture.is_free());
}

#[test]
fn whoever_waits_at_a_terminal_sees_who_holds_the_lock() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 1);
    let words = [PROGRAM, "run", "--wait", "10m", LOCK, "--", "true"];
    for (variables, colour) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let terminal = Terminal::start(&fixture, &words, variables);
        wait("the line is shown", || {
            let shown = terminal.shown();
            shown.contains("waiting for stock:42 since") && shown.contains("held once by")
        });
        assert_eq!(terminal.shown().contains("\x1b[2m"), colour);
        terminal.leader.send(Signal::SIGTERM);
        terminal.leader.end().with_code(143);
    }
}

#[test]
fn a_command_that_is_lost_at_a_terminal_leaves_it_to_the_shell() {
    let fixture = Fixture::new();
    let job = format!(
        "'{PROGRAM}' run --lease {SHORT} {LOCK} -- sh -c 'echo $$ > in; while :; do sleep 0.02; done'"
    );
    let script = format!("{job}; echo $? > ended; read line; echo \"$line\" > after");
    let mut terminal = Terminal::shell(&fixture, &script);
    let command = fixture.process("in");
    terminal.wait_for_foreground(command);
    fixture.control().run(&["DEL", LOCK]);
    assert_eq!(fixture.written("ended"), "79");
    assert!(kill(command, None).is_err());
    terminal.enter("typed\n");
    assert_eq!(fixture.written("after"), "typed");
    terminal.leader.end().with_code(0);
}

#[test]
fn a_script_around_the_program_has_its_terminal_back() {
    let fixture = Fixture::new();
    // Without job control the script and the program are in one group.
    let script = format!(
        "{}; echo $? > ended; read line; echo \"$line\" > after",
        run("echo $$ > in; read line; echo \"$line\" > line")
    );
    let mut terminal = Terminal::start(&fixture, &["sh", "-c", &script], &[]);
    terminal.wait_for_foreground(fixture.process("in"));
    terminal.enter("typed\n");
    assert_eq!(fixture.written("line"), "typed");
    assert_eq!(fixture.written("ended"), "0");
    terminal.enter("more\n");
    assert_eq!(fixture.written("after"), "more");
    terminal.leader.end().with_code(0);
}
