//! Who holds: tasks, scopes, threads, explicit owners, and calls from unusual places.

use std::time::Duration;

use redisson_lock::{Error, LockClient, LockGuard};
use test_support::{TestServer, assert_matches, eventually, ms, stalls, test, tokio};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tasks_exclude_each_other_and_one_task_nests() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("a");
    let inside = tokio::spawn(async move {
        let outer = lock.lock().await.expect("free");
        let inner = lock
            .try_lock()
            .await
            .expect("asked")
            .expect("the same task");
        assert_eq!(outer.owner(), inner.owner());
        let other = tokio::spawn({
            let lock = lock.clone();
            async move { lock.try_lock().await.expect("asked").is_none() }
        });
        assert!(
            other.await.expect("no panic"),
            "a task spawned inside the section is another owner"
        );
        inner.unlock().await.expect("held");
        outer.unlock().await.expect("held");
    });
    inside.await.expect("no panic");
    server.finish([client]).await;
}

#[tokio::test]
async fn owners_can_be_kept_in_a_set() {
    let server = TestServer::new();
    let client = server.client().await;
    let owners = [client.owner_with_id(-1), client.owner_with_id(-2)];
    let set: std::collections::HashSet<_> = owners.iter().chain(&owners).cloned().collect();
    assert_eq!(set.len(), 2);
    server.finish([client]).await;
}

#[tokio::test]
async fn owner_with_id_has_its_number_on_the_wire() {
    let server = TestServer::new();
    let client = server.client().await;
    let owner = client.owner_with_id(-5);
    let guard = client
        .lock("a")
        .owned_by(&owner)
        .lock()
        .await
        .expect("free");
    assert_eq!(server.control().hash("a"), format!("{}:-5 1", client.id()));
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn scoped_join_branches_exclude_each_other_and_unscoped_ones_re_enter() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("a");

    // Documented trap: both branches are polled by one task, so both are inside at the same time.
    let both = async || -> Result<(LockGuard, LockGuard), Error> {
        tokio::try_join!(lock.lock(), lock.lock())
    };
    let (first, second) = both().await.expect("re-entered");
    assert_eq!(server.control().count("a"), 2);
    first.unlock().await.expect("held");
    second.unlock().await.expect("held");

    let (one, other) = (client.owner(), client.owner());
    let inside = std::cell::Cell::new(0);
    let section = async || {
        for _ in 0..10 {
            let guard = lock.lock().await.expect("taken");
            inside.set(inside.get() + 1);
            assert_eq!(inside.get(), 1, "alone");
            tokio::task::yield_now().await;
            inside.set(0);
            guard.unlock().await.expect("held");
        }
    };
    tokio::join!(one.scope(section()), other.scope(section()));
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_released_from_wherever_it_was_moved_to() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");

    let guard = lock.lock().await.expect("free");
    tokio::spawn(async move { guard.unlock().await })
        .await
        .expect("no panic")
        .expect("held");

    let guard = lock.lock().await.expect("free");
    std::thread::spawn(move || drop(guard))
        .join()
        .expect("dropping outside a runtime is fine");
    eventually("released", ms(2000), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;

    let guard = lock.lock().await.expect("free");
    let panicked = tokio::spawn(async move {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(panicked.await.expect_err("panicked").is_panic());
    eventually("released", ms(2000), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;
    server.finish([client]).await;
}

#[test]
fn a_main_body_nests_on_every_kind_of_runtime() {
    for mut builder in [
        tokio::runtime::Builder::new_current_thread(),
        tokio::runtime::Builder::new_multi_thread(),
    ] {
        let runtime = builder.enable_all().build().expect("runtime");
        runtime.block_on(async {
            let server = TestServer::new();
            let client = server.client().await;
            let lock = client.lock("a");
            let outer = lock.lock().await.expect("free");
            let inner = lock.lock().await.expect("nested in the same body");
            assert_eq!(lock.hold_count().await.expect("asked"), 2);
            let spawned = tokio::spawn({
                let lock = lock.clone();
                async move { lock.try_lock().await.expect("asked").is_none() }
            });
            assert!(
                spawned.await.expect("no panic"),
                "a task is another owner than the body"
            );
            inner.unlock().await.expect("held");
            outer.unlock().await.expect("held");
            server.finish([client]).await;
        });
    }
}

#[tokio::test]
async fn tasks_of_a_local_set_are_owners_of_their_own() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("a");
    let set = tokio::task::LocalSet::new();
    set.run_until(async {
        let first = tokio::task::spawn_local({
            let lock = lock.clone();
            async move { lock.lock().await.expect("free") }
        });
        let guard = first.await.expect("no panic");
        let second = tokio::task::spawn_local({
            let lock = lock.clone();
            async move { lock.try_lock().await.expect("asked").is_none() }
        });
        assert!(second.await.expect("no panic"));
        guard.unlock().await.expect("held");
    })
    .await;
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spawn_blocking_with_block_on_nests() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("a");
    let runtime = tokio::runtime::Handle::current();
    let blocking = tokio::task::spawn_blocking({
        let lock = lock.clone();
        move || {
            runtime.block_on(async {
                let outer = lock.lock().await.expect("free");
                let inner = lock.lock().await.expect("nested");
                assert_eq!(lock.hold_count().await.expect("asked"), 2);
                inner.unlock().await.expect("held");
                outer.unlock().await.expect("held");
            });
        }
    });
    blocking.await.expect("no panic");
    server.finish([client]).await;
}

#[test]
fn a_client_made_on_one_runtime_works_from_another_and_from_another_executor() {
    let home = tokio::runtime::Runtime::new().expect("runtime");
    let (server, client) = home.block_on(async {
        let server = TestServer::new();
        let client = server.client().await;
        (server, client)
    });
    let lock = client.lock("a");
    // No timers and no I/O of its own.
    let away = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("runtime");
    away.block_on(async {
        let outer = lock.lock().await.expect("free");
        let inner = lock.lock().await.expect("nested");
        assert!(
            client
                .lock("b")
                .try_lock_for(ms(5_000))
                .await
                .expect("asked")
                .is_some()
        );
        inner.unlock().await.expect("held");
        outer.unlock().await.expect("held");
    });
    // Polled by an executor that is not tokio's, in a runtime's context: each call is an owner
    // of its own.
    let _entered = home.enter();
    let guard = block_on(lock.lock()).expect("free");
    assert!(
        block_on(lock.try_lock()).expect("asked").is_none(),
        "no re-entry by accident"
    );
    block_on(guard.unlock()).expect("held");
    home.block_on(server.finish([client]));
}

#[tokio::test]
async fn two_clients_in_one_task_are_two_owners() {
    let server = TestServer::new();
    let (one, other) = (server.client().await, server.client().await);
    let guard = one.lock("a").lock().await.expect("free");
    assert!(other.lock("a").try_lock().await.expect("asked").is_none());
    // A scope of one client leaves the other's owner alone.
    let owner = one.owner();
    let seen = owner
        .scope(async {
            let theirs = other.lock("b").lock().await.expect("free");
            let field = theirs.owner().to_string();
            theirs.unlock().await.expect("held");
            field
        })
        .await;
    assert!(seen.starts_with(other.id()));
    guard.unlock().await.expect("held");
    server.finish([one, other]).await;
}

#[test]
fn outside_a_runtime_calls_answer_no_runtime() {
    let home = tokio::runtime::Runtime::new().expect("runtime");
    let (server, client) = home.block_on(async {
        let server = TestServer::new();
        let client = server.client().await;
        (server, client)
    });
    let lock = client.lock("a");
    let guard = home.block_on(lock.lock()).expect("free");
    // What needs no network works anywhere.
    assert_eq!(guard.state(), redisson_lock::HoldState::Held);
    assert_matches!(block_on(lock.lock()), Err(Error::NoRuntime));
    assert_matches!(block_on(lock.is_locked()), Err(Error::NoRuntime));
    assert_matches!(
        block_on(LockClient::connect(&server.url())),
        Err(Error::NoRuntime)
    );
    assert_matches!(block_on(guard.unlock()), Err(Error::NoRuntime));
    home.block_on(server.finish([client]));
}

#[test]
fn an_unconstrained_body_of_block_on_has_an_owner_for_each_call_unless_it_has_a_scope() {
    for mut runtime in [
        tokio::runtime::Builder::new_current_thread(),
        tokio::runtime::Builder::new_multi_thread(),
    ] {
        let runtime = runtime.enable_all().build().expect("runtime");
        runtime.block_on(tokio::task::unconstrained(async {
            let server = TestServer::new();
            let client = server.client().await;
            let lock = client.lock("a");
            let outer = lock.lock().await.expect("free");
            assert!(
                lock.try_lock().await.expect("asked").is_none(),
                "another owner"
            );
            outer.unlock().await.expect("held");

            let nested = async |lock: &redisson_lock::Lock| {
                let outer = lock.lock().await.expect("free");
                let inner = lock
                    .try_lock()
                    .await
                    .expect("asked")
                    .expect("the same owner");
                inner.unlock().await.expect("held");
                outer.unlock().await.expect("held");
            };
            client.owner().scope(nested(&lock)).await;
            let task = tokio::spawn(tokio::task::unconstrained({
                let lock = lock.clone();
                async move {
                    let outer = lock.lock().await.expect("free");
                    let inner = lock
                        .try_lock()
                        .await
                        .expect("asked")
                        .expect("the same owner");
                    inner.unlock().await.expect("held");
                    outer.unlock().await.expect("held");
                }
            }));
            task.await.expect("no panic");
            server.finish([client]).await;
        }));
    }
}

#[test]
fn a_runtime_without_timers_or_without_sockets_is_refused() {
    let server = test_support::Server::start();
    for (time, io) in [(false, true), (true, false), (false, false), (true, true)] {
        for mut runtime in [
            tokio::runtime::Builder::new_current_thread(),
            tokio::runtime::Builder::new_multi_thread(),
        ] {
            if time {
                runtime.enable_time();
            }
            if io {
                runtime.enable_io();
            }
            let runtime = runtime.build().expect("runtime");
            let start = std::time::Instant::now();
            let connected = runtime.block_on(LockClient::connect(&server.url()));
            match connected {
                Ok(client) if time && io => {
                    runtime.block_on(async { drop(client.close(ms(0)).await) })
                }
                Err(Error::NoRuntime) if !time || !io => {}
                other => panic!("time: {time}, io: {io}: {other:?}"),
            }
            assert!(
                start.elapsed() < ms(1000) + stalls(start),
                "immediately, not after the command timeout"
            );
        }
    }
}

#[test]
fn when_the_clients_runtime_is_gone_every_call_fails_immediately() {
    let away = tokio::runtime::Runtime::new().expect("runtime");
    let home = tokio::runtime::Runtime::new().expect("runtime");
    let (server, client) = home.block_on(async {
        let server = TestServer::new();
        let client = server.client().await;
        (server, client)
    });
    let lock = client.lock("a");
    let guard = home.block_on(lock.lock()).expect("free");
    home.shutdown_timeout(Duration::from_secs(1));
    away.block_on(async {
        let start = std::time::Instant::now();
        assert_matches!(lock.try_lock().await, Err(Error::NoRuntime));
        assert_matches!(lock.is_locked().await, Err(Error::NoRuntime));
        drop(lock.lock().await.expect_err("no runtime"));
        assert!(start.elapsed() < ms(500) + stalls(start));
        // Nothing panics; the lease frees the lock.
        drop(guard);
        client.close(Duration::from_secs(1)).await;
    });
    drop((lock, client, server));
}

/// The smallest executor: it knows nothing of tokio.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}
