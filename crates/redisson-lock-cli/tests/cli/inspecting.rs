//! `inspect`, `unlock`, `check`, `completions`.

use redisson_lock::LockClient;
use serde_json::{Value, json};
use test_support::tokio;

use crate::fixture::{Fixture, JAVA, LOCK};

#[test]
fn a_free_lock_is_shown_as_free() {
    let fixture = Fixture::new();
    let finished = fixture.finish(&["inspect", LOCK]).with_code(1);
    assert_eq!(finished.stdout, "stock:42: free\n");
    let finished = fixture.finish(&["inspect", LOCK, "--json"]).with_code(1);
    let shown: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(shown, json!([{ "name": LOCK, "held": false }]));
}

#[test]
fn a_holder_in_java_is_shown_with_its_count_and_time() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 2);
    let shown = fixture.finish(&["inspect", LOCK]).with_code(0).stdout;
    let start = format!("stock:42: held 2 times by {JAVA}, ");
    assert!(
        shown.starts_with(&start) && shown.ends_with(" s left\n"),
        "{shown}"
    );

    let finished = fixture
        .finish(&["inspect", "--json", LOCK, "free:1"])
        .with_code(1);
    let shown: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(shown[0]["owner"], JAVA);
    assert_eq!(shown[0]["hold_count"], 2);
    let left = shown[0]["lease_left_ms"].as_u64().expect("a number");
    assert!((500_000..=600_000).contains(&left), "{left}");
    assert_eq!(shown[1], json!({ "name": "free:1", "held": false }));
}

#[tokio::test]
async fn a_holder_of_this_crate_is_shown() {
    let fixture = Fixture::new();
    let client = LockClient::connect(&fixture.server.url())
        .await
        .expect("it answers");
    let guard = client.lock(LOCK).lock().await.expect("it is free");
    let shown = fixture.finish(&["inspect", LOCK]).with_code(0).stdout;
    assert!(
        shown.contains(&format!("held once by {}, ", guard.owner())),
        "{shown}"
    );
    guard.unlock().await.expect("held");
    fixture.finish(&["inspect", LOCK]).with_code(1);
}

#[tokio::test]
async fn the_queue_of_a_fair_lock_is_shown() {
    let fixture = Fixture::new();
    let client = LockClient::connect(&fixture.server.url())
        .await
        .expect("it answers");
    let lock = client.fair_lock(LOCK);
    let guard = lock.lock().await.expect("it is free");
    let next = lock.owned_by(&client.owner());
    let waiting = tokio::spawn(async move { next.lock().await.map(drop) });
    while lock.queue().await.expect("asked").is_empty() {
        tokio::task::yield_now().await;
    }
    let queue = lock.queue().await.expect("asked");
    let shown = fixture.finish(&["inspect", "--kind", "fair", LOCK]);
    let shown = shown.with_code(0).stdout;
    let line = format!("\n  {} waits, for ", queue[0].owner);
    assert!(
        shown.contains(&line) && shown.ends_with(" s at most\n"),
        "{shown}"
    );
    let finished = fixture.finish(&["inspect", "--kind", "fair", "--json", LOCK]);
    let shown: Value = serde_json::from_str(&finished.with_code(0).stdout).expect("JSON");
    assert_eq!(shown[0]["queue"][0]["owner"], queue[0].owner);
    let left = shown[0]["queue"][0]["place_left_ms"]
        .as_u64()
        .expect("it ends");
    assert!((290_000..=400_000).contains(&left), "{left}");
    waiting.abort();
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn all_holders_of_a_read_write_lock_are_shown() {
    let fixture = Fixture::new();
    let client = LockClient::connect(&fixture.server.url())
        .await
        .expect("it answers");
    let lock = client.rw_lock(LOCK);
    let writes = lock.write().lock().await.expect("it is free");
    let reads = lock.read().lock().await.expect("inside");
    let owner = writes.owner().to_string();
    for kind in ["read", "write"] {
        let shown = fixture.finish(&["inspect", "--kind", kind, LOCK]);
        let shown = shown.with_code(0).stdout;
        let lines: Vec<&str> = shown.lines().collect();
        let writer = format!("{LOCK}: held once by {owner}:write, ");
        let reader = format!("  held once by {owner}, ");
        assert!(
            lines.len() == 2 && lines[0].starts_with(&writer) && lines[1].starts_with(&reader),
            "{shown}"
        );
    }
    writes.unlock().await.expect("held");
    let finished = fixture.finish(&["inspect", "--kind", "read", "--json", LOCK]);
    let shown: Value = serde_json::from_str(&finished.with_code(0).stdout).expect("JSON");
    assert_eq!(shown[0]["holders"][0]["owner"], owner);
    assert_eq!(shown[0]["owner"], owner);
    let shown = fixture.finish(&["watch", "--once", "*"]).with_code(0);
    assert!(shown.stdout.contains(&owner), "{}", shown.stdout);
    reads.unlock().await.expect("held");
    let finished = fixture.finish(&["inspect", "--kind", "write", "--json", LOCK]);
    let shown: Value = serde_json::from_str(&finished.with_code(1).stdout).expect("JSON");
    assert_eq!(shown[0]["held"], false);
}

#[test]
fn missing_permissions_are_named() {
    let fixture = Fixture::new();
    let finished = fixture.finish(&["check", LOCK]).with_code(0);
    assert_eq!(finished.stdout, "stock:42: all permissions granted\n");
    let mut control = fixture.control();
    let all_but = ["ACL", "SETUSER", "default", "-hdel", "resetchannels"];
    control.run(&all_but);
    let finished = fixture.finish(&["check", LOCK]).with_code(77);
    let channel = "&redisson_lock__channel:{stock:42}";
    assert_eq!(
        finished.stdout,
        format!("stock:42: missing +hdel {channel}\n")
    );
    control.run(&["ACL", "SETUSER", "default", "+hdel", "allchannels"]);
}

#[test]
fn a_lock_without_an_end_is_shown_as_such() {
    let fixture = Fixture::new();
    fixture.control().run(&["HSET", LOCK, JAVA, "1"]);
    let shown = fixture.finish(&["inspect", LOCK]).with_code(0).stdout;
    assert!(shown.ends_with("without an end\n"), "{shown}");
    let shown = fixture
        .finish(&["inspect", "--json", LOCK])
        .with_code(0)
        .stdout;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown[0]["lease_left_ms"], Value::Null);
}

#[test]
fn something_else_has_a_code_of_its_own() {
    let fixture = Fixture::new();
    fixture.control().run(&["SET", LOCK, "a string"]);
    let commands: [&[&str]; 3] = [
        &["inspect", LOCK],
        &["unlock", LOCK, "--force"],
        &["run", LOCK, "--", "true"],
    ];
    for arguments in commands {
        let finished = fixture.finish(arguments).with_code(65);
        assert!(
            finished.stderr.contains("is not a lock"),
            "{}",
            finished.stderr
        );
    }
}

#[test]
fn what_another_program_wrote_does_not_steer_the_terminal() {
    let fixture = Fixture::new();
    fixture.control().run(&["HSET", LOCK, "\x1b[2J:1", "1"]);
    for arguments in [&["inspect", LOCK][..], &["watch", "--once", "*"]] {
        let shown = fixture.finish(arguments).with_code(0).stdout;
        assert!(
            !shown.contains('\x1b') && shown.contains("\\u{1b}"),
            "{shown}"
        );
    }
}

#[test]
fn unlock_refuses_without_force() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 2);
    let finished = fixture.finish(&["unlock", LOCK]).with_code(64);
    assert!(finished.stderr.contains("--force"), "{}", finished.stderr);
    assert_eq!(fixture.control().hash(LOCK), format!("{JAVA} 2"));
}

#[test]
fn unlock_with_force_frees_and_says_whether_it_was_held() {
    let fixture = Fixture::new();
    fixture.take_as_java(LOCK, 2);
    let finished = fixture.finish(&["unlock", LOCK, "--force"]).with_code(0);
    assert_eq!(finished.stdout, "stock:42: freed\n");
    assert!(fixture.is_free());
    let finished = fixture.finish(&["unlock", LOCK, "--force"]).with_code(1);
    assert_eq!(finished.stdout, "stock:42: it was free already\n");
}

#[test]
fn completions_name_the_commands() {
    let fixture = Fixture::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = fixture.finish(&["completions", shell]).with_code(0).stdout;
        for command in ["run", "inspect", "watch", "unlock", "bench"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}
