//! A lane: one command connection at a time, replaced when its task ends, fenced before it is used
//! again.
//!
//! Invariant: a script is handed to a connection only after every predecessor of that connection
//! was killed at the server (or the connection fence is known not to be active). A command left
//! unanswered on a lost connection can therefore not be executed after its resend.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::{Backoff, Connection, Task, connect_error};
use super::fence::{self, ConnectionFence, Identity};
use super::link::{Link, SendError};
use super::settings::Settings;
use super::transport::{ConnectionError, Role};
use crate::error::Error;
use crate::runtime::Tasks;
use crate::runtime::event;

pub(super) struct Lane {
    current: Arc<Current>,
    figures: Arc<Figures>,
}

impl Lane {
    /// Connects once, and starts the task that replaces the connection from then on.
    pub(super) async fn open(
        settings: &Arc<Settings>,
        nth: usize,
        stop: &CancellationToken,
        tasks: &Tasks,
        moved: &Arc<Notify>,
    ) -> Result<Self, Error> {
        let figures = Arc::new(Figures::default());
        let mut supervisor = Supervisor {
            settings: Arc::clone(settings),
            nth,
            figures: Arc::clone(&figures),
            predecessor: None,
            moved: Arc::clone(moved),
        };
        let refused = |problem| connect_error(settings, problem);
        let opened = supervisor.open().await.map_err(refused)?;
        let first = supervisor.take_over(opened).await.map_err(refused)?;
        let current = Arc::new(Current {
            state: Mutex::new(State::Down(None)),
            changed: Notify::new(),
        });
        let gone_on_drop = GoneOnDrop(Arc::clone(&current));
        tasks.spawn(supervisor.run(first, gone_on_drop, stop.clone()));
        Ok(Self { current, figures })
    }

    pub(super) fn unfenced(&self) -> u64 {
        self.figures.unfenced.load(Ordering::Acquire)
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.figures.reconnects.load(Ordering::Relaxed)
    }

    pub(super) fn fence(&self) -> ConnectionFence {
        *self.figures.fence.lock()
    }

    /// Whether scripts can be sent now.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.current.now(), Some(Ok(_)))
    }

    /// The current connection, waiting for one until `limit`.
    pub(super) async fn ready(&self, limit: Instant) -> Result<Arc<Link>, SendError> {
        if let Some(link) = self.current.now() {
            return link;
        }
        Box::pin(tokio::time::timeout_at(limit, self.current.wait()))
            .await
            .unwrap_or_else(|_| {
                Err(match &*self.current.state.lock() {
                    State::Down(Some(text)) => SendError::NotAccepted(text.clone()),
                    _ => SendError::NotSent("not connected".into()),
                })
            })
    }
}

/// The connection of a lane as senders see it. The longest waiter is notified first.
struct Current {
    state: Mutex<State>,
    changed: Notify,
}

impl Current {
    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_waiters();
    }

    /// `None`: there is no connection at the moment.
    fn now(&self) -> Option<Result<Arc<Link>, SendError>> {
        match &*self.state.lock() {
            State::Up(link) if !link.ended.is_cancelled() => Some(Ok(Arc::clone(link))),
            State::Up(_) | State::Down(_) => None,
            State::Stopped => Some(Err(SendError::Closed)),
            State::Gone => Some(Err(SendError::NoRuntime)),
        }
    }

    async fn wait(&self) -> Result<Arc<Link>, SendError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the check, so that no change is missed in between.
            changed.as_mut().enable();
            if let Some(link) = self.now() {
                return link;
            }
            changed.await;
        }
    }
}

/// A supervisor dropped without a stop was dropped with its runtime.
struct GoneOnDrop(Arc<Current>);

impl Drop for GoneOnDrop {
    fn drop(&mut self) {
        if !matches!(*self.0.state.lock(), State::Stopped) {
            self.0.set(State::Gone);
        }
    }
}

#[derive(Default)]
struct Figures {
    reconnects: AtomicU64,
    unfenced: AtomicU64,
    fence: Mutex<ConnectionFence>,
}

enum State {
    Up(Arc<Link>),
    /// There is no connection; with the server's message if it refused one.
    Down(Option<String>),
    Stopped,
    Gone,
}

/// Owns the connection of a lane, and decides when the next one may be used.
struct Supervisor {
    settings: Arc<Settings>,
    nth: usize,
    figures: Arc<Figures>,
    /// The previous connection, until its end is confirmed. `Some(None)`: its identity at the
    /// server is unknown.
    predecessor: Option<Option<Identity>>,
    /// Notified when the connection led to the wrong server.
    moved: Arc<Notify>,
}

impl Supervisor {
    async fn run(mut self, first: Connected, current: GoneOnDrop, stop: CancellationToken) {
        let mut connected = first;
        let mut misplaced = Backoff::new(self.settings.is_scattered());
        loop {
            let Connected {
                link,
                mut task,
                _ended,
            } = connected;
            current.0.set(State::Up(Arc::clone(&link)));
            let successor = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                successor = self.watch(&link, &mut task, &mut misplaced) => Some(successor),
            };
            current.0.set(if successor.is_none() {
                State::Stopped
            } else {
                State::Down(None)
            });
            drop(_ended);
            task.end().await;
            let Some(successor) = successor else { return };
            event!(
                WARN,
                lane = self.nth,
                "command connection lost, reconnecting"
            );
            self.predecessor = Some(link.identity.clone());
            drop(link);
            let replacement = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    current.0.set(State::Stopped);
                    return;
                }
                replacement = self.reconnect(successor, &current.0) => replacement,
            };
            self.figures.reconnects.fetch_add(1, Ordering::Relaxed);
            let connection_fence = *self.figures.fence.lock();
            event!(INFO, lane = self.nth,
                %connection_fence,
                "command connection replaced"
            );
            connected = replacement;
        }
    }

    /// Waits until a connection must be replaced. Returns its successor if there is one already.
    async fn watch(&self, link: &Link, task: &mut Task, misplaced: &mut Backoff) -> Option<Opened> {
        // A connection that is only silent stays in use until another one has shown that the server
        // answers: a server that stalls does not get new connections from every client when it
        // resumes.
        let doubted = async {
            loop {
                link.doubt.notified().await;
                if let Some(opened) = self.open_while_doubted(link).await {
                    return opened;
                }
            }
        };
        let misplaced = async {
            link.misplaced.notified().await;
            if link.opened_at.elapsed() > STABLE_AFTER {
                *misplaced = Backoff::new(self.settings.is_scattered());
            }
            loop {
                misplaced.wait().await;
                if let Ok(opened) = self.open().await {
                    // The subscriber was connected to the same server.
                    self.moved.notify_one();
                    return opened;
                }
            }
        };
        tokio::select! {
            biased;
            () = task.ended() => None,
            () = link.broken.notified() => None,
            opened = misplaced => Some(opened),
            opened = doubted => Some(opened),
        }
    }

    /// Opens a second connection beside one that is silent. `None`: the first one has answered.
    async fn open_while_doubted(&self, link: &Link) -> Option<Opened> {
        let mut backoff = Backoff::new(self.settings.is_scattered());
        while link.is_doubted() {
            match self.open().await {
                Ok(opened) if link.is_doubted() => return Some(opened),
                Ok(_) => {}
                Err(_) => backoff.wait().await,
            }
        }
        None
    }

    async fn reconnect(&mut self, successor: Option<Opened>, current: &Current) -> Connected {
        let mut backoff = Backoff::new(self.settings.is_scattered());
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
                    // Callers waiting for a connection get the server's reason for refusing it.
                    current.set(State::Down(match problem {
                        ConnectionError::Refused(text) => Some(text),
                        ConnectionError::Timeout(_)
                        | ConnectionError::Lost(_)
                        | ConnectionError::NoSockets => None,
                    }));
                    backoff.wait().await;
                }
            }
        }
    }

    /// Opens a connection and reads its identity, which shows that the server answers.
    async fn open(&self) -> Result<Opened, ConnectionError> {
        let (connection, task) = Connection::open(&self.settings, Role::Commands).await?;
        let identity = match self.settings.fence {
            true => fence::identify(&connection, self.settings.command_timeout).await?,
            false => None,
        };
        Ok(Opened {
            connection,
            task,
            identity,
        })
    }

    /// Makes sure that the predecessor of a connection has ended, and that the connection can
    /// itself be killed later.
    async fn take_over(&mut self, opened: Opened) -> Result<Connected, ConnectionError> {
        let Opened {
            connection,
            task,
            identity,
        } = opened;
        let fence = match (self.fence(&connection).await?, &identity) {
            (ConnectionFence::Active, Some(_)) => {
                fence::may_kill(&connection, self.settings.command_timeout).await?
            }
            (ConnectionFence::Active, None) => ConnectionFence::NotPermitted,
            (fence, _) => fence,
        };
        let was = std::mem::replace(&mut *self.figures.fence.lock(), fence);
        if fence != ConnectionFence::Active && (was != fence || self.predecessor.is_none()) {
            event!(WARN, lane = self.nth,
                connection_fence = %fence,
                "the connection fence is not active: docs/guarantees.md lists the remaining risks"
            );
        }
        self.predecessor = None;
        let link = Arc::new(Link::new(connection, identity));
        let ended = link.ended.clone().drop_guard();
        Ok(Connected {
            link,
            task,
            _ended: ended,
        })
    }

    /// Kills the predecessor at the server. After the reply, 0 or 1, none of its commands is
    /// executed any more.
    async fn fence(&mut self, connection: &Connection) -> Result<ConnectionFence, ConnectionError> {
        let Some(predecessor) = &self.predecessor else {
            return Ok(if self.settings.fence {
                ConnectionFence::Active
            } else {
                ConnectionFence::Off
            });
        };
        let fence = match predecessor {
            _ if !self.settings.fence => ConnectionFence::Off,
            None => ConnectionFence::NotPermitted,
            Some(identity) => {
                fence::kill(connection, identity, self.settings.command_timeout).await?
            }
        };
        if fence != ConnectionFence::Active {
            self.figures.unfenced.fetch_add(1, Ordering::AcqRel);
        }
        Ok(fence)
    }
}

/// A connection that works, but may not carry scripts yet.
struct Opened {
    connection: Connection,
    task: Task,
    identity: Option<Identity>,
}

/// A connection with the task that drives it.
struct Connected {
    link: Arc<Link>,
    task: Task,
    /// Dropped with the supervisor, also when its runtime ends: callers waiting on the link are
    /// notified.
    _ended: DropGuard,
}

/// A connection that was used for this long led to the right server.
const STABLE_AFTER: Duration = Duration::from_secs(5);
