//! Random calls: what the first copies answer and leave is the same whether second ones follow.

use redis::Value;

use super::{Call, rounded};
use crate::rolls::Rolls;
use crate::server::Control;

/// How many random calls there are.
pub const RANDOM_CALLS: usize = 20_000;
const AT_ONCE: usize = 100;

/// Each is sent once about one lock, and twice about another.
pub struct RandomCalls<'a> {
    pub seed: u64,
    /// The next call: a script and its ARGV.
    pub roll: &'a dyn Fn(&mut Rolls) -> (&'static str, Vec<&'static str>),
    /// The keys of a call about the lock of this name.
    pub keys: &'a dyn Fn(&str, Call<'_>) -> Vec<String>,
    /// The script that reads what a lock has.
    pub look: &'static str,
    /// Milliseconds by which the times in two answers may differ.
    pub slack: i64,
}

/// A call, the answer to its first copy, and what one and two copies have left.
pub struct Sent<'a> {
    pub what: String,
    pub call: Call<'a>,
    pub answer: &'a Value,
    pub once: &'a Value,
    pub twice: &'a Value,
}

impl RandomCalls<'_> {
    pub fn send(&self, control: &mut Control, mut check: impl FnMut(&Sent<'_>)) {
        let mut rolls = Rolls(self.seed);
        for batch in 0..RANDOM_CALLS / AT_ONCE {
            let calls: Vec<_> = (0..AT_ONCE).map(|_| (self.roll)(&mut rolls)).collect();
            let mut pipe = redis::pipe();
            for (script, args) in &calls {
                for (name, copies) in [("once", 1), ("twice", 2)] {
                    for _ in 0..copies {
                        self.add(&mut pipe, name, Call(script, args));
                    }
                    self.add(&mut pipe, name, Call(self.look, &[]));
                }
            }
            let answers: Vec<Value> = pipe
                .query(&mut control.connection)
                .expect("every call is answered");
            for (nth, (answers, (script, args))) in answers.chunks(5).zip(&calls).enumerate() {
                let script_line = script.lines().next();
                let what = format!("call {nth} of batch {batch}: {script_line:?} {args:?}");
                let [answer, once, first, _, twice] = answers else {
                    panic!("{what}: {answers:?}")
                };
                let [shown, of_two] = [answer, first].map(|answer| rounded(answer, self.slack));
                assert_eq!(shown, of_two, "{what}");
                check(&Sent {
                    what,
                    call: Call(script, args),
                    answer,
                    once,
                    twice,
                });
            }
        }
    }

    fn add(&self, pipe: &mut redis::Pipeline, name: &str, call: Call<'_>) {
        let keys = (self.keys)(name, call);
        let command = pipe.cmd("EVAL").arg(call.0).arg(keys.len());
        command.arg(keys).arg(call.1);
    }
}
