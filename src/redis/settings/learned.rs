//! The addresses that servers announce: of cluster nodes, redirects, primaries and other sentinels.
//!
//! A server announces the address that it believes itself to have, which a client outside of its network may not reach.
//! Every such address passes through here, and through nothing else: the user's mapping comes first, then the IP address
//! of a host name that cannot be looked up here. The user's own addresses never do.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::net::lookup_host;

use super::address::{Address, host_and_port};
use crate::error::Error;

/// What the user says about addresses that servers announce.
#[derive(Clone)]
pub(crate) enum AddressMap {
    /// `host:port` or `host`, and what replaces it, as a configuration has them.
    Entries(BTreeMap<String, String>),
    Function(Arc<AddressFunction>),
}

type AddressFunction = dyn Fn(&str, u16) -> Option<(String, u16)> + Send + Sync;

/// A host with a port, or with any port.
type HostEntry = (String, Option<u16>);

impl AddressMap {
    /// The entries, read.
    ///
    /// # Errors
    ///
    /// The first entry that is not `host:port` or `host` on both sides.
    pub(crate) fn read(&self) -> Result<MappedAddresses, Error> {
        let entries = match self {
            Self::Entries(entries) => entries,
            Self::Function(function) => {
                return Ok(MappedAddresses::Function(Arc::clone(function)));
            }
        };
        let entries = entries.iter().map(|(from, to)| {
            let refused = |problem: &str| Error::InvalidConfig {
                what: "address_map",
                problem: format!("`{from}` to `{to}`: {problem}"),
            };
            let (host, port) = entry(from).map_err(refused)?;
            let (to_host, to_port) = entry(to).map_err(refused)?;
            match (port, to_port) {
                // All servers of that host would be the same one.
                (None, Some(_)) => Err(refused("a host without a port becomes one without a port")),
                _ => Ok(((host.to_ascii_lowercase(), port), (to_host, to_port))),
            }
        });
        Ok(MappedAddresses::Entries(entries.collect::<Result<_, _>>()?))
    }
}

/// Reads `host:port` or `host`; a host that is an IPv6 address needs brackets if it has a port.
fn entry(text: &str) -> Result<HostEntry, &'static str> {
    if text.parse::<IpAddr>().is_ok() {
        return Ok((text.to_owned(), None));
    }
    let (host, port) = host_and_port(text, 0)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), (port > 0).then_some(port)))
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries(entries) => entries.fmt(f),
            Self::Function(_) => f.write_str("a function"),
        }
    }
}

/// A mapping that is ready for use.
pub(crate) enum MappedAddresses {
    Entries(BTreeMap<HostEntry, HostEntry>),
    Function(Arc<AddressFunction>),
}

impl MappedAddresses {
    fn get(&self, host: &str, port: u16) -> Option<Address> {
        match self {
            Self::Function(function) => {
                let (host, port) = function(host, port)?;
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Some(Address::new(host, port))
            }
            Self::Entries(entries) => {
                let host = host.to_ascii_lowercase();
                let exact = entries.get(&(host.clone(), Some(port)));
                let (host, to_port) = exact.or_else(|| entries.get(&(host, None)))?;
                Some(Address::new(host, to_port.unwrap_or(port)))
            }
        }
    }
}

/// Turns announced addresses into those to connect to. All connections of a client share one.
#[derive(Default)]
pub(in crate::redis) struct LearnedAddresses {
    map: Option<MappedAddresses>,
    /// The host names that were announced together with an IP address: a redirect has the name alone.
    hosts: Mutex<BTreeMap<String, AnnouncedHost>>,
}

struct AnnouncedHost {
    ip: String,
    is_known: KnownHost,
}

/// Whether a host name can be looked up here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownHost {
    NotAsked,
    /// It is not used, because the mapping has another address.
    NotNeeded,
    Yes,
    No,
}

impl LearnedAddresses {
    pub(crate) fn new(map: Option<MappedAddresses>) -> Self {
        Self {
            map,
            hosts: Mutex::default(),
        }
    }

    /// The address to connect to for one that a server has announced. `asked` is the address of that server, whose host
    /// stands in for one that is left out.
    ///
    /// `ip` is announced beside a host name. It is used where the name is `?`, or cannot be looked up here.
    pub(in crate::redis) fn address(
        &self,
        host: &str,
        port: u16,
        ip: Option<&str>,
        asked: &Address,
    ) -> Address {
        let host = match (host, ip) {
            ("?", Some(ip)) => ip,
            _ => host,
        };
        let announced = Address::named(host, port, asked);
        let mapped = self.mapped(&announced);
        if announced.host.parse::<IpAddr>().is_ok() {
            return mapped.unwrap_or(announced);
        }
        let mut hosts = self.hosts.lock();
        if let Some(ip) = ip {
            note(&mut hosts, &announced.host, ip);
        }
        let Some(known) = hosts.get_mut(&*announced.host) else {
            return mapped.unwrap_or(announced);
        };
        let by_ip = Address::new(&known.ip, port);
        // User code runs without the lock.
        let is_known = known.is_known;
        drop(hosts);
        let mapped = mapped.or_else(|| self.mapped(&by_ip));
        if mapped.is_some() && is_known == KnownHost::NotAsked {
            self.found(&announced.host, KnownHost::NotNeeded);
        }
        match (mapped, is_known) {
            (Some(mapped), _) => mapped,
            (None, KnownHost::No) => by_ip,
            (None, _) => announced,
        }
    }

    fn mapped(&self, announced: &Address) -> Option<Address> {
        self.map.as_ref()?.get(&announced.host, announced.port)
    }

    fn found(&self, host: &str, is_known: KnownHost) -> bool {
        let mut hosts = self.hosts.lock();
        let known = hosts.get_mut(host);
        known.is_some_and(|known| std::mem::replace(&mut known.is_known, is_known) != is_known)
    }

    /// Looks up host names that were announced together with an IP address, those that were not found before included.
    /// Returns whether a report that was read before is to be read again.
    ///
    /// Cancel safety: dropping this future forgets what was found.
    pub(in crate::redis) async fn look_up(&self) -> bool {
        let names: Vec<String> = {
            let hosts = self.hosts.lock();
            let open = hosts
                .iter()
                .filter(|(_, host)| matches!(host.is_known, KnownHost::NotAsked | KnownHost::No));
            open.map(|(name, _)| name.clone()).collect()
        };
        let looking = names.iter().map(async |name| {
            let found = tokio::time::timeout(LOOK_UP_LIMIT, lookup_host((&**name, 0))).await;
            found.map(|addresses| addresses.is_ok_and(|mut all| all.next().is_some()))
        });
        let mut any = false;
        for (name, found) in names.iter().zip(join_all(looking).await) {
            any |= match found {
                Ok(true) => self.found(name, KnownHost::Yes),
                Ok(false) => {
                    self.found(name, KnownHost::No);
                    // Another report may have found it out first, after this one was read.
                    true
                }
                // A slow resolver may know it.
                Err(_) => false,
            };
        }
        any
    }
}

/// Remembers the IP address of a host name.
fn note(hosts: &mut BTreeMap<String, AnnouncedHost>, host: &str, ip: &str) {
    if let Some(known) = hosts.get_mut(host) {
        if known.ip != ip {
            ip.clone_into(&mut known.ip);
        }
        return;
    }
    // Names that change each day are no reason to grow for ever.
    if hosts.len() < HOSTS_MAX {
        let known = AnnouncedHost {
            ip: ip.to_owned(),
            is_known: KnownHost::NotAsked,
        };
        hosts.insert(host.to_owned(), known);
    }
}

/// A host name that is not found by then is used as it is.
const LOOK_UP_LIMIT: Duration = Duration::from_millis(250);

/// More host names than a cluster has nodes.
const HOSTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use test_support::tokio;

    use super::*;

    fn asked() -> Address {
        Address::new("docker.example", 7000)
    }

    fn learned(map: AddressMap) -> LearnedAddresses {
        LearnedAddresses::new(Some(map.read().expect("valid")))
    }

    fn entries(entries: &[(&str, &str)]) -> AddressMap {
        let entries = entries.iter();
        AddressMap::Entries(
            entries
                .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn an_announced_address_is_mapped_by_host_and_port_then_by_host() {
        let learned = learned(entries(&[
            ("172.20.0.2:7001", "docker.example:17001"),
            ("172.20.0.3", "docker.example"),
            ("[fd00::2]:7001", "[::1]:17003"),
            ("fd00::3", "six.example"),
            ("Node.Internal:7001", "docker.example"),
        ]));
        for (host, port, to) in [
            ("172.20.0.2", 7001, "docker.example:17001"),
            ("172.20.0.2", 7002, "172.20.0.2:7002"),
            ("172.20.0.3", 7009, "docker.example:7009"),
            ("fd00::2", 7001, "[::1]:17003"),
            ("[fd00::2]", 7001, "[::1]:17003"),
            ("fd00::3", 1, "six.example:1"),
            ("node.internal", 7001, "docker.example:7001"),
            // Without a host it is that of the server that was asked, and of use as it is.
            ("", 7002, "docker.example:7002"),
            ("?", 7002, "docker.example:7002"),
        ] {
            let found = learned.address(host, port, None, &asked());
            assert_eq!(found.to_string(), to, "{host}:{port}");
        }
    }

    #[test]
    fn a_function_sees_the_host_without_brackets_and_may_leave_an_address_as_it_is() {
        let function = |host: &str, port: u16| {
            assert!(!host.contains('['));
            (port < 8000).then(|| (format!("{}.example", host.replace(':', "-")), port + 1))
        };
        let learned = learned(AddressMap::Function(Arc::new(function)));
        let found = |host, port| learned.address(host, port, None, &asked()).to_string();
        assert_eq!(found("[fd00::2]", 7001), "fd00--2.example:7002");
        assert_eq!(found("10.0.0.1", 8000), "10.0.0.1:8000");
    }

    #[test]
    fn a_host_name_is_mapped_by_the_ip_address_beside_it_also_in_a_redirect() {
        let learned = learned(entries(&[("172.20.0.2:7001", "docker.example:17001")]));
        let name = "node-1.invalid";
        let found = learned.address(name, 7001, Some("172.20.0.2"), &asked());
        assert_eq!(found.to_string(), "docker.example:17001");
        let redirect = learned.address(name, 7001, None, &asked());
        assert_eq!(redirect.to_string(), "docker.example:17001");
    }

    #[test]
    fn an_unknown_endpoint_has_the_ip_address_beside_it_or_the_host_that_was_asked() {
        let learned = LearnedAddresses::default();
        let found = |host, ip| learned.address(host, 7001, ip, &asked()).to_string();
        assert_eq!(found("?", Some("172.20.0.2")), "172.20.0.2:7001");
        assert_eq!(found("?", None), "docker.example:7001");
        // Left out on purpose: the server says that its clients know better.
        assert_eq!(found("", Some("172.20.0.2")), "docker.example:7001");
    }

    #[tokio::test]
    async fn a_host_name_that_is_not_found_gives_way_to_its_ip_address() {
        let learned = LearnedAddresses::default();
        let found = |host, ip| learned.address(host, 7001, ip, &asked()).to_string();
        assert_eq!(
            found("node-1.invalid", Some("127.0.0.2")),
            "node-1.invalid:7001"
        );
        assert_eq!(found("localhost", Some("127.0.0.3")), "localhost:7001");
        assert!(learned.look_up().await);
        assert_eq!(found("node-1.invalid", None), "127.0.0.2:7001");
        assert_eq!(found("localhost", None), "localhost:7001");
        // Its address may change.
        assert_eq!(found("node-1.invalid", Some("127.0.0.4")), "127.0.0.4:7001");
        assert!(learned.look_up().await, "it is looked up each time");
    }

    #[test]
    fn entries_that_are_no_addresses_are_refused_with_both_sides() {
        for (from, to, problem) in [
            ("a:b", "c:1", "the port is not a number"),
            ("a:1", "", "the host is missing"),
            ("a:1", "redis://c:1", "more than one `:`"),
            ("a", "c:1", "a host without a port"),
        ] {
            let refused = entries(&[(from, to)]).read().err().expect("refused");
            let shown = refused.to_string();
            let named = format!("`{from}` to `{to}`");
            assert!(shown.contains(problem) && shown.contains(&named), "{shown}");
        }
    }
}
