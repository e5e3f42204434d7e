//! What a lock costs over its two script calls: lock+unlock against the same two files in `lua/` on
//! a bare fred client with the same settings, interleaved in one run.
//!
//! `cargo bench --bench uncontended [-- --pairs N --rounds N]`

use std::time::{Duration, Instant};

use fred::prelude::*;
use fred::socket2::TcpKeepalive;
use fred::types::CustomCommand;
use fred::types::config::{Options, TcpConfig};
use redisson_lock::LockClient;
use test_support::{ACQUIRE, RELEASE, Server};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let argument = |name: &str, default: usize| {
        let mut arguments = std::env::args()
            .skip_while(|argument| argument != name)
            .skip(1);
        arguments
            .next()
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    };
    let (pairs, rounds) = (argument("--pairs", 10_000), argument("--rounds", 3));
    let server = Server::start();
    let bare = bare(&server).await;
    let client = LockClient::connect(&server.url())
        .await
        .expect("the server answers");
    let lock = client.lock("bench");

    println!("uncontended lock+unlock, {pairs} pairs a round, p50 / p99 / pairs per second");
    for round in 0..=rounds {
        // A block of each in turn, so that whatever else the machine does meets both.
        let (mut floor, mut ours) = (Vec::with_capacity(pairs), Vec::with_capacity(pairs));
        for _ in 0..pairs.div_ceil(BLOCK) {
            for _ in 0..BLOCK {
                let start = Instant::now();
                bare.pair().await;
                floor.push(start.elapsed());
            }
            for _ in 0..BLOCK {
                let start = Instant::now();
                lock.lock()
                    .await
                    .expect("free")
                    .unlock()
                    .await
                    .expect("held");
                ours.push(start.elapsed());
            }
        }
        if round == 0 {
            continue; // warm-up
        }
        let (floor, ours) = (Figures::of(floor), Figures::of(ours));
        println!(
            "round {round}: bare {floor}, redisson-lock {ours}, ratio of p50 {:.3}",
            ours.p50.as_secs_f64() / floor.p50.as_secs_f64()
        );
    }
}

/// The same two scripts with the same arguments, and nothing around them.
struct Bare {
    client: Client,
    shas: [String; 2],
}

async fn bare(server: &Server) -> Bare {
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
    let shas = [ACQUIRE, RELEASE].map(|source| control.run(&["SCRIPT", "LOAD", source]));
    Bare { client, shas }
}

impl Bare {
    async fn pair(&self) {
        let owner = "7e0b0e3c-6a5f-4a53-9d0c-0e4f3d9f2a11:1";
        self.call(0, vec![owner.into(), 1.into(), 30_000.into()])
            .await;
        let channel = "redisson_lock__channel:{bare}";
        self.call(1, vec![owner.into(), 0.into(), 1.into(), channel.into()])
            .await;
    }

    async fn call(&self, script: usize, argv: Vec<Value>) {
        let options = Options {
            max_attempts: Some(1),
            timeout: Some(Duration::from_millis(1500)),
            ..Options::default()
        };
        let mut args: Vec<Value> = vec![self.shas[script].as_str().into(), 1.into(), "bare".into()];
        args.extend(argv);
        let command = CustomCommand::new_static("EVALSHA", None::<u16>, false);
        let answer: i64 = self
            .client
            .with_options(&options)
            .custom(command, args)
            .await
            .expect("answered");
        assert_eq!(answer, 1);
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
