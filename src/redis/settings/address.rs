//! Host and port of a server.

use std::fmt;
use std::sync::Arc;

/// Where a server listens.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::redis) struct Address {
    pub(in crate::redis) host: Arc<str>,
    /// 0: the host is the path of a socket, or the server was announced without a port.
    pub(in crate::redis) port: u16,
}

impl Address {
    pub(in crate::redis) fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// The address by which a node of a cluster names another one. The host may be an IPv6 address with or
    /// without brackets. A node that does not know under which name its clients reach the others
    /// leaves the host out: then it is the host of the node that was asked.
    pub(in crate::redis) fn named(host: &str, port: u16, asked: &Self) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host == "?" {
            Self::new(&asked.host, port)
        } else {
            Self::new(host, port)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.host, self.port) {
            (path, 0) if path.contains('/') => f.write_str(path),
            (host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            (host, port) => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn a_node_that_is_named_without_a_host_has_the_one_that_was_asked() {
        let asked = Address::new("10.0.0.1", 7000);
        for (host, shown) in [
            ("10.0.0.2", "10.0.0.2:7001"),
            ("node.example", "node.example:7001"),
            ("::1", "[::1]:7001"),
            ("[::1]", "[::1]:7001"),
            ("", "10.0.0.1:7001"),
            ("?", "10.0.0.1:7001"),
        ] {
            assert_eq!(Address::named(host, 7001, &asked).to_string(), shown);
        }
    }
}
