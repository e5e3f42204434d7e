//! The faults that are the same for every topology.

use std::thread::sleep;
use std::time::{Duration, Instant};

use test_support::ms;

use crate::faults::{Done, Fault, Kind, Servers, Shard, primaries};
use crate::oracle::{Broken, Outage, all_slots};
use crate::plain::order;
use crate::watch::Switch;

impl dyn Servers {
    /// Does what the fault says, up to a takeover if there is one.
    pub fn inject(&mut self, fault: &Fault, slot: u16) -> Result<Done, String> {
        let shard = self.shard(fault.target)?;
        match fault.kind {
            Kind::Kill => self.kill(&shard, None),
            Kind::KillUnreplicated => self.kill(&shard, Some(ms(200) + fault.length / 5)),
            Kind::Stop => Ok(self.stop(&shard, fault.length)),
            Kind::CutReplicas => self.cut_replicas(),
            Kind::StopReplica => Ok(self.stop_replica(&shard, fault)),
            Kind::PlannedFailover | Kind::MoveAtOnce | Kind::MoveByKey | Kind::StopSentinel => {
                self.inject_own(fault, &shard, slot)
            }
        }
    }

    fn take_over(&mut self, shard: &Shard, from: Instant, limit: Instant) -> Option<Switch> {
        self.ear().switched(from, limit, &shard.replicas)
    }

    fn kill(&mut self, shard: &Shard, unreplicated: Option<Duration>) -> Result<Done, String> {
        let port = shard.primary.port;
        let from = Instant::now();
        if let Some(length) = unreplicated {
            for replica in &shard.replicas {
                self.server(replica.nth).pause();
            }
            order(port, &["CLIENT", "KILL", "TYPE", "replica"])?;
            sleep(length);
        }
        let killed = Instant::now();
        self.server(shard.primary.nth).kill();
        if unreplicated.is_some() {
            for replica in &shard.replicas {
                self.server(replica.nth).resume();
            }
        }
        let switch = self.take_over(shard, from, Instant::now() + TAKEN_OVER_WITHIN);
        let switch = switch.ok_or_else(|| format!("no replica has taken over from port {port}"))?;
        let how = unreplicated.map_or("", |_| ", the last holds unreplicated");
        Ok(Done {
            what: format!("port {port} killed{how}"),
            switch: Some(switch),
            dead: Some(shard.primary),
            outages: vec![
                shard.lacks(Broken::Primary, killed, Some(switch.at)),
                shard.lacks(Broken::Replicas, from, None),
            ],
            ..Done::default()
        })
    }

    fn stop(&mut self, shard: &Shard, length: Duration) -> Done {
        let primary = shard.primary;
        let from = Instant::now();
        self.server(primary.nth).pause();
        let mut switch = self.take_over(shard, from, from + length);
        sleep((from + length).saturating_duration_since(Instant::now()));
        self.server(primary.nth).resume();
        let resumed = Instant::now();
        if switch.is_none() && length > ms(600) {
            // An election may be under way, or the sentinels may have agreed already.
            switch = self.take_over(shard, from, resumed + ms(3_000));
        }
        let until = switch.map_or(resumed, |switch| switch.at);
        Done {
            what: format!("port {} stopped for {length:?}", primary.port),
            switch,
            outages: vec![shard.lacks(Broken::Primary, from, Some(until))],
            ..Done::default()
        }
    }

    fn cut_replicas(&self) -> Result<Done, String> {
        let from = Instant::now();
        for port in primaries(&self.routes()?) {
            order(port, &["CLIENT", "KILL", "TYPE", "replica"])?;
        }
        Ok(Done {
            what: "every primary cuts its replicas".to_owned(),
            outages: vec![Outage::new(Broken::Replicas, &all_slots(), from, None)],
            ..Done::default()
        })
    }

    fn stop_replica(&mut self, shard: &Shard, fault: &Fault) -> Done {
        let replica = shard.replicas[fault.target % shard.replicas.len()];
        let from = Instant::now();
        self.server(replica.nth).pause();
        sleep(fault.length);
        self.server(replica.nth).resume();
        let (port, length) = (replica.port, fault.length);
        Done {
            what: format!("the replica at port {port} stopped for {length:?}"),
            outages: vec![shard.lacks(Broken::Replicas, from, None)],
            ..Done::default()
        }
    }
}

/// A replica that has not taken over by then never will.
pub const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(30);
