//! What was given: servers and credentials, wherever they were read.

use std::sync::Arc;

use super::credentials::{Credentials, CredentialsProvider};
use super::server::{GivenHost, ServerPlace};
#[cfg(feature = "tls-rustls")]
use super::tls::TlsClient;

/// What a URL, or another client, says of servers and credentials.
pub(super) struct Given {
    pub(super) place: GivenPlace,
    pub(super) login: Option<Credentials>,
    pub(super) provider: Option<Arc<dyn CredentialsProvider>>,
    pub(super) database: Option<u8>,
    #[cfg(feature = "tls-rustls")]
    pub(super) tls: Option<TlsClient>,
    /// How far packets may travel. `None`: as far as the system lets them.
    pub(super) ttl: Option<u32>,
    pub(super) sentinel_credentials: Option<Credentials>,
}

pub(super) enum GivenPlace {
    Server(GivenHost),
    /// Where TCP has no part.
    Socket(ServerPlace),
    Cluster(Vec<GivenHost>),
    /// With the sentinels' name for the primary.
    Sentinel(Vec<GivenHost>, String),
}

impl GivenPlace {
    pub(super) fn hosts(&self) -> &[GivenHost] {
        match self {
            Self::Server(host) => std::slice::from_ref(host),
            Self::Socket(_) => &[],
            Self::Cluster(hosts) | Self::Sentinel(hosts, _) => hosts,
        }
    }

    #[cfg(feature = "tls-rustls")]
    pub(super) fn hosts_mut(&mut self) -> &mut [GivenHost] {
        match self {
            Self::Server(host) => std::slice::from_mut(host),
            Self::Socket(_) => &mut [],
            Self::Cluster(hosts) | Self::Sentinel(hosts, _) => hosts,
        }
    }
}

impl Given {
    /// Without anything else.
    pub(super) fn at(place: GivenPlace) -> Self {
        Self {
            place,
            login: None,
            provider: None,
            database: None,
            #[cfg(feature = "tls-rustls")]
            tls: None,
            ttl: None,
            sentinel_credentials: None,
        }
    }
}
