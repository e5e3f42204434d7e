//! What did not work when, and for how long the machine itself stood still.

use std::time::{Duration, Instant};

use super::values::{Broken, Outage, all_slots};
use super::{Oracle, Reason};

use redisson_lock::RefusedKind;

impl Oracle {
    /// A fault begins, or everything is whole again.
    pub fn outage(&mut self, now: Instant, begins: bool) {
        match self.faults.last_mut() {
            Some((_, until @ None)) if !begins => *until = Some(now),
            Some((_, None)) => {}
            _ if begins => self.faults.push((now, None)),
            _ => {}
        }
        if !begins {
            for outage in &mut self.outages {
                outage.until.get_or_insert(now);
            }
        }
    }

    pub fn broken(&mut self, outage: Outage) {
        self.outages.push(outage);
    }

    pub fn stalled(&mut self, ended: Instant, stall: Duration) {
        if stall > STALL_MIN {
            self.stalls.push((ended, stall));
        }
        if stall >= FREEZE_MIN {
            // No server answered meanwhile.
            let begun = ended - stall;
            self.broken(Outage::new(
                Broken::Cluster,
                &all_slots(),
                begun,
                Some(ended),
            ));
        }
    }

    /// For how long the machine stood still in between. Of what may come from a load no more than a second is believed.
    pub(super) fn stood_still(&self, from: Instant, until: Instant) -> Duration {
        let stalls = self.stalls.iter().rev();
        let stalls = stalls
            .take_while(|(ended, _)| *ended >= from)
            .filter(|(ended, stall)| *ended - *stall <= until)
            .map(|(_, stall)| *stall);
        let (frozen, short): (Vec<_>, Vec<_>) = stalls.partition(|stall| *stall >= FREEZE_MIN);
        let short: Duration = short.into_iter().sum();
        frozen.into_iter().sum::<Duration>() + short.min(STALLS_MAX)
    }

    /// A call that failed then needs one of these shortly before: how long before, at least.
    pub(super) fn explains(&self, lock: usize, reason: Reason, at: Instant) -> Option<Duration> {
        let could = |broken| match reason {
            Reason::NoAnswer | Reason::Refused(RefusedKind::ClusterDown) => {
                broken != Broken::Replicas
            }
            Reason::Refused(
                RefusedKind::ReadOnly | RefusedKind::Loading | RefusedKind::MasterDown,
            ) => broken == Broken::Primary,
            Reason::TooFewReplicas => self.locks[lock].synced,
            Reason::Refused(_) | Reason::Lost(_) | Reason::Other => false,
        };
        let outages = self.outages_of(lock);
        let outages = outages.filter(|one| could(one.broken) && at >= one.from);
        let behind = outages.filter_map(|outage| {
            let until = outage.until.unwrap_or(at);
            // The call waited for one before it, and for its own answer.
            let over = until + self.terms.reported_within + self.terms.command_timeout * 2;
            let over = over + self.stood_still(until, at);
            (at <= over).then(|| at.saturating_duration_since(until))
        });
        behind.min()
    }

    /// For how long nobody could renew a lock in between, or its replicas did not confirm it.
    pub(super) fn out(&self, lock: usize, from: Instant, until: Instant) -> Duration {
        let keeps_from = |outage: &&Outage| match outage.broken {
            Broken::Primary | Broken::Cluster => true,
            Broken::Replicas | Broken::Move => self.locks[lock].synced,
        };
        let spans = self.outages_of(lock).filter(keeps_from);
        let spans = spans.map(|outage| (outage.from, outage.until));
        covered(spans.collect(), from, until)
    }

    /// For how long something, wherever, was not whole in between.
    pub(super) fn not_whole(&self, from: Instant, until: Instant) -> Duration {
        covered(self.faults.clone(), from, until)
    }

    fn outages_of(&self, lock: usize) -> impl Iterator<Item = &Outage> {
        let slot = self.locks[lock].slot;
        let concerns =
            move |outage: &&Outage| outage.slots.iter().any(|slots| slots.contains(&slot));
        self.outages.iter().filter(concerns)
    }
}

/// How much of the time in between is covered, whatever overlaps.
fn covered(mut spans: Vec<(Instant, Option<Instant>)>, from: Instant, until: Instant) -> Duration {
    spans.sort_by_key(|(begin, _)| *begin);
    let mut sum = Duration::ZERO;
    let mut counted = from;
    for (begin, end) in spans {
        let begin = begin.max(counted);
        let end = end.unwrap_or(until).min(until);
        sum += end.saturating_duration_since(begin);
        counted = counted.max(end);
    }
    sum
}

/// A shorter nap is what a busy machine does all the time.
const STALL_MIN: Duration = Duration::from_millis(20);

/// No load keeps a thread that sleeps from running this long: the machine as a whole did not run.
const FREEZE_MIN: Duration = Duration::from_millis(500);

/// A report after that is late, however often the machine stood still.
const STALLS_MAX: Duration = Duration::from_secs(1);
