//! What the client library really does: the facts that this crate is built on. A new version of
//! fred that fails one of these has changed the ground.

use std::io::{Read, Write};
use std::time::Duration;

use fred::prelude::*;
use fred::types::CustomCommand;
use fred::types::config::Options;
use test_support::{Fate, Proxy, Server, eventually, ms, tokio};
use tokio::sync::broadcast::error::RecvError;

const COUNT: &str = "return redis.call('incr', KEYS[1])";

fn client(port: u16) -> Client {
    let config = Config::from_url(&format!("redis://127.0.0.1:{port}")).expect("a valid address");
    Builder::from_config(config)
        .build()
        .expect("valid settings")
}

fn options(timeout: Duration) -> Options {
    Options {
        max_attempts: Some(1),
        timeout: Some(timeout),
        ..Options::default()
    }
}

async fn eval(client: &Client, key: &str, timeout: Duration) -> Result<Value, Error> {
    let command = CustomCommand::new_static("EVAL", None::<u16>, false);
    let args: Vec<Value> = vec![COUNT.into(), 1.into(), key.into()];
    client
        .with_options(&options(timeout))
        .custom(command, args)
        .await
}

#[tokio::test]
async fn subscribe_and_ping_in_one_pipeline_tell_a_refusal_and_two_calls_do_not() {
    let server = Server::start();
    let mut control = server.control();
    control.run(&[
        "ACL",
        "SETUSER",
        "u",
        "on",
        ">p",
        "~*",
        "+@all",
        "resetchannels",
        "&open*",
    ]);
    let config = Config::from_url(&format!("redis://u:p@127.0.0.1:{}", server.port))
        .expect("a valid address");
    let client = Builder::from_config(config)
        .build()
        .expect("valid settings");
    client.init().await.expect("connected");
    let (mut told, mut false_confirmations) = (0, 0);
    for nth in 0..100 {
        let pipeline = client.pipeline();
        let _: () = pipeline.subscribe("closed").await.expect("queued");
        let _: Value = pipeline
            .with_options(&options(ms(1000)))
            .ping(Some(format!("n{nth}")))
            .await
            .expect("queued");
        // An error, or the answer to an earlier command: anything but its own nonce.
        let pong = pipeline.last::<Value>().await.unwrap_or(Value::Null);
        told += usize::from(pong.as_string() != Some(format!("n{nth}")));
        // The PONG of a refused barrier is still on its way: in step again after at most a few
        // pings.
        for _ in 0..3 {
            let nonce = format!("again{nth}");
            let pong: Value = client
                .ping(Some(nonce.clone()))
                .await
                .unwrap_or(Value::Null);
            if pong.as_string().as_deref() == Some(&*nonce) {
                break;
            }
        }
        let _: () = client
            .subscribe("closed")
            .await
            .expect("resolves before the server answers");
        tokio::time::sleep(ms(1)).await;
        let nonce = format!("m{nth}");
        let pong: Result<Value, Error> = client.ping(Some(nonce)).await;
        false_confirmations += usize::from(pong.is_ok());
    }
    assert_eq!(told, 100);
    assert!(
        false_confirmations > 90,
        "two calls confirm what was refused: {false_confirmations}"
    );
    let _ = client.quit().await;
}

#[tokio::test]
async fn a_timeout_given_as_an_option_of_custom_is_kept() {
    let server = Server::start();
    let proxy = Proxy::start(server.port).await;
    let client = client(proxy.port);
    client.init().await.expect("connected");
    proxy.hold_replies(true);
    let with = tokio::time::timeout(ms(2000), eval(&client, "k", ms(50)))
        .await
        .expect("ends by itself");
    assert_eq!(with.expect_err("held back").kind(), &ErrorKind::Timeout);
    let command = CustomCommand::new_static("PING", None::<u16>, false);
    let without =
        tokio::time::timeout(ms(300), client.custom::<Value, Value>(command, vec![])).await;
    assert!(without.is_err(), "without the option nothing ends the wait");
    let zero = tokio::time::timeout(ms(300), eval(&client, "k", Duration::ZERO)).await;
    assert!(zero.is_err(), "zero is no timeout");
    proxy.hold_replies(false);
    let _ = client.quit().await;
}

#[tokio::test]
async fn an_expired_timeout_stops_a_late_first_write() {
    let server = Server::start();
    let proxy = Proxy::start(server.port).await;
    let config = Config::from_url(&proxy.url()).expect("a valid address");
    let mut builder = Builder::from_config(config);
    builder.set_policy(ReconnectPolicy::new_constant(0, 10));
    let client = builder.build().expect("valid settings");
    client.init().await.expect("connected");
    proxy.refuse(true);
    proxy.cut_all();
    eventually("noticed", ms(2000), || !client.is_connected()).await;
    let expired = eval(&client, "k", ms(50)).await;
    assert_eq!(
        expired.expect_err("not connected").kind(),
        &ErrorKind::Timeout
    );
    proxy.refuse(false);
    eventually("back", ms(5000), || client.is_connected()).await;
    assert_eq!(
        eval(&client, "k", ms(1000)).await.expect("answered"),
        Value::Integer(1),
        "only this one ran"
    );
    let _ = client.quit().await;
}

#[tokio::test]
async fn the_reconnect_event_comes_for_every_connection() {
    let server = Server::start();
    let config = Config::from_url(&server.url()).expect("a valid address");
    let mut builder = Builder::from_config(config);
    builder.set_policy(ReconnectPolicy::new_constant(0, 10));
    let client = builder.build().expect("valid settings");
    let mut events = client.reconnect_rx();
    client.init().await.expect("connected");
    events.recv().await.expect("the first connection counts");
    let id: i64 = {
        let command = CustomCommand::new_static("CLIENT", None::<u16>, false);
        client.custom(command, vec!["ID"]).await.expect("answered")
    };
    server
        .control()
        .run(&["CLIENT", "KILL", "ID", &id.to_string()]);
    let again = tokio::time::timeout(ms(3000), events.recv()).await;
    again.expect("in time").expect("an event");
    let _ = client.quit().await;
}

#[tokio::test]
async fn a_lagging_message_stream_says_so() {
    let server = Server::start();
    let config = Config::from_url(&server.url()).expect("a valid address");
    let mut builder = Builder::from_config(config);
    builder.with_performance_config(|performance| performance.broadcast_channel_capacity = 32);
    let client = builder.build().expect("valid settings");
    let mut messages = client.message_rx();
    client.init().await.expect("connected");
    let _: () = client.subscribe("c").await.expect("queued");
    let mut control = server.control();
    eventually("subscribed", ms(2000), || {
        control.run(&["PUBLISH", "c", "0"]) == "1"
    })
    .await;
    control.run(&[
        "EVAL",
        "for n = 1, 5000 do redis.call('publish', 'c', '0') end",
        "0",
    ]);
    let _: Value = client.ping(None).await.expect("answered");
    loop {
        match messages.recv().await {
            Ok(_) => {}
            Err(RecvError::Lagged(missed)) => break assert!(missed > 1000),
            Err(RecvError::Closed) => panic!("lag must not close the stream"),
        }
    }
    let _ = client.quit().await;
}

#[tokio::test]
async fn a_dead_router_still_claims_to_be_connected_and_only_its_task_tells() {
    let server = Server::start();
    let client = client(server.port);
    let task = client.init().await.expect("connected");
    server
        .control()
        .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let ended = tokio::time::timeout(ms(3000), task).await;
    assert!(
        ended.is_ok(),
        "without a reconnect policy the task ends with its connection"
    );
    assert!(
        client.is_connected(),
        "what it says of itself is not to be believed"
    );
    let hanging = eval(&client, "k", ms(100)).await;
    assert_eq!(
        hanging.expect_err("nobody answers").kind(),
        &ErrorKind::Timeout
    );
}

#[tokio::test]
async fn aborting_the_connection_task_closes_the_socket() {
    let server = Server::start();
    let client = client(server.port);
    let task = client.init().await.expect("connected");
    let mut control = server.control();
    assert_eq!(control.connections(), 1);
    task.abort();
    eventually("closed", ms(2000), || control.connections() == 0).await;
}

#[tokio::test]
async fn with_one_attempt_a_lost_reply_is_an_error_and_not_a_repetition() {
    let server = Server::start();
    let proxy = Proxy::start(server.port).await;
    let config = Config::from_url(&proxy.url()).expect("a valid address");
    let mut builder = Builder::from_config(config);
    builder.set_policy(ReconnectPolicy::new_constant(0, 10));
    let client = builder.build().expect("valid settings");
    client.init().await.expect("connected");
    proxy.rule(Fate::LoseReply, 1, |words| words[0] == "EVAL");
    eval(&client, "k", ms(2000))
        .await
        .expect_err("its reply is lost");
    assert_eq!(server.control().run(&["GET", "k"]), "1");
    let _ = client.quit().await;
}

/// Answers whatever a client needs to connect, and everything else with `reply`.
fn answer_everything_with(reply: String) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let Ok((mut socket, _)) = listener.accept() else {
            return;
        };
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = socket.read(&mut bytes) {
            let command = String::from_utf8_lossy(&bytes[..read]).into_owned();
            let answer = match () {
                () if command.contains("PING") => "+PONG\r\n",
                () if command.contains("CLIENT") => ":1\r\n",
                () if command.contains("INFO") => "$0\r\n\r\n",
                () => &reply,
            };
            if socket.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    port
}

#[tokio::test]
async fn a_reply_that_is_nested_deep_ends_the_process_that_reads_it() {
    // The process that reads it is not this one: the test starts itself again.
    const DEPTH: &str = "REDISSON_LOCK_TEST_DEPTH";
    const THIS: &str = "a_reply_that_is_nested_deep_ends_the_process_that_reads_it";
    if let Ok(depth) = std::env::var(DEPTH) {
        let depth = depth.parse().expect("a number");
        let client = client(answer_everything_with(format!(
            "{}:1\r\n",
            "*1\r\n".repeat(depth)
        )));
        client.init().await.expect("connected");
        let mut answer = eval(&client, "k", ms(20_000))
            .await
            .expect("read to its end");
        // Dropped from the outside in: dropping a deep value recurses too.
        while let Value::Array(mut items) = answer {
            answer = items.pop().expect("one each");
        }
        return assert_eq!(answer, Value::Integer(1));
    }
    let reads = |depth: &str| {
        let mut command = std::process::Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", THIS, "--nocapture"])
            .env(DEPTH, depth);
        command.output().expect("started")
    };
    let shallow = reads("8");
    assert!(
        shallow.status.success(),
        "{}",
        String::from_utf8_lossy(&shallow.stderr)
    );
    let deep = reads("100000");
    let last_words = String::from_utf8_lossy(&deep.stderr).into_owned();
    assert!(
        !deep.status.success() && last_words.contains("overflowed its stack"),
        "{last_words}"
    );
}
