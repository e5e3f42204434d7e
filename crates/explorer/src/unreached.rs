//! Why a case cannot come while something is under way, and the table of what has come.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::coverage::{Case as I, Row as R, all_pairs};

/// Each pair of one of these rows and one of these inputs, and the reason.
type Unreached = (&'static [R], &'static [I], &'static str);

/// The owner has no hold, open or lost, and gives none up.
const WITHOUT_HOLD: &[R] = &[
    R::Nothing,
    R::Waits,
    R::Acquire,
    R::Immediate,
    R::Inside,
    R::Receives,
    R::ReceivesThenRelease,
];

/// What cannot be, here or in the client.
const CANNOT_BE: &[Unreached] = &[
    (
        &[
            R::Nothing,
            R::Waits,
            R::Held,
            R::Lost,
            R::Release,
            R::LastRelease,
            R::WaitsReleasing,
            R::ReleaseInSync,
            R::Passes,
            R::Pausing,
        ],
        &[
            I::Taken,
            I::TakenLate,
            I::NotExecuted,
            I::OuterGone,
            I::AcquireUnknown,
        ],
        "no acquire is under way",
    ),
    (
        &[R::Receives, R::ReceivesThenRelease, R::Given],
        &[
            I::Taken,
            I::TakenLate,
            I::NotExecuted,
            I::OuterGone,
            I::AcquireUnknown,
        ],
        "the giver sends it, or it has its answer",
    ),
    (
        &[R::Acquire, R::Immediate, R::Inside],
        &[I::OuterGone],
        "there is no outer hold",
    ),
    (
        &[
            R::Nothing,
            R::Waits,
            R::Held,
            R::Lost,
            R::Acquire,
            R::Immediate,
            R::Inside,
            R::Nested,
            R::NestedImmediate,
            R::NestedThenRelease,
            R::Alone,
            R::AloneThenRelease,
            R::Receives,
            R::ReceivesThenRelease,
            R::Given,
        ],
        &[
            I::ReleaseDone,
            I::ReleaseGone,
            I::ReleaseGoneRepeated,
            I::ReleaseUnknown,
            I::ReleaseRefused,
            I::NoRoom,
        ],
        "no release is under way",
    ),
    (
        WITHOUT_HOLD,
        &[
            I::Unlock,
            I::UnlockLost,
            I::Drop,
            I::Detach,
            I::DetachLost,
            I::Claim,
            I::ClaimLost,
            I::ExtendBegins,
            I::Extended,
            I::ExtendLost,
            I::LeaseOver,
            I::NotRenewed,
            I::MaxHold,
        ],
        "the owner has no hold, open or lost",
    ),
    (
        &[
            R::Acquire,
            R::Immediate,
            R::Inside,
            R::Receives,
            R::ReceivesThenRelease,
        ],
        &[I::DropEnded],
        "the owner has no hold, open or lost",
    ),
    (
        WITHOUT_HOLD,
        &[I::RenewHeld, I::RenewLost, I::RenewUnknown],
        "it would be of an earlier hold",
    ),
    (
        &[
            R::Lost,
            R::Alone,
            R::AloneThenRelease,
            R::LastRelease,
            R::WaitsReleasing,
            R::Passes,
        ],
        &[
            I::Unlock,
            I::Drop,
            I::Detach,
            I::Claim,
            I::ExtendLost,
            I::NotRenewed,
            I::MaxHold,
        ],
        "nothing is held",
    ),
    // A release that is sent after the lease finds that too.
    (
        &[R::Lost, R::Alone, R::AloneThenRelease, R::WaitsReleasing],
        &[I::LeaseOver],
        "nothing is held",
    ),
    (
        &[R::Gone, R::Closed],
        &[
            I::Taken,
            I::TakenLate,
            I::OuterGone,
            I::ReleaseDone,
            I::ReleaseGone,
            I::ReleaseGoneRepeated,
            I::RenewHeld,
            I::RenewLost,
            I::RenewUnknown,
            I::RenewLate,
            I::Extended,
            I::ExtendLost,
        ],
        "the model delivers no answer after the end",
    ),
    (
        &[R::Gone, R::Closed],
        &[I::TimerFires],
        "the task of the timers has ended",
    ),
    (
        &[R::Gone, R::Closed],
        &[I::Claim, I::ClaimLost, I::ClaimNothing, I::ExtendBegins],
        "the call ends before it reaches the core",
    ),
    (
        &[R::Closed],
        &[
            I::Unlock,
            I::Drop,
            I::Detach,
            I::LeaseOver,
            I::NotRenewed,
            I::MaxHold,
        ],
        "every hold has ended with the client",
    ),
    (
        &[
            R::Held,
            R::Nested,
            R::NestedImmediate,
            R::NestedThenRelease,
            R::Release,
        ],
        &[I::Closed],
        "close ends every hold before",
    ),
    (
        &[R::Closing, R::Gone, R::Closed],
        &[I::Close],
        "it comes first, and once",
    ),
    (
        &[R::Gone, R::Closed],
        &[I::RuntimeEnds, I::Closed],
        "one of them is the end",
    ),
    (
        &[R::Gone, R::Closed],
        &[I::DropDetached],
        "close does it before its end",
    ),
    (
        &[R::Gone],
        &[I::ReleaseSteps],
        "nothing is sent without a runtime",
    ),
    (
        &[R::Closed],
        &[I::ReleaseGaveUp],
        "a send of a closed client just ends",
    ),
    (
        &[
            R::Held,
            R::Nested,
            R::NestedImmediate,
            R::NestedThenRelease,
            R::Release,
        ],
        &[I::ClaimLost],
        "holds that wait for a claim are all lost together",
    ),
    (
        &[R::Nothing],
        &[I::Forced],
        "it would be of an earlier hold",
    ),
    (
        &[R::Gone],
        &[I::UnlockNothing],
        "the call ends before it reaches the core",
    ),
];

/// The reason for a pair, if there is one.
fn reason(row: R, input: I) -> Option<&'static str> {
    let found = CANNOT_BE
        .iter()
        .find(|(rows, inputs, _)| rows.contains(&row) && inputs.contains(&input));
    found.map(|(.., reason)| *reason)
}

/// A column for each of what may be under way, a line for each case.
pub fn table(reached: &BTreeSet<(R, I)>) -> String {
    let mut text = "What has come (a line) while what was under way for its owner (a column) in some explored world: x.\n\
         What cannot be, for a reason in src/explorer/unreached.rs: -.\n\n"
        .to_owned();
    let columns = || R::ALL.iter().zip('a'..='z');
    for (row, column) in columns() {
        let _ = writeln!(text, "{column}  {}", row.text());
    }
    let header: String = columns().map(|(_, column)| format!(" {column}")).collect();
    let _ = writeln!(text, "\n{:<46}{header}", "");
    for case in I::ALL {
        let mark = |row| match reached.contains(&(row, *case)) {
            true => " x",
            false if reason(row, *case).is_some() => " -",
            false => " .",
        };
        let marks: String = R::ALL.iter().map(|row| mark(*row)).collect();
        let _ = writeln!(text, "{:<46}{marks}", case.text());
    }
    let _ = writeln!(text, "\n{} of {} pairs", reached.len(), all_pairs().count());
    text
}

/// Pairs that are reached although they cannot be.
pub fn problems(reached: &BTreeSet<(R, I)>) -> Vec<String> {
    let pairs = reached.iter();
    let problem = |(row, case): &(R, I)| {
        let reason = reason(*row, *case)?;
        let (what, came) = (row.text(), case.text());
        Some(format!(
            "{row:?} x {case:?} ({what}: {came}): reached, although {reason}"
        ))
    };
    pairs.filter_map(problem).collect()
}
