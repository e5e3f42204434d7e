//! The connection fence: `CLIENT KILL` for the previous connection, so that none of its commands is
//! executed after a resend.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::redis::connection::Connection;
use crate::redis::transport::{Arg, ConnectionError, Reply, permitted};

/// Whether lost connections are killed at the server before their replacements are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum ConnectionFence {
    /// Every lost connection is killed at the server before scripts go over the next one.
    #[default]
    Active,
    /// Switched off with [`connection_fence`](crate::LockClientBuilder::connection_fence).
    Off,
    /// The server does not support, or does not permit, `CLIENT INFO` and `CLIENT KILL`.
    NotPermitted,
}

impl fmt::Display for ConnectionFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Off => "switched off",
            Self::NotPermitted => "not permitted",
        })
    }
}

/// The fences of a client's lanes, counted where they change: calls read the counters.
#[derive(Default)]
pub(in crate::redis) struct Fences {
    /// How many times a connection was replaced without a fence.
    replaced_without: AtomicU64,
    /// Lanes whose connection has no fence.
    lanes_without: AtomicUsize,
}

impl Fences {
    pub(in crate::redis) fn count_replaced_without(&self) {
        self.replaced_without.fetch_add(1, Ordering::AcqRel);
    }

    pub(in crate::redis) fn replaced_without(&self) -> u64 {
        self.replaced_without.load(Ordering::Acquire)
    }

    /// Whether every connection so far has a fence.
    pub(in crate::redis) fn are_active(&self) -> bool {
        self.lanes_without.load(Ordering::Acquire) == 0 && self.replaced_without() == 0
    }

    /// A lane's connection has another fence than the one before it.
    pub(in crate::redis) fn changed(&self, was: ConnectionFence, fence: ConnectionFence) {
        const ACTIVE: ConnectionFence = ConnectionFence::Active;
        match (was, fence) {
            (ACTIVE, ACTIVE) => {}
            (ACTIVE, _) => _ = self.lanes_without.fetch_add(1, Ordering::AcqRel),
            (_, ACTIVE) => _ = self.lanes_without.fetch_sub(1, Ordering::AcqRel),
            _ => {}
        }
    }
}

/// The identity of a connection at the server. Ids restart with the server, hence the address.
#[derive(Clone)]
pub(in crate::redis) struct Identity {
    id: i64,
    address: String,
}

impl Identity {
    /// No client has this address.
    fn unknown() -> Self {
        Self {
            id: 1,
            address: "0.0.0.0:0".to_owned(),
        }
    }

    /// Parses a line of `CLIENT INFO`. Its fields are not quoted, and the address of a Unix
    /// socket's clients is the socket's path, which may contain spaces: it ends where the next
    /// field begins, normally `laddr`.
    fn read(line: &str) -> Option<Self> {
        let line = line.trim_end();
        let after = |name: &str| {
            let at = line.starts_with(name).then_some(0);
            let at = at.or_else(|| line.find(&format!(" {name}")).map(|at| at + 1))?;
            Some(&line[at + name.len()..])
        };
        let id = after("id=")?.split(' ').next()?.parse().ok()?;
        let rest = after("addr=")?;
        let end = rest
            .find(" laddr=")
            .or_else(|| next_field(rest))
            .unwrap_or(rest.len());
        let address = rest[..end].to_owned();
        // A kill by a wrong address gets the same reply as a kill of a client that is gone, so no
        // identity is better than a partial one.
        let (_, port) = address.rsplit_once(':')?;
        (!port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
            .then_some(Self { id, address })
    }
}

/// Where the first ` name=` of a text begins.
fn next_field(text: &str) -> Option<usize> {
    let is_field = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        })
    };
    text.match_indices(' ')
        .map(|(at, _)| at)
        .find(|&at| is_field(&text[at + 1..]))
}

/// Kills a connection. After the reply, 0 or 1, none of its commands is executed any more.
pub(in crate::redis) async fn kill(
    connection: &Connection,
    who: &Identity,
    timeout: Duration,
) -> Result<ConnectionFence, ConnectionError> {
    let killed = connection.command("CLIENT", &kill_words(who), timeout);
    match permitted(killed.await)? {
        Some(Reply::Number(_)) => Ok(ConnectionFence::Active),
        Some(_) => Err(ConnectionError::out_of_step()),
        None => Ok(ConnectionFence::NotPermitted),
    }
}

fn kill_words(who: &Identity) -> Vec<Arg> {
    vec![
        Arg::Fixed("KILL"),
        Arg::Fixed("ID"),
        Arg::Number(who.id),
        Arg::Fixed("ADDR"),
        Arg::Text(who.address.as_str().into()),
    ]
}

/// The identity of this connection at the server; `None` if the server does not report it.
pub(in crate::redis) async fn identify(
    connection: &Connection,
    timeout: Duration,
) -> Result<Option<Identity>, ConnectionError> {
    let reported = connection.command("CLIENT", &[Arg::Fixed("INFO")], timeout);
    let text = match permitted(reported.await)? {
        Some(reply) => reply.into_text()?,
        None => None,
    };
    Ok(text.and_then(|text| Identity::read(&text)))
}

/// Tests the permission to kill before it is needed, with a kill that matches no client.
pub(in crate::redis) async fn may_kill(
    connection: &Connection,
    timeout: Duration,
) -> Result<ConnectionFence, ConnectionError> {
    kill(connection, &Identity::unknown(), timeout).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_named_by_its_whole_address() {
        let rest = "name= age=0 idle=0 flags=N db=0 sub=0 psub=0 cmd=client|info user=default";
        let table = [
            // Redis 6.2, 7 and 8, Valkey: the order of the first three fields is the same.
            (
                format!("id=7 addr=127.0.0.1:52555 laddr=127.0.0.1:6379 fd=8 {rest}\n"),
                "127.0.0.1:52555",
            ),
            (
                format!("id=7 addr=[::1]:52555 laddr=[::1]:6379 fd=8 {rest} redir=-1 resp=2\n"),
                "[::1]:52555",
            ),
            (
                format!("id=7 addr=/run/r.sock:0 laddr=/run/r.sock:0 fd=8 {rest}\n"),
                "/run/r.sock:0",
            ),
            (
                format!(
                    "id=7 addr=/run/my redis/r.sock:0 laddr=/run/my redis/r.sock:0 fd=8 {rest}\n"
                ),
                "/run/my redis/r.sock:0",
            ),
            (
                format!("id=7 addr=/a  b c=d/s:0 laddr=/a  b c=d/s:0 fd=8 {rest}\n"),
                "/a  b c=d/s:0",
            ),
            // Servers compatible with Redis may omit `laddr`, or put a field in between.
            (
                format!("id=7 addr=/run/my redis/s:0 fd=8 {rest}\n"),
                "/run/my redis/s:0",
            ),
            (
                format!("id=7 addr=10.0.0.1:1 fd=8 {rest} lib-name= lib-ver=\n"),
                "10.0.0.1:1",
            ),
            (
                "id=7 laddr=1.1.1.1:1 addr=10.0.0.1:1".to_owned(),
                "10.0.0.1:1",
            ),
        ];
        for (line, address) in table {
            let identity = Identity::read(&line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((identity.id, &*identity.address), (7, address), "{line}");
        }
    }

    #[test]
    fn what_is_no_name_is_no_identity() {
        for line in [
            "",
            "id=7",
            "id=x addr=127.0.0.1:1",
            "addr=127.0.0.1:1",
            "id=7 addr= laddr=1",
            "id=7 laddr=a:1",
        ] {
            assert!(Identity::read(line).is_none(), "{line}");
        }
    }

    #[test]
    fn fences_are_active_while_no_lane_is_without_one_and_none_was_replaced_without_one() {
        use ConnectionFence::{Active, NotPermitted, Off};
        let fences = Fences::default();
        assert!(fences.are_active());
        for (was, fence, active) in [
            (Active, NotPermitted, false),
            (Active, Off, false),
            (Off, NotPermitted, false),
            (NotPermitted, Active, false),
            (Active, Active, false),
            (NotPermitted, Active, true),
        ] {
            fences.changed(was, fence);
            assert_eq!(fences.are_active(), active, "from {was} to {fence}");
        }
        fences.count_replaced_without();
        assert!(!fences.are_active(), "for good");
    }
}
