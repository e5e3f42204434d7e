//! `run` when nothing goes wrong, and when it cannot begin.

use std::io::Write;

use nix::sys::signal::{Signal, kill};

use crate::fixture::{Fixture, JAVA, LOCK, SHORT, is_gone, wait};

#[test]
fn the_status_of_the_command_is_handed_on_and_the_key_is_gone() {
    let fixture = Fixture::new();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
    ] {
        fixture.start_script(&[], script).end().with_code(code);
        assert!(fixture.is_free(), "after {script}");
    }
}

#[test]
fn arguments_arrive_as_they_are_and_no_shell_is_in_between() {
    let fixture = Fixture::new();
    let given = [
        "two words",
        "it's \"quoted\"",
        "$HOME",
        "*",
        "a;b",
        "",
        "--wait",
        "-n",
        "ü\nx",
    ];
    let script = "printf '<%s>' \"$@\"";
    let mut arguments = vec!["run", LOCK, "--", "sh", "-c", script, "sh"];
    arguments.extend(given);
    let finished = fixture.finish(&arguments).with_code(0);
    let expected: String = given.map(|word| format!("<{word}>")).concat();
    assert_eq!(finished.stdout, expected);
    // Without a shell the command is the child itself.
    fixture
        .finish(&["run", LOCK, "--", "exit 3"])
        .with_code(127);
}

#[test]
fn the_lock_is_held_while_the_command_runs_and_stdin_is_its_own() {
    let fixture = Fixture::new();
    let running = fixture.start_script(&[], "echo $$ > in; while [ ! -e go ]; do sleep 0.02; done");
    let command = fixture.process("in");
    assert_eq!(fixture.control().count(LOCK), 1);
    // In a group of its own.
    let group = nix::unistd::getpgid(Some(command)).expect("it runs");
    assert_eq!(group, command);
    std::fs::write(fixture.path("go"), "").expect("written");
    running.end().with_code(0);
    assert!(fixture.is_free());

    let input = std::fs::File::open("/etc/hostname").or_else(|_| std::fs::File::open("/dev/null"));
    let mut command = fixture.command(&["run", LOCK, "--", "cat"]);
    command.stdin(input.expect("a file"));
    let finished = crate::fixture::Running::start(&mut command)
        .end()
        .with_code(0);
    let expected = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    assert_eq!(finished.stdout, expected);
}

#[test]
fn the_lease_is_renewed_for_as_long_as_the_command_runs() {
    let fixture = Fixture::new();
    let script = "echo in > in; while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let running = fixture.start_script(&["--lease", SHORT], script);
    fixture.written("in");
    // For longer than the lease.
    fixture.wait_for_renewals();
    fixture.wait_for_renewals();
    std::fs::write(fixture.path("go"), "").expect("written");
    running.end().with_code(5);
    assert!(fixture.is_free());
}

#[test]
fn what_the_command_leaves_in_its_group_is_asked_to_end_under_the_lock() {
    let fixture = Fixture::new();
    let script = "sh -c 'trap \"echo told > told; read line < go; exit\" TERM; echo $$ > polite; \
                         while :; do sleep 0.02; done' & \
                  while [ ! -s polite ]; do sleep 0.02; done; exit 4";
    let mut go = fixture.pipe("go");
    let running = fixture.start_script(&["--grace", "10m"], script);
    let polite = fixture.process("polite");
    fixture.written("told");
    assert_eq!(fixture.control().count(LOCK), 1);
    go.write_all(b"on\n").expect("written");
    running.end().with_code(4);
    assert!(is_gone(polite) && fixture.is_free());
}

#[test]
fn what_the_command_leaves_in_its_group_is_killed_after_the_grace() {
    let fixture = Fixture::new();
    let script = "sh -c 'trap \"\" TERM; echo $$ > deaf; while :; do sleep 0.02; done' & \
                  while [ ! -s deaf ]; do sleep 0.02; done; exit 4";
    let running = fixture.start_script(&["--grace", "200ms"], script);
    let deaf = fixture.process("deaf");
    running.end().with_code(4);
    assert!(is_gone(deaf) && fixture.is_free());
}

#[test]
fn the_lock_is_held_until_the_last_of_the_group_is_gone() {
    let fixture = Fixture::new();
    let script = "sh -c 'trap \"\" TERM; echo $$ > deaf; while :; do sleep 0.02; done' & \
                  while [ ! -s deaf ]; do sleep 0.02; done; exit 0";
    let running = fixture.start_script(&["--grace", "60s"], script);
    let deaf = fixture.process("deaf");
    // The command itself ends, the other one does not before the grace is over.
    wait("the command has ended", || {
        let parent = std::fs::read_to_string(format!("/proc/{deaf}/stat")).unwrap_or_default();
        let parent = parent
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.split(' ').nth(1).map(str::to_owned));
        cfg!(not(target_os = "linux")) || parent == Some(running.id().to_string())
    });
    assert_eq!(fixture.control().count(LOCK), 1);
    kill(deaf, Signal::SIGKILL).expect("it runs");
    running.end().with_code(0);
    assert!(fixture.is_free());
}

#[test]
fn a_lock_that_is_not_free_in_time_starts_nothing() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 1);
    for wait in ["0", "150ms"] {
        let script = "echo ran > ran";
        let finished = fixture
            .start_script(&["--wait", wait], script)
            .end()
            .with_code(75);
        assert!(
            finished.stderr.contains("was not free within"),
            "{}",
            finished.stderr
        );
    }
    assert!(!fixture.path("ran").exists());
    assert_eq!(fixture.control().hash(LOCK), format!("{JAVA} 1"));
}

/// The code says whether another holder kept the command from running, or an outage.
#[test]
fn a_server_that_is_lost_during_the_wait_is_no_holder() {
    let mut fixture = Fixture::new();
    fixture.take_as_java(LOCK, 1);
    let running = fixture.start_script(&["--wait", "2s"], "echo ran > ran");
    fixture.wait_for_a_waiter();
    fixture.server.kill();
    let said = running.end().with_code(69).stderr;
    assert!(said.contains("not connected"), "{said}");
    assert!(!fixture.path("ran").exists());
}

#[test]
fn who_held_a_lock_that_is_not_free_in_time_is_said() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 2);
    let finished = fixture.start_script(&["--wait", "0"], "true").end();
    let said = finished.with_code(75).stderr;
    let start = format!(
        "redisson-lock: lock `stock:42` was not free within 0.0 s: held 2 times by {JAVA}, "
    );
    assert!(
        said.starts_with(&start) && said.ends_with(" s left\n"),
        "{said}"
    );
}

/// Without a wait too the server has its time to answer.
#[test]
fn one_attempt_has_as_long_as_a_command() {
    let fixture = Fixture::new();
    let mut control = fixture.control();
    control.run(&["CLIENT", "PAUSE", "1000", "WRITE"]);
    let finished = fixture.start_script(&["--wait", "0"], "true").end();
    finished.with_code(0);
}

/// What is in the way of one part of a read-write lock holds the other one.
#[test]
fn who_held_a_part_of_a_read_write_lock_is_said() {
    let fixture = Fixture::new();
    let mut control = fixture.control();
    for (asked, mode, field) in [
        ("read", "write", format!("{JAVA}:write")),
        ("write", "read", JAVA.to_owned()),
        ("write", "write", format!("{JAVA}:write")),
    ] {
        control.run(&["HSET", LOCK, "mode", mode, &field, "2"]);
        control.run(&["PEXPIRE", LOCK, "600000"]);
        let finished = fixture.finish(&["run", "--kind", asked, "--wait", "0", LOCK, "--", "true"]);
        let said = finished.with_code(75).stderr;
        let end = format!("was not free within 0.0 s: held 2 times by {field}, ");
        assert!(said.contains(&end), "{said}");
        control.run(&["DEL", LOCK]);
    }
}

#[test]
fn a_lock_that_is_not_free_in_time_is_said_without_its_holder_if_that_cannot_be_asked() {
    let fixture = Fixture::new();
    // From here on the server knows the scripts that take and release a lock, and not the one that
    // inspects it, which would have to be sent as a whole.
    fixture.start_script(&[], "true").end().with_code(0);
    fixture.take_as_java(LOCK, 1);
    let mut control = fixture.control();
    control.run(&["ACL", "SETUSER", "default", "-eval"]);
    let running = fixture.start_script(&["--wait", "0"], "true");
    let said = running.end().with_code(75).stderr;
    assert_eq!(
        said,
        "redisson-lock: lock `stock:42` was not free within 0.0 s\n"
    );
    control.run(&["ACL", "SETUSER", "default", "+eval"]);
}

#[test]
fn a_lock_that_becomes_free_is_taken() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 1);
    let running = fixture.start_script(&["--wait", "60s"], "echo ran > ran");
    fixture.wait_for_a_waiter();
    assert!(!fixture.path("ran").exists());
    fixture.release_as_java(LOCK);
    running.end().with_code(0);
    fixture.written("ran");
    assert!(fixture.is_free());
}

#[test]
fn two_runs_never_overlap() {
    let fixture = Fixture::new();
    // A folder can be made once: a command that finds it there is inside together with another.
    let script = "mkdir inside || exit 9; sleep 0.02; rmdir inside; echo done >> done";
    let runs: Vec<_> = (0..8).map(|_| fixture.start_script(&[], script)).collect();
    for run in runs {
        run.end().with_code(0);
    }
    assert_eq!(fixture.written("done").lines().count(), 8);
    assert!(fixture.is_free());
}

#[test]
fn a_command_that_cannot_be_started_leaves_no_lock() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("text"), "no program").expect("written");
    for (command, code) in [("./there-is-no-such-command", 127), ("./text", 126)] {
        let finished = fixture
            .finish(&["run", LOCK, "--", command])
            .with_code(code);
        assert!(
            finished.stderr.contains("cannot be executed"),
            "{}",
            finished.stderr
        );
        assert!(fixture.is_free());
    }
}

#[test]
fn wrong_arguments_have_the_code_of_usage() {
    let fixture = Fixture::new();
    let wrong: [&[&str]; 8] = [
        &[],
        &["run", LOCK],
        &["run", LOCK, "--"],
        &["run", LOCK, "true"],
        &["run", "--wait", "soon", LOCK, "--", "true"],
        &["run", "--lease", "1ms", LOCK, "--", "true"],
        &["run", "", "--", "true"],
        &["inspect"],
    ];
    for arguments in wrong {
        let finished = fixture.finish(arguments).with_code(64);
        assert!(!finished.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_has_every_exit_code_and_the_readme_too() {
    let fixture = Fixture::new();
    let help = fixture.finish(&["run", "--help"]).with_code(0).stdout;
    let readme = include_str!("../../README.md");
    for code in [
        "0", "1", "64", "65", "69", "70", "74", "75", "77", "79", "126", "127", "128+n",
    ] {
        let row = help
            .lines()
            .any(|line| line.trim_start().starts_with(&format!("{code} ")));
        assert!(row, "{code} in {help}");
        assert!(
            readme.contains(&format!("| {code} |")),
            "{code} in the README"
        );
    }
    assert!(
        !help.contains(&fixture.server.url()),
        "the variable is not shown"
    );
}

#[test]
fn the_command_of_a_fenced_lock_finds_its_token_and_other_kinds_have_none() {
    let fixture = Fixture::new();
    let script = "echo token=$REDISSON_LOCK_TOKEN";
    let run = |kind: &str| {
        let arguments = ["run", "--kind", kind, "kinds", "--", "sh", "-c", script];
        fixture.finish(&arguments).with_code(0).stdout
    };
    assert_eq!(run("fenced"), "token=1\n");
    assert_eq!(run("fenced"), "token=2\n");
    for kind in ["plain", "spin", "string", "fair", "read", "write"] {
        assert_eq!(run(kind), "token=\n", "{kind}");
    }
    let refused = fixture.finish(&["run", "--kind", "just", "kinds", "--", "true"]);
    let refused = refused.with_code(64).stderr;
    assert!(
        refused.contains("plain, spin, fenced, string, fair, read, write"),
        "{refused}"
    );
}

#[test]
fn a_string_lock_is_inspected_and_freed_by_its_kind() {
    let fixture = Fixture::new();
    fixture
        .control()
        .run(&["SET", "text", "python", "PX", "60000"]);
    let inspect = ["inspect", "--kind", "string", "text"];
    let shown = fixture.finish(&inspect).with_code(0).stdout;
    assert!(shown.contains("by python"), "{shown}");
    let freed = fixture.finish(&["unlock", "--force", "--kind", "string", "text"]);
    freed.with_code(0);
    fixture.finish(&inspect).with_code(1);
    let checked = fixture.finish(&["check", "--kind", "string", "text"]);
    checked.with_code(0);
}
