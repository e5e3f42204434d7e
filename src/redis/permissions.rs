//! Which commands its user may not run, of those that are sent besides scripts and channels. Each is sent in a
//! form without effect.

use tokio::time::Instant;

use super::Route;
use super::connection::Connection;
use super::fence::{self, ConnectionFence};
use super::link::{Limit, SendError};
use super::map::RoutedLink;
use super::settings::Settings;
use super::topology::Topology;
use super::transport::{Arg, ConnectionError, Role};
use crate::error::Cause;
use crate::server_error;

impl Route<'_> {
    /// The permissions that the server at the end of `way` refuses. Not for sharded channels, and not for what
    /// is sent only while connecting to one server.
    pub(crate) async fn without_permission(
        self,
        way: &RoutedLink,
        asks_replicas: bool,
        limit: Limit,
    ) -> Result<Vec<&'static str>, SendError> {
        let mut calls = Vec::new();
        if self.redis.connection_fence() != ConnectionFence::Off {
            let words = fence::without_effect().map(|(right, args)| (right, "CLIENT", args));
            calls.extend(words);
        }
        // A connection that is replaced asks these again, wherever its lock is by then.
        match &self.redis.topology {
            Topology::One(_) => {}
            Topology::Cluster(..) => calls.extend([
                ("+cluster|info", "CLUSTER", vec![Arg::Fixed("INFO")]),
                ("+cluster|slots", "CLUSTER", vec![Arg::Fixed("SLOTS")]),
            ]),
            Topology::Sentinel(_) => calls.push(("+role", "ROLE", Vec::new())),
        }
        if asks_replicas {
            // None has to have anything.
            calls.push(("+wait", "WAIT", vec![Arg::Number(0), Arg::Number(0)]));
        }
        let mut missing = Vec::new();
        for (right, name, args) in calls {
            if !way.link.may_run(name, &args, limit).await? {
                missing.push(right);
            }
        }
        if let Topology::Cluster(map, _) = &self.redis.topology {
            let settings = map.node(way.node).settings();
            if !may_ask(&settings, limit).await? {
                missing.push("+asking");
            }
        }
        Ok(missing)
    }
}

/// Whether ASKING is permitted. It changes what the next command of its connection means, so it has a connection
/// on which there is none.
async fn may_ask(settings: &Settings, limit: Limit) -> Result<bool, SendError> {
    let sent_at = Instant::now();
    let cause = |text: String| Cause::at(&settings.address, text);
    let silent = || ConnectionError::Timeout("no answer".to_owned());
    let opening = Connection::open(settings, Role::Commands);
    let opened = tokio::time::timeout_at(limit.until, opening).await;
    let (connection, _task) = match opened.unwrap_or_else(|_| Err(silent())) {
        Ok(opened) => opened,
        Err(ConnectionError::Refused(text)) => return Err(SendError::NotAccepted(cause(text))),
        Err(problem) => return Err(SendError::NotSent(cause(problem.into_text()))),
    };
    let asked = connection.command("ASKING", &[], settings.command_timeout);
    let asked = tokio::time::timeout_at(limit.until, asked).await;
    match asked.unwrap_or_else(|_| Err(silent())) {
        Ok(_) => Ok(true),
        Err(ConnectionError::Refused(text)) => Ok(!server_error::is_permission(&text)),
        Err(problem) => {
            let source = cause(problem.into_text());
            Err(SendError::Unknown { source, sent_at })
        }
    }
}
