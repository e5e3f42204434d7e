//! The lock is lost while the command runs.

use nix::sys::signal::{Signal, kill};

use crate::fixture::{Fixture, JAVA, LOCK, LONG, Running, SHORT, is_gone, wait};

/// A command with a child in the background, both of which write what they get.
fn command_with_child(fixture: &Fixture, options: &[&str]) -> Running {
    let script = "trap 'echo got > got; exit 0' TERM; \
                  sh -c 'trap \"echo got > child-got; exit 0\" TERM; echo $$ > child; \
                         while :; do sleep 0.02; done' & \
                  echo $$ > in; while :; do sleep 0.02; done";
    fixture.start_script(options, script)
}

/// What takes the lock away.
type Loss = fn(&Fixture);

fn delete(fixture: &Fixture) {
    fixture.control().run(&["DEL", LOCK]);
}

fn taken_by_another(fixture: &Fixture) {
    // In one step: the key is looked at when it has changed.
    let taken = "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], 600000)";
    let mut control = fixture.control();
    control.run(&["EVAL", taken, "1", LOCK, JAVA]);
}

fn something_else(fixture: &Fixture) {
    fixture.control().run(&["SET", LOCK, "a string"]);
}

fn forced(fixture: &Fixture) {
    fixture.finish(&["unlock", "--force", LOCK]).with_code(0);
}

#[test]
fn every_loss_ends_the_command_and_its_children_immediately() {
    let losses: [(Loss, &str); 4] = [
        (delete, "its key is gone"),
        (forced, "its key is gone"),
        (taken_by_another, "another owner holds it"),
        (something_else, "its key now holds something else"),
    ];
    for (lose, reason) in losses {
        let fixture = Fixture::new();
        // A grace that no test waits for: TERM is sent immediately, or the test fails.
        let running = command_with_child(&fixture, &["--lease", SHORT, "--grace", "10m"]);
        let (command, child) = (fixture.process("in"), fixture.process("child"));
        lose(&fixture);
        fixture.written("got");
        fixture.written("child-got");
        let finished = running.end().with_code(79);
        let said = format!("was lost: {reason}");
        assert!(finished.stderr.contains(&said), "{}", finished.stderr);
        assert!(
            finished.stderr.ends_with("; the command was ended\n"),
            "{}",
            finished.stderr
        );
        assert!(is_gone(command) && is_gone(child), "{reason}");
    }
}

#[test]
fn what_another_took_is_left_alone() {
    let fixture = Fixture::new();
    let running = command_with_child(&fixture, &["--lease", SHORT]);
    fixture.process("in");
    taken_by_another(&fixture);
    running.end().with_code(79);
    assert_eq!(fixture.control().hash(LOCK), format!("{JAVA} 1"));
}

#[test]
fn a_command_that_ignores_the_end_is_killed_after_the_grace() {
    let fixture = Fixture::new();
    let script = "trap '' TERM; \
                  sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 0.02; done' & \
                  echo $$ > in; while :; do sleep 0.02; done";
    let options = ["--lease", SHORT, "--grace", "400ms"];
    let running = fixture.start_script(&options, script);
    let (command, child) = (fixture.process("in"), fixture.process("child"));
    let start = std::time::Instant::now();
    delete(&fixture);
    running.end().with_code(79);
    assert!(start.elapsed() >= test_support::ms(400), "killed too early");
    assert!(is_gone(command) && is_gone(child));
}

#[test]
fn a_command_that_ends_well_after_the_loss_has_the_code_of_the_loss() {
    let fixture = Fixture::new();
    let script = "trap 'exit 0' TERM; echo in > in; while :; do sleep 0.02; done";
    let running = fixture.start_script(&["--lease", SHORT], script);
    fixture.written("in");
    delete(&fixture);
    running.end().with_code(79);
}

#[test]
fn a_loss_that_only_the_release_finds_has_its_code_too() {
    let fixture = Fixture::new();
    // Or the server would report it earlier.
    let mut control = fixture.control();
    control.run(&["ACL", "SETUSER", "default", "-client|tracking"]);
    let script = "echo in > in; while [ ! -e go ]; do sleep 0.02; done; exit 7";
    let running = fixture.start_script(&["--lease", LONG], script);
    fixture.written("in");
    delete(&fixture);
    std::fs::write(fixture.path("go"), "").expect("written");
    let said = running.end().with_code(79).stderr;
    assert!(said.ends_with(ENDED_BY_ITSELF), "{said}");
}

#[test]
fn a_loss_that_is_noticed_after_the_end_of_the_command_did_not_end_it() {
    let fixture = Fixture::new();
    // A process of its group is still to be ended, and the lock is held until that is done.
    let script = "sh -c 'trap \"\" TERM; echo $$ > deaf; while :; do sleep 0.02; done' & \
                  echo $$ > in; while [ ! -s deaf -o ! -e go ]; do sleep 0.02; done; exit 7";
    let running = fixture.start_script(&["--lease", SHORT, "--grace", "10m"], script);
    let (command, deaf) = (fixture.process("in"), fixture.process("deaf"));
    std::fs::write(fixture.path("go"), "").expect("written");
    wait("the command has ended", || is_gone(command));
    let mut control = fixture.control();
    let before = control.calls("hexists");
    delete(&fixture);
    // The key is asked for, and is gone.
    wait("a renewal", || control.calls("hexists") > before);
    kill(deaf, Signal::SIGKILL).expect("it runs");
    let said = running.end().with_code(79).stderr;
    assert!(
        said.contains("was lost: its key is gone") && said.ends_with(ENDED_BY_ITSELF),
        "{said}"
    );
}

const ENDED_BY_ITSELF: &str =
    "; the command had ended by itself, with code 7, before that was noticed\n";

#[test]
fn a_server_that_is_silent_for_longer_than_the_lease_is_a_loss() {
    let fixture = Fixture::new();
    let running = command_with_child(&fixture, &["--lease", SHORT]);
    let (command, child) = (fixture.process("in"), fixture.process("child"));
    fixture.server.pause();
    fixture.written("got");
    running.end().with_code(79);
    assert!(is_gone(command) && is_gone(child));
    fixture.server.resume();
}

#[test]
fn a_stopped_command_is_ended_by_a_loss() {
    let fixture = Fixture::new();
    let running = command_with_child(&fixture, &["--lease", SHORT, "--grace", "10m"]);
    let command = fixture.process("in");
    fixture.process("child");
    kill(command, Signal::SIGSTOP).expect("it runs");
    delete(&fixture);
    running.end().with_code(79);
    assert!(is_gone(command));
}

#[test]
fn without_the_program_the_lock_ends_with_its_lease() {
    let fixture = Fixture::new();
    let mut running = command_with_child(&fixture, &["--lease", SHORT]);
    let (command, child) = (fixture.process("in"), fixture.process("child"));
    running.send(Signal::SIGKILL);
    wait("it is killed", || running.has_ended());
    // What the README says: the command goes on, without a lock.
    wait("the lease is over", || fixture.is_free());
    assert!(!is_gone(command) && !is_gone(child));
    for process in [command, child] {
        kill(process, Signal::SIGKILL).expect("it runs");
    }
}
