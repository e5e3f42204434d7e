//! Keeps the slot map of a cluster up to date, from what its nodes report.
//!
//! A node that sees its cluster working is asked, and of two reports the one with the higher epoch is
//! believed: a node that was cut off reports an old map. A lower epoch than one that was seen is believed
//! if every node reports it, or those that respond keep reporting it. A report that shares no node with the
//! known cluster is never believed: its node belongs to another cluster by now. A client that connects knows no
//! cluster yet: it fails if two of its seeds share no node.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::map::{Map, RouteTable};
use super::seeds::{self, SeedAnswer};
use crate::base::backoff::Backoff;
use crate::base::runtime::event;
use crate::error::{Denied, Error, RefusalKind};
use crate::names::wire::Announce;
use crate::redis::connection::{Connection, Failed, Task, connect_error};
use crate::redis::node::endpoint::ServerId;
use crate::redis::node::probe;
use crate::redis::node::slots::{self, Range};
use crate::redis::settings::address::Address;
use crate::redis::settings::learned::LearnedAddresses;
use crate::redis::settings::{Expected, Settings};
use crate::redis::transport::{Arg, BoxFuture, ConnectionError};

/// Asks for the slot map, over a connection of its own.
pub(in crate::redis) struct SlotMapRefresher {
    settings: Arc<Settings>,
    /// The node that was believed last.
    source: Option<NodeConnection>,
    /// The node that was believed last, if it has not responded since.
    silent: Option<Address>,
    /// The highest epoch that was seen.
    epoch: u64,
    /// When it last changed. A vote raises it, and the slots have another owner later.
    epoch_changed_at: Instant,
    /// Since when the nodes that respond report a lower one, while others do not respond.
    stale_since: Option<Instant>,
    /// The nodes of the cluster, replicas included, by the last report.
    members: BTreeSet<ServerId>,
    /// Addresses of the latest replicas: they know the map too.
    replicas: Vec<Address>,
    /// Nodes of other clusters that were warned of.
    foreign: BTreeSet<Address>,
    asked_at: Instant,
}

/// A connection to a node.
struct NodeConnection {
    address: Address,
    id: Option<ServerId>,
    connection: Connection,
    _task: Task,
}

/// The report of a node.
struct SlotReport {
    epoch: u64,
    ranges: Vec<Range>,
    source: NodeConnection,
}

impl SlotReport {
    /// Whether the two name nodes and have none in common.
    fn is_foreign_to(&self, other: &Self) -> bool {
        let [these, those] = [self, other].map(|report| slots::ids(&report.ranges));
        !these.is_empty() && !those.is_empty() && these.is_disjoint(&those)
    }
}

impl SlotMapRefresher {
    pub(in crate::redis) fn new(settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            source: None,
            silent: None,
            epoch: 0,
            epoch_changed_at: Instant::now(),
            stale_since: None,
            members: BTreeSet::new(),
            replicas: Vec::new(),
            foreign: BTreeSet::new(),
            asked_at: Instant::now(),
        }
    }

    /// Fills the map for the first time. Nothing is known yet that would show which seed belongs to another cluster,
    /// so all seeds are asked, and the ones that take a little longer are waited for.
    pub(in crate::redis) async fn begin(
        &mut self,
        map: &Map,
        seeds: &[Address],
    ) -> Result<(), Error> {
        let asking = seeds.iter().map(|address| {
            let settings = self.settings.at(address, Expected::Nothing);
            ask(settings, address.clone(), self.settings.command_timeout)
        });
        let (mut reports, mut failed) = (Vec::new(), Failed::default());
        for (address, answer) in seeds::answers(asking, SEED_WAIT).await {
            match answer {
                Ok(report) => reports.push(report),
                Err(problem) => failed.add(address.to_string().into(), problem),
            }
        }
        // The highest epoch; of several such reports, the one of the seed that is named first.
        let best = (0..reports.len()).min_by_key(|&nth| Reverse(reports[nth].epoch));
        let Some(best) = best.map(|nth| reports.swap_remove(nth)) else {
            return Err(failed.into_error(&self.settings));
        };
        if let Some(foreign) = reports.iter().find(|other| best.is_foreign_to(other)) {
            let [one, other] = [&best, foreign].map(|report| &report.source.address);
            return Err(Error::InvalidConfig {
                what: "URL",
                problem: format!("{one} and {other} belong to different clusters"),
            });
        }
        map.apply(&self.believe(best));
        Ok(())
    }

    /// How releases are announced. A node that was asked for the map is asked whether it knows sharded
    /// channels.
    pub(in crate::redis) async fn announce(&mut self, wanted: Announce) -> Result<Announce, Error> {
        let Some(source) = self.source.as_ref().filter(|_| wanted.hears_sharded()) else {
            return Ok(wanted);
        };
        let words = [Arg::Fixed("SHARDNUMSUB")];
        let timeout = self.settings.command_timeout;
        let answer = source.connection.command("PUBSUB", &words, timeout);
        match answer.await {
            Ok(_) => Ok(wanted),
            // It knows what it names. Redis 6.2 names `pubsub` alone, whatever follows it.
            Err(ConnectionError::Refused(refusal))
                if matches!(&refusal.kind, RefusalKind::NoPermission(Denied::Command(command))
                    if command.contains("shardnumsub")) =>
            {
                Ok(wanted)
            }
            Err(ConnectionError::Refused(_)) if wanted == Announce::Auto => Ok(Announce::Classic),
            Err(ConnectionError::Refused(_)) => Err(Error::InvalidConfig {
                what: "announce",
                problem: "the servers have no sharded channels, which came with Redis 7.0"
                    .to_owned(),
            }),
            Err(problem) => Err(connect_error(&self.settings, problem)),
        }
    }

    /// Starts what keeps the map right.
    pub(in crate::redis) fn keep(self, map: &Arc<Map>, known: Vec<Address>) {
        map.context.spawn(self.keep_on(Arc::clone(map), known));
    }

    async fn keep_on(mut self, map: Arc<Map>, known: Vec<Address>) {
        loop {
            self.until_outdated(&map).await;
            self.refresh(&map, &known).await;
        }
    }

    /// Waits for a reason to ask for the map: a command was redirected, or lost its connection; a server does not
    /// respond; the epoch has changed, which is looked at each second while a lock is held or waited for, or did so
    /// a few seconds ago; or some time has passed.
    ///
    /// A primary that hangs without closing its connections is noticed by the last two only.
    async fn until_outdated(&mut self, map: &Map) {
        loop {
            let doubted = async {
                map.context.doubted.notified().await;
                tokio::time::sleep_until(self.asked_at + LOOK_INTERVAL).await;
            };
            tokio::select! {
                biased;
                () = map.context.outdated.notified() => return,
                () = doubted => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            map.log(None);
            if self.asked_at.elapsed() >= REFRESH_INTERVAL {
                return;
            }
            if map.context.is_in_use() && (self.may_follow() || !self.has_same_epoch().await) {
                return;
            }
        }
    }

    /// Whether a change of the slots may still follow the last one of the epoch.
    fn may_follow(&self) -> bool {
        self.epoch_changed_at.elapsed() < REFRESH_INTERVAL
    }

    async fn has_same_epoch(&mut self) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        let works = probe::works(&source.connection, LOOK_LIMIT);
        match tokio::time::timeout(LOOK_LIMIT, works).await {
            Ok(Ok(epoch)) => epoch == Some(self.epoch),
            Ok(Err(_)) | Err(_) => {
                // The others need not wait for it again.
                self.silent = self.source.take().map(|source| source.address);
                false
            }
        }
    }

    /// Asks until a node responds.
    async fn refresh(&mut self, map: &Map, known: &[Address]) {
        let mut backoff = Backoff::new(self.settings.is_scattered());
        let mut time_limit = TIME_LIMIT;
        loop {
            let candidates = self.candidates(map, known);
            self.asked_at = Instant::now();
            match self.query(&candidates, time_limit).await {
                Ok(table) => {
                    if !map.apply(&table) {
                        // It has not heard yet of what the owner of a slot has said.
                        self.source = None;
                    }
                    // Every call that finds its server gone reports that.
                    tokio::time::sleep_until(self.asked_at + REFRESH_GAP_MIN).await;
                    return;
                }
                Err(problem) => {
                    if problem.is_lasting() && map.context.lately.is_news("slots") {
                        event!(WARN, %problem, "no node of the cluster reports its slots: changes are not noticed");
                    }
                    event!(DEBUG, %problem, "no node of the cluster reports its slots");
                    // A connection to a distant node takes several round trips.
                    time_limit =
                        (2 * time_limit).min(self.settings.command_timeout.max(TIME_LIMIT));
                    backoff.wait().await;
                }
            }
        }
    }

    /// Whom to ask, one after the other. New owners of slots first, because the others may not have heard of
    /// that, one that is silent last. Not those that had slots once: where nodes change their addresses they become ever more.
    fn candidates(&self, map: &Map, known: &[Address]) -> Vec<Address> {
        let mut candidates: Vec<Address> = Vec::new();
        let nodes = map.nodes().into_iter();
        let primaries = nodes.map(|node| node.endpoint.address());
        let newest = map.newest().into_iter();
        let others = known.iter().chain(&self.replicas).cloned();
        for address in newest.chain(primaries).chain(others) {
            if !candidates.contains(&address) {
                candidates.push(address);
            }
        }
        candidates.sort_by_key(|address| Some(address) == self.silent.as_ref());
        candidates
    }

    /// The map, from the first node whose report can be believed. The node that was believed last is asked first,
    /// each other one when those before it were of no use, or are slow.
    async fn query(
        &mut self,
        candidates: &[Address],
        time_limit: Duration,
    ) -> Result<RouteTable, Failed> {
        type Asking = BoxFuture<'static, SeedAnswer<SlotReport>>;
        let mut asking = FuturesUnordered::<Asking>::new();
        if let Some(source) = self.source.take() {
            let learned = Arc::clone(&self.settings.learned);
            asking.push(Box::pin(ask_again(source, learned, time_limit)));
        }
        let order: Vec<_> = candidates.iter().collect();
        let mut candidates = candidates.iter();
        let mut stale: Vec<SlotReport> = Vec::new();
        let mut problems: Vec<(Address, ConnectionError)> = Vec::new();
        let mut next_at = Instant::now();
        if !asking.is_empty() {
            next_at += HEDGE_AFTER;
        }
        loop {
            if candidates.len() == 0 && asking.is_empty() {
                break;
            }
            let (address, answer) = tokio::select! {
                biased;
                Some(answer) = asking.next() => answer,
                () = tokio::time::sleep_until(next_at), if candidates.len() > 0 => {
                    if let Some(address) = candidates.next() {
                        let settings = self.settings.at(address, Expected::Nothing);
                        asking.push(Box::pin(ask(settings, address.clone(), time_limit)));
                    }
                    next_at = Instant::now() + HEDGE_AFTER;
                    continue;
                }
            };
            // Whatever it is, unless it is believed, the next one need not wait.
            next_at = Instant::now();
            match answer {
                Ok(report) if self.is_foreign(&report) => {
                    let text = "it belongs to another cluster".to_owned();
                    problems.push((address, ConnectionError::Lost(text)));
                }
                Ok(report) if report.epoch >= self.epoch => return Ok(self.believe(report)),
                Ok(report) => stale.push(report),
                Err(problem) => problems.push((address, problem)),
            }
        }
        // Of several in the same epoch the first one: its node was asked before the others for a reason.
        let newest = stale.into_iter().min_by_key(|report| Reverse(report.epoch));
        match newest {
            // No node has seen more.
            Some(report) if problems.is_empty() || self.is_stale_for_long() => {
                Ok(self.believe(report))
            }
            // A former primary that has just been resumed reports for a moment that all is well.
            Some(_) => Err(failed(&order, problems)),
            None => {
                self.stale_since = None;
                Err(failed(&order, problems))
            }
        }
    }

    /// Whether a report shares no node with the known cluster. A warning names its node once.
    fn is_foreign(&mut self, report: &SlotReport) -> bool {
        let ids = slots::ids(&report.ranges);
        if ids.is_empty() || self.members.is_empty() || !self.members.is_disjoint(&ids) {
            return false;
        }
        let address = &report.source.address;
        if self.foreign.insert(address.clone()) {
            event!(
                WARN,
                server = %address,
                "a server belongs to another cluster, and is not asked for its slots"
            );
        }
        true
    }

    fn believe(&mut self, report: SlotReport) -> RouteTable {
        let SlotReport {
            epoch,
            ranges,
            source,
        } = report;
        if self.epoch != epoch {
            self.epoch_changed_at = Instant::now();
        }
        self.epoch = epoch;
        self.stale_since = None;
        self.silent = None;
        self.foreign.remove(&source.address);
        self.members = slots::ids(&ranges);
        let id = source.id.clone();
        self.source = Some(source);
        let mut replicas = Vec::new();
        let mut routes = Vec::with_capacity(ranges.len());
        for range in ranges {
            routes.push((range.slots, range.primary));
            replicas.extend(range.replicas.into_iter().map(|replica| replica.address));
        }
        replicas.sort();
        replicas.dedup();
        self.replicas = replicas;
        RouteTable {
            source: id,
            epoch,
            routes,
            members: self.members.clone(),
        }
    }

    fn is_stale_for_long(&mut self) -> bool {
        let since = self.stale_since.get_or_insert_with(Instant::now);
        since.elapsed() >= STALE_ACCEPTED_AFTER
    }
}

/// Why no node can be believed, in the order in which they were named.
fn failed(order: &[&Address], mut problems: Vec<(Address, ConnectionError)>) -> Failed {
    problems.sort_by_key(|(address, _)| order.iter().position(|named| *named == address));
    let mut failed = Failed::default();
    for (address, problem) in problems {
        failed.add(address.to_string().into(), problem);
    }
    failed
}

/// Asks a node over a connection of its own.
async fn ask(settings: Settings, address: Address, time_limit: Duration) -> SeedAnswer<SlotReport> {
    let asking = async {
        let (connection, task) = Connection::open(&settings).await?;
        let learned = &settings.learned;
        let (epoch, ranges) = report(&connection, learned, &address, time_limit).await?;
        let id = probe::node_id(&connection, learned, &address, time_limit).await?;
        let source = NodeConnection {
            address: address.clone(),
            id,
            connection,
            _task: task,
        };
        Ok(SlotReport {
            epoch,
            ranges,
            source,
        })
    };
    let asked = tokio::time::timeout(time_limit, asking).await;
    (
        address,
        asked.unwrap_or_else(|_| Err(ConnectionError::silent())),
    )
}

/// Asks a node again.
async fn ask_again(
    source: NodeConnection,
    learned: Arc<LearnedAddresses>,
    time_limit: Duration,
) -> SeedAnswer<SlotReport> {
    let address = source.address.clone();
    let reported = report(&source.connection, &learned, &address, time_limit).await;
    let report = reported.map(|(epoch, ranges)| SlotReport {
        epoch,
        ranges,
        source,
    });
    (address, report)
}

/// The report of a node that sees its cluster working.
async fn report(
    connection: &Connection,
    learned: &LearnedAddresses,
    address: &Address,
    time_limit: Duration,
) -> Result<(u64, Vec<Range>), ConnectionError> {
    let epoch = probe::works(connection, time_limit).await?;
    let epoch = epoch.ok_or_else(probe::not_working)?;
    let reply = connection.command("CLUSTER", &[Arg::Fixed("SLOTS")], time_limit);
    let reply = reply.await?;
    let mut ranges = slots::read(&reply, learned, address);
    if learned.look_up().await {
        // If a host name is unknown here, its IP address counts.
        ranges = slots::read(&reply, learned, address);
    }
    let ranges = ranges.ok_or_else(|| {
        ConnectionError::unusable(RefusalKind::Other, "the node does not report its slots")
    })?;
    Ok((epoch, ranges))
}

/// Between two questions when nothing happens.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// Between two looks at the epoch while a lock is held or waited for, and between two questions because a
/// server does not respond.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A node that has not reported its epoch by then may hang, and others are asked.
const LOOK_LIMIT: Duration = Duration::from_millis(250);

/// Between two questions when much happens.
const REFRESH_GAP_MIN: Duration = Duration::from_millis(50);

/// The next node is asked beside one that has not responded by then.
const HEDGE_AFTER: Duration = Duration::from_millis(100);

/// When a client connects and a seed has reported, the others are waited for this long.
const SEED_WAIT: Duration = Duration::from_millis(250);

/// The nodes that respond report a lower epoch for this long before it is believed, if others do not respond.
const STALE_ACCEPTED_AFTER: Duration = Duration::from_secs(5);

/// A node that has not responded by then is left alone.
const TIME_LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
