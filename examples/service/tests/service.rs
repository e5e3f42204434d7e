//! The service as its users see it: at a real server, over HTTP, and ended by a signal.

mod instance;

use std::process::Command;

use instance::{Instance, ask};
use test_support::{Proxy, TestServer, eventually, ms, tokio};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_sells_reports_is_ready_counts_and_ends_behind_its_requests() {
    let server = TestServer::new();
    let mut instance = Instance::start(&server.url());
    eventually("it is ready", ms(10_000), || {
        instance.ask("GET /ready").0 == 200
    })
    .await;
    for left in ["2", "1", "0"] {
        let sold = instance.ask("POST /sell/42");
        assert_eq!(sold, (200, format!("{{\"left\":{left}}}")));
    }
    assert_eq!(instance.ask("POST /sell/42").0, 410);

    let other = server.client().await;
    let held = other.lock("report").lock().await.expect("free");
    let (status, busy) = instance.ask("GET /report");
    assert!(
        status == 409 && busy.contains(&held.owner().to_string()),
        "{status} {busy}"
    );
    held.unlock().await.expect("held");
    assert_eq!(instance.ask("GET /report"), (200, "{42: 0}".to_owned()));
    let metrics = instance.ask("GET /metrics").1;
    for line in [
        "redisson_lock_acquires_total{class=\"stock\",outcome=\"acquired\"} 4",
        "redisson_lock_acquires_total{class=\"report\",outcome=\"busy\"} 1",
        "redisson_lock_lost_total 0",
        "# HELP redisson_lock_given_up_total ",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }

    // A request that waits is answered although the service was told to end.
    let held = other.lock("stock:7").lock().await.expect("free");
    let address = instance.address.clone();
    let waiting = tokio::task::spawn_blocking(move || ask(&address, "POST /sell/7"));
    eventually("it waits", ms(5_000), || {
        instance.ask("GET /ready").1.contains("\"waiting\":1")
    })
    .await;
    let pid = instance.process.id().to_string();
    let told = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(told.expect("kill runs").success());
    held.unlock().await.expect("held");
    assert_eq!(waiting.await.expect("no panic").0, 200);
    let ended = instance.process.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    assert_eq!(server.control().run(&["KEYS", "*"]), "");
    server.finish([other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_it_is_not_ready_and_asks_to_come_again() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let instance = Instance::start(&proxy.url());
    let ready = || instance.ask("GET /ready").0;
    eventually("it is ready", ms(10_000), || ready() == 200).await;
    proxy.refuse(true);
    proxy.cut_all();
    eventually("it is not", ms(10_000), || ready() == 503).await;
    let (status, problem) = instance.ask("POST /sell/42");
    assert!(
        status == 503 && problem.contains("nothing new is held"),
        "{status} {problem}"
    );
    proxy.refuse(false);
    eventually("it is again", ms(10_000), || ready() == 200).await;
    assert_eq!(instance.ask("POST /sell/42").0, 200);
    drop(instance);
    proxy.stop().await;
    server.finish([]).await;
}
