//! The fence: `CLIENT KILL` for the connection before, so that nothing of it is executed after its repetition.

use std::fmt;
use std::time::Duration;

use super::Reply;
use super::connection::{Connection, Trouble};
use crate::script::Arg;

/// Whether commands of a lost connection are known to be over before its replacement is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FenceState {
    /// Every lost connection is killed at the server before scripts go over the next one.
    #[default]
    InForce,
    /// Switched off with [`LockClientBuilder::fence`](crate::LockClientBuilder::fence).
    Off,
    /// The server does not know, or does not allow, `CLIENT INFO` and `CLIENT KILL`.
    NotPermitted,
}

impl fmt::Display for FenceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InForce => "in force",
            Self::Off => "switched off",
            Self::NotPermitted => "not permitted",
        })
    }
}

/// What a connection is called at the server. Ids start again when a server restarts, hence the address.
#[derive(Clone)]
pub(super) struct Identity {
    id: i64,
    address: String,
}

/// Kills a connection. The answer, 0 or 1, says that nothing of it is executed any more.
pub(super) async fn kill(
    connection: &Connection,
    who: &Identity,
    timeout: Duration,
) -> Result<FenceState, Trouble> {
    let args = vec![
        Arg::Fixed("KILL"),
        Arg::Fixed("ID"),
        Arg::Number(who.id),
        Arg::Fixed("ADDR"),
        Arg::Text(who.address.as_str().into()),
    ];
    match connection.command("CLIENT", args, timeout).await {
        Ok(Reply::Number(_)) => Ok(FenceState::InForce),
        Ok(_) | Err(Trouble::Refused(_)) => Ok(FenceState::NotPermitted),
        Err(trouble) => Err(trouble),
    }
}

/// What this connection is called at the server. `None`: it does not tell.
pub(super) async fn identify(
    connection: &Connection,
    timeout: Duration,
) -> Result<Option<Identity>, Trouble> {
    let text = match connection.command("CLIENT", vec![Arg::Fixed("INFO")], timeout).await {
        Ok(Reply::Text(text)) => text,
        Ok(_) | Err(Trouble::Refused(_)) => return Ok(None),
        Err(trouble) => return Err(trouble),
    };
    let field =
        |name: &str| text.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let id = field("id").and_then(|id| id.parse().ok());
    Ok(id.zip(field("addr")).map(|(id, address)| Identity { id, address: address.to_owned() }))
}

/// Asks for the right to kill before it is needed, by killing nobody.
pub(super) async fn may_kill(
    connection: &Connection,
    own: &Identity,
    timeout: Duration,
) -> Result<FenceState, Trouble> {
    let nobody = Identity { id: own.id, address: "0.0.0.0:0".to_owned() };
    kill(connection, &nobody, timeout).await
}
