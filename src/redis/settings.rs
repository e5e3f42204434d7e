//! The settings of every connection: the user's address and credentials, our values for everything
//! else.

pub(super) mod address;
mod credentials;
#[cfg(feature = "fred")]
mod fred;
mod given;
pub(super) mod learned;
pub(super) mod server;
#[cfg(feature = "tls-rustls")]
mod tls;
mod url;

use std::sync::Arc;
use std::time::Duration;

use super::transport::ConnectionError;
#[cfg(feature = "test-util")]
use super::transport::Transport;
use crate::error::{Error, RefusalKind};
use crate::names::wire::Announce;
use crate::redis::settings::address::Address;
pub use credentials::{Credentials, CredentialsProvider};
use given::{Given, GivenPlace};
pub(crate) use learned::AddressMap;
use learned::LearnedAddresses;
use server::{Server, ServerPlace};
#[cfg(feature = "tls-rustls")]
pub use tls::Tls;
use url::{invalid, parse};

/// Without the feature there are no such settings.
#[cfg(not(feature = "tls-rustls"))]
pub(crate) type Tls = std::convert::Infallible;

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
        server.is_some_and(Server::uses_tls)
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
        Self::new(parse(url, tls)?, command_timeout, fence)
    }

    fn new(given: Given, command_timeout: Duration, fence: bool) -> Result<Self, Error> {
        let hosts = given.place.hosts();
        let addresses = || hosts.iter().map(|host| host.address.clone()).collect();
        let (kind, place) = match &given.place {
            GivenPlace::Server(host) => {
                (Kind::Server, Some(ServerPlace::Tcp(host.address.clone())))
            }
            GivenPlace::Socket(place) => (Kind::Server, Some(place.clone())),
            GivenPlace::Cluster(_) => (Kind::Cluster(addresses()), None),
            GivenPlace::Sentinel(_, service) => {
                (Kind::Sentinel(addresses(), service.clone()), None)
            }
        };
        if matches!(kind, Kind::Cluster(_))
            && given.session.database.is_some_and(|number| number != 0)
        {
            return Err(invalid("a cluster has one database, number 0"));
        }
        let first = hosts.first().map(|host| host.address.clone());
        let first = first.or_else(|| Some(place.as_ref()?.address()));
        let server = Server {
            given: hosts.to_vec(),
            place,
            session: given.session,
            command_timeout,
        };
        Ok(Self {
            target: Target::Server(Box::new(server)),
            kind,
            expected: Expected::NoCluster,
            address: first.unwrap_or_default().to_string().into(),
            command_timeout,
            fence,
            tracking: true,
            client_name: None,
            sentinel_credentials: given.sentinel_credentials,
            announce: Announce::default(),
            learned: Arc::default(),
        })
    }

    /// Each connection asks this for its credentials.
    pub(crate) fn with_provider(self, provider: Option<Arc<dyn CredentialsProvider>>) -> Self {
        match provider {
            Some(provider) => self.with_server(|server| server.session.provider = Some(provider)),
            None => self,
        }
    }
}

impl Settings {
    /// The settings for one server among several: credentials, TLS and the rest are those of all.
    pub(super) fn at(&self, address: &Address, expected: Expected) -> Self {
        let mut settings = self.clone();
        match &mut settings.target {
            Target::Server(server) => {
                server.place = Some(ServerPlace::Tcp(address.clone()));
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
        let place = self
            .target
            .server()
            .and_then(|server| server.place.as_ref());
        let is_missing = matches!(place, Some(ServerPlace::Tcp(address)) if address.port == 0);
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
        let settings = self.with_server(|server| server.session.database = None);
        Self {
            client_name: None,
            ..settings
        }
    }

    /// The database that each connection selects.
    pub(super) fn database(&self) -> Option<u8> {
        self.target.server()?.session.database
    }

    /// The settings for a sentinel: it has no databases, and users of its own.
    pub(super) fn at_sentinel(&self, address: &Address) -> Self {
        let settings = self.at(address, Expected::Nothing).with_server(|server| {
            server.session.database = None;
            server.session.login = self.sentinel_credentials.clone();
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

#[cfg(test)]
mod tests;
