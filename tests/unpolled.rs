//! A call whose future is kept and not polled holds up nobody else for long.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use redisson_lock::{Error, LockClient, LockGuard};
use test_support::{Proxy, TestServer, cases, eventually, has_listener, ms, tokio, within};

const COMMAND: Duration = Duration::from_millis(400);

type Locking = Pin<Box<dyn Future<Output = Result<LockGuard, Error>>>>;

fn poll_once(call: &mut Locking) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
}

/// Polls until the fact is there, and not any more.
async fn poll_until(call: &mut Locking, mut fact: impl FnMut() -> bool) {
    let limit = Instant::now() + ms(5_000);
    while !fact() {
        assert!(Instant::now() < limit, "the stage is reached");
        poll_once(call);
        tokio::time::sleep(ms(1)).await;
    }
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    AttemptInFlight,
    BeforeItsSubscription,
    Waiting,
}

async fn the_next_is_served_behind_a_head_at(stage: Stage) {
    let server = TestServer::new();
    let theirs = server.client().await;
    let proxy = Proxy::start(server.port).await;
    let builder = LockClient::builder().command_timeout(COMMAND);
    let ours = builder.connect(&proxy.url()).await.expect("it answers");
    let foreign = theirs.lock("a").lock().await.expect("free");
    let lock = ours.lock("a").owned_by(&ours.owner());
    let mut head: Locking = Box::pin(async move { lock.lock().await });
    match stage {
        Stage::AttemptInFlight => poll_once(&mut head),
        Stage::BeforeItsSubscription => {
            poll_until(&mut head, || ours.stats().subscriptions == 1).await;
        }
        Stage::Waiting => {
            let mut control = server.control();
            poll_once(&mut head);
            // It goes on without being polled: the attempt after the subscription is the last.
            let subscribed = || has_listener(&mut control, "a");
            eventually("it subscribes", ms(2_000), subscribed).await;
            let asked = || server.control().calls("evalsha") == 3;
            eventually("it asks again", ms(2_000), asked).await;
            for _ in 0..50 {
                poll_once(&mut head);
                tokio::time::sleep(ms(1)).await;
            }
        }
    }
    let lock = ours.lock("a").owned_by(&ours.owner());
    let next = tokio::spawn(async move { lock.lock().await?.unlock().await });
    eventually("it queues", ms(2_000), || ours.stats().waiting == 2).await;
    foreign.unlock().await.expect("held");
    let served = within(COMMAND * 3, next).await;
    let served = served.unwrap_or_else(|| panic!("{stage:?}: the next is served"));
    served.expect("no panic").expect("it had the lock");
    // It has its turn when it asks.
    let guard = within(ms(5_000), head).await;
    let guard = guard.expect("in time").expect("free");
    guard.unlock().await.expect("held");
    ours.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([theirs]).await;
}

cases! {
    the_next_is_served_behind_a_head_at;
    fn a_head_with_its_attempt_in_flight_is_passed_over(Stage::AttemptInFlight);
    fn a_head_that_has_not_subscribed_is_passed_over(Stage::BeforeItsSubscription);
    fn a_head_that_waits_is_passed_over(Stage::Waiting);
}

/// Its job is sent by its client, and the next caller is in another one.
#[tokio::test]
async fn an_unlock_without_a_reply_that_is_not_polled_is_sent_again() {
    let server = TestServer::new();
    let theirs = server.client().await;
    let proxy = Proxy::start(server.port).await;
    let builder = LockClient::builder().command_timeout(COMMAND);
    let ours = builder.connect(&proxy.url()).await.expect("it answers");
    let guard = ours.lock("a").lock().await.expect("free");
    proxy.hold_commands(|command| command[0].eq_ignore_ascii_case("evalsha"));
    let mut unlocking = Box::pin(guard.unlock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(unlocking.as_mut().poll(&mut context).is_pending());
    eventually("it is sent", ms(2_000), || proxy.stuck() == 1).await;
    proxy.hold_commands(|_| false);
    proxy.cut_all();
    let next = within(COMMAND * 2, theirs.lock("a").lock()).await;
    next.expect("in time")
        .expect("free")
        .unlock()
        .await
        .expect("held");
    drop(unlocking);
    ours.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([theirs]).await;
}

/// `a` and `{a}` are announced on one channel.
#[tokio::test]
async fn the_next_is_served_behind_a_head_beside_another_lock_of_the_same_channel() {
    // Where nothing was heard on a channel that is confirmed, one attempt is enough.
    for (beside, makes) in [("b", 2), ("{a}", 1)] {
        let server = TestServer::new();
        let theirs = server.client().await;
        let builder = LockClient::builder().command_timeout(COMMAND);
        let ours = builder.connect(&server.url()).await.expect("it responds");
        let held = theirs.lock("a").lock().await.expect("free");
        let held_beside = theirs.lock(beside).lock().await.expect("free");
        let call = |name: &str| ours.lock(name).owned_by(&ours.owner());
        let lock = call("a");
        let mut head: Locking = Box::pin(async move { lock.lock().await });
        let mut control = server.control();
        poll_until(&mut head, || has_listener(&mut control, "a")).await;
        let end = Instant::now() + ms(100);
        poll_until(&mut head, || Instant::now() > end).await;
        let calls = control.calls("evalsha");
        let (lock, other) = (call("a"), call(beside));
        let next = tokio::spawn(async move { lock.lock().await?.unlock().await });
        let other = tokio::spawn(async move { other.lock().await?.unlock().await });
        eventually("they queue", ms(2_000), || ours.stats().waiting == 3).await;
        let mut attempts = || control.calls("evalsha") - calls;
        eventually("it waits", ms(2_000), || attempts() == makes).await;
        held.unlock().await.expect("held");
        let served = within(ms(5_000), next).await;
        let served = served.unwrap_or_else(|| panic!("not served beside {beside}"));
        served.expect("no panic").expect("it had the lock");
        held_beside.unlock().await.expect("held");
        other.await.expect("no panic").expect("it had the lock");
        drop(head);
        ours.close(Duration::ZERO).await;
        server.finish([theirs]).await;
    }
}

/// However late it is polled, and if another call has subscribed again meanwhile.
#[tokio::test]
async fn a_call_is_told_why_its_channel_was_refused() {
    let server = TestServer::new();
    let mut control = server.control();
    control.run(&["ACL", "SETUSER", "user", "on", ">word", "~*", "&*", "+@all"]);
    let proxy = Proxy::start(server.port).await;
    let url = format!("redis://user:word@127.0.0.1:{}", proxy.port);
    let builder = LockClient::builder().command_timeout(ms(800));
    let ours = builder.connect(&url).await.expect("it answers");
    let theirs = server.client().await;
    let held = theirs.lock("a").lock().await.expect("free");
    control.run(&["ACL", "SETUSER", "user", "resetchannels"]);
    let call = || ours.lock("a").owned_by(&ours.owner());
    let (lock, other) = (call(), call());
    let mut refused: Locking = Box::pin(async move { lock.lock().await });
    poll_once(&mut refused);
    // It is over, and its future has not seen that.
    eventually("it has left", ms(2_000), || ours.stats().waiting == 0).await;
    proxy.hold_commands(|words| words[0].eq_ignore_ascii_case("subscribe"));
    let other = tokio::spawn(async move { other.lock().await.map(drop) });
    eventually("another one subscribes", ms(2_000), || proxy.stuck() == 1).await;
    let error = refused.await.expect_err("it hears nothing");
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    proxy.hold_commands(|_| false);
    proxy.let_commands_go();
    let error = other.await.expect("no panic").expect_err("nor does this");
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    held.unlock().await.expect("held");
    ours.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([theirs]).await;
}
