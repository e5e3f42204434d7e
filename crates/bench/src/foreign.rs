//! What hand-over costs somebody else: eight tasks of one client never leave a lock alone, and one
//! task of another client wants it too.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock::{HandOver, LockClient};

use crate::context::{Amount, Context, Played, System};
use crate::looping::{self, Section, Timed};
use crate::sample::Sample;
use crate::workers::{self, connect};

pub struct Foreign {
    /// The tasks of the one client, and the task of the other.
    workers: Vec<Arc<workers::Ours>>,
}

impl Foreign {
    /// The eight hand the lock over so often in a row; 0 is never.
    pub async fn open(context: &Context, passes: u32) -> Box<dyn System> {
        let handover = HandOver {
            passes,
            // The number alone is the bound.
            for_at_most: Duration::from_secs(1),
        };
        let url = context.server.url();
        let connected = LockClient::builder().handover(handover).connect(&url).await;
        let lock = connected.expect("the server answers").lock(NAME);
        let mut workers: Vec<_> = (0..TASKS)
            .map(|_| Arc::new(workers::Ours(lock.clone())))
            .collect();
        let other = connect(&url).await.lock(NAME);
        workers.push(Arc::new(workers::Ours(other)));
        Box::new(Self { workers })
    }
}

impl System for Foreign {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let section = Section::new(context.is_checked(), None);
            let (mut times, took) =
                looping::run(&self.workers, amount, Timed::Wait, Some(section)).await;
            let other = times.split_off(TASKS);
            vec![
                (OTHER, Sample::of_tasks(other, took)),
                (TOGETHER, Sample::of_tasks(times, took)),
            ]
        })
    }
}

const TASKS: usize = 8;
const NAME: &str = "foreign";
pub const OTHER: &str = "a waiter of another client";
pub const TOGETHER: &str = "eight of one client";
