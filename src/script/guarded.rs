//! The call of a guarded write: a script that looks at the lock first, and then runs the user's.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{LossReason, Token};

use super::args::{millis, text};
use super::files::Scripts;
use crate::names::wire::LockName;
use crate::redis::{Arg, Args, Call, Reply, Still, reads};

/// What `guarded.lua` returns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Guarded {
    Ran(Reply),
    /// Under the same id, earlier.
    RanBefore,
    Failed(String),
    Lost {
        reason: LossReason,
        /// Whether it has run under the same id, earlier.
        ran_before: bool,
    },
}

/// Runs the user's script if `field` holds the lock, and with an id only if it has not run under that: its key, and
/// for how long it is remembered.
pub(crate) fn guarded(
    name: &LockName,
    (field, token): (&Arc<str>, Option<Token>),
    user_text: &Arc<str>,
    id: Option<&(Arc<str>, Duration)>,
    (user_keys, user_args): (&[Arc<str>], &[Arg]),
    still: Arc<dyn Still>,
) -> Call<Guarded> {
    let own_keys = [Some(name.key()), name.token(), id.map(|(key, _)| key)];
    let own_keys = own_keys.into_iter().flatten();
    let count = own_keys.clone().count() as i64;
    let token = token.map_or(Arg::Fixed(""), |token| {
        text(&token.number().to_string().into())
    });
    let mut args = Args::from_iter([
        Arg::Text(name.counted_in(field)),
        id.map_or(Arg::Number(0), |(_, keep)| millis(*keep)),
        Arg::Number(count),
        text(user_text),
        token,
    ]);
    args.extend(user_args.iter().cloned());
    Call {
        script: Scripts::of(name.kind()).guarded,
        keys: own_keys.chain(user_keys).map(Arc::clone).collect(),
        others: None,
        args,
        announced: None,
        still: Some(still),
        is_unknown: false,
        reads: reads!(|reply, _| match reply {
            Reply::List(items) => decode(items),
            _ => None,
        }),
    }
}

fn decode(items: &[Reply]) -> Option<Guarded> {
    let (Reply::Text(outcome), rest) = items.split_first()? else {
        return None;
    };
    match (&**outcome, rest) {
        // A list ends before nil.
        ("ran", []) => Some(Guarded::Ran(Reply::Nil)),
        ("ran", [value]) => Some(Guarded::Ran(value.clone())),
        ("done", []) => Some(Guarded::RanBefore),
        ("failed", [text]) => {
            let text = text.bytes()?;
            Some(Guarded::Failed(String::from_utf8_lossy(&text).into_owned()))
        }
        ("lost", [Reply::Number(state), Reply::Number(ran_before)]) => Some(Guarded::Lost {
            reason: match state {
                0 => LossReason::Gone,
                -1 => LossReason::Taken,
                -2 => LossReason::Changed,
                _ => return None,
            },
            ran_before: *ran_before == 1,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value may look like anything, and an answer to another call is none to this one.
    #[test]
    fn an_answer_names_its_outcome() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let one = Reply::Number(1);
        assert_eq!(decode(&[text("ran")]), Some(Guarded::Ran(Reply::Nil)));
        assert_eq!(
            decode(&[text("ran"), text("done")]),
            Some(Guarded::Ran(text("done")))
        );
        assert_eq!(decode(&[text("done")]), Some(Guarded::RanBefore));
        let lost = |state| decode(&[text("lost"), Reply::Number(state), one.clone()]);
        for (state, reason) in [
            (0, LossReason::Gone),
            (-1, LossReason::Taken),
            (-2, LossReason::Changed),
        ] {
            let ran_before = true;
            assert_eq!(lost(state), Some(Guarded::Lost { reason, ran_before }));
        }
        assert_eq!(lost(1), None);
        for other in [
            &[][..],
            std::slice::from_ref(&one),
            &[one.clone(), text("ran")],
            &[text("done"), one.clone()],
            &[text("failed"), one.clone()],
            &[text("ran"), one.clone(), one.clone()],
        ] {
            assert_eq!(decode(other), None, "{other:?}");
        }
    }
}
