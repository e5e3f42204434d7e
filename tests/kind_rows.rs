//! Rows of every kind of lock that take more than one call: what is dropped at any point, owners beside each other and
//! inside of each other, what a close finds, losses that Redis does not report, and how often callers that wait ask.

use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, Lock, LockClient, LockKind, LossReason};
use test_support::kinds::{KINDS, NESTED, acquires, against, count, delete, holder, load_scripts};
use test_support::{
    Control, ProxiedPair, Steps, TestServer, assert_matches, drop_at_each_poll, eventually,
    may_take, ms, tokio, within,
};

async fn is_busy(lock: &Lock) -> bool {
    lock.try_lock().await.expect("asked").is_none()
}

/// Waits until this client has nothing but the holds that are left, and Redis counts the same.
async fn settled(client: &LockClient, control: &mut Control, key: &str, left: u32, what: &str) {
    eventually(what, ms(5_000), || {
        let stats = client.stats();
        let is_idle = stats.waiting + stats.releasing == 0 && (left > 0 || stats.entries == 0);
        is_idle && count(control, key) == i64::from(left)
    })
    .await;
}

/// Acquires and releases.
async fn pair(lock: Lock) {
    let guard = lock.lock().await.expect("free");
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn dropped_after_any_number_of_polls_a_call_of_each_kind_leaves_nothing() {
    may_take(Duration::from_secs(120));
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let mut control = server.control();
    for kind in KINDS {
        // One owner for all rounds: what a round leaves behind is in the way of the next.
        let lock = client.lock_of(kind, "a").owned_by(&client.owner());
        let theirs = other.lock_of(against(kind), "a");
        let call = || pair(lock.clone());
        for holder in [None, Some(&theirs)] {
            let what = format!("{kind}, held: {}", holder.is_some());
            let polls = drop_at_each_poll(&what, holder, call, async |what| {
                settled(&client, &mut control, "a", 0, what).await;
            })
            .await;
            assert!(polls >= 2, "{what}: each poll is a point");
        }
        // The holder stays.
        let held = theirs.lock().await.expect("free");
        for polls in 0..8 {
            let ended = Steps::of(call()).times(polls).await;
            assert_eq!(ended, None, "{kind}");
        }
        for after in [40, 200] {
            let waiting = tokio::time::timeout(ms(after), call());
            assert!(waiting.await.is_err(), "{kind}");
        }
        held.unlock().await.expect("held");
        settled(&client, &mut control, "a", 0, "dropped beside a holder").await;
    }
    server.finish([client, other]).await;
}

#[tokio::test]
async fn dropped_after_any_number_of_polls_a_nested_call_leaves_the_outer_hold() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    // A string does not nest.
    for kind in NESTED {
        let lock = client.lock_of(kind, "a").owned_by(&client.owner());
        let outer = lock.lock().await.expect("free");
        let call = || pair(lock.clone());
        let polls = drop_at_each_poll(&kind.to_string(), None, call, async |what| {
            settled(&client, &mut control, "a", 1, what).await;
            assert_eq!(outer.state(), HoldState::Held, "{what}");
        })
        .await;
        assert!(polls >= 2, "{kind}: each poll is a point");
        outer.unlock().await.expect("held");
        assert_eq!(count(&mut control, "a"), 0, "{kind}");
    }
    server.finish([client]).await;
}

/// Its script is executed. The same owner's next call comes after the undo, and finds the holds that there were before.
#[tokio::test]
async fn dropped_with_its_reply_on_the_way_a_call_of_each_kind_is_undone() {
    let mut two = ProxiedPair::new().await;
    load_scripts(&mut two.control);
    for kind in KINDS {
        let lock = two.ours.lock_of(kind, "a").owned_by(&two.ours.owner());
        for depth in 0..if NESTED.contains(&kind) { 2 } else { 1 } {
            let what = format!("{kind}, nested in {depth}");
            let mut outer = Vec::new();
            for _ in 0..depth {
                outer.push(lock.lock().await.expect("free"));
            }
            let is_attempt = acquires(kind, depth + 1);
            let calls = || {
                let calls = two.proxy.script_calls();
                calls.iter().filter(|call| is_attempt(call)).count()
            };
            let (before, call) = (calls(), lock.clone());
            two.proxy.hold_replies(true);
            let mut steps = Steps::of(async move { call.lock().await.map(drop) });
            let control = &mut two.control;
            let executed = || count(control, "a") == i64::from(depth + 1);
            steps.until("executed", executed).await;
            drop(steps);
            assert_eq!(calls(), before + 1, "{what}");
            assert_eq!(two.ours.stats().held, depth as usize, "{what}");
            let again = tokio::spawn({
                let lock = lock.clone();
                async move { lock.lock().await }
            });
            eventually("it waits for the undo", ms(2_000), || {
                let stats = two.ours.stats();
                (stats.waiting, stats.releasing) == (1, 1)
            })
            .await;
            two.proxy.hold_replies(false);
            let again = again.await.expect("no panic").expect("free, or its own");
            assert_eq!(count(control, "a"), i64::from(depth + 1), "{what}");
            again.unlock().await.expect("held");
            for guard in outer {
                guard.unlock().await.expect("held");
            }
            settled(&two.ours, control, "a", 0, &what).await;
        }
    }
    two.finish().await;
}

#[tokio::test]
async fn owners_of_one_client_exclude_each_other_and_each_is_the_same_in_every_task() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let mut control = server.control();
    for kind in KINDS {
        let lock = client.lock_of(kind, "a");
        let (one, two) = (client.owner(), client.owner());
        let first = lock.owned_by(&one).lock().await.expect("free");
        assert_eq!(first.owner(), &one, "{kind}");
        // Another owner, and the one of this task.
        let excluded = client.lock_of(against(kind), "a");
        for other in [excluded.owned_by(&two), excluded.clone()] {
            assert!(is_busy(&other).await, "{kind}");
            assert!(!other.is_held().await.expect("asked"), "{kind}");
        }
        assert!(lock.owned_by(&one).is_held().await.expect("asked"));
        let elsewhere = tokio::spawn({
            let (lock, one) = (lock.clone(), one.clone());
            async move { one.scope(async { lock.try_lock().await }).await }
        });
        match elsewhere.await.expect("no panic") {
            Ok(Some(nested)) if NESTED.contains(&kind) => {
                assert_eq!(nested.owner(), &one, "{kind}");
                assert_eq!(count(&mut control, "a"), 2, "{kind}");
                nested.unlock().await.expect("held");
            }
            Err(Error::AlreadyHeld { .. }) if !NESTED.contains(&kind) => {}
            found => panic!("{kind}: {found:?}"),
        }
        // Inside of the hold of the first, the second waits, and has it next, whichever task releases it.
        let waiting = tokio::spawn({
            let lock = excluded.owned_by(&two);
            async move { lock.lock().await }
        });
        eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
        let before = holder(&mut control, "a");
        let unlocked = tokio::spawn(first.unlock()).await;
        unlocked.expect("no panic").expect("held");
        let second = within(ms(5_000), waiting).await.expect("in time");
        let second = second.expect("no panic").expect("its turn");
        assert_eq!(second.owner(), &two, "{kind}");
        assert_eq!(count(&mut control, "a"), 1, "{kind}");
        assert_ne!(holder(&mut control, "a"), before, "{kind}");
        second.unlock().await.expect("held");
        // An owner of another client is refused, and nothing is sent.
        let sent = control.calls("evalsha");
        let stranger = lock.owned_by(&other.owner());
        for refused in [stranger.lock().await.map(Some), stranger.try_lock().await] {
            assert_matches!(refused, Err(Error::Misuse { .. }));
        }
        assert_eq!(control.calls("evalsha"), sent, "{kind}");
    }
    server.finish([client, other]).await;
}

#[tokio::test]
async fn a_close_ends_calls_that_wait_releases_what_is_detached_and_names_open_guards() {
    let server = TestServer::new();
    let other = server.client().await;
    let mut control = server.control();
    for (kind, grace) in KINDS
        .into_iter()
        .zip([ms(300), Duration::ZERO].into_iter().cycle())
    {
        let client = server.client().await;
        let key = |what: &str| format!("{kind}-{what}");
        let lock = |what: &str| client.lock_of(kind, key(what));
        let kept = lock("kept").lock().await.expect("free");
        let released = lock("released").lock().await.expect("free");
        lock("detached").lock().await.expect("free").detach();
        let excluding = against(kind);
        let theirs = other.lock_of(excluding, key("theirs")).lock().await;
        let theirs = theirs.expect("free");
        // One waits for another client, and one for a caller of its own: in a fair queue both at the server.
        let attempts = if kind == LockKind::Fair { 2 } else { 1 };
        let waiting = [("theirs", kind), ("kept", excluding)].map(|(what, kind)| {
            let lock = client.lock_of(kind, key(what)).owned_by(&client.owner());
            tokio::spawn(async move { lock.lock().await.map(drop) })
        });
        eventually("both wait", ms(5_000), || {
            let stats = client.stats();
            stats.waiting == 2 && stats.contended_total == attempts
        })
        .await;
        let field = holder(&mut control, &key("kept")).expect("held");
        let closing = tokio::spawn({
            let client = client.clone();
            let grace = if grace.is_zero() { ms(60_000) } else { grace };
            async move { client.close(grace).await }
        });
        for waiting in waiting {
            let ended = within(ms(5_000), waiting).await.expect("immediately");
            let ended = ended.expect("no panic");
            assert_matches!(ended, Err(Error::Closed), "{kind}");
        }
        let refused = lock("another").try_lock().await;
        assert_matches!(refused, Err(Error::Closed), "{kind}");
        released
            .unlock()
            .await
            .expect("an open guard has its grace");
        let report = match grace.is_zero() {
            // Closed again, without a grace.
            true => {
                closing.abort();
                client.close(Duration::ZERO).await
            }
            false => closing.await.expect("no panic"),
        };
        assert_eq!((report.released, report.unconfirmed), (1, 0), "{kind}");
        let open = report.abandoned.iter();
        let open: Vec<_> = open.map(|hold| (&hold.lock, &hold.owner)).collect();
        assert_eq!(open, [(&key("kept"), &field)]);
        for what in ["released", "detached"] {
            assert_eq!(count(&mut control, &key(what)), 0, "{kind}");
        }
        assert_eq!(kept.state(), HoldState::Lost(LossReason::Closed), "{kind}");
        assert_eq!(kept.lost().await, LossReason::Closed, "{kind}");
        let unlocked = kept.unlock().await;
        assert_matches!(unlocked, Err(Error::Lost { .. }));
        let asked = lock("another").is_locked().await;
        assert_matches!(asked, Err(Error::Closed), "{kind}");
        let again = client.close(Duration::ZERO).await;
        assert_eq!(again.abandoned.len(), 0, "{kind}");
        // It is not freed under its section.
        assert_eq!(holder(&mut control, &key("kept")), Some(field));
        assert!(control.pttl(&key("kept")) > 0, "{kind}");
        delete(&mut control, &key("kept"));
        assert_eq!(theirs.state(), HoldState::Held, "{kind}");
        theirs.unlock().await.expect("held");
    }
    server.finish([other]).await;
}

#[tokio::test]
async fn each_kind_reports_the_end_of_max_hold_and_a_renewal_without_an_answer() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(1_500)).command_timeout(ms(450)))
        .await;
    let mut control = server.control();
    for reason in [LossReason::MaxHold, LossReason::NotRenewed] {
        let (start, mut guards) = (Instant::now(), Vec::new());
        for kind in KINDS {
            let lock = client.lock_of(kind, kind.to_string());
            let lock = match reason {
                LossReason::MaxHold => lock.max_hold(ms(1_000)),
                _ => lock,
            };
            guards.push((kind, lock.lock().await.expect("free")));
        }
        if reason == LossReason::NotRenewed {
            server.pause();
        }
        for (kind, guard) in &guards {
            let lost = within(ms(5_000), guard.lost()).await;
            assert_eq!(lost, Some(reason), "{kind}");
            assert_eq!(guard.state(), HoldState::Lost(reason), "{kind}");
            assert!(guard.valid_until() <= Instant::now(), "{kind}");
        }
        let is_limit = reason == LossReason::MaxHold;
        let least = if is_limit { ms(900) } else { ms(1_400) };
        assert!(start.elapsed() > least, "{:?}", start.elapsed());
        server.resume();
        for (kind, guard) in guards {
            if is_limit {
                // Its lease ends, and nothing is released under its section.
                eventually("its lease ends", ms(5_000), || {
                    holder(&mut control, &kind.to_string()).is_none()
                })
                .await;
                assert_eq!(control.calls("del"), 0, "{kind}");
            }
            let unlocked = guard.unlock().await;
            assert_matches!(unlocked, Err(Error::Lost { reason: of, .. }) if of == reason, "{kind}");
            eventually("it is free", ms(5_000), || {
                holder(&mut control, &kind.to_string()).is_none()
            })
            .await;
        }
    }
    server.finish([client]).await;
}

/// How many script calls a client with many waiters has made while another client held the lock, and in which time: at
/// least 1.5 s, and until they were this many.
async fn calls_of_waiters(kind: LockKind, least: i64) -> (i64, Duration) {
    const WAITERS: usize = 16;
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let mut control = server.control();
    let held = other.lock_of(kind, "a").lock().await.expect("free");
    let before = control.calls("evalsha");
    let start = Instant::now();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        waiters.spawn(pair(client.lock_of(kind, "a")));
    }
    let mut calls = || control.calls("evalsha") - before;
    eventually("all wait, and one asks", ms(10_000), || {
        let is_over = start.elapsed() > ms(1_500);
        is_over && client.stats().waiting == WAITERS && calls() >= least
    })
    .await;
    let (calls, took) = (calls(), start.elapsed());
    assert_eq!(client.stats().contended_total, 1, "{kind}");
    held.unlock().await.expect("held");
    while let Some(served) = within(ms(10_000), waiters.join_next())
        .await
        .expect("in time")
    {
        served.expect("no panic");
    }
    server.finish([client, other]).await;
    (calls, took)
}

#[tokio::test]
async fn of_many_waiters_of_a_kind_with_messages_one_asks_twice() {
    for kind in [LockKind::Plain, LockKind::Fenced] {
        let (calls, took) = calls_of_waiters(kind, 2).await;
        // Before and after it subscribes.
        assert_eq!(calls, 2, "{kind}, in {took:?}");
    }
}

#[tokio::test]
async fn of_many_waiters_of_a_kind_without_messages_one_pauses_and_asks() {
    for kind in [LockKind::Spin, LockKind::String] {
        let (calls, took) = calls_of_waiters(kind, 8).await;
        // Seven pauses grow to the longest, of which half is the least.
        let most = 8 + took.as_millis() / 64;
        assert!(calls as u128 <= most, "{kind}: {calls} in {took:?}");
    }
}
