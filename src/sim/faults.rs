//! What goes wrong in a program, at its moments.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::actors::ms;
use super::java;
use super::network::Latency;
use super::program::{Fault, LOCKS};
use super::server::World;
use crate::client::LockClient;
use crate::redis::Role;

/// Has every fault happen, each at its moment from now on.
pub(super) async fn happen(
    world: Arc<World>,
    clients: Vec<LockClient>,
    faults: Vec<(u64, Fault)>,
    latency: Latency,
) {
    let start = Instant::now();
    let mut faults = faults;
    faults.sort_by_key(|(at, _)| *at);
    let mut closing = Vec::new();
    let mut over = Vec::new();
    for (at, fault) in faults {
        tokio::time::sleep_until(start + ms(at)).await;
        let now = Instant::now();
        let lasts = match fault {
            Fault::Down { ms: time } | Fault::Slow { ms: time, .. } | Fault::Deny { ms: time, .. } => {
                ms(time)
            }
            Fault::Deafen { ms: time, .. } | Fault::StandStill { ms: time } => ms(time),
            _ => Duration::ZERO,
        };
        world.watch.fault(|| format!("FAULT {fault:?}"), now + lasts + RECOVERY);
        match fault {
            Fault::Cut { client, messages, told } => {
                world.cut(client, if messages { Role::Messages } else { Role::Commands }, told);
            }
            Fault::Down { ms: time } => world.down_for(ms(time)),
            Fault::Restart => world.restart(),
            Fault::Wipe => {
                for key in LOCKS {
                    rob(&world, key);
                }
                world.with_keyspace(|keyspace| keyspace.clear());
            }
            Fault::FlushScripts => world.flush_scripts(),
            Fault::Slow { ms: time, latency: slow } => {
                world.set_latency(slow);
                over.push((now + ms(time), End::Slow));
            }
            Fault::StandStill { ms: time } => {
                world.watch.stood_still(ms(time));
                tokio::time::advance(ms(time)).await;
            }
            Fault::Deny { client, right, ms: time } => {
                world.deny(client, right, true);
                over.push((now + ms(time), End::Denied(client, right)));
            }
            Fault::Deafen { client, ms: time } => world.deafen(client, ms(time)),
            Fault::Lag { client } => world.lag(client),
            Fault::Noise { lock } => world.publish(&java::channel(LOCKS[lock])),
            Fault::Close { client: nth, grace_ms } => {
                world.watch.closing(nth);
                let (client, world) = (clients[nth].clone(), Arc::clone(&world));
                closing.push(tokio::spawn(async move {
                    if client.close(ms(grace_ms)).await.unconfirmed > 0 {
                        world.watch.closed_unconfirmed(nth);
                    }
                }));
            }
        }
    }
    over.sort_by_key(|(at, _)| *at);
    for (at, end) in over {
        tokio::time::sleep_until(at).await;
        match end {
            End::Slow => world.set_latency(latency),
            End::Denied(client, right) => world.deny(client, right, false),
        }
    }
    for closing in closing {
        closing.await.expect("no panic");
    }
}

enum End {
    Slow,
    Denied(usize, &'static str),
}

/// Whoever holds this lock has it no more.
pub(super) fn rob(world: &World, key: &str) {
    let holder = world.with_keyspace(|keyspace| keyspace.holder(key).map(|(field, _)| field.to_owned()));
    if let Some(field) = holder {
        world.watch.robbed(key, &field);
    }
}

/// A silent connection is found out by a command timeout, and the pause between two attempts to connect grows up to
/// a second.
const RECOVERY: Duration = Duration::from_millis(4_500);
