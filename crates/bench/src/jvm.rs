//! Redisson inside a JVM: the same work, done and timed over there.

use std::time::Duration;

use serde_json::Value;
use test_support::peer::Peer;

use crate::context::{Amount, Context, Form, Played, System};
use crate::looping::check;
use crate::sample::Sample;

pub const NAME: &str = "Redisson 4.7.0";

/// A JVM with the work that it is given each round.
#[derive(Clone)]
pub struct Redisson {
    pub peer: Peer,
    /// `work` and what it needs; `src/main/java/Bench.java` has the list.
    pub values: Vec<(&'static str, String)>,
    pub tasks: usize,
    /// Whether all threads take the same lock, and lose additions if two have it.
    pub one_lock: bool,
    /// The first of the threads, which only read.
    pub readers: usize,
}

/// What a round inside a JVM has shown.
pub struct Report {
    pub times: Vec<Vec<u64>>,
    pub took: Duration,
}

pub async fn call(peer: &Peer, values: &[(&str, String)]) -> Value {
    let answer = peer.call("bench", values).await;
    answer.unwrap_or_else(|(kind, text)| panic!("in the JVM: {kind} {text}"))
}

impl Redisson {
    /// Work with one lock or with locks apart, by this many threads of each client.
    pub fn looping(peer: Peer, name: &str, clients: usize, threads: usize, own: bool) -> Self {
        let clients: Vec<String> = (1..=clients).map(|client| client.to_string()).collect();
        let mut values = vec![
            ("work", "loop".to_owned()),
            ("clients", clients.join(",")),
            ("threads", threads.to_string()),
            ("name", name.to_owned()),
        ];
        if own {
            values.push(("own", "true".to_owned()));
        }
        Self {
            peer,
            values,
            tasks: clients.len() * threads,
            one_lock: !own,
            readers: 0,
        }
    }

    /// Work with a lock of this kind, as `Bench.java` names it.
    pub fn of_kind(mut self, kind: &str) -> Self {
        self.values.push(("kind", kind.to_owned()));
        self
    }

    /// Of all threads the first that many read, and the others write.
    pub fn with_readers(mut self, readers: usize) -> Self {
        self.values.push(("readers", readers.to_string()));
        Self { readers, ..self }
    }

    pub async fn report(&self, context: &Context, amount: Amount) -> Report {
        let mut values = self.values.clone();
        values.push(("millis", amount.time.as_millis().to_string()));
        values.push(("atleast", amount.at_least.to_string()));
        if context.is_checked() {
            values.push(("checked", "true".to_owned()));
        }
        let answer = call(&self.peer, &values).await;
        let numbers = |key: &str| -> Vec<u64> {
            let list = answer[key].as_array().expect("a list");
            list.iter().filter_map(Value::as_u64).collect()
        };
        let (counts, waits) = (numbers("counts"), numbers("waits"));
        assert_eq!(counts.iter().sum::<u64>(), waits.len() as u64);
        let mut rest = waits.as_slice();
        let times: Vec<Vec<u64>> = counts
            .iter()
            .map(|count| {
                let (own, others) = rest.split_at(*count as usize);
                rest = others;
                own.to_vec()
            })
            .collect();
        if self.one_lock {
            let counted = answer["counter"].as_u64();
            let all: u64 = counts[self.readers..].iter().sum();
            assert_eq!(
                counted,
                Some(all),
                "two threads were in the section together"
            );
        }
        check(&times, self.tasks);
        Report {
            times,
            took: Duration::from_nanos(answer["nanos"].as_u64().expect("a number")),
        }
    }
}

impl System for Redisson {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let before = context.scripts();
            let report = self.report(context, amount).await;
            let calls = context.scripts() - before;
            let sample = Sample::of_readers(self.readers, report.times, report.took);
            let sample = sample.with_scripts(calls);
            vec![(NAME, sample)]
        })
    }

    fn warm(&self, form: Form) -> Duration {
        form.warm_jvm()
    }
}
