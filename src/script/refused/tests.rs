//! Tests of what the error for a refused script names.

use super::*;
use crate::redis::ServerScript;
use crate::script::ALL;

fn error(script: &'static ServerScript, key: &str, text: &str) -> (Error, bool) {
    let (server, kind) = ("server".into(), RefusalKind::read(text));
    refused(
        script,
        &[key.into()],
        Cause::refused(&server, kind, text.to_owned()),
    )
}

fn missing(script: &'static ServerScript, key: &str, text: &str) -> Option<String> {
    match error(script, key, text) {
        (Error::PermissionDenied { permission, .. }, false) => Some(permission),
        _ => None,
    }
}

#[test]
fn what_was_refused_unread_is_certain_and_what_nobody_knows_is_not() {
    let may_be_executed = |text| error(ALL[0], "a", text).1;
    for text in [
        "NOSCRIPT No matching script. Please use EVAL.",
        "ERR unknown command 'EVALSHA', with args beginning with: 'x' '1' 'a' ",
        "ERR wrong number of arguments for 'evalsha' command",
        "ERR Error compiling script (new function): user_script:1: '=' expected",
        "READONLY You can't write against a read only replica.",
        "ERR Error running script (call to f_0): @user_script:22: @user_script: 22: -OOM command not allowed",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    ] {
        assert!(!may_be_executed(text), "{text}");
    }
    for text in [
        "ERR upstream failure",
        "ERR Script killed by user with SCRIPT KILL.",
        "UPSTREAM gone",
        "",
    ] {
        assert!(may_be_executed(text), "{text}");
    }
}

/// Every call of every script, in the words of each version of the server.
#[test]
fn a_command_that_a_script_may_not_call_is_named_alone() {
    let why = "The user executing the script can't run this command or subcommand";
    for script in ALL {
        for (nth, line) in script.source.lines().enumerate() {
            let line = line.split("--").next().unwrap_or_default();
            let called: Vec<_> = commands(line).collect();
            assert!(called.len() <= 1, "{}: {line}", script.name);
            let [called] = &called[..] else { continue };
            let nth = nth + 1;
            let word = &called[1..];
            for text in [
                format!(
                    "ERR Error running script (call to f_0): @user_script:{nth}: @user_script: {nth}: {why}"
                ),
                format!("ERR {why} script: 0, on @user_script:{nth}."),
                format!(
                    "ERR ACL failure in script: User u has no permissions to run the '{word}' command script: 0, on @user_script:{nth}."
                ),
                format!("NOPERM User u has no permissions to run the '{word}' command"),
                format!(
                    "NOPERM this user has no permissions to run the '{word}' command or its subcommand"
                ),
            ] {
                assert_eq!(missing(script, "a", &text).as_ref(), Some(called), "{text}");
            }
        }
    }
    // Caught by the script, it has no place.
    let renew = ALL.iter().find(|script| script.name == "renew");
    let renew = renew.expect("a script");
    assert_eq!(
        missing(renew, "a", &format!("ERR {why}")).as_deref(),
        Some("+hexists")
    );
}

#[test]
fn a_key_and_a_channel_are_those_of_the_lock() {
    let script = ALL[0];
    let key = "NOPERM No permissions to access a key";
    let channel = "ERR ACL failure in script: No permissions to access a channel";
    for (lock, text, named) in [
        ("stock:42", key, "~stock:42"),
        ("a*b?[c]\\", key, r"~a\*b\?\[c\]\\"),
        // A pattern cannot contain them.
        ("a b\t\n\x0b\x0c\r\0ä", key, "~a?b??????ä"),
        ("stock:42", channel, "&redisson_lock__channel:{stock:42}"),
        ("a{b}*", channel, r"&redisson_lock__channel:a{b}\*"),
    ] {
        assert_eq!(missing(script, lock, text).as_deref(), Some(named));
    }
}
