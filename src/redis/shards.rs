//! Sharded channels of a cluster: each is subscribed to at the primary that has its slot.
//!
//! One task assigns channels to primaries and follows the map; each primary with channels has a task with
//! a connection of its own. A server that gives a slot away ends the subscriptions to its channels with a
//! message that fred does not hand on, so a heartbeat subscribes to one channel again and compares how many
//! this connection has by the answer with how many it should have.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::backoff::Backoff;
use super::connection::{Connection, Messages, Task};
use super::map::Map;
use super::node::Node;
use super::transport::{ConnectionError, PubSubEvent, Role};
use crate::runtime::event;
use crate::wait::Subscriptions;

/// Starts what serves the sharded channels.
pub(super) fn open(map: &Arc<Map>, subscriptions: Arc<Subscriptions>) {
    let assigner = Assigner {
        map: Arc::clone(map),
        common: Arc::new(Common {
            subscriptions,
            lost: Notify::new(),
        }),
        shards: BTreeMap::new(),
        assigned: BTreeMap::new(),
    };
    map.around.spawn(assigner.run());
}

/// What all tasks share.
struct Common {
    subscriptions: Arc<Subscriptions>,
    /// Notified when channels have lost their subscription.
    lost: Notify,
}

/// Assigns channels to primaries.
struct Assigner {
    map: Arc<Map>,
    common: Arc<Common>,
    shards: BTreeMap<u16, Shard>,
    /// The number of the primary of each channel.
    assigned: BTreeMap<Arc<str>, u16>,
}

/// The task of a primary, which ends with this.
struct Shard {
    work: Arc<Work>,
    _ended: DropGuard,
}

/// What the task of a primary is to do, and what it has lost.
#[derive(Default)]
struct Work {
    orders: Mutex<Orders>,
    changed: Notify,
}

#[derive(Default)]
struct Orders {
    subscribe: Vec<Arc<str>>,
    unsubscribe: Vec<Arc<str>>,
    /// The server ends these by itself, and refuses to be asked.
    ended: Vec<Arc<str>>,
    lost: Vec<Arc<str>>,
}

impl Work {
    fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.orders.lock());
        self.changed.notify_one();
    }
}

impl Assigner {
    async fn run(mut self) {
        let (map, common) = (Arc::clone(&self.map), Arc::clone(&self.common));
        let subscriptions = &common.subscriptions;
        loop {
            let mut switched = std::pin::pin!(map.switched());
            switched.as_mut().enable();
            self.take_back();
            self.assign();
            self.unsubscribe();
            let linger_over = async {
                match subscriptions.next_unwanted() {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = subscriptions.changed() => {}
                () = linger_over => {}
                () = common.lost.notified() => {}
                () = switched => {}
            }
        }
    }

    /// Takes channels back that are not subscribed to any more, or whose slot has another primary now.
    fn take_back(&mut self) {
        let in_use: BTreeSet<u16> = self.map.numbers().into_iter().collect();
        self.shards.retain(|number, _| in_use.contains(number));
        let mut forgotten = Vec::new();
        for (number, shard) in &self.shards {
            for name in std::mem::take(&mut shard.work.orders.lock().lost) {
                if self.assigned.get(&name) == Some(number) {
                    forgotten.push(name);
                }
            }
        }
        for (name, number) in &self.assigned {
            if self.owner(name).is_some_and(|(owner, _)| owner != *number) {
                if let Some(shard) = self.shards.get(number) {
                    shard
                        .work
                        .order(|orders| orders.ended.push(Arc::clone(name)));
                }
                forgotten.push(Arc::clone(name));
            }
        }
        for name in &forgotten {
            self.assigned.remove(name);
        }
        if !forgotten.is_empty() {
            event!(
                INFO,
                channels = forgotten.len(),
                "sharded channels are subscribed to anew"
            );
            self.common.subscriptions.forgotten(forgotten);
        }
    }

    fn assign(&mut self) {
        for name in self.common.subscriptions.take_wanted(usize::MAX) {
            let Some((number, node)) = self.owner(&name) else {
                // Nobody has the slot: it is wanted again when the map has changed.
                self.assigned.insert(name, u16::MAX);
                continue;
            };
            self.assigned.insert(Arc::clone(&name), number);
            let (map, common) = (&self.map, &self.common);
            let shard = self
                .shards
                .entry(number)
                .or_insert_with(|| Shard::start(map, common, &node));
            shard.work.order(|orders| orders.subscribe.push(name));
        }
    }

    fn unsubscribe(&mut self) {
        for name in self.common.subscriptions.take_unwanted(usize::MAX) {
            let number = self.assigned.remove(&name);
            if let Some(shard) = number.and_then(|number| self.shards.get(&number)) {
                shard.work.order(|orders| orders.unsubscribe.push(name));
            }
        }
    }

    fn owner(&self, name: &str) -> Option<(u16, Arc<Node>)> {
        self.map.owner(super::slot_of(name))
    }
}

impl Shard {
    fn start(map: &Arc<Map>, common: &Arc<Common>, node: &Arc<Node>) -> Self {
        let work = Arc::<Work>::default();
        let ended = CancellationToken::new();
        let task = ShardTask {
            node: Arc::clone(node),
            common: Arc::clone(common),
            work: Arc::clone(&work),
            outdated: Arc::clone(&map.around.outdated),
            time_limit: map.settings.command_timeout,
            scattered: map.settings.is_scattered(),
            subscribed: BTreeSet::new(),
            probed: "".into(),
        };
        let stop = ended.clone();
        map.around.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = task.run() => {}
            }
        });
        Self {
            work,
            _ended: ended.drop_guard(),
        }
    }
}

/// Serves the channels of one primary.
struct ShardTask {
    node: Arc<Node>,
    common: Arc<Common>,
    work: Arc<Work>,
    /// Notified when a slot turns out to have another server.
    outdated: Arc<Notify>,
    time_limit: Duration,
    scattered: bool,
    /// What the connection has.
    subscribed: BTreeSet<Arc<str>>,
    /// The channel that was subscribed to again last.
    probed: Arc<str>,
}

impl ShardTask {
    async fn run(mut self) {
        let mut backoff = Backoff::new(self.scattered);
        loop {
            match self.connect().await {
                Ok((connection, messages, task)) => {
                    if self.serve(&connection, messages, task).await {
                        backoff = Backoff::new(self.scattered);
                    }
                    event!(WARN, server = %self.node.address, "sharded channels lost their connection");
                    self.lose_all();
                }
                Err(problem) => {
                    let text = problem.into_text();
                    event!(DEBUG, server = %self.node.address, error = text, "no connection for sharded channels");
                    self.common.subscriptions.set_problem(Some(text));
                }
            }
            backoff.wait().await;
        }
    }

    async fn connect(&self) -> Result<(Connection, Messages, Task), ConnectionError> {
        let settings = self.node.settings().for_sharded_channels();
        let (connection, task) = Connection::open(&settings, Role::Messages).await?;
        let messages = connection.messages();
        Ok((connection, messages, task))
    }

    /// Serves one connection until it ends or has lost something. Returns whether it was of use.
    async fn serve(
        &mut self,
        connection: &Connection,
        mut messages: Messages,
        mut task: Task,
    ) -> bool {
        let subscriptions = Arc::clone(&self.common.subscriptions);
        let listen = async {
            loop {
                match messages.next().await {
                    PubSubEvent::Message(channel) => subscriptions.message(&channel),
                    PubSubEvent::Missed(_) => subscriptions.missed(),
                    PubSubEvent::End => return,
                }
            }
        };
        let mut served = false;
        tokio::select! {
            biased;
            () = task.ended() => {}
            () = listen => {}
            () = self.work(connection, &mut served) => {}
        }
        served
    }

    /// Returns when the connection is of no more use, or has fewer channels than it should have.
    async fn work(&mut self, connection: &Connection, served: &mut bool) {
        let work = Arc::clone(&self.work);
        loop {
            let (subscribe, unsubscribe) = {
                let mut orders = work.orders.lock();
                for name in std::mem::take(&mut orders.ended) {
                    self.subscribed.remove(&name);
                }
                let all = orders.subscribe.len().min(BATCH);
                let subscribe: Vec<_> = orders.subscribe.drain(..all).collect();
                (subscribe, std::mem::take(&mut orders.unsubscribe))
            };
            for name in unsubscribe {
                if self.subscribed.remove(&name) {
                    match connection.unsubscribe_sharded(&name).await {
                        Ok(()) | Err(ConnectionError::Refused(_)) => {}
                        Err(_) => return,
                    }
                }
            }
            if !subscribe.is_empty() {
                if !self.subscribe(connection, &subscribe).await {
                    return;
                }
                *served = true;
                continue;
            }
            let timed_out = tokio::time::timeout(self.time_limit, work.changed.notified()).await;
            if timed_out.is_err() && !self.has_all(connection).await {
                return;
            }
        }
    }

    /// Subscribes to all, and says of each what became of it. `false`: the connection is of no use.
    async fn subscribe(&mut self, connection: &Connection, names: &[Arc<str>]) -> bool {
        let exchange = connection.subscribe_sharded(names, self.time_limit);
        let answers = tokio::time::timeout(self.time_limit, exchange).await;
        // Of those without an answer nothing is known.
        self.subscribed.extend(names.iter().cloned());
        let Ok(answers) = answers else { return false };
        let mut refused = Vec::new();
        let mut usable = answers.len() == names.len();
        for (name, answer) in names.iter().zip(answers) {
            match answer {
                Ok(_) => self.common.subscriptions.subscribed(name),
                Err(ConnectionError::Refused(text)) if is_elsewhere(&text) => {
                    refused.push(Arc::clone(name))
                }
                Err(ConnectionError::Refused(text)) => {
                    self.subscribed.remove(name);
                    self.common.subscriptions.refused(name, &text);
                }
                Err(_) => usable = false,
            }
        }
        if usable {
            self.common.subscriptions.set_problem(None);
        }
        if !refused.is_empty() {
            for name in &refused {
                self.subscribed.remove(name);
            }
            self.work.orders.lock().lost.extend(refused);
            self.outdated.notify_one();
            // Not at once: the map has to follow first.
            tokio::time::sleep(ELSEWHERE).await;
            self.common.lost.notify_one();
        }
        usable
    }

    /// Subscribes to one channel again, each in its turn, and compares how many there are. If it was this one
    /// that was gone, the count does not tell: its waiters attempt again.
    async fn has_all(&mut self, connection: &Connection) -> bool {
        let behind = (Bound::Excluded(&*self.probed), Bound::Unbounded);
        let next = self.subscribed.range::<str, _>(behind).next();
        let Some(next) = next.or_else(|| self.subscribed.first()).cloned() else {
            return true;
        };
        let exchange = connection.subscribe_sharded(std::slice::from_ref(&next), self.time_limit);
        let answers = tokio::time::timeout(self.time_limit, exchange).await;
        let count = answers
            .ok()
            .and_then(|answers| answers.into_iter().next()?.ok());
        self.common.subscriptions.message(&next);
        self.probed = next;
        // More of them are on their way to another server.
        count.is_some_and(|count| count >= self.subscribed.len() as i64)
    }

    /// Everything is to be subscribed to anew, wherever it belongs now.
    fn lose_all(&mut self) {
        let subscribed = std::mem::take(&mut self.subscribed);
        self.work.orders.lock().lost.extend(subscribed);
        self.common.lost.notify_one();
    }
}

/// Whether another node has the slot, or nobody has it at the moment.
fn is_elsewhere(text: &str) -> bool {
    ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// Names in one pipeline.
const BATCH: usize = 500;

/// Before a channel that was sent elsewhere is tried again.
const ELSEWHERE: Duration = Duration::from_millis(50);
