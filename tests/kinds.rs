//! What the kinds of locks share, each row for every kind, and what each does differently.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use redisson_lock::{Error, HoldState, Lock, LockClient, LockGuard, LockKind, LossReason};
use test_support::kinds::{HANDED_OVER, KINDS, NESTED, against, count, holder, rob};
use test_support::{
    ACQUIRE, Control, Monitor, TestServer, assert_matches, eventually, lock_and_unlock, ms, tokio,
    within,
};

/// A server, and two clients of it.
struct Two {
    server: TestServer,
    one: LockClient,
    other: LockClient,
}

impl Two {
    async fn new() -> Self {
        let server = TestServer::new();
        let (one, other) = (server.client().await, server.client().await);
        Self { server, one, other }
    }

    /// A lock, what excludes it for another client, and its key.
    fn locks(&self, kind: LockKind) -> (Lock, Lock, String) {
        let name = format!("lock-of-{kind}");
        let lock = self.one.lock_of(kind, &*name);
        (lock, self.other.lock_of(against(kind), &*name), name)
    }

    async fn finish(self) {
        self.server.finish([self.one, self.other]).await;
    }
}

async fn taken(lock: &Lock) -> LockGuard {
    let taken = lock.try_lock().await.expect("asked");
    taken.expect("free")
}

async fn is_busy(lock: &Lock) -> bool {
    lock.try_lock().await.expect("asked").is_none()
}

#[tokio::test]
async fn each_kind_excludes_other_clients_and_frees_the_lock_by_unlock_and_by_drop() {
    let two = Two::new().await;
    let mut control = two.server.control();
    for kind in KINDS {
        let (lock, other, key) = two.locks(kind);
        let guard = lock.lock().await.expect("free");
        assert_eq!((lock.kind(), guard.state()), (kind, HoldState::Held));
        assert!((29_000..=30_000).contains(&control.pttl(&key)), "{kind}");
        assert!(is_busy(&other).await, "{kind}");
        let same = two.other.lock_of(kind, &*key);
        assert!(same.is_locked().await.expect("asked"), "{kind}");
        assert_eq!(lock.hold_count().await.expect("asked"), 1, "{kind}");
        assert_eq!(same.hold_count().await.expect("asked"), 0, "{kind}");
        let found = same.inspect().await.expect("asked").expect("held");
        assert_eq!(Some(found.owner), holder(&mut control, &key), "{kind}");
        guard.unlock().await.expect("held");
        assert_eq!(holder(&mut control, &key), None, "{kind}");
        drop(taken(&other).await);
        eventually("a drop frees the lock", ms(5_000), || {
            holder(&mut control, &key).is_none()
        })
        .await;
    }
    two.finish().await;
}

#[tokio::test]
async fn a_pair_of_each_kind_is_two_script_calls_and_no_other_command() {
    let server = TestServer::new();
    let client = server.client().await;
    for kind in KINDS {
        let lock = client.lock_of(kind, kind.to_string());
        taken(&lock).await.unlock().await.expect("held");
        let mut control = server.control();
        let monitor = Monitor::start(server.port);
        for _ in 0..50 {
            taken(&lock).await.unlock().await.expect("held");
            lock_and_unlock(&lock).await;
        }
        let mut lines = monitor.take(&mut control);
        lines.retain(|line| !line.contains(" lua]"));
        let is_script = |line: &&String| line.contains("\"EVALSHA\"");
        let scripts = lines.iter().filter(is_script).count();
        assert_eq!((scripts, lines.len()), (200, 200), "{kind}: {lines:#?}");
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn whoever_waits_has_the_lock_soon_after_an_unlock_and_after_a_lease() {
    let two = Two::new().await;
    for kind in KINDS {
        let (lock, other, _) = two.locks(kind);
        let guard = lock.lock().await.expect("free");
        let waiting = tokio::spawn(async move { (other.lock().await, Instant::now()) });
        // Long enough for the pauses to have grown to their longest.
        tokio::time::sleep(ms(400)).await;
        assert!(!waiting.is_finished(), "{kind}");
        let unlocked = Instant::now();
        guard.unlock().await.expect("held");
        let (theirs, at) = waiting.await.expect("no panic");
        let waited = at.saturating_duration_since(unlocked);
        assert!(waited < ms(1_000), "{kind}: {waited:?}");
        theirs.expect("free").unlock().await.expect("held");

        let (lock, other, _) = two.locks(kind);
        let leased = lock.lease(ms(300)).lock().await.expect("free");
        let theirs = within(ms(2_000), other.lock()).await;
        let theirs = theirs.expect("the lease ends").expect("free");
        assert_eq!(leased.state(), HoldState::Lost(LossReason::LeaseOver));
        theirs.unlock().await.expect("held");
        assert!(leased.unlock().await.is_err(), "{kind}");
    }
    two.finish().await;
}

#[tokio::test]
async fn holds_nest_or_are_refused_without_a_command() {
    let two = Two::new().await;
    let mut control = two.server.control();
    for kind in NESTED {
        let (lock, _, key) = two.locks(kind);
        let outer = lock.lock().await.expect("free");
        let inner = lock.lock().await.expect("nested");
        assert_eq!(count(&mut control, &key), 2, "{kind}");
        inner.unlock().await.expect("held");
        assert_eq!(count(&mut control, &key), 1, "{kind}");
        outer.unlock().await.expect("held");
    }
    for lock in [
        two.one.string_lock("refused"),
        two.one.lock("plain").non_reentrant(),
        two.one.spin_lock("spin").non_reentrant(),
        two.one.fenced_lock("fenced").non_reentrant().into(),
    ] {
        let kind = lock.kind();
        let guard = lock.lock().await.expect("free");
        let before = control.calls("evalsha");
        for again in [
            lock.lock().await.map(Some),
            lock.try_lock().await,
            lock.try_lock_for(ms(100)).await,
        ] {
            assert_matches!(again, Err(Error::AlreadyHeld { .. }));
        }
        // A call that nests is refused inside of a hold that does not.
        let nesting = two.one.lock_of(kind, lock.name()).try_lock().await;
        assert_matches!(nesting, Err(Error::AlreadyHeld { .. }), "{kind}");
        assert_eq!(control.calls("evalsha"), before, "{kind}: nothing was sent");
        let owner = two.one.owner();
        assert!(is_busy(&lock.owned_by(&owner)).await, "{kind}");
        guard.unlock().await.expect("held");
    }
    // A hold that nests refuses a call that does not.
    let plain = two.one.lock("plain");
    let guard = plain.lock().await.expect("free");
    let refused = plain.non_reentrant().try_lock().await;
    assert_matches!(refused, Err(Error::AlreadyHeld { .. }));
    lock_and_unlock(&plain).await;
    guard.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn branches_of_one_task_exclude_each_other_without_reentrance() {
    let server = TestServer::new();
    let client = server.client().await;
    for lock in [
        client.string_lock("string"),
        client.lock("plain").non_reentrant(),
        client.spin_lock("spin").non_reentrant(),
        client.fenced_lock("fenced").non_reentrant().into(),
    ] {
        let section = || async {
            let guard = lock.lock().await?;
            tokio::time::sleep(ms(50)).await;
            guard.unlock().await
        };
        let branches = tokio::join!(section(), section());
        assert!(branches.0.is_ok(), "{branches:?}");
        assert_matches!(branches.1, Err(Error::AlreadyHeld { .. }), "{branches:?}");
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn each_kind_reports_every_loss() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(900)).command_timeout(ms(200)))
        .await;
    let mut control = server.control();
    for kind in KINDS {
        let lock = client.lock_of(kind, kind.to_string());
        let key = lock.name().to_owned();
        for reason in [LossReason::Gone, LossReason::Taken, LossReason::Changed] {
            let guard = lock.lock().await.expect("free");
            control.run(&["DEL", &key]);
            match reason {
                LossReason::Taken => rob(&mut control, kind, &key),
                LossReason::Changed => _ = control.run(&["LPUSH", &key, "x"]),
                _ => {}
            }
            let lost = within(ms(3_000), guard.lost()).await;
            assert_eq!(lost, Some(reason), "{kind}");
            let unlocked = guard.unlock().await;
            assert_matches!(unlocked, Err(Error::Lost { .. }), "{kind}");
            control.run(&["DEL", &key]);
        }
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn the_watchdog_renews_each_kind_and_a_fixed_lease_is_extended() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(900)).command_timeout(ms(200)))
        .await;
    let mut guards = Vec::new();
    // Locks of several kinds fall due together: each batch has one kind of keys.
    for kind in KINDS {
        for nth in 0..3 {
            let lock = client.lock_of(kind, format!("{kind}-{nth}"));
            guards.push(lock.lock().await.expect("free"));
        }
    }
    tokio::time::sleep(ms(2_500)).await;
    for guard in guards {
        assert_eq!(guard.state(), HoldState::Held, "{guard:?}");
        guard.unlock().await.expect("held");
    }
    let mut control = server.control();
    for kind in KINDS {
        let lock = client.lock_of(kind, kind.to_string());
        let guard = lock.lease(ms(500)).lock().await.expect("free");
        guard.extend(ms(20_000)).await.expect("held");
        assert!(control.pttl(lock.name()) > 15_000, "{kind}");
        guard.unlock().await.expect("held");
    }
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_of_tasks_and_clients_never_overlap_and_a_hand_over_is_one_call() {
    for kind in KINDS.into_iter().filter(|kind| against(*kind) == *kind) {
        let two = Two::new().await;
        let (inside, sections) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let mut tasks = tokio::task::JoinSet::new();
        for nth in 0..8 {
            let lock = match nth % 2 {
                0 => two.one.lock_of(kind, "shared"),
                _ => two.other.lock_of(kind, "shared"),
            };
            let (inside, sections) = (Arc::clone(&inside), Arc::clone(&sections));
            tasks.spawn(async move {
                for _ in 0..40 {
                    let guard = lock.lock().await.expect("free in the end");
                    assert!(!inside.swap(true, Ordering::SeqCst), "two owners");
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                    sections.fetch_add(1, Ordering::SeqCst);
                    guard.unlock().await.expect("held");
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("no panic");
        }
        assert_eq!(sections.load(Ordering::SeqCst), 320, "{kind}");
        let passes = two.one.stats().passes_total + two.other.stats().passes_total;
        // A fair lock is not handed over, and a read-write lock neither.
        let is_handed_over = HANDED_OVER.contains(&kind);
        assert_eq!(passes > 100, is_handed_over, "{kind}: {passes}");
        two.finish().await;
    }
}

/// One attempt of another program at the lock `shared`, for 30 ms. Answers whether it has it.
fn peer_attempts(control: &mut Control, kind: LockKind) -> bool {
    match kind {
        LockKind::String => control.run(&["SET", "shared", "peer", "NX", "PX", "30"]) == "OK",
        _ => control.run(&["EVAL", ACQUIRE, "1", "shared", "peer:1", "1", "30"]) == "1",
    }
}

/// Without messages a client cannot know whether others wait: it leaves the lock free for a moment at regular
/// intervals.
async fn a_peer_polls_beside_eight_tasks(kind: LockKind) {
    let server = TestServer::new();
    let client = server.client().await;
    let (stop, sections) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = client.lock_of(kind, "shared");
        let (stop, sections) = (Arc::clone(&stop), Arc::clone(&sections));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.lock().await.expect("free in the end");
                sections.fetch_add(1, Ordering::Relaxed);
                guard.unlock().await.expect("held");
            }
        });
    }
    let mut control = server.control();
    let (mut attempts, mut times) = (0, 0);
    while attempts < 60 || sections.load(Ordering::Relaxed) < 500 {
        // As redis-py waits, and a JVM's spin lock at its longest.
        tokio::time::sleep(ms(100)).await;
        times += usize::from(peer_attempts(&mut control, kind));
        attempts += 1;
    }
    // An attempt in twenty, which is more than the gaps between two holders allow without those moments.
    assert!(times * 20 >= attempts, "{kind}: {times} of {attempts}");
    stop.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_polls_has_a_spin_lock_beside_eight_tasks_of_one_client() {
    a_peer_polls_beside_eight_tasks(LockKind::Spin).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_polls_has_a_string_lock_beside_eight_tasks_of_one_client() {
    a_peer_polls_beside_eight_tasks(LockKind::String).await;
}

#[tokio::test]
async fn one_name_is_of_one_kind_while_it_is_in_use_and_a_look_is_no_use() {
    let server = TestServer::new();
    let client = server.client().await;
    for kind in KINDS {
        let guard = client.lock_of(kind, "a").lock().await.expect("free");
        // Both parts of a read-write lock have one name.
        let is_same = |other: &LockKind| against(*other) == against(kind);
        for other in KINDS.into_iter().filter(|other| !is_same(other)) {
            let refused = client.lock_of(other, "a").try_lock().await;
            assert_matches!(&refused, Err(Error::OtherKind { kind: of, in_use, .. }) if (*of, *in_use) == (other, kind));
        }
        guard.unlock().await.expect("held");
        // The name is free for another kind once nothing refers to it, although other calls look at it.
        let plain = client.lock("a");
        let mut looks = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let plain = plain.clone();
            looks.spawn(async move { plain.is_locked().await });
        }
        let string = client.string_lock("a");
        tokio::task::yield_now().await;
        for _ in 0..20 {
            let guard = string.try_lock().await.expect("of this kind");
            guard.expect("free").unlock().await.expect("held");
        }
        looks.join_all().await;
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn a_spin_lock_is_the_hash_of_a_plain_one_without_subscription_and_message() {
    let two = Two::new().await;
    let (lock, other, key) = two.locks(LockKind::Spin);
    let mut control = two.server.control();
    let monitor = Monitor::start(two.server.port);
    let guard = lock.lock().await.expect("free");
    assert_eq!(control.hash(&key), format!("{} 1", guard.owner()));
    let waiting = tokio::spawn(async move { other.lock().await });
    // Several attempts, and so several pauses.
    let mut attempts = || control.calls("evalsha");
    eventually("it pauses", ms(3_000), || attempts() >= 6).await;
    assert_eq!(two.other.stats().subscriptions, 0);
    assert_eq!(two.other.stats().contended_total, 1);
    // A plain lock of another client excludes it, and the reverse.
    let theirs = two.server.client().await;
    assert!(is_busy(&theirs.lock(key.as_str())).await);
    guard.unlock().await.expect("held");
    let waited = waiting.await.expect("no panic").expect("free");
    assert!(lock.force_unlock().await.expect("asked"));
    assert!(waited.unlock().await.is_err());
    let lines = monitor.take(&mut control);
    for word in ["\"SUBSCRIBE\"", "\"PUBLISH\"", "\"publish\""] {
        let found = |line: &&String| line.contains(&format!("] {word}"));
        assert_eq!(lines.iter().find(found), None);
    }
    two.server.finish([two.one, two.other, theirs]).await;
}

#[tokio::test]
async fn a_string_lock_is_a_value_of_each_acquisition_that_other_programs_compare() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.string_lock("s");
    let mut values = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let guard = lock.lock().await.expect("free");
        let value = control.run(&["GET", "s"]);
        assert!(value.starts_with(&format!("{}:", client.id())), "{value}");
        assert!(values.insert(value), "used before");
        guard.unlock().await.expect("held");
    }
    // Also under an explicit owner.
    let owned = lock.owned_by(&client.owner_with_id(7));
    for _ in 0..2 {
        let guard = owned.lock().await.expect("free");
        assert!(values.insert(control.run(&["GET", "s"])), "used before");
        guard.unlock().await.expect("held");
    }
    // Another program's value: any bytes, with or without an expiry.
    let foreign = b"\xac\xed\x00\x05t\x00\x04\xff\xfe\r\n\x00".as_slice();
    for lease in [Some(60_000), None] {
        let mut set = redis::cmd("SET");
        set.arg("s").arg(foreign);
        if let Some(lease) = lease {
            set.arg("PX").arg(lease);
        }
        set.query::<()>(&mut control.connection).expect("set");
        assert!(is_busy(&lock).await);
        let found = lock.inspect().await.expect("asked").expect("held");
        assert_eq!(found.lease_left.is_some(), lease.is_some());
        assert_eq!(found.owner, foreign.escape_ascii().to_string());
        assert!(lock.try_lock_for(ms(300)).await.expect("asked").is_none());
        let mut get = redis::cmd("GET");
        let left: Vec<u8> = get.arg("s").query(&mut control.connection).expect("read");
        assert_eq!(left, foreign, "it was not taken over");
        assert!(lock.force_unlock().await.expect("asked"));
        assert_eq!(control.run(&["EXISTS", "s"]), "0");
    }
    assert!(!lock.force_unlock().await.expect("asked"));
    // A hash is no string, and a string no hash.
    rob(&mut control, LockKind::Plain, "s");
    assert_matches!(lock.try_lock().await, Err(Error::NotALock { .. }));
    rob(&mut control, LockKind::String, "s");
    let plain = client.lock("s").try_lock().await;
    assert_matches!(plain, Err(Error::NotALock { .. }));
    control.run(&["DEL", "s"]);
    server.finish([client]).await;
}

/// An application's hash, which has one field, or the fields of a read-write lock, and no hold count. A call that waits
/// for it would never return.
#[tokio::test]
async fn an_applications_hash_is_no_lock_for_any_kind_and_stays_as_it_is() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let hashes: [&[&str]; 4] = [
        &["name", "bob"],
        &["mode", "write", "name", "bob"],
        &["mode", "write", "name:write", "bob"],
        &["mode", "read", "name", "bob"],
    ];
    for kind in KINDS {
        for (nth, fields) in hashes.iter().enumerate() {
            let name = format!("user:{kind}:{nth}");
            control.run(&[&["HSET", &*name], *fields].concat());
            let lock = client.lock_of(kind, &*name);
            let waited = within(ms(5_000), lock.lock()).await;
            let waited = waited.unwrap_or_else(|| panic!("{kind} waits for {fields:?}"));
            let calls = [
                ("lock", waited.map(drop)),
                ("try_lock", lock.try_lock().await.map(drop)),
                ("try_lock_for", lock.try_lock_for(ms(5_000)).await.map(drop)),
                ("inspect", lock.inspect().await.map(drop)),
                ("force_unlock", lock.force_unlock().await.map(drop)),
            ];
            for (call, answer) in calls {
                match answer {
                    Err(Error::NotALock { key, .. }) => assert_eq!(key, name),
                    other => panic!("{call} of {kind} on {fields:?}: {other:?}"),
                }
            }
            assert_eq!(control.run(&["HGETALL", &name]), fields.join(" "), "{kind}");
            assert_eq!(control.pttl(&name), -1, "{kind}");
            control.run(&["DEL", &name]);
        }
    }
    assert_eq!(client.stats().entries, 0);
    server.finish([client]).await;
}

#[tokio::test]
async fn kinds_are_read_from_text_and_a_wrong_one_is_named() {
    for kind in KINDS {
        assert_eq!(
            kind.to_string().parse::<LockKind>().expect("its name"),
            kind
        );
    }
    let wrong = "strings".parse::<LockKind>().expect_err("no kind");
    let names = KINDS.map(|kind| kind.to_string()).join(", ");
    let text = wrong.to_string();
    assert!(
        text.ends_with(&format!("`strings`; expected one of {names}")),
        "{text}"
    );
}

const TOKEN: &str = "redisson_lock_token:{f}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_holder_of_a_fenced_lock_has_a_larger_token_also_when_it_is_handed_over() {
    let two = Two::new().await;
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..16 {
        let client = if nth % 2 == 0 { &two.one } else { &two.other };
        let (lock, tokens) = (client.fenced_lock("f"), Arc::clone(&tokens));
        tasks.spawn(async move {
            for _ in 0..20 {
                let guard = lock.lock().await.expect("free in the end");
                let nested = lock.lock().await.expect("nested");
                assert_eq!(nested.token(), guard.token(), "of one owner");
                tokens.lock().expect("unpoisoned").push(guard.token());
                nested.unlock().await.expect("held");
                guard.unlock().await.expect("held");
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    let tokens = tokens.lock().expect("unpoisoned").clone();
    assert_eq!(tokens.len(), 320);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let passes = two.one.stats().passes_total + two.other.stats().passes_total;
    assert!(passes > 100, "{passes}");
    two.finish().await;
}

#[tokio::test]
async fn a_token_is_exact_has_no_expiry_and_is_the_one_of_the_plain_locks_hash() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.fenced_lock("f");
    control.run(&["SET", TOKEN, "9007199254740993", "PX", "60000"]);
    let guard = lock.lock().await.expect("free");
    assert_eq!(guard.token(), 9_007_199_254_740_994);
    assert_eq!(guard.handle().token(), guard.token());
    let found = lock.inspect().await.expect("asked").expect("held");
    assert_eq!(found.token, Some(guard.token()));
    let plain_look = client.lock("f").inspect().await.expect("asked");
    assert_eq!(plain_look.expect("held").token, None);
    assert_eq!(control.pttl(TOKEN), -1, "no expiry");
    let plain = server.client().await;
    assert!(is_busy(&plain.lock("f")).await, "one hash");
    // A lock that lost its key has another holder, and a larger token.
    control.run(&["DEL", "f"]);
    let next = server.client().await;
    let later = next.fenced_lock("f").lock().await.expect("free");
    assert!(later.token() > guard.token());
    drop(guard);
    later.unlock().await.expect("held");
    let lock = next.fenced_lock("f");
    let ran = lock.run(async |held| Ok::<_, Error>(held.token())).await;
    assert_eq!(ran.expect("it ran"), 9_007_199_254_740_996);
    let as_plain: Lock = next.fenced_lock("f").into();
    assert_eq!(as_plain.kind(), LockKind::Fenced);
    server.finish([client, plain, next]).await;
}

#[tokio::test]
async fn a_lock_without_a_usable_token_is_not_taken_and_the_error_names_its_key() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.fenced_lock("f");
    let refused = async |lock: &redisson_lock::FencedLock| match lock.try_lock().await {
        Err(Error::NotALock { key, .. }) => assert_eq!(key, TOKEN),
        other => panic!("{other:?}"),
    };
    for token in ["many", "-5", "9223372036854775807"] {
        control.run(&["SET", TOKEN, token]);
        refused(&lock).await;
        assert_eq!(control.run(&["EXISTS", "f"]), "0", "{token}");
    }
    control.run(&["DEL", TOKEN]);
    control.run(&["LPUSH", TOKEN, "1"]);
    refused(&lock).await;
    control.run(&["DEL", TOKEN]);
    // The token of a hold is deleted: a nested call is refused, and the hold stays.
    let guard = lock.lock().await.expect("free");
    control.run(&["DEL", TOKEN]);
    refused(&lock).await;
    eventually("the count is what the guard holds", ms(2_000), || {
        control.count("f") == 1
    })
    .await;
    assert_eq!(guard.state(), HoldState::Held);
    // It is released instead of being handed over to a call that could have no token.
    control.run(&["SET", TOKEN, "many"]);
    let owner = client.owner();
    let waiting = lock.owned_by(&owner);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    eventually("it queues", ms(2_000), || client.stats().waiting == 1).await;
    guard.unlock().await.expect("held");
    let waited = waiting.await.expect("no panic");
    assert_matches!(waited, Err(Error::NotALock { .. }));
    assert_eq!(control.run(&["EXISTS", "f"]), "0");
    server.finish([client]).await;
}

/// Polls once, without waiting for anything.
fn poll_once(call: &mut std::pin::Pin<Box<dyn Future<Output = Result<LockGuard, Error>>>>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
}

/// What was handed to a call that is not polled is released in the background: a late copy of that must not delete what
/// the call acquires later.
#[tokio::test]
async fn the_value_of_a_hand_over_that_was_not_picked_up_is_not_used_again() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(300)))
        .await;
    let mut control = server.control();
    let guard = client.string_lock("s").lock().await.expect("free");
    let lock = client.string_lock("s").owned_by(&client.owner());
    let mut head: std::pin::Pin<Box<dyn Future<Output = _>>> =
        Box::pin(async move { lock.lock().await });
    poll_once(&mut head);
    guard.unlock().await.expect("held");
    let passed = control.run(&["GET", "s"]);
    eventually("it is released", ms(5_000), || {
        control.run(&["EXISTS", "s"]) == "0"
    })
    .await;
    let guard = within(ms(5_000), head)
        .await
        .expect("in time")
        .expect("free");
    assert_ne!(control.run(&["GET", "s"]), passed);
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn what_a_client_uses_as_one_kind_is_not_freed_or_counted_as_another() {
    let server = TestServer::new();
    let client = server.client().await;
    let guard = client.lock("a").lock().await.expect("free");
    let spin = client.spin_lock("a");
    let forced = spin.force_unlock().await;
    assert_matches!(forced, Err(Error::OtherKind { .. }));
    let counted = spin.hold_count().await;
    assert_matches!(counted, Err(Error::OtherKind { .. }));
    assert!(spin.is_locked().await.expect("a look"));
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("held");
    // The number of a value is no owner's.
    let held = client.string_lock("s").lock().await.expect("free");
    let value = server.control().run(&["GET", "s"]);
    let number = value.rsplit(':').next().expect("a number").parse();
    let other = client.owner_with_id(number.expect("a number"));
    let lock = client.string_lock("s").owned_by(&other);
    assert_eq!(lock.hold_count().await.expect("asked"), 0);
    assert_eq!(
        client.string_lock("s").hold_count().await.expect("asked"),
        1
    );
    held.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_check_changes_no_token_under_a_holder_and_names_what_is_missing() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let lock = client.fenced_lock("f");
    let guard = lock.lock().await.expect("free");
    let missing = other.fenced_lock("f").check().await.expect("answered");
    assert_eq!(missing, Vec::<String>::new());
    let nested = lock.lock().await.expect("nested");
    assert_eq!(nested.token(), guard.token());
    let mut control = server.control();
    for right in ["incr", "persist", "get"] {
        control.run(&["ACL", "SETUSER", "default", &format!("-{right}")]);
        let missing = other.fenced_lock("f").check().await.expect("answered");
        assert_eq!(missing, [format!("+{right}")]);
        control.run(&["ACL", "SETUSER", "default", &format!("+{right}")]);
    }
    // An expiry that something else has given to the token is taken away by a nested call too.
    control.run(&["PEXPIRE", TOKEN, "60000"]);
    let third = lock.lock().await.expect("nested");
    assert_eq!(control.pttl(TOKEN), -1);
    for guard in [third, nested, guard] {
        guard.unlock().await.expect("held");
    }
    server.finish([client, other]).await;
}
