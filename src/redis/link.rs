//! A lane: one command connection at a time, replaced when its task ends, fenced before it is used again.
//!
//! Invariant: a script is handed to a connection only after every predecessor of that connection was killed at
//! the server (or the fence is known not to be in force). A command left unanswered on a lost connection can
//! therefore not be executed after its repetition.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::connection::{Connection, Task, Trouble};
use super::fence::{self, FenceState, Identity};
use super::{Backoff, Failure, Reply, Role, Settings, connect_error};
use crate::error::Error;
use crate::script::{Arg, Call};

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
        tasks: &TaskTracker,
    ) -> Result<Self, Error> {
        let figures = Arc::new(Figures::default());
        let mut supervisor = Supervisor {
            settings: Arc::clone(settings),
            nth,
            figures: Arc::clone(&figures),
            predecessor: None,
        };
        let first = supervisor.connect().await.map_err(connect_error)?;
        let current = Arc::new(Current { state: Mutex::new(State::Down), changed: Notify::new() });
        let last_word = LastWord(Arc::clone(&current));
        tasks.spawn(supervisor.run(first, last_word, stop.clone()));
        Ok(Self { current, figures })
    }

    pub(super) async fn ready(&self, limit: Instant) -> Result<(), Failure> {
        self.link(limit).await.map(|_| ())
    }

    pub(super) async fn run<T>(
        &self,
        call: &Call<T>,
        limit: Instant,
        sent: &AtomicBool,
    ) -> Result<(Reply, Instant), Failure> {
        let link = self.link(limit).await?;
        match link.send("EVALSHA", call.script.sha(), call, limit, sent).await {
            // Not executed, so the same copy may go out again; EVAL also loads the script for the next call.
            Err(Failure::Refused(text)) if text.starts_with("NOSCRIPT") => {
                Box::pin(link.send("EVAL", call.script.source, call, limit, sent)).await
            }
            answered => answered,
        }
    }

    pub(super) fn unfenced(&self) -> u64 {
        self.figures.unfenced.load(Ordering::Acquire)
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.figures.reconnects.load(Ordering::Relaxed)
    }

    pub(super) fn fence(&self) -> FenceState {
        *self.figures.fence.lock()
    }

    /// The connection that is up, waiting for one until `limit`.
    async fn link(&self, limit: Instant) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.current.look() {
            return link;
        }
        tokio::time::timeout_at(limit, self.current.wait())
            .await
            .unwrap_or_else(|_| Err(Failure::NotSent("not connected".into())))
    }
}

/// The connection of a lane as those who want to send see it. Who waits longest is told first.
struct Current {
    state: Mutex<State>,
    changed: Notify,
}

impl Current {
    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_waiters();
    }

    /// `None`: there is no connection right now.
    fn look(&self) -> Option<Result<Arc<Link>, Failure>> {
        match &*self.state.lock() {
            State::Up(link) if !link.ended.is_cancelled() => Some(Ok(Arc::clone(link))),
            State::Up(_) | State::Down => None,
            State::Stopped => Some(Err(Failure::Closed)),
            State::Gone => Some(Err(Failure::NoRuntime)),
        }
    }

    async fn wait(&self) -> Result<Arc<Link>, Failure> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the look, so that no change falls in between.
            changed.as_mut().enable();
            if let Some(link) = self.look() {
                return link;
            }
            changed.await;
        }
    }
}

/// A supervisor that is dropped without a word went with its runtime.
struct LastWord(Arc<Current>);

impl Drop for LastWord {
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
    fence: Mutex<FenceState>,
}

enum State {
    Up(Arc<Link>),
    Down,
    Stopped,
    Gone,
}

/// A connection that may carry scripts.
struct Link {
    connection: Connection,
    identity: Option<Identity>,
    /// Answers read so far. A timeout while it moved means a slow answer, not a dead connection; and so does one
    /// that fired late, because then it was this process that stood still.
    heard: AtomicU64,
    suspect: Notify,
    ended: CancellationToken,
}

impl Link {
    async fn send<T>(
        &self,
        command: &'static str,
        script: &'static str,
        call: &Call<T>,
        limit: Instant,
        sent: &AtomicBool,
    ) -> Result<(Reply, Instant), Failure> {
        let sent_at = Instant::now();
        let timeout = limit.saturating_duration_since(sent_at);
        if timeout.is_zero() {
            return Err(Failure::NotSent("no time left to send".into()));
        }
        let mut args = Vec::with_capacity(2 + call.keys.len() + call.args.len());
        args.extend([Arg::Fixed(script), Arg::Number(call.keys.len() as i64)]);
        args.extend(call.keys.iter().map(|key| Arg::Text(Arc::clone(key))));
        args.extend(call.args.iter().cloned());
        let heard = self.heard.load(Ordering::Relaxed);
        // The next poll hands the command over; from then on it is executed whatever becomes of this future.
        sent.store(true, Ordering::Release);
        let answer = tokio::select! {
            biased;
            answer = self.connection.command(command, args, timeout) => answer,
            () = self.ended.cancelled() => {
                return Err(Failure::Unknown { source: "connection lost".into(), sent_at });
            }
        };
        let trouble = match answer {
            Ok(reply) => {
                self.heard.fetch_add(1, Ordering::Relaxed);
                return Ok((reply, sent_at));
            }
            Err(Trouble::Refused(text)) => {
                self.heard.fetch_add(1, Ordering::Relaxed);
                return Err(Failure::Refused(text));
            }
            Err(trouble) => trouble,
        };
        let late = Instant::now() > limit + STALL;
        let slow =
            matches!(trouble, Trouble::Timeout(_)) && (late || self.heard.load(Ordering::Relaxed) != heard);
        if !slow {
            // The connection is dead, or says nothing at all: a repetition on it would be lost too.
            self.suspect.notify_one();
            self.ended.cancelled().await;
        }
        Err(Failure::Unknown { source: trouble.into_text().into(), sent_at })
    }
}

/// Owns the connection of a lane, and decides when the next one may be used.
struct Supervisor {
    settings: Arc<Settings>,
    nth: usize,
    figures: Arc<Figures>,
    /// The connection before, as long as its end is not confirmed. `Some(None)` has no name at the server.
    predecessor: Option<Option<Identity>>,
}

impl Supervisor {
    async fn run(mut self, first: Connected, current: LastWord, stop: CancellationToken) {
        let mut connected = first;
        loop {
            let Connected { link, mut task, _ended } = connected;
            current.0.set(State::Up(Arc::clone(&link)));
            let stopped = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = task.ended() => false,
                () = link.suspect.notified() => false,
            };
            current.0.set(if stopped { State::Stopped } else { State::Down });
            drop(_ended);
            task.end().await;
            if stopped {
                return;
            }
            tracing::warn!(target: "redisson_lock", lane = self.nth, "command connection lost, reconnecting");
            self.predecessor = Some(link.identity.clone());
            drop(link);
            let replacement = tokio::select! {
                biased;
                replacement = self.reconnect() => replacement,
                () = stop.cancelled() => {
                    current.0.set(State::Stopped);
                    return;
                }
            };
            self.figures.reconnects.fetch_add(1, Ordering::Relaxed);
            tracing::info!(
                target: "redisson_lock",
                lane = self.nth,
                fence = %*self.figures.fence.lock(),
                "command connection replaced"
            );
            connected = replacement;
        }
    }

    async fn reconnect(&mut self) -> Connected {
        let mut backoff = Backoff::default();
        loop {
            match self.connect().await {
                Ok(connected) => return connected,
                Err(error) => {
                    tracing::debug!(target: "redisson_lock", lane = self.nth, %error, "reconnect failed");
                    backoff.wait().await;
                }
            }
        }
    }

    /// Opens a connection, makes sure that its predecessor is over, and learns its own name.
    async fn connect(&mut self) -> Result<Connected, Trouble> {
        let timeout = self.settings.command_timeout;
        let (connection, task) = Connection::open(&self.settings, Role::Commands).await?;
        let fence = self.fence(&connection).await?;
        let identity = match fence {
            FenceState::Off => None,
            FenceState::InForce | FenceState::NotPermitted => fence::identify(&connection, timeout).await?,
        };
        let fence = match &identity {
            Some(identity) if fence == FenceState::InForce => {
                fence::may_kill(&connection, identity, timeout).await?
            }
            None if fence == FenceState::InForce => FenceState::NotPermitted,
            _ => fence,
        };
        let was = std::mem::replace(&mut *self.figures.fence.lock(), fence);
        if fence != FenceState::InForce && (was != fence || self.predecessor.is_none()) {
            tracing::warn!(
                target: "redisson_lock",
                lane = self.nth,
                %fence,
                "the fence is not in force: see docs/guarantees.md for what remains"
            );
        }
        self.predecessor = None;
        let ended = CancellationToken::new();
        Ok(Connected {
            link: Arc::new(Link {
                connection,
                identity,
                heard: AtomicU64::new(0),
                suspect: Notify::new(),
                ended: ended.clone(),
            }),
            task,
            _ended: ended.drop_guard(),
        })
    }

    /// Kills the predecessor at the server. Its answer, 0 or 1, says that nothing of it is executed any more.
    async fn fence(&mut self, connection: &Connection) -> Result<FenceState, Trouble> {
        let Some(predecessor) = &self.predecessor else {
            return Ok(if self.settings.fence { FenceState::InForce } else { FenceState::Off });
        };
        let fence = match predecessor {
            _ if !self.settings.fence => FenceState::Off,
            None => FenceState::NotPermitted,
            Some(identity) => fence::kill(connection, identity, self.settings.command_timeout).await?,
        };
        if fence != FenceState::InForce {
            self.figures.unfenced.fetch_add(1, Ordering::AcqRel);
        }
        Ok(fence)
    }
}

/// A connection with the task that drives it.
struct Connected {
    link: Arc<Link>,
    task: Task,
    /// Dropped with the supervisor, also when its runtime goes: whoever waits on the link is told.
    _ended: DropGuard,
}

/// A timer that fires so late says more about this process than about the server.
const STALL: Duration = Duration::from_millis(50);
