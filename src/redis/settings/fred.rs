//! The settings of a fred client, as this crate has them.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use fred::interfaces::ClientLike;
use fred::prelude::{Config, ServerConfig};
use fred::types::config::{self, CredentialProvider};
#[cfg(feature = "tls-rustls")]
use fred::types::config::{TlsConfig, TlsConnector, TlsHostMapping};

use super::address::Address;
use super::credentials::{Credentials, CredentialsProvider};
use super::given::{Given, GivenPlace};
#[cfg(unix)]
use super::server::ServerPlace;
use super::server::{GivenHost, SessionSettings};
#[cfg(feature = "tls-rustls")]
use super::tls::{TlsClient, TlsNames};
use super::{Settings, Tls};
use crate::error::Error;
use crate::redis::transport::BoxFuture;

impl Settings {
    pub(crate) fn from_fred(
        client: &impl ClientLike,
        tls: Option<&Tls>,
        command_timeout: Duration,
        fence: bool,
    ) -> Result<Self, Error> {
        if tls.is_some() {
            return Err(refused(
                "a fred client has its own settings of TLS: make them there",
            ));
        }
        let connections = client.connection_config();
        let mut given = given(client.client_config())?;
        given.session.ttl = connections.tcp.ttl;
        let settings = Self::new(given, command_timeout, fence)?;
        // The name that fred gives each connection of that client.
        let own_name = connections.auto_client_setname.then_some(client.id());
        Ok(settings.with_client_name(own_name))
    }
}

/// The user chooses the servers and the credentials.
fn given(config: Config) -> Result<Given, Error> {
    let hosts = config.server.hosts().into_iter().map(given_host).collect();
    #[cfg(feature = "tls-rustls")]
    let tls = config.tls.map(tls).transpose()?;
    #[cfg(not(feature = "tls-rustls"))]
    if config.uses_tls() {
        return Err(refused(super::url::NO_TLS));
    }
    let (user, provider) = (config.username, config.credential_provider);
    Ok(Given {
        place: match config.server {
            ServerConfig::Clustered { .. } => GivenPlace::Cluster(hosts),
            ServerConfig::Sentinel { service_name, .. } => {
                GivenPlace::Sentinel(hosts, service_name)
            }
            #[cfg(unix)]
            ServerConfig::Unix { path } => GivenPlace::Socket(ServerPlace::Unix(path)),
            ServerConfig::Centralized { server } => GivenPlace::Server(given_host(server)),
            // Another crate has fred built with it.
            #[allow(unreachable_patterns, reason = "some of fred's features add variants")]
            _ => {
                return Err(refused(
                    "the fred client has no servers that are known here",
                ));
            }
        },
        session: SessionSettings {
            login: config
                .password
                .map(|password| Credentials { user, password }),
            provider: provider.map(|provider| Arc::new(Adapter(provider)) as Arc<_>),
            database: config.database,
            #[cfg(feature = "tls-rustls")]
            tls,
            ttl: None,
        },
        sentinel_credentials: None,
    })
}

fn given_host(server: config::Server) -> GivenHost {
    GivenHost {
        address: Address::named(&server.host, server.port, &Address::default()),
        #[cfg(feature = "tls-rustls")]
        tls_name: server.tls_server_name.map(|name| (*name).into()),
        #[cfg(not(feature = "tls-rustls"))]
        tls_name: None,
    }
}

/// Commands go over rustls alone.
#[cfg(feature = "tls-rustls")]
fn tls(given: TlsConfig) -> Result<TlsClient, Error> {
    // Another crate may have fred built with other variants.
    #[allow(
        irrefutable_let_patterns,
        reason = "some of fred's features add variants"
    )]
    let TlsConnector::Rustls(connector) = given.connector else {
        return Err(refused(
            "the fred client uses native-tls: give it a connector of rustls",
        ));
    };
    let names = match given.hostnames {
        TlsHostMapping::None => TlsNames::Own,
        TlsHostMapping::DefaultHost => TlsNames::First,
        TlsHostMapping::Custom(mapping) => {
            TlsNames::Custom(Arc::new(move |ip, first| mapping.map(ip, first)))
        }
    };
    Ok(TlsClient { connector, names })
}

/// Asks fred's provider in the place of this crate's.
#[derive(Debug)]
struct Adapter(Arc<dyn CredentialProvider>);

impl CredentialsProvider for Adapter {
    fn fetch<'a>(
        &'a self,
        server: &'a str,
    ) -> BoxFuture<'a, Result<Option<Credentials>, Box<dyn StdError + Send + Sync>>> {
        Box::pin(async move {
            let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
            let server = config::Server::new(host, port.parse().unwrap_or_default());
            let fetched = self.0.fetch(Some(&server)).await;
            let (user, password) = fetched.map_err(|problem| problem.details().to_owned())?;
            Ok(password.map(|password| Credentials { user, password }))
        })
    }

    fn refresh_interval(&self) -> Option<Duration> {
        self.0.refresh_interval()
    }
}

fn refused(problem: &str) -> Error {
    Error::InvalidConfig {
        what: "tls",
        problem: problem.to_owned(),
    }
}
