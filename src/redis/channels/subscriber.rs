//! The subscriber connection: confirmed subscriptions, and the messages on them.
//!
//! One task owns the connection, and asks for one change of the channels after the other. Whenever messages may have been
//! missed (a new connection), every waiter is woken.
//!
//! Half of the command timeout is for detecting that a connection is dead, the other half for its
//! replacement: a call that waits for its subscription survives one silent connection. Of a cluster the next
//! node is tried beside one that does not respond.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::runtime::{event, sleep_until};
use crate::error::{Cause, Error};
use crate::redis::channels::wait::Subscriptions;
use crate::redis::connection::{ChannelConnection, Failed, Task};
use crate::redis::settings::Settings;
use crate::redis::topology::map::Map;
use crate::redis::transport::{Change, ConnectionError, Delivery};

/// Opens the subscriber connection, and starts the task that serves `subscriptions`. It is replaced when
/// the server is no longer the right one.
pub(in crate::redis) async fn open(
    map: &Arc<Map>,
    subscriptions: Arc<Subscriptions>,
) -> Result<(), Error> {
    let actor = Actor {
        map: Arc::clone(map),
        tried: AtomicUsize::new(0),
        subscriptions,
        slow: AtomicBool::new(false),
    };
    let first = actor.connect().await;
    let first = first.map_err(|failed| failed.into_error(&map.settings))?;
    map.context.spawn(actor.run(first));
    Ok(())
}

struct Actor {
    map: Arc<Map>,
    /// Attempts to open a connection, so that each begins with the next server.
    tried: AtomicUsize,
    subscriptions: Arc<Subscriptions>,
    /// The last reply took longer than half of the command timeout, or did not come within it.
    slow: AtomicBool,
}

/// One connection of the subscriber.
struct Session {
    server: Arc<str>,
    connection: ChannelConnection,
    task: Task,
}

impl Actor {
    async fn run(self, first: Session) {
        let mut session = first;
        let mut backoff = Backoff::new(self.map.settings.is_scattered());
        loop {
            let since = Instant::now();
            let end = self.serve(&mut session).await;
            self.subscriptions.disconnected();
            let is_news = self.map.context.lately.is_news("subscriber");
            if is_news {
                event!(WARN, "subscriber connection lost, reconnecting");
            }
            drop(session);
            // Otherwise a connection that is made but useless would be replaced without a pause.
            if !matches!(end, ServingEnd::Useless) || since.elapsed() >= Backoff::LONGEST {
                backoff = Backoff::new(self.map.settings.is_scattered());
            } else {
                backoff.wait().await;
            }
            session = match end {
                ServingEnd::Replaced(successor) => successor,
                ServingEnd::Served | ServingEnd::Useless => self.reconnect(&mut backoff).await,
            };
            if is_news {
                event!(INFO, "subscriber connection replaced");
            }
        }
    }

    async fn reconnect(&self, backoff: &mut Backoff) -> Session {
        loop {
            match self.connect().await {
                Ok(session) => return session,
                Err(failed) => {
                    event!(DEBUG, error = %failed, "subscriber reconnect failed");
                    let problem = failed.into_cause(&self.map.settings);
                    self.subscriptions.set_problem(Some(problem));
                    backoff.wait().await;
                }
            }
        }
    }

    /// The servers to choose from: the primary behind Sentinel; in a cluster every node, as each hears what is
    /// published at the others.
    fn servers(&self) -> Vec<Arc<Settings>> {
        let nodes = self.map.nodes();
        nodes.iter().map(|node| node.settings()).collect()
    }

    /// To any server that responds: of a cluster some may be away, or hang.
    async fn connect(&self) -> Result<Session, Failed> {
        let servers = self.servers();
        let mut left = servers.len();
        let mut opening = FuturesUnordered::new();
        let announced_by = servers
            .first()
            .and_then(|server| server.expected.announced_by());
        let mut failed = Failed::announced(announced_by);
        let mut next_at = Instant::now();
        loop {
            tokio::select! {
                biased;
                Some((server, opened)) = opening.next() => match opened {
                    Ok(session) => {
                        self.subscriptions.set_server(&server);
                        return Ok(session);
                    }
                    Err(problem) => {
                        event!(DEBUG, %problem, "a server does not take subscribers");
                        failed.add(server, problem);
                        next_at = Instant::now();
                    }
                },
                () = tokio::time::sleep_until(next_at), if left > 0 => {
                    left -= 1;
                    let nth = self.tried.fetch_add(1, Ordering::Relaxed) % servers.len();
                    let settings = &servers[nth];
                    self.subscriptions.set_server(&settings.address);
                    opening.push(async {
                        let opened = self.open(settings).await;
                        (Arc::clone(&settings.address), opened)
                    });
                    next_at = Instant::now() + HEDGE_AFTER;
                }
                else => return Err(failed),
            }
        }
    }

    /// Serves one connection until it ends or must be replaced.
    async fn serve(&self, session: &mut Session) -> ServingEnd {
        let Session {
            server,
            connection,
            task,
        } = session;
        let worker = ChannelWorker {
            actor: self,
            server,
            connection,
            served: AtomicBool::new(false),
            asked_at: Mutex::new(None),
            asked: Notify::new(),
        };
        tokio::select! {
            biased;
            () = task.ended() => {}
            // However well it served, it is the wrong server, and the next may be wrong as well.
            () = self.map.context.moved.notified() => return ServingEnd::Useless,
            Unusable(refused_with) = worker.work() => self.subscriptions.set_problem(refused_with),
            successor = self.successor(&worker) => return ServingEnd::Replaced(successor),
        }
        match worker.served.load(Ordering::Relaxed) {
            true => ServingEnd::Served,
            false => ServingEnd::Useless,
        }
    }

    /// Opens a connection to another node beside one that does not respond. Never ready if that responds first.
    async fn successor(&self, worker: &ChannelWorker<'_>) -> Session {
        loop {
            worker.asked.notified().await;
            tokio::time::sleep(HEDGE_AFTER).await;
            if !worker.is_silent() || self.servers().len() < 2 {
                continue;
            }
            if let Ok(session) = self.connect().await
                && worker.is_silent()
            {
                return session;
            }
        }
    }

    /// How long a reply may take before the connection counts as dead.
    fn answer_timeout(&self) -> Duration {
        let timeout = self.map.settings.command_timeout;
        if self.slow.load(Ordering::Relaxed) {
            timeout
        } else {
            timeout / 2
        }
    }

    async fn open(&self, settings: &Settings) -> Result<Session, ConnectionError> {
        let heard = self.subscriptions.hearing();
        let (connection, task) = ChannelConnection::open(settings, heard).await?;
        Ok(Session {
            server: Arc::clone(&settings.address),
            connection,
            task,
        })
    }
}

/// Why a connection is not served any more.
enum ServingEnd {
    /// It is gone, after it was of use.
    Served,
    /// It was never of use, or leads to the wrong server.
    Useless,
    /// It does not respond, and another node does.
    Replaced(Session),
}

/// Subscribes and unsubscribes on one connection.
struct ChannelWorker<'a> {
    actor: &'a Actor,
    server: &'a Arc<str>,
    connection: &'a ChannelConnection,
    /// The server has answered.
    served: AtomicBool,
    /// When it was asked what it has not answered yet.
    asked_at: Mutex<Option<Instant>>,
    asked: Notify,
}

impl ChannelWorker<'_> {
    fn is_silent(&self) -> bool {
        let asked_at = *self.asked_at.lock();
        asked_at.is_some_and(|at| at.elapsed() >= HEDGE_AFTER)
    }

    /// Returns when the connection must be replaced.
    async fn work(&self) -> Unusable {
        let subscriptions = &self.actor.subscriptions;
        loop {
            let wanted = subscriptions.take_wanted(BATCH);
            let unwanted = match wanted.is_empty() {
                true => subscriptions.take_unwanted(BATCH),
                false => Vec::new(),
            };
            let done = if !wanted.is_empty() {
                self.subscribe(&wanted).await
            } else if !unwanted.is_empty() {
                // Without the permission to unsubscribe, messages keep coming and are ignored.
                self.change(Change::Unsubscribe, &unwanted).await.map(drop)
            } else {
                self.idle().await
            };
            if let Err(unusable) = done {
                return unusable;
            }
        }
    }

    /// Waits until there is something to do.
    async fn idle(&self) -> Result<(), Unusable> {
        let subscriptions = &self.actor.subscriptions;
        let linger_over = sleep_until(subscriptions.next_unwanted());
        // While there are messages to miss, a heartbeat detects a silent connection. And one
        // heartbeat shows whether a new connection is as slow as the last one, before any
        // caller waits for it.
        let heartbeat = async {
            if subscriptions.len() == 0 && !self.actor.slow.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            tokio::time::sleep(self.actor.map.settings.command_timeout).await;
        };
        tokio::select! {
            biased;
            () = subscriptions.changed() => Ok(()),
            () = linger_over => Ok(()),
            () = heartbeat => self.heartbeat().await,
        }
    }

    /// A refusal is a sign of life as well.
    async fn heartbeat(&self) -> Result<(), Unusable> {
        let timeout = self.actor.answer_timeout();
        let pong = async { vec![self.connection.ping(timeout).await] };
        self.answered(pong).await.map(drop)
    }

    async fn subscribe(&self, channels: &[Arc<str>]) -> Result<(), Unusable> {
        let answers = self.change(Change::Subscribe, channels).await?;
        for (channel, answer) in channels.iter().zip(answers) {
            match answer {
                Ok(()) => self.actor.subscriptions.subscribed(channel),
                Err(cause) => self.actor.subscriptions.refused(channel, &cause),
            }
        }
        Ok(())
    }

    async fn change(
        &self,
        change: Change,
        channels: &[Arc<str>],
    ) -> Result<Vec<Result<(), Box<Cause>>>, Unusable> {
        let timeout = self.actor.answer_timeout();
        let (connection, delivery) = (self.connection, Delivery::Classic);
        let answers = connection.change(change, delivery, channels, timeout);
        self.answered(answers).await
    }

    /// Awaits the answers and records whether the server is slow. `Err`: the connection must be replaced.
    async fn answered(
        &self,
        answers: impl Future<Output = Vec<Result<(), ConnectionError>>>,
    ) -> Result<Vec<Result<(), Box<Cause>>>, Unusable> {
        let since = Instant::now();
        *self.asked_at.lock() = Some(since);
        self.asked.notify_one();
        let answers = answers.await;
        *self.asked_at.lock() = None;
        let actor = self.actor;
        let is_timeout =
            |answer: &Result<(), _>| matches!(answer, Err(ConnectionError::Timeout(_)));
        let is_slow = since.elapsed() > actor.map.settings.command_timeout / 2
            // If it was slow rather than dead, its successor gets more time.
            || answers.iter().any(is_timeout);
        let answers = answers.into_iter().map(|answer| match answer {
            Ok(()) => Ok(Ok(())),
            Err(problem) if problem.is_about_the_command() => {
                Ok(Err(problem.into_cause(self.server)))
            }
            Err(problem @ ConnectionError::Refused(_)) => {
                Err(Unusable(Some(problem.into_cause(self.server))))
            }
            Err(_) => Err(Unusable(None)),
        });
        let answers: Result<Vec<_>, _> = answers.collect();
        if answers.is_ok() || is_slow {
            actor.slow.store(is_slow, Ordering::Relaxed);
        }
        let answers = answers?;
        self.served.store(true, Ordering::Relaxed);
        actor.subscriptions.set_problem(None);
        Ok(answers)
    }
}

/// The connection does not answer, or refuses whatever it is asked, with this message.
struct Unusable(Option<Box<Cause>>);

/// The next node is tried beside one that has not responded by then.
const HEDGE_AFTER: Duration = Duration::from_millis(250);

/// Channels that are changed together.
const BATCH: usize = 500;

#[cfg(test)]
mod tests;
