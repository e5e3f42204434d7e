//! What every lock does, on one server and in a cluster: exclude, nest, release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redisson_lock::{Error, HoldState, LockClientBuilder};
use test_support::{assert_matches, eventually, ms, stalls, tokio};

use super::TestServer;

#[tokio::test]
async fn a_lock_is_a_hash_with_the_owners_field_and_a_lease() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    assert_eq!(control.hash("a"), format!("{} 1", guard.owner()));
    assert!((29_000..=30_000).contains(&control.pttl("a")));
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("held");
    assert_eq!(control.run(&["EXISTS", "a"]), "0");
    server.finish([client]).await;
}

#[tokio::test]
async fn nested_holds_count_up_and_down_and_the_last_unlock_tells_the_channel() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let mut listener = server.control();
    let mut channel = listener.connection.as_pubsub();
    channel
        .subscribe("redisson_lock__channel:{a}")
        .expect("subscribed");
    channel.set_read_timeout(Some(ms(300))).expect("set");

    let lock = client.lock("a");
    let mut guards = Vec::new();
    for depth in 1..=5 {
        guards.push(lock.lock().await.expect("reentrant"));
        assert_eq!(control.count("a"), depth);
        assert_eq!(i64::from(lock.hold_count().await.expect("asked")), depth);
    }
    for depth in (0..5).rev() {
        guards.remove(0).unlock().await.expect("held");
        assert_eq!(control.count("a"), depth);
    }
    let message = channel.get_message().expect("one message");
    assert_eq!(message.get_payload::<String>().expect("text"), "0");
    assert!(channel.get_message().is_err(), "and only one");
    drop(channel);
    drop(listener);
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_of_many_tasks_and_clients_never_overlap() {
    let server = TestServer::new();
    let clients = [
        server.client().await,
        server.client().await,
        server.client().await,
    ];
    let inside = Arc::new(AtomicUsize::new(0));
    let mut control = server.control();
    control.run(&["SET", "{a}:counter", "0"]);
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..12 {
        let lock = clients[nth % 3].clone().lock("a");
        let inside = Arc::clone(&inside);
        let mut own = server.control();
        tasks.spawn(async move {
            for _ in 0..25 {
                let guard = lock.lock().await.expect("taken");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                let read = own.number(&["GET", "{a}:counter"]);
                tokio::task::yield_now().await;
                own.run(&["SET", "{a}:counter", &(read + 1).to_string()]);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    assert_eq!(
        control.run(&["GETDEL", "{a}:counter"]),
        "300",
        "no update was lost"
    );
    server.finish(clients).await;
}

#[tokio::test]
async fn try_lock_answers_none_while_another_holds_and_waits_as_long_as_told() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let guard = theirs.lock("a").lock().await.expect("free");
    let lock = ours.lock("a");
    assert!(lock.try_lock().await.expect("asked").is_none());
    for wait in [0, 1, 20, 300] {
        let start = std::time::Instant::now();
        let answer = lock.try_lock_for(ms(wait)).await;
        let took = start.elapsed();
        match answer {
            // Of a round trip on a machine that is busy with something else.
            Err(Error::NoAnswer { .. }) if (1..300).contains(&wait) => {}
            answer => assert!(answer.expect("asked").is_none()),
        }
        assert!(
            took >= ms(wait) && took < ms(wait + 100) + stalls(start),
            "{wait} ms took {took:?}"
        );
    }
    let start = std::time::Instant::now();
    assert!(
        lock.try_lock_until(start + ms(100))
            .await
            .expect("asked")
            .is_none()
    );
    assert!(start.elapsed() >= ms(100) && start.elapsed() < ms(200) + stalls(start));
    guard.unlock().await.expect("held");
    let taken = lock.try_lock().await.expect("asked").expect("free");
    taken.unlock().await.expect("held");
    server.finish([ours, theirs]).await;
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again_unseen() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    for _ in 0..3 {
        let outer = lock.lock().await.expect("free");
        control.run(&["SCRIPT", "FLUSH"]);
        let inner = lock.lock().await.expect("nested");
        control.run(&["SCRIPT", "FLUSH"]);
        inner.unlock().await.expect("held");
        control.run(&["SCRIPT", "FLUSH"]);
        outer.unlock().await.expect("held");
        control.run(&["SCRIPT", "FLUSH"]);
        assert!(!lock.is_locked().await.expect("asked"));
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn a_dropped_guard_gives_the_lock_back_and_its_owners_next_call_comes_after() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    for _ in 0..50 {
        drop(lock.lock().await.expect("free"));
        let guard = lock.lock().await.expect("ordered after the release");
        assert_eq!(
            control.count("a"),
            1,
            "a new hold, not a re-entry into the dying one"
        );
        guard.unlock().await.expect("held");
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn detached_holds_stay_until_their_owner_unlocks() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    lock.lock().await.expect("free").detach();
    let guarded = lock.lock().await.expect("nested");
    assert_eq!(control.count("a"), 2);
    lock.unlock().await.expect("one detached");
    assert_eq!(control.count("a"), 1);
    assert_matches!(
        lock.unlock().await,
        Err(Error::NotHeld { .. }),
        "the other has a guard"
    );
    guarded.unlock().await.expect("held");
    assert_matches!(lock.unlock().await, Err(Error::NotHeld { .. }));
    server.finish([client]).await;
}

#[tokio::test]
async fn run_returns_the_value_and_begins_to_release_also_after_a_panic() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("a");
    let value = lock
        .run(|held| async move { Ok::<_, Error>((held.state(), 7)) })
        .await
        .expect("held");
    assert_eq!(value, (HoldState::Held, 7));
    assert!(!lock.is_locked().await.expect("asked"));

    let panicking = lock.clone();
    let body = |_| async { panic!("on purpose") };
    let panicked = tokio::spawn(async move { panicking.run::<(), Error, _, _>(body).await });
    assert!(panicked.await.expect_err("goes on unwinding").is_panic());
    let mut control = server.control();
    eventually("released", Duration::from_secs(2), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;
    server.finish([client]).await;
}

#[tokio::test]
async fn force_unlock_frees_whoever_holds_and_says_whether_it_was_locked() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let guard = theirs.lock("a").lock().await.expect("free");
    assert!(ours.lock("a").force_unlock().await.expect("answered"));
    assert!(!ours.lock("a").force_unlock().await.expect("answered"));
    assert_matches!(guard.unlock().await, Err(Error::Lost { .. }));

    // A re-entry into a hold that was forced open makes no lock out of nothing.
    let outer = theirs.lock("a").lock().await.expect("free");
    assert!(ours.lock("a").force_unlock().await.expect("answered"));
    assert_matches!(theirs.lock("a").lock().await, Err(Error::Lost { .. }));
    assert_eq!(server.control().run(&["EXISTS", "a"]), "0");
    drop(outer);

    // An own hold is told immediately.
    let guard = ours.lock("a").lock().await.expect("free");
    assert!(ours.lock("a").force_unlock().await.expect("answered"));
    assert_matches!(guard.state(), HoldState::Lost(_));
    drop(guard);
    server.finish([ours, theirs]).await;
}

#[tokio::test]
async fn inspect_shows_java_holders_too() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    assert_eq!(lock.inspect().await.expect("asked"), None);
    control.run(&["HSET", "a", "0a1b:-5", "3"]);
    control.run(&["PEXPIRE", "a", "20000"]);
    let holder = lock.inspect().await.expect("asked").expect("held");
    assert_eq!((holder.owner.as_str(), holder.hold_count), ("0a1b:-5", 3));
    assert!(holder.lease_left.expect("expires") <= ms(20_000));
    assert!(lock.is_locked().await.expect("asked"));
    assert!(!lock.is_held().await.expect("asked"));
    assert!(lock.lease_left().await.expect("asked").is_some());
    control.run(&["DEL", "a"]);
    server.finish([client]).await;
}

#[tokio::test]
async fn detached_holds_are_released_once_each_however_many_ask() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let owner = client.owner();
    let lock = client.lock("a").owned_by(&owner);
    for _ in 0..20 {
        for _ in 0..3 {
            lock.lock().await.expect("reentrant").detach();
        }
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let lock = lock.clone();
            asking.spawn(async move { lock.unlock().await.is_ok() });
        }
        let released = asking
            .join_all()
            .await
            .into_iter()
            .filter(|released| *released)
            .count();
        assert_eq!((released, control.count("a")), (3, 0));
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn an_unlock_beside_a_nested_lock_that_nobody_polls_ends_in_time() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(300)))
        .await;
    let mut control = server.control();
    let owner = client.owner();
    let lock = client.lock("a").owned_by(&owner);
    let guard = lock.lock().await.expect("free");
    let mut nested = Box::pin(lock.lock());
    let once = std::future::poll_fn(|context| {
        std::task::Poll::Ready(nested.as_mut().poll(context).is_pending())
    });
    assert!(once.await, "sent, and not polled again");
    let start = std::time::Instant::now();
    // Nobody waits for the attempt longer than two command timeouts; then it is undone, and this hold released.
    guard.unlock().await.expect("held until now");
    assert!(start.elapsed() < ms(900) + stalls(start));
    drop(nested);
    eventually("released in the background", ms(2000), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;
    server.finish([client]).await;
}

#[tokio::test]
async fn a_detached_hold_is_released_also_by_an_unlock_that_was_dropped() {
    let server = TestServer::new();
    let set =
        |builder: LockClientBuilder| builder.watchdog_timeout(ms(1500)).command_timeout(ms(300));
    let client = server.client_with(set).await;
    let mut control = server.control();
    let owner = client.owner();
    let lock = client.lock("a").owned_by(&owner);
    lock.lock().await.expect("free").detach();
    let mut nested = Box::pin(lock.lock());
    let once = std::future::poll_fn(|context| {
        std::task::Poll::Ready(nested.as_mut().poll(context).is_pending())
    });
    assert!(once.await, "sent, and not polled again");
    // Its caller leaves while the attempt is in the way.
    let unlock = tokio::time::timeout(ms(100), lock.unlock()).await;
    assert!(unlock.is_err(), "{unlock:?}");
    drop(nested);
    // Nobody is left to ask again: it is not renewed any more, and released.
    eventually("released", ms(1000), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;
    assert_eq!((client.stats().held, client.stats().renewals), (0, 0));
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_of_one_owner_that_overlap_report_no_loss() {
    let server = TestServer::new();
    let client = server.client().await;
    let owner = client.owner();
    let lock = client.lock("a").owned_by(&owner);
    for _ in 0..300 {
        let mut guards = Vec::new();
        for _ in 0..4 {
            guards.push(lock.lock().await.expect("reentrant"));
        }
        drop(guards.pop());
        let mut unlocking = tokio::task::JoinSet::new();
        for guard in guards {
            unlocking.spawn(guard.unlock());
        }
        for unlocked in unlocking.join_all().await {
            unlocked.expect("held until now");
        }
    }
    assert_eq!(client.stats().lost_total, 0);
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_of_one_owner_that_overlap_leave_the_count_of_the_holds_that_stay() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let owner = client.owner();
    let lock = client.lock("a").owned_by(&owner);
    for _ in 0..400 {
        let mut guards = Vec::new();
        for _ in 0..8 {
            guards.push(lock.lock().await.expect("reentrant"));
        }
        let kept = guards.split_off(6);
        let mut unlocking = tokio::task::JoinSet::new();
        for (nth, guard) in guards.into_iter().enumerate() {
            unlocking.spawn(async move {
                match nth {
                    0 => drop(guard),
                    _ => guard.unlock().await.expect("held until now"),
                }
            });
        }
        unlocking.join_all().await;
        eventually("settled", ms(2000), || client.stats().releasing == 0).await;
        assert_eq!(control.count("a"), 2);
        for guard in kept {
            guard.unlock().await.expect("held until now");
        }
    }
    server.finish([client]).await;
}
