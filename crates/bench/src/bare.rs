//! The floors: this crate's scripts on clients without anything around them, with its own settings
//! of the socket.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fred::prelude::*;
use fred::socket2::TcpKeepalive;
use fred::types::CustomCommand;
use fred::types::config::{Options, TcpConfig};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo};
use sha1_smol::Sha1;
use test_support::kinds::{FAIR, READ};
use test_support::{ACQUIRE, RELEASE};

use crate::context::Context;

#[derive(Debug, Clone, Copy)]
pub enum Which {
    Acquire,
    Release,
    Pass,
    FairAcquire,
    FairRelease,
    ReadAcquire,
    ReadRelease,
}

/// The order is that of [`Which`].
const SOURCES: [&str; 7] = [
    ACQUIRE,
    RELEASE,
    include_str!("../lua/pass.lua"),
    FAIR.acquire,
    FAIR.release,
    READ.acquire,
    READ.release,
];

/// What a reply that is a list is read as: another owner holds the lock, or it is another owner's turn.
pub const BUSY: i64 = i64::MIN;

#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    Text(&'a str),
    Number(i64),
}

/// A client that calls scripts.
pub trait Scripts: Send + Sync + 'static {
    fn call<'a>(
        &'a self,
        which: Which,
        keys: &'a [&'a str],
        arguments: &'a [Argument<'a>],
    ) -> impl Future<Output = i64> + Send;
}

fn load(context: &Context) -> [String; 7] {
    SOURCES.map(|source| {
        context.with_control(|control| control.run(&["SCRIPT", "LOAD", source]));
        Sha1::from(source).digest().to_string()
    })
}

pub struct BareFred {
    pub client: Client,
    hashes: [String; 7],
}

impl BareFred {
    /// With the settings of `src/redis/settings.rs`.
    pub async fn connect(context: &Context) -> Arc<Self> {
        Self::connect_to(context, &context.server.url()).await
    }

    pub async fn connect_to(context: &Context, url: &str) -> Arc<Self> {
        let tcp = TcpConfig {
            nodelay: Some(true),
            keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE)),
            user_timeout: Some(TIMEOUT),
            ..TcpConfig::default()
        };
        Self::open(context, url, tcp).await
    }

    /// With fred's own settings of the socket, where small writes may wait for each other.
    pub async fn connect_with_defaults(context: &Context, url: &str) -> Arc<Self> {
        Self::open(context, url, TcpConfig::default()).await
    }

    async fn open(context: &Context, url: &str, tcp: TcpConfig) -> Arc<Self> {
        let config = Config::from_url(url).expect("a valid address");
        let mut builder = Builder::from_config(config);
        builder
            .with_connection_config(|connection| {
                connection.max_command_attempts = 1;
                connection.tcp = tcp;
            })
            .with_performance_config(|performance| performance.default_command_timeout = TIMEOUT);
        let client = builder.build().expect("valid settings");
        client.init().await.expect("the server answers");
        Arc::new(Self {
            client,
            hashes: load(context),
        })
    }
}

impl Scripts for BareFred {
    async fn call(&self, which: Which, keys: &[&str], arguments: &[Argument<'_>]) -> i64 {
        let options = Options {
            max_attempts: Some(1),
            timeout: Some(TIMEOUT / 2),
            ..Options::default()
        };
        let hash = self.hashes[which as usize].as_str();
        let count = i64::try_from(keys.len()).expect("few");
        let mut values: Vec<Value> = vec![hash.into(), count.into()];
        values.extend(keys.iter().map(|key| Value::from(*key)));
        values.extend(arguments.iter().map(|argument| match *argument {
            Argument::Text(text) => text.into(),
            Argument::Number(number) => number.into(),
        }));
        let command = CustomCommand::new_static("EVALSHA", None::<u16>, false);
        let client = self.client.with_options(&options);
        let answer: Value = client.custom(command, values).await.expect("answered");
        answer.as_i64().unwrap_or(BUSY)
    }
}

pub struct BareRedis {
    connection: MultiplexedConnection,
    hashes: [String; 7],
}

impl BareRedis {
    pub async fn connect(context: &Context) -> Arc<Self> {
        let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(KEEPALIVE);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(TIMEOUT);
        let address = context.server.url().into_connection_info();
        let address = address.expect("a valid address").set_tcp_settings(tcp);
        let client = redis::Client::open(address).expect("a valid address");
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Arc::new(Self {
            connection: connection.await.expect("the server answers"),
            hashes: load(context),
        })
    }
}

impl Scripts for BareRedis {
    async fn call(&self, which: Which, keys: &[&str], arguments: &[Argument<'_>]) -> i64 {
        let mut command = redis::cmd("EVALSHA");
        let hash = &self.hashes[which as usize];
        command.arg(hash).arg(keys.len()).arg(keys);
        for argument in arguments {
            match *argument {
                Argument::Text(text) => command.arg(text),
                Argument::Number(number) => command.arg(number),
            };
        }
        let mut connection = self.connection.clone();
        match command
            .query_async(&mut connection)
            .await
            .expect("answered")
        {
            redis::Value::Int(answer) => answer,
            _ => BUSY,
        }
    }
}

/// The crate's default command timeout.
const TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE: Duration = Duration::from_secs(10);
