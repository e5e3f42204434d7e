//! What the program writes: all of it or an error, nothing that steers a terminal, and no password.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::fixture::{Fixture, JAVA, LOCK, Running};

/// Every command that writes to stdout.
const WRITING: [&[&str]; 9] = [
    &["inspect", LOCK],
    &["inspect", "--json", LOCK],
    &["watch", "--once", "*"],
    &["unlock", "--force", LOCK],
    &["check", LOCK],
    &["bench", "--tasks", "1", "--seconds", "1"],
    &["completions", "bash"],
    &["--help"],
    &["--version"],
];

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_has_a_code_of_its_own() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 1);
    for arguments in WRITING {
        let mut command = fixture.command(arguments);
        command.stdout(full());
        let said = Running::start(&mut command).end().with_code(74).stderr;
        assert!(
            said.starts_with("redisson-lock: the output cannot be written: "),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn output_that_is_not_read_has_the_same_code() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 1);
    for arguments in WRITING {
        let mut command = fixture.command(arguments);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(writer);
        drop(reader);
        Running::start(&mut command).end().with_code(74);
    }
}

#[test]
fn watching_ends_when_its_output_is_not_read_any_more() {
    let fixture = Fixture::new();
    let mut command = fixture.command(&["watch", "*"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    command.stdout(writer);
    let running = Running::start(&mut command);
    // The command has a handle of the writer for as long as it exists.
    drop(command);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).expect("a line");
    assert_eq!(line, "no lock is held\n");
    running.end().with_code(74);
}

#[test]
#[cfg(target_os = "linux")]
fn errors_that_cannot_be_written_change_no_code() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 1);
    let commands: [(&[&str], i32); 4] = [
        (&["no-such-command"], 64),
        (&["unlock", LOCK], 64),
        (&["run", "--wait", "0", LOCK, "--", "true"], 75),
        (
            &["run", "--url", "redis://127.0.0.1:1", LOCK, "--", "true"],
            69,
        ),
    ];
    for (arguments, code) in commands {
        let mut command = fixture.command(arguments);
        command.stderr(full());
        Running::start(&mut command).end().with_code(code);
    }
}

/// A file on a disk without space.
#[cfg(target_os = "linux")]
fn full() -> Stdio {
    let full = std::fs::File::options().write(true).open("/dev/full");
    full.expect("the system has it").into()
}

/// The start of an escape sequence in one and in two bytes, a bell, a deletion, and characters that
/// turn the text around them.
const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{7}\u{7f}\r\u{202e}\u{2066}";

#[track_caller]
fn assert_harmless(said: &str) {
    let steers = |c: char| c != '\n' && c.is_control() || HOSTILE.contains(c) && !c.is_ascii();
    assert!(!said.contains(steers), "{said:?}");
}

#[test]
fn nothing_that_redis_has_steers_a_terminal() {
    let fixture = Fixture::new();
    let mut control = fixture.control();
    let held = format!("held:{HOSTILE}");
    control.run(&["HSET", &held, &format!("{HOSTILE}:1"), "1"]);
    let string = format!("string:{HOSTILE}");
    control.run(&["SET", &string, "no lock"]);
    let many = format!("many:{HOSTILE}");
    control.run(&["HSET", &many, JAVA, HOSTILE]);
    for name in [&held, &string, &many] {
        let commands: [&[&str]; 6] = [
            &["inspect", name],
            &["inspect", "--json", name],
            &["check", name],
            &["unlock", name],
            &["run", "--wait", "0", name, "--", "true"],
            &["watch", "--once", "*"],
        ];
        for arguments in commands {
            let finished = fixture.finish(arguments);
            assert_harmless(&finished.stdout);
            assert_harmless(&finished.stderr);
        }
    }
    // What a program reads is unchanged.
    let shown = fixture.finish(&["inspect", "--json", &held]).with_code(0);
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(shown[0]["name"], held);
    assert_eq!(shown[0]["owner"], format!("{HOSTILE}:1"));

    for name in [held, string, many] {
        let finished = fixture.finish(&["unlock", "--force", &name]);
        assert_harmless(&finished.stdout);
        assert_harmless(&finished.stderr);
    }
}

#[test]
fn nothing_that_the_arguments_have_steers_a_terminal() {
    let fixture = Fixture::new();
    let option = format!("--{HOSTILE}");
    let commands: [&[&str]; 5] = [
        &[HOSTILE],
        &["inspect", &option, LOCK],
        &["run", "--wait", HOSTILE, LOCK, "--", "true"],
        &["completions", HOSTILE],
        &["run", LOCK, "--", HOSTILE],
    ];
    for arguments in commands {
        let finished = fixture.finish(arguments);
        assert!(!finished.stderr.is_empty());
        assert_harmless(&finished.stderr);
    }
}

const SECRET: &str = "geheim";

/// Addresses with a password, and the code that they end with.
fn addresses(port: u16) -> Vec<(String, i32)> {
    let unusable = [
        "redis://:{}@127.0.0.1:port",
        "redis+tls://user:{}@127.0.0.1:1",
        "redis-cluster://:{}@127.0.0.1:1/7",
        // Without a scheme, or with half of one.
        "user:{}@127.0.0.1",
        ":{}@127.0.0.1:1",
        "{}@127.0.0.1",
        "redis:/:{}@127.0.0.1:1",
        "redis:user:{}@127.0.0.1:1",
        // With a blank.
        "redis://:{}@ 127.0.0.1:1",
        "redis ://:{}@127.0.0.1:1",
        // With characters that have to be written percent-encoded.
        "redis://:x/{}@127.0.0.1:1",
        "redis://:x#{}@127.0.0.1:1",
        "redis://:x?{}@127.0.0.1:1",
    ];
    let unusable = unusable.map(|url| (url.replace("{}", SECRET), 64));
    let mut all = unusable.to_vec();
    all.extend([
        (format!("redis://:{SECRET}@127.0.0.1:1"), 69),
        (format!("redis://:x {SECRET}@127.0.0.1:1"), 69),
        // From a file.
        (format!(" redis://:{SECRET}@127.0.0.1:1\n"), 69),
        (format!("redis://user:{SECRET}@127.0.0.1:{port}"), 77),
    ]);
    all
}

#[test]
fn no_password_of_an_address_is_said() {
    let fixture = Fixture::new();
    for (url, code) in addresses(fixture.server.port) {
        for arguments in [
            &["run", LOCK, "--", "true"][..],
            &["inspect", LOCK],
            &["watch", "--once", "*"],
            &["unlock", "--force", LOCK],
            &["check", LOCK],
            &["bench", "--tasks", "1", "--seconds", "1"],
        ] {
            let mut by_variable = fixture.command(arguments);
            by_variable.env("REDISSON_LOCK_URL", &url);
            let mut by_option = fixture.command(&arguments[..1]);
            by_option.args(["--url", &url]).args(&arguments[1..]);
            for mut command in [by_variable, by_option] {
                let finished = Running::start(&mut command).end().with_code(code);
                let said = format!("{}{}", finished.stdout, finished.stderr);
                assert!(!said.contains(SECRET), "{arguments:?} {url}: {said}");
                assert!(said.starts_with("redisson-lock: "), "{said}");
                assert_eq!(said.lines().count(), 1, "{said}");
            }
        }
    }
}

#[test]
fn an_address_in_the_wrong_place_is_not_repeated() {
    let fixture = Fixture::new();
    for (url, _) in addresses(fixture.server.port) {
        let glued = format!("--wait={url}");
        // As a shell splits it that was given no quotes.
        let mut split = vec!["check", "--url"];
        split.extend(url.split(' '));
        split.extend(["more", "and-more"]);
        let lines: [&[&str]; 8] = [
            &[&url],
            &["run", "--wait", &url, LOCK, "--", "true"],
            &["run", &glued, LOCK, "--", "true"],
            &["bench", "--tasks", &url],
            &["completions", &url],
            &["check", LOCK, &url],
            &["inspect", &format!("--{url}"), LOCK],
            &split,
        ];
        for arguments in lines {
            let finished = fixture.finish(arguments).with_code(64);
            assert!(
                !finished.stderr.contains(SECRET),
                "{arguments:?}: {}",
                finished.stderr
            );
        }
    }
    let url = format!("redis://:{SECRET}@127.0.0.1:1");
    for command in ["inspect", "check", "unlock"] {
        let said = fixture.finish(&[command, &url]).with_code(64).stderr;
        assert!(!said.contains(SECRET) && said.contains("--url"), "{said}");
    }
}

#[test]
fn what_is_wrong_with_the_arguments_is_said_without_their_values() {
    let fixture = Fixture::new();
    let lines: [(&[&str], &[&str]); 5] = [
        (&["inspect", "--jsno", LOCK], &["--jsno", "--json"]),
        (&["inspct"], &["unrecognized", "inspect"]),
        (
            &["run", "--wait", "soon", LOCK, "--", "true"],
            &["--wait <DURATION>", "such as 30s"],
        ),
        (
            &["bench", "--tasks", "0"],
            &["--tasks <TASKS>", "1..=10000"],
        ),
        (&["inspect"], &["<NAME>..."]),
    ];
    for (arguments, expected) in lines {
        let said = fixture.finish(arguments).with_code(64).stderr;
        for part in expected {
            assert!(said.contains(part), "{arguments:?}: {part} in {said}");
        }
    }
}
