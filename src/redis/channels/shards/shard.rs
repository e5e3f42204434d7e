//! The task of one primary: its connection for sharded channels, and what is subscribed to there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::base::backoff::Backoff;
use crate::base::runtime::event;
use crate::error::{Cause, RefusalKind, RefusedKind};
use crate::redis::channels::wait::Subscriptions;
use crate::redis::connection::{ChannelConnection, Task};
use crate::redis::node::Node;
use crate::redis::topology::map::Map;
use crate::redis::transport::{Change, ConnectionError, Delivery, PubSubEvent};

/// The state that all tasks share.
pub(super) struct Common {
    pub(super) subscriptions: Arc<Subscriptions>,
    /// Notified when channels have lost their subscription.
    pub(super) lost: Notify,
}

/// The task of a primary, which ends with this.
pub(super) struct Shard {
    pub(super) work: Arc<Work>,
    _ended: DropGuard,
}

/// The work of a primary's task, and the channels that it has lost.
#[derive(Default)]
pub(super) struct Work {
    pub(super) orders: Mutex<Orders>,
    changed: Notify,
}

#[derive(Default)]
pub(super) struct Orders {
    subscribe: Vec<Arc<str>>,
    unsubscribe: Vec<Arc<str>>,
    /// The server ends these by itself, and refuses to be asked.
    pub(super) ended: Vec<Arc<str>>,
    /// The server has ended these.
    gone: Vec<Arc<str>>,
    pub(super) lost: Vec<Arc<str>>,
}

impl Orders {
    /// What is still to be unsubscribed from is kept: what is subscribed to is done first, and its waiters would
    /// be told that they listen.
    pub(super) fn subscribe(&mut self, name: Arc<str>) {
        self.unsubscribe.retain(|one| *one != name);
        self.subscribe.push(name);
    }

    /// What was not subscribed to yet need not be.
    pub(super) fn unsubscribe(&mut self, name: Arc<str>) {
        let before = self.subscribe.len();
        self.subscribe.retain(|one| *one != name);
        if self.subscribe.len() == before {
            self.unsubscribe.push(name);
        }
    }

    /// What is to be done next. From here on it is among what is `subscribed` to, so that the end of the
    /// connection, at whichever await, loses it in sight of every caller.
    fn take(&mut self, subscribed: &mut BTreeSet<Arc<str>>) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        for name in self.ended.drain(..) {
            subscribed.remove(&name);
        }
        let gone = self.gone.drain(..);
        self.lost
            .extend(gone.filter(|name| subscribed.remove(name)));
        let all = self.subscribe.len().min(BATCH);
        let subscribe: Vec<_> = self.subscribe.drain(..all).collect();
        subscribed.extend(subscribe.iter().cloned());
        let all = self.unsubscribe.len().min(BATCH);
        let unsubscribe = self.unsubscribe.drain(..all);
        let is_there = |name: &Arc<str>| subscribed.remove(name);
        (subscribe, unsubscribe.filter(is_there).collect())
    }
}

impl Work {
    fn has_orders(&self) -> bool {
        let orders = self.orders.lock();
        !orders.subscribe.is_empty() || !orders.unsubscribe.is_empty() || !orders.gone.is_empty()
    }

    pub(super) fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.orders.lock());
        self.changed.notify_one();
    }
}

impl Shard {
    pub(super) fn start(map: &Arc<Map>, common: &Arc<Common>, node: &Arc<Node>) -> Self {
        let work = Arc::<Work>::default();
        let ended = CancellationToken::new();
        let task = ShardTask {
            node: Arc::clone(node),
            common: Arc::clone(common),
            work: Arc::clone(&work),
            map: Arc::clone(map),
            subscribed: BTreeSet::new(),
        };
        let stop = ended.clone();
        map.context.spawn(async move {
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
    map: Arc<Map>,
    /// The channels of this connection.
    subscribed: BTreeSet<Arc<str>>,
}

impl ShardTask {
    async fn run(mut self) {
        let mut backoff = Backoff::new(self.map.settings.is_scattered());
        loop {
            match self.connect().await {
                Ok((connection, task)) => {
                    if self.serve(&connection, task).await {
                        backoff = Backoff::new(self.map.settings.is_scattered());
                    }
                    let server = self.node.endpoint.address();
                    if self.map.context.lately.is_news(("shards", &server)) {
                        event!(WARN, %server, "sharded channels lost their connection");
                    }
                    self.lose_all();
                }
                Err(problem) => {
                    event!(DEBUG, server = %self.node.endpoint.address(), error = %problem, "no connection for sharded channels");
                    self.common
                        .subscriptions
                        .set_problem(Some(self.cause(problem)));
                }
            }
            backoff.wait().await;
        }
    }

    fn time_limit(&self) -> Duration {
        self.map.settings.command_timeout
    }

    fn cause(&self, problem: ConnectionError) -> Box<Cause> {
        problem.into_cause(&self.node.settings().address)
    }

    async fn connect(&self) -> Result<(ChannelConnection, Task), ConnectionError> {
        let (heard, work) = (self.common.subscriptions.hearing(), Arc::clone(&self.work));
        let heard = Arc::new(move |event| match event {
            PubSubEvent::Unsubscribed(channel) => {
                work.order(|orders| orders.gone.push(channel.into()));
            }
            event => heard(event),
        });
        ChannelConnection::open(&self.node.settings(), heard).await
    }

    /// Serves one connection until it ends or has lost something. Returns whether it was of use.
    async fn serve(&mut self, connection: &ChannelConnection, mut task: Task) -> bool {
        let mut served = false;
        tokio::select! {
            biased;
            () = task.ended() => {}
            () = self.work(connection, &mut served) => {}
        }
        served
    }

    /// Returns when the connection is of no more use.
    async fn work(&mut self, connection: &ChannelConnection, served: &mut bool) {
        let work = Arc::clone(&self.work);
        let mut heartbeat = Instant::now() + self.time_limit();
        loop {
            let ((subscribe, unsubscribe), has_lost) = {
                let mut orders = work.orders.lock();
                (orders.take(&mut self.subscribed), !orders.lost.is_empty())
            };
            if has_lost {
                self.lost_some().await;
            }
            if !subscribe.is_empty() {
                if !self.subscribe(connection, &subscribe).await {
                    return;
                }
                *served = true;
            }
            let answers = self.change(connection, Change::Unsubscribe, &unsubscribe);
            let is_answered = |answer: &Result<(), ConnectionError>| {
                matches!(answer, Ok(_) | Err(ConnectionError::Refused(_)))
            };
            if !answers.await.iter().all(is_answered) {
                return;
            }
            if Instant::now() >= heartbeat {
                if !self.subscribed.is_empty() && !self.is_alive(connection).await {
                    return;
                }
                heartbeat = Instant::now() + self.time_limit();
            }
            if !work.has_orders() {
                let _ = tokio::time::timeout_at(heartbeat, work.changed.notified()).await;
            }
        }
    }

    /// A refusal is a sign of life as well.
    async fn is_alive(&self, connection: &ChannelConnection) -> bool {
        let pong = connection.ping(self.time_limit()).await;
        matches!(pong, Ok(()) | Err(ConnectionError::Refused(_)))
    }

    async fn change(
        &self,
        connection: &ChannelConnection,
        change: Change,
        names: &[Arc<str>],
    ) -> Vec<Result<(), ConnectionError>> {
        let (delivery, limit) = (Delivery::Sharded, self.time_limit());
        connection.change(change, delivery, names, limit).await
    }

    /// Subscribes to all, and says of each what became of it. `false`: the connection is of no use.
    async fn subscribe(&mut self, connection: &ChannelConnection, names: &[Arc<str>]) -> bool {
        let answers = self.change(connection, Change::Subscribe, names).await;
        let mut refused = Vec::new();
        let mut usable = true;
        for (name, answer) in names.iter().zip(answers) {
            match answer {
                Ok(()) => {
                    self.common.subscriptions.subscribed(name);
                    // A former owner may have confirmed it meanwhile, and missed what came then.
                    self.common.subscriptions.message(name);
                }
                Err(ConnectionError::Refused(refusal)) if is_elsewhere(&refusal.kind) => {
                    refused.push(Arc::clone(name))
                }
                Err(problem @ ConnectionError::Refused(_)) => {
                    self.subscribed.remove(name);
                    let cause = self.cause(problem);
                    self.common.subscriptions.refused(name, &cause);
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
            self.lost_some().await;
        }
        usable
    }

    /// Other servers have the slots of some channels. Not immediately: the map has to follow first.
    async fn lost_some(&self) {
        self.map.context.outdated.notify_one();
        tokio::time::sleep(MOVED_PAUSE).await;
        self.common.lost.notify_one();
    }

    /// Everything is to be subscribed to again, wherever it belongs now.
    fn lose_all(&mut self) {
        let subscribed = std::mem::take(&mut self.subscribed);
        self.work.orders.lock().lost.extend(subscribed);
        self.common.lost.notify_one();
    }
}

/// Whether another node has the slot, or none has it at the moment.
fn is_elsewhere(refusal: &RefusalKind) -> bool {
    use RefusalKind::{Ask, Known, Moved, TryAgain};
    matches!(
        refusal,
        Moved { .. } | Ask { .. } | TryAgain | Known(RefusedKind::ClusterDown)
    )
}

/// Names in one pipeline.
const BATCH: usize = 500;

/// Before a channel that was sent elsewhere is tried again.
const MOVED_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use test_support::{Server, eventually, stalls, tokio};

    use super::*;
    use crate::base::runtime::Runtime;
    use crate::redis::channels::wait::Subscription;
    use crate::redis::node::endpoint::Endpoint;
    use crate::redis::node::lane::ConnectionContext;
    use crate::redis::settings::address::Address;
    use crate::redis::settings::{Expected, Settings};

    fn name(name: &str) -> Arc<str> {
        name.into()
    }

    const TIME_LIMIT: Duration = Duration::from_millis(1_500);

    /// The task of the server at this port.
    fn task(port: u16) -> ShardTask {
        let url = format!("redis://127.0.0.1:{port}");
        let settings = Settings::from_url(&url, None, TIME_LIMIT, true).expect("valid");
        let (settings, address) = (Arc::new(settings), Address::new("127.0.0.1", port));
        let context = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
        let map = Map::new(Arc::clone(&settings), Expected::Nothing, 1, 1, context);
        let endpoint = Endpoint::new(address, settings, None, None);
        ShardTask {
            node: Arc::new(Node::new(endpoint, 1, 1)),
            common: Arc::new(Common {
                subscriptions: Arc::default(),
                lost: Notify::new(),
            }),
            work: Arc::default(),
            map,
            subscribed: BTreeSet::new(),
        }
    }

    /// The problem that a waiter reports while its channel is not confirmed.
    fn problem(common: &Common) -> Option<String> {
        let waiter = common.subscriptions.subscribe(&name("other"));
        let cause = Subscription::from(waiter).problem()?;
        Some(cause.text.clone())
    }

    #[test]
    fn what_is_wanted_again_is_not_unsubscribed_from() {
        let (mut orders, mut subscribed) = (Orders::default(), BTreeSet::new());
        orders.subscribe(name("stock"));
        orders.take(&mut subscribed);
        orders.unsubscribe(name("stock"));
        orders.unsubscribe(name("other"));
        orders.subscribe(name("stock"));
        let (subscribe, unsubscribe) = orders.take(&mut subscribed);
        assert_eq!(subscribe, [name("stock")]);
        assert!(unsubscribe.is_empty(), "{unsubscribe:?}");
        assert_eq!(subscribed, BTreeSet::from([name("stock")]));
    }

    #[test]
    fn what_was_not_subscribed_to_yet_need_not_be() {
        let (mut orders, mut subscribed) = (Orders::default(), BTreeSet::new());
        orders.subscribe(name("stock"));
        orders.unsubscribe(name("stock"));
        assert_eq!(orders.take(&mut subscribed), (vec![], vec![]));
        assert!(subscribed.is_empty());
    }

    #[test]
    fn what_the_server_has_ended_is_lost_if_it_was_subscribed_to() {
        let (mut orders, mut subscribed) = (Orders::default(), BTreeSet::from([name("stock")]));
        orders.gone = vec![name("stock"), name("other"), name("stock")];
        assert_eq!(orders.take(&mut subscribed), (vec![], vec![]));
        assert_eq!(orders.lost, [name("stock")]);
        assert!(subscribed.is_empty() && orders.gone.is_empty());
    }

    #[test]
    fn orders_of_either_kind_are_to_be_done() {
        let work = Work::default();
        assert!(!work.has_orders());
        work.order(|orders| orders.subscribe(name("stock")));
        assert!(work.has_orders());
        work.orders.lock().take(&mut BTreeSet::new());
        assert!(!work.has_orders());
        work.order(|orders| orders.unsubscribe(name("stock")));
        assert!(work.has_orders());
    }

    #[tokio::test]
    async fn what_a_connection_had_is_lost_with_it() {
        let mut task = task(1);
        task.subscribed = [name("stock"), name("other")].into();
        task.lose_all();
        assert!(task.subscribed.is_empty());
        let lost = std::mem::take(&mut task.work.orders.lock().lost);
        assert_eq!(lost, [name("other"), name("stock")]);
        let notified = tokio::time::timeout(TIME_LIMIT, task.common.lost.notified()).await;
        assert!(notified.is_ok(), "they are to be assigned again");
    }

    #[tokio::test]
    async fn the_end_of_a_connection_loses_what_it_had() {
        let server = Server::start();
        let (task, mut control) = (task(server.port), server.control());
        let (work, limit) = (Arc::clone(&task.work), TIME_LIMIT * 4);
        work.order(|orders| orders.subscribe(name("stock")));
        let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
        let is_lost = async {
            eventually("a subscriber", limit, || control.number(&kill) > 0).await;
            let is_lost = || work.orders.lock().lost == [name("stock")];
            eventually("the loss", limit, is_lost).await;
        };
        tokio::select! {
            () = task.run() => unreachable!("it goes on"),
            () = is_lost => {}
        }
    }

    /// The longest pause is a second: nine of them without one that served would take four.
    #[tokio::test]
    async fn a_connection_that_served_is_replaced_after_the_shortest_pause_each_time() {
        let server = Server::start();
        let (task, mut control) = (task(server.port), server.control());
        let (work, limit) = (Arc::clone(&task.work), TIME_LIMIT * 4);
        let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
        let losses = async {
            let start = Instant::now().into_std();
            for nth in 0..9 {
                let what = format!("loss {nth}");
                work.order(|orders| orders.subscribe(name("stock")));
                eventually(&what, limit, || control.number(&kill) > 0).await;
                eventually(&what, limit, || !work.orders.lock().lost.is_empty()).await;
                work.orders.lock().lost.clear();
            }
            let took = start.elapsed();
            assert!(took < TIME_LIMIT + stalls(start), "{took:?}");
        };
        tokio::select! {
            () = task.run() => unreachable!("it goes on"),
            () = losses => {}
        }
    }

    #[tokio::test]
    async fn a_waiter_learns_why_its_channel_is_not_confirmed() {
        // Nothing listens there.
        let away = task(1);
        let common = Arc::clone(&away.common);
        assert_eq!(problem(&common), None);
        tokio::select! {
            () = away.run() => unreachable!("it goes on"),
            () = eventually("a reason", TIME_LIMIT * 4, || problem(&common).is_some()) => {}
        }
        let server = Server::start();
        let mut task = task(server.port);
        let reason = Cause::at(&task.node.settings().address, "no connection");
        task.common.subscriptions.set_problem(Some(reason));
        let (connection, _task) = task.connect().await.expect("it responds");
        assert!(task.subscribe(&connection, &[name("stock")]).await);
        assert_eq!(problem(&task.common), None, "it was of before");
    }
}
