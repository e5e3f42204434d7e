//! The answer to `CLUSTER SLOTS`. Pure.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::endpoint::ServerId;
use crate::redis::settings::address::Address;
use crate::redis::settings::learned::LearnedAddresses;
use crate::redis::transport::Reply;

/// A server as a setting or another server names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redis) struct Named {
    pub(in crate::redis) address: Address,
    pub(in crate::redis) id: Option<ServerId>,
}

impl From<Address> for Named {
    fn from(address: Address) -> Self {
        Self { address, id: None }
    }
}

/// The slots of a primary, and its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redis) struct Range {
    pub(in crate::redis) slots: RangeInclusive<u16>,
    pub(in crate::redis) primary: Named,
    pub(in crate::redis) replicas: Vec<Named>,
}

/// Reads for each range the first slot, the last, the primary, and its replicas. A server is its host, its
/// port, its node id, and names and values in turn, of which one is its IP address. `asked` is the address that was
/// asked: a node that does not know under which name its clients reach the others leaves their host out.
pub(in crate::redis) fn read(
    reply: &Reply,
    learned: &LearnedAddresses,
    asked: &Address,
) -> Option<Vec<Range>> {
    let Reply::List(ranges) = reply else {
        return None;
    };
    let range = |range: &Reply| {
        let Reply::List(range) = range else {
            return None;
        };
        let [
            Reply::Number(first),
            Reply::Number(last),
            primary,
            replicas @ ..,
        ] = &range[..]
        else {
            return None;
        };
        let replicas = replicas
            .iter()
            .filter_map(|replica| server(replica, learned, asked));
        Some(Range {
            slots: u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?,
            primary: server(primary, learned, asked)?,
            replicas: replicas.collect(),
        })
    };
    ranges.iter().map(range).collect()
}

fn server(server: &Reply, learned: &LearnedAddresses, asked: &Address) -> Option<Named> {
    let Reply::List(server) = server else {
        return None;
    };
    let [host, Reply::Number(port), more @ ..] = &server[..] else {
        return None;
    };
    let host = match host {
        Reply::Text(host) => host,
        Reply::Nil => "",
        _ => return None,
    };
    let id = match more.first() {
        Some(Reply::Text(id)) if !id.is_empty() => Some(id.as_str().into()),
        _ => None,
    };
    let port = u16::try_from(*port).ok()?;
    let ip = more.get(1).and_then(announced_ip);
    Some(Named {
        address: learned.address(host, port, ip, asked),
        id,
    })
}

/// The IP address that a server has beside its host name.
fn announced_ip(more: &Reply) -> Option<&str> {
    let Reply::List(words) = more else {
        return None;
    };
    words.chunks(2).find_map(|pair| match pair {
        [Reply::Text(name), Reply::Text(ip)] if name == "ip" && !ip.is_empty() => Some(ip.as_str()),
        _ => None,
    })
}

/// Every server of a table.
pub(in crate::redis) fn servers<'a>(ranges: &'a [Range]) -> impl Iterator<Item = &'a Named> {
    let servers = |range: &'a Range| std::iter::once(&range.primary).chain(&range.replicas);
    ranges.iter().flat_map(servers)
}

/// The identities of all servers of a table.
pub(in crate::redis) fn ids(ranges: &[Range]) -> BTreeSet<ServerId> {
    servers(ranges)
        .filter_map(|server| server.id.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::settings::AddressMap;

    fn text(text: &str) -> Reply {
        Reply::Text(text.to_owned())
    }

    fn node(host: Reply, port: i64, id: &str) -> Reply {
        Reply::List(vec![
            host,
            Reply::Number(port),
            text(id),
            Reply::List(Vec::new()),
        ])
    }

    fn range(first: i64, last: i64, primary: Reply) -> Reply {
        let replica = node(text("10.0.0.9"), 7009, "r");
        Reply::List(vec![
            Reply::Number(first),
            Reply::Number(last),
            primary,
            replica,
        ])
    }

    #[test]
    fn slots_are_read_with_ids_and_with_hosts_that_are_missing() {
        let reply = Reply::List(vec![
            range(0, 5460, node(text("10.0.0.2"), 7001, "a")),
            range(5461, 5461, node(Reply::Nil, 7002, "b")),
            range(5462, 16383, node(text(""), 7003, "c")),
        ]);
        let learned = LearnedAddresses::default();
        let found = read(&reply, &learned, &Address::new("10.0.0.1", 7000)).expect("valid");
        let shown: Vec<_> = found
            .iter()
            .map(|range| {
                let id = range.primary.id.as_deref().expect("it has one");
                let address = range.primary.address.to_string();
                (range.slots.clone(), address, id)
            })
            .collect();
        assert_eq!(
            shown,
            [
                (0..=5460, "10.0.0.2:7001".to_owned(), "a"),
                (5461..=5461, "10.0.0.1:7002".to_owned(), "b"),
                (5462..=16383, "10.0.0.1:7003".to_owned(), "c"),
            ]
        );
        assert_eq!(ids(&found), ["a", "b", "c", "r"].map(Into::into).into());
    }

    /// Primaries and replicas alike; the order of names and values is the server's.
    #[test]
    fn announced_servers_are_mapped_by_host_or_by_the_ip_address_beside_it() {
        let node = |host: &str, more: &[&str]| {
            let more = more.iter().map(|word| text(word)).collect();
            let port = Reply::Number(7001);
            Reply::List(vec![text(host), port, text("a"), Reply::List(more)])
        };
        let named = node("one.invalid", &["ip", "172.20.0.2"]);
        let other = node("172.20.0.3", &["hostname", "two.invalid"]);
        let unknown = node("?", &["shard-id", "x", "ip", "172.20.0.4"]);
        let reply = Reply::List(vec![Reply::List(vec![
            Reply::Number(0),
            Reply::Number(16383),
            named,
            other,
            unknown,
        ])]);
        let entries = [("172.20.0.2:7001", "out:1"), ("172.20.0.3", "out")];
        let entries = entries.map(|(from, to)| (from.to_owned(), to.to_owned()));
        let map = AddressMap::Entries(entries.into()).read().expect("valid");
        let learned = LearnedAddresses::new(Some(map));
        let found = read(&reply, &learned, &Address::default()).expect("valid");
        let shown: Vec<_> = servers(&found)
            .map(|server| server.address.to_string())
            .collect();
        assert_eq!(shown, ["out:1", "out:7001", "172.20.0.4:7001"]);
    }

    #[test]
    fn what_is_no_table_is_not_read() {
        let primary = |port| node(text("h"), port, "a");
        for wrong in [
            Reply::Nil,
            Reply::List(vec![Reply::Nil]),
            Reply::List(vec![range(0, 70_000, primary(1))]),
            Reply::List(vec![range(0, 1, primary(70_000))]),
            Reply::List(vec![range(0, 1, node(Reply::Number(1), 1, "a"))]),
        ] {
            let found = read(&wrong, &LearnedAddresses::default(), &Address::default());
            assert_eq!(found, None, "{wrong:?}");
        }
        // Nodes before Redis 4.0, and some proxies, leave the identity out.
        let bare = Reply::List(vec![text("h"), Reply::Number(1)]);
        for unnamed in [bare, node(text("h"), 1, "")] {
            let found = read(
                &Reply::List(vec![range(0, 1, unnamed)]),
                &LearnedAddresses::default(),
                &Address::default(),
            );
            assert_eq!(found.expect("valid")[0].primary.id, None);
        }
    }
}
