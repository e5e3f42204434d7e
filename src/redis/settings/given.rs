//! What was given: servers and credentials, wherever they were read.

use super::credentials::Credentials;
use super::server::{GivenHost, ServerPlace, SessionSettings};

/// What a URL, or another client, says of servers and credentials.
pub(super) struct Given {
    pub(super) place: GivenPlace,
    pub(super) session: SessionSettings,
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
            session: SessionSettings::default(),
            sentinel_credentials: None,
        }
    }
}
