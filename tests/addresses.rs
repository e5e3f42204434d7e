//! What an address may say: every accepted form reaches the right server, database and user, every other one is
//! refused, by the name of what is wrong and never by its value.

use redisson_lock::{Error, LockClient, LockClientBuilder};
use test_support::{Control, Server, TestServer, eventually, ms, tokio};

fn brisk() -> LockClientBuilder {
    LockClient::builder().command_timeout(ms(900))
}

/// A user with everything, whose name and password need percent-encoding.
fn add_user(control: &mut Control) {
    let password = ">p%@/?#:w";
    control.run(&[
        "ACL", "SETUSER", "us@er", "on", password, "~*", "&*", "+@all",
    ]);
}

const LOGIN: &str = "us%40er:p%25%40%2F%3F%23%3Aw@";

/// Connects, and compares where the server finds the client with where it should be.
async fn reaches(url: &str, control: &mut Control, database: i64, user: &str) {
    let connecting = brisk().client_name("tested").connect(url);
    let client = connecting
        .await
        .unwrap_or_else(|error| panic!("{url}: {error}"));
    let guard = client.lock("a").lock().await.expect("free");
    let list = control.run(&["CLIENT", "LIST"]);
    let ours: Vec<&str> = list
        .lines()
        .filter(|line| line.contains("name=tested "))
        .collect();
    assert!(!ours.is_empty(), "{url}: {list}");
    let (database, user) = (format!(" db={database} "), format!(" user={user} "));
    for line in ours {
        assert!(
            line.contains(&database) && line.contains(&user),
            "{url}: {line}"
        );
    }
    guard.unlock().await.expect("held");
    client.close(ms(0)).await;
    eventually("its connections are closed", ms(5_000), || {
        !control.run(&["CLIENT", "LIST"]).contains("name=tested ")
    })
    .await;
}

#[tokio::test]
async fn one_server_is_reached_with_its_database_and_user() {
    let server = TestServer::new();
    let (mut control, port) = (server.control(), server.port);
    add_user(&mut control);
    for scheme in ["redis", "valkey", "REDIS"] {
        let of = |login, rest| format!("{scheme}://{login}127.0.0.1:{port}{rest}");
        reaches(&of("", ""), &mut control, 0, "default").await;
        reaches(&of("", "/"), &mut control, 0, "default").await;
        reaches(&of("", "/3"), &mut control, 3, "default").await;
        reaches(&of(":any@", "?"), &mut control, 0, "default").await;
        reaches(&of(LOGIN, "/3"), &mut control, 3, "us@er").await;
    }
    server.finish([]).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_is_reached_by_its_percent_encoded_path() {
    let folder = std::env::temp_dir().join(format!("100% of {}@redis", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let socket = folder.join("r?#.sock");
    let socket = socket.to_str().expect("UTF-8");
    let server = TestServer::with(&["--unixsocket", socket]);
    let mut control = server.control();
    add_user(&mut control);
    let encoded = socket
        .replace('%', "%25")
        .replace('?', "%3f")
        .replace('#', "%23");
    let spaceless = encoded.replace(' ', "%20").replace('@', "%40");
    for scheme in ["redis+unix", "valkey+unix"] {
        for path in [&encoded, &spaceless] {
            for (login, user) in [("", "default"), ("localhost", "default")] {
                let url = format!("{scheme}://{login}{path}");
                reaches(&url, &mut control, 0, user).await;
            }
            for host in ["", "localhost"] {
                let url = format!("{scheme}://{LOGIN}{host}{path}");
                reaches(&url, &mut control, 0, "us@er").await;
            }
        }
    }
    let missing = format!("redis+unix://{spaceless}2");
    let error = LockClient::connect(&missing)
        .await
        .expect_err("no such socket");
    assert!(error.to_string().contains(&format!("{socket}2")), "{error}");
    server.finish([]).await;
    std::fs::remove_dir_all(folder).expect("ours");
}

#[tokio::test]
async fn a_cluster_is_reached_through_any_node_that_is_named() {
    let server = TestServer::with(&["--cluster-enabled", "yes"]);
    let (mut control, port) = (server.control(), server.port);
    add_user(&mut control);
    control.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("the cluster works", ms(10_000), || {
        let info = control.run(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    })
    .await;
    for scheme in ["redis-cluster", "valkey-cluster"] {
        for (rest, user) in [
            (format!("127.0.0.1:{port}"), "default"),
            (format!("127.0.0.1:{port}/0"), "default"),
            (format!("127.0.0.1:1?node=127.0.0.1:{port}"), "default"),
            (
                format!("127.0.0.1:1/?node=[::1]:2&node=127.0.0.1%3A{port}"),
                "default",
            ),
            (
                format!("{LOGIN}127.0.0.1:1?node=127.0.0.1:2&node=127.0.0.1:{port}"),
                "us@er",
            ),
        ] {
            reaches(&format!("{scheme}://{rest}"), &mut control, 0, user).await;
        }
    }
    server.finish([]).await;
}

/// A parameter without a meaning was ignored silently: `?db=3` used database 0, in which a JVM of database 3
/// was not excluded.
#[tokio::test]
async fn a_parameter_that_means_nothing_is_refused_by_its_name_before_anything_is_opened() {
    let server = Server::start();
    let mut control = server.control();
    let port = server.port;
    let before = control.run(&["INFO", "stats"]);
    let opened = |info: &str| {
        let line = info
            .lines()
            .find(|line| line.starts_with("total_connections_received"));
        line.expect("a line").to_owned()
    };
    let table = [
        ("redis", "?dbs=hidden", "dbs"),
        ("redis", "?bases=hidden", "bases"),
        ("redis", "/3?password=hidden", "password"),
        ("redis", "?username=hidden&password=hidden", "username"),
        ("redis", "?node=hidden:1", "node"),
        (
            "redis",
            "?sentinelServiceName=hidden",
            "sentinelServiceName",
        ),
        ("redis", "?hidden", ""),
        ("redis", "?a%20b=hidden", ""),
        ("redis-cluster", "?dbs=hidden", "dbs"),
        (
            "redis-cluster",
            "?sentinelServiceName=hidden",
            "sentinelServiceName",
        ),
        ("redis-cluster", "?Node=hidden:1", "Node"),
        (
            "redis-sentinel",
            "?sentinelServiceName=hidden&primary=hidden",
            "primary",
        ),
        (
            "redis-sentinel",
            "?sentinelServiceName=hidden&dbs=hidden",
            "dbs",
        ),
        (
            "redis-sentinel",
            "?sentinelServiceName=hidden&password=hidden",
            "password",
        ),
    ];
    for (scheme, rest, name) in table {
        let url = format!("{scheme}://127.0.0.1:{port}{rest}");
        let error = LockClient::connect(&url).await.expect_err(&url);
        let is_config = matches!(error, Error::InvalidConfig { what: "URL", .. });
        let shown = format!("{error} {error:?}");
        assert!(is_config, "{url}: {shown}");
        assert!(shown.contains("unknown parameter"), "{url}: {shown}");
        if !name.is_empty() {
            assert!(shown.contains(&format!("`{name}`")), "{url}: {shown}");
            assert!(!shown.contains("hidden"), "{url}: {shown}");
        }
    }
    let after = control.run(&["INFO", "stats"]);
    assert_eq!(opened(&after), opened(&before));
}
