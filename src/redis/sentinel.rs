//! Who the primary is, as the sentinels tell it.
//!
//! All of them are asked, and the highest configuration epoch is believed: they learn of a failover one
//! after the other, up to a second apart. What all who answer go on telling is believed in any epoch. What
//! they publish when a failover has happened makes everybody ask at once; a question every second stands
//! behind it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::address::Address;
use super::backoff::Backoff;
use super::connection::{Connection, Failed, Task};
use super::map::Map;
use super::settings::Settings;
use super::transport::{Arg, Change, ConnectionError, PubSubEvent, Reply, Role};
use crate::error::Error;
use crate::runtime::event;

/// Watches a primary.
pub(super) struct Sentinels {
    settings: Arc<Settings>,
    sentinels: Vec<Sentinel>,
    /// What the sentinels call the primary and its replicas.
    service: Arc<str>,
    reports: Mutex<Reports>,
}

struct Sentinel {
    address: Address,
    settings: Settings,
}

/// What a sentinel says of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    epoch: u64,
    primary: Address,
    down_after: Option<Duration>,
}

/// Who the primary is. Of one epoch there is one primary.
#[derive(Clone)]
struct Believed {
    epoch: u64,
    primary: Address,
}

/// What was said so far.
struct Reports {
    /// The last answer of each sentinel.
    latest: Vec<Option<Report>>,
    believed: Option<Believed>,
    /// Another primary than that, of which all tell who answer, and since when they do.
    instead: Option<(Address, Instant)>,
    warned: bool,
}

impl Reports {
    fn new(sentinels: usize) -> Self {
        Self {
            latest: vec![None; sentinels],
            believed: None,
            instead: None,
            warned: false,
        }
    }

    /// Who the primary is by what a sentinel has just said. A lower epoch than one that was believed is an
    /// old story, also when most sentinels tell it: they learn of a failover one after the other. Only when
    /// all of them tell it they were made anew, or when all who answer go on telling it.
    fn primary(&mut self, nth: usize, report: Report, now: Instant) -> Option<Address> {
        self.latest[nth] = Some(report);
        let reports = self.latest.iter().flatten();
        let newest = reports.max_by_key(|report| report.epoch)?.clone();
        let all = self.latest.iter().all(Option::is_some);
        let is_news = match &self.believed {
            None => true,
            Some(believed) if newest.epoch < believed.epoch && all => true,
            Some(believed) => newest.epoch > believed.epoch,
        };
        if is_news || self.is_agreed(&newest.primary, now) {
            self.instead = None;
            self.believed = Some(Believed {
                epoch: newest.epoch,
                primary: newest.primary,
            });
        }
        self.believed
            .as_ref()
            .map(|believed| believed.primary.clone())
    }

    /// Whether an operator has told the sentinels of this primary: in no higher epoch than before, perhaps in
    /// the first one still, but most of them answer and none of those tells of another, for longer than they
    /// need to hear of a failover from each other.
    fn is_agreed(&mut self, primary: &Address, now: Instant) -> bool {
        let reports = || self.latest.iter().flatten();
        let believed = self.believed.as_ref();
        let is_agreed = believed.is_some_and(|believed| believed.primary != *primary)
            && reports().count() * 2 > self.latest.len()
            && reports().all(|report| report.primary == *primary);
        if !is_agreed {
            self.instead = None;
            return false;
        }
        match &self.instead {
            Some((instead, since)) if instead == primary => now - *since >= AGREED,
            _ => {
                self.instead = Some((primary.clone(), now));
                false
            }
        }
    }
}

impl Sentinels {
    pub(super) fn new(settings: &Arc<Settings>, known: &[Address], service: &str) -> Self {
        let sentinel = |address: &Address| Sentinel {
            address: address.clone(),
            settings: settings.at_sentinel(address),
        };
        Self {
            settings: Arc::clone(settings),
            sentinels: known.iter().map(sentinel).collect(),
            service: service.into(),
            reports: Mutex::new(Reports::new(known.len())),
        }
    }

    /// Fills the map for the first time: every sentinel is asked once.
    pub(super) async fn begin(&self, map: &Map) -> Result<(), Error> {
        let time_limit = self.settings.command_timeout / self.sentinels.len().max(1) as u32;
        let (mut primary, mut failed) = (None, Failed::default());
        for (nth, sentinel) in self.sentinels.iter().enumerate() {
            let asking = async {
                let (connection, _task) =
                    Connection::open(&sentinel.settings, Role::Commands).await?;
                self.query(&connection, sentinel, time_limit).await
            };
            let asked = tokio::time::timeout(time_limit, asking).await;
            match asked.unwrap_or_else(|_| Err(silent())) {
                Ok(report) => primary = self.learn(nth, report),
                Err(error) => failed.add(sentinel.address.to_string().into(), error),
            }
        }
        if let Some(primary) = primary {
            // Behind the last answer: who connects while a sentinel lies behind has seen no failover.
            map.apply(&[(0..=0, primary)]);
            return Ok(());
        }
        if failed.has_refusal("ERR No such master") {
            let known: Vec<String> = self
                .sentinels
                .iter()
                .map(|one| one.address.to_string())
                .collect();
            return Err(Error::InvalidConfig {
                what: "address",
                problem: format!(
                    "the sentinels at {} know no primary by the name of `sentinelServiceName`",
                    known.join(", ")
                ),
            });
        }
        Err(failed.into_error(&self.settings))
    }

    /// Starts what keeps the map right.
    pub(super) fn keep(self, map: &Arc<Map>) {
        let this = Arc::new(self);
        let (query_now, asked) = watch::channel(());
        for nth in 0..this.sentinels.len() {
            let (this, map, asked) = (Arc::clone(&this), Arc::clone(map), asked.clone());
            let around = map.around.clone();
            around.spawn(async move { this.poll(&map, nth, asked).await });
        }
        let map = Arc::clone(map);
        let around = map.around.clone();
        around.spawn(async move {
            let in_doubt = async {
                loop {
                    map.around.outdated.notified().await;
                    let _ = query_now.send(());
                    // Everybody who has found that a server is gone says so.
                    tokio::time::sleep(APART).await;
                }
            };
            tokio::join!(in_doubt, this.listen(&map));
        });
    }

    /// Asks one sentinel every second, and whenever there is doubt.
    async fn poll(&self, map: &Map, nth: usize, mut asked: watch::Receiver<()>) {
        let sentinel = &self.sentinels[nth];
        let mut backoff = Backoff::new(self.settings.is_scattered());
        loop {
            let problem = match Connection::open(&sentinel.settings, Role::Commands).await {
                Ok((connection, _task)) => loop {
                    match self.query(&connection, sentinel, TIME_LIMIT).await {
                        Ok(report) => self.believe(map, nth, report),
                        Err(problem) => break problem,
                    }
                    backoff = Backoff::new(self.settings.is_scattered());
                    let _ = tokio::time::timeout(BETWEEN, asked.changed()).await;
                },
                Err(problem) => problem,
            };
            event!(DEBUG, sentinel = %sentinel.address, %problem, "a sentinel does not answer");
            self.reports.lock().latest[nth] = None;
            backoff.wait().await;
        }
    }

    async fn query(
        &self,
        connection: &Connection,
        sentinel: &Sentinel,
        time_limit: Duration,
    ) -> Result<Report, ConnectionError> {
        let exchange = |subcommand| {
            let words = [Arg::Fixed(subcommand), Arg::Text(Arc::clone(&self.service))];
            connection.command("SENTINEL", &words, time_limit)
        };
        let unclear = || ConnectionError::Refused("ERR the sentinel does not tell".to_owned());
        loop {
            // The sentinel that leads a failover shows the new epoch beside the old address until it is
            // over; the new address it tells to who asks for nothing else.
            let before = epoch(&exchange("MASTER").await?).ok_or_else(unclear)?;
            let address = exchange("GET-MASTER-ADDR-BY-NAME").await?;
            let master = exchange("MASTER").await?;
            let report = read(&master, &address, &sentinel.address).ok_or_else(unclear)?;
            if report.epoch == before {
                return Ok(report);
            }
        }
    }

    fn believe(&self, map: &Map, nth: usize, report: Report) {
        if let Some(primary) = self.learn(nth, report) {
            map.apply(&[(0..=0, primary)]);
        }
    }

    /// Who the primary is by what a sentinel has just said.
    fn learn(&self, nth: usize, report: Report) -> Option<Address> {
        let timeout = self.settings.command_timeout;
        let too_short = report
            .down_after
            .filter(|down_after| *down_after <= timeout);
        let (primary, warn) = {
            let mut reports = self.reports.lock();
            let warn = too_short.filter(|_| !std::mem::replace(&mut reports.warned, true));
            (reports.primary(nth, report, Instant::now()), warn)
        };
        if let Some(down_after) = warn {
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
        for sentinel in self.sentinels.iter().cycle() {
            if let Ok((connection, task)) = self.subscribed(sentinel).await {
                backoff = Backoff::new(self.settings.is_scattered());
                hear(map, &connection, task).await;
            }
            // One may have happened meanwhile.
            map.around.outdated.notify_one();
            backoff.wait().await;
        }
    }

    async fn subscribed(&self, sentinel: &Sentinel) -> Result<(Connection, Task), ConnectionError> {
        let (connection, task) = Connection::open(&sentinel.settings, Role::Messages).await?;
        let change = Change::Subscribe(vec!["+switch-master".into()]);
        let confirmed = connection.barrier(change, "redisson-lock".to_owned(), TIME_LIMIT);
        confirmed.await?;
        Ok((connection, task))
    }
}

/// Returns when the connection is gone.
async fn hear(map: &Map, connection: &Connection, mut task: Task) {
    let mut messages = connection.messages();
    loop {
        tokio::select! {
            () = task.ended() => return,
            message = messages.next() => match message {
                PubSubEvent::Message(_) | PubSubEvent::Missed(_) => {
                    map.around.outdated.notify_one();
                }
                PubSubEvent::End => return,
            },
        }
    }
}

fn silent() -> ConnectionError {
    ConnectionError::Timeout("no answer".to_owned())
}

/// Reads `SENTINEL MASTER`, names and values in turn, and `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn read(master: &Reply, address: &Reply, asked: &Address) -> Option<Report> {
    let Reply::List(address) = address else {
        return None;
    };
    let [Reply::Text(host), Reply::Text(port)] = &address[..] else {
        return None;
    };
    let down_after = field(master, "down-after-milliseconds").and_then(|ms| ms.parse().ok());
    Some(Report {
        epoch: epoch(master)?,
        primary: Address::named(host, port.parse().ok()?, asked),
        down_after: down_after.map(Duration::from_millis),
    })
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
const BETWEEN: Duration = Duration::from_secs(1);

/// Between two questions when much does.
const APART: Duration = Duration::from_millis(50);

/// So long all who answer tell of another primary before it is believed. They talk to each other every two
/// seconds.
const AGREED: Duration = Duration::from_secs(5);

/// A sentinel that has not answered by then is asked over another connection.
const TIME_LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
