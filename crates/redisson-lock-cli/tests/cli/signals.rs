//! Signals that the program receives: passed on while the command runs, the end of the waiting
//! before.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{Fixture, JAVA, LOCK, LONG, PROGRAM, Running, SHORT, is_gone, state, wait};

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

/// The program as a job of a shell has it: in a group of its own, inside the session. The command runs in `sh`, and
/// writes its id into `in`.
fn job(fixture: &Fixture, lease: &str, script: &str) -> (Running, Pid) {
    let script = format!("echo $$ > in; {script}");
    let words = ["run", "--lease", lease, LOCK, "--", "sh", "-c", &script];
    let mut command = fixture.command(&words);
    command.process_group(0);
    let running = Running::start(&mut command);
    let child = fixture.process("in");
    (running, child)
}

/// Stops the program as Ctrl-Z does, and waits until its command is stopped too.
fn stop(running: &Running, child: Pid) {
    running.send(Signal::SIGTSTP);
    wait("both are stopped", || {
        is_stopped(child) && is_stopped(running.id())
    });
}

/// Continues the program, and waits until its command continues too.
fn resume(running: &Running, child: Pid) {
    running.send(Signal::SIGCONT);
    wait("both continue", || {
        !is_stopped(child) && !is_stopped(running.id())
    });
}

/// Stops only the command, and waits until the program has renewed the lock twice more.
#[track_caller]
fn stop_the_command(fixture: &Fixture, running: &Running, child: Pid) {
    kill(child, Signal::SIGSTOP).expect("it runs");
    wait("it is stopped", || is_stopped(child));
    fixture.wait_for_renewals();
    assert!(!is_stopped(running.id()), "the program stopped too");
}

fn continue_the_command(child: Pid) {
    kill(child, Signal::SIGCONT).expect("it runs");
    wait("it continues", || !is_stopped(child));
}

/// Waits for a line in the pipe `go`.
const WAITING: &str = "read line < go";

#[test]
fn a_stop_stops_both_and_both_continue() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let (running, child) = job(&fixture, LONG, &format!("{WAITING}; exit 2"));
    for _ in 0..3 {
        stop(&running, child);
        assert_eq!(fixture.control().count(LOCK), 1);
        resume(&running, child);
    }
    go.write_all(b"on\n").expect("written");
    running.end().with_code(2);
    assert!(fixture.is_free());
}

#[test]
fn a_stop_beyond_the_lease_ends_the_command_before_it_goes_on() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let script = format!("{WAITING}; echo on > on; sleep 60");
    let (running, child) = job(&fixture, SHORT, &script);
    stop(&running, child);
    go.write_all(b"on\n").expect("written");
    wait("the lease is over", || fixture.is_free());
    running.send(Signal::SIGCONT);
    running.end().with_code(79);
    assert!(!fixture.path("on").exists(), "it went on without its lock");
    assert!(is_gone(child));
}

#[test]
fn a_signal_after_a_stop_beyond_the_lease_does_not_reach_the_command() {
    let fixture = Fixture::new();
    let _go = fixture.pipe("go");
    // The shell handles the signal with the lower number first.
    let script =
        format!("trap 'echo got > got' HUP; trap 'exit 0' TERM; echo ready > ready; {WAITING}");
    let (running, child) = job(&fixture, SHORT, &script);
    fixture.written("ready");
    stop(&running, child);
    wait("the lease is over", || fixture.is_free());
    // As a terminal does that is closed.
    running.send(Signal::SIGHUP);
    running.send(Signal::SIGCONT);
    running.end().with_code(79);
    assert!(!fixture.path("got").exists(), "it went on without its lock");
    assert!(is_gone(child));
}

#[test]
fn a_stopped_command_is_continued_by_a_signal_that_ends_it() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let fixture = Fixture::new();
        let _go = fixture.pipe("go");
        let (running, child) = job(&fixture, SHORT, WAITING);
        stop_the_command(&fixture, &running, child);
        running.send(signal);
        running.end().with_code(128 + signal as i32);
        assert!(is_gone(child) && fixture.is_free(), "{signal}");
    }
}

#[test]
fn a_command_that_is_stopped_by_itself_keeps_its_lock_however_often() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let (running, child) = job(&fixture, SHORT, &format!("{WAITING}; exit 2"));
    for _ in 0..2 {
        stop_the_command(&fixture, &running, child);
        continue_the_command(child);
    }
    // A stop of the program is over when it continues.
    stop(&running, child);
    resume(&running, child);
    stop_the_command(&fixture, &running, child);
    continue_the_command(child);
    go.write_all(b"on\n").expect("written");
    running.end().with_code(2);
}

#[test]
fn a_stop_that_the_command_does_not_follow_is_over_soon() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let script = "trap 'echo got > got' TSTP; echo ready > ready; until [ \"$line\" = end ]; do read line < go; done; exit 2";
    let (running, child) = job(&fixture, SHORT, script);
    fixture.written("ready");
    // That it was stopped before is over too.
    stop_the_command(&fixture, &running, child);
    continue_the_command(child);
    running.send(Signal::SIGTSTP);
    fixture.written_by_trap("got", &mut go);
    fixture.wait_for_renewals();
    // The program stops with a command that stops within three seconds.
    std::thread::sleep(Duration::from_millis(3500));
    stop_the_command(&fixture, &running, child);
    continue_the_command(child);
    go.write_all(b"end\n").expect("written");
    running.end().with_code(2);
}

#[test]
fn a_program_whose_command_is_stopped_already_can_be_stopped() {
    let fixture = Fixture::new();
    let mut go = fixture.pipe("go");
    let (running, child) = job(&fixture, LONG, &format!("{WAITING}; exit 2"));
    kill(child, Signal::SIGSTOP).expect("it runs");
    wait("it is stopped", || is_stopped(child));
    stop(&running, child);
    resume(&running, child);
    go.write_all(b"on\n").expect("written");
    running.end().with_code(2);
}

fn is_stopped(process: Pid) -> bool {
    state(process) == Some('T')
}
