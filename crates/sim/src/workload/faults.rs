//! What goes wrong in a program, at its moments.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock::LockClient;
use redisson_lock::test_util;
use redisson_lock_test::sim::{Gossip, Keyspace, Latency};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::program::{Fault, KeysMoved, LOCKS, PREFIX, ms};
use super::world::World;

/// Has every fault happen, each at its moment from now on.
pub(crate) async fn happen(
    world: Arc<World>,
    clients: Vec<LockClient>,
    faults: Vec<(u64, Fault)>,
    latency: Latency,
    watchdog_timeout: Duration,
) {
    let mut happening = Happening {
        world,
        clients,
        start: Instant::now(),
        closing: Vec::new(),
        refused: BTreeSet::new(),
    };
    for (at, moment) in moments(faults) {
        tokio::time::sleep_until(happening.start + ms(at)).await;
        match moment {
            Moment::Begins(nth, fault) => happening.begin(nth, fault, watchdog_timeout).await,
            Moment::NoLongerSlow => happening.world.set_latency(latency),
            Moment::Allowed(client, right) => happening.world.deny(client, right, false),
            // The slot may be on its way by another fault.
            Moment::KeysMove(nth, ..) | Moment::Moved(nth, ..)
                if happening.refused.contains(&nth) => {}
            Moment::KeysMove(_, lock, keys) => {
                happening.world.move_keys(LOCKS[lock], |key| keys.has(key));
            }
            Moment::Moved(_, lock, gossip) => happening.world.end_move(LOCKS[lock], gossip),
            Moment::CutOff(node) => _ = happening.world.cut_replica_off(node),
        }
    }
    for closing in happening.closing {
        closing.await.expect("no panic");
    }
}

/// When each fault begins, and when those end that somebody has to end.
fn moments(faults: Vec<(u64, Fault)>) -> Vec<(u64, Moment)> {
    let mut moments = Vec::new();
    for (nth, (at, fault)) in faults.into_iter().enumerate() {
        match fault {
            Fault::Slow { ms: time, .. } => moments.push((at + time, Moment::NoLongerSlow)),
            Fault::Deny {
                client,
                right,
                ms: time,
            } => {
                moments.push((at + time, Moment::Allowed(client, right)));
            }
            Fault::Move {
                lock,
                ms: time,
                gossip_ms,
                new_epoch,
                keys,
                ..
            } => {
                let gossip = Gossip {
                    within: ms(gossip_ms),
                    new_epoch,
                };
                // In this order where they are at the same moment.
                moments.push((at, Moment::Begins(nth, fault)));
                moments.push((at + time / 2, Moment::KeysMove(nth, lock, keys)));
                moments.push((at + time, Moment::Moved(nth, lock, gossip)));
                continue;
            }
            Fault::Promote { from, lag_ms, .. } => {
                moments.push((at.saturating_sub(lag_ms), Moment::CutOff(from)));
            }
            _ => {}
        }
        moments.push((at, Moment::Begins(nth, fault)));
    }
    moments.sort_by_key(|(at, _)| *at);
    moments
}

/// For how long a fault is felt.
fn lasts(fault: &Fault, watchdog_timeout: Duration) -> Duration {
    let time = match *fault {
        Fault::Down { ms: time }
        | Fault::Freeze { ms: time }
        | Fault::Slow { ms: time, .. }
        | Fault::Deny { ms: time, .. }
        | Fault::Deafen { ms: time, .. }
        | Fault::NotServed { ms: time }
        | Fault::StandStill { ms: time } => ms(time),
        Fault::Suspend { ms: time, .. } => SUSPENDED_WITHIN + ms(time),
        Fault::Move {
            ms: time,
            gossip_ms,
            ..
        } => ms(time + gossip_ms),
        // A key that is deleted in silence is found free when the lease that was heard of is over.
        Fault::Wipe => watchdog_timeout,
        _ => Duration::ZERO,
    };
    // Of a message too many nobody has to recover.
    match fault {
        Fault::Noise { .. } => time,
        _ => time + RECOVERY,
    }
}

/// When the next acquire may come whose thread stands still.
const SUSPENDED_WITHIN: Duration = Duration::from_millis(500);

struct Happening {
    world: Arc<World>,
    clients: Vec<LockClient>,
    start: Instant,
    closing: Vec<JoinHandle<()>>,
    /// Slots that did not begin to move, because something else was changing: by number of the fault.
    refused: BTreeSet<usize>,
}

impl Happening {
    async fn begin(&mut self, nth: usize, fault: Fault, watchdog_timeout: Duration) {
        let world = &self.world;
        let now = Instant::now();
        match fault {
            Fault::Promote { stale_ms, .. } => return self.promote(ms(stale_ms)),
            Fault::Move { lock, to, .. } if !world.begin_to_move(LOCKS[lock], to) => {
                self.refused.insert(nth);
                return;
            }
            _ => {}
        }
        let over = now + lasts(&fault, watchdog_timeout);
        world.oracle.fault(|| format!("FAULT {fault:?}"), over);
        match fault {
            Fault::Cut { client, reported } => world.cut(client, reported),
            Fault::Down { ms: time } => world.down_for(ms(time)),
            Fault::Freeze { ms: time } => world.freeze(ms(time)),
            Fault::Restart => world.restart(),
            Fault::Wipe => {
                // A lease may have ended since the oracle last looked.
                world.observe();
                for key in LOCKS {
                    rob(world, key);
                }
                world.with_every_keyspace(Keyspace::clear);
                world.oracle.wiped();
            }
            Fault::FlushScripts => world.flush_scripts(),
            Fault::Slow { latency: slow, .. } => world.set_latency(slow),
            Fault::StandStill { ms: time } => {
                world.oracle.stood_still(ms(time));
                tokio::time::advance(ms(time)).await;
            }
            Fault::Suspend { client, ms: time } => {
                world.suspend(client, SUSPENDED_WITHIN, ms(time));
            }
            Fault::Deny { client, right, .. } => world.deny(client, right, true),
            Fault::Deafen { client, ms: time } => world.deafen(client, ms(time)),
            // They have begun above.
            Fault::Move { .. } | Fault::Promote { .. } => {}
            Fault::NotServed { ms: time } => world.no_slot_is_served_for(ms(time)),
            Fault::Noise { lock } => world.publish(&world.oracle.channel(LOCKS[lock])),
            Fault::EndRuntime { client } => {
                world.oracle.closing(client);
                // Nobody is left to give anything back: the leases do it.
                world.oracle.closed_unconfirmed(client);
                test_util::end_runtime(&self.clients[client]);
            }
            Fault::Close { client, grace_ms } => self.close(client, grace_ms),
        }
    }

    /// Nothing happens where no replica was cut off.
    fn promote(&self, stale: Duration) {
        if let Some(promoted) = self.world.promote(stale, &LOCKS) {
            self.world.oracle.promoted(promoted, stale);
        }
    }

    fn close(&mut self, nth: usize, grace_ms: u64) {
        self.world.oracle.closing(nth);
        let (client, world) = (self.clients[nth].clone(), Arc::clone(&self.world));
        self.closing.push(tokio::spawn(async move {
            let report = client.close(ms(grace_ms)).await;
            if report.unconfirmed > 0 {
                world.oracle.closed_unconfirmed(nth);
            }
            for hold in report.abandoned {
                for prefix in ["", PREFIX] {
                    let key = format!("{prefix}{}", hold.lock);
                    world.oracle.abandoned(key, &hold.owner);
                }
            }
        }));
    }
}

/// Something that happens at its time.
enum Moment {
    Begins(usize, Fault),
    NoLongerSlow,
    Allowed(usize, &'static str),
    /// Keys of a slot that moves.
    KeysMove(usize, usize, KeysMoved),
    /// The slot of this lock has moved.
    Moved(usize, usize, Gossip),
    /// The replica of this node gets nothing any more.
    CutOff(usize),
}

/// The holders of this lock have lost it.
pub(crate) fn rob(world: &World, key: &str) {
    let holders = world.with_home(key, |keyspace| keyspace.holders(key));
    for (field, _) in holders {
        world.oracle.robbed(key, &field);
    }
}

/// A silent connection is found out by a command timeout, and the pause between two attempts to
/// connect grows up to a second.
const RECOVERY: Duration = Duration::from_millis(4_500);
