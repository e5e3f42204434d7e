//! Host and port of a server.

use std::fmt;
use std::sync::Arc;

/// Where a server listens.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    pub(super) host: Arc<str>,
    /// 0: the host is the path of a socket.
    pub(super) port: u16,
}

impl Address {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Reads what a node of a cluster calls another one: `host:port`, where the host may be an address of
    /// IPv6 without brackets. A node that does not know under which name its clients reach the others
    /// leaves the host out: then it is the host of the node that was asked.
    pub(super) fn read(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::named(host, port.parse().ok()?, asked))
    }

    /// The same, in two parts.
    pub(super) fn named(host: &str, port: u16, asked: &Self) -> Self {
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
            (path, 0) => f.write_str(path),
            (host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            (host, port) => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn a_node_is_named_by_its_last_colon_and_without_a_host_it_is_the_one_that_was_asked() {
        let asked = Address::new("10.0.0.1", 7000);
        for (text, shown) in [
            ("10.0.0.2:7001", "10.0.0.2:7001"),
            ("node.example:1", "node.example:1"),
            ("::1:7001", "[::1]:7001"),
            ("[::1]:7001", "[::1]:7001"),
            (":7001", "10.0.0.1:7001"),
            ("?:7001", "10.0.0.1:7001"),
        ] {
            let read = Address::read(text, &asked).map(|address| address.to_string());
            assert_eq!(read.as_deref(), Some(shown), "{text}");
        }
        for text in ["", "host", "host:", "host:x", "host:70000"] {
            assert_eq!(Address::read(text, &asked), None, "{text}");
        }
    }
}
