//! How the commands of 64 tasks reach the server: commands for each read of a proxy that reads whatever is
//! there, ours beside a bare client with the same sockets and with fred's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fred::prelude::*;
use fred::types::CustomCommand;
use redisson_lock::LockClient;
use test_support::{ACQUIRE, RELEASE, Server, TestServer, tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TASKS: usize = 64;
const PAIRS: usize = 100;

/// Counts what it reads from its clients.
#[derive(Default)]
struct Counted {
    reads: AtomicU64,
    commands: AtomicU64,
}

/// Forwards everything both ways; each read of the clients' side is counted.
async fn proxy(server: &Server) -> (u16, Arc<Counted>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let counted = Arc::<Counted>::default();
    let (counter, target) = (Arc::clone(&counted), server.port);
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.expect("accepted");
            let server = TcpStream::connect(("127.0.0.1", target))
                .await
                .expect("the server answers");
            server.set_nodelay(true).expect("set");
            client.set_nodelay(true).expect("set");
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 20];
                while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
                    let commands = count(&buffer[..length], b"EVALSHA");
                    if commands > 0 {
                        counter.reads.fetch_add(1, Ordering::Relaxed);
                        counter.commands.fetch_add(commands, Ordering::Relaxed);
                    }
                    if to_server.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, counted)
}

fn count(text: &[u8], word: &[u8]) -> u64 {
    text.windows(word.len())
        .filter(|window| *window == word)
        .count() as u64
}

impl Counted {
    /// Commands for each read since the last look.
    fn take(&self) -> (u64, f64) {
        let commands = self.commands.swap(0, Ordering::Relaxed);
        let reads = self.reads.swap(0, Ordering::Relaxed);
        (commands, commands as f64 / reads.max(1) as f64)
    }
}

async fn of_all<F: Future<Output = ()> + Send + 'static>(task: impl Fn(usize) -> F) {
    let tasks: Vec<_> = (0..TASKS).map(|nth| tokio::spawn(task(nth))).collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

async fn bare(port: u16, nodelay: bool) -> Client {
    let config = Config::from_url(&format!("redis://127.0.0.1:{port}")).expect("valid");
    let mut builder = Builder::from_config(config);
    builder.with_connection_config(|connection| {
        connection.tcp.nodelay = nodelay.then_some(true);
    });
    let client = builder.build().expect("valid");
    client.init().await.expect("the server answers");
    client
}

async fn bare_pairs(client: Client, nth: usize) {
    let hash = |source: &str| sha1_smol::Sha1::from(source).digest().to_string();
    let (key, owner) = (
        format!("bare:{nth}"),
        "00000000-0000-4000-8000-000000000000:1",
    );
    let channel = format!("redisson_lock__channel:{{{key}}}");
    for _ in 0..PAIRS {
        for (source, words) in [
            (ACQUIRE, vec![owner, "1", "30000"]),
            (RELEASE, vec![owner, "0", "1", &channel]),
        ] {
            let mut values: Vec<Value> = vec![hash(source).into(), 1.into(), key.as_str().into()];
            values.extend(words.into_iter().map(Value::from));
            let command = CustomCommand::new_static("EVALSHA", None::<u16>, false);
            let answer: i64 = client.custom(command, values).await.expect("answered");
            assert_eq!(answer, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_are_ready_together_are_counted_by_the_read() {
    let server = TestServer::new();
    for source in [ACQUIRE, RELEASE] {
        server.control().run(&["SCRIPT", "LOAD", source]);
    }
    let (port, counted) = proxy(&server).await;
    let client = LockClient::connect(&format!("redis://127.0.0.1:{port}"))
        .await
        .expect("the server answers");
    let locks = client.clone();
    of_all(move |nth| {
        let lock = locks.lock(format!("ours:{nth}"));
        async move {
            for _ in 0..PAIRS {
                let guard = lock.lock().await.expect("free");
                guard.unlock().await.expect("held");
            }
        }
    })
    .await;
    let (commands, ours) = counted.take();
    assert_eq!(
        commands,
        (2 * TASKS * PAIRS) as u64,
        "two scripts a pair, each sent once"
    );
    let mut floors = Vec::new();
    for nodelay in [true, false] {
        let client = bare(port, nodelay).await;
        let tasks = client.clone();
        of_all(move |nth| bare_pairs(tasks.clone(), nth)).await;
        let (commands, floor) = counted.take();
        assert_eq!(commands, (2 * TASKS * PAIRS) as u64);
        floors.push(floor);
        client.quit().await.expect("answered");
    }
    println!(
        "commands for each read, {TASKS} tasks: {ours:.2}; a bare client with the same sockets {:.2}, with fred's own {:.2}",
        floors[0], floors[1]
    );
    client.close(std::time::Duration::ZERO).await;
}
