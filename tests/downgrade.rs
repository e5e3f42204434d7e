//! Write holds of a read-write lock that become read holds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redisson_lock::{Error, HoldState, LockClient, RwLock};
use test_support::kinds::count;
use test_support::{
    Control, Fate, ProxiedPair, TestServer, assert_matches, drop_at_each_poll, eventually,
    may_take, ms, replicas_of, tokio, within,
};

/// Who has the lock: the mode, and each holder with its count.
fn held(control: &mut Control) -> String {
    let fields = control.run(&["HGETALL", "a"]);
    let words: Vec<&str> = fields.split(' ').collect();
    let pairs = words.chunks(2).filter(|pair| pair[0] == "mode");
    let mode: Vec<&str> = pairs.map(|pair| pair[1]).collect();
    format!("{} {}", mode.join(""), words.len() / 2 - 1)
}

async fn is_busy(lock: redisson_lock::Lock) -> bool {
    lock.try_lock().await.expect("asked").is_none()
}

async fn both_free(client: &LockClient, control: &mut Control) {
    eventually("nothing is left", ms(5_000), || {
        control.run(&["DBSIZE"]) == "0" && client.stats().entries == 0
    })
    .await;
}

#[tokio::test]
async fn other_readers_get_in_and_no_writer_and_it_is_one_script() {
    let mut two = ProxiedPair::new().await;
    let (ours, theirs) = (two.ours.rw_lock("a"), two.theirs.rw_lock("a"));
    // The scripts are known to the server.
    let first = ours.write().lock().await.expect("free").downgrade().await;
    first.expect("written").unlock().await.expect("held");
    let writes = ours.write().lock().await.expect("free");
    let reads = |lock: &RwLock, client: &LockClient| {
        let lock = lock.read().owned_by(&client.owner());
        tokio::spawn(async move { lock.lock().await })
    };
    let own = reads(&ours, &two.ours);
    let other = reads(&theirs, &two.theirs);
    let writer = theirs.write().owned_by(&two.theirs.owner());
    let writer = tokio::spawn(async move { writer.lock().await });
    eventually("they wait", ms(5_000), || {
        two.ours.stats().waiting == 1 && two.theirs.stats().contended_total == 2
    })
    .await;
    let sent = two.proxy.script_calls().len();
    let held_by = writes.owner().clone();
    let guard = writes.downgrade().await.expect("written");
    let scripts = two.proxy.script_calls();
    assert!(
        scripts[sent][1..].contains(&format!("{}:write", held_by)),
        "{:?}",
        scripts[sent]
    );
    assert_eq!(*guard.owner(), held_by);
    let others = [
        within(ms(3_000), own)
            .await
            .expect("in time")
            .expect("no panic")
            .expect("reads"),
        within(ms(3_000), other)
            .await
            .expect("in time")
            .expect("no panic")
            .expect("reads"),
    ];
    assert_eq!(held(&mut two.control), "read 3");
    assert!(!writer.is_finished());
    assert!(guard.valid_until() > std::time::Instant::now() + Duration::from_secs(20));
    for other in others {
        other.unlock().await.expect("held");
    }
    assert!(!writer.is_finished(), "one reads");
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("held");
    let writer = within(ms(5_000), writer).await.expect("in time");
    let writer = writer.expect("no panic");
    writer.expect("got in").unlock().await.expect("held");
    both_free(&two.ours, &mut two.control).await;
    two.finish().await;
}

/// Then it takes two scripts, and what else there is stays.
#[tokio::test]
async fn a_writer_that_waited_for_a_reader_of_its_client_may_become_one() {
    let server = TestServer::new();
    let (client, mut control) = (server.client().await, server.control());
    let lock = client.rw_lock("a");
    let read = lock.read().owned_by(&client.owner());
    let read = read.lock().await.expect("free");
    let writer = lock.write();
    let writer = tokio::spawn(async move { writer.lock().await });
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    read.unlock().await.expect("held");
    let write = within(ms(5_000), writer).await.expect("in time");
    let write = write.expect("no panic").expect("writes");
    let guard = write.downgrade().await.expect("written");
    assert_eq!(held(&mut control), "read 1");
    guard.unlock().await.expect("held");
    both_free(&client, &mut control).await;
    server.finish([client]).await;
}

#[tokio::test]
async fn beside_other_holds_of_its_owner_each_of_them_stays() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let mut control = server.control();
    let owner = ours.owner();
    let [write, read] = [ours.rw_lock("a").write(), ours.rw_lock("a").read()];
    let [write, read] = [write, read].map(|lock| lock.owned_by(&owner));
    // A write hold around it.
    let outer = write.lock().await.expect("free");
    let inner = write.lock().await.expect("nested").downgrade().await;
    let inner = inner.expect("written");
    assert_eq!(held(&mut control), "write 2");
    assert!(is_busy(theirs.rw_lock("a").read()).await);
    outer.unlock().await.expect("held");
    assert_eq!(held(&mut control), "read 1");
    inner.unlock().await.expect("held");
    // A read hold beside it.
    let writes = write.lock().await.expect("free");
    let beside = read.lock().await.expect("its own");
    let reads = writes.downgrade().await.expect("written");
    assert_eq!(
        (
            held(&mut control),
            control.number(&["HGET", "a", &owner.to_string()])
        ),
        ("read 1".to_owned(), 2)
    );
    assert!(is_busy(theirs.rw_lock("a").write()).await);
    beside.unlock().await.expect("held");
    assert_eq!(reads.state(), HoldState::Held);
    reads.unlock().await.expect("held");
    server.finish([ours, theirs]).await;
}

#[tokio::test]
async fn whatever_is_lost_there_is_one_read_hold_or_none() {
    may_take(Duration::from_secs(60));
    use Fate::{Again, Late, LoseCommand, LoseReply, Twice};
    for fate in [LoseReply, LoseCommand, Late, Twice, Again] {
        let mut two = ProxiedPair::new().await;
        let writes = two.ours.rw_lock("a").write().lock().await.expect("free");
        let from = format!("{}:write", writes.owner());
        let to = writes.owner().to_string();
        two.proxy.rule(fate, 1, move |words| {
            words[0] == "EVAL" && words.contains(&from) && words.contains(&to)
        });
        let reads = writes.downgrade().await.expect("written");
        assert_eq!(two.proxy.hit.load(Ordering::SeqCst), 1, "{fate:?}");
        assert_eq!(held(&mut two.control), "read 1", "{fate:?}");
        assert!(is_busy(two.theirs.rw_lock("a").write()).await, "{fate:?}");
        assert_eq!(reads.state(), HoldState::Held, "{fate:?}");
        reads.unlock().await.expect("held");
        two.proxy.deliver().await;
        both_free(&two.ours, &mut two.control).await;
        two.finish().await;
    }
}

#[tokio::test]
async fn without_an_answer_neither_hold_is_left() {
    let mut two = ProxiedPair::with(|builder| builder.command_timeout(ms(600))).await;
    let writes = two.ours.rw_lock("a").write().lock().await.expect("free");
    two.proxy.hold_replies(true);
    assert_matches!(writes.downgrade().await, Err(Error::NoAnswer { .. }));
    two.proxy.hold_replies(false);
    both_free(&two.ours, &mut two.control).await;
    two.finish().await;
}

#[tokio::test]
async fn dropped_after_any_number_of_polls_it_leaves_nothing() {
    may_take(Duration::from_secs(60));
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.rw_lock("a").write().owned_by(&client.owner());
    let call = || {
        let lock = lock.clone();
        async move {
            let writes = lock.lock().await.expect("free");
            let reads = writes.downgrade().await.expect("written");
            reads.unlock().await.expect("held");
        }
    };
    let polls = drop_at_each_poll("downgrade", None, call, async |_what| {
        both_free(&client, &mut control).await;
    })
    .await;
    assert!(polls >= 3, "each poll is a point");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_fixed_lease_goes_on_and_what_is_no_write_hold_is_refused() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client
        .rw_lock("a")
        .write()
        .lease(ms(5_000))
        .max_hold(ms(60_000));
    let reads = lock
        .lock()
        .await
        .expect("free")
        .downgrade()
        .await
        .expect("written");
    let left = control.pttl("a");
    assert!((3_000..=5_000).contains(&left), "{left}");
    reads.extend(ms(10_000)).await.expect("a fixed lease");
    assert_matches!(
        reads.extend(ms(70_000)).await,
        Err(Error::InvalidDuration { .. })
    );
    reads.unlock().await.expect("held");
    let plain = client.lock("b").lock().await.expect("free");
    assert_matches!(plain.downgrade().await, Err(Error::Misuse { .. }));
    eventually("it is released", ms(5_000), || {
        count(&mut control, "b") == 0
    })
    .await;
    // It was lost before.
    let writes = client.rw_lock("a").write().lock().await.expect("free");
    control.run(&["DEL", "a"]);
    assert_matches!(writes.downgrade().await, Err(Error::Lost { .. }));
    both_free(&client, &mut control).await;
    server.finish([client]).await;
}

/// In one step and in two.
#[tokio::test]
async fn the_read_hold_ends_when_the_write_hold_would_have() {
    let server = TestServer::new();
    let mut control = server.control();
    for is_fenced in [true, false] {
        let client = server.client_with(|builder| builder.connection_fence(is_fenced));
        let client = client.await;
        for is_nested in [true, false] {
            let lock = client.rw_lock("a").write().owned_by(&client.owner());
            for lock in [lock.lease(ms(1_000)), lock.max_hold(ms(1_000))] {
                let case = format!("fenced {is_fenced}, nested {is_nested}, {lock:?}");
                let outer = lock.lock().await.expect("free");
                let inner = match is_nested {
                    true => Some(lock.lock().await.expect("nested")),
                    false => None,
                };
                let (write, rest) = match inner {
                    Some(inner) => (inner, Some(outer)),
                    None => (outer, None),
                };
                let until = write.valid_until();
                let read = write.downgrade().await.expect("written");
                assert!(read.valid_until() <= until + ms(50), "{case}");
                if let Some(outer) = rest {
                    outer.unlock().await.expect("held");
                }
                within(ms(3_000), read.lost())
                    .await
                    .unwrap_or_else(|| panic!("{case}"));
                drop(read);
                both_free(&client, &mut control).await;
            }
        }
        client.close(ms(0)).await;
    }
}

#[tokio::test]
async fn replicas_confirm_the_read_hold_as_they_did_the_write_hold() {
    let server = TestServer::new();
    let replicas = replicas_of(&server, 1).await;
    let client = server.client_with(|builder| builder.command_timeout(ms(500)));
    let client = client.await;
    let lock = client.rw_lock("a").write().sync_replicas(1, ms(300));
    let write = lock.lock().await.expect("free");
    let read = write.downgrade().await.expect("it has confirmed");
    assert_eq!(read.state(), HoldState::Held);
    read.unlock().await.expect("held");
    let write = lock.lock().await.expect("free");
    replicas[0].pause();
    assert_matches!(write.downgrade().await, Err(Error::TooFewReplicas { .. }));
    replicas[0].resume();
    both_free(&client, &mut server.control()).await;
    client.close(ms(0)).await;
}

/// The hold ends in any case, as documented.
#[tokio::test]
async fn a_refusal_is_told_as_what_it_is() {
    for refusal in [
        "-NOREPLICAS Not enough good replicas to write.",
        "-OOM command not allowed when used memory > 'maxmemory'.",
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-NOPERM this user has no permissions to run the 'evalsha' command",
    ] {
        let mut two = ProxiedPair::with(|builder| builder.command_timeout(ms(800))).await;
        let lock = two.ours.rw_lock("a").write();
        let first = lock.lock().await.expect("free").downgrade().await;
        first.expect("written").unlock().await.expect("held");
        let write = lock.lock().await.expect("free");
        let (from, to) = (
            format!("{}:write", write.owner()),
            write.owner().to_string(),
        );
        let moves = move |words: &[String]| {
            words[0].starts_with("EVAL") && words.contains(&from) && words.contains(&to)
        };
        two.proxy.rule(Fate::Instead(refusal), 1, moves);
        let error = write.downgrade().await.expect_err("refused");
        let is_permission = refusal.starts_with("-NOPERM");
        assert_eq!(
            matches!(error, Error::PermissionDenied { .. }),
            is_permission,
            "{error}"
        );
        assert_eq!(
            matches!(error, Error::Refused { .. }),
            !is_permission,
            "{error}"
        );
        both_free(&two.ours, &mut two.control).await;
        two.finish().await;
    }
}

/// They run other commands.
#[tokio::test]
async fn a_denied_downgrade_and_a_denied_hand_off_say_nothing_of_each_other() {
    let denied = "-NOPERM this user has no permissions to run the 'evalsha' command";
    for is_downgrade in [true, false] {
        let mut two = ProxiedPair::new().await;
        let client = &two.ours;
        let (write, plain) = (client.rw_lock("a").write(), client.lock("b"));
        let downgrade = async || {
            let write = write.lock().await.expect("free");
            write.downgrade().await?.unlock().await
        };
        let hand_over = async || {
            let held = plain.lock().await.expect("free");
            let next = plain.owned_by(&client.owner());
            let next = tokio::spawn(async move { next.lock().await });
            eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
            held.unlock().await.expect("held");
            let next = within(ms(5_000), next).await.expect("in time");
            let next = next.expect("no panic").expect("its turn");
            next.unlock().await.expect("held");
        };
        downgrade().await.expect("written");
        hand_over().await;
        assert_eq!(client.stats().passes_total, 2, "the scripts are known");
        let id = client.id().to_owned();
        let moves = move |words: &[String]| {
            let owners = words.iter().filter(|word| word.starts_with(&id));
            words[0].starts_with("EVAL")
                && owners.count() == 2
                && words.iter().any(|word| word.ends_with(":write")) == is_downgrade
        };
        two.proxy.rule(Fate::Instead(denied), 1, moves);
        if is_downgrade {
            assert_matches!(downgrade().await, Err(Error::PermissionDenied { .. }));
            hand_over().await;
        } else {
            hand_over().await;
            downgrade().await.expect("written");
        }
        assert_eq!(client.stats().passes_total, 3, "{is_downgrade}");
        both_free(client, &mut two.control).await;
        two.finish().await;
    }
}
