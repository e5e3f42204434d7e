//! The settings about addresses that servers announce.

use std::sync::Arc;

use super::LockClientBuilder;
use crate::redis::AddressMap;

impl LockClientBuilder {
    /// Sets what replaces the addresses that servers announce, the counterpart of Redisson's `natMap`, for clients outside
    /// of the servers' network. Default: none is replaced.
    ///
    /// An entry is an announced `host:port` with the address to connect to, or a host without its port, which is then
    /// kept, with another host. Entries with a port come first; IPv6 addresses with a port need brackets. For a rule
    /// instead of entries, and for what is replaced, see [`map_addresses`](Self::map_addresses), which this replaces.
    ///
    /// Connecting fails with [`Error::InvalidConfig`](crate::Error::InvalidConfig) if an entry is no address.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::builder()
    ///     .address_map([
    ///         ("172.20.0.2:7001", "docker.example:7001"),
    ///         ("172.20.0.3:7002", "docker.example:7002"),
    ///     ])
    ///     .connect("redis-cluster://docker.example:7001")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn address_map<From: Into<String>, To: Into<String>>(
        self,
        entries: impl IntoIterator<Item = (From, To)>,
    ) -> Self {
        let entries = entries.into_iter();
        let entries = entries.map(|(from, to)| (from.into(), to.into()));
        let map = AddressMap::Entries(entries.collect());
        self.with(|builder| builder.address_map = Some(map))
    }

    /// Sets a function that replaces the addresses that servers announce, the counterpart of Redisson's `NatMapper`.
    /// Default: none is replaced.
    ///
    /// It gets host (an IPv6 address without brackets) and port, and returns where to connect to, or `None` to use the
    /// address as it is. It is called for the nodes of a cluster, the targets of `MOVED` and `ASK`, and the primary and
    /// other sentinels that sentinels report, but not for addresses in the URL. A host name for which it returns `None`
    /// is passed to it again as the IP address that the cluster announces beside it. It is called often, also for the
    /// same address, so it must be quick, and may not block.
    ///
    /// With TLS a certificate is checked against the host that the function returns.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), redisson_lock::Error> {
    /// // All containers publish their ports on one host.
    /// let client = redisson_lock::LockClient::builder()
    ///     .map_addresses(|host, port| {
    ///         host.starts_with("172.20.").then(|| ("docker.example".to_owned(), port))
    ///     })
    ///     .connect("redis-cluster://docker.example:7001")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn map_addresses(
        self,
        map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        let map = AddressMap::Function(Arc::new(map));
        self.with(|builder| builder.address_map = Some(map))
    }
}
