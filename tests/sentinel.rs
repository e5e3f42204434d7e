//! A primary and two replicas behind three sentinels: planned and unplanned failovers.

use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient};
use test_support::{Sentinels, eventually, ms, tokio, within};

async fn connect(sentinels: &Sentinels) -> LockClient {
    connect_to(&sentinels.url()).await
}

async fn connect_to(url: &str) -> LockClient {
    LockClient::builder()
        // No renewal is due for twenty seconds.
        .watchdog_timeout(ms(60_000))
        .command_timeout(ms(900))
        .connect(url)
        .await
        .expect("the sentinels know the primary")
}

async fn nothing_is_left(sentinels: &Sentinels, primary: usize, clients: Vec<LockClient>) {
    let mut control = sentinels.control(primary);
    eventually("no key is left", ms(10_000), || {
        control.run(&["KEYS", "*"]).is_empty()
    })
    .await;
    for client in clients {
        let report = client.close(Duration::ZERO).await;
        assert!(report.abandoned.is_empty(), "{report:?}");
    }
}

#[tokio::test]
async fn a_planned_failover_is_followed_and_its_waiter_is_woken() {
    let sentinels = Sentinels::start().await;
    let (client, other) = (connect(&sentinels).await, connect(&sentinels).await);
    assert_eq!(client.stats().nodes, 1);
    let guard = client.lock("stock").lock().await.expect("free");
    let lock = other.lock("stock");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("it waits", ms(5_000), || other.stats().waiting == 1).await;
    sentinels.fail_over().await;
    let primary = sentinels.new_primary(0, ms(15_000)).await;
    for client in [&client, &other] {
        let switched = || client.stats().failovers_total >= 1;
        eventually("it is noticed", ms(15_000), switched).await;
    }
    let nested = client.lock("stock").lock().await.expect("ours");
    nested.unlock().await.expect("held");
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(sentinels.control(primary).count("stock"), 1);
    guard.unlock().await.expect("held");
    assert_eq!(client.stats().failovers_total, 1, "there was one");
    let woken = within(ms(1_000), waiter).await.expect("immediately");
    let guard = woken.expect("no panic").expect("free");
    guard.unlock().await.expect("held");
    nothing_is_left(&sentinels, primary, vec![client, other]).await;
}

/// A primary that stands still while a replica takes over executes what was sent to it when it goes on.
#[tokio::test]
async fn what_a_former_primary_answers_is_not_believed() {
    let mut sentinels = Sentinels::start().await;
    // Longer than a failover: the call is still waiting when the former primary goes on.
    let patient = async || {
        LockClient::builder()
            .watchdog_timeout(ms(60_000))
            .command_timeout(ms(15_000))
            .connect(&sentinels.url())
            .await
            .expect("the sentinels know the primary")
    };
    let (client, other) = (patient().await, patient().await);
    for client in [&client, &other] {
        let guard = client.lock("stale").lock().await.expect("free");
        guard.unlock().await.expect("held");
    }
    sentinels.server(0).pause();
    let lock = client.lock("stale");
    let pending = tokio::spawn(async move { lock.try_lock().await });
    let primary = sentinels.new_primary(0, ms(30_000)).await;
    let others = other.lock("stale").try_lock().await;
    // Until then an answer of the former primary is one of the primary.
    let switched = || client.stats().failovers_total >= 1;
    eventually("it is noticed", ms(15_000), switched).await;
    sentinels.server(0).resume();
    let ours = pending.await.expect("no panic");
    let holders = [ours, others].map(|taken| taken.expect("answered"));
    assert_eq!(holders.iter().flatten().count(), 1, "one of them has it");
    for guard in holders.into_iter().flatten() {
        guard.unlock().await.expect("held");
    }
    nothing_is_left(&sentinels, primary, vec![client, other]).await;
}

/// One sentinel was set up again with the address of the demoted primary, which keeps accepting writes.
#[tokio::test]
async fn a_sentinel_that_lies_behind_leads_nobody_to_the_former_primary() {
    let mut sentinels = Sentinels::start().await;
    let client = connect(&sentinels).await;
    let kept = client.lock("kept").lock().await.expect("free");
    let freed = client.lock("freed").lock().await.expect("free");
    for nth in [1, 2] {
        let replicated = || sentinels.control(nth).run(&["DBSIZE"]) == "2";
        eventually("it is replicated", ms(5_000), replicated).await;
    }
    // Nobody makes a replica of the former primary, or tells anybody there of the new one.
    let alone = "ACL SETUSER default -replicaof -slaveof resetchannels";
    let alone: Vec<&str> = alone.split(' ').collect();
    sentinels.control(0).run(&alone);
    sentinels.server(0).pause();
    sentinels.new_primary(0, ms(30_000)).await;
    sentinels.server(0).resume();
    let primary = sentinels.agreed_primary(0, ms(30_000)).await;
    let switched = || client.stats().failovers_total >= 1;
    eventually("it is noticed", ms(15_000), switched).await;
    let failovers = client.stats().failovers_total;
    sentinels.falls_behind(0, 0);
    freed.unlock().await.expect("held");
    // They ask the sentinel that lies behind first, second and last.
    let mut clients = vec![client];
    for first in 0..3 {
        clients.push(connect_to(&sentinels.url_from(first)).await);
    }
    let scripts = || {
        let mut former = sentinels.control(0);
        former.calls("evalsha") + former.calls("eval")
    };
    let (before, start) = (scripts(), Instant::now());
    // Every sentinel is asked once a second.
    while start.elapsed() < ms(4_000) {
        for (nth, client) in clients.iter().enumerate() {
            let guard = client.lock("freed").try_lock().await.expect("answered");
            assert_eq!(sentinels.control(primary).count("freed"), 1);
            guard.expect("free").unlock().await.expect("held");
            let taken = client.lock("kept").try_lock().await.expect("answered");
            assert_eq!(
                taken.is_some(),
                nth == 0,
                "held at the primary, by the first client"
            );
        }
        assert!(sentinels.tells(0, 0), "it lies behind still");
    }
    assert_eq!(scripts(), before, "nobody has used the former primary");
    let seen: Vec<_> = clients
        .iter()
        .map(|client| client.stats().failovers_total)
        .collect();
    assert_eq!(seen, [failovers, 0, 0, 0], "the others have seen none");
    assert_eq!(kept.state(), HoldState::Held);
    kept.unlock().await.expect("held");
    nothing_is_left(&sentinels, primary, clients).await;
}

#[tokio::test]
async fn without_any_sentinel_the_primary_goes_on_being_used() {
    let sentinels = Sentinels::start().await;
    let client = connect(&sentinels).await;
    for nth in 0..3 {
        sentinels.signal_sentinel(nth, "-STOP");
    }
    let guard = client.lock("stock").lock().await.expect("free");
    guard.unlock().await.expect("held");
    let refused = LockClient::builder()
        .watchdog_timeout(ms(3_000))
        .command_timeout(ms(600))
        .connect(&sentinels.url())
        .await;
    let refused = refused.expect_err("nobody tells where the primary is");
    assert!(matches!(refused, Error::NoAnswer { .. }), "{refused:?}");
    for nth in 0..3 {
        sentinels.signal_sentinel(nth, "-CONT");
    }
    nothing_is_left(&sentinels, 0, vec![client]).await;
}

/// Sentinels have users of their own, and the primary another one. No more rights than `docs/operations.md` has.
#[tokio::test]
async fn the_sentinels_are_asked_with_credentials_of_their_own() {
    let sentinels = Sentinels::start().await;
    for nth in 0..3 {
        let mut sentinel = sentinels.sentinel(nth).expect("it runs");
        let user = "ACL SETUSER asker on >theirs -@all +sentinel +subscribe +hello +auth";
        let words: Vec<&str> = user.split(' ').chain(["&+switch-master"]).collect();
        sentinel.run(&words);
        sentinel.run(&["ACL", "SETUSER", "default", "resetpass", ">closed"]);
        grant(&sentinels, nth, RIGHTS);
    }
    let url = sentinels.url().replace("://", "://locker:ours@");
    let refused = LockClient::connect(&url)
        .await
        .expect_err("nobody is asked");
    assert!(matches!(refused, Error::Auth { .. }), "{refused:?}");
    let in_the_address = format!("{url}&sentinelUsername=asker&sentinelPassword=the%69rs");
    let client = connect_to(&in_the_address).await;
    client.close(Duration::ZERO).await;
    let builder = LockClient::builder().sentinel_credentials(Some("asker"), "theirs");
    let client = builder.connect(&url).await.expect("both let it in");
    let guard = client.lock("lock:stock").lock().await.expect("free");
    assert_eq!(client.check("lock:stock").await.expect("answered"), [""; 0]);
    guard.unlock().await.expect("held");
    for nth in 0..3 {
        grant(&sentinels, nth, RIGHTS.trim_end_matches(" +role"));
    }
    let missing = client.check("lock:stock").await.expect("answered");
    assert_eq!(missing, ["+role"]);
    nothing_is_left(&sentinels, 0, vec![client]).await;
}

/// The list of `docs/operations.md`.
const RIGHTS: &str = "+evalsha +eval +hget +hincrby +hdel +hlen +hkeys +hexists +exists +pttl +pexpire +del +publish +time \
                      +subscribe +unsubscribe +ping +client|info +client|kill +client|tracking +hello +auth +select +info +role";

fn grant(sentinels: &Sentinels, nth: usize, rights: &str) {
    let user = "ACL SETUSER locker reset on >ours ~lock:* &redisson_lock__channel:{lock:*";
    let words: Vec<&str> = user.split(' ').chain(rights.split_whitespace()).collect();
    sentinels.control(nth).run(&words);
}

/// An operator has all sentinels watch another server. Where there was no failover, the epoch is 0 before and after.
/// One that is in the URL is there no more.
#[tokio::test]
async fn another_primary_in_the_same_epoch_is_followed_when_all_who_answer_tell_of_it() {
    let mut sentinels = Sentinels::start().await;
    let client = connect(&sentinels).await;
    let kept = client.lock("kept").lock().await.expect("free");
    let replicated = || sentinels.control(1).count("kept") == 1;
    eventually("it is replicated", ms(5_000), replicated).await;
    sentinels.signal_sentinel(2, "-STOP");
    sentinels.watch(&[0, 1], 1);
    let switched = || client.stats().failovers_total == 1;
    eventually("it is followed", ms(15_000), switched).await;
    let guard = client.lock("stock").lock().await.expect("free");
    assert_eq!(sentinels.control(1).count("stock"), 1);
    guard.unlock().await.expect("held");
    assert_eq!(kept.state(), HoldState::Held);
    kept.unlock().await.expect("held");
    sentinels.signal_sentinel(2, "-CONT");
    nothing_is_left(&sentinels, 1, vec![client]).await;
}
