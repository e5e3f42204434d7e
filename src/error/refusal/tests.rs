//! Tests of how errors of servers are read.

use super::RefusalKind::*;
use super::*;

fn moved(host: &str, port: u16) -> RefusalKind {
    let host = host.to_owned();
    Moved { host, port }
}

#[test]
fn an_error_of_the_server_is_no_error_of_the_connection() {
    for (text, from_server) in [
        ("ERR unknown command", true),
        (
            "@user_script: 17: The user executing the script can't run this command or subcommand",
            true,
        ),
        ("Connection reset by peer", false),
        ("", false),
    ] {
        assert_eq!(is_from_server(text), from_server, "{text}");
    }
}

#[test]
fn an_error_is_known_by_its_first_words_and_also_inside_a_script() {
    for (text, kind) in [
        ("NOSCRIPT No matching script. Please use EVAL.", NoScript),
        (
            "READONLY You can't write against a read only replica.",
            Known(ReadOnly),
        ),
        (
            "ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write against a read only replica.",
            Known(ReadOnly),
        ),
        (
            "ERR Error running script (call to f_0): @user_script:22: @user_script: 22: -OOM command not allowed",
            Known(OutOfMemory),
        ),
        (
            "LOADING Redis is loading the dataset in memory",
            Known(Loading),
        ),
        ("MASTERDOWN Link with MASTER is down", Known(MasterDown)),
        ("CLUSTERDOWN The cluster is down", Known(ClusterDown)),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            TryAgain,
        ),
        (
            "CROSSSLOT Keys in request don't hash to the same slot",
            Known(Cluster),
        ),
        (
            "ERR eval/evalsha command keys must be in same slot",
            Known(Cluster),
        ),
        (
            "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            Known(Busy),
        ),
        ("NOAUTH Authentication required.", NoPassword),
        ("WRONGPASS invalid username-password pair", WrongPassword),
        // Redis 6.2 puts the name in backticks.
        (
            "ERR unknown command `EVALSHA`, with args beginning with: `x`, `1`, `a`, ",
            UnknownCommand("EVALSHA".to_owned()),
        ),
        (
            "ERR unknown command 'EVALSHA'",
            UnknownCommand("EVALSHA".to_owned()),
        ),
        (
            "ERR Error compiling script (new function): user_script:1: '=' expected",
            NotCompiled,
        ),
        (
            "ERR Error running script (call to f_0): @user_script:4: WRONGTYPE Operation against a key",
            WrongType,
        ),
        ("ERR hash value is not an integer", NotANumber),
        ("ERR upstream failure", Other),
        ("UPSTREAM gone", Other),
        ("", Other),
    ] {
        assert_eq!(RefusalKind::read(text), kind, "{text}");
    }
}

#[test]
fn a_redirection_names_a_node_by_its_last_colon() {
    for (address, host, port) in [
        ("10.0.0.2:7001", "10.0.0.2", 7001),
        ("node.example:1", "node.example", 1),
        ("::1:7001", "::1", 7001),
        ("[::1]:7001", "[::1]", 7001),
        (":7001", "", 7001),
    ] {
        let text = format!("MOVED 3999 {address}");
        assert_eq!(RefusalKind::read(&text), moved(host, port), "{text}");
    }
    let ask = Ask {
        host: "10.0.0.2".to_owned(),
        port: 7001,
    };
    assert_eq!(RefusalKind::read("ASK 3999 10.0.0.2:7001"), ask);
    for address in ["", "host", "host:", "host:x", "host:70000"] {
        let text = format!("MOVED 3999 {address}");
        assert_eq!(RefusalKind::read(&text), Other, "{text}");
    }
}

#[test]
fn what_is_denied_is_a_command_a_key_or_a_channel() {
    let command = |name: &str| Denied::Command(name.to_owned());
    for (text, kind) in [
        (
            "NOPERM this user has no permissions to run the 'evalsha' command",
            NoPermission(command("+evalsha")),
        ),
        (
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            NoPermission(Denied::Key),
        ),
        (
            "NOPERM this user has no permissions to access one of the channels used as arguments",
            NoPermission(Denied::Channel),
        ),
        (
            "ERR The user executing the script can't run this command or subcommand script: 0, on @user_script:9.",
            NoPermissionInScript(Denied::Line(9)),
        ),
        (
            "@user_script: 17: The user executing the script can't run this command or subcommand",
            NoPermissionInScript(Denied::Line(17)),
        ),
        (
            "ERR The user executing the script can't run this command or subcommand",
            NoPermissionInScript(Denied::Unnamed),
        ),
        (
            "ERR ACL failure in script: User locker has no permissions to run the 'publish' command",
            NoPermissionInScript(command("+publish")),
        ),
        (
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            NoPermissionInScript(Denied::Key),
        ),
        (
            "ERR ACL failure in script: No permissions to access a key",
            NoPermissionInScript(Denied::Key),
        ),
        (
            "ERR The user executing the script can't publish to the channel mentioned in the command",
            NoPermissionInScript(Denied::Channel),
        ),
        (
            "ERR ACL failure in script: No permissions to access a channel",
            NoPermissionInScript(Denied::Channel),
        ),
        ("ERR value is not an integer or out of range", Other),
    ] {
        assert_eq!(RefusalKind::read(text), kind, "{text}");
    }
}

#[test]
fn what_a_script_may_not_call_or_reach_here_is_known_in_the_words_of_each_version() {
    for (text, kind) in [
        (
            "ERR Unknown command called from script script: on @user_script:2.",
            UnknownCommandInScript(Denied::Line(2)),
        ),
        // Above Valkey 9.1; here Redis 7 and 8, then Redis 6.2.
        (
            "ERR Unknown Redis command called from script script: f00, on @user_script:29.",
            UnknownCommandInScript(Denied::Line(29)),
        ),
        (
            "ERR Error running script (call to f_0): @user_script:29: @user_script: 29: Unknown Redis command called from Lua script",
            UnknownCommandInScript(Denied::Line(29)),
        ),
        (
            "ERR This Redis command is not allowed from script script: f00, on @user_script:2.",
            UnknownCommandInScript(Denied::Line(2)),
        ),
        (
            "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array",
            ScriptNotAccepted,
        ),
        (
            "ERR Error running script (call to f00): @user_script:3: script tried accessing undeclared key",
            ScriptNotAccepted,
        ),
        (
            "ERR command eval not support for normal user",
            UnknownCommand("EVAL".to_owned()),
        ),
        (
            "ERR Script attempted to access a non local key in a cluster node script: f00, on @user_script:3.",
            TryAgain,
        ),
        (
            "ERR Error running script (call to f_0): @user_script:3: @user_script: 3: Lua script attempted to access a non local key in a cluster node",
            TryAgain,
        ),
    ] {
        assert_eq!(RefusalKind::read(text), kind, "{text}");
    }
}
