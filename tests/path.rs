//! What a lock and an unlock cost on their way: allocations, the size of their futures, and what a held
//! lock and a waiting call keep.

use std::time::Duration;

use allocation_counter::measure;
use fred::prelude::*;
use fred::types::CustomCommand;
use fred::types::config::Options;
use redisson_lock::{LockClient, Script};
use test_support::{ACQUIRE, RELEASE, Server, TestServer, test, tokio};
use tokio::runtime::Runtime;

/// A runtime on this thread alone, so that everything that is allocated is counted.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Allocations of one turn, when all that is kept is there.
fn allocations(runtime: &Runtime, mut turn: impl AsyncFnMut()) -> f64 {
    const TURNS: u32 = 1_000;
    runtime.block_on(async {
        for _ in 0..TURNS {
            turn().await;
        }
    });
    let counted = measure(|| {
        runtime.block_on(async {
            for _ in 0..TURNS {
                turn().await;
            }
        });
    });
    counted.count_total as f64 / f64::from(TURNS)
}

/// The same two scripts with the same words on a client of the same kind, and nothing around them.
struct Bare {
    client: Client,
    hashes: [String; 2],
}

impl Bare {
    async fn connect(server: &Server) -> Self {
        let config = Config::from_url(&server.url()).expect("a valid address");
        let client = Builder::from_config(config).build().expect("valid");
        client.init().await.expect("the server answers");
        let hash = |source: &str| sha1_smol::Sha1::from(source).digest().to_string();
        let mut control = server.control();
        for source in [ACQUIRE, RELEASE] {
            control.run(&["SCRIPT", "LOAD", source]);
        }
        let hashes = [hash(ACQUIRE), hash(RELEASE)];
        Self { client, hashes }
    }

    async fn pair(&self) {
        let words = ["bare", "00000000-0000-4000-8000-000000000000:1"];
        let taken = [words[1], "1", "30000"];
        assert_eq!(self.call(0, words[0], &taken).await, 1);
        let freed = [words[1], "0", "1", "redisson_lock__channel:{bare}"];
        assert_eq!(self.call(1, words[0], &freed).await, 1);
    }

    async fn call(&self, script: usize, key: &str, words: &[&str]) -> i64 {
        let options = Options {
            max_attempts: Some(1),
            timeout: Some(Duration::from_secs(1)),
            ..Options::default()
        };
        let hash = self.hashes[script].as_str();
        let mut values: Vec<Value> = vec![hash.into(), 1.into(), key.into()];
        values.extend(words.iter().map(|word| Value::from(*word)));
        let command = CustomCommand::new_static("EVALSHA", None::<u16>, false);
        let client = self.client.with_options(&options);
        client.custom(command, values).await.expect("answered")
    }
}

#[test]
fn a_pair_allocates_less_than_two_bare_scripts() {
    let runtime = runtime();
    let server = Server::start();
    let (bare, client) = runtime.block_on(async {
        let client = LockClient::connect(&server.url()).await.expect("connected");
        (Bare::connect(&server).await, client)
    });
    let lock = client.lock("pair");
    let bare = allocations(&runtime, async || bare.pair().await);
    let ours = allocations(&runtime, async || {
        lock.lock()
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
    });
    let owner = client.owner();
    let owned = lock.owned_by(&owner);
    let explicit = allocations(&runtime, async || {
        owned
            .lock()
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
    });
    println!("allocations a pair: {ours} ({explicit} with an explicit owner), bare {bare}");
    // Two replies, what completes each of the two commands, the call with its waker, the queue, the outcome of the unlock, the
    // entry, and the hold's status.
    let most = 9.0;
    assert!(
        ours <= most + 0.1 && explicit <= most + 0.1,
        "{ours}, {explicit}"
    );
    runtime.block_on(client.close(Duration::from_secs(1)));
}

#[tokio::test]
async fn the_future_of_a_lock_is_small() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("size");
    let sizes = [
        size_of_val(&lock.lock()),
        size_of_val(&lock.try_lock()),
        size_of_val(&lock.try_lock_for(Duration::from_secs(1))),
    ];
    let guard = lock.lock().await.expect("free");
    println!("bytes: {sizes:?}, a guard {}", size_of_val(&guard));
    let unlock = guard.unlock();
    println!("bytes: unlock {}", size_of_val(&unlock));
    unlock.await.expect("held");
    assert!(sizes.iter().all(|size| *size <= 1_256), "{sizes:?}");
    server.finish([client]).await;
}

/// What stays allocated behind this.
fn kept(run: impl FnOnce()) -> f64 {
    measure(run).bytes_current as f64
}

#[test]
fn a_held_lock_and_a_waiting_call_need_little_room() {
    const MORE: usize = 4_000;
    let (runtime, server) = (runtime(), Server::start());
    let client = runtime
        .block_on(
            // No renewal falls into the time that is measured.
            LockClient::builder()
                .watchdog_timeout(Duration::from_secs(600))
                .connect(&server.url()),
        )
        .expect("connected");
    let owner = client.owner();
    let mut guards = Vec::with_capacity(2 * MORE);
    let mut take = |count: usize| {
        runtime.block_on(async {
            for number in guards.len()..guards.len() + count {
                // 16 bytes.
                let lock = client.lock(format!("room:{number:011}")).owned_by(&owner);
                guards.push(lock.lock().await.expect("free"));
            }
        });
    };
    // What grows by doubling has done so at the same point of both.
    take(MORE);
    let held = kept(|| take(MORE)) / MORE as f64;

    let first = client.lock("queue").owned_by(&owner);
    let first = runtime.block_on(first.lock()).expect("free");
    let wait = |count: usize| {
        let before = client.stats().waiting;
        for _ in 0..count {
            let lock = client.lock("queue");
            runtime.spawn(async move { lock.lock().await.map(drop) });
        }
        runtime.block_on(async {
            while client.stats().waiting < before + count {
                tokio::task::yield_now().await;
            }
        });
    };
    wait(MORE);
    let waiting = kept(|| wait(MORE)) / MORE as f64;
    println!("bytes on the heap: {held} a held lock, {waiting} a waiting call with its task");
    // Nearly all of it are the entry with its owner and hold, and the lock's name.
    assert!(held <= 700.0, "{held}");
    assert!(waiting <= 2_112.0, "{waiting}");
    runtime.block_on(async {
        drop((first, guards));
        client.close(Duration::from_secs(10)).await;
    });
}

/// A script and its result of 8 MB each.
#[test]
fn a_long_guarded_write_keeps_no_memory() {
    const LONG: usize = 8 << 20;
    let (runtime, server) = (runtime(), Server::start());
    let client = runtime.block_on(LockClient::connect(&server.url()));
    let client = client.expect("connected");
    let guard = runtime.block_on(client.lock("a").lock()).expect("free");
    let script = Script::new("return ARGV[1]").expect("it is whole");
    let write = |length: usize| {
        let (keys, text) = ([] as [&str; 0], "a".repeat(length));
        let written = runtime.block_on(async { guard.eval(&script, &keys, &[text]).await });
        assert!(written.is_ok(), "{written:?}");
    };
    write(1);
    let kept = kept(|| write(LONG));
    println!("bytes on the heap after a guarded write of {LONG}: {kept}");
    assert!(kept <= 200_000.0, "{kept}");
    runtime.block_on(guard.unlock()).expect("held");
    runtime.block_on(client.close(Duration::from_secs(1)));
}
