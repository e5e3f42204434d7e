//! Futures that are kept and not polled, and pollers beside a queue: each trace is the shortest
//! that once went wrong.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use sim::oracle::channel;
use sim::workload::ms;
use tokio::time::Instant;

use crate::fixture::{JAVA, KEY, begin, end, lock, play};

/// Polls a future once; then it is kept and not polled.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// No message reached the tasks that had been waiting for longer.
#[test]
fn an_unlock_that_is_not_polled_any_more_does_not_stop_who_queued_before_it_began() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        let queued = begin(lock(&fixture.task(1))).await;
        let mut unlocking = Box::pin(guard.unlock());
        fixture.hold_commands();
        assert!(poll_once(unlocking.as_mut()).await.is_pending());
        fixture.lose_connection();
        let next = tokio::time::timeout(ms(1_500), queued)
            .await
            .expect("soon")
            .expect("no panic");
        next.expect("free").unlock().await.expect("held");
        drop(unlocking);
    });
}

/// Whether the answer of its acquire is there or not: its outer hold was never released, and everybody waited.
#[test]
fn a_nested_call_that_is_not_polled_delays_others_by_two_commands_at_most() {
    play(true, async |fixture| {
        let (lock_of, outer) = (fixture.task(0), fixture.task(0).lock().await.expect("free"));
        let mut nested = Box::pin(lock_of.lock());
        assert!(poll_once(nested.as_mut()).await.is_pending());
        let queued = begin(lock(&fixture.task(1))).await;
        drop(outer);
        let next = tokio::time::timeout(ms(2_500), queued).await;
        let next = next.expect("soon").expect("no panic").expect("free");
        next.unlock().await.expect("held");
        // Polled again, it takes the lock for itself.
        nested.await.expect("free").unlock().await.expect("held");
    });
}

#[test]
fn an_attempt_that_is_not_polled_delays_others_by_two_commands_at_most() {
    play(true, async |fixture| {
        let lock_of = fixture.task(0);
        let mut attempt = Box::pin(lock_of.try_lock());
        assert!(poll_once(attempt.as_mut()).await.is_pending());
        let queued = begin(lock(&fixture.task(1))).await;
        let next = tokio::time::timeout(ms(2_500), queued).await;
        let next = next.expect("soon").expect("no panic").expect("free");
        next.unlock().await.expect("held");
        let guard = attempt.await.expect("answered").expect("free");
        guard.unlock().await.expect("held");
    });
}

/// It waited for the lease of a lock that was not locked any more.
#[test]
fn an_unlock_that_is_not_polled_any_more_does_not_stop_who_listens() {
    play(true, async |fixture| {
        fixture.world.hold_answers(0, true);
        let task = fixture.task(0);
        let taking = begin(async move { task.try_lock().await }).await;
        let queued = begin(lock(&fixture.task(1))).await;
        fixture.world.hold_answers(0, false);
        let guard = end(taking).await.expect("answered").expect("free");
        tokio::time::sleep(ms(50)).await;
        let mut unlocking = Box::pin(guard.unlock());
        fixture.hold_commands();
        assert!(poll_once(unlocking.as_mut()).await.is_pending());
        fixture.lose_connection();
        let next = tokio::time::timeout(ms(1_500), queued)
            .await
            .expect("soon")
            .expect("no panic");
        next.expect("free").unlock().await.expect("held");
        drop(unlocking);
    });
}

/// A release from before the lock was taken again had them wait for a head that could not attempt
/// anyway.
#[test]
fn an_attempt_at_a_lock_that_is_held_here_is_answered_immediately() {
    play(true, async |fixture| {
        let first = fixture.task(0).lock().await.expect("free");
        // The client remembers the lock for as long as somebody refers to it.
        let _held = first.handle();
        first.unlock().await.expect("held");
        let guard = fixture
            .task(1)
            .try_lock()
            .await
            .expect("answered")
            .expect("free");
        let queued = begin(lock(&fixture.task(2))).await;
        let start = Instant::now();
        assert!(
            fixture
                .task(3)
                .try_lock()
                .await
                .expect("answered")
                .is_none()
        );
        assert!(start.elapsed() < ms(100), "after {:?}", start.elapsed());
        guard.unlock().await.expect("held");
        end(queued)
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
    });
}

/// It is handed the lock once, and loses its turn.
#[test]
fn a_queued_call_that_is_not_polled_any_more_does_not_slow_pollers_down() {
    play(true, async |fixture| {
        let guard = fixture.task(0).lock().await.expect("free");
        let task = fixture.task(1);
        let mut queued = Box::pin(task.lock());
        assert!(poll_once(queued.as_mut()).await.is_pending());
        guard.unlock().await.expect("held");
        let (start, mut taken) = (Instant::now(), 0);
        while taken < 10 {
            match fixture.task(2).try_lock().await.expect("answered") {
                Some(guard) => {
                    guard.unlock().await.expect("held");
                    taken += 1;
                }
                None => tokio::time::sleep(ms(10)).await,
            }
        }
        // The command timeout is a second.
        assert!(start.elapsed() < ms(2_100), "after {:?}", start.elapsed());
    });
}

/// Pollers are busy for as long as a call queues, but not for longer than it is polled: its attempt is undone.
#[test]
fn a_head_that_does_not_read_its_answer_stops_pollers_for_two_command_timeouts() {
    play(true, async |fixture| {
        let task = fixture.task(1);
        let mut head = Box::pin(task.lock());
        assert!(poll_once(head.as_mut()).await.is_pending());
        let start = Instant::now();
        let guard = loop {
            match fixture.task(2).try_lock().await.expect("answered") {
                Some(guard) => break guard,
                None => tokio::time::sleep(ms(10)).await,
            }
        };
        assert!(start.elapsed() < ms(2_200), "after {:?}", start.elapsed());
        guard.unlock().await.expect("held");
        head.await.expect("its turn").unlock().await.expect("held");
    });
}

/// The one that was told had to queue, and told nobody.
#[test]
fn a_call_that_has_waited_for_its_own_owner_and_queues_tells_the_next_of_its_owner() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        let first = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(50)).await;
        fixture.world.hold_answers(0, true);
        fixture.world.publish(&channel(KEY));
        tokio::time::sleep(ms(5)).await;
        let second = begin(lock(&fixture.task(0))).await;
        let task = fixture.task(0);
        let third = begin(async move { task.try_lock().await }).await;
        fixture.world.hold_answers(0, false);
        let start = Instant::now();
        assert!(end(third).await.expect("answered").is_none());
        assert!(start.elapsed() < ms(100), "after {:?}", start.elapsed());
        first.abort();
        second.abort();
    });
}

/// The holder that was named had given it back, and taken it again, each time.
#[test]
fn a_busy_owner_is_no_reason_to_doubt_the_server_for_force_unlock() {
    play(true, async |fixture| {
        let task = fixture.task(0);
        let mut forcing = Box::pin({
            let task = fixture.task(1);
            async move { task.force_unlock().await }
        });
        let forced = loop {
            let guard = task.lock().await.expect("free");
            if let Poll::Ready(forced) = poll_once(forcing.as_mut()).await {
                break forced;
            }
            // It has looked.
            tokio::time::sleep(ms(3)).await;
            guard.unlock().await.expect("held");
            if let Poll::Ready(forced) = poll_once(forcing.as_mut()).await {
                break forced;
            }
            tokio::time::sleep(ms(3)).await;
        };
        assert_eq!(forced.map_err(|error| error.to_string()), Ok(true));
    });
}
