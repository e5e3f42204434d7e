//! The systems of each scenario, and how they are played: by turns, round by round.

use std::time::Duration;

use redisson_lock::LockClient;
use test_support::ms;

use crate::bare::{BareFred, BareRedis};
use crate::beside::Beside;
use crate::context::{Amount, Context, Form, System};
use crate::herd::{PASS_FRED, PASS_REDIS};
use crate::hold::{self, Plan};
use crate::jvm::Redisson;
use crate::looping::Looping;
use crate::results::{Outcome, Row};
use crate::sample::Sample;
use crate::scenario::{FRED, FRED_DEFAULT, MORE_CONNECTIONS, OURS, REDIS, RSLOCK, Scenario, own};
use crate::workers::{self, BarePair, Pass, Rslock, connect};
use crate::{fair, far, handoff, herd, readers};

/// How much each system does in a round.
fn amount(scenario: &str, form: Form) -> Amount {
    let seconds = |full, quick| Amount::time(form.pick(ms(full), ms(quick), ms(100)));
    match scenario {
        "contend16" | "contend4x4" => Amount {
            // 100,000 in all rounds.
            at_least: form.pick(100_000 / form.rounds() as u64, 0, 0),
            ..seconds(10_000, 800)
        },
        "beside-jvm" => seconds(10_000, 1_500),
        "handoff" => seconds(4_000, 500),
        _ => seconds(4_000, 800),
    }
}

fn held(count: usize, form: Form) -> Plan {
    let count = form.pick(count, count, count / 50);
    // For its counts: long enough for a lock that is not renewed to be lost.
    let moment = hold::WATCHDOG + ms(1_000);
    Plan::of(count, form.pick(ms(10_000), hold::WATCHDOG, moment))
}

/// The systems that can do the work of a scenario, connected.
async fn systems(scenario: &str, context: &Context) -> Vec<Box<dyn System>> {
    match scenario {
        "solo" => spread(context, "solo", 1).await,
        "spread64" => {
            let mut systems = spread(context, "spread", 64).await;
            for (connections, name) in MORE_CONNECTIONS {
                systems.push(several(context, 64, connections, name).await);
            }
            systems
        }
        "far1" => far(context, 1, ms(1)).await,
        "far8" => far(context, 8, ms(1)).await,
        "farther1" => far(context, 1, ms(10)).await,
        "farther64" => far(context, 64, ms(10)).await,
        "contend16" => contend16(context).await,
        "contend4x4" => contend4x4(context).await,
        "beside-jvm" => Beside::open(context).await.into_iter().collect(),
        "handoff" => {
            let mut systems = vec![handoff::Ours::open(context).await];
            systems.extend(handoff::InJvm::open(context).await);
            systems.push(handoff::Bare::open(context).await);
            systems.push(handoff::Bare::open_relayed(context).await);
            systems
        }
        "herd1000" => herd::systems(context, 1_000).await,
        "fair16" => fair::systems(context, 16).await,
        "readers16" => readers::systems(context, 16, 2).await,
        "hold10k" => holders(context, held(10_000, context.form)),
        "hold50k" => holders(context, held(50_000, context.form)),
        other => unreachable!("{other} is none of the list"),
    }
}

/// A lock of its own for each of this many tasks.
pub async fn spread(context: &Context, name: &'static str, tasks: usize) -> Vec<Box<dyn System>> {
    let key = |task: usize| format!("{name}:{task}");
    let client = connect(&context.server.url()).await;
    let ours = (0..tasks).map(|task| workers::Ours(client.lock(key(task))));
    let mut systems = vec![Looping::apart(OURS, ours.collect())];
    if let Some(peer) = context.jvm(1, ms(30_000)).await {
        systems.push(Box::new(Redisson::looping(peer, name, 1, tasks, true)));
    }
    let manager = rslock::LockManager::new(vec![context.server.url()]);
    let others = (0..tasks).map(|task| Rslock {
        manager: manager.clone(),
        name: key(task),
    });
    systems.push(Looping::apart(RSLOCK, others.collect()));
    let fred = BareFred::connect(context).await;
    let pairs = (0..tasks).map(|task| BarePair::new(&fred, key(task), task));
    systems.push(Looping::apart(FRED, pairs.collect()));
    if tasks > 1 {
        let fred = BareFred::connect_with_defaults(context, &context.server.url()).await;
        let pairs = (0..tasks).map(|task| BarePair::new(&fred, key(task), task));
        systems.push(Looping::apart(FRED_DEFAULT, pairs.collect()));
    }
    let redis = BareRedis::connect(context).await;
    let pairs = (0..tasks).map(|task| BarePair::new(&redis, key(task), task));
    systems.push(Looping::apart(REDIS, pairs.collect()));
    systems
}

/// Locks of their own over several connections.
async fn several(
    context: &Context,
    tasks: usize,
    connections: usize,
    name: &'static str,
) -> Box<dyn System> {
    let builder = LockClient::builder().connections(connections);
    let client = builder.connect(&context.server.url()).await;
    let client = client.expect("the server answers");
    let ours = (0..tasks).map(|task| workers::Ours(client.lock(format!("spread:{task}"))));
    Looping::apart(name, ours.collect())
}

/// Locks of their own at a server that is this round trip away.
async fn far(context: &Context, tasks: usize, round_trip: Duration) -> Vec<Box<dyn System>> {
    let key = |task: usize| format!("far:{task}");
    let port = far::away(context.server.port, round_trip);
    let url = format!("redis://127.0.0.1:{port}");
    let client = connect(&url).await;
    let ours = (0..tasks).map(|task| workers::Ours(client.lock(key(task))));
    let mut systems = vec![Looping::apart(OURS, ours.collect())];
    let floors = [
        (FRED, BareFred::connect_to(context, &url).await),
        (
            FRED_DEFAULT,
            BareFred::connect_with_defaults(context, &url).await,
        ),
    ];
    for (name, fred) in floors {
        let pairs = (0..tasks).map(|task| BarePair::new(&fred, key(task), task));
        systems.push(Looping::apart(name, pairs.collect()));
    }
    systems
}

async fn contend16(context: &Context) -> Vec<Box<dyn System>> {
    let (name, tasks) = ("contend", 16);
    let lock = connect(&context.server.url()).await.lock(name);
    let ours = (0..tasks).map(|_| workers::Ours(lock.clone()));
    let mut systems = vec![Looping::contending(OURS, ours.collect())];
    if let Some(peer) = context.jvm(1, ms(30_000)).await {
        systems.push(Box::new(Redisson::looping(
            peer,
            &own(name, "jvm"),
            1,
            tasks,
            false,
        )));
    }
    let manager = rslock::LockManager::new(vec![context.server.url()]);
    let others = (0..tasks).map(|_| Rslock {
        manager: manager.clone(),
        name: own(name, "rslock"),
    });
    systems.push(Looping::contending(RSLOCK, others.collect()));
    let fred = Pass::new(&BareFred::connect(context).await, &own(name, "fred"), tasks);
    systems.push(Looping::contending(PASS_FRED, vec![fred]));
    let redis = Pass::new(
        &BareRedis::connect(context).await,
        &own(name, "redis-rs"),
        tasks,
    );
    systems.push(Looping::contending(PASS_REDIS, vec![redis]));
    systems
}

async fn contend4x4(context: &Context) -> Vec<Box<dyn System>> {
    let (name, clients, tasks) = ("contend", 4, 4);
    let mut ours = Vec::new();
    for _ in 0..clients {
        let lock = connect(&context.server.url()).await.lock(name);
        ours.extend((0..tasks).map(|_| workers::Ours(lock.clone())));
    }
    let mut systems = vec![Looping::contending(OURS, ours)];
    if let Some(peer) = context.jvm(clients, ms(30_000)).await {
        let redisson = Redisson::looping(peer, &own(name, "jvm"), clients, tasks, false);
        systems.push(Box::new(redisson));
    }
    systems
}

pub fn holders(context: &Context, plan: Plan) -> Vec<Box<dyn System>> {
    let mut systems: Vec<Box<dyn System>> = vec![Box::new(hold::Ours(plan))];
    if context.with_java() {
        systems.push(Box::new(hold::InJvm(plan)));
    }
    systems
}

/// Plays a scenario to its end.
pub async fn play(scenario: &Scenario, context: &Context) -> Outcome {
    let amount = amount(scenario.name, context.form);
    let systems = systems(scenario.name, context).await;
    let rows = rounds(context, &systems, amount, context.form.rounds()).await;
    Outcome {
        scenario: *scenario,
        rows,
    }
}

/// The rounds in which each system plays once, so that whatever else the machine does meets all
/// of them.
pub async fn rounds(
    context: &Context,
    systems: &[Box<dyn System>],
    amount: Amount,
    rounds: usize,
) -> Vec<Row> {
    for system in systems {
        warm(context, system.as_ref()).await;
    }
    let mut played: Vec<Vec<(&'static str, Sample)>> = Vec::new();
    for round in 0..rounds {
        for system in order(round, systems.len()) {
            // What the one before still does in the background, a JVM above all, keeps the cores awake,
            // and a call that wakes nobody is several times as fast.
            tokio::time::sleep(context.form.pick(ms(300), ms(200), ms(0))).await;
            let samples = systems[system].play(context, amount).await;
            clear(context, samples[0].0).await;
            played.push(samples);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for (name, sample) in played.into_iter().flatten() {
        match rows.iter_mut().find(|row| row.system == name) {
            Some(row) => row.rounds.push(sample),
            None => rows.push(Row {
                system: name,
                rounds: vec![sample],
            }),
        }
    }
    rows
}

/// A row of a Williams square: another one begins each time, and comes directly after another one.
fn order(round: usize, systems: usize) -> Vec<usize> {
    // 0, 1, n-1, 2, n-2, …: the differences between neighbours are all different if n is even, and
    // each is there twice if it is odd.
    let zigzag = (0..systems).map(|step| match step % 2 {
        0 => systems - step / 2,
        _ => step / 2 + 1,
    });
    zigzag.map(|number| (number + round) % systems).collect()
}

async fn warm(context: &Context, system: &dyn System) {
    let (begin, time) = (std::time::Instant::now(), system.warm(context.form));
    while let Some(left) = left(time, begin.elapsed()) {
        let samples = system.play(context, Amount::time(left)).await;
        clear(context, samples[0].0).await;
    }
}

/// Some work has a length of its own: it is repeated until the time is over.
fn left(time: Duration, elapsed: Duration) -> Option<Duration> {
    time.checked_sub(elapsed).filter(|left| *left > ms(5))
}

/// What passes a lock on never gives it back; all others leave nothing.
async fn clear(context: &Context, name: &str) {
    if name == PASS_FRED || name == PASS_REDIS {
        context.with_control(|control| control.run(&["FLUSHDB"]));
    }
    context.empty(name).await;
}

#[cfg(test)]
mod tests {
    use super::order;

    /// Who plays before each, and before the first nobody, in each of n rounds.
    fn before(systems: usize) -> Vec<Vec<Option<usize>>> {
        let rounds = (0..systems).map(|round| order(round, systems));
        let mut before = vec![Vec::new(); systems];
        for order in rounds {
            let mut last = None;
            for system in order {
                before[system].push(last.replace(system));
            }
        }
        before
    }

    #[test]
    fn all_play_in_each_round_and_each_begins_once() {
        for systems in 1..=9 {
            for before in before(systems) {
                assert_eq!(before.len(), systems);
                let begins = before.iter().filter(|before| before.is_none());
                assert_eq!(begins.count(), 1, "of {systems}: {before:?}");
            }
        }
    }

    #[test]
    fn nobody_comes_after_the_same_one_again_and_again() {
        for systems in 1..=9 {
            let at_most = 1 + systems % 2;
            for before in before(systems) {
                for other in 0..systems {
                    let times = before.iter().filter(|before| **before == Some(other));
                    assert!(times.count() <= at_most, "of {systems}: {before:?}");
                }
            }
        }
    }
}
