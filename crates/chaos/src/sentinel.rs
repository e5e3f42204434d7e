//! A primary and two replicas behind three sentinels, and what befalls them.

use std::ops::RangeInclusive;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_support::{SERVICE, Sentinels, ms};

use crate::faults::{Done, Fault, Kind, Said, Servers};
use crate::oracle::Takeover;
use crate::plain::{self, order, query};

pub struct Watched {
    sentinels: Sentinels,
    servers: Vec<u16>,
    watchers: Vec<u16>,
    /// What the sentinels have said since the last question.
    announced: mpsc::Receiver<Announced>,
    last: Named,
}

/// A sentinel names another primary, or another epoch, than before.
#[derive(Debug, Clone, Copy)]
struct Announced {
    at: Instant,
    by: u16,
    named: Named,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Named {
    primary: u16,
    epoch: u64,
}

/// Asks the sentinels for their primary all the time.
fn observe(watchers: &[u16]) -> mpsc::Receiver<Announced> {
    let (announce, announced) = mpsc::channel();
    for &by in watchers {
        let announce = announce.clone();
        std::thread::spawn(move || {
            let mut last = Named::default();
            loop {
                if let Ok(named) = named_by(by)
                    && named != last
                {
                    last = named;
                    let at = Instant::now();
                    if announce.send(Announced { at, by, named }).is_err() {
                        return;
                    }
                }
                sleep(ms(10));
            }
        });
    }
    announced
}

fn named_by(watcher: u16) -> Result<Named, String> {
    loop {
        let before = epoch(watcher)?;
        let primary = Watched::primary_by(watcher)?;
        // Address and epoch change one after the other.
        if epoch(watcher)? == before {
            let epoch = before;
            return Ok(Named { primary, epoch });
        }
    }
}

fn epoch(watcher: u16) -> Result<u64, String> {
    let report = query(watcher, &["SENTINEL", "MASTER", SERVICE])?;
    let words: Vec<&str> = report.split(' ').collect();
    let epoch = words.chunks(2).find(|pair| pair[0] == "config-epoch");
    let epoch = epoch.and_then(|pair| pair.get(1)?.parse().ok());
    epoch.ok_or_else(|| format!("port {watcher} tells no epoch"))
}

impl Watched {
    pub fn start(runtime: &tokio::runtime::Runtime) -> Result<Self, String> {
        let mut sentinels = runtime.block_on(Sentinels::start());
        let servers = (0..3).map(|nth| sentinels.server(nth).port).collect();
        let addresses = sentinels.addresses();
        let port = |address: &str| address.rsplit(':').next()?.parse().ok();
        let watchers: Vec<u16> = addresses.split(' ').filter_map(port).collect();
        let announced = observe(&watchers);
        let last = named_by(watchers[0])?;
        Ok(Self {
            sentinels,
            servers,
            watchers,
            announced,
            last,
        })
    }

    /// The primary, as a sentinel says.
    fn primary_by(watcher: u16) -> Result<u16, String> {
        let address = query(watcher, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
        let port = address.split(' ').nth(1).and_then(|port| port.parse().ok());
        port.ok_or_else(|| format!("a sentinel says `{address}`"))
    }

    fn primary(&self) -> Result<u16, String> {
        let said = self
            .watchers
            .iter()
            .map(|&watcher| Self::primary_by(watcher));
        said.flatten()
            .next()
            .ok_or_else(|| "no sentinel tells the primary".to_owned())
    }

    fn number(&self, port: u16) -> Result<usize, String> {
        let nth = self.servers.iter().position(|known| *known == port);
        nth.ok_or_else(|| format!("port {port} is none of the servers"))
    }

    fn replicas_of(&self, primary: usize) -> Vec<usize> {
        (0..self.servers.len())
            .filter(|nth| *nth != primary)
            .collect()
    }

    /// Waits until a sentinel says that the primary is another server.
    fn take_over(&self, before: u16, from: Instant, limit: Instant) -> Option<Takeover> {
        while Instant::now() < limit {
            for &watcher in &self.watchers {
                if Self::primary_by(watcher).is_ok_and(|port| port != before) {
                    return Some(Takeover {
                        from,
                        at: Instant::now(),
                        slots: vec![0..=u16::MAX],
                        may_lose: true,
                    });
                }
            }
            sleep(ms(5));
        }
        None
    }

    fn kill(&mut self, unreplicated: Option<Duration>) -> Result<Done, String> {
        let port = self.primary()?;
        let primary = self.number(port)?;
        let from = Instant::now();
        if let Some(length) = unreplicated {
            for replica in self.replicas_of(primary) {
                self.sentinels.server(replica).pause();
            }
            order(port, &["CLIENT", "KILL", "TYPE", "replica"])?;
            sleep(length);
        }
        self.sentinels.server(primary).kill();
        if unreplicated.is_some() {
            for replica in self.replicas_of(primary) {
                self.sentinels.server(replica).resume();
            }
        }
        let takeover = self.take_over(port, from, Instant::now() + TAKEN_OVER_WITHIN);
        let takeover = takeover.ok_or_else(|| format!("nobody has taken over from port {port}"))?;
        let how = if unreplicated.is_some() {
            ", the last holds unreplicated"
        } else {
            ""
        };
        Ok(Done {
            what: format!("port {port} killed{how}"),
            takeover: Some(takeover),
            dead: Some(primary),
        })
    }

    fn stop(&mut self, length: Duration) -> Result<Done, String> {
        let port = self.primary()?;
        let primary = self.number(port)?;
        let from = Instant::now();
        self.sentinels.server(primary).pause();
        let mut takeover = self.take_over(port, from, from + length);
        sleep((from + length).saturating_duration_since(Instant::now()));
        self.sentinels.server(primary).resume();
        if takeover.is_none() && length > ms(600) {
            // The sentinels may have agreed already.
            takeover = self.take_over(port, from, Instant::now() + ms(3_000));
        }
        Ok(Done {
            what: format!("port {port} stopped for {length:?}"),
            takeover,
            dead: None,
        })
    }

    /// With one sentinel that hears of it later.
    fn fail_over(&mut self, fault: &Fault, behind: bool) -> Result<Done, String> {
        let port = self.primary()?;
        let late = fault.target % self.watchers.len();
        let ordered = self.watchers[(late + 1) % self.watchers.len()];
        if behind {
            self.sentinels.signal_sentinel(late, "-STOP");
        }
        let from = Instant::now();
        let limit = from + ms(10_000);
        let taken = loop {
            match query(ordered, &["SENTINEL", "FAILOVER", SERVICE]) {
                Err(problem) if Instant::now() > limit => break Err(problem),
                Err(_) => sleep(ms(100)),
                Ok(_) => break Ok(()),
            }
        };
        let takeover = self.take_over(port, from, Instant::now() + TAKEN_OVER_WITHIN);
        if behind {
            self.sentinels.signal_sentinel(late, "-CONT");
        }
        taken?;
        let takeover = takeover.ok_or("no failover came of the order")?;
        let how = if behind {
            ", one sentinel stopped meanwhile"
        } else {
            ""
        };
        Ok(Done {
            what: format!("planned failover from port {port}{how}"),
            takeover: Some(takeover),
            dead: None,
        })
    }

    /// What one sentinel has to say against its primary; the primary and the epoch otherwise.
    fn said_by(&self, watcher: u16) -> Result<(u16, String), String> {
        let about = |what: &str| format!("the sentinel at port {watcher} says: {what}");
        let report = query(watcher, &["SENTINEL", "MASTER", SERVICE])?;
        let words: Vec<&str> = report.split(' ').collect();
        let field = |name: &str| {
            let pair = words.chunks(2).find(|pair| pair[0] == name);
            pair.and_then(|pair| pair.get(1)).copied().unwrap_or("")
        };
        for (name, wanted) in [
            ("flags", "master"),
            ("num-slaves", "2"),
            ("num-other-sentinels", "2"),
        ] {
            if field(name) != wanted {
                return Err(about(&format!("{name} {}", field(name))));
            }
        }
        let replicas = query(watcher, &["SENTINEL", "REPLICAS", SERVICE])?;
        let words: Vec<&str> = replicas.split(' ').collect();
        for pair in words.chunks(2) {
            // What else is said of a replica is up to ten seconds old.
            let is_right = pair[0] != "flags" || pair[1] == "slave";
            if !is_right {
                return Err(about(&format!("a replica has {}", pair.join(" "))));
            }
        }
        if !query(watcher, &["INFO", "SENTINEL"])?.contains("sentinel_tilt:0") {
            return Err(about("it has stood still, and waits (TILT)"));
        }
        let port = field("port").parse().map_err(|_| about("no port"))?;
        Ok((port, field("config-epoch").to_owned()))
    }

    fn what_is_wrong(&self) -> Result<(), String> {
        let reports = self.watchers.iter().map(|&watcher| self.said_by(watcher));
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        let (primary, _) = reports[0];
        if reports.iter().any(|report| *report != reports[0]) {
            return Err(format!("the sentinels do not agree: {reports:?}"));
        }
        for &port in self.servers.iter().filter(|port| **port != primary) {
            if let Some(behind) = plain::is_behind(port, primary) {
                return Err(behind);
            }
        }
        if !query(primary, &["ROLE"])?.starts_with("master") {
            return Err(format!(
                "port {primary} does not say that it is the primary"
            ));
        }
        Ok(())
    }
}

impl Servers for Watched {
    fn url(&self) -> String {
        self.sentinels.url()
    }

    fn kinds(&self) -> &'static [Kind] {
        &[
            Kind::Kill,
            Kind::KillUnreplicated,
            Kind::Stop,
            Kind::Stop,
            Kind::PlannedFailover,
            Kind::CutReplicas,
            Kind::StopReplica,
            Kind::StopSentinel,
        ]
    }

    fn inject(&mut self, fault: &Fault, _: &[(String, u16)]) -> Result<Done, String> {
        match fault.kind {
            Kind::Kill => self.kill(None),
            Kind::KillUnreplicated => self.kill(Some(ms(200) + fault.length / 5)),
            Kind::Stop => self.stop(fault.length),
            Kind::PlannedFailover => self.fail_over(fault, false),
            Kind::StopSentinel => self.fail_over(fault, true),
            Kind::CutReplicas | Kind::MoveAtOnce | Kind::MoveByKey => {
                let port = self.primary()?;
                order(port, &["CLIENT", "KILL", "TYPE", "replica"])?;
                Ok(Done {
                    what: format!("port {port} cuts its replicas"),
                    ..Done::default()
                })
            }
            Kind::StopReplica => {
                let replicas = self.replicas_of(self.number(self.primary()?)?);
                let replica = replicas[fault.target % replicas.len()];
                self.sentinels.server(replica).pause();
                sleep(fault.length);
                self.sentinels.server(replica).resume();
                let port = self.servers[replica];
                Ok(Done {
                    what: format!("the replica at port {port} stopped for {:?}", fault.length),
                    ..Done::default()
                })
            }
        }
    }

    fn start_again(&mut self, dead: usize) {
        self.sentinels.server(dead).start_again();
    }

    fn missing(&mut self) -> Option<String> {
        self.what_is_wrong().err()
    }

    fn routes(&self) -> Result<Vec<(RangeInclusive<u16>, u16)>, String> {
        Ok(vec![(0..=u16::MAX, self.primary()?)])
    }

    fn replicas(&self) -> u32 {
        2
    }

    fn said(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        for Announced { at, by, named } in self.announced.try_iter() {
            let Named { primary, epoch } = named;
            // One that lies behind has a lower epoch.
            let is_news = epoch >= self.last.epoch && primary != self.last.primary;
            if is_news {
                self.last = named;
            }
            said.push(Said {
                at,
                line: format!("the sentinel at port {by} names port {primary}, in epoch {epoch}"),
                switched: is_news.then_some(primary),
            });
        }
        said
    }
}

/// Sentinels that have not chosen anybody by then will not.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(30);
