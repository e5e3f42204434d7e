//! The settings of every connection: the user's address and credentials, our values for everything
//! else.

pub(super) mod address;
pub(super) mod learned;
#[cfg(feature = "tls-rustls")]
mod tls;
mod url;

use std::sync::Arc;
use std::time::Duration;

use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::prelude::{Config, ServerConfig};
use fred::types::config::{self, ConnectionConfig};
use socket2::TcpKeepalive;

#[cfg(feature = "test-util")]
use super::transport::Transport;
use super::transport::{Arg, CommandWords, ConnectionError};
use crate::error::{Error, RefusalKind, is_from_server};
use crate::names::wire::Announce;
use crate::redis::settings::address::Address;
pub(crate) use learned::AddressMap;
use learned::LearnedAddresses;
#[cfg(feature = "tls-rustls")]
pub use tls::Tls;
pub(crate) use url::Credentials;
use url::{Given, invalid, parse};
#[cfg(feature = "tls-rustls")]
use {
    fred::types::config::TlsConnector, rustls::pki_types::ServerName,
    tokio_rustls::TlsConnector as RustlsConnector,
};

/// Without the feature there are no such settings.
#[cfg(not(feature = "tls-rustls"))]
#[derive(Debug, Clone)]
pub(crate) enum Tls {}

/// The settings of a connection. Not `Debug`: they contain the password.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(super) target: Target,
    pub(super) kind: Kind,
    pub(super) expected: Expected,
    /// Host and port, or the path of a socket, for errors and events.
    pub(super) address: Arc<str>,
    pub(crate) command_timeout: Duration,
    pub(crate) fence: bool,
    /// Servers are to report changes of what is held.
    pub(super) tracking: bool,
    /// The name of every connection on the server.
    pub(super) client_name: Option<Arc<str>>,
    /// As whom to ask the sentinels; `None`: without credentials.
    pub(super) sentinel_credentials: Option<Credentials>,
    /// How releases are announced in a cluster.
    pub(super) announce: Announce,
    /// Where announced addresses lead.
    pub(super) learned: Arc<LearnedAddresses>,
}

/// Where a connection leads.
#[derive(Clone)]
pub(super) enum Target {
    Server(Box<Server>),
    #[cfg(feature = "test-util")]
    Custom(Arc<dyn Transport>),
}

impl Target {
    /// `None`: a test has something else in its place.
    pub(super) fn server(&self) -> Option<&Server> {
        match self {
            Self::Server(server) => Some(server),
            #[cfg(feature = "test-util")]
            Self::Custom(_) => None,
        }
    }
}

/// The topology that the URL leads to.
#[derive(Clone)]
pub(super) enum Kind {
    /// One server.
    Server,
    /// A cluster of which these nodes are known.
    Cluster(Vec<Address>),
    /// Servers behind these sentinels, known to them by this name.
    Sentinel(Vec<Address>, String),
}

/// The role that a server must have before its connection may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Nothing,
    /// A server by itself.
    NoCluster,
    /// A node that sees its cluster working.
    WorkingCluster,
    /// A primary, and no replica.
    Primary,
}

impl Expected {
    /// Who announces the addresses of such servers; those of others are given.
    pub(super) fn announced_by(self) -> Option<&'static str> {
        match self {
            Self::WorkingCluster => Some("the cluster has"),
            Self::Primary => Some("the sentinels have"),
            Self::Nothing | Self::NoCluster => None,
        }
    }
}

/// An address with credentials and settings, in the types of fred.
#[derive(Clone)]
pub(super) struct Server {
    /// The host that the user has named first.
    #[cfg(feature = "tls-rustls")]
    first_host: Arc<str>,
    config: Config,
    /// How far packets may travel. `None`: as far as the system lets them.
    ttl: Option<u32>,
    command_timeout: Duration,
}

impl Settings {
    /// Over the connections of a test.
    #[cfg(feature = "test-util")]
    pub(crate) fn over(
        transport: Arc<dyn Transport>,
        command_timeout: Duration,
        fence: bool,
    ) -> Self {
        let nodes = transport.nodes().into_iter();
        let nodes: Vec<_> = nodes
            .map(|(host, port)| Address::new(&host, port))
            .collect();
        Self {
            kind: match nodes.is_empty() {
                true => Kind::Server,
                false => Kind::Cluster(nodes),
            },
            target: Target::Custom(transport),
            expected: Expected::Nothing,
            address: "the server of a test".into(),
            command_timeout,
            fence,
            tracking: true,
            client_name: None,
            sentinel_credentials: None,
            announce: Announce::default(),
            learned: Arc::default(),
        }
    }

    pub(crate) fn with_client_name(self, name: Option<&str>) -> Self {
        let client_name = name.map(Into::into).or_else(|| self.client_name.clone());
        Self {
            client_name,
            ..self
        }
    }

    pub(crate) fn with_tracking(self, tracking: bool) -> Self {
        Self { tracking, ..self }
    }

    pub(crate) fn with_announce(self, announce: Announce) -> Self {
        Self { announce, ..self }
    }

    /// Each client learns by itself, also after it was given the settings of another one.
    pub(crate) fn with_address_map(self, map: Option<&AddressMap>) -> Result<Self, Error> {
        let map = map.map(AddressMap::read).transpose()?;
        let learned = Arc::new(LearnedAddresses::new(map));
        Ok(Self { learned, ..self })
    }

    /// Those given last count, if any are.
    pub(crate) fn with_sentinel_credentials(self, credentials: Option<Credentials>) -> Self {
        Self {
            sentinel_credentials: credentials.or(self.sentinel_credentials),
            ..self
        }
    }

    pub(super) fn uses_tls(&self) -> bool {
        let server = self.target.server();
        server.is_some_and(|server| server.config.uses_tls())
    }

    /// Whether chance has a say in when the next attempt to connect is made. Over a transport of a
    /// test what happens depends on its causes alone.
    pub(crate) fn is_scattered(&self) -> bool {
        matches!(self.target, Target::Server(_))
    }

    pub(crate) fn from_url(
        url: &str,
        tls: Option<&Tls>,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        let Given {
            config,
            sentinel_credentials,
        } = parse(url, tls)?;
        let settings = Self::new(config, &ConnectionConfig::default(), command_timeout, fence)?;
        Ok(settings.with_sentinel_credentials(sentinel_credentials))
    }

    pub(crate) fn from_fred(
        client: &impl ClientLike,
        tls: Option<&Tls>,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        if tls.is_some() {
            return Err(Error::InvalidConfig {
                what: "tls",
                problem: "a fred client has its own settings of TLS: make them there".to_owned(),
            });
        }
        let given = client.connection_config();
        let settings = Self::new(client.client_config(), given, command_timeout, fence)?;
        // The name that fred gives each connection of that client.
        let own_name = given.auto_client_setname.then_some(client.id());
        Ok(settings.with_client_name(own_name))
    }

    /// The user chooses the server and the credentials.
    fn new(
        config: Config,
        given: &ConnectionConfig,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        let hosts = config.server.hosts();
        let first = hosts.first().map(address_of).unwrap_or_default();
        let addresses = || hosts.iter().map(address_of).collect();
        let kind = match &config.server {
            ServerConfig::Clustered { .. } => Kind::Cluster(addresses()),
            ServerConfig::Sentinel { service_name, .. } => {
                Kind::Sentinel(addresses(), service_name.clone())
            }
            // A variant of one of fred's features.
            _ => Kind::Server,
        };
        if matches!(kind, Kind::Cluster(_)) && config.database.is_some_and(|number| number != 0) {
            return Err(invalid("a cluster has one database, number 0"));
        }
        refuse_other_tls(&config)?;
        let server = Server {
            #[cfg(feature = "tls-rustls")]
            first_host: Arc::clone(&first.host),
            config,
            ttl: given.tcp.ttl,
            command_timeout,
        };
        Ok(Self {
            target: Target::Server(Box::new(server)),
            kind,
            expected: Expected::NoCluster,
            address: first.to_string().into(),
            command_timeout,
            fence,
            tracking: true,
            client_name: None,
            sentinel_credentials: None,
            announce: Announce::default(),
            learned: Arc::default(),
        })
    }
}

impl Settings {
    /// The settings for one server among several: credentials, TLS and the rest are those of all.
    pub(super) fn at(&self, address: &Address, expected: Expected) -> Self {
        let mut settings = self.clone();
        match &mut settings.target {
            Target::Server(server) => {
                server.config.server = leading_to(address, &server.config.server);
            }
            #[cfg(feature = "test-util")]
            Target::Custom(transport) => {
                *transport = transport.leading_to(&address.host, address.port);
            }
        }
        Self {
            kind: Kind::Server,
            expected,
            address: address.to_string().into(),
            ..settings
        }
    }

    /// What makes the byte streams in a test.
    #[cfg(feature = "test-util")]
    pub(super) fn transport(&self) -> Option<Arc<dyn Transport>> {
        match &self.target {
            Target::Server(_) => None,
            Target::Custom(transport) => Some(Arc::clone(transport)),
        }
    }

    /// Refuses a server that was announced without a port.
    pub(super) fn check_port(&self) -> Result<(), ConnectionError> {
        let hosts = self
            .target
            .server()
            .map(|server| server.config.server.hosts());
        let is_missing = hosts.unwrap_or_default().iter().any(|host| host.port == 0);
        match is_missing && self.expected.announced_by().is_some() {
            false => Ok(()),
            true => Err(ConnectionError::unusable(
                RefusalKind::NoPort,
                "a node without a port for connections like these, with TLS or without, is announced so",
            )),
        }
    }

    /// The settings without the commands at the start of a connection that a user may not be permitted.
    pub(super) fn for_questions(&self) -> Self {
        let settings = self.with_server(|server| server.config.database = None);
        Self {
            client_name: None,
            ..settings
        }
    }

    /// The database that each connection selects.
    pub(super) fn database(&self) -> Option<u8> {
        self.target.server()?.config.database
    }

    /// The settings for a sentinel: it has no databases, and users of its own.
    pub(super) fn at_sentinel(&self, address: &Address) -> Self {
        let settings = self.at(address, Expected::Nothing).with_server(|server| {
            let config = &mut server.config;
            config.database = None;
            let credentials = self.sentinel_credentials.as_ref();
            config.username = credentials.and_then(|given| given.user.clone());
            config.password = credentials.map(|given| given.password.clone());
        });
        Self {
            // A sentinel permits what it needs and little else.
            client_name: None,
            ..settings
        }
    }

    /// The settings with the server changed. A test's transport stays.
    fn with_server(&self, change: impl FnOnce(&mut Server)) -> Self {
        let mut settings = self.clone();
        match &mut settings.target {
            Target::Server(server) => change(server),
            #[cfg(feature = "test-util")]
            Target::Custom(_) => {}
        }
        settings
    }
}

/// Where a server listens.
pub(super) enum ServerPlace<'a> {
    Tcp(&'a str, u16),
    #[cfg(unix)]
    Unix(&'a std::path::Path),
}

/// Settings of a socket.
pub(super) struct Socket {
    pub(super) ttl: Option<u32>,
    pub(super) keepalive: TcpKeepalive,
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    pub(super) user_timeout: Duration,
}

impl Server {
    pub(super) fn place(&self) -> Result<ServerPlace<'_>, ConnectionError> {
        match &self.config.server {
            #[cfg(unix)]
            ServerConfig::Unix { path } => Ok(ServerPlace::Unix(path)),
            ServerConfig::Centralized { server } => {
                let host = server.host.trim_start_matches('[').trim_end_matches(']');
                Ok(ServerPlace::Tcp(host, server.port))
            }
            _ => Err(ConnectionError::Lost(
                "it is not the address of one server".to_owned(),
            )),
        }
    }

    pub(super) fn socket(&self) -> Socket {
        Socket {
            ttl: self.ttl,
            keepalive: TcpKeepalive::new().with_time(IDLE_MAX),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            user_timeout: self.command_timeout,
        }
    }

    pub(super) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// After what time the credentials are asked for again.
    pub(super) fn refresh_interval(&self) -> Option<Duration> {
        let provider = self.config.credential_provider.as_ref();
        provider.and_then(|provider| provider.refresh_interval())
    }

    /// The words of AUTH, from the provider if there is one.
    pub(super) async fn credentials(&self) -> Result<Option<CommandWords>, ConnectionError> {
        let config = &self.config;
        let (user, password) = match &config.credential_provider {
            Some(provider) => {
                let fetched = provider.fetch(config.server.hosts().first()).await;
                fetched.map_err(not_provided)?
            }
            None => (config.username.clone(), config.password.clone()),
        };
        let text = |text: String| Arg::Text(text.into());
        Ok(password.map(|password| user.into_iter().chain([password]).map(text).collect()))
    }

    #[cfg(feature = "tls-rustls")]
    pub(super) fn tls(
        &self,
    ) -> Result<Option<(RustlsConnector, ServerName<'static>)>, ConnectionError> {
        let config = tls::with_name(self.config.clone(), &self.first_host);
        let (Some(tls), ServerConfig::Centralized { server }) = (config.tls, config.server) else {
            return Ok(None);
        };
        let name = server.tls_server_name.unwrap_or(server.host);
        let name = ServerName::try_from(name.to_string());
        let name = name.map_err(|problem| ConnectionError::Lost(format!("{problem:?}")))?;
        match tls.connector {
            TlsConnector::Rustls(connector) => Ok(Some((connector, name))),
            // Refused when the client was built; in no case does it go on without TLS.
            #[allow(unreachable_patterns, reason = "some of fred's features add variants")]
            _ => Err(ConnectionError::Lost(NO_RUSTLS.to_owned())),
        }
    }
}

/// A provider of credentials has none.
fn not_provided(problem: fred::error::Error) -> ConnectionError {
    let text = problem.details().to_owned();
    match problem.kind() {
        _ if is_from_server(&text) => ConnectionError::refused(text),
        ErrorKind::Timeout => ConnectionError::Timeout(text),
        _ => ConnectionError::Lost(text),
    }
}

#[cfg(feature = "tls-rustls")]
const NO_RUSTLS: &str = "the fred client uses native-tls: give it a connector of rustls";

/// Commands go over rustls alone.
fn refuse_other_tls(config: &Config) -> Result<(), Error> {
    let refused = |problem: &str| {
        Err(Error::InvalidConfig {
            what: "tls",
            problem: problem.to_owned(),
        })
    };
    #[cfg(feature = "tls-rustls")]
    match config.tls.as_ref().map(|tls| &tls.connector) {
        None | Some(TlsConnector::Rustls(_)) => Ok(()),
        // Another crate has fred built with it.
        #[allow(unreachable_patterns, reason = "some of fred's features add variants")]
        Some(_) => refused(NO_RUSTLS),
    }
    #[cfg(not(feature = "tls-rustls"))]
    match config.uses_tls() {
        false => Ok(()),
        true => refused(url::NO_TLS),
    }
}

fn address_of(server: &config::Server) -> Address {
    Address::named(&server.host, server.port, &Address::default())
}

/// For one server. What a given one has besides its address, such as a name for TLS, is kept: if none was given with this
/// address, that of the first.
fn leading_to(address: &Address, given: &ServerConfig) -> ServerConfig {
    let given = given.hosts();
    let known = given.iter().find(|given| address_of(given) == *address);
    let given = known.or_else(|| given.first()).cloned();
    let mut server = given.unwrap_or_else(|| config::Server::new("", 0));
    server.host = (&*address.host).into();
    server.port = address.port;
    ServerConfig::Centralized { server }
}

/// After this time without traffic the system asks whether the server is still there.
const IDLE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
