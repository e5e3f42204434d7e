//! What a URL's scheme stands for.

/// The database, if it is not in the path.
pub(super) const DATABASE: &str = "db";
/// Another node of the cluster, or another sentinel. May be there several times.
pub(super) const NODE: &str = "node";
/// The sentinels' name for the primary and its replicas.
pub(super) const SERVICE_NAME: &str = "sentinelServiceName";
/// As whom to ask the sentinels.
pub(super) const SENTINEL_USERNAME: &str = "sentinelUsername";
pub(super) const SENTINEL_PASSWORD: &str = "sentinelPassword";

/// The topology that a URL's scheme asks for.
#[derive(Clone, Copy)]
pub(super) enum Scheme {
    Server,
    Socket,
    Cluster,
    Sentinel,
}

impl Scheme {
    /// The form of such a URL.
    pub(super) fn form(self) -> &'static str {
        match self {
            Self::Server => "redis://[user:password@]host[:port][/database]",
            Self::Socket => "redis+unix://[user:password@localhost]/path/to/socket[?db=database]",
            Self::Cluster => {
                "redis-cluster://[user:password@]host[:port][,host[:port]…][?node=host:port&…]"
            }
            Self::Sentinel => {
                "redis-sentinel://[user:password@]host[:port][,host[:port]…][/database]?sentinelServiceName=name\
                 [&node=host:port&…][&sentinelUsername=user][&sentinelPassword=password]"
            }
        }
    }

    pub(super) fn default_port(self) -> u16 {
        match self {
            Self::Sentinel => 26379,
            Self::Server | Self::Socket | Self::Cluster => 6379,
        }
    }

    /// The parameters that mean something there.
    pub(super) fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Server | Self::Socket => &[DATABASE],
            Self::Cluster => &[NODE, DATABASE],
            Self::Sentinel => &[
                DATABASE,
                SERVICE_NAME,
                NODE,
                SENTINEL_USERNAME,
                SENTINEL_PASSWORD,
            ],
        }
    }
}
