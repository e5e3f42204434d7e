//! Sharded channels on a connection.

use std::sync::Arc;
use std::time::Duration;

use fred::interfaces::{ClientLike, PubsubInterface};
use fred::types::{CustomCommand, Value};

use super::{Connection, options};
use crate::redis::transport::ConnectionError;

impl Connection {
    /// Subscribes to sharded channels, each by a command of its own in one pipeline, so that each has an answer
    /// of its own: how many of them this connection has now.
    pub(in crate::redis) async fn subscribe_sharded(
        &self,
        channels: &[Arc<str>],
        timeout: Duration,
    ) -> Vec<Result<i64, ConnectionError>> {
        match self {
            Self::Fred(client) => {
                let pipeline = client.pipeline();
                for channel in channels {
                    let command = CustomCommand::new_static("SSUBSCRIBE", None::<u16>, false);
                    let queued: Result<Value, _> = pipeline
                        .with_options(&options(timeout))
                        .custom(command, vec![channel.to_string()])
                        .await;
                    debug_assert!(queued.is_ok(), "it is only queued");
                }
                let answers = pipeline.try_all::<Value>().await.into_iter();
                answers.map(|answer| Ok(count(answer?))).collect()
            }
            #[cfg(feature = "test-util")]
            Self::Custom(_) => {
                let lost = || ConnectionError::Lost("no sharded channels".to_owned());
                channels.iter().map(|_| Err(lost())).collect()
            }
        }
    }

    /// Unsubscribes from a sharded channel. Only this command of fred's reads the answer as what it is.
    pub(in crate::redis) async fn unsubscribe_sharded(
        &self,
        channel: &str,
    ) -> Result<(), ConnectionError> {
        match self {
            Self::Fred(client) => Ok(client.sunsubscribe(channel).await?),
            #[cfg(feature = "test-util")]
            Self::Custom(_) => Ok(()),
        }
    }
}

/// The last part of `["ssubscribe", name, count]`.
fn count(answer: Value) -> i64 {
    match answer {
        Value::Array(items) => items.last().and_then(Value::as_i64).unwrap_or(0),
        _ => 0,
    }
}
