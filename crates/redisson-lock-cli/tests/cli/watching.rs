//! `watch` and `bench`.

use std::io::{BufRead, BufReader};

use nix::sys::signal::Signal;

use test_support::Server;

use crate::fixture::{Fixture, JAVA, LOCK, Running, wait};

#[test]
fn the_table_has_the_locks_that_match_and_nothing_else() {
    let fixture = Fixture::new();
    let shown = fixture
        .finish(&["watch", "--once", "stock:*"])
        .with_code(0)
        .stdout;
    assert_eq!(shown, "no lock is held\n");

    fixture.take_as_java("stock:2", 3);
    fixture.take_as_java("stock:1", 1);
    fixture.take_as_java("other:1", 1);
    let mut control = fixture.control();
    control.run(&["SET", "stock:string", "1"]);
    control.run(&["HSET", "stock:hash", "visits", "1"]);
    control.run(&["HSET", "stock:more", "a:1", "1", "b:2", "1"]);
    let shown = fixture
        .finish(&["watch", "--once", "stock:*"])
        .with_code(0)
        .stdout;
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    let expected = [
        ["LOCK", "OWNER", "COUNT"],
        ["stock:1", JAVA, "1"],
        ["stock:2", JAVA, "3"],
    ];
    assert_eq!(rows, expected, "{shown}");
}

#[test]
fn many_keys_are_read_in_small_steps() {
    let fixture = Fixture::new();
    let mut control = fixture.control();
    let fill = "for i = 1, 3000 do redis.call('SET', 'key:' .. i, '1') end \
                for i = 1, 200 do redis.call('HSET', 'lock:' .. i, 'a:' .. i, 1) end";
    control.run(&["EVAL", fill, "0"]);
    let shown = fixture
        .finish(&["watch", "--once", "lock:*"])
        .with_code(0)
        .stdout;
    assert_eq!(shown.lines().count(), 201);
    assert!(control.calls("scan") >= 20, "{}", control.calls("scan"));
}

#[test]
fn the_table_is_shown_again_until_a_signal() {
    let fixture = Fixture::new();
    let mut command = fixture.command(&["watch", "stock:*"]);
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut until = |text: &str| {
        let found = lines
            .by_ref()
            .take(40)
            .find(|line| line.as_ref().is_ok_and(|line| line.starts_with(text)));
        assert!(found.is_some(), "no {text}");
    };
    until("no lock is held");
    fixture.take_as_java("stock:7", 1);
    until("stock:7");
    let process = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("an id"));
    nix::sys::signal::kill(process, Signal::SIGINT).expect("it runs");
    let mut status = None;
    wait("it ends", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}

#[test]
fn bench_measures_and_leaves_nothing() {
    let fixture = Fixture::new();
    let arguments = ["bench", "--tasks", "4", "--seconds", "1"];
    let shown = fixture.finish(&arguments).with_code(0).stdout;
    for part in ["4 tasks", "pairs per second", "p50", "p99"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains(": 0 pairs"), "{shown}");
    assert_eq!(fixture.control().run(&["KEYS", "*"]), "");
}

#[test]
fn bench_leaves_nothing_when_a_signal_ends_it() {
    let fixture = Fixture::new();
    let running: Running = fixture.start(&["bench", "--tasks", "8", "--seconds", "600"]);
    let mut control = fixture.control();
    wait("it locks", || control.calls("evalsha") > 100);
    running.send(Signal::SIGTERM);
    let finished = running.end().with_code(143);
    assert!(
        finished.stdout.contains("pairs per second"),
        "{}",
        finished.stdout
    );
    assert_eq!(control.run(&["KEYS", "*"]), "");
}

#[test]
fn a_socket_whose_path_has_a_blank_is_watched() {
    let folder = std::env::temp_dir().join(format!("redisson lock {}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let socket = folder.join("s.sock");
    let path = socket.to_str().expect("UTF-8");
    let server = Server::start_with(&["--unixsocket", path]);
    server.control().run(&["HSET", LOCK, JAVA, "1"]);
    let url = format!("redis+unix://{}", path.replace(' ', "%20"));
    let fixture = Fixture::new();
    let watched = fixture.finish(&["watch", "--once", "*", "--url", &url]);
    let shown = watched.with_code(0).stdout;
    assert!(shown.contains(LOCK), "{shown}");
    std::fs::remove_dir_all(&folder).expect("it was made");
}
