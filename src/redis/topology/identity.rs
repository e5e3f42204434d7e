//! Which server and database a lock is at, whatever the addresses of the clients are.

use super::route::Route;

use crate::error::{Error, Operation};
use crate::redis::connection::Connection;
use crate::redis::node::endpoint::ServerId;
use crate::redis::node::probe;
use crate::redis::transport::ConnectionError;

/// The process of a server, and one of its databases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    server: ServerId,
    database: u8,
}

impl Location {
    /// Whether both are at one server, in whatever databases.
    pub(crate) fn is_at_server_of(&self, other: &Self) -> bool {
        self.server == other.server
    }
}

impl Route<'_> {
    /// The server that has the lock now, over a connection that is opened for this question. `None`: the user may not
    /// ask.
    pub(crate) async fn location(self) -> Result<Option<Location>, Error> {
        let doing = Operation::Acquiring;
        let settings = self.settings_for(doing)?;
        let failed = |problem: ConnectionError| problem.into_error(doing, &settings.address);
        let opened = Connection::open(&settings.for_questions()).await;
        let (connection, _task) = opened.map_err(failed)?;
        let asked = probe::run_id(&connection, settings.command_timeout).await;
        let location = |server| Location {
            server,
            database: settings.database().unwrap_or(0),
        };
        Ok(asked.map_err(failed)?.map(location))
    }
}
