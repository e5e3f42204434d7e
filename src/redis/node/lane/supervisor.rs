//! The task of a lane: owns its connection, and decides when the next one may be used.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::current::{
    ConnectionContext, Current, GoneOnDrop, LanePlace, LaneState, LaneStats, Purpose,
};
use super::opening::{Opened, Opening};
use crate::base::backoff::Backoff;
use crate::base::connected::{CountedConnection, reconnected};
use crate::base::runtime::event;
use crate::error::tls_problem;
use crate::redis::connection::{Connection, Task, explained};
use crate::redis::node::endpoint::{Endpoint, Identified};
use crate::redis::node::fence::{self, ConnectionFence, Identity};
use crate::redis::node::link::{Limit, Link};
use crate::redis::transport::ConnectionError;

/// Owns the connection of a lane, and decides when the next one may be used.
pub(super) struct Supervisor {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) nth: usize,
    pub(super) place: LanePlace,
    /// How many connections in a row have ended while a channel was asked for, before any answer to that; and the pauses
    /// after them.
    pub(super) in_vain: (u32, Backoff),
    /// How many in a row have ended soon, whatever the server had answered.
    pub(super) ended_soon: u32,
    pub(super) stats: Arc<LaneStats>,
    pub(super) context: ConnectionContext,
    /// The previous connection, until its end is confirmed. `Some(None)`: its identity at the
    /// server is unknown.
    pub(super) predecessor: Option<Option<Identity>>,
    /// A connection that is replaced because of a misfit has no successor before this: there is one such
    /// replacement in a command timeout, so that a server that answers nonsense causes no storm of them.
    pub(super) next_misfit: Instant,
    /// Whether there is to be a connection.
    pub(super) wanted: watch::Receiver<bool>,
}

impl Supervisor {
    pub(super) async fn run(mut self, first: Option<Connected>, current: GoneOnDrop) {
        let stop = self.context.stop.clone();
        let mut connected = match first {
            Some(first) => first,
            None => {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {
                        current.0.set(LaneState::Stopped);
                        return;
                    }
                    first = self.connect_when_wanted(None, &current.0) => first,
                }
            }
        };
        let mut not_writable = self.backoff();
        loop {
            let Connected { link, mut task, .. } = connected;
            current.0.set(LaneState::Up(Arc::clone(&link)));
            self.context.channels.lane_up();
            let open = CountedConnection::opened();
            let unwanted = is(self.wanted.clone(), false);
            let successor = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                () = unwanted => Some(None),
                successor = self.watch(&link, &mut task, &mut not_writable) => Some(successor),
            };
            current.0.set(match successor {
                None => LaneState::Stopped,
                Some(_) => LaneState::Down(None),
            });
            open.closed();
            // Its task may be in the waker of a caller.
            link.end();
            task.end().await;
            let Some(successor) = successor else { return };
            self.context.channels.lane_lost(self.place.id);
            let by_itself = successor.is_none() && *self.wanted.borrow();
            let not_before = self.ended(&link, by_itself);
            drop(link);
            let replacement = async {
                if let Some(begin) = not_before {
                    tokio::time::sleep_until(begin).await;
                }
                self.connect_when_wanted(successor, &current.0).await
            };
            let replacement = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    current.0.set(LaneState::Stopped);
                    return;
                }
                replacement = replacement => replacement,
            };
            self.replaced(&replacement);
            connected = replacement;
        }
    }

    fn replaced(&self, replacement: &Connected) {
        self.stats.reconnects.fetch_add(1, Ordering::Relaxed);
        reconnected();
        let connection_fence = *self.stats.fence.lock();
        if self.is_news("replaced") {
            event!(INFO, lane = self.nth,
                server = &*self.endpoint.settings().address,
                %connection_fence,
                "command connection replaced"
            );
        }
        if replacement.is_tracking {
            // What was read over the last connection is not tracked by this one.
            self.context.reports.add_lane(self.nth);
        }
    }

    /// A server may close each connection as soon as it is used.
    fn is_news(&self, what: &str) -> bool {
        let server = &self.endpoint.settings().address;
        self.context.lately.is_news((what, server, self.nth))
    }

    /// Notes that a connection has ended. Returns when its successor may be opened, if not immediately.
    fn ended(&mut self, link: &Link, by_itself: bool) -> Option<Instant> {
        let settings = self.endpoint.settings();
        if *self.wanted.borrow() {
            if self.is_news("lost") {
                event!(
                    WARN,
                    lane = self.nth,
                    server = &*settings.address,
                    "command connection lost, reconnecting"
                );
            }
            self.context.outdated.notify_one();
        }
        self.predecessor = Some(link.identity.clone());
        let Some(misfit) = link.misfit() else {
            return self.pause_after(link, by_itself);
        };
        event!(
            WARN,
            lane = self.nth,
            server = &*settings.address,
            command = misfit.command,
            reply = misfit.shape,
            "replies are out of step with their commands: the connection is replaced"
        );
        let now = Instant::now();
        let begin = now.max(self.next_misfit);
        self.next_misfit = begin + settings.command_timeout;
        (begin > now).then_some(begin)
    }

    /// A connection that has ended may have done so because a channel was asked for: then its successor has to wait. And
    /// whatever ends each of them soon has not as many opened as there is time for.
    fn pause_after(&mut self, link: &Link, by_itself: bool) -> Option<Instant> {
        if by_itself && link.heard.is_in_vain() {
            let (times, pauses) = &mut self.in_vain;
            *times += 1;
            if *times == IN_VAIN_MAX && self.place.purpose == Purpose::Scripts {
                let server = &self.endpoint.settings().address;
                self.place.hearing.set_apart(server);
            }
            return Some(Instant::now() + pauses.next());
        }
        if link.heard.has_answered() {
            self.in_vain = (0, self.backoff());
        }
        let is_soon = by_itself && link.opened_at.elapsed() < SOON;
        self.ended_soon = if is_soon { self.ended_soon + 1 } else { 0 };
        (self.ended_soon > SOON_MAX).then(|| Instant::now() + SOON_PAUSE)
    }

    /// Doubts a connection over which channels are subscribed to, each command timeout: a call that waits for a message
    /// survives one silent connection. Never ready.
    async fn beat(&self, link: &Link) {
        let timeout = self.endpoint.settings().command_timeout;
        loop {
            link.subscribes.notified().await;
            loop {
                tokio::time::sleep(timeout).await;
                if !self.context.channels.uses(self.place.id) {
                    break;
                }
                link.doubt.notify_one();
            }
        }
    }

    /// Waits until a connection must be replaced. Returns its successor if there is one already.
    async fn watch(
        &self,
        link: &Link,
        task: &mut Task,
        not_writable: &mut Backoff,
    ) -> Option<Opened> {
        let timeout = self.endpoint.settings().command_timeout;
        // A connection that is only silent stays in use until another one has shown that the server
        // answers: a server that stalls does not get new connections from every client when it
        // resumes.
        let doubted = async {
            loop {
                link.doubt.notified().await;
                if let Some(opened) = self.check(link).await {
                    return opened;
                }
            }
        };
        let not_writable = async {
            link.not_writable.notified().await;
            if link.opened_at.elapsed() > STABLE_AFTER {
                *not_writable = self.backoff();
            }
            loop {
                not_writable.wait().await;
                if let Ok(opened) = self.open().await {
                    self.place.hearing.moved.notify_waiters();
                    return opened;
                }
            }
        };
        tokio::select! {
            biased;
            () = task.ended() => None,
            () = link.broken.notified() => None,
            () = self.place.hearing.moved.notified() => None,
            opened = not_writable => Some(opened),
            opened = doubted => Some(opened),
            () = self.beat(link) => None,
            () = link.keep_limits(timeout) => None,
        }
    }

    /// Sends a PING over a connection that is doubted. If its reply comes, replies are in step, and if another comes in
    /// its place or it in another's, the reader ends the connection. Replies that came do not show either: each may be
    /// that of the command before. Returns a successor if nothing comes at all.
    async fn check(&self, link: &Link) -> Option<Opened> {
        let timeout = self.endpoint.settings().command_timeout;
        let silence = timeout / 2;
        let in_step = async {
            let limit = || Limit {
                until: Instant::now() + timeout,
                silence,
            };
            while link.ping(limit()).await.is_err() {
                tokio::time::sleep(silence).await;
            }
        };
        let replaced = async {
            loop {
                link.silent(silence).await;
                let doubting = async {
                    loop {
                        self.context.doubted.notify_one();
                        tokio::time::sleep(DOUBTED_EVERY).await;
                    }
                };
                let opened = tokio::select! {
                    biased;
                    opened = self.open_while_silent(link) => opened,
                    () = doubting => None,
                };
                if opened.is_some() {
                    return opened;
                }
            }
        };
        tokio::select! {
            biased;
            () = in_step => None,
            opened = replaced => opened,
        }
    }

    /// Opens a second connection beside one that is silent. `None`: the first one has answered.
    async fn open_while_silent(&self, link: &Link) -> Option<Opened> {
        let mut backoff = self.backoff();
        // A short command timeout leaves time for the successor.
        let slower_by = SLOWER_BY.min(self.endpoint.settings().command_timeout / 20);
        while link.is_silent() {
            match self.open().await {
                Ok(opened) => {
                    // A server that goes on has both connections' commands, and may answer this one's first.
                    tokio::time::sleep(slower_by).await;
                    if link.is_silent() {
                        return Some(opened);
                    }
                }
                Err(_) => backoff.wait().await,
            }
        }
        None
    }

    /// Connects, unless and as long as there is not to be a connection.
    async fn connect_when_wanted(
        &mut self,
        mut successor: Option<Opened>,
        current: &Current,
    ) -> Connected {
        loop {
            is(self.wanted.clone(), true).await;
            let unwanted = is(self.wanted.clone(), false);
            tokio::select! {
                biased;
                () = unwanted => current.set(LaneState::Opening),
                connected = self.reconnect(successor.take(), current) => return connected,
            }
        }
    }

    async fn reconnect(&mut self, successor: Option<Opened>, current: &Current) -> Connected {
        let mut backoff = self.backoff();
        let mut opened = successor.map(Ok);
        loop {
            let next = match opened.take() {
                Some(opened) => opened,
                None => self.open().await,
            };
            let connected = match next {
                Ok(opened) => self.take_over(opened).await,
                Err(problem) => Err(problem),
            };
            match connected {
                Ok(connected) => return connected,
                Err(problem) => {
                    event!(DEBUG, lane = self.nth,
                        error = %problem,
                        "reconnect failed"
                    );
                    let settings = self.endpoint.settings();
                    let problem = explained(problem, settings.uses_tls());
                    // Callers waiting for a connection get the server's reason for refusing it.
                    let is_refused = match &problem {
                        ConnectionError::Refused(_) => true,
                        ConnectionError::Lost(text) => tls_problem(text).is_some(),
                        ConnectionError::NotSent(_)
                        | ConnectionError::Timeout(_)
                        | ConnectionError::NoSockets => false,
                    };
                    let cause = || problem.into_cause(&settings.address);
                    current.set(LaneState::Down(is_refused.then(cause)));
                    self.context.outdated.notify_one();
                    backoff.wait().await;
                }
            }
        }
    }

    /// Opens a connection, which shows that the server answers.
    pub(super) async fn open(&self) -> Result<Opened, ConnectionError> {
        let opening = Opening {
            place: &self.place,
            context: &self.context,
        };
        opening.open().await
    }

    /// Makes sure that the predecessor of a connection has ended, and that the connection can
    /// itself be killed later.
    pub(super) async fn take_over(&mut self, opened: Opened) -> Result<Connected, ConnectionError> {
        let Opened {
            connection,
            task,
            hears,
            identity,
            server,
            is_tracking,
        } = opened;
        let fence = self.fence_of(&connection, server, &identity).await?;
        let was = std::mem::replace(&mut *self.stats.fence.lock(), fence);
        self.context.fences.changed(was, fence);
        if fence != ConnectionFence::Active && (was != fence || self.predecessor.is_none()) {
            event!(WARN, lane = self.nth,
                connection_fence = %fence,
                "the connection fence is not active: docs/guarantees.md lists the remaining risks"
            );
        }
        self.predecessor = None;
        let address = Arc::clone(&self.endpoint.settings().address);
        let misfits = Arc::clone(&self.stats.misfits);
        let link = Arc::new(Link::new(connection, hears, identity, address, misfits));
        Ok(Connected {
            link,
            task,
            is_tracking,
        })
    }

    /// Kills the predecessor at the server, and tests whether the connection could be killed.
    async fn fence_of(
        &self,
        connection: &Connection,
        server: Identified,
        identity: &Option<Identity>,
    ) -> Result<ConnectionFence, ConnectionError> {
        if self.place.purpose == Purpose::Messages {
            // Nothing of it that is executed late does any harm.
            return Ok(ConnectionFence::Active);
        }
        let timeout = self.endpoint.settings().command_timeout;
        Ok(match (self.fence(connection, server).await?, identity) {
            (ConnectionFence::Active, Some(_)) => fence::may_kill(connection, timeout).await?,
            (ConnectionFence::Active, None) => ConnectionFence::NotPermitted,
            (fence, _) => fence,
        })
    }

    /// Kills the predecessor at the server. After the reply, 0 or 1, none of its commands is
    /// executed any more.
    async fn fence(
        &self,
        connection: &Connection,
        server: Identified,
    ) -> Result<ConnectionFence, ConnectionError> {
        let settings = self.endpoint.settings();
        if !settings.fence {
            return Ok(self.unfenced(ConnectionFence::Off));
        }
        let killed = match &self.predecessor {
            None => ConnectionFence::Active,
            Some(None) => ConnectionFence::NotPermitted,
            Some(Some(identity)) => {
                fence::kill(connection, identity, settings.command_timeout).await?
            }
        };
        Ok(match (killed, server) {
            (ConnectionFence::Active, Identified::Same) => killed,
            // This server may be known by another address too, with connections that are not killed here.
            _ => self.unfenced(ConnectionFence::NotPermitted),
        })
    }

    /// Counts a connection whose predecessors may still be executed.
    fn unfenced(&self, fence: ConnectionFence) -> ConnectionFence {
        if self.predecessor.is_some() || fence == ConnectionFence::NotPermitted {
            self.context.fences.count_replaced_without();
        }
        fence
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(self.endpoint.settings().is_scattered())
    }
}

/// Waits until it is `wished`; for ever if nothing can change it any more.
async fn is(mut wanted: watch::Receiver<bool>, wished: bool) {
    if wanted.wait_for(|wanted| *wanted == wished).await.is_err() {
        std::future::pending().await
    }
}

/// A connection with the task that drives it.
pub(super) struct Connected {
    link: Arc<Link>,
    task: Task,
    /// The server reports changes of what is read over it.
    is_tracking: bool,
}

/// Chance ends no three of them in a row.
const IN_VAIN_MAX: u32 = 3;

/// A connection has ended soon that could be used for less than this. After some in a row the next is opened later.
const SOON: Duration = Duration::from_millis(10);
const SOON_MAX: u32 = 3;
const SOON_PAUSE: Duration = Duration::from_millis(20);

/// How often a server that stays silent is said to be: another one may take over from it at any time.
const DOUBTED_EVERY: Duration = Duration::from_secs(1);

/// By how much a connection may answer later than one that was opened after it.
const SLOWER_BY: Duration = Duration::from_millis(50);

/// A connection that was used for this long led to the right server.
const STABLE_AFTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use test_support::{Server, tokio};

    use super::*;
    use crate::base::runtime::Runtime;
    use crate::redis::channels::LaneId;
    use crate::redis::node::lane::Lane;
    use crate::redis::settings::Settings;
    use crate::redis::settings::address::Address;

    #[tokio::test]
    async fn a_server_that_accepted_writes_for_long_is_replaced_after_the_shortest_pause() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port);
        let timeout = Duration::from_millis(1_500);
        let settings = Settings::from_url(&url, None, timeout, true).expect("valid");
        let (settings, address) = (Arc::new(settings), Address::new("127.0.0.1", server.port));
        let context = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
        let place = LanePlace {
            endpoint: Arc::new(Endpoint::new(address, settings, None, None)),
            id: LaneId { node: 0, nth: 0 },
            purpose: Purpose::Scripts,
            hearing: Arc::default(),
        };
        let (_lane, mut supervisor) = Lane::new(place, &context);
        for used_for in [Duration::ZERO, STABLE_AFTER * 2] {
            let opened = supervisor.open().await.expect("it answers");
            let mut first = supervisor.take_over(opened).await.expect("it answers");
            let link = Arc::get_mut(&mut first.link).expect("nothing else uses it");
            link.opened_at -= used_for;
            link.note_misplaced();
            // The connections before were of no use, one after the other.
            let mut pause = Backoff::new(false);
            while pause.next() < Backoff::LONGEST / 4 {}
            let watching = supervisor.watch(&first.link, &mut first.task, &mut pause);
            assert!(watching.await.is_some(), "it is replaced");
            let shortest = Backoff::new(false).next();
            let begins_again = pause.next() <= shortest * 2;
            assert_eq!(begins_again, used_for > STABLE_AFTER, "{used_for:?}");
        }
        context.end();
    }
}
