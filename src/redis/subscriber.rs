//! The subscriber connection: which channels are listened to, with proof, and what is heard.
//!
//! One task owns the connection. SUBSCRIBE travels with a `PING nonce` in one pipeline whose last answer is
//! awaited: only that tells a refused subscription from a confirmed one. One such barrier is under way at a
//! time. Whenever messages may have been missed (a new connection, a lagging stream) everybody is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Change, Connection, Heard, Messages, Task, Trouble};
use super::{Backoff, Role, Settings, connect_error};
use crate::error::Error;
use crate::wait::Waits;

/// Opens the subscriber connection, and starts the task that works off what `waits` wants.
pub(super) async fn open(
    settings: &Arc<Settings>,
    waits: Arc<Waits>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), Error> {
    let actor = Actor { settings: Arc::clone(settings), waits };
    let first = actor.connect().await.map_err(connect_error)?;
    let stop = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            biased;
            () = actor.run(first) => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(())
}

struct Actor {
    settings: Arc<Settings>,
    waits: Arc<Waits>,
}

/// One connection of the subscriber.
struct Session {
    connection: Connection,
    messages: Messages,
    task: Task,
}

impl Actor {
    async fn run(self, first: Session) {
        let mut session = first;
        loop {
            self.serve(&mut session).await;
            self.waits.disconnected();
            tracing::warn!(target: "redisson_lock", "subscriber connection lost, reconnecting");
            drop(session);
            session = self.reconnect().await;
            tracing::info!(target: "redisson_lock", "subscriber connection replaced");
        }
    }

    async fn reconnect(&self) -> Session {
        let mut backoff = Backoff::default();
        loop {
            match self.connect().await {
                Ok(session) => return session,
                Err(error) => {
                    tracing::debug!(target: "redisson_lock", %error, "subscriber reconnect failed");
                    backoff.wait().await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Session, Trouble> {
        let (connection, task) = Connection::open(&self.settings, Role::Messages).await?;
        let messages = connection.messages();
        Ok(Session { connection, messages, task })
    }

    /// Serves one connection until it ends or is out of step.
    async fn serve(&self, session: &mut Session) {
        let Session { connection, messages, task } = session;
        let desk = Desk { actor: self, connection };
        tokio::select! {
            biased;
            () = task.ended() => {}
            () = self.listen(messages) => {}
            OutOfStep = desk.work() => {}
        }
    }

    /// Hands messages on. Never waits for anything else, so that it lags only under a real flood.
    async fn listen(&self, messages: &mut Messages) {
        loop {
            match messages.next().await {
                Heard::Message(channel) => self.waits.message(&channel),
                Heard::Missed(count) => {
                    tracing::warn!(target: "redisson_lock", count, "unlock messages were missed, waking everyone");
                    self.waits.missed();
                }
                Heard::End => return,
            }
        }
    }
}

/// Subscribes and unsubscribes on one connection.
struct Desk<'a> {
    actor: &'a Actor,
    connection: &'a Connection,
}

impl Desk<'_> {
    /// Ends when the connection is out of step and must be replaced.
    async fn work(&self) -> OutOfStep {
        let waits = &self.actor.waits;
        loop {
            let wanted = waits.take_wanted(BATCH);
            if !wanted.is_empty() {
                if let Err(out_of_step) = self.subscribe(wanted).await {
                    return out_of_step;
                }
                continue;
            }
            let unwanted = waits.take_unwanted(BATCH);
            if !unwanted.is_empty() {
                if let Err(out_of_step) = self.unsubscribe(unwanted).await {
                    return out_of_step;
                }
                continue;
            }
            let next_unwanted = waits.next_unwanted();
            let linger_over = async {
                match next_unwanted {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // While there is something to miss, a silent connection is found out by a heartbeat.
            let heartbeat = async {
                if waits.len() == 0 {
                    return std::future::pending().await;
                }
                tokio::time::sleep(self.actor.settings.command_timeout).await;
            };
            tokio::select! {
                biased;
                () = waits.changed() => {}
                () = linger_over => {}
                () = heartbeat => {
                    if !matches!(self.barrier(Change::None).await, Ok(Ok(()))) {
                        return OutOfStep;
                    }
                }
            }
        }
    }

    /// Subscribes to all, or finds out which one is refused. `Err`: the connection is out of step.
    async fn subscribe(&self, channels: Vec<Arc<str>>) -> Result<(), OutOfStep> {
        let waits = &self.actor.waits;
        match self.barrier(Change::Subscribe(channels.clone())).await {
            Ok(Ok(())) => {
                for channel in &channels {
                    waits.subscribed(channel);
                }
                Ok(())
            }
            Ok(Err(text)) => {
                // One refused channel refuses its whole batch.
                self.back_in_step().await?;
                if let [channel] = channels.as_slice() {
                    waits.refused(channel, &text);
                    return Ok(());
                }
                for channel in channels {
                    Box::pin(self.subscribe(vec![channel])).await?;
                }
                Ok(())
            }
            Err(out_of_step) => Err(out_of_step),
        }
    }

    async fn unsubscribe(&self, channels: Vec<Arc<str>>) -> Result<(), OutOfStep> {
        match self.barrier(Change::Unsubscribe(channels)).await? {
            Ok(()) => Ok(()),
            // Without the right to unsubscribe messages keep coming, and nobody listens to them.
            Err(_) => self.back_in_step().await,
        }
    }

    /// After a refusal the PONG of that barrier may still be on its way.
    async fn back_in_step(&self) -> Result<(), OutOfStep> {
        for _ in 0..3 {
            if let Ok(Ok(())) = self.barrier(Change::None).await {
                return Ok(());
            }
        }
        Err(OutOfStep)
    }

    /// Sends a change and a PING in one pipeline and waits for the PONG. `Ok(Err(text))`: refused.
    async fn barrier(&self, change: Change) -> Result<Result<(), String>, OutOfStep> {
        let nonce = format!("redisson-lock-{}", NONCE.fetch_add(1, Ordering::Relaxed));
        let timeout = self.actor.settings.command_timeout;
        let exchange = self.connection.barrier(change, nonce.clone(), timeout);
        match tokio::time::timeout(timeout, exchange).await {
            Ok(Ok(echo)) if echo == nonce => Ok(Ok(())),
            Ok(Ok(_)) => Ok(Err("out of step".to_owned())),
            Ok(Err(Trouble::Refused(text))) => Ok(Err(text)),
            Ok(Err(Trouble::Timeout(_) | Trouble::Lost(_) | Trouble::NoSockets)) | Err(_) => Err(OutOfStep),
        }
    }
}

/// The answers of the connection no longer match its commands, or it does not answer.
struct OutOfStep;

static NONCE: AtomicU64 = AtomicU64::new(0);

/// Names in one SUBSCRIBE.
const BATCH: usize = 500;
