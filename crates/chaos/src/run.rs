//! Faults one after the other, everything whole again between them, and a comparison with the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_support::ms;

use crate::faults::{Done, Fault, Kind, Schedule, Servers, primaries};
use crate::load::Judge;
use crate::oracle::{Broken, Outage, Section, Slots, Takeover, all_slots};
use crate::plain;
use crate::watch::{News, Said};

pub struct Run {
    pub servers: Box<dyn Servers>,
    pub judge: Judge,
    pub schedule: Schedule,
    pub start: Instant,
    pub until: Instant,
    pub interrupted: Arc<AtomicBool>,
    /// Kinds of faults that have been made.
    pub made: BTreeSet<Kind>,
}

impl Run {
    /// Until the time is over, or something is wrong.
    pub fn all(&mut self) -> Result<(), String> {
        while Instant::now() < self.until
            && !self.interrupted.load(Ordering::Relaxed)
            && self.judge.oracle().violations().is_empty()
        {
            let fault = self.schedule.next();
            self.one(&fault)?;
            sleep(fault.pause);
        }
        Ok(())
    }

    fn one(&mut self, fault: &Fault) -> Result<(), String> {
        let before = primaries(&self.routes()?);
        let from = Instant::now();
        self.begin(from, fault);
        let slot = {
            let oracle = self.judge.oracle();
            let locks = oracle.locks();
            locks[fault.target % locks.len()].slot
        };
        let mut done = self.servers.inject(fault, slot)?;
        self.judge.oracle().fault(Instant::now(), done.what.clone());
        for outage in std::mem::take(&mut done.outages) {
            self.judge.oracle().broken(outage);
        }
        let mut line = format!("{:>8.1} s  {}", self.since_start(from), done.what);
        let mut switched = self.listen(from, &done);
        if let Some(switch) = done.switch {
            let after = switch.at - from;
            line.push_str(&format!(", taken over after {:.1} s", after.as_secs_f64()));
            self.compare(Some(switch.at));
        }
        if let Some(dead) = done.dead {
            self.servers.server(dead.nth).start_again();
        }
        self.is_whole()?;
        // What a server has become a moment ago may not have been seen.
        sleep(ms(100));
        switched.extend(self.listen(from, &done));
        let now = primaries(&self.routes()?);
        if let Some(port) = now
            .difference(&before)
            .find(|port| !switched.contains(port))
        {
            return Err(format!("port {port} has taken over, and nobody saw it"));
        }
        let whole = Instant::now();
        self.judge.oracle().outage(whole, false);
        self.judge
            .oracle()
            .fault(whole, "everything is whole again".to_owned());
        self.compare(None);
        self.judge.oracle().judge(Instant::now());
        self.made.insert(fault.kind);
        println!("{line}, whole after {:.1} s", (whole - from).as_secs_f64());
        Ok(())
    }

    /// Passes on what was heard of the servers; answers who has taken over.
    fn listen(&mut self, from: Instant, done: &Done) -> BTreeSet<u16> {
        let mut switched = BTreeSet::new();
        let mut demoted = Vec::new();
        for Said { at, line, news } in self.servers.ear().all() {
            self.judge.oracle().fault(at, line);
            match news {
                News::Nothing => {}
                News::Switched { port, slots } => {
                    let is_expected = done
                        .switch
                        .is_some_and(|one| (one.port, one.at) == (port, at));
                    self.switched(from, at, slots, is_expected, done.loses_nothing);
                    switched.insert(port);
                    if !is_expected {
                        println!("            port {port} has taken over by itself");
                    }
                }
                News::Demoted(port) if done.dead.is_some_and(|dead| dead.port == port) => {}
                News::Demoted(_) => demoted.push(at),
                News::Down { until } => {
                    // It is seen a little later.
                    let from = at.checked_sub(ms(100)).unwrap_or(at);
                    let down = Outage::new(Broken::Cluster, &all_slots(), from, Some(until));
                    self.judge.oracle().broken(down);
                }
            }
        }
        for at in demoted {
            self.judge.oracle().former_until(from, at);
        }
        switched
    }

    /// A server has taken over: as expected, or without an order, on a machine that is too busy.
    fn switched(
        &self,
        from: Instant,
        at: Instant,
        slots: Slots,
        is_expected: bool,
        loses_nothing: bool,
    ) {
        let mut oracle = self.judge.oracle();
        let outage = |broken, from, until| Outage::new(broken, &slots, from, until);
        oracle.broken(outage(Broken::Replicas, from.min(at), None));
        if !is_expected {
            let noticed = at.checked_sub(NOTICED_WITHIN).unwrap_or(at);
            oracle.broken(outage(Broken::Primary, from.min(noticed), Some(at)));
        }
        oracle.took_over(Takeover {
            from: from.min(at),
            at,
            former_until: at,
            slots,
            may_lose: !(is_expected && loses_nothing),
        });
    }

    /// Of servers that are whole. The machine may be too busy for an answer in time.
    fn routes(&self) -> Result<Vec<(RangeInclusive<u16>, u16)>, String> {
        for _ in 0..TRIES {
            if let Ok(routes) = self.servers.routes() {
                return Ok(routes);
            }
            sleep(ms(200));
        }
        self.servers.routes()
    }

    fn begin(&self, from: Instant, fault: &Fault) {
        let mut oracle = self.judge.oracle();
        oracle.outage(from, true);
        oracle.fault(from, format!("{:?} begins", fault.kind));
    }

    fn since_start(&self, at: Instant) -> f64 {
        (at - self.start).as_secs_f64()
    }

    /// Waits until nothing is missing.
    fn is_whole(&self) -> Result<(), String> {
        let limit = Instant::now() + WHOLE_WITHIN;
        while let Err(missing) = self.servers.is_whole() {
            if Instant::now() > limit {
                return Err(format!("not whole within {WHOLE_WITHIN:?}: {missing}"));
            }
            sleep(ms(50));
        }
        Ok(())
    }

    /// A hold that was not reported as lost in time, after a switch or now, is the holder's.
    fn compare(&self, switched: Option<Instant>) {
        let since = switched.unwrap_or_else(Instant::now);
        if switched.is_some() {
            while Instant::now() < self.judge.oracle().limit(since, Instant::now()) {
                sleep(ms(10));
            }
        }
        let mut missing = self.missing_since(since);
        // What ends at this moment is not wrong.
        for _ in 0..TRIES {
            if missing.as_ref().is_ok_and(Vec::is_empty) {
                return;
            }
            sleep(ms(50));
            missing = self.missing_since(since);
        }
        let mut oracle = self.judge.oracle();
        match missing {
            Ok(missing) => {
                for section in missing {
                    let what = format!(
                        "{} believes that it holds (section {}), and the server does not have it",
                        section.owner, section.id
                    );
                    oracle.violated(Some(section.lock), Instant::now(), &what);
                }
            }
            // What is not whole is waited for, and compared then.
            Err(problem) if switched.is_some() => {
                oracle.fault(Instant::now(), format!("not compared: {problem}"));
            }
            Err(problem) => {
                let what = format!("everything is whole, and cannot be compared: {problem}");
                oracle.violated(None, Instant::now(), &what);
            }
        }
    }

    /// Open sections that the servers know nothing of.
    fn missing_since(&self, since: Instant) -> Result<Vec<Section>, String> {
        let now = Instant::now();
        let (open, locks) = {
            let oracle = self.judge.oracle();
            (oracle.open_since(since.min(now)), oracle.locks().to_vec())
        };
        let routes = self.servers.routes()?;
        let mut by_port: BTreeMap<u16, Vec<Section>> = BTreeMap::new();
        for section in open {
            // Leases end while we ask.
            if section.leased || section.valid_until < now + ms(1_000) {
                continue;
            }
            let slot = locks[section.lock].slot;
            let route = routes.iter().find(|(slots, _)| slots.contains(&slot));
            let (_, port) = route.ok_or("nobody has a hash slot")?;
            by_port.entry(*port).or_default().push(section);
        }
        let compared: usize = by_port.values().map(Vec::len).sum();
        let mut missing = Vec::new();
        for (port, sections) in by_port {
            let field = |one: &Section| (locks[one.lock].name.clone(), one.owner.to_string());
            let fields: Vec<_> = sections.iter().map(field).collect();
            let found = plain::have(port, &fields)?;
            let absent = sections.into_iter().zip(found).filter(|(_, found)| !found);
            missing.extend(absent.map(|(section, _)| section));
        }
        let mut oracle = self.judge.oracle();
        oracle.sums.compared += u64::try_from(compared).unwrap_or(u64::MAX);
        missing.retain(|section| oracle.is_open(section.id));
        Ok(missing)
    }

    /// What nobody has done to the servers yet.
    pub fn not_made(&self) -> Vec<String> {
        let kinds: BTreeSet<Kind> = self.servers.kinds().iter().copied().collect();
        let missing = kinds.difference(&self.made);
        missing.map(|kind| format!("{kind:?}")).collect()
    }

    /// What was heard since the last fault.
    pub fn last_words(&mut self) {
        self.listen(Instant::now(), &Done::default());
        self.judge.oracle().outage(Instant::now(), false);
    }

    /// At the end everything in Redis has an expiry.
    pub fn left(&self) -> Result<(), String> {
        for port in primaries(&self.routes()?) {
            let left = plain::without_expiry(port)?;
            if !left.is_empty() {
                return Err(format!("keys without an expiry at port {port}: {left:?}"));
            }
        }
        Ok(())
    }
}

/// What is not whole by then will not be.
const WHOLE_WITHIN: Duration = Duration::from_secs(90);

/// How long before its promotion a server has noticed that the primary does not answer, at most.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);

const TRIES: usize = 5;
