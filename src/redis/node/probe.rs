//! Whether a connection leads to a server that takes writes, as far as that server knows, and to which.

use std::time::Duration;

use super::endpoint::{Endpoint, ServerId};
use super::slots;
use crate::error::{RefusalKind, RefusedKind};
use crate::redis::connection::{Connection, hello_field};
use crate::redis::settings::Expected;
use crate::redis::settings::address::Address;
use crate::redis::settings::learned::LearnedAddresses;
use crate::redis::transport::{Arg, ConnectionError, Reply, permitted};

/// Refuses a server that is not what is expected. Returns the identity that it reports, if it may, where there are
/// several servers.
pub(in crate::redis) async fn check(
    connection: &Connection,
    endpoint: &Endpoint,
) -> Result<Option<ServerId>, ConnectionError> {
    let settings = endpoint.settings();
    let timeout = settings.command_timeout;
    match settings.expected {
        Expected::Nothing => Ok(None),
        Expected::NoCluster => match is_in_cluster(connection, timeout).await? {
            false => Ok(None),
            true => {
                let kind = RefusalKind::Known(RefusedKind::Cluster);
                Err(ConnectionError::unusable(
                    kind,
                    "it reports the mode `cluster`",
                ))
            }
        },
        Expected::WorkingCluster => match works(connection, timeout).await? {
            None => Err(not_working()),
            Some(_) => {
                let address = endpoint.address();
                node_id(connection, &settings.learned, &address, timeout).await
            }
        },
        Expected::Primary => match is_primary(connection, timeout).await? {
            false => {
                let kind = RefusalKind::Known(RefusedKind::ReadOnly);
                Err(ConnectionError::unusable(
                    kind,
                    "it reports that it is a replica",
                ))
            }
            true => run_id(connection, timeout).await,
        },
    }
}

/// The identity of a node of a cluster, from itself or, without the permission to ask for it, from its table.
pub(in crate::redis) async fn node_id(
    connection: &Connection,
    learned: &LearnedAddresses,
    address: &Address,
    timeout: Duration,
) -> Result<Option<ServerId>, ConnectionError> {
    let answer = |word| connection.command("CLUSTER", &[Arg::Fixed(word)], timeout);
    if let Some(id) = permitted(answer("MYID").await)? {
        return Ok(id.into_text()?.map(Into::into));
    }
    let table = permitted(answer("SLOTS").await)?;
    if table
        .as_ref()
        .is_some_and(|table| !matches!(table, Reply::List(_)))
    {
        return Err(ConnectionError::out_of_step());
    }
    let ranges = table.and_then(|table| slots::read(&table, learned, address));
    let ranges = ranges.unwrap_or_default();
    let itself = slots::servers(&ranges).find(|server| server.address == *address);
    Ok(itself.and_then(|server| server.id.clone()))
}

/// The identity of a process, which ends with it.
pub(in crate::redis) async fn run_id(
    connection: &Connection,
    timeout: Duration,
) -> Result<Option<ServerId>, ConnectionError> {
    let answer = connection.command("INFO", &[Arg::Fixed("server")], timeout);
    let Some(reply) = permitted(answer.await)? else {
        return Ok(None);
    };
    let text = reply.into_text()?.unwrap_or_default();
    Ok(field(&text, "run_id").map(Into::into))
}

/// The value of a line `name:value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Whether a node sees its cluster working, and in which epoch: of two maps the one of the higher epoch is
/// newer.
pub(in crate::redis) async fn works(
    connection: &Connection,
    timeout: Duration,
) -> Result<Option<u64>, ConnectionError> {
    let reply = connection.command("CLUSTER", &[Arg::Fixed("INFO")], timeout);
    let text = reply.await?.into_text()?.unwrap_or_default();
    let epoch = field(&text, "cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
    Ok((field(&text, "cluster_state") == Some("ok")).then(|| epoch.unwrap_or(0)))
}

/// Whether the server is a node of a cluster. HELLO needs no permission; a server without it is refused at its first
/// redirect.
async fn is_in_cluster(
    connection: &Connection,
    timeout: Duration,
) -> Result<bool, ConnectionError> {
    let answer = connection.command("HELLO", &[], timeout);
    let hello = permitted(answer.await)?;
    Ok(hello.is_some_and(|hello| hello_field(&hello, "mode") == Some("cluster")))
}

async fn is_primary(connection: &Connection, timeout: Duration) -> Result<bool, ConnectionError> {
    let reply = connection.command("ROLE", &[], timeout).await?;
    match reply {
        Reply::List(items) => {
            Ok(matches!(items.first(), Some(Reply::Text(role)) if role == "master"))
        }
        _ => Err(ConnectionError::out_of_step()),
    }
}

/// The node sees its cluster down.
pub(in crate::redis) fn not_working() -> ConnectionError {
    let kind = RefusalKind::Known(RefusedKind::ClusterDown);
    ConnectionError::unusable(kind, "it reports that its cluster is down")
}
