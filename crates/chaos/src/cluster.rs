//! Three primaries with a replica each, and what befalls them.

use std::ops::RangeInclusive;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_support::{Cluster, Server, ms};

use crate::faults::{Done, Fault, Kind, Servers, Shard};
use crate::inject::TAKEN_OVER_WITHIN;
use crate::oracle::{Broken, Outage, Slots};
use crate::plain::{self, order, query};
use crate::watch::{self, Ear, Node};

pub struct Nodes {
    cluster: Cluster,
    ids: Vec<String>,
    ear: Ear,
}

/// A node as another one sees it.
struct Seen {
    nth: usize,
    id: String,
    /// `None`: a primary.
    replica_of: Option<String>,
    slots: Slots,
    problem: Option<String>,
}

impl Nodes {
    pub fn start(runtime: &tokio::runtime::Runtime) -> Result<Self, String> {
        let cluster = runtime.block_on(Cluster::start(true));
        let ids = (0..cluster.len()).map(|nth| query(cluster.port(nth), &["CLUSTER", "MYID"]));
        let ids = ids.collect::<Result<_, _>>()?;
        let (say, said) = mpsc::channel();
        let ports: Vec<u16> = (0..cluster.len()).map(|nth| cluster.port(nth)).collect();
        watch::roles(&ports, true, &say);
        Ok(Self {
            cluster,
            ids,
            ear: Ear::new(said),
        })
    }

    /// The cluster as a node sees it.
    fn seen_by(&self, nth: usize) -> Result<Vec<Seen>, String> {
        let nodes = query(self.cluster.port(nth), &["CLUSTER", "NODES"])?;
        nodes.lines().map(|line| self.read(line)).collect()
    }

    fn read(&self, line: &str) -> Result<Seen, String> {
        let unclear = || format!("a node says `{line}`");
        let words: Vec<&str> = line.split(' ').collect();
        let [id, _, flags, of, _, _, _, link, rest @ ..] = &words[..] else {
            return Err(unclear());
        };
        let nth = self.ids.iter().position(|known| known == id);
        let nth = nth.ok_or_else(unclear)?;
        let port = self.cluster.port(nth);
        let mut problem = None;
        let wrong = ["fail", "fail?", "handshake", "noaddr"];
        if let Some(flag) = flags.split(',').find(|flag| wrong.contains(flag)) {
            problem = Some(format!("port {port} has the flag `{flag}`"));
        } else if *link != "connected" {
            problem = Some(format!("port {port} is not connected"));
        }
        let mut slots = Vec::new();
        for range in rest {
            if range.starts_with('[') {
                problem = Some(format!("{range} has not arrived"));
                continue;
            }
            slots.push(watch::range(range).ok_or_else(unclear)?);
        }
        Ok(Seen {
            nth,
            id: (*id).to_owned(),
            replica_of: (*of != "-").then(|| (*of).to_owned()),
            slots,
            problem,
        })
    }

    /// The cluster as the first node sees it that answers.
    fn seen(&self) -> Result<Vec<Seen>, String> {
        let mut problem = "nobody answers".to_owned();
        for nth in 0..self.cluster.len() {
            let works = query(self.cluster.port(nth), &["CLUSTER", "INFO"]);
            match works.and_then(|info| Ok((info, self.seen_by(nth)?))) {
                Ok((info, seen)) if info.contains("cluster_state:ok") => return Ok(seen),
                Ok(_) => problem = "no node sees the cluster working".to_owned(),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    fn node(&self, nth: usize) -> Node {
        let port = self.cluster.port(nth);
        Node { nth, port }
    }

    fn fail_over(&mut self, shard: &Shard) -> Result<Done, String> {
        let from = Instant::now();
        let port = shard.replicas[0].port;
        order(port, &["CLUSTER", "FAILOVER"])?;
        let limit = from + TAKEN_OVER_WITHIN;
        let switch = self.ear.switched(from, limit, &shard.replicas);
        let switch = switch.ok_or_else(|| format!("port {port} has not taken over as ordered"))?;
        Ok(Done {
            what: format!("planned failover to port {port}"),
            switch: Some(switch),
            loses_nothing: true,
            outages: vec![shard.lacks(Broken::Primary, from, Some(switch.at))],
            ..Done::default()
        })
    }

    fn move_slot(&self, slot: u16, other: usize, by_key: Option<Duration>) -> Result<Done, String> {
        let begun = Instant::now();
        let seen = self.seen()?;
        let has = |one: &&Seen| one.slots.iter().any(|slots| slots.contains(&slot));
        let from = seen.iter().find(has).ok_or("nobody has the slot")?;
        let others: Vec<&Seen> = seen
            .iter()
            .filter(|one| !one.slots.is_empty() && one.nth != from.nth)
            .collect();
        let to = others[other % others.len()];
        let (source, target) = (self.cluster.port(from.nth), self.cluster.port(to.nth));
        let number = slot.to_string();
        let set = |port, what, id: &str| order(port, &["CLUSTER", "SETSLOT", &number, what, id]);
        set(target, "IMPORTING", &from.id)?;
        set(source, "MIGRATING", &to.id)?;
        let step = by_key.unwrap_or_default() / 40;
        sleep(step * 4);
        // A lock that is released and acquired again in the meantime is created on the target.
        let port = target.to_string();
        loop {
            let keys = order(source, &["CLUSTER", "GETKEYSINSLOT", &number, "1000"])?;
            if keys.is_empty() {
                break;
            }
            for key in keys.split(' ') {
                let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
                plain::query_within(source, &words, ms(6_000))?;
                sleep(step);
            }
        }
        for port in [target, source] {
            set(port, "NODE", &to.id)?;
        }
        for one in seen.iter().filter(|one| !one.slots.is_empty()) {
            let _ = set(self.cluster.port(one.nth), "NODE", &to.id);
        }
        let how = by_key.map_or("immediately", |_| "key by key");
        let moved = Some(Instant::now());
        Ok(Done {
            what: format!("slot {slot} from port {source} to port {target} {how}"),
            outages: vec![Outage::new(Broken::Move, &vec![slot..=slot], begun, moved)],
            ..Done::default()
        })
    }
}

impl Servers for Nodes {
    fn url(&self) -> String {
        self.cluster.url()
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
            Kind::MoveAtOnce,
            Kind::MoveByKey,
            Kind::MoveByKey,
        ]
    }

    fn server(&mut self, nth: usize) -> &mut Server {
        self.cluster.server(nth)
    }

    fn ear(&mut self) -> &mut Ear {
        &mut self.ear
    }

    fn shard(&self, target: usize) -> Result<Shard, String> {
        let seen = self.seen()?;
        let mut primaries: Vec<&Seen> = seen.iter().filter(|one| !one.slots.is_empty()).collect();
        primaries.sort_by_key(|one| one.slots.first().map(|range| *range.start()));
        let primary = primaries[target % primaries.len()];
        let replica = seen
            .iter()
            .find(|one| one.replica_of.as_ref() == Some(&primary.id));
        let replica = replica.ok_or("a primary has no replica")?;
        Ok(Shard {
            primary: self.node(primary.nth),
            replicas: vec![self.node(replica.nth)],
            slots: primary.slots.clone(),
        })
    }

    fn inject_own(&mut self, fault: &Fault, shard: &Shard, slot: u16) -> Result<Done, String> {
        match fault.kind {
            Kind::PlannedFailover => self.fail_over(shard),
            Kind::MoveAtOnce => self.move_slot(slot, fault.other, None),
            Kind::MoveByKey => self.move_slot(slot, fault.other, Some(fault.length)),
            other => Err(format!("a cluster has no {other:?}")),
        }
    }

    fn is_whole(&self) -> Result<(), String> {
        let mut first: Option<Vec<(String, Slots)>> = None;
        for nth in 0..self.cluster.len() {
            let port = self.cluster.port(nth);
            if !query(port, &["CLUSTER", "INFO"])?.contains("cluster_state:ok") {
                return Err(format!("port {port} does not see the cluster working"));
            }
            let mut seen = self.seen_by(nth)?;
            if let Some(problem) = seen.iter().find_map(|one| one.problem.as_ref()) {
                return Err(format!("port {port} says: {problem}"));
            }
            if seen.len() != self.cluster.len() {
                return Err(format!("port {port} knows {} nodes only", seen.len()));
            }
            seen.sort_by_key(|one| one.nth);
            let owners = |one: &Seen| (one.id.clone(), one.slots.clone());
            let owners: Vec<_> = seen.iter().map(owners).collect();
            if first.as_ref().is_some_and(|first| *first != owners) {
                return Err(format!("port {port} has another map than others"));
            }
            first = Some(owners);
            for one in &seen {
                let Some(primary) = &one.replica_of else {
                    continue;
                };
                let primary = self.ids.iter().position(|id| id == primary);
                let primary = self.cluster.port(primary.ok_or("an unknown primary")?);
                if nth == one.nth
                    && let Some(behind) = plain::is_behind(port, primary)
                {
                    return Err(behind);
                }
            }
            let replicas = seen.iter().filter(|one| one.replica_of.is_some()).count();
            if replicas != 3 {
                return Err(format!("port {port} knows {replicas} replicas"));
            }
        }
        Ok(())
    }

    fn routes(&self) -> Result<Vec<(RangeInclusive<u16>, u16)>, String> {
        let mut routes = Vec::new();
        for one in self.seen()? {
            let port = self.cluster.port(one.nth);
            routes.extend(one.slots.into_iter().map(|slots| (slots, port)));
        }
        Ok(routes)
    }

    fn replicas(&self) -> u32 {
        1
    }
}
