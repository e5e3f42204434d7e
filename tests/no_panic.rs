//! A blocking client raises no panic of its own, not even one that it catches: a program may be built to
//! abort on the first. One test, because the hook belongs to the process.

use std::sync::atomic::{AtomicUsize, Ordering};

use redisson_lock::blocking::LockClient;
use test_support::{Server, test};

static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_blocking_client_raises_no_panic_where_tokio_polls() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(panic);
    }));
    let server = Server::start();
    let connect = || LockClient::connect(&server.url()).expect("it answers");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let raised = |what: &str| assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{what}");

    let client = connect();
    runtime.block_on(async { drop(client.lock("a").lock().expect_err("a task polls")) });
    raised("a call in a future");
    let guard = client.lock("a").lock().expect("free");
    runtime.block_on(async move {
        drop(guard);
        drop(client);
    });
    raised("the last handle is dropped in a future");

    let client = connect();
    let polled = tokio::task::unconstrained(async move {
        let _ = client.lock("b").lock();
        drop(client);
    });
    runtime.block_on(polled);
    raised("a call and the last handle in `unconstrained`");

    let client = connect();
    runtime.block_on(async move {
        let outside = tokio::task::spawn_blocking(move || {
            client
                .lock("c")
                .lock()
                .expect("free")
                .unlock()
                .expect("held");
        });
        outside.await.expect("it ends");
    });
    raised("spawn_blocking");

    let client = connect();
    drop(runtime);
    client
        .lock("d")
        .lock()
        .expect("free")
        .unlock()
        .expect("held");
    drop(client);
    raised("behind the end of another runtime");
}
