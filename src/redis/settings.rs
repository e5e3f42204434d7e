//! The settings of every connection: the user's address and credentials, our values for everything
//! else.

#[cfg(feature = "test-util")]
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
use crate::error::Error;
use crate::server_error;

/// What a connection is made from. Not `Debug`: it contains the password.
pub(crate) struct Settings {
    pub(super) target: Target,
    pub(crate) command_timeout: Duration,
    pub(crate) fence: bool,
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
            command_timeout,
            fence,
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
        let server = Server {
            config,
            connection,
            performance,
        };
        Ok(Self {
            target: Target::Server(Box::new(server)),
            command_timeout,
            fence,
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

/// Parses an address. No message quotes more of it than its scheme: the rest may contain a
/// password.
fn parse(url: &str) -> Result<Config, Error> {
    let malformed = || invalid("expected redis://[user:password@]host[:port][/database]");
    let scheme = url
        .split_once("://")
        .map(|(scheme, _)| scheme)
        .filter(|scheme| is_scheme(scheme));
    let scheme = scheme.ok_or_else(malformed)?;
    // The parser treats any unknown scheme as a plain connection, `redis+tls` as well.
    let known = SCHEMES
        .iter()
        .find(|(known, _)| scheme.eq_ignore_ascii_case(known));
    let Some((_, kind)) = known else {
        return Err(invalid(&format!(
            "unknown scheme {}://: use redis:// or valkey://, with TLS rediss:// or valkeys://, for a Unix socket \
             redis+unix:// or valkey+unix://",
            server_error::shorten(scheme)
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
        (_, Err(_)) => Err(malformed()),
    }
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
mod tests {
    use fred::prelude::ServerConfig;
    use fred::types::RespVersion;
    use fred::types::config::ClusterDiscoveryPolicy;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(1234);

    fn made(settings: Result<Settings, Error>) -> Server {
        match settings.expect("valid settings").target {
            Target::Server(server) => *server,
            #[cfg(feature = "test-util")]
            Target::Custom(_) => unreachable!("made from an address"),
        }
    }

    fn refused(url: &str) -> String {
        match Settings::from_url(url, TIMEOUT, true) {
            Ok(_) => panic!("{url} is accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_scheme_is_one_of_a_closed_list() {
        let schemes = [
            "redis",
            "valkey",
            "REDIS",
            #[cfg(unix)]
            "redis+unix",
            #[cfg(unix)]
            "valkey+unix",
        ];
        for scheme in schemes {
            let url = format!("{scheme}://user:hidden@host/7");
            let config = made(Settings::from_url(&url, TIMEOUT, true)).config;
            assert_eq!(
                config.server.is_unix_socket(),
                scheme.ends_with("+unix"),
                "{scheme}"
            );
            assert_eq!(config.password.as_deref(), Some("hidden"), "{scheme}");
        }
        let no_tls = "TLS is not compiled in";
        let one_server = "not supported yet";
        let table = [
            ("rediss", no_tls),
            ("valkeys", no_tls),
            ("Rediss", no_tls),
            ("redis-cluster", one_server),
            ("rediss-cluster", one_server),
            ("valkey-cluster", one_server),
            ("valkeys-cluster", one_server),
            ("redis-sentinel", one_server),
            ("rediss-sentinel", one_server),
            ("valkey-sentinel", one_server),
            ("valkeys-sentinel", one_server),
        ];
        for (scheme, sentence) in table {
            let told = refused(&format!("{scheme}://user:hidden@host:1"));
            assert!(
                told.contains(sentence) && !told.contains("hidden"),
                "{scheme}: {told}"
            );
        }
        let unknown = [
            "redis+tls",
            "redis+ssl",
            "redis-tls",
            "redissl",
            "redis-socket",
            "redis+insecure",
            "redis2",
            "rediss+unix",
            "rediss+tls",
            "redisss",
            "valkey+tls",
            "valkeyss",
            "valkey-cluster-sentinel",
            "http",
            "unix",
        ];
        for scheme in unknown {
            let told = refused(&format!("{scheme}://user:hidden@host:1"));
            assert!(
                told.contains(&format!("unknown scheme {scheme}://")),
                "{scheme}: {told}"
            );
            assert!(
                told.contains("rediss:// or valkeys://") && !told.contains("hidden"),
                "{scheme}: {told}"
            );
        }
        for url in [
            "",
            "host",
            "user:hidden@host",
            "user:hid://den@host",
            "://hidden@host",
            "redis:hidden@host",
        ] {
            let told = refused(url);
            assert!(
                told.contains("expected redis://") && !told.contains("hid"),
                "{url}: {told}"
            );
        }
        for url in [
            "redis://:hidden@",
            "redis://:hidden@[::1",
            "valkey://:hidden@h:99999",
            "redis://:hidden@h/x/y",
        ] {
            let told = refused(url);
            assert!(
                told.contains("expected redis://") && !told.contains("hidden"),
                "{url}: {told}"
            );
        }
    }

    /// The connection settings that fred gets, whatever was given.
    fn our_rules(server: &Server) {
        let Server {
            config,
            connection,
            performance,
        } = server;
        assert!(config.fail_fast);
        assert_eq!(config.blocking, Blocking::Block);
        assert_eq!(
            (
                connection.connection_timeout,
                connection.internal_command_timeout
            ),
            (TIMEOUT, TIMEOUT)
        );
        assert_eq!(connection.max_command_attempts, 1);
        assert_eq!(connection.max_command_buffer_len, 0);
        assert_eq!(connection.unresponsive, UnresponsiveConfig::default());
        assert_eq!(connection.unresponsive.max_timeout, None);
        assert!(!connection.reconnect_on_auth_error);
        assert_eq!(connection.tcp.nodelay, Some(true));
        assert_eq!(
            connection.tcp.linger, None,
            "closing never blocks, and nothing that was sent is discarded"
        );
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10));
        assert_eq!(
            format!("{:?}", connection.tcp.keepalive),
            format!("{:?}", Some(keepalive))
        );
        #[cfg(target_os = "linux")]
        assert_eq!(connection.tcp.user_timeout, Some(TIMEOUT));
        assert_eq!(performance.default_command_timeout, TIMEOUT);
        assert_eq!(performance.max_feed_count, 200);
        assert_eq!(performance.broadcast_channel_capacity, 32);
        let capacity = |role| {
            server
                .client(role)
                .expect("valid settings")
                .perf_config()
                .broadcast_channel_capacity
        };
        assert_eq!(
            (capacity(Role::Commands), capacity(Role::Messages)),
            (32, MESSAGES_BUFFERED)
        );
        assert!(
            server
                .client(Role::Commands)
                .expect("valid settings")
                .client_reconnect_policy()
                .is_none()
        );
    }

    #[test]
    fn an_address_gives_whom_to_ask_and_our_rules_the_rest() {
        let server = made(Settings::from_url(
            "redis://user:p%25w@host:1/7",
            TIMEOUT,
            true,
        ));
        our_rules(&server);
        assert_eq!(
            server.config.server,
            ServerConfig::new_centralized("host", 1)
        );
        assert_eq!(server.config.username.as_deref(), Some("user"));
        assert_eq!(server.config.password.as_deref(), Some("p%w"));
        assert_eq!(server.config.database, Some(7));
    }

    #[allow(clippy::needless_update, reason = "some of fred's features add fields")]
    #[test]
    fn of_a_fred_client_whom_to_ask_and_as_whom_is_kept_and_nothing_else() {
        for timeout in [Duration::ZERO, Duration::MAX] {
            let config = Config {
                fail_fast: false,
                blocking: Blocking::Interrupt,
                username: Some("user".to_owned()),
                password: Some("hidden".to_owned()),
                server: ServerConfig::new_centralized("host", 1),
                version: RespVersion::RESP3,
                database: Some(7),
                ..Config::default()
            };
            let mut builder = Builder::from_config(config.clone());
            builder.set_policy(fred::prelude::ReconnectPolicy::new_constant(0, 1));
            builder.set_connection_config(ConnectionConfig {
                connection_timeout: timeout,
                internal_command_timeout: timeout,
                cluster_cache_update_delay: timeout,
                max_command_attempts: 9,
                max_redirections: 0,
                unresponsive: UnresponsiveConfig {
                    max_timeout: Some(Duration::from_millis(1)),
                    interval: Duration::ZERO,
                },
                reconnect_on_auth_error: true,
                auto_client_setname: true,
                max_command_buffer_len: 3,
                disable_cluster_health_check: true,
                tcp: TcpConfig {
                    nodelay: Some(false),
                    linger: Some(Duration::from_secs(60)),
                    ttl: Some(9),
                    keepalive: None,
                    #[cfg(target_os = "linux")]
                    user_timeout: None,
                },
                ..ConnectionConfig::default()
            });
            builder.set_performance_config(PerformanceConfig {
                default_command_timeout: timeout,
                max_feed_count: u64::MAX,
                broadcast_channel_capacity: 1,
                ..PerformanceConfig::default()
            });
            let client = builder.build().expect("valid settings");
            let server = made(Settings::from_fred(&client, TIMEOUT, true));
            our_rules(&server);
            let kept = Config {
                fail_fast: true,
                blocking: Blocking::Block,
                ..config
            };
            assert_eq!(
                server.config, kept,
                "address, credentials, database and version"
            );
            assert_eq!(server.connection.tcp.ttl, Some(9));
            assert!(server.connection.auto_client_setname);
        }
    }

    #[test]
    fn several_servers_are_refused_from_fred_too() {
        let cluster = ServerConfig::Clustered {
            hosts: vec![("host", 1).into()],
            policy: ClusterDiscoveryPolicy::default(),
        };
        let client = Builder::from_config(Config {
            server: cluster,
            ..Config::default()
        })
        .build();
        let refused = Settings::from_fred(&client.expect("valid settings"), TIMEOUT, true)
            .err()
            .expect("refused");
        assert!(
            refused.to_string().contains("not supported yet"),
            "{refused}"
        );
    }
}
