//! Tasks of this crate and threads of a JVM at one lock, at the same time.

use std::sync::Arc;
use std::time::Duration;

use test_support::ms;

use crate::context::{Amount, Context, Form, Played, System};
use crate::jvm::{self, Redisson};
use crate::looping::{self, Section, Shared, Timed};
use crate::sample::Sample;
use crate::scenario::OURS;
use crate::workers::{self, connect};

pub struct Beside {
    ours: Vec<Arc<workers::Ours>>,
    jvm: Redisson,
}

impl Beside {
    pub async fn open(context: &Context) -> Option<Box<dyn System>> {
        let peer = context.jvm(1, ms(30_000)).await?;
        let lock = connect(&context.server.url()).await.lock(NAME);
        let mut jvm = Redisson::looping(peer, NAME, 1, TASKS, false);
        if context.is_checked() {
            jvm.values.push(("shared", COUNTER.to_owned()));
        }
        Some(Box::new(Self {
            ours: (0..TASKS)
                .map(|_| Arc::new(workers::Ours(lock.clone())))
                .collect(),
            jvm,
        }))
    }

    async fn section(context: &Context) -> Section {
        if !context.is_checked() {
            return Section::new(false, None);
        }
        context.with_control(|control| control.run(&["SET", COUNTER, "0"]));
        let client = redis::Client::open(context.server.url()).expect("a valid address");
        let connection = client.get_multiplexed_async_connection().await;
        let shared = Shared {
            connection: connection.expect("the server answers"),
            key: COUNTER.to_owned(),
        };
        Section::new(true, Some(shared))
    }
}

impl System for Beside {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let section = Self::section(context).await;
            let before = context.scripts();
            let ((ours, took), jvm) = tokio::join!(
                looping::run(&self.ours, amount, Timed::Wait, Some(section)),
                self.jvm.report(context, amount),
            );
            let calls = context.scripts() - before;
            let both = [ours.clone(), jvm.times.clone()].concat();
            if context.is_checked() {
                let counted = context.with_control(|control| control.number(&["GET", COUNTER]));
                context.with_control(|control| control.run(&["DEL", COUNTER]));
                let all: usize = both.iter().map(Vec::len).sum();
                assert_eq!(counted, all as i64, "ours and Java's were in it together");
            }
            let longer = took.max(jvm.took);
            vec![
                (OURS, Sample::of_tasks(ours, took)),
                (jvm::NAME, Sample::of_tasks(jvm.times, jvm.took)),
                (BOTH, Sample::of_tasks(both, longer).with_scripts(calls)),
            ]
        })
    }

    fn warm(&self, form: Form) -> Duration {
        form.warm_jvm()
    }
}

const TASKS: usize = 8;
const NAME: &str = "beside";
/// Looks like no lock.
const COUNTER: &str = "beside:counter";
const BOTH: &str = "both together";
