//! The same work by more and more tasks, waiters, and held locks. Only the full form has them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use test_support::ms;

use crate::context::{Amount, Context};
use crate::hold::Plan;
use crate::results::Row;
use crate::scenarios::{holders, rounds, spread};
use crate::{herd, sample};

/// Rows of all systems at each of several sizes.
#[derive(Debug, Serialize)]
pub struct Sweep {
    pub name: &'static str,
    /// By size.
    pub points: BTreeMap<usize, Vec<Row>>,
}

impl Sweep {
    /// The systems, in their order.
    pub fn systems(&self) -> Vec<&'static str> {
        let first = self.points.values().next();
        first.into_iter().flatten().map(|row| row.system).collect()
    }

    /// The medians of one system, by size.
    pub fn line(&self, system: &str, figure: &str) -> Vec<(f64, f64)> {
        let at = |(size, rows): (&usize, &Vec<Row>)| {
            let row = rows.iter().find(|row| row.system == system)?;
            Some((*size as f64, row.spread(figure)?.median))
        };
        self.points.iter().filter_map(at).collect()
    }
}

pub const TASKS: &str = "tasks";
pub const WAITERS: &str = "waiters";
pub const HELD: &str = "held";

pub async fn all(context: &Context) -> Vec<Sweep> {
    let begin = Instant::now();
    let mut sweeps = Vec::new();
    let mut points = BTreeMap::new();
    for tasks in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let systems = spread(context, "spread", tasks).await;
        let rows = rounds(context, &systems, Amount::time(SECOND), ROUNDS).await;
        points.insert(tasks, rows);
    }
    sweeps.push(finished(TASKS, points, begin));
    let mut points = BTreeMap::new();
    for waiters in [1, 3, 10, 30, 100, 300, 1_000] {
        let systems = herd::systems(context, waiters).await;
        let rows = rounds(context, &systems, Amount::time(SECOND), ROUNDS).await;
        points.insert(waiters, rows);
    }
    sweeps.push(finished(WAITERS, points, begin));
    let mut points = BTreeMap::new();
    for count in [1, 10, 100, 1_000, 10_000, 50_000] {
        let plan = Plan {
            first: 0,
            count,
            time: ms(5_000),
        };
        let systems = holders(context, plan);
        let mut rows = rounds(context, &systems, Amount::time(SECOND), 1).await;
        in_all(&mut rows, count);
        points.insert(count, rows);
    }
    sweeps.push(finished(HELD, points, begin));
    sweeps
}

/// Memory of all locks together: that of one is lost in what a process does anyway.
fn in_all(rows: &mut [Row], count: usize) {
    for sample in rows.iter_mut().flat_map(|row| row.rounds.iter_mut()) {
        for figure in [sample::HEAP, sample::RSS] {
            if let Some(bytes) = sample.figures.get_mut(figure) {
                *bytes *= count as f64;
            }
        }
    }
}

fn finished(name: &'static str, points: BTreeMap<usize, Vec<Row>>, begin: Instant) -> Sweep {
    println!(
        "sweep of {name} done, {:.0} s after the first",
        begin.elapsed().as_secs_f64()
    );
    Sweep { name, points }
}

const SECOND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
