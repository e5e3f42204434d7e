//! The call of a guarded write: the user's script inside of one that looks at the lock first.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::args::{millis, text};
use super::{GUARDED, Scripts};
use crate::core::{LossReason, Token};
use crate::kind::LockKind;
use crate::redis::{Arg, Args, Call, MadeScript, Reply, Script};
use crate::wire::LockName;

/// A script of the user, and what is made of it for each kind of locks when it is first used.
#[derive(Debug)]
pub(crate) struct UserScript {
    source: String,
    made: [OnceLock<Arc<MadeScript>>; 3],
}

impl UserScript {
    /// `source` has to be whole by itself: it becomes the body of a function.
    pub(crate) fn new(source: String) -> Self {
        Self {
            source,
            made: Default::default(),
        }
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    fn of(&self, kind: LockKind) -> Arc<MadeScript> {
        let nth = match kind {
            LockKind::Plain | LockKind::Spin => 0,
            LockKind::Fenced => 1,
            LockKind::String => 2,
        };
        let look = Scripts::of(kind).look;
        Arc::clone(self.made[nth].get_or_init(|| Arc::new(around(&self.source, look))))
    }
}

/// The user's part comes first, so that it sees no local of this crate, and begins on the first line, so that the line
/// numbers of its errors are its own. The end of the line before `end` ends a comment.
fn around(source: &str, look: &Script) -> MadeScript {
    let part = format!("local part = function(KEYS, ARGV) {source}\nend\n");
    let own_from = part.len();
    let (look, guarded) = (look.source, GUARDED.source);
    let made = format!("{part}local look = function() {look}\nend\n{guarded}");
    MadeScript {
        name: GUARDED.name,
        sha: sha1_smol::Sha1::from(&made).digest().to_string().into(),
        source: made.into(),
        own_from,
    }
}

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
    script: &UserScript,
    id: Option<&(Arc<str>, Duration)>,
    (user_keys, user_args): (&[Arc<str>], &[Arg]),
) -> Call<Guarded> {
    let own_keys = [Some(name.key()), name.token(), id.map(|(key, _)| key)];
    let own_keys = own_keys.into_iter().flatten();
    let count = own_keys.clone().count() as i64;
    let token = token.map_or(Arg::Fixed(""), |token| {
        text(&token.number().to_string().into())
    });
    let mut args = Args::from([
        text(field),
        id.map_or(Arg::Number(0), |(_, keep)| millis(*keep)),
        Arg::Number(count),
        token,
    ]);
    args.extend(user_args.iter().cloned());
    Call {
        script: crate::redis::ScriptRef::Made(script.of(name.kind())),
        keys: own_keys.chain(user_keys).map(Arc::clone).collect(),
        args,
        announced: None,
        decode: |reply, _| match reply {
            Reply::List(items) => decode(items),
            _ => None,
        },
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

    #[test]
    fn the_users_part_begins_the_text_and_keeps_its_line_numbers() {
        let source = "local a = 1\nreturn a -- ?";
        for kind in [LockKind::Plain, LockKind::Fenced, LockKind::String] {
            let script = UserScript::new(source.to_owned());
            let made = script.of(kind);
            let begin = "local part = function(KEYS, ARGV) local a = 1\nreturn a -- ?\nend\n";
            assert!(made.source.starts_with(begin), "{}", made.source);
            assert_eq!(made.own_from, begin.len());
            let look = Scripts::of(kind).look.source;
            assert_eq!(made.source.matches(look).count(), 1, "{kind}");
            assert!(made.source.ends_with(GUARDED.source));
            assert!(Arc::ptr_eq(&made, &script.of(kind)), "made once");
        }
        let script = UserScript::new(String::new());
        assert!(Arc::ptr_eq(
            &script.of(LockKind::Plain),
            &script.of(LockKind::Spin)
        ));
    }

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
