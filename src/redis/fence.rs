//! The fence: `CLIENT KILL` for the connection before, so that nothing of it is executed after its repetition.

use std::fmt;
use std::time::Duration;

use fred::interfaces::ClientLike;
use fred::prelude::Client;
use fred::types::{CustomCommand, Value};

use super::link::options;
use super::server_text;

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
    client: &Client,
    who: &Identity,
    timeout: Duration,
) -> Result<FenceState, fred::error::Error> {
    let args: Vec<Value> =
        vec!["KILL".into(), "ID".into(), who.id.into(), "ADDR".into(), who.address.as_str().into()];
    match client_command(client, args, timeout).await {
        Ok(Value::Integer(_)) => Ok(FenceState::InForce),
        Ok(_) => Ok(FenceState::NotPermitted),
        Err(error) if server_text(&error).is_some() => Ok(FenceState::NotPermitted),
        Err(error) => Err(error),
    }
}

async fn client_command(
    client: &Client,
    args: Vec<Value>,
    timeout: Duration,
) -> Result<Value, fred::error::Error> {
    let options = options(timeout);
    let command = CustomCommand::new_static("CLIENT", None::<u16>, false);
    client.with_options(&options).custom(command, args).await
}

/// What this connection is called at the server. `None`: it does not tell.
pub(super) async fn identify(
    client: &Client,
    timeout: Duration,
) -> Result<Option<Identity>, fred::error::Error> {
    let text = match client_command(client, vec!["INFO".into()], timeout).await {
        Ok(value) => value.into_string().unwrap_or_default(),
        Err(error) if server_text(&error).is_some() => return Ok(None),
        Err(error) => return Err(error),
    };
    let field =
        |name: &str| text.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let id = field("id").and_then(|id| id.parse().ok());
    Ok(id.zip(field("addr")).map(|(id, address)| Identity { id, address: address.to_owned() }))
}

/// Asks for the right to kill before it is needed, by killing nobody.
pub(super) async fn may_kill(
    client: &Client,
    own: &Identity,
    timeout: Duration,
) -> Result<FenceState, fred::error::Error> {
    let nobody = Identity { id: own.id, address: "0.0.0.0:0".to_owned() };
    kill(client, &nobody, timeout).await
}
