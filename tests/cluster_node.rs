//! A node of a cluster that is addressed as one server; and a cluster of one node, whose slots are renewed in calls of
//! their own.

use std::time::Duration;

use redisson_lock::{Error, LockClient, RefusedKind};
use test_support::{Control, Proxy, RENEW, Server, TestServer, eventually, is_script, ms, tokio};

const WATCHDOG: u64 = 6_000;
const PERIOD: u64 = WATCHDOG / 3;

/// A node with every slot.
async fn node(settings: &[&str]) -> TestServer {
    let settings = [&["--cluster-enabled", "yes"], settings].concat();
    let server = TestServer::with(&settings);
    let mut control = server.control();
    control.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    works(&mut control).await;
    server
}

async fn works(control: &mut Control) {
    let works = || {
        control
            .run(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    };
    eventually("the cluster works", ms(10_000), works).await;
}

fn names_the_scheme(error: &Error) {
    let is_about_it = matches!(
        error,
        Error::Refused {
            kind: RefusedKind::Cluster,
            ..
        }
    );
    assert!(is_about_it, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("redis-cluster://"), "{text}");
}

#[tokio::test]
async fn it_is_refused_as_one_server() {
    let server = node(&[]).await;
    let error = LockClient::connect(&server.url()).await;
    names_the_scheme(&error.expect_err("a node of a cluster"));
    // Whatever the user may not do.
    let mut control = server.control();
    control.run(&["ACL", "SETUSER", "few", "on", ">word", "~*", "-@all"]);
    let url = format!("redis://few:word@127.0.0.1:{}", server.port);
    let error = LockClient::connect(&url).await;
    names_the_scheme(&error.expect_err("a node of a cluster"));
    server.finish([]).await;
}

/// A server without HELLO is refused at the first call that it redirects.
#[tokio::test]
async fn one_that_hides_it_is_refused_at_its_first_redirect() {
    let server = TestServer::with(&["--cluster-enabled", "yes", "--rename-command", "HELLO", ""]);
    let mut control = server.control();
    // The other half belongs to another node.
    control.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    let other = Server::start_with(&["--cluster-enabled", "yes"]);
    let mut its_control = other.control();
    its_control.run(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    control.run(&["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string()]);
    works(&mut control).await;
    let client = server.client().await;
    // Slot 15495.
    names_the_scheme(&client.lock("a").lock().await.expect_err("redirected"));
    drop(other);
    server.finish([client]).await;
}

#[tokio::test]
async fn many_slots_do_not_mean_as_many_calls_at_once() {
    const AT_ONCE: usize = 256;
    const LOCKS: usize = 400;
    let server = node(&["--cluster-announce-ip", "127.0.0.1"]).await;
    let proxy = Proxy::start(server.port).await;
    let port = proxy.port.to_string();
    let mut control = server.control();
    control.run(&["CONFIG", "SET", "cluster-announce-port", &port]);
    // Long enough for the delayed renewals to come in time, however busy the machine is.
    let client = LockClient::builder()
        .watchdog_timeout(ms(WATCHDOG))
        .command_timeout(ms(1_500))
        .connect(&proxy.url().replacen("redis://", "redis-cluster://", 1))
        .await
        .expect("the server answers");
    let mut guards = Vec::new();
    for nth in 0..LOCKS {
        let lock = client.lock(format!("lock:{nth}"));
        guards.push(lock.lock().await.expect("free"));
    }
    let renewals = || {
        let calls = proxy.script_calls();
        calls.iter().filter(|words| is_script(words, RENEW)).count()
    };
    eventually("a first round", ms(2 * PERIOD), || {
        client.stats().renewed_total >= LOCKS as u64
    })
    .await;
    let answered = || client.stats().renewed_total as usize;
    let (answered_before, before) = (answered(), renewals());
    proxy.hold_replies(true);
    eventually("the second begins", ms(2 * PERIOD), || {
        renewals() >= before + AT_ONCE
    })
    .await;
    tokio::time::sleep(ms(50)).await;
    // Some may have been answered before the replies were held.
    let (sent, answered) = (renewals() - before, answered() - answered_before);
    assert!(
        sent <= AT_ONCE + answered,
        "{sent} sent, {answered} answered: the others wait for an answer"
    );
    proxy.hold_replies(false);
    eventually("the second ends", ms(2 * PERIOD), || {
        client.stats().renewed_total >= 2 * LOCKS as u64
    })
    .await;
    assert_eq!(client.stats().lost_total, 0);
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}
