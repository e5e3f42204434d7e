//! How a connection is opened, up to what it may be used for.

use std::sync::Arc;

use super::current::{ConnectionContext, LanePlace, Purpose};
use crate::error::RefusalKind;
use crate::redis::connection::{Connection, PushReceiver, Task, hello_field};
use crate::redis::node::endpoint::Identified;
use crate::redis::node::fence::{self, Identity};
use crate::redis::node::probe;
use crate::redis::reports::{LaneReports, TrackedCalls};
use crate::redis::settings::Settings;
use crate::redis::transport::{Arg, ChannelEvent, ConnectionError, MessageSink, Reply};

/// A connection that works, but may not carry scripts yet.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) task: Task,
    /// Channels can be subscribed to over it.
    pub(super) hears: bool,
    pub(super) identity: Option<Identity>,
    pub(super) server: Identified,
    pub(super) is_tracking: bool,
}

/// What a server has answered to HELLO, if it knows the newer version of the protocol, and to CLIENT TRACKING.
struct Greeting {
    hello: Option<Reply>,
    tracking: Result<Reply, ConnectionError>,
}

/// Opens connections of a lane.
pub(super) struct Opening<'a> {
    pub(super) place: &'a LanePlace,
    pub(super) context: &'a ConnectionContext,
}

impl Opening<'_> {
    /// Opens a connection and reads its identity, which shows that the server answers.
    pub(super) async fn open(&self) -> Result<Opened, ConnectionError> {
        let settings = self.place.endpoint.settings();
        let (connection, task) = Connection::open(&settings).await?;
        // All of it in one round trip.
        let (greeting, server, identity) = tokio::try_join!(
            biased;
            self.greet(&connection, &settings),
            probe::check(&connection, &self.place.endpoint),
            self.identity(&connection, &settings),
        )?;
        let server = self.place.endpoint.identify(server.as_ref());
        if server == Identified::Other {
            let text = "another server answers at its address";
            return Err(ConnectionError::Lost(text.to_owned()));
        }
        let (hears, is_tracking) = self.greeted(&connection, &settings, greeting)?;
        Ok(Opened {
            connection,
            task,
            hears,
            identity,
            server,
            is_tracking,
        })
    }

    /// Who this connection is, for its successor to have it killed. Messages need no such thing.
    async fn identity(
        &self,
        connection: &Connection,
        settings: &Settings,
    ) -> Result<Option<Identity>, ConnectionError> {
        match settings.fence && self.place.purpose != Purpose::Messages {
            true => fence::identify(connection, settings.command_timeout).await,
            false => Ok(None),
        }
    }

    /// Asks for the version of the protocol in which messages and reports come beside replies, and for reports of changes of
    /// what is read over the connection.
    async fn greet(
        &self,
        connection: &Connection,
        settings: &Settings,
    ) -> Result<Greeting, ConnectionError> {
        let timeout = settings.command_timeout;
        let hello = async {
            match self.place.purpose {
                Purpose::Replicas => Ok(None),
                Purpose::Scripts | Purpose::Messages => connection.greet(timeout).await,
            }
        };
        let words = ["TRACKING", "ON", "NOLOOP"].map(Arg::Fixed);
        let track = async {
            match self.is_to_report() {
                true => connection.command("CLIENT", &words, timeout).await,
                false => Ok(Reply::Nil),
            }
        };
        let (hello, tracking) = tokio::join!(biased; hello, track);
        let hello = hello?;
        Ok(Greeting { hello, tracking })
    }

    fn is_to_report(&self) -> bool {
        self.place.purpose == Purpose::Scripts && self.context.reports.are_wanted(self.place.id.nth)
    }

    /// Notes what a server has answered. Returns whether channels can be subscribed to over its connection, and whether it
    /// reports changes.
    fn greeted(
        &self,
        connection: &Connection,
        settings: &Settings,
        greeting: Greeting,
    ) -> Result<(bool, bool), ConnectionError> {
        let is_apart = self.place.purpose == Purpose::Messages;
        let is_new = greeting.hello.is_some();
        let hears = is_new || is_apart;
        connection.receive(PushReceiver {
            heard: hears.then(|| self.heard()),
            reports: self.is_to_report().then(|| LaneReports {
                reports: Arc::clone(&self.context.reports),
                lane: self.place.id.nth,
            }),
            has_lists: !is_new && is_apart,
        });
        let is_tracking = self.is_to_report() && self.is_tracking(settings, greeting)?;
        Ok((hears, is_tracking))
    }

    /// Whether the server reports changes, by its replies to HELLO and to CLIENT TRACKING: only in the newer version of the
    /// protocol it does over the connection that has read the keys.
    fn is_tracking(
        &self,
        settings: &Settings,
        greeting: Greeting,
    ) -> Result<bool, ConnectionError> {
        let reports = &self.context.reports;
        let problem = match (greeting.hello, greeting.tracking) {
            (Some(hello), Ok(reply)) => {
                reply.into_text()?;
                reports.note_server(TrackedCalls::by(hello_field(&hello, "version")));
                return Ok(true);
            }
            (_, Err(problem)) if !problem.is_about_the_command() => return Err(problem),
            (Some(_), Err(problem)) => problem,
            (None, _) => ConnectionError::unusable(
                RefusalKind::UnknownCommand("HELLO".to_owned()),
                "the server does not know HELLO",
            ),
        };
        reports.refused(&settings.address, &problem);
        Ok(false)
    }

    /// Notes what is heard over a connection.
    fn heard(&self) -> MessageSink {
        let (channels, lane) = (Arc::clone(&self.context.channels), self.place.id);
        let outdated = Arc::clone(&self.context.outdated);
        Arc::new(move |event| match event {
            ChannelEvent::Message(delivery, channel) => channels.message(delivery, &channel),
            ChannelEvent::Ended(channel) => {
                // Its slot has another server.
                if channels.ended(lane, &channel) {
                    outdated.notify_one();
                }
            }
        })
    }
}
