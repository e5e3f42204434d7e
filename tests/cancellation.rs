//! Every public future dropped at every point: the caller holds nothing, nothing stays behind, the
//! next gets it.

use std::pin::Pin;
use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient};
use test_support::{
    ACQUIRE, Control, ProxiedPair, RELEASE, Steps, TestServer, assert_matches, drop_at_each_poll,
    eventually, is_script, ms, stalls, tokio,
};

/// After a drop: the lock is free, our client has nothing left of it, and the next waiter gets it.
async fn free_for_the_next(pair: &ProxiedPair, what: &str) {
    let start = Instant::now();
    let next = pair
        .theirs
        .lock("a")
        .try_lock_for(ms(2000))
        .await
        .expect("asked");
    let next = next.unwrap_or_else(|| panic!("{what}: the next waiter does not get the lock"));
    assert!(
        start.elapsed() < ms(1000) + stalls(start),
        "{what}: {:?}",
        start.elapsed()
    );
    next.unlock().await.expect("held");
    let stats = || pair.ours.stats();
    eventually(what, ms(3000), || {
        stats().held + stats().waiting + stats().releasing + stats().renewals == 0
    })
    .await;
}

#[tokio::test]
async fn dropped_before_it_was_polled_nothing_is_sent() {
    let pair = ProxiedPair::new().await;
    let before = pair.proxy.script_calls().len();
    let lock = pair.ours.lock("a");
    drop(lock.lock());
    drop(lock.try_lock());
    drop(lock.try_lock_for(ms(10)));
    drop(lock.run(|_| async { Ok::<_, Error>(()) }));
    drop(lock.unlock());
    drop(lock.force_unlock());
    drop(lock.inspect());
    assert_eq!(pair.proxy.script_calls().len(), before);
    free_for_the_next(&pair, "never polled").await;
    pair.finish().await;
}

#[tokio::test]
async fn dropped_while_subscribing_confirmed_waiting_and_notified() {
    for stage in ["subscribing", "confirmed", "waiting", "notified"] {
        let mut pair = ProxiedPair::new().await;
        let held = pair.theirs.lock("a").lock().await.expect("free");
        let before = pair.calls(ACQUIRE);
        let mut steps = Steps::of({
            let lock = pair.ours.lock("a");
            async move { lock.lock().await.map(drop) }
        });
        let subscribed = |control: &mut Control| {
            control
                .run(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"])
                .ends_with(" 1")
        };
        match stage {
            "subscribing" => {
                // The attempt is answered; the subscription is sent, and its confirmation held
                // back.
                let (ours, proxy) = (&pair.ours, &pair.proxy);
                steps
                    .until("contended", || ours.stats().contended_total == 1)
                    .await;
                proxy.hold_replies(true);
                let control = &mut pair.control;
                eventually("sent", ms(2000), || subscribed(control)).await;
            }
            "confirmed" => {
                let control = &mut pair.control;
                steps.until("confirmed", || subscribed(control)).await;
            }
            _ => {
                let proxy = &pair.proxy;
                let attempts = || {
                    proxy
                        .script_calls()
                        .iter()
                        .filter(|words| is_script(words, ACQUIRE))
                        .count()
                        - before
                };
                steps.until("tried again", || attempts() == 2).await;
                let woken = steps.woken();
                steps.until("asleep", || !woken()).await;
            }
        }
        let mut held = Some(held);
        if stage == "notified" {
            held.take().expect("held").unlock().await.expect("held");
            eventually("notified", ms(2000), steps.woken()).await;
        }
        drop(steps);
        pair.proxy.hold_replies(false);
        assert_eq!(pair.ours.stats().held, 0);
        if let Some(held) = held {
            held.unlock().await.expect("held");
        }
        // A waiter of our own client takes the place immediately.
        let start = Instant::now();
        let next = pair.ours.lock("a").lock().await.expect("free");
        assert!(start.elapsed() < ms(500) + stalls(start), "{stage}");
        next.unlock().await.expect("held");
        free_for_the_next(&pair, stage).await;
        pair.finish().await;
    }
}

/// A future of this client, made again for each number of polls.
type Verb = Box<dyn Fn(&LockClient) -> Pin<Box<dyn Future<Output = ()> + Send>>>;

fn verb<F, Fut>(of: F) -> Verb
where
    F: Fn(Lock) -> Fut + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    // One owner for all rounds: what a round leaves behind is in the way of the next.
    let owner = std::sync::OnceLock::new();
    Box::new(move |client| {
        let owner = owner.get_or_init(|| client.owner());
        Box::pin(of(client.lock("a").owned_by(owner)))
    })
}

/// One of each kind; `tests/kind_rows.rs` has `lock` and `unlock`. The simulator drops all of them, in
/// `crates/sim/tests/sim/cancellation.rs`.
fn verbs() -> Vec<(&'static str, Verb)> {
    vec![
        (
            "nested",
            verb(|lock| async move {
                let outer = lock.lock().await;
                let inner = lock.lock().await;
                let third = lock.lease(Duration::from_secs(60)).lock().await;
                if let (Ok(outer), Ok(inner), Ok(third)) = (outer, inner, third) {
                    let _ = inner.unlock().await;
                    let _ = outer.unlock().await;
                    let _ = third.unlock().await;
                }
            }),
        ),
        (
            "try_lock_for",
            verb(|lock| async move { drop(lock.try_lock_for(ms(100)).await) }),
        ),
        (
            "run",
            verb(|lock| async move {
                drop(
                    lock.run(|_| async {
                        tokio::task::yield_now().await;
                        Ok::<_, Error>(())
                    })
                    .await,
                )
            }),
        ),
        (
            "nested beside an unlock and a dropped guard",
            verb(|lock| async move {
                let (outer, inner) = (lock.lock().await, lock.lock().await);
                if let (Ok(outer), Ok(inner)) = (outer, inner) {
                    let (nested, unlocked) = tokio::join!(lock.lock(), inner.unlock());
                    drop(nested);
                    let _ = tokio::join!(lock.try_lock(), outer.unlock());
                    drop(unlocked);
                }
            }),
        ),
    ]
}

#[tokio::test]
async fn verbs_dropped_after_each_number_of_polls_on_a_lock_that_is_free_and_one_that_is_held() {
    let pair = ProxiedPair::new().await;
    let theirs = pair.theirs.lock("a");
    for (name, verb) in verbs() {
        for holder in [None, Some(&theirs)] {
            let call = || verb(&pair.ours);
            let left = async |what: &str| free_for_the_next(&pair, what).await;
            let polls = drop_at_each_poll(name, holder, call, left).await;
            assert!(polls >= 1, "{name} has at least one stage");
        }
    }
    pair.finish().await;
}

#[tokio::test]
async fn an_unlock_dropped_at_any_point_begins_to_release_exactly_once() {
    let mut pair = ProxiedPair::new().await;
    let owner = pair.ours.owner();
    let lock = pair.ours.lock("a").owned_by(&owner);
    for polls in 0..6 {
        let outer = lock.lock().await.expect("free");
        let inner = lock.lock().await.expect("nested");
        let mut steps = Steps::of(inner.unlock());
        steps.times(polls).await;
        drop(steps);
        let control = &mut pair.control;
        eventually("one hold is left", ms(2000), || control.count("a") == 1).await;
        let stats = || pair.ours.stats();
        eventually("settled", ms(2000), || stats().releasing == 0).await;
        assert_eq!(pair.control.count("a"), 1, "after {polls} polls");
        outer.unlock().await.expect("held");
    }
    let sent = pair.calls(RELEASE);
    assert!(sent >= 12);
    free_for_the_next(&pair, "unlock").await;
    pair.finish().await;
}

#[tokio::test]
async fn connect_dropped_at_any_point_closes_what_it_opened() {
    let server = TestServer::new();
    let mut control = server.control();
    let url = server.url();
    let call = || {
        let url = url.clone();
        async move {
            let client = LockClient::connect(&url).await.expect("the server answers");
            client.close(Duration::ZERO).await;
        }
    };
    let closed = async |_: &str| {
        eventually("closed", ms(3000), || control.connections() == 0).await;
    };
    let polls = drop_at_each_poll("connecting", None, call, closed).await;
    assert!(polls > 3);
    server.finish([]).await;
}

#[tokio::test]
async fn close_dropped_at_any_point_leaves_the_client_closing() {
    let server = TestServer::new();
    for polls in 0..8 {
        let client = server.client().await;
        let lock = client.lock("a");
        let guard = lock.lock().await.expect("free");
        let closing = client.clone();
        let mut steps = Steps::of(async move { closing.close(ms(5000)).await });
        let done = steps.times(polls).await.is_some();
        drop(steps);
        if polls > 0 {
            assert_matches!(lock.lock().await, Err(Error::Closed));
        }
        if !done {
            guard
                .unlock()
                .await
                .expect("open guards can still be released");
        }
        client.close(Duration::ZERO).await;
        let mut control = server.control();
        eventually("closed", ms(3000), || control.connections() == 0).await;
    }
    server.finish([]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_made_and_dropped_leave_no_connection_and_no_task() {
    let server = TestServer::new();
    for _ in 0..20 {
        let mut guards = Vec::new();
        for nth in 0..10 {
            let client = server.client().await;
            // The last handle of half of them is a guard, which is dropped with its hold.
            let guard = client.lock(format!("a{nth}")).lock().await.expect("free");
            guards.push(guard);
        }
        drop(guards);
        let mut control = server.control();
        eventually("released", ms(1000), || {
            control.run(&["KEYS", "*"]).is_empty()
        })
        .await;
        eventually("closed", ms(1000), || control.connections() == 0).await;
    }
    server.finish([]).await;
}
