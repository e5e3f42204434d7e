//! The settings of every connection: the user's address and credentials, our rules for everything else.

use std::time::Duration;

use fred::interfaces::ClientLike;
use fred::prelude::{Builder, Client, Config};
use fred::socket2::TcpKeepalive;
use fred::types::config::{ConnectionConfig, PerformanceConfig};

use super::Role;
use crate::error::Error;

/// What a connection is made from. Not `Debug`: it contains the password.
pub(crate) struct Settings {
    pub(super) target: Target,
    pub(crate) command_timeout: Duration,
    pub(crate) fence: bool,
}

/// Where a connection leads to.
pub(super) enum Target {
    Server(Box<Server>),
    #[cfg(test)]
    Simulated(crate::sim::Access),
}

/// An address with credentials and rules, as fred wants them.
pub(super) struct Server {
    config: Config,
    connection: ConnectionConfig,
    performance: PerformanceConfig,
}

impl Settings {
    #[cfg(test)]
    pub(crate) fn simulated(access: crate::sim::Access, command_timeout: Duration, fence: bool) -> Self {
        Self { target: Target::Simulated(access), command_timeout, fence }
    }

    pub(crate) fn from_url(url: &str, command_timeout: Duration, fence: bool) -> Result<Self, Error> {
        let invalid = |problem: &str| Error::InvalidConfig { what: "address", problem: problem.to_owned() };
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        // The parser takes any scheme for a plain connection, and its own message may quote the password.
        let config = Config::from_url(url)
            .ok()
            .filter(|_| scheme.is_some_and(|scheme| SCHEMES.iter().any(|known| scheme.starts_with(known))))
            .ok_or_else(|| invalid("expected redis://[user:password@]host[:port][/database]"))?;
        if matches!(scheme, Some("rediss" | "valkeys")) && !config.uses_tls() {
            return Err(invalid(
                "TLS is not compiled in: enable fred's feature enable-rustls or enable-native-tls",
            ));
        }
        Self::new(config, ConnectionConfig::default(), PerformanceConfig::default(), command_timeout, fence)
    }

    pub(crate) fn from_fred(
        client: &impl ClientLike,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        Self::new(
            client.client_config(),
            client.connection_config().clone(),
            client.perf_config(),
            command_timeout,
            fence,
        )
    }

    fn new(
        mut config: Config,
        mut connection: ConnectionConfig,
        mut performance: PerformanceConfig,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        if config.server.is_clustered() || config.server.is_sentinel() {
            return Err(Error::InvalidConfig {
                what: "address",
                problem:
                    "Redis Cluster and Sentinel are not supported yet: name one server, redis://host:port"
                        .to_owned(),
            });
        }
        config.fail_fast = true;
        connection.connection_timeout = command_timeout;
        connection.internal_command_timeout = command_timeout;
        // A repetition is ours to decide: a script that fred sends twice by itself is a script of unknown fate.
        connection.max_command_attempts = 1;
        connection.max_command_buffer_len = 0;
        connection.unresponsive.max_timeout = None;
        connection.tcp.nodelay = Some(true);
        connection.tcp.keepalive = Some(TcpKeepalive::new().with_time(Duration::from_secs(10)));
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        {
            connection.tcp.user_timeout = Some(command_timeout);
        }
        performance.default_command_timeout = command_timeout;
        performance.broadcast_channel_capacity = 32;
        let server = Server { config, connection, performance };
        Ok(Self { target: Target::Server(Box::new(server)), command_timeout, fence })
    }
}

impl Server {
    /// A client for one connection: no reconnect policy, so that its task ends with the connection.
    pub(super) fn client(&self, role: Role) -> Result<Client, fred::error::Error> {
        let mut performance = self.performance.clone();
        if role == Role::Messages {
            performance.broadcast_channel_capacity = MESSAGES_BUFFERED;
        }
        let mut builder = Builder::from_config(self.config.clone());
        builder.set_connection_config(self.connection.clone()).set_performance_config(performance);
        builder.build()
    }
}

const SCHEMES: [&str; 2] = ["redis", "valkey"];

/// More than this many unread unlock messages count as lag, which wakes every waiter.
const MESSAGES_BUFFERED: usize = 4096;
