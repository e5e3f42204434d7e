//! Follows the primary that the sentinels report.
//!
//! All of them are asked, and the highest configuration epoch is believed: they learn of a failover one
//! after the other, up to a second apart. What all that respond keep reporting is believed in any epoch.
//! What they publish when a failover has happened makes all of them be asked immediately, beside the question
//! of every second. Sentinels that others know are asked as well, so that all of them may be replaced one
//! after the other.

mod reports;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::map::{Map, RouteTable};
use super::seeds::{self, SeedAnswer};
use crate::base::backoff::Backoff;
use crate::base::runtime::event;
use crate::error::{Error, RefusalKind};
use crate::redis::connection::{Connection, Failed, PushReceiver, Task};
use crate::redis::node::endpoint::ServerId;
use crate::redis::settings::Settings;
use crate::redis::settings::address::Address;
use crate::redis::settings::learned::LearnedAddresses;
use crate::redis::transport::{Arg, Change, ConnectionError, Delivery, Reply};

use reports::{Report, SentinelReports};

/// Watches a primary.
pub(in crate::redis) struct Sentinels {
    settings: Arc<Settings>,
    /// The sentinels' name for the primary and its replicas.
    service: Arc<str>,
    reports: Mutex<SentinelReports>,
    /// Whether a warning about `down-after-milliseconds` was logged.
    warned: Mutex<bool>,
}

impl Sentinels {
    pub(in crate::redis) fn new(
        settings: &Arc<Settings>,
        named: &[Address],
        service: &str,
    ) -> Self {
        Self {
            settings: Arc::clone(settings),
            service: service.into(),
            reports: Mutex::new(SentinelReports::new(named, Instant::now())),
            warned: Mutex::new(false),
        }
    }

    /// Fills the map for the first time: every sentinel is asked once, all at the same time.
    pub(in crate::redis) async fn begin(&self, map: &Map) -> Result<(), Error> {
        let addresses = self.reports.lock().addresses();
        let asking = addresses.iter().map(|address| self.first(address.clone()));
        let (mut primary, mut failed) = (None, Failed::default());
        // A client that connects while a sentinel is stale has seen no failover, so the others are waited for, but
        // not those that hang.
        for (address, answer) in seeds::answers(asking, TIME_LIMIT).await {
            match answer {
                Ok(report) => primary = self.believe(&address, report),
                Err(problem) => failed.add(address.to_string().into(), problem),
            }
        }
        if let Some(primary) = primary {
            map.apply(&table(primary));
            return Ok(());
        }
        if failed.has_refusal(&RefusalKind::NoSuchPrimary) {
            let known: Vec<String> = addresses.iter().map(Address::to_string).collect();
            return Err(Error::InvalidConfig {
                what: "URL",
                problem: format!(
                    "the sentinels at {} know no primary by the name of `sentinelServiceName`",
                    known.join(", ")
                ),
            });
        }
        Err(failed.into_error(&self.settings).at_sentinel())
    }

    /// The first answer of a sentinel.
    async fn first(&self, address: Address) -> SeedAnswer<Report> {
        let asking = async {
            let settings = self.settings.at_sentinel(&address);
            let (connection, _task) = Connection::open(&settings).await?;
            self.query(&connection, &address).await
        };
        let asked = tokio::time::timeout(self.settings.command_timeout, asking).await;
        (
            address,
            asked.unwrap_or_else(|_| Err(ConnectionError::silent())),
        )
    }

    /// Starts what keeps the map right.
    pub(in crate::redis) fn keep(self, map: &Arc<Map>) {
        let this = Arc::new(self);
        let (query_now, asked) = watch::channel(());
        for address in this.reports.lock().addresses() {
            Arc::clone(&this).start(map, address, &asked);
        }
        let context = map.context.clone();
        let map = Arc::clone(map);
        context.spawn(async move {
            let in_doubt = async {
                loop {
                    map.context.outdated.notified().await;
                    let _ = query_now.send(());
                    // Every call that finds its server gone reports that.
                    tokio::time::sleep(QUERY_GAP_MIN).await;
                }
            };
            tokio::join!(in_doubt, this.listen(&map));
        });
    }

    /// Starts asking a sentinel.
    fn start(self: Arc<Self>, map: &Arc<Map>, address: Address, asked: &watch::Receiver<()>) {
        let (context, map, asked) = (map.context.clone(), Arc::clone(map), asked.clone());
        context.spawn(async move {
            let poll = Box::pin(self.poll(&map, &address, asked));
            poll.await;
        });
    }

    /// Asks one sentinel every second, and whenever there is doubt. Returns when it is gone for good.
    async fn poll(
        self: &Arc<Self>,
        map: &Arc<Map>,
        address: &Address,
        mut asked: watch::Receiver<()>,
    ) {
        let settings = self.settings.at_sentinel(address);
        let mut backoff = Backoff::new(settings.is_scattered());
        let mut learn_at = Instant::now();
        loop {
            let problem = match Connection::open(&settings).await {
                Ok((connection, _task)) => loop {
                    match self.query(&connection, address).await {
                        Ok(report) => {
                            if let Some(primary) = self.believe(address, report) {
                                map.apply(&table(primary));
                            }
                        }
                        Err(problem) => break problem,
                    }
                    map.log(None);
                    if Instant::now() >= learn_at {
                        for other in self.learn(&connection, address).await {
                            Arc::clone(self).start(map, other, &asked);
                        }
                        learn_at = Instant::now() + LEARN_INTERVAL;
                    }
                    backoff = Backoff::new(settings.is_scattered());
                    let _ = tokio::time::timeout(QUERY_INTERVAL, asked.changed()).await;
                },
                Err(problem) => problem,
            };
            if problem.is_lasting() && map.context.lately.is_news(("sentinel", address)) {
                event!(WARN, sentinel = %address, %problem, "a sentinel refuses this client: without another one failovers are not noticed");
            }
            event!(DEBUG, sentinel = %address, %problem, "a sentinel does not respond");
            if !self.reports.lock().silent(address, Instant::now()) {
                return;
            }
            backoff.wait().await;
        }
    }

    async fn query(
        &self,
        connection: &Connection,
        address: &Address,
    ) -> Result<Report, ConnectionError> {
        let unclear = || {
            let text = "the sentinel does not report its primary";
            ConnectionError::unusable(RefusalKind::Other, text)
        };
        for _ in 0..TRIES {
            // The sentinel that leads a failover shows the new epoch beside the old address until it is
            // over; the new address is what it answers to a question for the address alone.
            let before = epoch(&self.ask(connection, "MASTER").await?).ok_or_else(unclear)?;
            let primary = self.ask(connection, "GET-MASTER-ADDR-BY-NAME").await?;
            let master = self.ask(connection, "MASTER").await?;
            let report = read(&master, &primary, &self.settings.learned, address);
            let report = report.ok_or_else(unclear)?;
            if report.epoch == before {
                return Ok(report);
            }
            tokio::time::sleep(QUERY_GAP_MIN).await;
        }
        Err(unclear())
    }

    async fn ask(
        &self,
        connection: &Connection,
        subcommand: &'static str,
    ) -> Result<Reply, ConnectionError> {
        let words = [Arg::Fixed(subcommand), Arg::Text(Arc::clone(&self.service))];
        connection.command("SENTINEL", &words, TIME_LIMIT).await
    }

    /// Other sentinels that this one knows and this client did not. None, if it does not permit the question.
    async fn learn(&self, connection: &Connection, address: &Address) -> Vec<Address> {
        let own = connection.command("SENTINEL", &[Arg::Fixed("MYID")], TIME_LIMIT);
        let own = match own.await {
            Ok(Reply::Text(id)) => Some(id.into()),
            _ => None,
        };
        let others = self.ask(connection, "SENTINELS").await;
        let now = Instant::now();
        let mut reports = self.reports.lock();
        reports.identified(address, own);
        let Ok(Reply::List(others)) = others else {
            return Vec::new();
        };
        let others = others
            .iter()
            .filter_map(|other| sentinel(other, &self.settings.learned, address));
        let new = others.filter(|(address, id)| reports.learn(address, id.clone(), now));
        new.map(|(address, _)| address).collect()
    }

    /// Who the primary is by what a sentinel has just reported.
    fn believe(&self, sentinel: &Address, report: Report) -> Option<Address> {
        let timeout = self.settings.command_timeout;
        let too_short = report
            .down_after
            .filter(|down_after| *down_after <= timeout);
        let primary = {
            let mut reports = self.reports.lock();
            reports.primary(sentinel, report, Instant::now())
        };
        if let Some(down_after) = too_short
            && !std::mem::replace(&mut *self.warned.lock(), true)
        {
            event!(
                WARN,
                ?down_after,
                command_timeout = ?timeout,
                "down-after-milliseconds is not above the command timeout: a former primary's answer may be believed"
            );
        }
        primary
    }

    /// Hears of failovers from one sentinel, and from the next when that one is gone.
    async fn listen(&self, map: &Map) {
        let mut backoff = Backoff::new(self.settings.is_scattered());
        let mut last = None;
        loop {
            let addresses = self.reports.lock().addresses();
            let next = addresses
                .iter()
                .find(|address| Some(*address) > last.as_ref());
            last = next.or_else(|| addresses.first()).cloned();
            if let Some(address) = &last
                && let Ok((_connection, mut task)) = self.subscribed(map, address).await
            {
                backoff = Backoff::new(self.settings.is_scattered());
                task.ended().await;
            }
            // One may have happened meanwhile.
            map.context.outdated.notify_one();
            backoff.wait().await;
        }
    }

    async fn subscribed(
        &self,
        map: &Map,
        address: &Address,
    ) -> Result<(Connection, Task), ConnectionError> {
        let settings = self.settings.at_sentinel(address);
        let outdated = Arc::clone(&map.context.outdated);
        let (connection, task) = Connection::open(&settings).await?;
        let hello = connection.greet(TIME_LIMIT).await?;
        connection.receive(PushReceiver {
            heard: Some(Arc::new(move |_| outdated.notify_one())),
            reports: None,
            has_lists: hello.is_none(),
        });
        let (until, channel) = (Instant::now() + TIME_LIMIT, "+switch-master".into());
        let subscribed = connection.change(Change::Subscribe, Delivery::Classic, &channel, until);
        let subscribed = tokio::time::timeout_at(until, subscribed).await;
        subscribed.unwrap_or_else(|_| Err(ConnectionError::silent()))?;
        Ok((connection, task))
    }
}

/// All locks are at the primary. Which server that is, each of its connections finds out.
fn table(primary: Address) -> RouteTable {
    RouteTable {
        source: None,
        epoch: 0,
        routes: vec![(0..=0, primary.into())],
        members: Default::default(),
    }
}

/// Reads `SENTINEL MASTER`, names and values in turn, and `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn read(
    master: &Reply,
    address: &Reply,
    learned: &LearnedAddresses,
    asked: &Address,
) -> Option<Report> {
    let Reply::List(address) = address else {
        return None;
    };
    let [Reply::Text(host), Reply::Text(port)] = &address[..] else {
        return None;
    };
    let down_after = field(master, "down-after-milliseconds").and_then(|ms| ms.parse().ok());
    Some(Report {
        epoch: epoch(master)?,
        primary: learned.address(host, port.parse().ok()?, None, asked),
        down_after: down_after.map(Duration::from_millis),
    })
}

/// Reads one of `SENTINEL SENTINELS`, unless it is about one that has not introduced itself yet, or is down.
fn sentinel(
    words: &Reply,
    learned: &LearnedAddresses,
    asked: &Address,
) -> Option<(Address, Option<ServerId>)> {
    let (host, port) = (field(words, "ip")?, field(words, "port")?.parse().ok()?);
    let is_down = field(words, "flags").is_some_and(|flags| flags.contains("_down"));
    if host.is_empty() || port == 0 || is_down {
        return None;
    }
    let id = field(words, "runid").filter(|id| !id.is_empty());
    let address = learned.address(host, port, None, asked);
    Some((address, id.map(Into::into)))
}

fn epoch(master: &Reply) -> Option<u64> {
    field(master, "config-epoch")?.parse().ok()
}

fn field<'a>(master: &'a Reply, name: &str) -> Option<&'a str> {
    let Reply::List(words) = master else {
        return None;
    };
    words.chunks(2).find_map(|pair| match pair {
        [Reply::Text(key), Reply::Text(value)] if key == name => Some(value.as_str()),
        _ => None,
    })
}

/// Between two questions when nothing happens.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);

/// Between two questions for the other sentinels.
const LEARN_INTERVAL: Duration = Duration::from_secs(10);

/// Between two questions when much happens, and while the epoch changes.
const QUERY_GAP_MIN: Duration = Duration::from_millis(50);

/// A sentinel whose epoch changes at each question is as good as none.
const TRIES: u32 = 3;

/// A sentinel that has not responded by then is asked over another connection.
const TIME_LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
