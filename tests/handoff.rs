//! Hand-off inside a client: one script call, one holder whatever is lost or dropped, and a turn for
//! everybody else.

use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient, LossReason};
use test_support::{
    Fate, Monitor, PASS, ProxiedPair, RELEASE, TestServer, assert_matches, eventually, is_script,
    ms, stalls, tokio,
};
use tokio::task::JoinHandle;

/// A task that takes the lock, keeps it until it is told, and unlocks.
struct Waiter {
    task: JoinHandle<Result<(), Error>>,
    leave: tokio::sync::oneshot::Sender<()>,
    inside: tokio::sync::oneshot::Receiver<()>,
}

impl Waiter {
    /// Waits until it stands in the queue.
    async fn of(client: &LockClient) -> Self {
        Self::at(client, client.lock("a")).await
    }

    async fn at(client: &LockClient, lock: Lock) -> Self {
        let (tell_inside, inside) = tokio::sync::oneshot::channel();
        let (leave, left) = tokio::sync::oneshot::channel();
        let before = client.stats().waiting;
        let task = tokio::spawn(async move {
            let guard = lock.lock().await?;
            let _ = tell_inside.send(());
            let _ = left.await;
            guard.unlock().await
        });
        eventually("it waits", ms(5000), || client.stats().waiting > before).await;
        Self {
            task,
            leave,
            inside,
        }
    }

    async fn gets_it(self) {
        let inside = tokio::time::timeout(ms(10_000), self.inside).await;
        inside.expect("its turn comes").expect("it has the lock");
        let _ = self.leave.send(());
        self.task.await.expect("no panic").expect("held");
    }
}

/// A pass that is executed, and whose reply is held back: the unlock, and who gets the lock.
async fn passing() -> (ProxiedPair, JoinHandle<Result<(), Error>>, Waiter) {
    let mut pair = ProxiedPair::new().await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let before = pair.control.hash("a");
    let waiter = Waiter::of(&pair.ours).await;
    pair.proxy.hold_replies(true);
    let unlock = tokio::spawn(guard.unlock());
    let control = &mut pair.control;
    eventually("the field has moved", ms(2000), || {
        control.hash("a") != before
    })
    .await;
    (pair, unlock, waiter)
}

fn is_pass(words: &[String]) -> bool {
    is_script(words, PASS)
}

#[tokio::test]
async fn a_pass_is_one_script_call_and_no_message() {
    let server = TestServer::new();
    let client = server.client().await;
    // The server knows the scripts from here on.
    for _ in 0..2 {
        let guard = client.lock("a").lock().await.expect("free");
        let waiter = Waiter::of(&client).await;
        guard.unlock().await.expect("held");
        waiter.gets_it().await;
    }
    let guard = client.lock("a").lock().await.expect("free");
    let waiter = Waiter::of(&client).await;
    let (monitor, mut control) = (Monitor::start(server.port), server.control());
    guard.unlock().await.expect("held");
    let Waiter {
        task,
        leave,
        inside,
    } = waiter;
    inside.await.expect("it has the lock");
    let said = monitor.take(&mut control);
    let own = |line: &&String| !line.contains(" lua]") && !line.contains("control");
    let sent: Vec<_> = said.iter().filter(own).collect();
    assert_eq!(sent.len(), 1, "{sent:#?}");
    assert!(sent[0].to_lowercase().contains("evalsha"), "{sent:#?}");
    let published = said.iter().any(|line| line.contains("\"publish\""));
    assert!(!published, "{said:#?}");
    let _ = leave.send(());
    task.await.expect("no panic").expect("held");
    assert_eq!(client.stats().passes_total, 3);
    server.finish([client]).await;
}

#[tokio::test]
async fn whatever_is_lost_of_a_pass_the_next_has_the_lock_once() {
    for fate in [Fate::LoseReply, Fate::LoseCommand, Fate::Late, Fate::Twice] {
        let mut pair = ProxiedPair::new().await;
        let guard = pair.ours.lock("a").lock().await.expect("free");
        let mut waiter = Waiter::of(&pair.ours).await;
        pair.proxy.rule(fate, 1, is_pass);
        let unlocked = guard.unlock().await;
        assert!(unlocked.is_ok(), "{fate:?}: {unlocked:?}");
        let inside = tokio::time::timeout(ms(10_000), &mut waiter.inside).await;
        inside.expect("its turn comes").expect("it has the lock");
        assert_eq!(
            pair.proxy.hit.load(std::sync::atomic::Ordering::SeqCst),
            1,
            "{fate:?}"
        );
        pair.proxy.deliver().await;
        assert_eq!(pair.control.number(&["HLEN", "a"]), 1, "{fate:?}");
        assert_eq!(pair.ours.stats().held, 1, "{fate:?}");
        let _ = waiter.leave.send(());
        waiter.task.await.expect("no panic").expect("held");
        pair.finish().await;
    }
}

#[tokio::test]
async fn a_pass_without_any_answer_leaves_nothing_and_nobody_behind() {
    let pair = ProxiedPair::with(|builder| builder.command_timeout(ms(400))).await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let waiter = Waiter::of(&pair.ours).await;
    pair.proxy.rule(Fate::LoseReply, 2, is_pass);
    let unlocked = guard.unlock().await;
    assert_matches!(unlocked, Err(Error::NoAnswer { .. }));
    waiter.gets_it().await;
    assert_eq!(pair.ours.stats().lost_total, 0);
    pair.finish().await;
}

#[tokio::test]
async fn a_receiver_that_is_dropped_on_the_way_keeps_nothing() {
    let (mut pair, unlock, waiter) = passing().await;
    waiter.task.abort();
    assert!(waiter.task.await.is_err());
    pair.proxy.hold_replies(false);
    unlock.await.expect("no panic").expect("held");
    eventually("it is free", ms(5000), || pair.control.hash("a").is_empty()).await;
    assert_eq!(pair.ours.stats().lost_total, 0);
    pair.finish().await;
}

#[tokio::test]
async fn a_giver_that_is_dropped_on_the_way_holds_up_nobody() {
    let (pair, unlock, waiter) = passing().await;
    unlock.abort();
    assert!(unlock.await.is_err());
    pair.proxy.hold_replies(false);
    waiter.gets_it().await;
    assert_eq!(pair.ours.stats().lost_total, 0);
    pair.finish().await;
}

#[tokio::test]
async fn a_client_that_closes_in_the_middle_leaves_no_holder() {
    let (mut pair, unlock, waiter) = passing().await;
    let closing = tokio::spawn({
        let client = pair.ours.clone();
        async move { client.close(ms(2000)).await }
    });
    let waited = waiter.task.await.expect("no panic");
    assert_matches!(waited, Err(Error::Closed));
    pair.proxy.hold_replies(false);
    unlock.await.expect("no panic").expect("held");
    assert_eq!(closing.await.expect("no panic").unconfirmed, 0);
    assert_eq!(pair.control.hash("a"), "");
    pair.finish().await;
}

#[tokio::test]
async fn a_pass_that_is_refused_becomes_a_release_in_the_same_call() {
    let pair = ProxiedPair::new().await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let waiter = Waiter::of(&pair.ours).await;
    let refused = "-OOM command not allowed when used memory > 'maxmemory'.";
    pair.proxy.rule(Fate::Instead(refused), 1, is_pass);
    guard.unlock().await.expect("held");
    waiter.gets_it().await;
    assert_eq!((pair.calls(PASS), pair.ours.stats().passes_total), (1, 0));
    pair.finish().await;
}

#[tokio::test]
async fn a_pass_that_is_refused_late_leaves_its_unlock_no_more_time() {
    let pair = ProxiedPair::with(|builder| builder.command_timeout(ms(2_000))).await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let waiter = Waiter::of(&pair.ours).await;
    // Less than the half of it: the connection is not doubted yet.
    pair.proxy.hold_commands(is_pass);
    let refused = "-OOM command not allowed when used memory > 'maxmemory'.";
    pair.proxy.rule(Fate::Instead(refused), 1, is_pass);
    pair.proxy
        .rule(Fate::Silence, 2, |words| is_script(words, RELEASE));
    let start = Instant::now();
    let unlock = tokio::spawn(guard.unlock());
    eventually("it is held back", ms(500), || pair.proxy.stuck() == 1).await;
    // The time that it has lost then is what this is about.
    tokio::time::sleep(ms(900).saturating_sub(start.elapsed())).await;
    pair.proxy.let_commands_go();
    let unlocked = unlock.await.expect("no panic");
    let took = start.elapsed();
    assert_matches!(unlocked, Err(Error::NoAnswer { .. }));
    assert!(took < ms(2_400) + stalls(start), "{took:?}");
    waiter.gets_it().await;
    pair.finish().await;
}

/// The section of the outer hold may be running, although its hold is over.
#[tokio::test]
async fn a_section_that_runs_on_behind_its_limit_keeps_the_lock() {
    for handoff in [false, true] {
        let server = TestServer::new();
        let client = server.client_with(|builder| builder.handoff(handoff)).await;
        let (owner, mut control) = (client.owner(), server.control());
        let lock = client.lock("a").owned_by(&owner);
        let outer = lock.max_hold(ms(300)).lock().await.expect("free");
        let inner = lock.lock().await.expect("nested");
        let field = control.hash("a");
        let mut waiter = Waiter::of(&client).await;
        assert_eq!(outer.lost().await, LossReason::MaxHold);
        eventually("one of two is left", ms(2_000), || control.count("a") == 1).await;
        inner.unlock().await.expect("held");
        let inside = tokio::time::timeout(ms(200), &mut waiter.inside).await;
        assert!(inside.is_err(), "two concurrent sections");
        assert_eq!(control.hash("a"), field.replace(" 2", " 1"));
        drop(outer);
        waiter.gets_it().await;
        server.finish([client]).await;
    }
}

/// A lease of its own that is over, and the end of `run`.
#[tokio::test]
async fn whatever_ends_a_hold_hands_the_lock_over() {
    let server = TestServer::new();
    let client = server.client().await;
    let owner = client.owner();
    let guard = client.lock("a").owned_by(&owner).lease(ms(300));
    let guard = guard.lock().await.expect("free");
    // Otherwise a slow machine lets the server end the lease first, and nothing is left to hand over.
    assert_eq!(server.control().run(&["PEXPIRE", "a", "60000"]), "1");
    Waiter::of(&client).await.gets_it().await;
    assert_eq!(client.stats().passes_total, 1, "at the end of its lease");
    assert_eq!(guard.lost().await, LossReason::LeaseOver);
    drop(guard);
    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn({
        let lock = client.lock("a");
        async move {
            lock.run(|_| async {
                left.await.expect("told");
                Ok::<_, Error>(())
            })
            .await
        }
    });
    eventually("it runs", ms(2_000), || client.stats().held == 1).await;
    let waiter = Waiter::of(&client).await;
    leave.send(()).expect("it runs");
    running.await.expect("no panic").expect("held to its end");
    waiter.gets_it().await;
    assert_eq!(client.stats().passes_total, 2, "at the end of run");
    server.finish([client]).await;
}

#[tokio::test]
async fn without_the_right_locks_are_freed_for_everybody() {
    let mut pair = ProxiedPair::as_user("v:p@").await;
    let before = pair.control.calls("hdel");
    for _ in 0..3 {
        let guard = pair.ours.lock("a").lock().await.expect("free");
        let waiter = Waiter::of(&pair.ours).await;
        guard.unlock().await.expect("held");
        waiter.gets_it().await;
    }
    assert_eq!(pair.ours.stats().passes_total, 0);
    assert_eq!(pair.calls(PASS), 1, "it is not tried again");
    assert_eq!(pair.control.calls("hdel"), before);
    pair.finish().await;
}

/// What the release needs as well says nothing about passes.
#[tokio::test]
async fn another_right_that_is_missing_for_a_while_does_not_end_the_handoff() {
    let mut pair = ProxiedPair::as_user("v:p@").await;
    pair.control.run(&["ACL", "SETUSER", "v", "+hdel"]);
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let waiter = Waiter::of(&pair.ours).await;
    pair.control.run(&["ACL", "SETUSER", "v", "-evalsha"]);
    let denied = guard.unlock().await;
    assert_matches!(denied, Err(Error::PermissionDenied { .. }));
    pair.control.run(&["ACL", "SETUSER", "v", "+evalsha"]);
    pair.control.run(&["DEL", "a"]);
    waiter.gets_it().await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let waiter = Waiter::of(&pair.ours).await;
    guard.unlock().await.expect("held");
    waiter.gets_it().await;
    assert_eq!(pair.ours.stats().passes_total, 1);
    pair.finish().await;
}

/// A release whose outcome is not known, and which then finds no connection: it may have freed the
/// lock, so nothing of it is handed over.
#[tokio::test]
async fn a_release_that_may_have_freed_the_lock_hands_nothing_over() {
    let pair = ProxiedPair::with(|builder| builder.command_timeout(ms(400))).await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    pair.proxy
        .rule(Fate::LoseReply, 1, |words| is_script(words, RELEASE));
    pair.proxy.refuse(true);
    let unlocked = guard.unlock().await;
    assert_matches!(unlocked, Err(Error::NoAnswer { .. }));
    let patient = pair.ours.lock("a").retry_for(ms(20_000));
    let waiter = Waiter::at(&pair.ours, patient).await;
    // The job has given up on a connection at least once when two calls have that began behind it.
    for _ in 0..2 {
        let away = pair.ours.lock("b").try_lock().await;
        assert_matches!(away, Err(Error::NoAnswer { .. }));
    }
    pair.proxy.refuse(false);
    waiter.gets_it().await;
    assert_eq!(pair.calls(PASS), 0);
    pair.finish().await;
}

/// Its call was not polled between the hand-off and its deadline.
#[tokio::test]
async fn a_lock_that_was_handed_over_before_the_deadline_is_taken() {
    let server = TestServer::new();
    let client = server.client().await;
    let (waits, passes) = (client.owner(), client.owner());
    let lock = client.lock("a").owned_by(&passes);
    let guard = lock.lock().await.expect("free");
    let lock = client.lock("a").owned_by(&waits);
    let mut waiting = std::pin::pin!(lock.try_lock_for(ms(1_500)));
    let begin = Instant::now();
    let early = tokio::time::timeout(ms(500), &mut waiting).await;
    assert!(early.is_err(), "the other owner has it");
    guard.unlock().await.expect("held");
    assert_eq!(client.stats().passes_total, 1);
    // Nobody polls it until its deadline is over.
    tokio::time::sleep(ms(1_600).saturating_sub(begin.elapsed())).await;
    let guard = waiting.await.expect("asked").expect("it is there");
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn without_a_fence_locks_are_freed_for_everybody() {
    let pair = ProxiedPair::with(|builder| builder.connection_fence(false)).await;
    let guard = pair.ours.lock("a").lock().await.expect("free");
    let waiter = Waiter::of(&pair.ours).await;
    guard.unlock().await.expect("held");
    waiter.gets_it().await;
    assert_eq!(pair.calls(PASS), 0);
    pair.finish().await;
}

/// The promise of `docs/guarantees.md`: a row of passes ends, and then others are heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_gets_its_turn_beside_a_row_of_passes() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let stop = tokio_util::sync::CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (lock, stop) = (ours.lock("a"), stop.clone());
        tasks.spawn(async move {
            while !stop.is_cancelled() {
                lock.lock()
                    .await
                    .expect("its turn")
                    .unlock()
                    .await
                    .expect("held");
            }
        });
    }
    eventually("they pass it on", ms(5000), || {
        ours.stats().passes_total > 100
    })
    .await;
    for _ in 0..20 {
        let start = Instant::now();
        let guard = theirs.lock("a").lock().await.expect("its turn");
        let waited = start.elapsed();
        guard.unlock().await.expect("held");
        assert!(waited < ms(1000) + stalls(start), "{waited:?}");
    }
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    server.finish([ours, theirs]).await;
}

/// A foreign waiter sleeps until the end of the lease that it was told. A pass to a shorter one that
/// runs out in silence left it asleep beside a free lock.
#[tokio::test]
async fn a_foreign_waiter_hears_of_a_lease_that_became_shorter() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let mut control = server.control();
    let first = ours.lock("a").owned_by(&ours.owner()).lock().await;
    let first = first.expect("free");
    let attempts = control.calls("evalsha") + 2;
    let waiting = theirs.lock("a");
    let foreign = tokio::spawn(async move { waiting.lock().await });
    eventually("it knows the lease, and is subscribed", ms(5_000), || {
        control.calls("evalsha") >= attempts
    })
    .await;
    let next = ours.lock("a").owned_by(&ours.owner()).max_hold(ms(600));
    let next = tokio::spawn(async move { next.lock().await });
    eventually("one more waits", ms(5_000), || ours.stats().waiting == 1).await;
    first.unlock().await.expect("held");
    // Kept beyond its limit: nothing is unlocked under a running section.
    let kept = next.await.expect("no panic").expect("handed over");
    assert_eq!(ours.stats().passes_total, 1);
    let foreign = tokio::time::timeout(Duration::from_secs(8), foreign).await;
    let guard = foreign.expect("before the first lease is over");
    let guard = guard.expect("no panic").expect("free");
    assert_eq!(kept.lost().await, LossReason::MaxHold);
    drop(kept);
    guard.unlock().await.expect("held");
    server.finish([ours, theirs]).await;
}
