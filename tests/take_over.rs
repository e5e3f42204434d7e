//! Holds that another client takes over, and locks that are found by a pattern of their names, for every kind of lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redisson_lock::{Error, HoldState, Lock, LockKind, LossReason};
use test_support::kinds::{KINDS, count, holder};
use test_support::{
    Fate, ProxiedPair, TestServer, assert_matches, eventually, may_take, ms, tokio, within,
};

/// Of these one owner alone has the lock.
fn kinds() -> impl Iterator<Item = LockKind> {
    KINDS.into_iter().filter(|kind| *kind != LockKind::Read)
}

#[tokio::test]
async fn a_hold_moves_to_another_client_which_renews_and_frees_it() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let mut control = server.control();
    for kind in kinds() {
        let (old, new) = (ours.lock_of(kind, "a"), theirs.lock_of(kind, "a"));
        let was = old.lock().await.expect("free");
        let token = old.inspect().await.expect("asked").expect("held").token;
        let seen = new.inspect().await.expect("asked").expect("held");
        let held = new.take_over(&seen).await.expect("asked");
        let held = held.expect("the holder that was seen has it");
        let now = new.inspect().await.expect("asked").expect("held");
        assert_ne!(now.owner, seen.owner, "{kind}");
        assert_eq!(
            (now.hold_count, control.pttl("a") > 20_000),
            (1, true),
            "{kind}"
        );
        assert!(
            now.token >= token && now.token.is_none() == token.is_none(),
            "{kind}"
        );
        assert!(
            token.is_none() || now.token > token,
            "{kind}: a larger token"
        );
        within(ms(3_000), was.lost()).await;
        assert_matches!(was.unlock().await, Err(Error::Lost { .. }), "{kind}");
        // A copy of it that comes late moves nothing: that owner does not have it any more.
        let late = old.take_over(&seen).await;
        assert_matches!(
            late,
            Err(Error::Misuse { .. }),
            "{kind}: it is of this client"
        );
        let gone = new.owned_by(&theirs.owner()).take_over(&seen).await;
        assert_matches!(gone, Ok(None), "{kind}");
        assert_eq!(held.state(), HoldState::Held, "{kind}");
        assert!(
            old.try_lock().await.expect("asked").is_none(),
            "{kind}: it is held"
        );
        held.unlock().await.expect("held");
        assert_eq!(count(&mut control, "a"), 0, "{kind}");
        let again = old.try_lock().await.expect("asked").expect("free");
        again.unlock().await.expect("held");
        // A free lock is not taken.
        assert_matches!(new.take_over(&seen).await, Ok(None), "{kind}");
        assert_eq!(count(&mut control, "a"), 0, "{kind}");
    }
    server.finish([ours, theirs]).await;
}

/// Callers that wait for it, in both clients, get it after the new holder, which overtakes them.
#[tokio::test]
async fn waiting_callers_are_overtaken_and_served_afterwards() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    for kind in kinds() {
        let was = ours.lock_of(kind, "a").lock().await.expect("free");
        let wait = |lock: Lock| tokio::spawn(async move { lock.lock().await?.unlock().await });
        let waiting = [&ours, &theirs].map(|client| wait(client.lock_of(kind, "a")));
        let both_wait = || ours.stats().waiting == 1 && theirs.stats().contended_total > 0;
        eventually("they wait", ms(5_000), both_wait).await;
        let new = theirs.lock_of(kind, "a").owned_by(&theirs.owner());
        let seen = new.inspect().await.expect("asked").expect("held");
        let held = new.take_over(&seen).await.expect("asked").expect("held");
        tokio::time::sleep(ms(50)).await;
        assert!(waiting.iter().all(|call| !call.is_finished()), "{kind}");
        held.unlock().await.expect("held");
        drop(was);
        for call in waiting {
            let served = within(ms(20_000), call).await.expect("in time");
            served.expect("no panic").expect("got it");
        }
    }
    server.finish([ours, theirs]).await;
}

/// The script itself, not only its hash: the server does not know it yet.
fn takes_over(from: &str) -> impl Fn(&[String]) -> bool + Send + 'static {
    let from = from.to_owned();
    move |words| words[0] == "EVAL" && words.last() == Some(&from)
}

#[tokio::test]
async fn whatever_is_lost_it_moves_once() {
    may_take(Duration::from_secs(60));
    use Fate::{Again, Late, LoseCommand, LoseReply, Twice};
    let cases = kinds()
        .flat_map(|kind| [LoseReply, LoseCommand, Late, Twice, Again].map(|fate| (kind, fate)));
    for (kind, fate) in cases {
        let mut two = ProxiedPair::new().await;
        let was = two.theirs.lock_of(kind, "a").lock().await.expect("free");
        let new = two.ours.lock_of(kind, "a");
        let seen = new.inspect().await.expect("asked").expect("held");
        let what = format!("{kind}, {fate:?}");
        two.proxy.rule(fate, 1, takes_over(&seen.owner));
        let held = new.take_over(&seen).await.expect("asked").expect("held");
        assert_eq!(two.proxy.hit.load(Ordering::SeqCst), 1, "{what}");
        let field = holder(&mut two.control, "a").expect("held");
        assert!(
            field != seen.owner && !field.contains(' '),
            "{what}: {field}"
        );
        assert_eq!(count(&mut two.control, "a"), 1, "{what}");
        within(ms(3_000), was.lost()).await;
        drop(was);
        held.unlock().await.expect("held");
        two.proxy.deliver().await;
        eventually(&what, ms(5_000), || count(&mut two.control, "a") == 0).await;
        two.finish().await;
    }
}

/// What is left of a call that was dropped on its way is a free lock.
#[tokio::test]
async fn dropped_with_its_reply_on_the_way_the_lock_is_free() {
    for kind in kinds() {
        let mut two = ProxiedPair::new().await;
        let new = two.ours.lock_of(kind, "a");
        // The first time the server learns the script.
        let first = two.theirs.lock_of(kind, "a").lock().await.expect("free");
        let seen = new.inspect().await.expect("asked").expect("held");
        let taken = new.take_over(&seen).await.expect("asked").expect("held");
        taken.unlock().await.expect("held");
        drop(first);
        let was = two.theirs.lock_of(kind, "a").owned_by(&two.theirs.owner());
        let was = was.lock().await.expect("free");
        let seen = new.inspect().await.expect("asked").expect("held");
        two.proxy.hold_replies(true);
        let taking = tokio::time::timeout(ms(60), new.take_over(&seen));
        assert!(taking.await.is_err(), "{kind}");
        two.proxy.hold_replies(false);
        eventually("free", ms(5_000), || count(&mut two.control, "a") == 0).await;
        let lost = within(ms(3_000), was.lost()).await.expect("in time");
        assert!(
            matches!(lost, LossReason::Gone | LossReason::Taken),
            "{kind}: {lost}"
        );
        drop(was);
        two.finish().await;
    }
}

#[tokio::test]
async fn what_is_not_taken_over() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    // Others may read too.
    let reads = theirs.rw_lock("a").read();
    let held = ours.rw_lock("a").read().lock().await.expect("free");
    let seen = reads.inspect().await.expect("asked").expect("held");
    assert_matches!(reads.take_over(&seen).await, Err(Error::Misuse { .. }));
    held.unlock().await.expect("held");
    // Its owner reads too, and would go on beside another writer.
    let owner = ours.owner();
    let [write, read] = [ours.rw_lock("a").write(), ours.rw_lock("a").read()];
    let writes = write.owned_by(&owner).lock().await.expect("free");
    let reads = read.owned_by(&owner).lock().await.expect("its own");
    let new = theirs.rw_lock("a").write();
    let seen = new.inspect().await.expect("asked").expect("held");
    assert_matches!(new.take_over(&seen).await, Ok(None));
    assert_eq!(
        (writes.state(), reads.state()),
        (HoldState::Held, HoldState::Held)
    );
    writes.unlock().await.expect("held");
    reads.unlock().await.expect("held");
    // The owner that has it nests instead.
    let lock = theirs.lock("b").owned_by(&theirs.owner());
    let held = lock.lock().await.expect("free");
    let mut seen = lock.inspect().await.expect("asked").expect("held");
    seen.owner = "another:1".to_owned();
    assert_matches!(lock.take_over(&seen).await, Err(Error::AlreadyHeld { .. }));
    held.unlock().await.expect("held");
    server
        .control()
        .run(&["HSET", "c", "another:1", "no number"]);
    assert_matches!(
        theirs.lock("c").take_over(&seen).await,
        Err(Error::NotALock { .. })
    );
    server.control().run(&["DEL", "c"]);
    server.finish([ours, theirs]).await;
}

/// Of a fair lock it leaves the queue in which it waited.
#[tokio::test]
async fn a_place_in_the_queue_is_given_up_with_a_hold_that_is_taken_over() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let was = ours.fair_lock("a").lock().await.expect("free");
    let lock = theirs.fair_lock("a").owned_by(&theirs.owner());
    let waits = lock.clone();
    let waits = tokio::spawn(async move { waits.lock().await });
    eventually("it has a place", ms(5_000), || {
        server.control().run(&["LLEN", "redisson_lock_queue:{a}"]) == "1"
    })
    .await;
    let seen = lock.inspect().await.expect("asked").expect("held");
    let held = lock.take_over(&seen).await.expect("asked").expect("held");
    assert!(lock.queue().await.expect("asked").is_empty());
    let nested = within(ms(5_000), waits).await.expect("in time");
    nested
        .expect("no panic")
        .expect("nested")
        .unlock()
        .await
        .expect("held");
    held.unlock().await.expect("held");
    drop(was);
    server.finish([ours, theirs]).await;
}

#[tokio::test]
async fn held_locks_are_found_by_a_pattern_of_their_names() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.key_prefix("app*[1]:"))
        .await;
    let mut held = Vec::new();
    for kind in KINDS {
        let name = format!("found:{kind}");
        held.push(client.lock_of(kind, &*name).lock().await.expect("free"));
    }
    let other = client
        .rw_lock("found:read")
        .read()
        .owned_by(&client.owner());
    let other = other.lock().await.expect("readers");
    let mut control = server.control();
    // Of other programs, and of locks without this prefix.
    control.run(&["HSET", "app*[1]:found:visits", "home", "3"]);
    control.run(&["HSET", "app*[1]:found:two", "a:1", "3", "b:1", "1"]);
    control.run(&["SET", "app*[1]:found:text", "a:1"]);
    control.run(&["HSET", "appX1:found:elsewhere", "a:1", "3"]);
    let found = client.find_held("found:*").await.expect("asked");
    let names: Vec<&str> = found.iter().map(|lock| &*lock.name).collect();
    assert_eq!(
        names,
        ["fair", "fenced", "plain", "read", "spin", "write"].map(|kind| format!("found:{kind}"))
    );
    let counts: Vec<usize> = found.iter().map(|lock| lock.holders.len()).collect();
    assert_eq!(counts, [1, 1, 1, 2, 1, 1]);
    let none = client.find_held("found").await.expect("asked");
    assert!(none.is_empty());
    other.unlock().await.expect("held");
    for guard in held {
        guard.unlock().await.expect("held");
    }
    assert!(client.find_held("*").await.expect("asked").is_empty());
    for key in [
        "app*[1]:found:visits",
        "app*[1]:found:two",
        "app*[1]:found:text",
        "appX1:found:elsewhere",
    ] {
        control.run(&["DEL", key]);
    }
    server.finish([client]).await;
}
