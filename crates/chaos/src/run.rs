//! Faults one after the other, everything whole again between them, and a comparison with the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_support::ms;

use crate::faults::{Fault, Schedule, Servers, primaries};
use crate::load::Judge;
use crate::oracle::{Section, Takeover};
use crate::plain;

pub struct Run {
    pub servers: Box<dyn Servers + Send>,
    pub judge: Judge,
    pub schedule: Schedule,
    pub locks: Vec<(String, u16)>,
    pub start: Instant,
    pub until: Instant,
    pub interrupted: Arc<AtomicBool>,
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
        let done = self.servers.inject(fault, &self.locks)?;
        let injected = Instant::now();
        self.judge.oracle().fault(injected, done.what.clone());
        let mut line = format!("{:>8.1} s  {}", self.since_start(from), done.what);
        if let Some(takeover) = &done.takeover {
            let after = takeover.at - takeover.from;
            line.push_str(&format!(", taken over after {:.1} s", after.as_secs_f64()));
            self.judge.oracle().took_over(takeover.clone());
            self.compare(Some(takeover.at));
        }
        if let Some(dead) = done.dead {
            self.servers.start_again(dead);
        }
        self.is_whole()?;
        self.unwatched(&before, from, done.takeover.as_ref())?;
        let whole = Instant::now();
        self.judge.oracle().outage(whole, false);
        self.judge
            .oracle()
            .fault(whole, "everything is whole again".to_owned());
        self.compare(None);
        self.judge.oracle().judge(Instant::now());
        println!("{line}, whole after {:.1} s", (whole - from).as_secs_f64());
        Ok(())
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
    pub fn is_whole(&mut self) -> Result<(), String> {
        let limit = Instant::now() + WHOLE_WITHIN;
        while let Some(missing) = self.servers.missing() {
            if Instant::now() > limit {
                return Err(format!("not whole within {WHOLE_WITHIN:?}: {missing}"));
            }
            sleep(ms(50));
        }
        Ok(())
    }

    /// Servers that have taken over without an order, on a machine that is too busy, or one after the other.
    fn unwatched(
        &mut self,
        before: &BTreeSet<u16>,
        from: Instant,
        watched: Option<&Takeover>,
    ) -> Result<(), String> {
        let mut unwatched = Vec::new();
        for said in self.servers.said() {
            self.judge.oracle().fault(said.at, said.line);
            let all = 0..=u16::MAX;
            unwatched.extend(said.switched.map(|port| (port, all, said.at)));
        }
        // The first is the one that was waited for.
        if watched.is_some() && !unwatched.is_empty() {
            unwatched.remove(0);
        }
        let is_known = |first: &u16| {
            watched.is_some_and(|one| one.slots.iter().any(|slots| slots.contains(first)))
        };
        let is_complete = !unwatched.is_empty();
        for (slots, port) in self.routes()? {
            if !is_complete && !before.contains(&port) && !is_known(slots.start()) {
                unwatched.push((port, slots, Instant::now()));
            }
        }
        for (port, slots, at) in unwatched {
            println!("            port {port} has taken over by itself");
            self.judge.oracle().took_over(Takeover {
                from,
                at,
                slots: vec![slots],
                may_lose: true,
            });
        }
        Ok(())
    }

    /// Whoever has not been informed of a loss in time, behind a switch or now, is the holder.
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
            Err(problem) => oracle.fault(Instant::now(), format!("not compared: {problem}")),
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
        let mut missing = Vec::new();
        for (port, sections) in by_port {
            let field = |one: &Section| (locks[one.lock].name.clone(), one.owner.to_string());
            let fields: Vec<_> = sections.iter().map(field).collect();
            let found = plain::have(port, &fields)?;
            let absent = sections.into_iter().zip(found).filter(|(_, found)| !found);
            missing.extend(absent.map(|(section, _)| section));
        }
        let oracle = self.judge.oracle();
        missing.retain(|section| oracle.is_open(section.id));
        Ok(missing)
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

const TRIES: usize = 5;
