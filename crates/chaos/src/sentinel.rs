//! A primary and two replicas behind three sentinels, and what befalls them.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::sleep;
use std::time::Instant;

use test_support::{SERVICE, Sentinels, Server, ms};

use crate::faults::{Done, Fault, Kind, Servers, Shard};
use crate::inject::TAKEN_OVER_WITHIN;
use crate::oracle::{Broken, all_slots};
use crate::plain::{self, query};
use crate::watch::{self, Ear, News, Node, Said};

pub struct Watched {
    sentinels: Sentinels,
    servers: Vec<u16>,
    watchers: Vec<u16>,
    ear: Ear,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Named {
    primary: u16,
    epoch: u64,
}

/// Asks the sentinels for their primary all the time.
fn observe(watchers: &[u16], first: Named, say: &mpsc::Sender<Said>) {
    let latest = Arc::new(Mutex::new(first));
    for &by in watchers {
        let (say, latest) = (say.clone(), Arc::clone(&latest));
        std::thread::spawn(move || {
            let mut last = Named::default();
            loop {
                if let Ok(named) = named_by(by)
                    && named != last
                {
                    last = named;
                    let latest = &mut latest.lock().unwrap_or_else(PoisonError::into_inner);
                    if say.send(announced(by, named, latest)).is_err() {
                        return;
                    }
                }
                sleep(ms(10));
            }
        });
    }
}

/// A sentinel names another primary, or another epoch, than before.
fn announced(by: u16, named: Named, latest: &mut Named) -> Said {
    let Named { primary, epoch } = named;
    // One that lies behind has a lower epoch.
    let is_news = epoch >= latest.epoch && primary != latest.primary;
    let news = match is_news {
        true => {
            *latest = named;
            News::Switched {
                port: primary,
                slots: all_slots(),
            }
        }
        false => News::Nothing,
    };
    Said {
        at: Instant::now(),
        line: format!("the sentinel at port {by} names port {primary}, in epoch {epoch}"),
        news,
    }
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
    let epoch = field(&report, "config-epoch").parse().ok();
    epoch.ok_or_else(|| format!("port {watcher} tells no epoch"))
}

/// Of names and values in turn. Empty: there is none of this name.
fn field<'a>(report: &'a str, name: &str) -> &'a str {
    let words: Vec<&str> = report.split(' ').collect();
    let pair = words.chunks(2).find(|pair| pair[0] == name);
    pair.and_then(|pair| pair.get(1)).copied().unwrap_or("")
}

impl Watched {
    pub fn start(runtime: &tokio::runtime::Runtime) -> Result<Self, String> {
        let mut sentinels = runtime.block_on(Sentinels::start());
        let servers: Vec<u16> = (0..3).map(|nth| sentinels.server(nth).port).collect();
        let addresses = sentinels.addresses();
        let port = |address: &str| address.rsplit(':').next()?.parse().ok();
        let watchers: Vec<u16> = addresses.split(' ').filter_map(port).collect();
        let (say, said) = mpsc::channel();
        observe(&watchers, named_by(watchers[0])?, &say);
        watch::roles(&servers, false, &say);
        Ok(Self {
            sentinels,
            servers,
            watchers,
            ear: Ear::new(said),
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

    /// With one sentinel that hears of it later.
    fn fail_over(&mut self, fault: &Fault, shard: &Shard, behind: bool) -> Result<Done, String> {
        let port = shard.primary.port;
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
        let limit = Instant::now() + TAKEN_OVER_WITHIN;
        let switch = self.ear.switched(from, limit, &shard.replicas);
        if behind {
            self.sentinels.signal_sentinel(late, "-CONT");
        }
        taken?;
        let switch = switch.ok_or("no failover came of the order")?;
        let how = if behind {
            ", one sentinel stopped meanwhile"
        } else {
            ""
        };
        Ok(Done {
            what: format!("planned failover from port {port}{how}"),
            switch: Some(switch),
            outages: vec![shard.lacks(Broken::Primary, from, Some(switch.at))],
            ..Done::default()
        })
    }

    /// What one sentinel has to say against its primary; the primary and the epoch otherwise.
    fn said_by(&self, watcher: u16) -> Result<(u16, String), String> {
        let about = |what: &str| format!("the sentinel at port {watcher} says: {what}");
        let report = query(watcher, &["SENTINEL", "MASTER", SERVICE])?;
        let field = |name: &str| field(&report, name);
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

    fn server(&mut self, nth: usize) -> &mut Server {
        self.sentinels.server(nth)
    }

    fn ear(&mut self) -> &mut Ear {
        &mut self.ear
    }

    fn shard(&self, _: usize) -> Result<Shard, String> {
        let named = self.primary()?;
        let nodes = self.servers.iter().enumerate();
        let nodes = nodes.map(|(nth, &port)| Node { nth, port });
        let (primary, replicas): (Vec<_>, _) = nodes.partition(|node| node.port == named);
        let primary = primary.first().copied();
        Ok(Shard {
            primary: primary.ok_or_else(|| format!("port {named} is none of the servers"))?,
            replicas,
            slots: all_slots(),
        })
    }

    fn inject_own(&mut self, fault: &Fault, shard: &Shard, _: u16) -> Result<Done, String> {
        match fault.kind {
            Kind::PlannedFailover => self.fail_over(fault, shard, false),
            Kind::StopSentinel => self.fail_over(fault, shard, true),
            other => Err(format!("sentinels have no {other:?}")),
        }
    }

    fn is_whole(&self) -> Result<(), String> {
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

    fn routes(&self) -> Result<Vec<(RangeInclusive<u16>, u16)>, String> {
        Ok(vec![(0..=u16::MAX, self.primary()?)])
    }

    fn replicas(&self) -> u32 {
        2
    }
}
