//! The settings of every connection: the user's address and credentials, our values for everything
//! else.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::prelude::{Builder, Client, Config};
use fred::socket2::TcpKeepalive;
use fred::types::config::{
    Blocking, ConnectionConfig, PerformanceConfig, TcpConfig, UnresponsiveConfig,
};

use super::transport::Role;
#[cfg(feature = "test-util")]
use super::transport::Transport;
use crate::error::{self, Error};

/// What a connection is made from. Not `Debug`: it contains the password.
pub(crate) struct Settings {
    pub(super) target: Target,
    /// Host and port, for error messages.
    pub(super) address: String,
    pub(crate) command_timeout: Duration,
    pub(crate) fence: bool,
    /// What every connection is called at the server.
    pub(super) client_name: Option<Arc<str>>,
}

/// Where a connection leads.
pub(super) enum Target {
    Server(Box<Server>),
    #[cfg(feature = "test-util")]
    Custom(Arc<dyn Transport>),
}

/// An address with credentials and settings, as fred takes them.
pub(super) struct Server {
    config: Config,
    connection: ConnectionConfig,
    performance: PerformanceConfig,
}

impl Settings {
    /// Over connections that are not fred's.
    #[cfg(feature = "test-util")]
    pub(crate) fn over(
        transport: Arc<dyn Transport>,
        command_timeout: Duration,
        fence: bool,
    ) -> Self {
        Self {
            target: Target::Custom(transport),
            address: "the server of a test".to_owned(),
            command_timeout,
            fence,
            client_name: None,
        }
    }

    pub(crate) fn with_client_name(self, name: Option<&str>) -> Self {
        let client_name = name.map(Into::into);
        Self {
            client_name,
            ..self
        }
    }

    /// Whether chance has a say in when the next attempt to connect is made. Over a transport of a
    /// test what happens depends on its causes alone.
    pub(super) fn is_scattered(&self) -> bool {
        matches!(self.target, Target::Server(_))
    }

    pub(crate) fn from_url(
        url: &str,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        let config = parse(url)?;
        Self::new(config, &ConnectionConfig::default(), command_timeout, fence)
    }

    pub(crate) fn from_fred(
        client: &impl ClientLike,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        Self::new(
            client.client_config(),
            client.connection_config(),
            command_timeout,
            fence,
        )
    }

    /// The user chooses the server and the credentials. Everything else starts from fred's
    /// defaults: a setting that exists only with a feature enabled by some other crate cannot be
    /// named here, let alone set.
    fn new(
        mut config: Config,
        given: &ConnectionConfig,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        if config.server.is_clustered() || config.server.is_sentinel() {
            return Err(invalid(NOT_YET));
        }
        config.fail_fast = true;
        config.blocking = Blocking::Block;
        let tcp = TcpConfig {
            nodelay: Some(true),
            ttl: given.tcp.ttl,
            keepalive: Some(TcpKeepalive::new().with_time(Duration::from_secs(10))),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            user_timeout: Some(command_timeout),
            ..TcpConfig::default()
        };
        let connection = ConnectionConfig {
            connection_timeout: command_timeout,
            internal_command_timeout: command_timeout,
            // Resending is this crate's decision: a script that fred sends twice by itself has an
            // unknown outcome.
            max_command_attempts: 1,
            max_command_buffer_len: 0,
            unresponsive: UnresponsiveConfig {
                max_timeout: None,
                ..UnresponsiveConfig::default()
            },
            // With it one refusal is reported to every command in flight, executed or not.
            reconnect_on_auth_error: false,
            auto_client_setname: given.auto_client_setname,
            tcp,
            ..ConnectionConfig::default()
        };
        let performance = PerformanceConfig {
            default_command_timeout: command_timeout,
            broadcast_channel_capacity: 32,
            ..PerformanceConfig::default()
        };
        let address = config.server.hosts().first().map(address);
        let server = Server {
            config,
            connection,
            performance,
        };
        Ok(Self {
            target: Target::Server(Box::new(server)),
            address: address.unwrap_or_default(),
            command_timeout,
            fence,
            client_name: None,
        })
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
        builder
            .set_connection_config(self.connection.clone())
            .set_performance_config(performance);
        builder.build()
    }
}

/// Host and port, or the path of a socket.
fn address(server: &fred::types::config::Server) -> String {
    match (&*server.host, server.port) {
        (path, 0) => path.to_owned(),
        (host, port) if host.contains(':') => format!("[{host}]:{port}"),
        (host, port) => format!("{host}:{port}"),
    }
}

/// Parses an address. No message quotes more of it than its scheme: the rest may contain a
/// password.
fn parse(url: &str) -> Result<Config, Error> {
    let malformed = |part: &str| {
        invalid(&format!(
            "{part}; expected redis://[user:password@]host[:port][/database]"
        ))
    };
    let parts = url.split_once("://");
    let parts = parts.filter(|(scheme, _)| is_scheme(scheme));
    let (scheme, rest) = parts.ok_or_else(|| malformed("the scheme is missing"))?;
    // The parser treats any unknown scheme as a plain connection, `redis+tls` as well.
    let known = SCHEMES
        .iter()
        .find(|(known, _)| scheme.eq_ignore_ascii_case(known));
    let Some((_, kind)) = known else {
        return Err(invalid(&format!(
            "unknown scheme {}://: use redis:// or valkey://, with TLS rediss:// or valkeys://, for a Unix socket \
             redis+unix:// or valkey+unix://",
            error::shorten(scheme)
        )));
    };
    match (kind, Config::from_url(url)) {
        (Kind::Several, _) => Err(invalid(NOT_YET)),
        (Kind::Tls, Ok(config)) if !config.uses_tls() => Err(invalid(
            "TLS is not compiled in: enable fred's feature enable-rustls or enable-native-tls",
        )),
        (_, Ok(config)) => Ok(config),
        (Kind::Socket, Err(error)) if *error.kind() == ErrorKind::Config => Err(invalid(
            "Unix sockets are not compiled in: enable fred's feature unix-sockets",
        )),
        (Kind::Socket, Err(_)) => Err(invalid("expected redis+unix:///path/to/socket")),
        (_, Err(_)) => Err(malformed(wrong_part(rest))),
    }
}

/// What is wrong behind the scheme of an address that the parser has refused without saying where.
fn wrong_part(rest: &str) -> &'static str {
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if behind.contains('@') {
        return "special characters of user and password are written percent-encoded, a `/` as %2F";
    }
    let (login, server) = authority.rsplit_once('@').unwrap_or(("", authority));
    let host_end = match (server.starts_with('['), server.find(']')) {
        (true, None) => return "the `[` of the host is not closed",
        (true, Some(end)) => end + 1,
        (false, _) if server.matches(':').count() > 1 => {
            return "the host has more than one `:`, and an IPv6 address is written as `[::1]`";
        }
        (false, _) => server.find(':').unwrap_or(server.len()),
    };
    let (host, port) = server.split_at(host_end);
    let path = behind.split(['?', '#']).next().unwrap_or_default();
    let database = path.strip_prefix('/').unwrap_or_default();
    if host.is_empty() {
        "the host is missing"
    } else if !port.is_empty() && !port.starts_with(':') {
        "something other than `:` and the port is behind the `]` of the host"
    } else if port.len() > 1 && !is_number::<u16>(&port[1..]) {
        "the port is not a number up to 65535"
    } else if !database.is_empty() && !is_number::<u8>(database) {
        "the database is not a number up to 255"
    } else if login.contains('%') {
        "user or password is not UTF-8 when it is decoded"
    } else {
        "the host has a character that no host has"
    }
}

/// Whether it consists of digits, and is not too large.
fn is_number<N: FromStr>(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<N>().is_ok()
}

/// Whether this is a scheme by the URL grammar. A password with `://` in it must not be quoted as
/// one.
fn is_scheme(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

fn invalid(problem: &str) -> Error {
    Error::InvalidConfig {
        what: "address",
        problem: problem.to_owned(),
    }
}

/// What the scheme of an address asks for.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Tls,
    Socket,
    /// A cluster, or servers behind Sentinel.
    Several,
}

/// All supported or recognised schemes.
const SCHEMES: [(&str, Kind); 14] = [
    ("redis", Kind::Plain),
    ("valkey", Kind::Plain),
    ("rediss", Kind::Tls),
    ("valkeys", Kind::Tls),
    ("redis+unix", Kind::Socket),
    ("valkey+unix", Kind::Socket),
    ("redis-cluster", Kind::Several),
    ("rediss-cluster", Kind::Several),
    ("valkey-cluster", Kind::Several),
    ("valkeys-cluster", Kind::Several),
    ("redis-sentinel", Kind::Several),
    ("rediss-sentinel", Kind::Several),
    ("valkey-sentinel", Kind::Several),
    ("valkeys-sentinel", Kind::Several),
];

const NOT_YET: &str =
    "Redis Cluster and Sentinel are not supported yet: name one server, redis://host:port";

/// More than this many unread unlock messages count as lag, which wakes every waiter.
const MESSAGES_BUFFERED: usize = 4096;

#[cfg(test)]
mod tests;
