//! The feature `tls-rustls` on real servers: whom a client trusts, as whom it comes, and what it says when that fails.

use std::error::Error as _;
use std::fmt::Debug;
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use redisson_lock::{Error, LockClient, LockClientBuilder, Script, Tls};
use serde_json::json;
use test_support::{
    Cluster, SERVICE, Sentinels, Server, eventually, lock_and_unlock, ms, test, tokio,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[path = "tls/certificates.rs"]
mod certificates;

use certificates::{Authority, Folder, Issued, NOW, address, server_for, words};

async fn connect(tls: Tls, address: &str) -> Result<LockClient, Error> {
    LockClient::builder().tls(tls).connect(address).await
}

/// Two clients of one server lock, nest, wait for each other, and unlock.
async fn locks_as_ever(tls: &Tls, address: &str) {
    let client = connect(tls.clone(), address).await.expect("connected");
    let other = connect(tls.clone(), address).await.expect("connected");
    let (ours, theirs) = (client.lock("stock:42"), other.lock("stock:42"));
    let outer = ours.lock().await.expect("free");
    let inner = ours.lock().await.expect("nested");
    let waiting = tokio::spawn(async move {
        let guard = theirs.lock().await.expect("free at last");
        guard.unlock().await.expect("held");
    });
    let waits = || other.stats().waiting == 1 && other.stats().subscriptions == 1;
    eventually("it waits", ms(5_000), waits).await;
    inner.unlock().await.expect("held");
    outer.unlock().await.expect("held");
    // Without the message it would wait for the lease, which is 30 s long.
    let woken = tokio::time::timeout(ms(5_000), waiting).await;
    woken.expect("woken").expect("no panic");
    client.close(Duration::ZERO).await;
    other.close(Duration::ZERO).await;
}

#[tokio::test]
async fn locks_work_by_tls_with_an_authority_given_as_bytes_or_in_a_file() {
    let (server, authority, folder) = server_for(&["localhost"], NOW);
    let address = address("localhost", &server);
    locks_as_ever(&Tls::new().ca(authority.pem()), &address).await;
    let file = folder.write("given.pem", &authority.pem());
    locks_as_ever(&Tls::new().ca_file(file), &address).await;
    let address = address.replace("rediss", "ValkeyS");
    locks_as_ever(&Tls::new().ca(authority.pem()), &address).await;
}

/// What is wrong and what to do, by some of its words.
#[derive(Debug, Clone, Copy)]
struct Problem(&'static str);

impl PartialEq<&str> for Problem {
    fn eq(&self, words: &&str) -> bool {
        self.0.contains(words)
    }
}

const UNKNOWN_AUTHORITY: &str = "from an authority that is not trusted";
const WRONG_NAME: &str = "for other names";
const EXPIRED: &str = "has expired";
const NOT_YET_VALID: &str = "not valid yet";
const CLIENT_CERTIFICATE: &str = "does not accept the certificate of this client";
const NOT_TLS: &str = "does not speak TLS";
const OTHER: &str = "do not agree on TLS";

/// What an attempt to connect, or a call, failed with: the problem, and the whole text with its cause.
fn refused(outcome: Result<impl Debug, Error>) -> (Problem, String) {
    let error = outcome.expect_err("not trusted");
    let Error::Tls { problem, source } = &error else {
        panic!("{error:?}");
    };
    assert!(!error.is_retryable());
    (Problem(problem), format!("{error}: {source}"))
}

#[tokio::test]
async fn a_certificate_that_proves_nothing_has_an_error_that_says_what_to_do() {
    let same_name = Authority::new("shop");
    let (other, unknown) = (Authority::new("other"), UNKNOWN_AUTHORITY);
    let trusts = |authority: Option<&Authority>| {
        authority.map_or_else(Tls::new, |authority| Tls::new().ca(authority.pem()))
    };
    let (server, _, _folder) = server_for(&["localhost"], NOW);
    for authority in [Some(&same_name), Some(&other), None] {
        let url = address("localhost", &server);
        let (problem, text) = refused(connect(trusts(authority), &url).await);
        assert_eq!(problem, unknown, "{text}");
        let url = url.trim_start_matches("rediss://");
        assert!(text.contains(url) && text.contains("`Tls::ca`"), "{text}");
    }
    for (host, valid, expected, said) in [
        ("localhost", [2019, 2020], EXPIRED, "has expired; renew it"),
        (
            "localhost",
            [2099, 2100],
            NOT_YET_VALID,
            "the clock of this machine",
        ),
        ("other.example", NOW, WRONG_NAME, "`Tls::server_name`"),
        ("other.example", NOW, WRONG_NAME, "other.example"),
    ] {
        let (server, authority, _folder) = server_for(&[host], valid);
        let url = address("localhost", &server);
        let (problem, text) = refused(connect(trusts(Some(&authority)), &url).await);
        assert_eq!(problem, expected, "{text}");
        assert!(text.contains(said), "{text}");
    }
}

/// What `openssl req -x509` makes is one of an authority.
#[tokio::test]
async fn a_certificate_that_signs_itself_is_trusted_if_it_is_no_authority() {
    for (is_ca, expected) in [
        (IsCa::NoCa, None),
        (IsCa::Ca(BasicConstraints::Unconstrained), Some(OTHER)),
    ] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a host");
        params.is_ca = is_ca;
        let key = KeyPair::generate().expect("a key");
        let itself = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let issued = Issued {
            certificate: itself.pem(),
            key: itself.key().serialize_pem(),
        };
        let (folder, authority) = (Folder::new(), Authority(itself));
        let settings = folder.settings(&authority, &issued);
        let server = Server::start_with_tls(&words(&settings));
        let tls = Tls::new().ca(authority.pem());
        let connected = connect(tls, &address("localhost", &server)).await;
        match expected {
            None => drop(connected.expect("trusted")),
            Some(expected) => {
                let (problem, text) = refused(connected);
                assert_eq!(problem, expected);
                assert!(text.contains("CaUsedAsEndEntity"), "{text}");
            }
        }
    }
}

/// What `openssl x509 -req` makes without a file of extensions. Everything about it is right but the version.
#[tokio::test]
async fn a_certificate_of_an_old_version_says_so_wherever_it_is_given() {
    let old = Issued {
        certificate: include_str!("tls/version1.pem").to_owned(),
        key: include_str!("tls/version1.key").to_owned(),
    };
    let (authority, folder) = (Authority::new("shop"), Folder::new());
    let settings = folder.settings(&authority, &old);
    let server = Server::start_with_tls(&words(&settings));
    let url = address("localhost", &server);
    for ca in [old.certificate.clone(), authority.pem()] {
        let (problem, text) = refused(connect(Tls::new().ca(ca), &url).await);
        assert_eq!(problem, "its certificate has version 1 of X.509", "{text}");
        assert!(text.contains("version 3"), "{text}");
    }
    let tls = Tls::new().ca(authority.pem());
    let problem = invalid(tls.client_certificate(&old.certificate, &old.key), &url).await;
    let said = "client certificate: it has version 1 of X.509";
    assert!(problem.contains(said), "{problem}");
    assert!(!problem.contains("together"), "{problem}");
}

#[tokio::test]
async fn a_server_is_checked_against_its_host_or_the_name_that_was_given() {
    let (server, authority, _folder) = server_for(&["redis.example"], NOW);
    let tls = Tls::new().ca(authority.pem());
    for host in ["127.0.0.1", "localhost", "127.1"] {
        let url = address(host, &server);
        assert_eq!(refused(connect(tls.clone(), &url).await).0, WRONG_NAME);
        let named = tls.clone().server_name("redis.example");
        connect(named, &url).await.expect("its name");
        let wrong = tls.clone().server_name("localhost");
        assert_eq!(refused(connect(wrong, &url).await).0, WRONG_NAME);
    }
    // An IP address in the certificate is as good.
    let (server, authority, _folder) = server_for(&["127.0.0.1"], NOW);
    let tls = Tls::new().ca(authority.pem());
    let url = address("127.0.0.1", &server);
    connect(tls, &url).await.expect("its address");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_the_one_that_was_given() {
    let (authority, folder) = (Authority::new("shop"), Folder::new());
    let mut settings = folder.settings(&authority, &authority.issue(&["localhost"], NOW));
    settings.extend(["--tls-auth-clients".to_owned(), "yes".to_owned()]);
    let server = Server::start_with_tls(&words(&settings));
    let (tls, url) = (
        Tls::new().ca(authority.pem()),
        address("localhost", &server),
    );

    let ours = authority.issue(&["orders"], NOW);
    let with = |issued: &Issued| {
        tls.clone()
            .client_certificate(&issued.certificate, &issued.key)
    };
    locks_as_ever(&with(&ours), &url).await;
    let (certificate, key) = (
        folder.write("orders.pem", &ours.certificate),
        folder.write("orders.key", &ours.key),
    );
    let in_files = tls.clone().client_certificate_files(certificate, key);
    locks_as_ever(&in_files, &url).await;

    let expired = authority.issue(&["orders"], [2019, 2020]);
    let foreign = Authority::new("other").issue(&["orders"], NOW);
    for tls in [tls.clone(), with(&expired), with(&foreign)] {
        let (problem, text) = refused(connect(tls, &url).await);
        assert_eq!(problem, CLIENT_CERTIFICATE, "{text}");
        assert!(text.contains("`Tls::client_certificate`"), "{text}");
    }
}

/// Runs itself again, with the variable by which OpenSSL and others are told whom to trust.
#[tokio::test]
async fn without_an_authority_those_of_the_platform_are_trusted() {
    const URL: &str = "TLS_TEST_URL";
    if let Ok(url) = std::env::var(URL) {
        locks_as_ever(&Tls::new(), &url).await;
        LockClient::connect(&url)
            .await
            .expect("the same without settings");
        return;
    }
    let (server, authority, folder) = server_for(&["localhost"], NOW);
    let itself = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(itself)
        .args([
            "--exact",
            "without_an_authority_those_of_the_platform_are_trusted",
        ])
        .env(URL, address("localhost", &server))
        .env(
            "SSL_CERT_FILE",
            folder.write("platform.pem", &authority.pem()),
        )
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[tokio::test]
async fn what_speaks_no_tls_is_told_from_what_does() {
    let (server, authority, _folder) = server_for(&["localhost"], NOW);
    let tls = || Tls::new().ca(authority.pem());
    let cause = |connected: Result<LockClient, Error>| {
        let error = connected.expect_err("another protocol");
        assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
        error.source().expect("a cause").to_string()
    };
    let plain = format!("rediss://localhost:{}", server.port);
    let short = LockClient::builder().tls(tls()).command_timeout(ms(300));
    let said = cause(short.connect(&plain).await);
    assert!(said.contains("does not expect TLS there"), "{said}");

    let without = address("localhost", &server).replace("rediss", "redis");
    let said = cause(LockClient::connect(&without).await);
    assert!(said.contains("if it expects TLS"), "{said}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let web = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        let (mut socket, _) = listener.accept().await.expect("a client");
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        // Its end would be another problem.
        socket
    });
    let (problem, text) = refused(connect(tls(), &format!("rediss://localhost:{port}")).await);
    assert_eq!(problem, NOT_TLS, "{text}");
    drop(web.await);
}

#[tokio::test]
async fn a_connection_by_tls_is_replaced_and_calls_say_when_the_certificate_has_expired() {
    let (mut server, authority, folder) = server_for(&["localhost"], NOW);
    let builder = LockClient::builder().command_timeout(ms(1_000));
    let builder = builder.tls(Tls::new().ca(authority.pem()));
    let client = builder
        .connect(&address("localhost", &server))
        .await
        .expect("connected");
    let lock = client.lock("stock:42");
    lock_and_unlock(&lock).await;

    server.lose_everything();
    let guard = lock
        .retry_for(ms(10_000))
        .lock()
        .await
        .expect("connected again");
    guard.unlock().await.expect("held");
    assert!(client.stats().reconnects_total > 0);

    server.kill();
    let expired = authority.issue(&["localhost"], [2019, 2020]);
    folder.write("server.pem", &expired.certificate);
    folder.write("server.key", &expired.key);
    server.start_again();
    let mut told = None;
    for _ in 0..20 {
        let error = lock.lock().await.expect_err("not trusted any more");
        if let Error::Tls { problem, .. } = &error {
            told = Some(Problem(problem));
            break;
        }
    }
    let told = told.expect("not trusted any more");
    assert_eq!(told, EXPIRED);
}

/// The connection for commands lives on: only that for channels meets the new certificate.
#[tokio::test]
async fn a_call_that_cannot_hear_messages_says_when_the_certificate_has_expired() {
    let (server, authority, folder) = server_for(&["localhost"], NOW);
    let (url, tls) = (
        address("localhost", &server),
        Tls::new().ca(authority.pem()),
    );
    let other = connect(tls.clone(), &url).await.expect("connected");
    let _held = other.lock("stock:42").lock().await.expect("free");
    let _too = other.lock("stock:43").lock().await.expect("free");
    let builder = LockClient::builder().tls(tls).command_timeout(ms(1_000));
    let client = builder.connect(&url).await.expect("connected");
    let lock = client.lock("stock:42");
    let listener = tokio::spawn(async move { lock.lock().await.map(drop) });
    let listens = || client.stats().subscriptions == 1;
    eventually("it listens", ms(5_000), listens).await;
    let mut control = server.control();
    let expired = authority.issue(&["localhost"], [2019, 2020]);
    let certificate = folder.write("server.pem", &expired.certificate);
    folder.write("server.key", &expired.key);
    control.run(&["CONFIG", "SET", "tls-cert-file", &certificate]);
    let killed = || control.number(&["CLIENT", "KILL", "TYPE", "pubsub"]) == 1;
    eventually("it is cut off", ms(5_000), killed).await;
    let (problem, text) = refused(client.lock("stock:43").lock().await);
    assert_eq!(problem, EXPIRED, "{text}");
    listener.abort();
}

/// What is wrong with settings.
async fn invalid(tls: Tls, address: &str) -> String {
    match connect(tls, address).await {
        Err(Error::InvalidConfig {
            what: "tls",
            problem,
        }) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_before_anything_is_sent() {
    let (authority, folder) = (Authority::new("shop"), Folder::new());
    let [one, two] = [(), ()].map(|()| authority.issue(&["orders"], NOW));
    let ca = authority.pem();
    let key = one.key.clone();
    let with = |certificate: &str, key: &str| Tls::new().client_certificate(certificate, key);
    for (tls, said) in [
        (Tls::new().ca("hidden"), "ca: it has no certificate"),
        (Tls::new().ca(&key), "ca: it has no certificate"),
        (
            Tls::new().ca_file("/nowhere/ca.pem"),
            "ca: /nowhere/ca.pem cannot be read: No such file",
        ),
        (
            Tls::new().ca(&ca).server_name("hidden name"),
            "`hidden name` is no host name",
        ),
        (
            with("hidden", &key),
            "client certificate: it has no certificate",
        ),
        (
            with(&one.certificate, "hidden"),
            "key: it has no private key",
        ),
        (
            with(&one.certificate, &one.certificate),
            "key: it has no private key",
        ),
        (with(&one.certificate, &two.key), "cannot be used together"),
        (
            Tls::new().client_certificate_files(
                folder.write("orders.pem", &one.certificate),
                "/nowhere/key",
            ),
            "key: /nowhere/key cannot be read",
        ),
    ] {
        let problem = invalid(tls, "rediss://localhost:1").await;
        assert!(problem.contains(said), "{problem}");
        let secret = key.lines().nth(1).expect("a line of it");
        assert!(!problem.contains(secret), "{problem}");
    }
    for address in [
        "redis://localhost:1",
        "valkey-cluster://localhost:1",
        "redis+unix:///run/redis",
    ] {
        let problem = invalid(Tls::new(), address).await;
        assert!(problem.contains("asks for no TLS"), "{address}: {problem}");
    }
    #[cfg(feature = "fred")]
    {
        let fred = fred::prelude::Builder::default_centralized().build();
        let fred = fred.expect("settings");
        let from_fred = LockClient::builder().tls(Tls::new()).from_fred(&fred).await;
        let said = from_fred.expect_err("two sources").to_string();
        let expected = "a fred client has its own settings";
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_key_is_shown_nowhere_and_a_configuration_names_files() {
    let issued = Authority::new("shop").issue(&["orders"], NOW);
    let secret = issued.key.lines().nth(1).expect("a line of it");
    let tls = Tls::new().client_certificate(&issued.certificate, &issued.key);
    let builder = LockClient::builder().tls(tls.clone().ca_file("/etc/ca.pem"));
    let shown = format!("{tls:?} {builder:?}");
    assert!(
        !shown.contains(secret) && shown.contains("/etc/ca.pem"),
        "{shown}"
    );
    let bytes = format!("{:?}", issued.key.as_bytes());
    assert!(!shown.contains(&bytes[1..40]), "{shown}");

    let written = serde_json::to_value(&builder).expect("written");
    assert_eq!(written["tls"], json!({ "ca_file": "/etc/ca.pem" }));
    let config = json!({ "tls": {
        "ca_file": "/etc/ca.pem",
        "certificate_file": "/etc/orders.pem",
        "key_file": "/etc/orders.key",
        "server_name": "redis.example",
    }});
    let read: LockClientBuilder = serde_json::from_value(config.clone()).expect("read");
    let again = serde_json::to_value(&read).expect("written");
    assert_eq!(again["tls"], config["tls"]);
    let unknown = serde_json::from_value::<LockClientBuilder>(json!({ "tls": { "key": secret } }));
    assert!(
        unknown
            .expect_err("no such setting")
            .to_string()
            .contains("unknown field")
    );
}

#[tokio::test]
async fn a_configuration_with_half_a_client_certificate_is_refused() {
    let (server, authority, folder) = server_for(&["localhost"], NOW);
    let issued = authority.issue(&["orders"], NOW);
    let file = folder.write("orders.pem", &issued.certificate);
    let config = json!({ "tls": { "ca_file": folder.write("a.pem", &authority.pem()), "certificate_file": file } });
    let read: LockClientBuilder = serde_json::from_value(config).expect("read");
    let connected = read.connect(&address("localhost", &server)).await;
    let said = connected.expect_err("half of it").to_string();
    assert!(said.contains("go together"), "{said}");
}

#[tokio::test]
async fn nodes_of_a_cluster_found_by_ip_are_checked_against_the_host_or_the_name_given() {
    let (authority, folder) = (Authority::new("shop"), Folder::new());
    let issued = authority.issue(&["localhost", "redis.example"], NOW);
    let mut settings = folder.settings(&authority, &issued);
    settings.extend(["--tls-cluster", "yes", "--tls-replication", "yes"].map(str::to_owned));
    let cluster = Cluster::start_with_tls(&words(&settings)).await;
    let (tls, port) = (Tls::new().ca(authority.pem()), cluster.tls_port(0));
    for (host, tls) in [
        ("localhost", tls.clone()),
        ("127.0.0.1", tls.clone().server_name("redis.example")),
    ] {
        let url = format!("rediss-cluster://{host}:{port}");
        let client = connect(tls.clone(), &url).await.expect("connected");
        for nth in 0..3 {
            let key = cluster.key_at(nth, "stock");
            let guard = client.lock(&*key).lock().await.expect("free");
            assert_eq!(cluster.control(nth).count(&key), 1);
            guard.unlock().await.expect("held");
        }
        assert_eq!(client.stats().nodes, 3);
        locks_as_ever(&tls, &url).await;
    }
    let by_ip = connect(tls, &format!("rediss-cluster://127.0.0.1:{port}")).await;
    assert_eq!(refused(by_ip).0, WRONG_NAME);
}

/// More than fits into the sockets is written while the server reads nothing; what is left then is with rustls.
#[tokio::test]
async fn a_large_write_behind_a_full_socket_arrives_by_tls() {
    const SIZE: usize = 24 << 20;
    let (server, authority, _folder) = server_for(&["localhost"], NOW);
    let to = server.tls_port.expect("started with one");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let is_held_back = Arc::new(AtomicBool::new(false));
    let held_back = Arc::clone(&is_held_back);
    let proxy = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", to)).await;
            let (mut from_server, mut to_server) = server.expect("it listens").into_split();
            let (mut from_client, mut to_client) = client.into_split();
            connections.spawn(async move {
                _ = tokio::io::copy(&mut from_server, &mut to_client).await;
            });
            let held_back = Arc::clone(&held_back);
            connections.spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                    if to_server.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                    while held_back.load(Ordering::SeqCst) {
                        tokio::time::sleep(ms(1)).await;
                    }
                }
            });
        }
    });
    let tls = Tls::new().ca(authority.pem());
    let client = connect(tls, &format!("rediss://localhost:{port}")).await;
    let client = client.expect("connected");
    let guard = client.lock("stock:42").lock().await.expect("free");
    let script = Script::new("return #ARGV[1]").expect("it is whole");
    // The server learns the script.
    guard.eval(&script, &["n"], &["x"]).await.expect("held");
    for stop in [ms(0), ms(200), ms(50)] {
        is_held_back.store(true, Ordering::SeqCst);
        let value = "x".repeat(SIZE);
        let write = guard.eval(&script, &["n"], &[value.as_str()]);
        let let_go = async {
            tokio::time::sleep(stop).await;
            is_held_back.store(false, Ordering::SeqCst);
        };
        let (written, ()) = tokio::join!(write.into_future(), let_go);
        assert_eq!(
            written.expect("held").as_int(),
            Some(SIZE as i64),
            "{stop:?}"
        );
    }
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
    proxy.abort();
}

#[tokio::test]
async fn sentinels_and_the_primary_that_they_name_are_checked_as_nodes_of_a_cluster_are() {
    let (authority, folder) = (Authority::new("shop"), Folder::new());
    let issued = authority.issue(&["localhost", "redis.example"], NOW);
    let settings = folder.settings(&authority, &issued);
    let servers = Sentinels::start_with_tls(&words(&settings)).await;
    let (tls, port) = (Tls::new().ca(authority.pem()), servers.tls_port(0));
    for (host, tls) in [
        ("localhost", tls.clone()),
        ("127.0.0.1", tls.clone().server_name("redis.example")),
    ] {
        let url = format!("rediss-sentinel://{host}:{port}?sentinelServiceName={SERVICE}");
        locks_as_ever(&tls, &url).await;
    }
    let by_ip = format!("rediss-sentinel://127.0.0.1:{port}?sentinelServiceName={SERVICE}");
    assert_eq!(refused(connect(tls.clone(), &by_ip).await).0, WRONG_NAME);

    let url = format!("rediss-sentinel://localhost:{port}?sentinelServiceName={SERVICE}");
    let client = connect(tls, &url).await.expect("connected");
    let guard = client.lock("stock:42").lock().await.expect("free");
    guard.unlock().await.expect("held");
    servers.fail_over().await;
    servers.new_primary(0, ms(20_000)).await;
    let lock = client.lock("stock:42").retry_for(ms(20_000));
    let guard = lock.lock().await.expect("at the new primary");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}
