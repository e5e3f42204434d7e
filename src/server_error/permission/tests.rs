//! Tests of what a refusal names.

use super::*;
use crate::script::ALL;

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

#[test]
fn what_is_missing_is_a_command_a_key_or_a_channel() {
    for (text, missing) in [
        (
            "ERR The user executing the script can't run this command or subcommand script: 0",
            Some(Denied::Command),
        ),
        (
            "ERR ACL failure in script: User locker has no permissions to run the 'publish' command",
            Some(Denied::Command),
        ),
        (
            "NOPERM this user has no permissions to run the 'evalsha' command",
            Some(Denied::Command),
        ),
        (
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            Some(Denied::Key),
        ),
        (
            "ERR ACL failure in script: No permissions to access a key",
            Some(Denied::Key),
        ),
        (
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            Some(Denied::Key),
        ),
        (
            "ERR The user executing the script can't publish to the channel mentioned in the command",
            Some(Denied::Channel),
        ),
        (
            "ERR ACL failure in script: No permissions to access a channel",
            Some(Denied::Channel),
        ),
        ("ERR value is not an integer or out of range", None),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            None,
        ),
    ] {
        assert_eq!(denied(text), missing, "{text}");
    }
}
