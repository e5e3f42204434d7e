//! What errors say about servers: which one it was, what is wrong with it and what to do, and no secret.

use std::error::Error as _;
use std::time::Duration;

use redisson_lock::{Error, LockClient, LockClientBuilder, Operation, RedLock, RefusedKind};
use test_support::{
    Cluster, Proxy, Scripted, Sentinels, Server, TestServer, assert_matches, eventually,
    lock_and_unlock, ms, tokio,
};

fn brisk() -> LockClientBuilder {
    LockClient::builder().command_timeout(ms(400))
}

/// What a user logs with `{error}`. It repeats no cause, and neither it nor anything else shows a secret.
fn logged(error: &Error) -> String {
    let text = error.to_string();
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    println!("{text}: {source}");
    assert!(
        source.is_empty() || !text.contains(&source),
        "{text}: {source}"
    );
    let all = format!("{text} {source} {error:?} {error:#?}");
    assert!(!all.contains("hidden"), "{all}");
    let nothing = ["reason of its own", "its text", "Os {", "://127"];
    assert!(!nothing.iter().any(|words| all.contains(words)), "{all}");
    text
}

async fn fails(url: &str) -> Error {
    brisk().connect(url).await.expect_err(url)
}

#[tokio::test]
async fn every_missing_answer_names_the_server() {
    let server = TestServer::new();
    let client = server.client_with(|_| brisk()).await;
    let lock = client.lock("a").lease(Duration::from_secs(60));
    let guard = lock.lock().await.expect("free");
    let mut control = server.control();
    control.run(&["HSET", "b", "java:1", "1"]);
    control.run(&["PEXPIRE", "b", "60000"]);
    server.pause();
    let asked = [
        ("extend", guard.extend(ms(90_000)).await),
        ("inspect", lock.is_locked().await.map(drop)),
        ("force", lock.force_unlock().await.map(drop)),
        ("ping", client.ping().await.map(drop)),
        ("check", client.check("a").await.map(drop)),
        ("lock", client.lock("c").lock().await.map(drop)),
        ("unlock", guard.unlock().await),
        ("connect", Err(fails(&server.url()).await)),
    ];
    server.resume();
    for (call, result) in asked {
        let error = result.expect_err("the server stands still");
        assert_matches!(error, Error::NoAnswer { .. }, "{call}");
        let named = format!("no answer from Redis at 127.0.0.1:{} while ", server.port);
        assert!(logged(&error).starts_with(&named), "{call}: {error}");
    }
    control.run(&["DEL", "b"]);
    server.finish([client]).await;
}

/// While a waiter subscribes, and while there is no connection at all.
#[tokio::test]
async fn a_subscription_and_a_connection_that_are_missing_name_the_server_too() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = brisk().connect(&proxy.url()).await.expect("connected");
    let mut control = server.control();
    control.run(&["HSET", "a", "java:1", "1"]);
    control.run(&["PEXPIRE", "a", "60000"]);
    proxy.hold_commands(|words| words[0] == "SUBSCRIBE");
    let error = client.lock("a").lock().await.expect_err("not confirmed");
    let named = format!("no answer from Redis at 127.0.0.1:{} while ", proxy.port);
    let text = logged(&error);
    assert!(
        text.starts_with(&format!("{named}subscribing for lock `a`; ")),
        "{text}"
    );
    proxy.let_commands_go();
    proxy.refuse(true);
    proxy.cut_all();
    eventually("it is gone", ms(5_000), || !client.is_connected()).await;
    let error = client.lock("b").lock().await.expect_err("not connected");
    let text = logged(&error);
    assert!(
        text.starts_with(&format!("{named}acquiring lock `b`; ")),
        "{text}"
    );
    client.close(ms(0)).await;
    proxy.stop().await;
    control.run(&["DEL", "a"]);
    server.finish([]).await;
}

/// At connect, at a call, and when a connection is replaced.
#[tokio::test]
async fn every_refusal_names_the_server() {
    let server = TestServer::new();
    let port = server.port;
    let mut control = server.control();
    let client = server.client_with(|_| brisk()).await;
    let refused = format!("Redis at 127.0.0.1:{port} refused: ");
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = client.lock("a").lock().await.expect_err("refused");
    assert!(logged(&error).starts_with(&refused), "{error}");
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let error = fails(&format!("redis://:hidden@127.0.0.1:{port}/99")).await;
    assert!(logged(&error).starts_with(&refused), "{error}");
    assert!(error.to_string().contains("`databases`"), "{error}");

    control.run(&["CONFIG", "SET", "requirepass", "right"]);
    control.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually("it is gone", ms(5_000), || !client.is_connected()).await;
    let asks = format!("Redis at 127.0.0.1:{port} asks for a password: ");
    let error = client.lock("a").lock().await.expect_err("no password");
    assert!(logged(&error).starts_with(&asks), "{error}");
    assert_matches!(error, Error::Auth { .. });
    let error = fails(&format!("redis://127.0.0.1:{port}")).await;
    assert!(logged(&error).starts_with(&asks), "{error}");
    let error = fails(&format!("redis://:hidden@127.0.0.1:{port}")).await;
    let wrong = format!("Redis at 127.0.0.1:{port} did not accept the credentials: check ");
    assert!(logged(&error).starts_with(&wrong), "{error}");
    control.run(&["CONFIG", "SET", "requirepass", ""]);
    eventually("it is back", ms(5_000), || client.is_connected()).await;
    server.finish([client]).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_is_named_by_its_path() {
    let folder = std::env::temp_dir().join(format!("redisson-lock texts {}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let socket = folder.join("r.sock");
    let socket = socket.to_str().expect("UTF-8");
    let url = format!(
        "redis+unix://:hidden@localhost{}",
        socket.replace(' ', "%20")
    );
    let error = fails(&url).await;
    let named = format!("no answer from Redis at {socket} while connecting; ");
    assert!(logged(&error).starts_with(&named), "{error}");
    let server = TestServer::with(&["--unixsocket", socket]);
    let client = brisk().connect(&url).await.expect("any password");
    server.pause();
    let error = client.lock("a").lock().await.expect_err("it stands still");
    server.resume();
    let named = format!("no answer from Redis at {socket} while acquiring lock `a`; ");
    assert!(logged(&error).starts_with(&named), "{error}");
    assert_eq!(error.lock(), Some("a"));
    server.finish([client]).await;
    std::fs::remove_dir_all(folder).expect("ours");
}

/// Each address leads to a server of another kind: the sentence says which, and which address to use.
#[tokio::test]
async fn an_address_that_meets_another_kind_of_server_says_which_to_use() {
    let plain = Server::start();
    let sentinels = Sentinels::start().await;
    let cluster = Cluster::start(false).await;
    let (plain, node) = (plain.port, cluster.port(0));
    let url = sentinels.url();
    let sentinel: u16 = url
        .split([':', '?'])
        .find_map(|part| part.parse().ok())
        .expect("a port");
    let name = "?sentinelServiceName=hidden";
    let table = [
        (
            "redis-cluster",
            plain,
            "",
            "is not a node of a cluster; connect with redis://",
        ),
        (
            "redis-cluster",
            sentinel,
            "",
            "is not a node of a cluster; ",
        ),
        ("redis-sentinel", plain, name, "is not a sentinel; "),
        ("redis-sentinel", node, name, "is not a sentinel; "),
    ];
    for (scheme, port, query, said) in table {
        let error = fails(&format!("{scheme}://127.0.0.1:{port}{query}")).await;
        let text = logged(&error);
        let is_other = matches!(
            &error,
            Error::Refused {
                kind: RefusedKind::Other,
                ..
            }
        );
        assert!(
            is_other && !error.is_retryable(),
            "{scheme} {port}: {error:?}"
        );
        let named = text.starts_with(&format!("Redis at 127.0.0.1:{port} refused: it "));
        assert!(named && text.contains(said), "{scheme} {port}: {text}");
    }
    // A plain address: the first call shows it.
    let client = brisk()
        .connect(&format!("redis://127.0.0.1:{sentinel}"))
        .await;
    let client = client.expect("a sentinel takes connections");
    let error = client.lock("a").lock().await.expect_err("no scripts there");
    let text = logged(&error);
    let named = text.starts_with(&format!("Redis at 127.0.0.1:{sentinel} refused: it "));
    assert!(named && text.contains("redis-sentinel://"), "{text}");
    assert_matches!(
        error,
        Error::Refused {
            kind: RefusedKind::Other,
            ..
        }
    );
    client.close(ms(0)).await;
    let error = fails(&format!("redis://127.0.0.1:{node}")).await;
    let text = logged(&error);
    assert!(
        text.starts_with(&format!("Redis at 127.0.0.1:{node} refused: it ")),
        "{text}"
    );
    assert!(text.contains("redis-cluster://"), "{text}");
    // The name is right, or the sentinels say that it is not, which shows none.
    let error = fails(&url.replace("Name=shop", "Name=hidden")).await;
    let text = logged(&error);
    assert!(
        text.contains("`sentinelServiceName`") && text.contains(&sentinel.to_string()),
        "{text}"
    );
}

/// Not the one of the address: the one that has the lock.
#[tokio::test]
async fn in_a_cluster_the_node_is_named_that_has_the_lock() {
    let mut cluster = Cluster::start(false).await;
    let builder = brisk().watchdog_timeout(ms(3_000));
    let client = builder.connect(&cluster.url()).await.expect("it works");
    let [name, other] = ["a", "b"].map(|name| cluster.key_at(1, name));
    let held = client.lock(&*name).lock().await.expect("free");
    cluster.control(1).run(&["HSET", &other, "java:1", "1"]);
    cluster.control(1).run(&["PEXPIRE", &other, "60000"]);
    let port = cluster.port(1);
    cluster
        .control(1)
        .run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = client
        .lock(cluster.key_at(1, "c"))
        .lock()
        .await
        .expect_err("refused");
    let refused = format!("Redis at 127.0.0.1:{port} refused: ");
    assert!(logged(&error).starts_with(&refused), "{error}");
    cluster
        .control(1)
        .run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    cluster.server(1).pause();
    let error = held.unlock().await.expect_err("it stands still");
    let at = format!("no answer from Redis at 127.0.0.1:{port}");
    let named = format!("{at} while unlocking lock `{name}`; ");
    assert!(logged(&error).starts_with(&named), "{error}");
    let error = client.lock(&*other).lock().await;
    let error = error.expect_err("it stands still");
    let named = format!("{at} while acquiring lock `{other}`; ");
    assert!(logged(&error).starts_with(&named), "{error}");
    cluster.server(1).resume();
    client.close(ms(0)).await;
}

/// A sentinel's password is not the server's.
#[tokio::test]
async fn a_password_that_a_sentinel_asks_for_is_its_own() {
    let sentinels = Sentinels::start().await;
    for nth in 0..3 {
        let mut sentinel = sentinels.sentinel(nth).expect("it runs");
        sentinel.run(&["ACL", "SETUSER", "default", "resetpass", ">closed"]);
    }
    let error = fails(&sentinels.url().replace("://", "://:hidden@")).await;
    let text = logged(&error);
    assert!(text.contains(") asks for a password: "), "{text}");
    assert!(text.contains("`sentinelPassword`"), "{text}");
    assert_matches!(error, Error::Auth { .. });
    let wrong = format!("{}&sentinelPassword=hidden", sentinels.url());
    let error = fails(&wrong.replace("://", "://:hidden@")).await;
    let text = logged(&error);
    let said = ") did not accept the credentials: check `sentinelUsername` and `sentinelPassword`";
    assert!(text.contains(said), "{text}");
    assert_matches!(error, Error::Auth { .. });
}

/// What stands in front of a server, and answers questions about a cluster and about a primary by these scripts, in
/// which PORT is its own.
async fn in_front_of(server: &Server, slots: String, primary: String) -> Proxy {
    let proxy = Proxy::start(server.port).await;
    let slots = slots.replace("PORT", &proxy.port.to_string());
    proxy.script(move |words| {
        let word = |nth: usize| words.get(nth).map_or("", String::as_str);
        Scripted::Answer(match (word(0), word(1)) {
            ("CLUSTER", "INFO") => {
                "return 'cluster_state:ok\\r\\ncluster_current_epoch:1\\r\\n'".to_owned()
            }
            ("CLUSTER", "MYID") => format!("return '{}'", "a".repeat(40)),
            ("CLUSTER", "SLOTS") => slots.clone(),
            ("SENTINEL", "MASTER") => "return {'config-epoch','1'}".to_owned(),
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => primary.clone(),
            _ => return Scripted::Pass,
        })
    });
    proxy
}

const NO_PORT: &str = "it was announced with port 0; see `port`, `tls-port` and, in a cluster, \
                       `cluster-announce-port`, with Sentinel `replica-announce-port` there";

/// The address is the announced one, so a look at the client's settings would find nothing.
#[tokio::test]
async fn an_address_that_was_announced_and_leads_nowhere_says_who_has_announced_it() {
    let server = Server::start();
    for port in [1, 0] {
        let slots = format!(
            "return {{{{0,10,{{'127.0.0.1',PORT,'{}'}}}},{{11,16383,{{'127.0.0.1',{port},'{}'}}}}}}",
            "a".repeat(40),
            "b".repeat(40)
        );
        let primary = format!("return {{'127.0.0.1','{port}'}}");
        let proxy = in_front_of(&server, slots, primary).await;
        let said = |who: &str, doing: &str| match port {
            0 => format!("Redis at 127.0.0.1:0 refused: {NO_PORT}"),
            _ => {
                format!(
                    "no answer from Redis at 127.0.0.1:1, which {who} announced (`map_addresses` can replace it), while {doing}; "
                )
            }
        };
        let url = format!("redis-cluster://127.0.0.1:{}", proxy.port);
        let client = brisk().connect(&url).await.expect("one is there");
        let error = client.lock("a").lock().await.expect_err("leads nowhere");
        let (text, said_here) = (
            logged(&error),
            said("the cluster has", "acquiring lock `a`"),
        );
        assert!(text.starts_with(&said_here), "{text}");
        client.close(ms(0)).await;
        let url = format!(
            "redis-sentinel://127.0.0.1:{}?sentinelServiceName=shop",
            proxy.port
        );
        let text = logged(&fails(&url).await);
        let said_here = said("the sentinels have", "connecting");
        assert!(text.starts_with(&said_here), "{text}");
    }
}

/// All nodes answer, and none of them is away.
#[tokio::test]
async fn a_slot_that_no_node_has_is_no_missing_answer() {
    let server = Server::start();
    let id = "a".repeat(40);
    let some = format!("return {{{{0,10,{{'127.0.0.1',PORT,'{id}'}}}}}}");
    for (has_none, slots) in [(true, "return {}".to_owned()), (false, some)] {
        let proxy = in_front_of(&server, slots, String::new()).await;
        let url = format!("redis-cluster://127.0.0.1:{}", proxy.port);
        let said = format!(
            "Redis at 127.0.0.1:{} refused: no node of its cluster has the slots that are needed; ",
            proxy.port
        );
        if has_none {
            let text = logged(&fails(&url).await);
            assert!(text.starts_with(&said), "{text}");
            continue;
        }
        let client = brisk().connect(&url).await.expect("it answers");
        let asked = [
            client.lock("a").lock().await.map(drop),
            client.lock("a").is_locked().await.map(drop),
            client.check("a").await.map(drop),
            client.lock("a").try_lock_for(ms(100)).await.map(drop),
        ];
        for error in asked.map(|asked| asked.expect_err("no node has it")) {
            let text = logged(&error);
            assert!(text.starts_with(&said), "{text}");
            assert!(error.is_retryable(), "{error:?}");
        }
        client.close(ms(0)).await;
    }
}

/// With and without a header: what is no request of HTTP at all is answered by a page alone.
#[tokio::test]
async fn a_web_server_on_the_port_is_told_from_redis() {
    for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "<html>400</html>\r\n"] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let web = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt as _;
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        for scheme in ["redis", "redis-cluster"] {
            let error = fails(&format!("{scheme}://127.0.0.1:{port}")).await;
            let text = logged(&error);
            let said =
                format!("Redis at 127.0.0.1:{port} refused: it is a web server; check the port");
            assert_eq!(text, said);
            assert!(!error.is_retryable(), "{error:?}");
        }
        web.abort();
        let _ = web.await;
    }
}

/// Of several nodes all that were tried are named, and the source has what became of each.
#[tokio::test]
async fn connecting_names_every_node_that_was_tried() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0");
    let listener = listener.await.expect("a free port");
    let server = Server::start();
    let dead = "127.0.0.1:1";
    let silent = &listener.local_addr().expect("an address").to_string();
    let plain = &format!("127.0.0.1:{}", server.port);
    let cluster = |rest: &str| format!("redis-cluster://:hidden@{dead}?{rest}");
    let sentinel =
        |rest: &str| format!("redis-sentinel://:hidden@{dead}?sentinelServiceName=hidden&{rest}");
    let (two, three) = (
        format!("node={silent}"),
        format!("node={silent}&node={plain}"),
    );
    // Who answers knows more than who does not.
    let table = [
        (cluster(&two), None),
        (cluster(&three), Some(plain)),
        (sentinel(&two), None),
        (sentinel(&three), Some(plain)),
    ];
    for (url, answers) in table {
        let error = fails(&url).await;
        let text = logged(&error);
        let source = error.source().expect("a source").to_string();
        for node in [dead, silent]
            .into_iter()
            .chain(answers.map(String::as_str))
        {
            assert!(text.contains(node), "{url}: {text}");
            assert!(source.contains(&format!("{node}: ")), "{url}: {source}");
        }
        let expected = match (&error, answers) {
            (Error::NoAnswer { .. }, None) => {
                format!("no answer from Redis at {dead} (also tried: ")
            }
            (Error::Refused { .. }, Some(answers)) => format!("Redis at {answers} (also tried: "),
            _ => panic!("{error:?}"),
        };
        assert!(text.starts_with(&expected), "{url}: {text}");
        assert_eq!(
            text.contains("; connect with redis://") || text.contains("it is not a sentinel; "),
            answers.is_some()
        );
    }
}

/// It came, so "no answer" would send its reader to look for a network that is fine.
#[tokio::test]
async fn an_answer_that_comes_too_late_has_a_sentence_of_its_own() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = brisk().connect(&proxy.url()).await.expect("connected");
    lock_and_unlock(&client.lock("a")).await;
    proxy.hold_replies(true);
    let lock = client.lock("a").lease(ms(100));
    let acquiring = tokio::spawn(async move { lock.lock().await });
    let mut control = server.control();
    eventually("it is taken", ms(5_000), || control.calls("hincrby") >= 2).await;
    eventually("its lease is over", ms(5_000), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;
    proxy.hold_replies(false);
    let error = acquiring.await.expect("no panic").expect_err("too late");
    let is_no_answer = matches!(&error, Error::NoAnswer { while_doing, .. } if *while_doing == Operation::Acquiring);
    assert!(is_no_answer && error.is_retryable(), "{error:?}");
    let text = logged(&error);
    let named = format!(
        "the answer from Redis at 127.0.0.1:{} came too late while acquiring lock `a`; ",
        proxy.port
    );
    assert!(
        text.starts_with(&named) && text.contains("nothing new is held"),
        "{text}"
    );
    client.close(ms(0)).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// A lock at three servers says how many of them have answered, which have not, and why.
#[tokio::test]
async fn without_a_quorum_each_server_that_did_not_answer_is_named() {
    let servers = [TestServer::new(), TestServer::new(), TestServer::new()];
    let proxy = Proxy::start(servers[0].port).await;
    let mut clients = vec![brisk().connect(&proxy.url()).await.expect("it answers")];
    for server in &servers[1..] {
        clients.push(server.client_with(|_| brisk()).await);
    }
    let red = RedLock::new(clients.iter().map(|client| client.lock("a"))).expect("three servers");
    let guard = red.lock().await.expect("all answer");
    eventually("all three have it", ms(5_000), || guard.servers() == 3).await;
    let others = [
        format!("127.0.0.1:{}", proxy.port),
        format!("127.0.0.1:{}", servers[1].port),
    ];
    servers[1].pause();
    proxy.refuse(true);
    proxy.cut_all();
    let errors = [
        ("unlock", guard.unlock().await),
        ("lock", red.lock().await.map(drop)),
    ];
    for (call, result) in errors {
        let error = result.expect_err("too few answer");
        assert_matches!(error, Error::NoAnswer { .. }, "{call}");
        let text = logged(&error);
        assert!(
            text.contains("(1 of 3 servers answered, 2 are needed)"),
            "{call}: {text}"
        );
        assert!(
            others.iter().all(|server| text.contains(server)),
            "{call}: {text}"
        );
        let source = error.source().expect("why").to_string();
        assert!(
            others.iter().all(|server| source.contains(server)),
            "{call}: {source}"
        );
    }
    servers[1].resume();
    proxy.refuse(false);
    for client in clients {
        client.close(ms(5_000)).await;
    }
    proxy.stop().await;
    for server in servers {
        server.finish([]).await;
    }
}
