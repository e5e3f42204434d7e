//! What a connection does at a node of a cluster only: ASKING, and sharded channels.

use std::sync::Arc;
use std::time::Duration;

use fred::interfaces::{ClientLike, PubsubInterface};
use fred::types::{CustomCommand, Value};

use super::{Connection, options, words};
use crate::error::RefusalKind;
use crate::redis::transport::{Arg, BoxFuture, ConnectionError, Reply};

impl Connection {
    /// Sends ASKING and a command in one pipeline: a node that takes over a slot executes the one command
    /// behind it as if the slot were its own already.
    pub(in crate::redis) fn asking(
        &self,
        name: &'static str,
        args: &[Arg],
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Reply, ConnectionError>> {
        match self {
            Self::Fred(client) => {
                let (client, args) = (client.clone(), words(args));
                Box::pin(async move {
                    // The time limit of a pipeline is that of its first command.
                    let (pipeline, options) = (client.pipeline(), options(timeout));
                    let asking = CustomCommand::new_static("ASKING", None::<u16>, false);
                    let (asking, none) = (asking, Vec::<Value>::new());
                    let _: Value = pipeline.with_options(&options).custom(asking, none).await?;
                    let command = CustomCommand::new_static(name, None::<u16>, false);
                    let _: Value = pipeline
                        .with_options(&options)
                        .custom(command, args)
                        .await?;
                    let mut answers = pipeline.try_all::<Value>().await.into_iter();
                    let (asked, answer) = (answers.next(), answers.next());
                    let answer: Option<Result<_, ConnectionError>> =
                        answer.map(|answer| Ok(answer?.into()));
                    match (asked, answer) {
                        // Sent back to where the call came from: the reply to ASKING says why.
                        (Some(Err(refused)), Some(Err(ConnectionError::Refused(back))))
                            if matches!(back.kind, RefusalKind::Moved { .. }) =>
                        {
                            Err(refused.into())
                        }
                        (_, Some(answer)) => answer,
                        (Some(Err(problem)), None) => Err(problem.into()),
                        (_, None) => Err(ConnectionError::Lost("no answer".to_owned())),
                    }
                })
            }
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => {
                let (connection, args) = (Arc::clone(connection), args.to_vec());
                Box::pin(async move {
                    let asking = connection.command("ASKING", Vec::new(), timeout);
                    let (_, answer) = tokio::join!(asking, connection.command(name, args, timeout));
                    answer
                })
            }
        }
    }

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
