//! Signals that the program receives: passed on while the command runs, the end of the waiting
//! before.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{Signal, kill};

use crate::fixture::{Fixture, JAVA, LOCK, PROGRAM, Running, is_gone, state, wait};

const PASSED_ON: [(Signal, &str); 6] = [
    (Signal::SIGTERM, "TERM"),
    (Signal::SIGHUP, "HUP"),
    (Signal::SIGINT, "INT"),
    (Signal::SIGQUIT, "QUIT"),
    (Signal::SIGUSR1, "USR1"),
    (Signal::SIGUSR2, "USR2"),
];

#[test]
fn signals_reach_the_command_and_its_status_is_handed_on() {
    for (signal, name) in PASSED_ON {
        let fixture = Fixture::new();
        let script = format!(
            "trap 'echo got > got; exit 3' {name}; echo in > in; while :; do sleep 0.02; done"
        );
        let running = fixture.start_script(&[], &script);
        fixture.written("in");
        running.send(signal);
        running.end().with_code(3);
        fixture.written("got");
        assert!(fixture.is_free(), "after {name}");
    }
}

#[test]
fn signals_end_grandchildren_too() {
    for (signal, name) in PASSED_ON {
        let fixture = Fixture::new();
        // The shell in the foreground of the script is in the same group.
        let script = "sh -c 'echo $$ > grandchild; while :; do sleep 0.02; done'; exit 0";
        let running = fixture.start_script(&[], script);
        let grandchild = fixture.process("grandchild");
        running.send(signal);
        let finished = running.end();
        assert!(is_gone(grandchild), "after {name}: {}", finished.stderr);
        assert!(fixture.is_free(), "after {name}");
    }
}

#[test]
fn a_command_that_handles_a_signal_keeps_its_lock() {
    let fixture = Fixture::new();
    let script =
        "trap 'echo got >> got' TERM; echo in > in; while [ ! -e go ]; do sleep 0.02; done; exit 6";
    let running = fixture.start_script(&["--grace", "10ms"], script);
    fixture.written("in");
    for times in 1..=3 {
        running.send(Signal::SIGTERM);
        wait("the signal is handled", || {
            fixture.written("got").lines().count() == times
        });
        assert_eq!(fixture.control().count(LOCK), 1);
    }
    std::fs::write(fixture.path("go"), "").expect("written");
    running.end().with_code(6);
    assert!(fixture.is_free());
}

#[test]
fn a_command_that_a_signal_ends_has_the_code_of_the_signal() {
    for (signal, _) in PASSED_ON {
        let fixture = Fixture::new();
        let running = fixture.start(&["run", LOCK, "--", "sleep", "60"]);
        wait("the lock is held", || !fixture.is_free());
        // The command may not have been started yet: then the signal ends the waiting, with the
        // same code.
        running.send(signal);
        running.end().with_code(128 + signal as i32);
        assert!(fixture.is_free());
    }
}

#[test]
fn a_signal_while_waiting_ends_the_waiting_and_takes_no_lock() {
    for (signal, name) in PASSED_ON {
        let fixture = Fixture::new();
        fixture.take_as_java(LOCK, 2);
        let running = fixture.start_script(&[], "echo ran > ran");
        fixture.wait_for_a_waiter();
        running.send(signal);
        running.end().with_code(128 + signal as i32);
        assert_eq!(fixture.control().hash(LOCK), format!("{JAVA} 2"), "{name}");
        // Nobody waits any more, so nobody takes what becomes free.
        fixture.release_as_java(LOCK);
        assert!(fixture.is_free());
        assert!(!fixture.path("ran").exists());
    }
}

#[test]
fn a_signal_while_the_server_is_silent_ends_the_waiting() {
    let fixture = Fixture::new();
    fixture.server.pause();
    let running = fixture.start_script(&[], "echo ran > ran");
    // It handles its signals before it connects.
    wait("it handles signals", || handles_term(&running));
    running.send(Signal::SIGTERM);
    running.end().with_code(143);
    fixture.server.resume();
    assert!(fixture.is_free() && !fixture.path("ran").exists());
}

fn handles_term(running: &Running) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.id()));
    let Ok(status) = status else {
        return cfg!(not(target_os = "linux"));
    };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (Signal::SIGTERM as u32 - 1) & 1 == 1)
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_ignored_stays_ignored() {
    let fixture = Fixture::new();
    // As `nohup` does it.
    let inner = "trap \"echo got > got\" USR1; echo in > in; while [ ! -e go ]; do sleep 0.02; done; exit 8";
    let script = format!("trap '' HUP; exec '{PROGRAM}' run {LOCK} -- sh -c '{inner}'");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .env("REDISSON_LOCK_URL", fixture.server.url())
        .current_dir(fixture.path("."));
    let running = Running::start(&mut command);
    fixture.written("in");
    running.send(Signal::SIGHUP);
    // It would have been passed on before this one.
    running.send(Signal::SIGUSR1);
    fixture.written("got");
    std::fs::write(fixture.path("go"), "").expect("written");
    running.end().with_code(8);
    assert!(fixture.is_free());
}

/// A command that was stopped together with the program, as by Ctrl-Z, while it reads from the pipe `go`.
fn stopped(fixture: &Fixture, lease: &str, script: &str) -> (Running, nix::unistd::Pid) {
    let words = ["run", "--lease", lease, LOCK, "--", "sh", "-c", script];
    let mut command = fixture.command(&words);
    // As a job of a shell has it: a group of its own, inside the session.
    command.process_group(0);
    let running = Running::start(&mut command);
    let child = fixture.process("in");
    running.send(Signal::SIGTSTP);
    wait("both are stopped", || {
        is_stopped(child) && is_stopped(running.id())
    });
    (running, child)
}

#[test]
fn a_stop_stops_both_and_both_continue() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let script = "echo $$ > in; read line < go; exit 2";
    let (running, _) = stopped(&fixture, "60s", script);
    go.write_all(b"on\n").expect("written");
    assert_eq!(fixture.control().count(LOCK), 1);
    running.send(Signal::SIGCONT);
    running.end().with_code(2);
    assert!(fixture.is_free());
}

#[test]
fn a_stop_beyond_the_lease_ends_the_command_before_it_goes_on() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let script = "echo $$ > in; read line < go; echo on > on; sleep 60";
    let (running, child) = stopped(&fixture, "1500ms", script);
    go.write_all(b"on\n").expect("written");
    wait("the lease is over", || fixture.is_free());
    running.send(Signal::SIGCONT);
    running.end().with_code(79);
    assert!(!fixture.path("on").exists(), "it went on without its lock");
    assert!(is_gone(child));
}

#[test]
fn a_stopped_command_without_a_terminal_keeps_its_lock_and_ends_by_a_signal() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let running = fixture.start_script(&["--lease", "1500ms"], "echo $$ > in; read line < go");
    let child = fixture.process("in");
    kill(child, Signal::SIGSTOP).expect("it runs");
    wait("it is stopped", || is_stopped(child));
    let mut control = fixture.control();
    let before = control.calls("pexpire");
    wait("the lock is renewed", || {
        control.calls("pexpire") >= before + 2
    });
    assert_eq!(control.count(LOCK), 1);
    running.send(Signal::SIGTERM);
    running.end().with_code(143);
    assert!(is_gone(child) && fixture.is_free());
    go.write_all(b"nobody reads\n").expect("written");
}

fn is_stopped(process: nix::unistd::Pid) -> bool {
    state(process) == Some('T')
}
