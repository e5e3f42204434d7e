//! One server: where it is, and how a connection to it begins.

#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use socket2::TcpKeepalive;
#[cfg(feature = "tls-rustls")]
use {rustls::pki_types::ServerName, tokio_rustls::TlsConnector};

use super::address::Address;
use super::credentials::{Credentials, CredentialsProvider};
#[cfg(feature = "tls-rustls")]
use super::tls::TlsClient;
use crate::error::is_from_server;
use crate::redis::transport::{Arg, CommandWords, ConnectionError};

/// An address with credentials and settings.
#[derive(Clone)]
pub(in crate::redis) struct Server {
    /// `None`: it is one of several, of which none was chosen yet.
    pub(super) place: Option<ServerPlace>,
    /// Those that were given.
    #[cfg_attr(
        not(feature = "tls-rustls"),
        allow(dead_code, reason = "they have the names of certificates")
    )]
    pub(super) given: Vec<GivenHost>,
    pub(super) session: SessionSettings,
    pub(super) command_timeout: Duration,
}

/// How each connection begins.
#[derive(Clone, Default)]
pub(super) struct SessionSettings {
    pub(super) login: Option<Credentials>,
    pub(super) provider: Option<Arc<dyn CredentialsProvider>>,
    pub(super) database: Option<u8>,
    #[cfg(feature = "tls-rustls")]
    pub(super) tls: Option<TlsClient>,
    /// How far packets may travel. `None`: as far as the system lets them.
    pub(super) ttl: Option<u32>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redis) enum ServerPlace {
    Tcp(Address),
    #[cfg(unix)]
    Unix(PathBuf),
}

impl ServerPlace {
    /// For errors and events.
    pub(super) fn address(&self) -> Address {
        match self {
            Self::Tcp(address) => address.clone(),
            #[cfg(unix)]
            Self::Unix(path) => Address::new(&path.to_string_lossy(), 0),
        }
    }
}

/// A server as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenHost {
    pub(super) address: Address,
    /// The name that its certificate must have, if that was given.
    #[cfg_attr(
        not(feature = "tls-rustls"),
        allow(dead_code, reason = "there are no certificates")
    )]
    pub(super) tls_name: Option<Arc<str>>,
}

impl From<Address> for GivenHost {
    fn from(address: Address) -> Self {
        Self {
            address,
            tls_name: None,
        }
    }
}

/// Settings of a socket.
pub(in crate::redis) struct Socket {
    pub(in crate::redis) ttl: Option<u32>,
    pub(in crate::redis) keepalive: TcpKeepalive,
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    pub(in crate::redis) user_timeout: Duration,
}

impl Server {
    pub(in crate::redis) fn place(&self) -> Result<&ServerPlace, ConnectionError> {
        let several = || ConnectionError::Lost("it is not the address of one server".to_owned());
        self.place.as_ref().ok_or_else(several)
    }

    pub(in crate::redis) fn socket(&self) -> Socket {
        Socket {
            ttl: self.session.ttl,
            keepalive: TcpKeepalive::new().with_time(IDLE_MAX),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            user_timeout: self.command_timeout,
        }
    }

    pub(in crate::redis) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// After what time the credentials are asked for again.
    pub(in crate::redis) fn refresh_interval(&self) -> Option<Duration> {
        self.session.provider.as_ref()?.refresh_interval()
    }

    /// The words of AUTH, from the provider if there is one.
    pub(in crate::redis) async fn credentials(
        &self,
    ) -> Result<Option<CommandWords>, ConnectionError> {
        let login = match &self.session.provider {
            Some(provider) => {
                let server = self.place()?.address().to_string();
                let fetched = provider.fetch(&server).await;
                fetched.map_err(|problem| not_provided(problem.to_string()))?
            }
            None => self.session.login.clone(),
        };
        let text = |text: String| Arg::Text(text.into());
        let words = |login: Credentials| login.user.into_iter().chain([login.password]);
        Ok(login.map(|login| words(login).map(text).collect()))
    }

    #[cfg(feature = "tls-rustls")]
    pub(super) fn uses_tls(&self) -> bool {
        self.session.tls.is_some()
    }

    #[cfg(not(feature = "tls-rustls"))]
    pub(super) fn uses_tls(&self) -> bool {
        false
    }

    #[cfg(feature = "tls-rustls")]
    pub(in crate::redis) fn tls(
        &self,
    ) -> Result<Option<(TlsConnector, ServerName<'static>)>, ConnectionError> {
        let (Some(tls), Some(ServerPlace::Tcp(address))) = (&self.session.tls, &self.place) else {
            return Ok(None);
        };
        let name = ServerName::try_from(self.tls_name(tls, address));
        let name = name.map_err(|problem| ConnectionError::Lost(format!("{problem:?}")))?;
        Ok(Some((tls.connector.clone(), name)))
    }

    /// Which name the certificate of a server must have: the one that was given with its address, or else with the first.
    /// Without one that of a host is the host itself, and an IP address is named as was asked for.
    #[cfg(feature = "tls-rustls")]
    pub(super) fn tls_name(&self, tls: &TlsClient, address: &Address) -> String {
        let known = self.given.iter().find(|given| given.address == *address);
        let given = known.or_else(|| self.given.first());
        if let Some(name) = given.and_then(|given| given.tls_name.as_ref()) {
            return name.to_string();
        }
        let first = self.given.first().map(|given| &*given.address.host);
        tls.name_of(&address.host, first.unwrap_or_default())
    }
}

/// A provider of credentials has none.
fn not_provided(text: String) -> ConnectionError {
    match is_from_server(&text) {
        true => ConnectionError::refused(text),
        false => ConnectionError::Lost(text),
    }
}

/// After this time without traffic the system asks whether the server is still there.
const IDLE_MAX: Duration = Duration::from_secs(10);
