//! The library raises no panic, not even one that it catches: with `panic = "abort"` the first ends the program. A panic
//! hook counts them as such a program would see them. One test, because the hook belongs to the process.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redisson_lock::{Error, LockClient, LockGuard, blocking};
use test_support::{Server, eventually, ms, test};
use tokio::runtime::{Builder, Runtime};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// How many panics there were since the last look.
fn raised() -> usize {
    PANICS.swap(0, Ordering::SeqCst)
}

/// Runs a part of the test.
fn without_panic<T>(what: &str, part: impl FnOnce() -> T) -> T {
    let value = part();
    assert_eq!(raised(), 0, "{what}");
    value
}

#[test]
fn no_panic_is_raised_that_would_abort_a_program() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(panic);
    }));
    let server = Server::start();
    where_tokio_polls(&server);
    where_a_thread_ends(&server);
    on_a_runtime_without_timers(&server);
    when_a_runtime_ends_with_guards_alive(&server);
    what_cannot_be_asked_without_a_panic(&server);
}

/// A blocking client.
fn where_tokio_polls(server: &Server) {
    let connect = || blocking::LockClient::connect(&server.url()).expect("it answers");
    let runtime = Runtime::new().expect("a runtime");
    let client = connect();
    without_panic("a call in a task", || {
        runtime.block_on(async {
            let lock = client.lock("a");
            let called = tokio::spawn(async move { lock.lock().map(drop) }).await;
            let called = called.expect("no panic");
            assert!(matches!(called, Err(Error::InsideRuntime)), "{called:?}");
            let called = client.lock("a").lock().map(drop);
            assert!(matches!(called, Err(Error::InsideRuntime)), "{called:?}");
        });
    });
    let guard = client.lock("a").lock().expect("free");
    without_panic("the last handle is dropped in a task", || {
        runtime.block_on(async move {
            let last = tokio::spawn(async move { drop((guard, client)) });
            last.await.expect("no panic");
        });
    });
    let client = connect();
    without_panic("a call and the last handle in `unconstrained`", || {
        let polled = tokio::task::unconstrained(async move {
            let _ = client.lock("b").lock();
            drop(client);
        });
        runtime.block_on(polled);
    });
    let client = connect();
    without_panic("the same in a task", || {
        let polled = tokio::task::unconstrained(async move {
            let _ = client.lock("b").lock();
            drop(client);
        });
        runtime.block_on(async { tokio::spawn(polled).await.expect("no panic") });
    });
    let client = connect();
    without_panic("spawn_blocking", || {
        runtime.block_on(async move {
            let pair = move || client.lock("c").lock()?.unlock();
            let outside = tokio::task::spawn_blocking(pair).await;
            outside.expect("no panic").expect("free");
        });
    });
    let client = connect();
    let guard = client.lock("d").lock().expect("free");
    without_panic("after the end of another runtime", || {
        drop(runtime);
        guard.unlock().expect("held");
        client
            .lock("d")
            .lock()
            .expect("free")
            .unlock()
            .expect("held");
        drop(client);
    });
}

/// A blocking client whose last handle is dropped with what a thread keeps.
fn where_a_thread_ends(server: &Server) {
    thread_local! {
        static KEPT: RefCell<Option<(blocking::LockGuard, blocking::LockClient)>> = const { RefCell::new(None) };
    }
    let client = blocking::LockClient::connect(&server.url()).expect("it answers");
    without_panic("the last handle is kept until the thread ends", || {
        let thread = std::thread::spawn(move || {
            let guard = client.lock("kept").lock().expect("free");
            KEPT.set(Some((guard, client)));
        });
        thread.join().expect("no panic");
    });
}

/// The caller's; the client has another one.
fn on_a_runtime_without_timers(server: &Server) {
    let home = Runtime::new().expect("a runtime");
    let connected = home.block_on(LockClient::connect(&server.url()));
    let client = connected.expect("it answers");
    for away in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let away = { away }.build().expect("a runtime");
        without_panic("calls from a runtime without timers", || {
            away.block_on(async {
                let lock = client.lock("timers");
                let guard = lock.lock().await.expect("free");
                let other = lock.owned_by(&client.owner());
                assert!(other.try_lock_for(ms(300)).await.expect("asked").is_none());
                guard.unlock().await.expect("held");
                let led = lock.lead(async |_| Ok::<_, Error>(7)).await;
                assert!(matches!(led, Ok(7)), "{led:?}");
                drop(lock.lock().await.expect("free"));
                client.ping().await.expect("it answers");
            });
        });
    }
    let away = Builder::new_current_thread().build().expect("a runtime");
    without_panic("close from a runtime without timers", || {
        let report = away.block_on(client.close(ms(500)));
        assert!(report.abandoned.is_empty(), "{report:?}");
    });
}

/// What is alive then: in tasks of the runtime itself, and outside of it.
fn when_a_runtime_ends_with_guards_alive(server: &Server) {
    for end in [drop, Runtime::shutdown_background] {
        let home = Runtime::new().expect("a runtime");
        let (client, guard) = home.block_on(alive(server));
        without_panic("the end of a runtime", || end(home));
        without_panic("what is left of it", || {
            let _ = (guard.state(), client.stats(), client.is_connected());
            let elsewhere = Runtime::new().expect("a runtime");
            elsewhere.block_on(async {
                let called = client.lock("another").lock().await;
                assert!(matches!(called, Err(Error::NoRuntime)), "{called:?}");
                let unlocked = guard.unlock().await;
                assert!(unlocked.is_err());
                client.close(Duration::ZERO).await;
                drop(client);
            });
        });
        server.control().run(&["FLUSHALL"]);
    }
}

/// A client with a guard, and tasks that hold and wait.
async fn alive(server: &Server) -> (LockClient, LockGuard) {
    let client = LockClient::connect(&server.url())
        .await
        .expect("it answers");
    let guard = client.lock("outside").lock().await.expect("free");
    let lock = client.lock("inside");
    tokio::spawn(async move {
        let _guard = lock.lock().await.expect("free");
        std::future::pending::<()>().await;
    });
    eventually("it holds", ms(5_000), || client.stats().held == 2).await;
    for name in ["inside", "outside"] {
        let lock = client.lock(name);
        tokio::spawn(async move { drop(lock.lock().await) });
    }
    client.lock("detached").lock().await.expect("free").detach();
    eventually("both wait", ms(5_000), || client.stats().waiting == 2).await;
    (client, guard)
}

/// As `LockClient::connect` says.
fn what_cannot_be_asked_without_a_panic(server: &Server) {
    for (time, io) in [(false, true), (true, false)] {
        let mut runtime = Builder::new_current_thread();
        if time {
            runtime.enable_time();
        }
        if io {
            runtime.enable_io();
        }
        let runtime = runtime.build().expect("a runtime");
        let connected = runtime.block_on(LockClient::connect(&server.url()));
        assert!(matches!(connected, Err(Error::NoRuntime)), "{connected:?}");
        assert_eq!(raised(), 1, "timers: {time}, sockets: {io}");
    }
}
