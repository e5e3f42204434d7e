//! What keeps each rate from being higher, from the figures of the same run.

use crate::fair::TURNS;
use crate::handoff;
use crate::herd::PASS_FRED;
use crate::jvm;
use crate::readers::ALONE;
use crate::results::{Outcome, number};
use crate::sample::{self, Spread};
use crate::scenario::{FRED, FRED_DEFAULT, MORE_CONNECTIONS, OURS, REDIS};

/// The text after the results; a paragraph whose scenario was not played is left out.
pub fn text(outcomes: &[Outcome]) -> String {
    let run = Run(outcomes);
    let paragraphs = [
        run.bounded_by_floors(),
        run.one_at_a_time(),
        run.woken(),
        run.busy(),
        run.far(),
        run.connections(),
    ];
    joined(HEAD, paragraphs)
}

/// The same for the scenarios that have a part of their own.
pub fn of_kinds(outcomes: &[Outcome]) -> String {
    let run = Run(outcomes);
    joined("", [run.turns(), run.readers()])
}

fn joined(head: &str, paragraphs: impl IntoIterator<Item = Option<String>>) -> String {
    let paragraphs: Vec<String> = paragraphs.into_iter().flatten().collect();
    if paragraphs.is_empty() {
        return String::new();
    }
    format!("{head}{}\n", paragraphs.join("\n\n"))
}

struct Run<'a>(&'a [Outcome]);

impl Run<'_> {
    fn outcome(&self, scenario: &str) -> Option<&Outcome> {
        self.0
            .iter()
            .find(|outcome| outcome.scenario.name == scenario)
    }

    fn figure(&self, scenario: &str, system: &str, figure: &str) -> Option<f64> {
        let row = self.outcome(scenario)?.row(system)?;
        Some(row.spread(figure)?.median)
    }

    fn ratio(&self, scenario: &str, systems: [&str; 2], figure: &str) -> Option<f64> {
        let outcome = self.outcome(scenario)?;
        let [one, other] = systems.map(|system| outcome.row(system));
        Some(Spread::of(Outcome::ratios_of(one?, other?, figure))?.median)
    }

    /// Processor time per acquisition in µs: the client's own, the kernel's for it, the server's.
    fn time(&self, scenario: &str, system: &str) -> Option<[f64; 3]> {
        let figure = |figure| self.figure(scenario, system, figure);
        Some([
            figure(sample::CLIENT)?,
            figure(sample::KERNEL)?,
            figure(sample::SERVER)?,
        ])
    }

    /// What a lock that cost nothing would have of Redisson's rate.
    fn bounded_by_floors(&self) -> Option<String> {
        let bounds = [
            ("solo", FRED),
            ("spread64", FRED_DEFAULT),
            ("contend16", PASS_FRED),
            ("herd1000", PASS_FRED),
        ];
        let bounds = bounds.map(|(scenario, floor)| {
            let systems = [floor, jvm::NAME];
            let ratio = self.ratio(scenario, systems, sample::PER_SECOND)?;
            Some(format!("`{scenario}` {}", number(ratio, 2)))
        });
        let bounds: Option<Vec<String>> = bounds.into_iter().collect();
        Some(format!(
            "**The floors bound the ratios to Redisson.** A lock that cost nothing would reach, of Redisson's rate in the \
             same round: {}. Client and server share two cores, and one script call costs most of an acquisition.",
            bounds?.join(", ")
        ))
    }

    /// What lies between the message and the call of the waiter.
    fn woken(&self) -> Option<String> {
        let [ours, bare, relayed] = [OURS, handoff::BARE, handoff::RELAYED]
            .map(|system| self.figure("handoff", system, sample::P50));
        let relay = self.ratio("handoff", [handoff::RELAYED, handoff::BARE], sample::P50)?;
        let rest = self.ratio("handoff", [OURS, handoff::RELAYED], sample::P50)?;
        Some(format!(
            "**Asleep between two calls** (`handoff`). {} µs, the floor {}. The floor's waiter reads the message itself; \
             with a task that reads for many waiters and wakes them, as in a client, the floor needs {}, {} times as much. \
             Ours needs {} times that.",
            number(ours?, 0),
            number(bare?, 0),
            number(relayed?, 0),
            number(relay, 2),
            number(rest, 2),
        ))
    }

    fn one_at_a_time(&self) -> Option<String> {
        let [client, kernel, server] = self.time("solo", OURS)?;
        let [bare, bare_kernel, bare_server] = self.time("solo", FRED)?;
        let pair = 1e6 / self.figure("solo", OURS, sample::PER_SECOND)?;
        let share = |part: f64| number(part / pair * 100.0, 0);
        let own = |scenario, floor| {
            let [own, floor] = [self.time(scenario, OURS)?, self.time(scenario, floor)?];
            Some(format!(
                "`{scenario}` {} and {}",
                number(own[0], 0),
                number(floor[0], 0)
            ))
        };
        let others = [
            own("contend16", PASS_FRED),
            own("herd1000", PASS_FRED),
            own("handoff", handoff::BARE),
        ];
        let others: Vec<String> = others.into_iter().flatten().collect();
        Some(format!(
            "**One call at a time** (`solo`, `contend16`, `handoff`, `herd1000`). A lock/unlock cycle in `solo` takes {} \
             µs. The client computes for {} % of that, the kernel for it for {} %, the server with its kernel for {} %; in \
             the remaining {} %, or more, one side waits for the other to wake. µs of client, kernel and server: ours {}, \
             {} and {}, the bare client {}, {} and {}. The client's own µs per acquisition elsewhere, ours and the floor's: \
             {}.",
            number(pair, 0),
            share(client),
            share(kernel),
            share(server),
            share(pair - client - kernel - server),
            number(client, 0),
            number(kernel, 0),
            number(server, 0),
            number(bare, 0),
            number(bare_kernel, 0),
            number(bare_server, 0),
            others.join(", "),
        ))
    }

    fn busy(&self) -> Option<String> {
        let sum = |system| Some(self.time("spread64", system)?.iter().sum::<f64>());
        let [ours, same, default, redis] = [OURS, FRED, FRED_DEFAULT, REDIS].map(sum);
        let cores = self.figure("spread64", OURS, sample::CORES)?;
        let ratio = |systems| self.ratio("spread64", systems, sample::PER_SECOND);
        Some(format!(
            "**Many concurrent calls** (`spread64`). {} cores are in use, and a cycle costs {} µs of them; with the bare \
             client and the same socket settings {}, with fred's own {}, with redis-rs {}. The second and the third differ \
             in `TCP_NODELAY` alone: with it each command is a write of its own, because fred flushes after each script \
             call. The second reaches {} of the rate of the third, round by round, as a lock that cost nothing would; ours \
             reaches {} of the rate of the second.",
            number(cores, 2),
            number(ours?, 0),
            number(same?, 0),
            number(default?, 0),
            number(redis?, 0),
            number(ratio([FRED, FRED_DEFAULT])?, 2),
            number(ratio([OURS, FRED])?, 2),
        ))
    }

    fn far(&self) -> Option<String> {
        let ratio = self.ratio("far8", [OURS, FRED_DEFAULT], sample::PER_SECOND)?;
        Some(format!(
            "**A remote server** (`far8`). With `TCP_NODELAY` eight tasks a millisecond away get {} times the rate of the \
             floor with fred's own sockets, where a small write waits for the reply to the one before.",
            number(ratio, 2)
        ))
    }

    /// What lies between two owners of a fair lock.
    fn turns(&self) -> Option<String> {
        let bound = self.ratio("fair16", [TURNS, jvm::NAME], sample::PER_SECOND)?;
        let ours = self.ratio("fair16", [OURS, TURNS], sample::PER_SECOND)?;
        let turn = self.figure("fair16", TURNS, sample::P50)?;
        let calls = |system| self.figure("fair16", system, sample::SCRIPTS);
        let [our_calls, its_calls] = [calls(OURS)?, calls(TURNS)?];
        let [client, kernel, server] = self.time("fair16", OURS)?;
        let [bare, bare_kernel, bare_server] = self.time("fair16", TURNS)?;
        Some(format!(
            "**One turn after another** (`fair16`). A release, its message and the next owner's acquisition follow one \
             another, two round trips, and the call with which the last owner queues up comes beside them: {} µs with a \
             bare client, which has {} times Redisson's rate, the most that a fair lock which cost nothing would have. Ours \
             has {} of the bare client's rate, with {} script calls for each acquisition and not {}, because a call that \
             waits attempts again when it has subscribed. µs of client, kernel and server: ours {}, {} and {}, the bare \
             client {}, {} and {}.",
            number(turn, 0),
            number(bound, 2),
            number(ours, 2),
            number(our_calls, 2),
            number(its_calls, 2),
            number(client, 0),
            number(kernel, 0),
            number(server, 0),
            number(bare, 0),
            number(bare_kernel, 0),
            number(bare_server, 0),
        ))
    }

    /// What readers cost that no writer keeps out.
    fn readers(&self) -> Option<String> {
        let bound = self.ratio("readers16", [ALONE, jvm::NAME], sample::READS)?;
        let ours = self.ratio("readers16", [OURS, ALONE], sample::READS)?;
        let [.., server] = self.time("readers16", ALONE)?;
        let cores = self.figure("readers16", ALONE, sample::CORES)?;
        let waits = [OURS, jvm::NAME].map(|system| {
            let micros = self.figure("readers16", system, sample::WRITE_P50)?;
            Some(number(micros / 1e3, 1))
        });
        let [our_wait, its_wait] = waits;
        Some(format!(
            "**Readers beside each other** (`readers16`). Without writers, a bare client has {} times Redisson's rate of \
             reads, with {} cores in use; {} µs of a read are the server's, whose script looks at the keys of all readers \
             when one leaves. Ours, with the two writers, has {} of the bare client's rate. A writer needs a moment in which \
             none reads: half of our writers wait for less than {} ms, of Redisson's {} ms, and a round ends after 4 s.",
            number(bound, 2),
            number(cores, 2),
            number(server, 0),
            number(ours, 2),
            our_wait?,
            its_wait?,
        ))
    }

    fn connections(&self) -> Option<String> {
        let ratios = MORE_CONNECTIONS.map(|(count, system)| {
            let ratio = self.ratio("spread64", [system, OURS], sample::PER_SECOND)?;
            Some(format!("{count} have {} times", number(ratio, 2)))
        });
        let ratios: Option<Vec<String>> = ratios.into_iter().collect();
        Some(format!(
            "**More connections.** In `spread64`, {} the rate of one, the default.",
            ratios?.join(" and ")
        ))
    }
}

const HEAD: &str = "\
## What limits it

Medians of the columns above, and of ratios taken round by round.

";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::process::Cpu;
    use crate::results::Row;
    use crate::sample::Sample;
    use crate::scenario::SCENARIOS;

    fn row(system: &'static str, pairs: usize, client: f64) -> Row {
        let took = Duration::from_secs(1);
        let cpu = |user, system| Cpu { user, system };
        let sample = Sample::of_tasks(vec![vec![1_000; pairs]], took);
        let sample = sample.with_cpu(cpu(client, 200.0), cpu(100.0, 200.0), took);
        Row {
            system,
            rounds: vec![sample],
        }
    }

    #[test]
    fn what_was_not_played_is_left_out_and_the_rest_is_of_this_run() {
        assert_eq!(text(&[]), "");
        let solo = Outcome {
            scenario: SCENARIOS[0],
            rows: vec![row(OURS, 1_000, 100.0), row(FRED, 2_000, 100.0)],
        };
        let text = text(&[solo]);
        assert!(
            text.starts_with(HEAD) && !text.contains("spread64"),
            "{text}"
        );
        // Of a millisecond: 100 µs in the client, 200 for it in the kernel, 300 in the server.
        for part in [
            "takes 1,000 µs",
            "computes for 10 %",
            "kernel for it for 20 %",
            "server with its kernel for 30 %",
            "remaining 40 %",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let both = "µs of client, kernel and server: ours 100, 200 and 300, the bare client 50, 100 and 150.";
        assert!(text.contains(both), "{text}");
    }

    #[test]
    fn what_bounds_fair_and_read_write_locks_is_of_their_floors() {
        let named = |name| {
            *SCENARIOS
                .iter()
                .find(|one| one.name == name)
                .expect("known")
        };
        let mut fair = [(OURS, 800), (jvm::NAME, 500), (TURNS, 1_000)].map(|(system, rate)| {
            let row = row(system, rate, 80.0);
            let rounds = row.rounds.into_iter();
            let rounds = rounds.map(|round| round.with_scripts(3 * rate as i64));
            Row {
                rounds: rounds.collect(),
                ..row
            }
        });
        let played = |name, rows: &[Row]| Outcome {
            scenario: named(name),
            rows: rows.to_vec(),
        };
        let text = of_kinds(&[played("fair16", &fair)]);
        for part in [
            "which has 2.00 times Redisson's rate",
            "Ours has 0.80 of the bare",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("readers16"), "{text}");
        fair[2].system = ALONE;
        for (row, [reads, wait]) in
            fair.iter_mut()
                .zip([[600.0, 700.0], [400.0, 3e6], [1_200.0, 0.0]])
        {
            let figures = [(sample::READS, reads), (sample::WRITE_P50, wait)];
            row.rounds[0].figures.extend(figures);
        }
        let text = of_kinds(&[played("readers16", &fair)]);
        for part in [
            "has 3.00 times Redisson's rate of reads",
            "has 0.50 of the bare client's rate",
            "half of our writers wait for less than 0.7 ms, of Redisson's 3,000.0 ms",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn each_ratio_is_the_one_that_its_sentence_names() {
        let spread = |name| {
            *SCENARIOS
                .iter()
                .find(|one| one.name == name)
                .expect("known")
        };
        let [(_, two), (_, four)] = MORE_CONNECTIONS;
        let rows = [
            (OURS, 600),
            (FRED, 800),
            (FRED_DEFAULT, 1_000),
            (REDIS, 900),
            (two, 660),
            (four, 540),
        ];
        let rows = || rows.map(|(system, rate)| row(system, rate, 100.0));
        let played = ["spread64", "far8"].map(|name| Outcome {
            scenario: spread(name),
            rows: rows().into(),
        });
        let text = text(&played);
        for part in [
            "reaches 0.80 of the rate of the third",
            "ours reaches 0.75 of the rate of the second",
            "get 0.60 times the rate",
            "2 have 1.10 times and 4 have 0.90 times the rate of one",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
