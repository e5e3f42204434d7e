//! The subscriber connection: confirmed subscriptions, and the messages on them.
//!
//! One task owns the connection. SUBSCRIBE is sent with a `PING nonce` in one pipeline whose last
//! reply is awaited: only that distinguishes a refused subscription from a confirmed one. One such
//! barrier is in flight at a time. Whenever messages may have been missed (a new connection), every waiter is woken.
//!
//! Half of the command timeout is for detecting that a connection is dead, the other half for its
//! replacement: a call that waits for its subscription survives one silent connection. Of a cluster the next
//! node is tried beside one that does not respond.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::runtime::{event, sleep_until};
use crate::error::{Cause, Error, RefusalKind};
use crate::redis::channels::wait::Subscriptions;
use crate::redis::connection::{ChannelConnection, Failed, Task};
use crate::redis::settings::Settings;
use crate::redis::topology::map::Map;
use crate::redis::transport::{Change, ConnectionError};

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
            OutOfStep(refused_with) = worker.work() => self.subscriptions.set_problem(refused_with),
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
    /// A barrier was answered.
    served: AtomicBool,
    /// When the barrier under way was sent.
    asked_at: Mutex<Option<Instant>>,
    asked: Notify,
}

impl ChannelWorker<'_> {
    fn is_silent(&self) -> bool {
        let asked_at = *self.asked_at.lock();
        asked_at.is_some_and(|at| at.elapsed() >= HEDGE_AFTER)
    }

    /// Returns when the connection is out of step and must be replaced.
    async fn work(&self) -> OutOfStep {
        let subscriptions = &self.actor.subscriptions;
        loop {
            let wanted = subscriptions.take_wanted(BATCH);
            if !wanted.is_empty() {
                if let Err(out_of_step) = self.subscribe(wanted).await {
                    return out_of_step;
                }
                continue;
            }
            let unwanted = subscriptions.take_unwanted(BATCH);
            if !unwanted.is_empty() {
                if let Err(out_of_step) = self.unsubscribe(unwanted).await {
                    return out_of_step;
                }
                continue;
            }
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
                () = subscriptions.changed() => {}
                () = linger_over => {}
                () = heartbeat => {
                    if let Err(out_of_step) = self.in_step().await {
                        return out_of_step;
                    }
                }
            }
        }
    }

    /// Subscribes to all, or finds out which one is refused. `Err`: the connection must be
    /// replaced.
    async fn subscribe(&self, channels: Vec<Arc<str>>) -> Result<(), OutOfStep> {
        let subscriptions = &self.actor.subscriptions;
        let cause = match self.barrier(Change::Subscribe(channels.clone())).await? {
            Barrier::Passed => {
                for channel in &channels {
                    subscriptions.subscribed(channel);
                }
                return Ok(());
            }
            Barrier::Shifted => return Err(OutOfStep(None)),
            Barrier::Refused(cause) => cause,
        };
        if let Err(out_of_step) = self.in_step().await {
            // A missing permission stays missing until it is granted: the callers get the error
            // now. Anything else may be temporary; they wait for the next connection.
            if let Some(cause) = out_of_step
                .0
                .as_ref()
                .filter(|cause| matches!(cause.refusal, Some(RefusalKind::NoPermission(_))))
            {
                for channel in &channels {
                    subscriptions.refused(channel, cause);
                }
            }
            return Err(out_of_step);
        }
        if let [channel] = channels.as_slice() {
            subscriptions.refused(channel, &cause);
            return Ok(());
        }
        // One refused channel refuses its whole batch.
        for channel in channels {
            Box::pin(self.subscribe(vec![channel])).await?;
        }
        Ok(())
    }

    async fn unsubscribe(&self, channels: Vec<Arc<str>>) -> Result<(), OutOfStep> {
        match self.barrier(Change::Unsubscribe(channels)).await? {
            Barrier::Passed => Ok(()),
            // Without the permission to unsubscribe, messages keep coming and are ignored.
            Barrier::Refused(_) | Barrier::Shifted => self.in_step().await,
        }
    }

    /// Makes sure that the next reply belongs to the next command: after a refusal the PONG of that
    /// barrier may still be in flight. `Err`: it does not, or not even PING is permitted.
    async fn in_step(&self) -> Result<(), OutOfStep> {
        let mut refused_with = None;
        for pause in STRAY_REPLY_PAUSES {
            match self.barrier(Change::None).await? {
                Barrier::Passed => return Ok(()),
                Barrier::Refused(cause) => refused_with = Some(cause),
                // It is dropped if it arrives while no reply is awaited.
                Barrier::Shifted => tokio::time::sleep(pause).await,
            }
        }
        Err(OutOfStep(refused_with))
    }

    /// Sends a change and a PING in one pipeline and waits for the PONG.
    async fn barrier(&self, change: Change) -> Result<Barrier, OutOfStep> {
        let nonce = format!("redisson-lock-{}", NONCE.fetch_add(1, Ordering::Relaxed));
        let Self {
            actor,
            connection,
            served,
            ..
        } = self;
        let answer_timeout = actor.answer_timeout();
        let since = Instant::now();
        *self.asked_at.lock() = Some(since);
        self.asked.notify_one();
        let exchange = connection.barrier(change, nonce.clone(), answer_timeout);
        let answer = tokio::time::timeout(answer_timeout, exchange).await;
        *self.asked_at.lock() = None;
        let slow = since.elapsed() > actor.map.settings.command_timeout / 2;
        match answer {
            Ok(Ok(echo)) => {
                actor.slow.store(slow, Ordering::Relaxed);
                if echo != nonce {
                    return Ok(Barrier::Shifted);
                }
                served.store(true, Ordering::Relaxed);
                actor.subscriptions.set_problem(None);
                Ok(Barrier::Passed)
            }
            Ok(Err(ConnectionError::Refused(refusal))) => Ok(Barrier::Refused(Cause::refused(
                self.server,
                refusal.kind,
                refusal.text,
            ))),
            Ok(Err(
                ConnectionError::NotSent { .. }
                | ConnectionError::Lost(_)
                | ConnectionError::NoSockets,
            )) => Err(OutOfStep(None)),
            // If it was slow rather than dead, its successor gets more time.
            Ok(Err(ConnectionError::Timeout(_))) | Err(_) => {
                actor.slow.store(true, Ordering::Relaxed);
                Err(OutOfStep(None))
            }
        }
    }
}

/// How a barrier was answered.
enum Barrier {
    Passed,
    /// The server refused the change or the PING.
    Refused(Box<Cause>),
    /// With the reply to an earlier one.
    Shifted,
}

/// The replies on the connection no longer match its commands, it does not answer, or it refuses
/// even PING, with this message.
struct OutOfStep(Option<Box<Cause>>);

static NONCE: AtomicU64 = AtomicU64::new(0);

/// How long to wait for a stray reply that may still be in flight, one try after the other.
const STRAY_REPLY_PAUSES: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(80),
];

/// The next node is tried beside one that has not responded by then.
const HEDGE_AFTER: Duration = Duration::from_millis(250);

/// Names in one SUBSCRIBE.
const BATCH: usize = 500;

#[cfg(test)]
mod tests;
