//! Host and port of a server.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
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

/// Reads `host[:port]`, where an IPv6 address has brackets.
pub(super) fn host_and_port(text: &str, default: u16) -> Result<(String, u16), &'static str> {
    let host_end = match (text.starts_with('['), text.find(']')) {
        (true, None) => return Err("the `[` of the host is not closed"),
        (true, Some(end)) => end + 1,
        (false, _) if text.matches(':').count() > 1 => {
            return Err(
                "the host has more than one `:`, and an IPv6 address is written as `[::1]`",
            );
        }
        (false, _) => text.find(':').unwrap_or(text.len()),
    };
    let (host, port) = text.split_at(host_end);
    let is_ip_v6 = |host: &str| host.parse::<Ipv6Addr>().is_ok();
    if host.is_empty() {
        Err("the host is missing")
    } else if !port.is_empty() && !port.starts_with(':') {
        Err("something other than `:` and the port is after the `]` of the host")
    } else if host.starts_with('[') && host.contains('%') {
        Err("an IPv6 address with a zone cannot be used; give the host a name")
    } else if host.starts_with('[') && !is_ip_v6(&host[1..host.len() - 1]) {
        Err("what is between the `[` and the `]` of the host is no IPv6 address")
    } else if !host.starts_with('[') && host.contains(|letter| !is_of_host(letter)) {
        Err("the host has a character that no host has")
    } else {
        let port = match port.strip_prefix(':') {
            None | Some("") => Some(default),
            Some(port) => number(port).filter(|port| *port > 0),
        };
        let port = port.ok_or("the port is not a number from 1 to 65535")?;
        Ok((host.to_owned(), port))
    }
}

/// Redis, or who resolves the name, decides about the rest.
fn is_of_host(letter: char) -> bool {
    letter.is_ascii_graphic() && !"#%/:<>?@[\\]^|".contains(letter)
}

/// A number in digits alone, if it is not too large.
pub(super) fn number<N: FromStr>(text: &str) -> Option<N> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
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
