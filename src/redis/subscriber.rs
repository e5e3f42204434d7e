//! The subscriber connection: confirmed subscriptions, and the messages on them.
//!
//! One task owns the connection. SUBSCRIBE is sent with a `PING nonce` in one pipeline whose last
//! reply is awaited: only that distinguishes a refused subscription from a confirmed one. One such
//! barrier is in flight at a time. Whenever messages may have been missed (a new connection, a
//! lagging stream), every waiter is woken.
//!
//! Half of the command timeout is for detecting that a connection is dead, the other half for its
//! replacement: a call that waits for its subscription survives one silent connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::connection::{Connection, Failed, Messages, Task};
use super::lane::Surroundings;
use super::map::Map;
use super::settings::Settings;
use super::transport::{Change, ConnectionError, PubSubEvent, Role};
use crate::error::{Cause, Error};
use crate::runtime::event;
use crate::server_error;
use crate::wait::Subscriptions;

/// Where to subscribe.
pub(super) enum Source {
    One(Arc<Settings>),
    /// At the primary behind Sentinel; in a cluster at any node: each hears what is published at the others.
    Several(Arc<Map>),
}

impl Source {
    /// How many there are to choose from.
    fn servers(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several(map) => map.nodes().len(),
        }
    }

    /// The server of the next connection. `tried` so many before.
    fn settings(&self, tried: usize) -> Option<Arc<Settings>> {
        match self {
            Self::One(settings) => Some(Arc::clone(settings)),
            Self::Several(map) => {
                let nodes = map.nodes();
                let node = nodes.get(tried.checked_rem(nodes.len())?)?;
                Some(node.settings())
            }
        }
    }
}

/// Opens the subscriber connection, and starts the task that serves `subscriptions`. It is replaced when
/// the server is no longer the right one.
pub(super) async fn open(
    source: Source,
    settings: &Arc<Settings>,
    subscriptions: Arc<Subscriptions>,
    around: &Surroundings,
) -> Result<(), Error> {
    let actor = Actor {
        source,
        tried: AtomicUsize::new(0),
        settings: Arc::clone(settings),
        subscriptions,
        moved: Arc::clone(&around.moved),
        slow: AtomicBool::new(false),
    };
    let first = actor.connect_first().await;
    let first = first.map_err(|failed| failed.into_error(settings))?;
    around.spawn(actor.run(first));
    Ok(())
}

struct Actor {
    source: Source,
    /// Connections that were opened, or were not.
    tried: AtomicUsize,
    settings: Arc<Settings>,
    subscriptions: Arc<Subscriptions>,
    moved: Arc<Notify>,
    /// The last reply took longer than half of the command timeout, or did not come within it.
    slow: AtomicBool,
}

/// One connection of the subscriber.
struct Session {
    server: Arc<str>,
    connection: Connection,
    messages: Messages,
    task: Task,
}

impl Actor {
    async fn run(self, first: Session) {
        let mut session = first;
        let mut backoff = Backoff::new(self.settings.is_scattered());
        loop {
            let since = Instant::now();
            let served = self.serve(&mut session).await;
            self.subscriptions.disconnected();
            event!(WARN, "subscriber connection lost, reconnecting");
            drop(session);
            // Otherwise a connection that is made but useless would be replaced without a pause.
            if served || since.elapsed() >= Backoff::LONGEST {
                backoff = Backoff::new(self.settings.is_scattered());
            } else {
                backoff.wait().await;
            }
            session = self.reconnect(&mut backoff).await;
            event!(INFO, "subscriber connection replaced");
        }
    }

    async fn reconnect(&self, backoff: &mut Backoff) -> Session {
        loop {
            match self.connect().await {
                Ok(session) => return session,
                Err((server, error)) => {
                    event!(DEBUG, %error, "subscriber reconnect failed");
                    let problem = Cause::at(&server, error.into_text());
                    self.subscriptions.set_problem(Some(problem));
                    backoff.wait().await;
                }
            }
        }
    }

    /// To any server that answers: of a cluster some may be away.
    async fn connect_first(&self) -> Result<Session, Failed> {
        let mut failed = Failed::default();
        for _ in 0..self.source.servers().max(1) {
            match self.connect().await {
                Ok(session) => return Ok(session),
                Err((server, problem)) => {
                    event!(DEBUG, %problem, "a server does not take subscribers");
                    failed.add(server, problem);
                }
            }
        }
        Err(failed)
    }

    async fn connect(&self) -> Result<Session, (Arc<str>, ConnectionError)> {
        let tried = self.tried.fetch_add(1, Ordering::Relaxed);
        let Some(settings) = self.source.settings(tried) else {
            let problem = ConnectionError::Lost("no server is known".to_owned());
            return Err((Arc::clone(&self.settings.address), problem));
        };
        let server = Arc::clone(&settings.address);
        self.subscriptions.set_server(&server);
        match Connection::open(&settings, Role::Messages).await {
            Ok((connection, task)) => Ok(Session {
                server,
                messages: connection.messages(),
                connection,
                task,
            }),
            Err(problem) => Err((server, problem)),
        }
    }

    /// Serves one connection until it ends or must be replaced. Returns whether it was of use.
    async fn serve(&self, session: &mut Session) -> bool {
        let Session {
            server,
            connection,
            messages,
            task,
        } = session;
        let worker = ChannelWorker {
            actor: self,
            server,
            connection,
            served: AtomicBool::new(false),
        };
        tokio::select! {
            biased;
            () = task.ended() => {}
            // However well it served, it is the wrong server, and the next may be wrong as well.
            () = self.moved.notified() => return false,
            () = self.listen(messages) => {}
            OutOfStep(refused_with) = worker.work() => self.subscriptions.set_problem(refused_with),
        }
        worker.served.load(Ordering::Relaxed)
    }

    /// How long a reply may take before the connection counts as dead.
    fn answer_timeout(&self) -> Duration {
        let timeout = self.settings.command_timeout;
        if self.slow.load(Ordering::Relaxed) {
            timeout
        } else {
            timeout / 2
        }
    }

    /// Forwards messages. Never waits for anything else, so that it lags only under a real flood.
    async fn listen(&self, messages: &mut Messages) {
        loop {
            match messages.next().await {
                PubSubEvent::Message(channel) => self.subscriptions.message(&channel),
                PubSubEvent::Missed(count) => {
                    self.subscriptions.missed();
                    event!(WARN, count, "unlock messages were missed, waking everyone");
                }
                PubSubEvent::End => return,
            }
        }
    }
}

/// Subscribes and unsubscribes on one connection.
struct ChannelWorker<'a> {
    actor: &'a Actor,
    server: &'a Arc<str>,
    connection: &'a Connection,
    /// A barrier was answered.
    served: AtomicBool,
}

impl ChannelWorker<'_> {
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
            let next_unwanted = subscriptions.next_unwanted();
            let linger_over = async {
                match next_unwanted {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // While there are messages to miss, a heartbeat detects a silent connection. And one
            // heartbeat shows whether a new connection is as slow as the last one, before any
            // caller waits for it.
            let heartbeat = async {
                if subscriptions.len() == 0 && !self.actor.slow.load(Ordering::Relaxed) {
                    return std::future::pending().await;
                }
                tokio::time::sleep(self.actor.settings.command_timeout).await;
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
                .filter(|cause| server_error::is_permission(&cause.text))
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
        for pause in STRAY {
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
        let exchange = connection.barrier(change, nonce.clone(), answer_timeout);
        let answer = tokio::time::timeout(answer_timeout, exchange).await;
        let slow = since.elapsed() > actor.settings.command_timeout / 2;
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
            Ok(Err(ConnectionError::Refused(text))) => {
                Ok(Barrier::Refused(Cause::at(self.server, text)))
            }
            Ok(Err(ConnectionError::Lost(_) | ConnectionError::NoSockets)) => Err(OutOfStep(None)),
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
const STRAY: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(80),
];

/// Names in one SUBSCRIBE.
const BATCH: usize = 500;
