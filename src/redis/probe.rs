//! Whether a connection leads to a server that takes writes, as far as that server knows.

use std::time::Duration;

use super::connection::Connection;
use super::settings::Expected;
use super::transport::{Arg, ConnectionError, Reply};

/// Refuses a server that is not what is expected, in the words that it would use itself.
pub(super) async fn check(
    connection: &Connection,
    expected: Expected,
    timeout: Duration,
) -> Result<(), ConnectionError> {
    let refused = |text: &str| Err(ConnectionError::Refused(text.to_owned()));
    match expected {
        Expected::Nothing => Ok(()),
        Expected::WorkingCluster if works(connection, timeout).await?.is_none() => {
            refused("CLUSTERDOWN The cluster is down")
        }
        Expected::Primary if !is_primary(connection, timeout).await? => {
            refused("READONLY it is a replica now")
        }
        Expected::WorkingCluster | Expected::Primary => Ok(()),
    }
}

/// Whether a node sees its cluster working, and in which epoch: of two maps the one of the higher epoch is
/// newer.
pub(super) async fn works(
    connection: &Connection,
    timeout: Duration,
) -> Result<Option<u64>, ConnectionError> {
    let reply = connection.command("CLUSTER", &[Arg::Fixed("INFO")], timeout);
    let Reply::Text(text) = reply.await? else {
        return Ok(None);
    };
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
    Ok((field("cluster_state") == Some("ok")).then(|| epoch.unwrap_or(0)))
}

async fn is_primary(connection: &Connection, timeout: Duration) -> Result<bool, ConnectionError> {
    let reply = connection.command("ROLE", &[], timeout).await?;
    Ok(match reply {
        Reply::List(items) => matches!(items.first(), Some(Reply::Text(role)) if role == "master"),
        _ => false,
    })
}
