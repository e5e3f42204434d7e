//! Unknown outcomes and the fence: replies that are lost, and commands that arrive after their
//! repetition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{
    ConnectionFence, Error, HoldState, LockClient, LockGuard, RefusedKind, Script,
};
use test_support::{
    ACQUIRE, Control, FORCE_UNLOCK, Fate, ProxiedPair, Proxy, RELEASE, RENEW, TestServer,
    acquire_to, assert_matches, eventually, is_script, lock_and_unlock, ms, release_to, stalls,
    tokio,
};

/// The fence is not permitted to this user.
async fn without_kill() -> ProxiedPair {
    ProxiedPair::as_user("u:p@").await
}

/// Takes the lock `depth` times.
async fn take(client: &LockClient, depth: usize) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for _ in 0..depth {
        guards.push(client.lock("a").lock().await.expect("free"));
    }
    guards
}

#[tokio::test]
async fn whatever_is_lost_at_a_count_and_delivered_later_the_count_is_right() {
    for fate in [Fate::LoseReply, Fate::LoseCommand, Fate::Late] {
        for (from, to) in [(0, 1), (1, 2), (2, 1), (1, 0)] {
            let mut pair = ProxiedPair::new().await;
            let up = to > from;
            let mut guards = take(&pair.ours, from).await;
            if up {
                pair.proxy.rule(fate, 1, acquire_to(to as u32));
            } else {
                pair.proxy.rule(fate, 1, release_to(to as u32));
            }
            let what = format!("{fate:?} at {from} to {to}");
            if up {
                guards.push(
                    pair.ours
                        .lock("a")
                        .lock()
                        .await
                        .unwrap_or_else(|error| panic!("{what}: {error}")),
                );
            } else {
                let guard = guards.pop().expect("held");
                guard
                    .unlock()
                    .await
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            assert_eq!(
                pair.proxy.hit.load(std::sync::atomic::Ordering::SeqCst),
                1,
                "{what}"
            );
            assert_eq!(pair.control.count("a"), to as i64, "{what}");
            let late = pair.proxy.deliver().await;
            assert_eq!(late, usize::from(fate == Fate::Late), "{what}");
            assert_eq!(
                pair.control.count("a"),
                to as i64,
                "{what}, after the late copy"
            );
            assert!(
                guards.iter().all(|guard| guard.state() == HoldState::Held),
                "{what}"
            );
            assert_eq!(pair.ours.stats().connection_fence, ConnectionFence::Active);
            for guard in guards {
                guard
                    .unlock()
                    .await
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            pair.finish().await;
        }
    }
}

#[tokio::test]
async fn lost_twice_the_caller_gets_no_answer_and_the_background_makes_it_right() {
    for fate in [Fate::LoseReply, Fate::LoseCommand, Fate::Late] {
        for (from, to) in [(0, 1), (1, 2), (2, 1), (1, 0)] {
            let mut pair = ProxiedPair::new().await;
            let up = to > from;
            let what = format!("{fate:?} twice at {from} to {to}");
            let mut guards = take(&pair.ours, from).await;
            let ended = if up {
                pair.proxy.rule(fate, 2, acquire_to(to as u32));
                pair.ours.lock("a").lock().await.map(|_| ())
            } else {
                pair.proxy.rule(fate, 2, release_to(to as u32));
                guards.pop().expect("held").unlock().await
            };
            assert_matches!(ended, Err(Error::NoAnswer { .. }), "{what}");
            // Going up failed, so the count stays; going down is finished in the background.
            let left = if up { from } else { to };
            let stats = || pair.ours.stats();
            eventually(&what, ms(5000), || {
                pair.control.count("a") == left as i64 && stats().releasing == 0
            })
            .await;
            pair.proxy.deliver().await;
            assert_eq!(
                pair.control.count("a"),
                left as i64,
                "{what}, after the late copies"
            );
            assert!(
                guards.iter().all(|guard| guard.state() == HoldState::Held),
                "{what}"
            );
            for guard in guards {
                guard
                    .unlock()
                    .await
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            pair.finish().await;
        }
    }
}

/// What a proxy says that has lost its server after the command was sent.
const NO_REFUSAL: &str = "-ERR upstream failure";

#[tokio::test]
async fn an_error_that_is_no_refusal_of_the_server_is_a_missing_answer() {
    for (from, to) in [(0, 1), (1, 2), (2, 1), (1, 0)] {
        let mut pair = ProxiedPair::new().await;
        let up = to > from;
        let what = format!("{from} to {to}");
        let mut guards = take(&pair.ours, from).await;
        let fate = Fate::Replaced(NO_REFUSAL);
        let ended = if up {
            pair.proxy.rule(fate, 1, acquire_to(to as u32));
            pair.ours.lock("a").lock().await.map(|_| ())
        } else {
            pair.proxy.rule(fate, 1, release_to(to as u32));
            guards.pop().expect("held").unlock().await
        };
        assert_matches!(ended, Err(Error::UnexpectedReply { .. }), "{what}");
        let left = if up { from } else { to };
        eventually(
            &format!("{what}: the count is made right"),
            ms(5000),
            || pair.control.count("a") == left as i64 && pair.ours.stats().releasing == 0,
        )
        .await;
        assert!(
            guards.iter().all(|guard| guard.state() == HoldState::Held),
            "{what}"
        );
        for guard in guards {
            guard
                .unlock()
                .await
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        pair.finish().await;
    }
}

#[tokio::test]
async fn a_batch_of_renewals_with_an_error_that_is_no_refusal_is_repeated_whole() {
    const FAILURES: usize = 6;
    let pair = ProxiedPair::new().await;
    let watchdog = ms(9_000);
    let client = LockClient::builder()
        .watchdog_timeout(watchdog)
        // With reports a server before Redis 7.2 gets four calls for a hundred locks.
        .tracking(false)
        .connect(&pair.proxy.url())
        .await
        .expect("the server answers");
    let start = Instant::now();
    let mut taking = tokio::task::JoinSet::new();
    for nth in 0..100 {
        let lock = client.lock(format!("a:{nth}"));
        taking.spawn(async move { lock.lock().await.expect("free") });
    }
    let guards = taking.join_all().await;
    // What is taken within a beat is renewed by one call.
    let beats = start.elapsed().as_millis() / (watchdog / 30).as_millis() + 2;
    pair.proxy
        .rule(Fate::Replaced(NO_REFUSAL), FAILURES, |words| {
            is_script(words, RENEW)
        });
    let renewed = || client.stats().renewed_total;
    eventually("all of them are renewed", watchdog, || renewed() >= 100).await;
    // Halved at each failure, one batch would have become seven.
    let calls = pair.calls(RENEW);
    assert!(
        calls <= FAILURES + beats as usize,
        "{calls} calls for what fell due in {beats} beats and failed {FAILURES} times"
    );
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Held));
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
    pair.finish().await;
}

#[tokio::test]
async fn a_refusal_is_not_asked_for_a_second_time() {
    let pair = ProxiedPair::new().await;
    let refusal = "-OOM command not allowed when used memory > 'maxmemory'.";
    pair.proxy.rule(Fate::Instead(refusal), 1, acquire_to(1));
    let before = pair.proxy.script_calls().len();
    let refused = pair.ours.lock("a").lock().await;
    let expected = matches!(
        refused,
        Err(Error::Refused {
            kind: RefusedKind::OutOfMemory,
            ..
        })
    );
    assert!(expected, "{refused:?}");
    assert_eq!(pair.proxy.script_calls().len(), before + 1);
    pair.finish().await;
}

#[tokio::test]
async fn a_late_unlock_does_not_free_the_next_hold_of_its_owner() {
    // Trace V1 of the protocol model: two owners in 13 steps without the fence.
    let mut pair = ProxiedPair::new().await;
    let lock = pair.ours.lock("a");
    let first = lock.lock().await.expect("free");
    pair.proxy.rule(Fate::Late, 1, release_to(0));
    first.unlock().await.expect("repeated and answered");
    let second = lock.lock().await.expect("free");
    assert_eq!(pair.proxy.deliver().await, 1);
    assert_eq!(pair.control.count("a"), 1);
    assert!(
        pair.theirs
            .lock("a")
            .try_lock()
            .await
            .expect("asked")
            .is_none(),
        "one owner at a time"
    );
    assert_eq!(second.state(), HoldState::Held);
    second.unlock().await.expect("held");
    pair.finish().await;
}

#[tokio::test]
async fn a_late_acquire_of_nobody_does_not_come_back() {
    // Trace V3.
    let mut pair = ProxiedPair::new().await;
    let lock = pair.ours.lock("a");
    pair.proxy.rule(Fate::Late, 1, acquire_to(1));
    lock.lock()
        .await
        .expect("repeated")
        .unlock()
        .await
        .expect("held");
    assert_eq!(pair.proxy.deliver().await, 1);
    assert_eq!(pair.control.run(&["EXISTS", "a"]), "0");
    pair.finish().await;
}

#[tokio::test]
async fn a_late_force_unlock_hits_no_later_hold() {
    // Trace V13: the call ends only when its copy can no longer take effect. The limit by the server's
    // clock needs no fence, and the fence needs no limit.
    for user in ["", "u:p@", "t:p@"] {
        let mut pair =
            ProxiedPair::as_user_with(user, |builder| builder.command_timeout(ms(500))).await;
        let owner = pair.theirs.owner();
        let lock = pair.theirs.lock("a").owned_by(&owner);
        let held = lock.lock().await.expect("free");
        pair.proxy
            .rule(Fate::Late, 1, |words| is_script(words, FORCE_UNLOCK));
        let forced = pair.ours.lock("a").force_unlock().await;
        assert_matches!(forced, Err(Error::NoAnswer { .. }), "{user}");
        assert_eq!(pair.calls(FORCE_UNLOCK), 1, "{user}: never sent again");
        held.unlock().await.expect("held");
        let later = lock.lock().await.expect("free");
        assert_eq!(pair.proxy.deliver().await, 1, "{user}");
        assert_eq!(pair.control.count("a"), 1, "{user}");
        later.unlock().await.expect("held");
        pair.finish().await;
    }
}

/// A server that hangs cannot be asked to drop what it has not read yet.
#[tokio::test]
async fn a_force_unlock_without_an_answer_is_not_executed_by_a_server_that_continues_later() {
    let mut pair = ProxiedPair::with(|builder| builder.command_timeout(ms(500))).await;
    let owner = pair.theirs.owner();
    let theirs = pair.theirs.lock("a").owned_by(&owner);
    let first = theirs.lock().await.expect("free");
    pair.proxy
        .hold_commands(|words| is_script(words, FORCE_UNLOCK));
    let ours = pair.ours.lock("a");
    let forcing = tokio::spawn(async move { ours.force_unlock().await });
    eventually("it is on its way", ms(5000), || pair.proxy.stuck() == 1).await;
    first.unlock().await.expect("held");
    let second = theirs.lock().await.expect("free");
    let executed = pair.control.calls("evalsha");
    pair.server.pause();
    pair.proxy.let_commands_go();
    let forced = forcing.await.expect("no panic");
    assert_matches!(forced, Err(Error::NoAnswer { .. }));
    pair.server.resume();
    eventually("it is executed", ms(5000), || {
        pair.control.calls("evalsha") > executed
    })
    .await;
    assert_eq!(pair.control.count("a"), 1, "the hold of after the call");
    second.unlock().await.expect("held");
    pair.finish().await;
}

#[tokio::test]
async fn without_the_right_to_kill_a_late_unlock_still_frees_no_later_hold() {
    let mut pair = without_kill().await;
    assert_eq!(
        pair.ours.stats().connection_fence,
        ConnectionFence::NotPermitted
    );
    let owner = pair.ours.owner_with_id(-7);
    let lock = pair.ours.lock("a").owned_by(&owner);
    let first = lock.lock().await.expect("free");
    assert!(pair.control.hash("a").ends_with(":-7 1"));
    pair.proxy.rule(Fate::Late, 1, release_to(0));
    first.unlock().await.expect("repeated and answered");
    let second = lock.lock().await.expect("free");
    assert!(
        !pair.control.hash("a").ends_with(":-7 1"),
        "a hold begun after the reconnect has a fresh thread id"
    );
    assert!(
        lock.is_held().await.expect("asked"),
        "it is still this owner's"
    );
    assert_eq!(pair.proxy.deliver().await, 1);
    assert_eq!(pair.control.count("a"), 1, "the late copy found nothing");
    let nested = lock.lock().await.expect("nested");
    assert_eq!(lock.hold_count().await.expect("asked"), 2);
    nested.unlock().await.expect("held");
    second.unlock().await.expect("held");
    pair.finish().await;
}

#[tokio::test]
async fn without_the_right_to_kill_a_live_hold_keeps_its_id_through_late_copies() {
    for (from, to) in [(1, 2), (2, 1)] {
        let mut pair = without_kill().await;
        let owner = pair.ours.owner_with_id(-7);
        let lock = pair.ours.lock("a").owned_by(&owner);
        let mut guards = Vec::new();
        for _ in 0..from {
            guards.push(lock.lock().await.expect("free"));
        }
        if to > from {
            pair.proxy.rule(Fate::Late, 1, acquire_to(to));
            guards.push(lock.lock().await.expect("nested"));
        } else {
            pair.proxy.rule(Fate::Late, 1, release_to(to));
            guards.pop().expect("held").unlock().await.expect("held");
        }
        pair.proxy.deliver().await;
        assert_eq!(
            pair.control.hash("a"),
            format!("{}:-7 {to}", pair.ours.id())
        );
        for guard in guards {
            guard.unlock().await.expect("held");
        }
        pair.finish().await;
    }
}

#[tokio::test]
async fn without_the_right_to_kill_a_ghost_is_unrenewed_and_released_by_its_own_client() {
    let mut pair = without_kill().await;
    let owner = pair.ours.owner_with_id(-7);
    let lock = pair.ours.lock("a").owned_by(&owner).lease(ms(3000));
    pair.proxy.rule(Fate::Late, 1, acquire_to(1));
    let held = lock.lock().await.expect("repeated");
    let field = pair.control.hash("a");
    assert!(
        field.ends_with(" 1") && !field.ends_with(":-7 1"),
        "{field}: a late release of an earlier hold may be under way"
    );
    held.unlock().await.expect("held");
    assert_eq!(pair.proxy.deliver().await, 1);
    // What is documented to remain: a hold that nobody has, for at most one lease.
    assert_eq!(pair.control.hash("a"), format!("{}:-7 1", pair.ours.id()));
    assert_eq!((pair.ours.stats().held, pair.ours.stats().renewals), (0, 0));
    let left = pair.control.pttl("a");
    assert!(left > 0 && left <= 3000);
    // Others wait for its lease; a task of this client releases it immediately.
    assert!(
        pair.theirs
            .lock("a")
            .try_lock()
            .await
            .expect("asked")
            .is_none()
    );
    let taken = pair
        .ours
        .lock("a")
        .try_lock()
        .await
        .expect("asked")
        .expect("the ghost was released");
    assert_eq!(pair.control.count("a"), 1);
    taken.unlock().await.expect("held");
    pair.finish().await;
}

#[tokio::test]
async fn without_a_fence_and_a_limit_a_late_force_unlock_reaches_at_most_the_same_owner() {
    let mut pair = ProxiedPair::as_user("w:p@").await;
    let held = pair.theirs.lock("a").lock().await.expect("free");
    pair.proxy
        .rule(Fate::Late, 1, |words| is_script(words, FORCE_UNLOCK));
    assert!(pair.ours.lock("a").force_unlock().await.is_err());
    held.unlock().await.expect("held");
    let owner = pair.theirs.owner();
    let other = pair
        .theirs
        .lock("a")
        .owned_by(&owner)
        .lock()
        .await
        .expect("free");
    pair.proxy.deliver().await;
    assert_eq!(
        pair.control.count("a"),
        1,
        "another owner's hold is not hit"
    );
    other.unlock().await.expect("held");
    pair.finish().await;
}

/// An extension's reply is doubled while attempts are in flight, on our free locks and on locks that others hold
/// by turns: each gets the reply to the command before it.
#[tokio::test]
async fn no_answer_counts_after_one_that_its_command_cannot_have() {
    // The first attempt gets a reply that it cannot have, and its caller may have gone by then.
    for is_gone in [false, true] {
        let pair = ProxiedPair::new().await;
        let extended = pair.ours.lock("x").lease(ms(20_000)).lock().await;
        let extended = extended.expect("free");
        extended.extend(ms(20_000)).await.expect("held");
        let mut held = Vec::new();
        for nth in 0..7 {
            let lock = pair.theirs.lock(format!("theirs:{nth}"));
            held.push(lock.lock().await.expect("free"));
        }
        pair.proxy
            .rule(Fate::Doubled, 1, |words| is_script(words, RENEW));
        pair.proxy.hold_replies(true);
        let sent = || pair.proxy.script_calls().len();
        let before = sent();
        let extending = tokio::spawn(async move {
            let outcome = extended.extend(ms(30_000)).await;
            (extended, outcome)
        });
        eventually("the extension is sent", ms(5000), || sent() == before + 1).await;
        let mut calls = Vec::new();
        for nth in 0..14 {
            let name = ["ours", "theirs"][nth % 2];
            let lock = pair.ours.lock(format!("{name}:{}", nth / 2));
            let lock = lock.owned_by(&pair.ours.owner());
            calls.push(tokio::spawn(async move { lock.try_lock().await }));
            let is_sent = || sent() == before + 2 + nth;
            eventually("the attempt is sent", ms(5000), is_sent).await;
        }
        if is_gone {
            calls[0].abort();
        }
        pair.proxy.hold_replies(false);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (nth, call) in calls.into_iter().enumerate() {
            let got = call.await;
            match nth % 2 {
                0 if is_gone && nth == 0 => assert!(got.is_err(), "it was aborted"),
                0 => ours.push(got.expect("no panic")),
                _ => theirs.push(got.expect("no panic")),
            }
        }
        let wrong = theirs.iter().filter(|got| !matches!(got, Ok(None)));
        assert_eq!(wrong.count(), 0, "of 7 that others hold, gone: {is_gone}");
        for guard in ours {
            let guard = guard.expect("answered").expect("free");
            guard.unlock().await.expect("held");
        }
        let (extended, outcome) = extending.await.expect("no panic");
        outcome.expect("held");
        extended.unlock().await.expect("held");
        assert_eq!(pair.ours.stats().reconnects_total, 1);
        for guard in held {
            guard.unlock().await.expect("held");
        }
        pair.finish().await;
    }
}

/// The reply that shows it belongs to a call that has timed out.
#[tokio::test]
async fn a_reply_that_comes_after_its_timeout_still_shows_that_those_after_it_are_shifted() {
    let pair = ProxiedPair::with(|builder| builder.command_timeout(ms(1000))).await;
    let extended = pair.ours.lock("x").lease(ms(60_000)).lock().await;
    let extended = extended.expect("free");
    extended.extend(ms(60_000)).await.expect("held");
    let theirs = pair.theirs.lock("theirs").lock().await.expect("free");
    pair.proxy
        .rule(Fate::Doubled, 1, |words| is_script(words, RENEW));
    pair.proxy.hold_replies(true);
    let sent = || pair.proxy.script_calls().len();
    let before = sent();
    let extending = tokio::spawn(async move {
        let outcome = extended.extend(ms(70_000)).await;
        (extended, outcome)
    });
    eventually("the extension is sent", ms(5000), || sent() == before + 1).await;
    let attempt = |name| {
        let lock = pair.ours.lock(name).owned_by(&pair.ours.owner());
        tokio::spawn(async move { lock.try_lock().await })
    };
    let timed_out = attempt("free");
    eventually("the attempt is sent", ms(5000), || sent() == before + 2).await;
    let timed_out = tokio::time::timeout(ms(5000), timed_out).await;
    let timed_out = timed_out.expect("it ends").expect("no panic");
    assert_matches!(timed_out, Err(Error::NoAnswer { .. }));
    let before = sent();
    let attempt = attempt("theirs");
    eventually("the attempt is sent", ms(5000), || {
        let calls = pair.proxy.script_calls();
        let mut calls = calls[before..].iter();
        calls.any(|words| words.iter().any(|word| word.contains("theirs")))
    })
    .await;
    pair.proxy.hold_replies(false);
    let got = attempt.await.expect("no panic");
    assert!(!matches!(got, Ok(Some(_))), "another owner holds it");
    assert_eq!(theirs.state(), HoldState::Held);
    let (extended, _) = extending.await.expect("no panic");
    theirs.unlock().await.expect("held");
    drop(extended);
    pair.finish().await;
}

/// It says no acquire's answer, also on a connection on which nothing can have been shifted.
#[tokio::test]
async fn an_answer_that_stays_wrong_is_the_servers() {
    let pair = ProxiedPair::new().await;
    let lock = pair.ours.lock("a");
    pair.proxy
        .rule(Fate::Replaced(":7"), 11, |words| is_script(words, ACQUIRE));
    for nth in 0..10 {
        let said = lock.try_lock().await;
        assert_matches!(said, Err(Error::UnexpectedReply { .. }), "{nth}");
    }
    assert_eq!(pair.proxy.hit.load(Ordering::SeqCst), 11, "one sent again");
    assert_eq!(pair.ours.stats().reconnects_total, 1);
    let guard = lock.try_lock().await.expect("answered").expect("free");
    guard.unlock().await.expect("held");
    pair.finish().await;
}

/// Only a re-entry finds its outer hold gone: to another acquire that is the reply of another call.
#[tokio::test]
async fn what_only_a_re_entry_is_answered_is_no_loss_of_another_acquire() {
    let pair = ProxiedPair::new().await;
    pair.proxy
        .rule(Fate::Replaced(":0"), 1, |words| is_script(words, ACQUIRE));
    let guard = pair.ours.lock("a").lock().await.expect("sent again");
    assert_eq!(pair.ours.stats().reconnects_total, 1);
    guard.unlock().await.expect("held");
    pair.finish().await;
}

#[tokio::test]
async fn answers_that_are_wrong_now_and_then_cost_one_connection_in_a_command_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let pair = ProxiedPair::with(|builder| builder.command_timeout(TIMEOUT)).await;
    let lock = pair.ours.lock("a");
    let is_wrong = AtomicBool::new(false);
    pair.proxy
        .rule(Fate::Replaced(":7"), usize::MAX, move |words| {
            is_script(words, ACQUIRE) && !is_wrong.fetch_not(Ordering::Relaxed)
        });
    let start = Instant::now();
    let mut taken = 0;
    while start.elapsed() < 6 * TIMEOUT {
        match lock.try_lock().await {
            Ok(guard) => {
                guard.expect("free").unlock().await.expect("held");
                taken += 1;
            }
            Err(Error::NoAnswer { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    let most = start.elapsed().as_millis() / TIMEOUT.as_millis() + 1;
    let replaced = pair.ours.stats().reconnects_total;
    assert!(u128::from(replaced) <= most, "{replaced} connections");
    assert!(replaced > 2 && taken > 2, "{replaced} and {taken}");
    pair.finish().await;
}

/// Such a reply is no missing permission.
#[tokio::test]
async fn a_connection_whose_first_replies_are_shifted_is_opened_again() {
    for (question, line) in [("INFO", ":7"), ("KILL", "+OK")] {
        let pair = ProxiedPair::new().await;
        pair.proxy.rule(Fate::Replaced(line), 1, move |words| {
            words[0] == "CLIENT" && words[1] == question
        });
        pair.proxy.cut_all();
        let asked = || pair.proxy.hit.load(Ordering::SeqCst) == 1;
        eventually("it has asked", ms(5000), asked).await;
        eventually("it is connected", ms(5000), || pair.ours.is_connected()).await;
        let fence = pair.ours.stats().connection_fence;
        assert_eq!(fence, ConnectionFence::Active, "{question}");
        let guard = pair.ours.lock("a").lock().await.expect("free");
        guard.unlock().await.expect("held");
        pair.finish().await;
    }
}

#[tokio::test]
async fn a_fence_that_is_switched_off_says_so() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.connection_fence(false))
        .await;
    assert_eq!(client.stats().connection_fence, ConnectionFence::Off);
    let guard = client.lock("a").lock().await.expect("free");
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_reply_that_is_only_slow_is_waited_for() {
    let mut pair = ProxiedPair::new().await;
    let lock = pair.ours.lock("a");
    pair.proxy.hold_replies(true);
    let start = Instant::now();
    let taking = tokio::spawn(async move { lock.lock().await });
    eventually("executed", ms(2000), || pair.control.count("a") == 1).await;
    tokio::time::sleep(ms(300)).await;
    pair.proxy.hold_replies(false);
    let guard = taking.await.expect("no panic").expect("taken");
    assert!(start.elapsed() < ms(1000) + stalls(start));
    assert_eq!(pair.control.count("a"), 1);
    guard.unlock().await.expect("held");
    pair.finish().await;
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced_within_the_command_timeout() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = LockClient::builder()
        .command_timeout(ms(2000))
        .connect(&proxy.url())
        .await;
    let client = client.expect("the server answers");
    let lock = client.lock("a");
    proxy.rule(Fate::Silence, 1, acquire_to(1));
    let start = Instant::now();
    let guard = lock.lock().await.expect("taken over another connection");
    assert!(
        start.elapsed() < ms(2000) + stalls(start),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(
        proxy.hit.load(Ordering::SeqCst),
        1,
        "the first was swallowed"
    );
    assert_eq!(client.stats().reconnects_total, 1);
    assert_eq!(server.control().count("a"), 1);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// There are a few milliseconds for it, which a loaded machine may not have immediately.
#[tokio::test]
async fn a_silent_connection_is_replaced_within_a_short_command_timeout() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    for nth in 0..20 {
        let builder = LockClient::builder().command_timeout(ms(100));
        let Ok(client) = builder.connect(&proxy.url()).await else {
            continue;
        };
        let name = format!("short:{nth}");
        proxy.rule(Fate::Silence, 1, acquire_to(1));
        let taken = client.lock(&name).lock().await;
        client.close(ms(1_000)).await;
        if taken.is_ok() {
            proxy.stop().await;
            return;
        }
    }
    panic!("never in time");
}

/// Each of them leaves before it would doubt the connection.
#[tokio::test]
async fn callers_with_a_shorter_limit_of_their_own_have_a_dead_connection_replaced() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = LockClient::builder()
        .command_timeout(ms(2000))
        .connect(&proxy.url())
        .await;
    let client = client.expect("the server answers");
    proxy.rule(Fate::Silence, 1, |words| words[0] == "PING");
    let start = Instant::now();
    let mut failed = 0;
    while !matches!(
        tokio::time::timeout(ms(200), client.ping()).await,
        Ok(Ok(_))
    ) {
        failed += 1;
        let replaced = client.stats().reconnects_total;
        assert!(
            start.elapsed() < ms(5000) + stalls(start),
            "{failed} pings failed, {replaced} connections replaced"
        );
    }
    assert!(failed > 0, "the first was swallowed");
    assert_eq!(client.stats().reconnects_total, 1);
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// What has arrived meanwhile is read before the connection is doubted, also if its caller has gone.
#[tokio::test]
async fn a_process_that_stood_still_does_not_doubt_for_callers_that_have_gone() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(400)))
        .await;
    client.ping().await.expect("the server answers");
    let mut control = server.control();
    let mut connections = || {
        let info = control.run(&["INFO", "stats"]);
        let mut lines = info.lines();
        let line = lines.find(|line| line.starts_with("total_connections_received:"));
        line.expect("it is counted").to_owned()
    };
    let before = connections();
    server.pause();
    let left = tokio::time::timeout(ms(50), client.ping()).await;
    assert!(left.is_err(), "nobody answers");
    server.resume();
    // The answer arrives, and this process does not read it.
    std::thread::sleep(ms(500));
    let mut leaves = Box::pin(client.ping());
    let polled = std::future::poll_fn(|context| {
        std::task::Poll::Ready(leaves.as_mut().poll(context).is_pending())
    });
    assert!(polled.await);
    drop(leaves);
    let start = Instant::now();
    tokio::time::sleep(ms(50)).await;
    while start.elapsed() < ms(300) {
        client.ping().await.expect("the server answers");
    }
    assert_eq!(connections(), before, "none was opened beside it");
    assert_eq!(client.stats().reconnects_total, 0);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_command_that_is_executed_twice_in_a_row_counts_once() {
    let mut pair = ProxiedPair::new().await;
    pair.proxy.rule(Fate::Twice, 1, acquire_to(1));
    let guard = pair.ours.lock("a").lock().await.expect("taken");
    assert_eq!(pair.control.count("a"), 1);
    guard.unlock().await.expect("held");
    pair.finish().await;
}

/// Only a send that may have been executed may be why the next one finds nothing.
#[tokio::test]
async fn a_release_that_was_never_written_frees_nothing() {
    let mut pair = ProxiedPair::new().await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let other = pair.ours.lock("b").lock().await.expect("free");
    // From here on nothing reads the connection, and the script fills what the sockets have room for.
    pair.proxy.hold_commands(|words| words[0] == "PING");
    let ping = pair.ours.ping();
    let fills = async {
        eventually("nothing is read", ms(2_000), || pair.proxy.stuck() == 1).await;
        let script = Script::new("return 1").expect("not empty");
        let filling = other.eval(&script, &[], &[vec![b'x'; 14 << 20]]);
        let filled = async { filling.await.map(drop) };
        let releasing = async {
            let unlocked = guard.unlock();
            let replaced = async {
                let is_begun = || pair.ours.stats().releasing == 1;
                eventually("the release waits", ms(2_000), is_begun).await;
                assert_eq!(pair.control.run(&["DEL", "a"]), "1", "it is still there");
                pair.proxy.cut_all();
                pair.proxy.let_commands_go();
            };
            tokio::join!(biased; unlocked, replaced).0
        };
        // In this order: the first poll of each hands its command over.
        tokio::join!(biased; filled, releasing).1
    };
    let (_, unlocked) = tokio::join!(ping, fills);
    assert_matches!(unlocked, Err(Error::Lost { .. }));
    drop(other);
    pair.finish().await;
}

#[tokio::test]
async fn an_answer_that_is_older_than_its_lease_is_no_hold() {
    let mut pair = ProxiedPair::new().await;
    let lock = pair.ours.lock("a").lease(ms(100));
    pair.proxy.hold_replies(true);
    let taking = tokio::spawn(async move { lock.lock().await });
    eventually("executed", ms(2000), || pair.control.count("a") == 1).await;
    tokio::time::sleep(ms(200)).await;
    pair.proxy.hold_replies(false);
    let taken = taking.await.expect("no panic");
    assert_matches!(taken, Err(Error::NoAnswer { .. }));
    pair.finish().await;
}

#[tokio::test]
async fn a_nested_answer_that_comes_after_the_loss_brings_nothing_back() {
    // Trace V14: the outer lease ends while the nested acquire has no answer.
    let mut pair = ProxiedPair::new().await;
    let owner = pair.ours.owner();
    let lock = pair.ours.lock("a").owned_by(&owner);
    let outer = lock.lease(ms(300)).lock().await.expect("free");
    pair.proxy.hold_replies(true);
    let nested = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    let control = &mut pair.control;
    eventually("executed", ms(2000), || control.count("a") == 2).await;
    outer.lost().await;
    pair.proxy.hold_replies(false);
    assert_matches!(nested.await.expect("no panic"), Err(Error::Lost { .. }));
    let control = &mut pair.control;
    eventually("undone", ms(2000), || control.run(&["EXISTS", "a"]) == "0").await;
    drop(outer);
    lock_and_unlock(&lock).await;
    pair.finish().await;
}

#[tokio::test]
async fn while_the_server_is_away_a_call_ends_with_the_command_timeout() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(600)))
        .await;
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    let other = client.lock("b");
    server.pause();
    for _ in 0..2 {
        let start = Instant::now();
        let ended = other.lock().await;
        assert_matches!(ended, Err(Error::NoAnswer { .. }));
        assert!(
            start.elapsed() >= ms(550) && start.elapsed() < ms(900) + stalls(start),
            "{:?}",
            start.elapsed()
        );
    }
    let start = Instant::now();
    assert_matches!(guard.unlock().await, Err(Error::NoAnswer { .. }));
    assert!(start.elapsed() < ms(900) + stalls(start));
    server.resume();
    let again = other.lock().await.expect("back again");
    again.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_release_in_the_background_outlasts_refusals_and_pauses_between_its_attempts() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    lock_and_unlock(&client.lock("warm")).await;
    let unlocked = client.lock("a").lock().await.expect("free");
    let dropped = client.lock("b").lock().await.expect("free");
    let short = client.lock("c").lease(ms(400)).lock().await.expect("free");
    control.run(&["PERSIST", "c"]);
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let refused = unlocked.unlock().await.expect_err("too few replicas");
    assert_matches!(
        refused,
        Error::Refused {
            kind: RefusedKind::NotEnoughReplicas,
            ..
        }
    );
    drop(short);
    eventually("with its lease over it is given up", ms(5000), || {
        client.stats().given_up_total == 1
    })
    .await;

    let before = control.calls("evalsha");
    let start = Instant::now();
    drop(dropped);
    // In one second this one is tried six times at most, and the other one twice.
    eventually("refused several times", ms(10_000), || {
        control.calls("evalsha") >= before + 12
    })
    .await;
    assert!(start.elapsed() > ms(1000), "{:?}", start.elapsed());
    assert_eq!(
        (client.stats().releasing, client.stats().given_up_total),
        (2, 1)
    );
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    control.run(&["DEL", "c"]);
    eventually("released long before the leases end", ms(5000), || {
        control.run(&["KEYS", "*"]).is_empty() && client.stats().releasing == 0
    })
    .await;
    assert_eq!(
        (
            client.stats().reconciled_total,
            client.stats().given_up_total
        ),
        (2, 1)
    );
    server.finish([client]).await;
}

#[tokio::test]
async fn under_maxmemory_a_release_still_works() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    control.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(
        control.try_run(&["SET", "b", "text"]).is_err(),
        "the server is out of memory"
    );
    let nested = client
        .lock("a")
        .lock()
        .await
        .expect("no memory is needed to count");
    nested.unlock().await.expect("released");
    assert_eq!(control.count("a"), 1);
    guard.unlock().await.expect("released");
    assert_eq!(control.run(&["KEYS", "*"]), "");
    control.run(&["CONFIG", "SET", "maxmemory", "0"]);
    server.finish([client]).await;
}

#[tokio::test]
async fn ids_that_start_again_with_the_server_kill_no_stranger() {
    // The fence names the address too: after a restart the old id may be somebody else's.
    let mut server = TestServer::new();
    let id = |control: &mut Control| control.number(&["CLIENT", "ID"]);
    // Enough clients are connected before it that a new server has not got as far when it answers for the
    // first time.
    let mut before: Vec<_> = (0..50).map(|_| server.control()).collect();
    let proxy = Proxy::start(server.port).await;
    let client = LockClient::connect(&proxy.url())
        .await
        .expect("the server answers");
    let newest = before.iter_mut().map(id).max().expect("some");
    let ids = newest + 1..id(&mut server.control());
    drop(before);
    proxy.refuse(true);
    server.lose_everything();
    let mut strangers = Vec::new();
    loop {
        let mut stranger = server.control();
        let id = id(&mut stranger);
        assert!(
            id <= newest || !strangers.is_empty(),
            "the new server has got as far as {id}"
        );
        if id >= ids.end {
            break;
        }
        strangers.push((id, stranger));
    }
    let named = strangers.iter().filter(|(id, _)| ids.contains(id)).count() as i64;
    assert!(
        named >= 1 && named == ids.end - ids.start,
        "each of the client's ids is a stranger's: {ids:?}"
    );
    proxy.refuse(false);
    client
        .lock("a")
        .lock()
        .await
        .expect("connected again")
        .unlock()
        .await
        .expect("held");
    assert_eq!(
        (
            client.stats().reconnects_total,
            client.stats().connection_fence
        ),
        (1, ConnectionFence::Active)
    );
    for (id, stranger) in &mut strangers {
        assert!(
            stranger.try_run(&["PING"]).is_ok(),
            "the connection {id} of a stranger was killed"
        );
    }
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    drop(strangers);
    server.finish([]).await;
}

#[tokio::test]
async fn a_section_that_is_over_is_not_spoiled_by_an_unlock_without_an_answer() {
    for fate in [Fate::LoseReply, Fate::LoseCommand, Fate::Late] {
        let mut pair = ProxiedPair::new().await;
        pair.proxy.rule(fate, 2, release_to(0));
        let ran = pair
            .ours
            .lock("a")
            .run(|_| async { Ok::<_, Error>(7) })
            .await;
        assert_matches!(ran, Ok(7), "{fate:?}");
        assert_eq!(
            pair.proxy.hit.load(Ordering::SeqCst),
            2,
            "{fate:?}: the unlock had no answer"
        );
        let control = &mut pair.control;
        eventually("released", ms(5000), || {
            control.run(&["EXISTS", "a"]) == "0"
        })
        .await;
        pair.proxy.deliver().await;
        pair.finish().await;
    }
}

#[tokio::test]
async fn a_background_release_that_is_refused_for_now_is_sent_until_it_is_not() {
    let mut pair = ProxiedPair::new().await;
    let port = pair.server.port;
    for refusal in ["NOREPLICAS", "BUSY", "LOADING"] {
        let guard = pair.ours.lock("a").lock().await.expect("free");
        let before = pair.calls(RELEASE);
        let control = &mut pair.control;
        let refusing = match refusal {
            "NOREPLICAS" => {
                control.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
                None
            }
            "BUSY" => {
                control.run(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
                Some(in_the_background(port, &["EVAL", "while true do end", "0"]))
            }
            _ => {
                let fill = "for n = 1, 3000 do redis.call('set', 'k' .. n, ('x'):rep(3000)) end";
                control.run(&["EVAL", fill, "0"]);
                // A millisecond for each key, with a look at the connections in between.
                control.run(&["CONFIG", "SET", "key-load-delay", "1000"]);
                control.run(&[
                    "CONFIG",
                    "SET",
                    "loading-process-events-interval-bytes",
                    "1024",
                ]);
                Some(in_the_background(port, &["DEBUG", "RELOAD"]))
            }
        };
        if refusal != "NOREPLICAS" {
            eventually("it refuses", ms(5000), || {
                let said = control
                    .try_run(&["GET", "a"])
                    .expect_err("never a text")
                    .to_string();
                said.to_uppercase().contains(refusal)
            })
            .await;
        }
        drop(guard);
        // A second copy is sent only after the first was refused.
        eventually("refused, and sent again", ms(5000), || {
            pair.calls(RELEASE) >= before + 2
        })
        .await;
        let control = &mut pair.control;
        match refusal {
            "NOREPLICAS" => control.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
            "BUSY" => control.run(&["SCRIPT", "KILL"]),
            _ => control.run(&["CONFIG", "SET", "key-load-delay", "0"]),
        };
        refusing
            .map_or(Ok(()), std::thread::JoinHandle::join)
            .expect("no panic");
        eventually("released", ms(5000), || {
            control.run(&["EXISTS", "a"]) == "0"
        })
        .await;
        let stats = || pair.ours.stats();
        eventually("nothing under way", ms(5000), || stats().releasing == 0).await;
        assert_eq!(stats().given_up_total, 0, "{refusal}");
    }
    pair.control.run(&["FLUSHALL"]);
    pair.finish().await;
}

/// Runs a command that takes long on a thread of its own. How it ends does not matter.
fn in_the_background(port: u16, words: &[&str]) -> std::thread::JoinHandle<()> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    std::thread::spawn(move || {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a valid address");
        let mut connection = client.get_connection().expect("the server answers");
        let _ = redis::cmd(&words[0])
            .arg(&words[1..])
            .query::<()>(&mut connection);
    })
}

/// Adds one to the counters of a few locks, and says how often it did so to each.
async fn count_up(
    client: LockClient,
    mut own: Control,
    names: &'static [&'static str],
    first: usize,
    cuts: Arc<AtomicU32>,
) -> Vec<i64> {
    let mut done = vec![0; names.len()];
    // However quick the machine is, there are cuts enough.
    for nth in first.. {
        if nth >= first + 25 && cuts.load(Ordering::Relaxed) >= 10 {
            break;
        }
        let nth = nth % names.len();
        let Ok(guard) = client.lock(names[nth]).lock().await else {
            continue;
        };
        let counter = format!("counter of {}", names[nth]);
        let read = own.number(&["GET", &counter]);
        tokio::task::yield_now().await;
        own.run(&["SET", &counter, &(read + 1).to_string()]);
        done[nth] += 1;
        let _ = guard.unlock().await;
    }
    done
}

/// Soon enough that most connections are cut with commands under way.
const CUT_EVERY: Duration = Duration::from_millis(11);

/// Six tasks on two locks, every other one on a second runtime, while connections are cut all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_constant_cuts_of_three_connections_no_update_is_lost_and_no_count_drifts() {
    let names = &["a", "b"];
    let away = tokio::runtime::Runtime::new().expect("a second runtime");
    let mut pair = ProxiedPair::with(|builder| builder.connections(3)).await;
    for name in names {
        pair.control
            .run(&["SET", &format!("counter of {name}"), "0"]);
    }
    let cuts = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..6 {
        let task = count_up(
            pair.ours.clone(),
            pair.server.control(),
            names,
            nth,
            Arc::clone(&cuts),
        );
        if nth % 2 == 0 {
            tasks.spawn(task);
        } else {
            tasks.spawn_on(task, away.handle());
        }
    }
    let mut sections = vec![0; names.len()];
    let limit = Instant::now() + Duration::from_secs(60);
    let (mut pause, mut acquired) = (CUT_EVERY, 0);
    while !tasks.is_empty() {
        assert!(Instant::now() < limit, "stuck");
        tokio::select! {
            Some(done) = tasks.join_next() => {
                let done = done.expect("no panic");
                sections.iter_mut().zip(done).for_each(|(sum, done)| *sum += done);
            }
            () = tokio::time::sleep(pause) => {
                // On a busy machine a connection may take longer than that, and no task would ever
                // get anywhere.
                let so_far = pair.ours.stats().acquired_total;
                pause = if so_far > acquired { CUT_EVERY } else { (pause * 2).min(ms(1000)) };
                acquired = so_far;
                // Either one of the connections or all of them.
                if cuts.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                    pair.proxy.cut_all();
                } else {
                    pair.proxy.cut_one();
                }
            }
        }
    }
    assert!(cuts.load(Ordering::Relaxed) >= 10);
    for (name, sections) in names.iter().zip(sections) {
        assert!(sections > 0, "{name} was in use");
        let counter = pair.control.run(&["GETDEL", &format!("counter of {name}")]);
        assert_eq!(counter, sections.to_string(), "{name}");
    }
    pair.finish().await;
    away.shutdown_background();
}
