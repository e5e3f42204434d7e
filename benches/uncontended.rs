//! What a lock of each kind costs over its script calls: lock+unlock against the same files in `lua/` on a bare fred client
//! with the same settings, interleaved in one run. A multi lock has two members, a red lock three servers.
//!
//! `cargo bench --bench uncontended [-- --pairs N --rounds N --kind KIND]`

use std::time::{Duration, Instant};

use fred::prelude::*;
use fred::socket2::TcpKeepalive;
use fred::types::CustomCommand;
use fred::types::config::{Options, TcpConfig};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redisson_lock::{LockClient, LockKind, MultiLock, RedLock};
use test_support::Server;
use test_support::kinds::{KINDS, scripts, token_key};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let pairs = argument("--pairs").unwrap_or(10_000);
    let rounds = argument("--rounds").unwrap_or(3);
    let only: Option<String> = argument("--kind");
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    println!("uncontended lock+unlock, {pairs} pairs a round, p50 / p99 / pairs per second");
    let server = Server::start();
    let client = connect(&server).await;
    for kind in KINDS {
        let name = kind.to_string();
        if wanted(&name) {
            let bare = bare(&server, kind, &format!("bare-{kind}")).await;
            let lock = client.lock_of(kind, format!("bench-{kind}"));
            let ours = async || {
                lock.lock()
                    .await
                    .expect("free")
                    .unlock()
                    .await
                    .expect("held")
            };
            compare(&name, async || bare.pair().await, ours, pairs, rounds).await;
        }
    }
    if wanted("multi") {
        multi(&server, &client, pairs, rounds).await;
    }
    if wanted("red") {
        red(pairs, rounds).await;
    }
}

async fn connect(server: &Server) -> LockClient {
    let connected = LockClient::connect(&server.url()).await;
    connected.expect("the server answers")
}

/// Two locks of one server: taken one after the other, released together.
async fn multi(server: &Server, client: &LockClient, pairs: usize, rounds: usize) {
    let one = bare(server, LockKind::Plain, "bare-one").await;
    let other = bare(server, LockKind::Plain, "bare-other").await;
    let floor = async || {
        one.acquire().await;
        other.acquire().await;
        tokio::join!(one.release(), other.release());
    };
    let members = ["one", "other"].map(|name| client.lock(format!("bench-{name}")));
    let lock = MultiLock::new(members).expect("two names");
    let ours = async || {
        lock.lock()
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held")
    };
    compare("multi", floor, ours, pairs, rounds).await;
}

/// Three servers, each asked at the same time; two answers are enough.
async fn red(pairs: usize, rounds: usize) {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let (mut bares, mut members) = (Vec::new(), Vec::new());
    for server in &servers {
        bares.push(bare(server, LockKind::Plain, "bare-red").await);
        members.push(connect(server).await.lock("bench-red"));
    }
    // A server whose answer is not waited for is asked all the same, and answers later.
    let mut asked = FuturesUnordered::new();
    let mut quorum = async |takes: bool| {
        asked.extend(bares.iter().map(|bare| async move {
            match takes {
                true => bare.acquire().await,
                false => bare.release().await,
            }
            takes
        }));
        let mut answers = 0;
        while answers < 2 {
            answers += usize::from(asked.next().await == Some(takes));
        }
    };
    let floor = async || {
        quorum(true).await;
        quorum(false).await;
    };
    let lock = RedLock::new(members).expect("three servers");
    let ours = async || {
        lock.lock()
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held")
    };
    compare("red", floor, ours, pairs, rounds).await;
}

/// The value after this word, if it is there.
fn argument<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::args()
        .skip_while(|argument| argument != name)
        .nth(1)?;
    let value = value.parse().ok();
    Some(value.unwrap_or_else(|| panic!("{name} has no such value")))
}

async fn compare(
    kind: &str,
    mut bare: impl AsyncFnMut(),
    ours: impl AsyncFn(),
    pairs: usize,
    rounds: usize,
) {
    let block = BLOCK.min(pairs);
    let mut ratios = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        // A block of each in turn, so that whatever else the machine does meets both.
        let (mut floor, mut times) = (Vec::with_capacity(pairs), Vec::with_capacity(pairs));
        for _ in 0..pairs.div_ceil(block) {
            for _ in 0..block {
                let start = Instant::now();
                bare().await;
                floor.push(start.elapsed());
            }
            for _ in 0..block {
                let start = Instant::now();
                ours().await;
                times.push(start.elapsed());
            }
        }
        if round == 0 {
            continue; // warm-up
        }
        let (floor, ours) = (Figures::of(floor), Figures::of(times));
        let ratio = ours.p50.as_secs_f64() / floor.p50.as_secs_f64();
        println!(
            "{kind}, round {round}: bare {floor}, redisson-lock {ours}, ratio of p50 {ratio:.3}"
        );
        ratios.push(ratio);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    if let Some(median) = ratios.get(ratios.len() / 2) {
        println!("{kind}: median ratio {median:.3}");
    }
}

/// What a pair of this kind sends: its two scripts, the owner's field, the keys of each, and the last arguments of each.
struct Floor {
    field: String,
    scripts: [&'static str; 2],
    keys: [Vec<String>; 2],
    last: [Vec<String>; 2],
}

fn floor(kind: LockKind, key: &str) -> Floor {
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let alone = vec![key.to_owned()];
    let mut floor = Floor {
        field: OWNER.to_owned(),
        scripts: [scripts(kind).acquire, scripts(kind).release],
        keys: [alone.clone(), alone],
        last: [Vec::new(), vec![channel.clone()]],
    };
    match kind {
        LockKind::Plain => {}
        LockKind::Spin => floor.last[1] = owned(&[""]),
        LockKind::Fenced => floor.keys[0].push(token_key(key)),
        LockKind::String => floor.last[1].clear(),
        LockKind::Fair => {
            for keys in &mut floor.keys {
                let queue = ["queue", "timeout"];
                keys.extend(queue.map(|what| format!("redisson_lock_{what}:{{{key}}}")));
            }
            floor.last[0] = owned(&["300000", "1", &channel, "publish"]);
            floor.last[1] = owned(&[&channel, "publish", "300000", "0"]);
        }
        LockKind::Read => {
            let channel = format!("redisson_rwlock:{{{key}}}");
            let first = format!("{{{key}}}:{OWNER}:rwlock_timeout:1");
            floor
                .keys
                .iter_mut()
                .for_each(|keys| keys.push(first.clone()));
            floor.last[1] = owned(&[&channel, "publish"]);
        }
        LockKind::Write => {
            let channel = format!("redisson_rwlock:{{{key}}}");
            floor.field = format!("{OWNER}:write");
            floor.last[1] = owned(&[&channel, "publish"]);
        }
        _ => unreachable!("a kind without a floor: {kind}"),
    }
    floor
}

/// The same two scripts with the same arguments, and nothing around them.
struct Bare {
    client: Client,
    shas: [String; 2],
    floor: Floor,
}

async fn bare(server: &Server, kind: LockKind, key: &str) -> Bare {
    let mut builder =
        Builder::from_config(Config::from_url(&server.url()).expect("a valid address"));
    builder
        .with_connection_config(|connection| {
            connection.max_command_attempts = 1;
            connection.tcp = TcpConfig {
                nodelay: Some(true),
                keepalive: Some(TcpKeepalive::new().with_time(Duration::from_secs(10))),
                user_timeout: Some(Duration::from_secs(3)),
                ..TcpConfig::default()
            };
        })
        .with_performance_config(|performance| {
            performance.default_command_timeout = Duration::from_secs(3)
        });
    let client = builder.build().expect("valid settings");
    client.init().await.expect("the server answers");
    let mut control = server.control();
    let floor = floor(kind, key);
    let load = |source| control.run(&["SCRIPT", "LOAD", source]);
    let shas = floor.scripts.map(load);
    Bare {
        client,
        shas,
        floor,
    }
}

impl Bare {
    async fn pair(&self) {
        self.acquire().await;
        self.release().await;
    }

    async fn acquire(&self) {
        let argv = vec![self.field(), 1.into(), 30_000.into()];
        // A fenced lock answers with its token, and one that reads whether its owner also writes.
        assert!(self.call(0, argv).await > 0);
    }

    async fn release(&self) {
        let argv = vec![self.field(), 0.into(), 1.into()];
        assert_eq!(self.call(1, argv).await, 1);
    }

    fn field(&self) -> Value {
        self.floor.field.as_str().into()
    }

    async fn call(&self, script: usize, argv: Vec<Value>) -> i64 {
        let options = Options {
            max_attempts: Some(1),
            timeout: Some(Duration::from_millis(1500)),
            ..Options::default()
        };
        let (keys, last) = (&self.floor.keys[script], &self.floor.last[script]);
        let count = i64::try_from(keys.len()).expect("few");
        let mut args: Vec<Value> = vec![self.shas[script].as_str().into(), count.into()];
        args.extend(keys.iter().map(|key| key.as_str().into()));
        args.extend(argv);
        args.extend(last.iter().map(|word| word.as_str().into()));
        let command = CustomCommand::new_static("EVALSHA", None::<u16>, false);
        let client = self.client.with_options(&options);
        client.custom(command, args).await.expect("answered")
    }
}

struct Figures {
    p50: Duration,
    p99: Duration,
    per_second: f64,
}

impl Figures {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let total: Duration = times.iter().sum();
        Self {
            p50: times[times.len() / 2],
            p99: times[times.len() * 99 / 100],
            per_second: times.len() as f64 / total.as_secs_f64(),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(
            f,
            "{:.1} µs / {:.1} µs / {:.0}",
            micros(self.p50),
            micros(self.p99),
            self.per_second
        )
    }
}

const BLOCK: usize = 500;

const OWNER: &str = "7e0b0e3c-6a5f-4a53-9d0c-0e4f3d9f2a11:1";
