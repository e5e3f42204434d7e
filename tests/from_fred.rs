//! A client made from the settings of a fred client, whatever that client is and whatever becomes
//! of it.
//!
//! One of the tests needs Unix sockets, so none is built on Windows.

#![cfg(unix)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fred::prelude::{Builder, ClientLike, Config, ReconnectPolicy, ServerConfig};
use redisson_lock::{ConnectionFence, Error, LockClient};
use test_support::{Control, Fate, Proxy, TestServer, acquire_to, eventually, ms, tokio, within};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;

fn config(server: &TestServer) -> Config {
    Config::from_url(&server.url()).expect("a valid address")
}

async fn works(client: &LockClient) {
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    let nested = lock.lock().await.expect("nested");
    assert_eq!(lock.hold_count().await.expect("asked"), 2);
    nested.unlock().await.expect("held");
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn a_client_without_a_reconnect_policy_is_never_used_or_connected() {
    let server = TestServer::new();
    let theirs = Builder::from_config(config(&server))
        .build()
        .expect("valid settings");
    let client = LockClient::from_fred(&theirs)
        .await
        .expect("the server answers");
    works(&client).await;
    assert!(!theirs.is_connected());
    assert_eq!(server.control().connections(), 1, "ours alone");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_clients_own_retries_do_not_double_a_hold() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let mut builder =
        Builder::from_config(Config::from_url(&proxy.url()).expect("a valid address"));
    builder
        .set_policy(ReconnectPolicy::new_constant(0, 1))
        .with_connection_config(|connection| connection.max_command_attempts = 5);
    let theirs = builder.build().expect("valid settings");
    let client = LockClient::from_fred(&theirs)
        .await
        .expect("the server answers");
    works(&client).await;
    proxy.rule(Fate::LoseReply, 1, acquire_to(1));
    let guard = client.lock("a").lock().await.expect("repeated by us, once");
    assert_eq!(server.control().count("a"), 1);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

#[tokio::test]
async fn a_pool_gives_its_settings() {
    let server = TestServer::new();
    let pool = Builder::from_config(config(&server))
        .build_pool(3)
        .expect("valid settings");
    let task = pool.init().await.expect("connected");
    let client = LockClient::builder()
        .watchdog_timeout(Duration::from_secs(9))
        .command_timeout(ms(500))
        .from_fred(&pool)
        .await
        .expect("the server answers");
    works(&client).await;
    assert_eq!(server.control().connections(), 3 + 1);
    pool.quit().await.expect("quit");
    let _ = task.await;
    server.finish([client]).await;
}

#[tokio::test]
async fn a_client_that_is_quit_while_locks_are_held_takes_none_of_them_along() {
    let server = TestServer::new();
    let theirs = Builder::from_config(config(&server))
        .build()
        .expect("valid settings");
    let task = theirs.init().await.expect("connected");
    let client = LockClient::builder()
        .watchdog_timeout(ms(900))
        .command_timeout(ms(250))
        .from_fred(&theirs)
        .await
        .expect("the server answers");
    let guard = client.lock("a").lock().await.expect("free");
    theirs.quit().await.expect("quit");
    let _ = task.await;
    let before = client.stats().renewed_total;
    eventually("it is renewed again and again", ms(5_000), || {
        client.stats().renewed_total >= before + 4
    })
    .await;
    assert_eq!(
        guard.state(),
        redisson_lock::HoldState::Held,
        "renewed over a connection of its own"
    );
    guard.unlock().await.expect("held");
    works(&client).await;
    server.finish([client]).await;
}

#[tokio::test]
async fn its_connections_speak_the_version_they_need_whatever_the_given_client_does() {
    let server = TestServer::new();
    let mut config = config(&server);
    config.version = fred::types::RespVersion::RESP2;
    let theirs = Builder::from_config(config)
        .build()
        .expect("valid settings");
    let client = LockClient::from_fred(&theirs)
        .await
        .expect("the server answers");
    works(&client).await;
    let mut control = server.control();
    for line in ours(&mut control) {
        // Redis 6.2 does not show it.
        assert!(
            line.contains(" resp=3") || !line.contains(" resp="),
            "{line}"
        );
    }
    let other = server.client().await;
    let held = other.lock("a").lock().await.expect("free");
    let waiter = tokio::spawn({
        let lock = client.lock("a");
        async move { lock.lock().await.expect("taken").unlock().await }
    });
    eventually("it waits", ms(2000), || {
        !control.run(&["PUBSUB", "CHANNELS"]).is_empty()
    })
    .await;
    held.unlock().await.expect("held");
    let woken = within(ms(1000), waiter).await.expect("woken");
    woken.expect("no panic").expect("held");
    server.finish([client, other]).await;
}

#[tokio::test]
async fn its_user_and_its_database_are_ours() {
    let server = TestServer::new();
    let mut control = server.control();
    control.run(&[
        "ACL", "SETUSER", "locker", "on", ">p%w", "~*", "&*", "+@all",
    ]);
    let mut config = config(&server);
    (config.username, config.password) = (Some("locker".to_owned()), Some("p%w".to_owned()));
    config.database = Some(3);
    let theirs = Builder::from_config(config)
        .build()
        .expect("valid settings");
    let client = LockClient::from_fred(&theirs)
        .await
        .expect("the server answers");
    works(&client).await;
    let ours = ours(&mut control);
    assert_eq!(ours.len(), 1);
    for line in ours {
        assert!(
            line.contains(" user=locker") && line.contains(" db=3 "),
            "{line}"
        );
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn a_refusal_is_told_to_its_own_caller_alone_whatever_the_given_client_does() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let mut builder =
        Builder::from_config(Config::from_url(&proxy.url()).expect("a valid address"));
    builder.with_connection_config(|connection| connection.reconnect_on_auth_error = true);
    let theirs = builder.build().expect("valid settings");
    let client = LockClient::from_fred(&theirs)
        .await
        .expect("the server answers");
    works(&client).await;
    for line in [
        "-NOAUTH Authentication required.",
        "-WRONGPASS invalid username-password pair",
        "-CLUSTERDOWN The cluster is down",
        "-LOADING Redis is loading the dataset in memory",
    ] {
        let a_alone = |words: &[String]| acquire_to(1)(words) && words[3] == "a";
        proxy.rule(Fate::Instead(line), 1, a_alone);
        proxy.hold_replies(true);
        let mut control = server.control();
        let (a, b) = (client.lock("a"), client.lock("b"));
        let (refused, guard, ()) = tokio::join!(a.try_lock(), b.try_lock(), async {
            eventually("executed", ms(2000), || control.count("b") == 1).await;
            proxy.hold_replies(false);
        });
        let is_refused = matches!(refused, Err(Error::Auth { .. } | Error::Refused { .. }));
        assert!(is_refused, "{refused:?}");
        guard
            .expect("not refused")
            .expect("free")
            .unlock()
            .await
            .expect("held");
        assert_eq!(client.stats().reconnects_total, 0, "the connection goes on");
    }
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// A Unix socket in front of another. Of a connection that is cut the server's end stays open.
struct Front {
    cut: Arc<Notify>,
    kept: Arc<Mutex<Vec<std::os::unix::net::UnixStream>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Front {
    fn start(at: &Path, to: PathBuf) -> Self {
        let listener = UnixListener::bind(at).expect("a free path");
        let (cut, kept) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
        let (cutting, keeping) = (Arc::clone(&cut), Arc::clone(&kept));
        let task = tokio::spawn(async move {
            let mut links = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let (to, cut, kept) = (to.clone(), Arc::clone(&cutting), Arc::clone(&keeping));
                links.spawn(async move {
                    let mut server = UnixStream::connect(to).await.expect("the server listens");
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        () = cut.notified() => kept.lock().expect("unpoisoned").push(server.into_std().expect("whole")),
                    }
                });
            }
        });
        Self { cut, kept, task }
    }

    /// How many of the kept connections the server has closed.
    fn closed(&self) -> usize {
        let mut kept = self.kept.lock().expect("unpoisoned");
        kept.iter_mut()
            .filter_map(|socket| socket.read(&mut [0; 4096]).ok())
            .filter(|&read| read == 0)
            .count()
    }
}

#[tokio::test]
async fn over_a_unix_socket_with_spaces_in_its_path_the_fence_hits_the_lost_connection() {
    let folder =
        std::env::temp_dir().join(format!("redisson-lock two  spaces {}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let (socket, front) = (folder.join("r.sock"), folder.join("front.sock"));
    let server = TestServer::with(&["--unixsocket", socket.to_str().expect("UTF-8")]);
    let proxy = Front::start(&front, socket);
    let config = Config {
        server: ServerConfig::new_unix_socket(front),
        ..Config::default()
    };
    let theirs = Builder::from_config(config)
        .build()
        .expect("valid settings");
    let client = LockClient::from_fred(&theirs)
        .await
        .expect("the server answers");
    works(&client).await;
    assert_eq!(client.stats().connection_fence, ConnectionFence::Active);
    proxy.cut.notify_waiters();
    works(&client).await;
    assert_eq!(
        (
            client.stats().reconnects_total,
            client.stats().connection_fence
        ),
        (1, ConnectionFence::Active)
    );
    assert_eq!(
        proxy.kept.lock().expect("unpoisoned").len(),
        1,
        "the server has not heard of its end"
    );
    eventually("the lost connection is killed", ms(2000), || {
        proxy.closed() == 1
    })
    .await;
    client.close(Duration::ZERO).await;
    proxy.task.abort();
    drop(proxy);
    server.finish([]).await;
    std::fs::remove_dir_all(folder).expect("ours");
}

/// What the server says about the connections that are not the test's own.
fn ours(control: &mut Control) -> Vec<String> {
    let list = control.run(&["CLIENT", "LIST"]);
    list.lines()
        .filter(|line| !line.contains("name=control "))
        .map(str::to_owned)
        .collect()
}

/// A password that fred's provider has now.
#[derive(Debug, Default)]
struct Vault(std::sync::Mutex<String>);

type Fetched = Result<(Option<String>, Option<String>), fred::error::Error>;

impl fred::types::config::CredentialProvider for Vault {
    // As the macro `async_trait` writes it.
    fn fetch<'a, 'b, 'c>(
        &'a self,
        _server: Option<&'b fred::prelude::Server>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Fetched> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        let password = self.0.lock().expect("unpoisoned").clone();
        Box::pin(async move { Ok((Some("locker".to_owned()), Some(password))) })
    }

    fn refresh_interval(&self) -> Option<Duration> {
        Some(ms(20))
    }
}

#[tokio::test]
async fn its_provider_of_credentials_is_asked_for_each_connection_and_again() {
    let server = TestServer::new();
    let mut control = server.control();
    let permit = |control: &mut Control, password: &str| {
        let words = [
            "ACL",
            "SETUSER",
            "locker",
            "resetpass",
            "on",
            password,
            "~*",
            "&*",
            "+@all",
        ];
        control.run(&words);
    };
    permit(&mut control, ">first");
    let vault = std::sync::Arc::new(Vault::default());
    *vault.0.lock().expect("unpoisoned") = "first".to_owned();
    let mut config = config(&server);
    config.credential_provider = Some(std::sync::Arc::clone(&vault) as _);
    let theirs = Builder::from_config(config)
        .build()
        .expect("valid settings");
    let client = LockClient::from_fred(&theirs).await.expect("connected");
    works(&client).await;
    permit(&mut control, ">second");
    *vault.0.lock().expect("unpoisoned") = "second".to_owned();
    let (calls, mut other) = (control.calls("auth"), server.control());
    eventually("it authenticates again", ms(5_000), || {
        other.calls("auth") > calls + 3
    })
    .await;
    control.run(&["CLIENT", "KILL", "USER", "locker"]);
    works(&client).await;
    server.finish([client]).await;
}
