//! The files in `lua/` as typed calls: one function per file, with the header's replies as its
//! result.
//!
//! Only this module knows the meaning of KEYS, ARGV and raw replies. A call is plain data until
//! [`call`] sends it; `call` is also the only place where a script is resent. Milliseconds exist
//! only in this file and on the wire.

mod inspect;

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use crate::core::RenewalAsk;
use crate::error::Error;
use crate::redis::{Arg, Limit, Reply, Route, SendError};
use crate::server_error;
use crate::wire::LockName;

pub(crate) use inspect::{Inspected, force_unlock, inspect};

/// A script and its SHA-1, which is its name in Redis.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    pub(crate) fn sha(&'static self) -> &'static str {
        &self.sha
    }
}

macro_rules! scripts {
    ($($const:ident = $name:literal;)*) => {
        $(static $const: Script = Script {
            name: $name,
            source: include_str!(concat!("../lua/", $name, ".lua")),
            sha: LazyLock::new(|| sha1_smol::Sha1::from($const.source).digest().to_string()),
        };)*
        #[cfg(test)]
        static ALL: &[&Script] = &[$(&$const),*];
    };
}

scripts! {
    ACQUIRE = "acquire";
    RELEASE = "release";
    RENEW = "renew";
    FORCE_UNLOCK = "force_unlock";
    INSPECT = "inspect";
}

/// One script call, not yet sent.
pub(crate) struct Call<T> {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<Arc<str>>,
    pub(crate) args: Vec<Arg>,
    decode: fn(&Reply) -> Option<T>,
}

/// What `acquire.lua` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquired {
    Taken,
    /// The outer hold is gone, so there was nothing to nest in.
    Lost,
    Busy {
        /// `None`: the key has no expiry.
        left: Option<Duration>,
        /// Its field, with invalid UTF-8 replaced.
        holder: String,
    },
    NotALock(String),
}

pub(crate) fn acquire(
    name: &LockName,
    field: &Arc<str>,
    target: u32,
    lease: Duration,
) -> Call<Acquired> {
    Call {
        script: &ACQUIRE,
        keys: vec![Arc::clone(name.key())],
        args: vec![text(field), Arg::Number(target.into()), millis(lease)],
        decode: |reply| match reply {
            Reply::Number(1) => Some(Acquired::Taken),
            Reply::Number(0) => Some(Acquired::Lost),
            Reply::List(items) => match items.as_slice() {
                [Reply::Number(-3), Reply::Text(found)] => Some(Acquired::NotALock(found.clone())),
                [Reply::Number(left), holder] => {
                    let holder = String::from_utf8_lossy(&holder.bytes()?).into_owned();
                    Some(Acquired::Busy {
                        left: duration(*left),
                        holder,
                    })
                }
                _ => None,
            },
            _ => None,
        },
    }
}

/// What `release.lua` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    Done,
    Gone,
    Taken,
    NotALock,
}

pub(crate) fn release(
    name: &LockName,
    field: &Arc<str>,
    target: u32,
    lease: Duration,
) -> Call<Released> {
    Call {
        script: &RELEASE,
        keys: vec![Arc::clone(name.key())],
        args: vec![
            text(field),
            Arg::Number(target.into()),
            millis(lease),
            text(name.channel()),
        ],
        decode: |reply| match reply {
            Reply::Number(1) => Some(Released::Done),
            Reply::Number(0) => Some(Released::Gone),
            Reply::Number(-1) => Some(Released::Taken),
            Reply::Number(-3) => Some(Released::NotALock),
            _ => None,
        },
    }
}

/// What `renew.lua` returns for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    Held,
    Gone,
    Taken,
    Changed,
}

/// One key of a renewal.
#[derive(Clone)]
pub(crate) struct Renewal {
    pub(crate) key: Arc<str>,
    pub(crate) field: Arc<str>,
    pub(crate) ask: RenewalAsk,
}

pub(crate) fn renew(batch: &[Renewal]) -> Call<Vec<Renewed>> {
    let words = |renewal: &Renewal| {
        let lease = match renewal.ask {
            RenewalAsk::Extend(lease) => millis(lease),
            RenewalAsk::Check => Arg::Number(0),
        };
        [text(&renewal.field), lease]
    };
    Call {
        script: &RENEW,
        keys: batch
            .iter()
            .map(|renewal| Arc::clone(&renewal.key))
            .collect(),
        args: batch.iter().flat_map(words).collect(),
        decode: |reply| match reply {
            Reply::List(items) => items
                .iter()
                .map(|item| match item {
                    Reply::Number(1) => Some(Renewed::Held),
                    Reply::Number(0) => Some(Renewed::Gone),
                    Reply::Number(-1) => Some(Renewed::Taken),
                    Reply::Number(-2) => Some(Renewed::Changed),
                    _ => None,
                })
                .collect(),
            _ => None,
        },
    }
}

/// A reply, with what is needed to judge it.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    /// Before the answered send; leases count from here.
    pub(crate) sent_at: Instant,
    /// Before the first send.
    pub(crate) first_sent_at: Instant,
    /// Whether an earlier send may have been executed too.
    pub(crate) repeated: bool,
}

/// No usable reply.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) error: Error,
    /// Whether any send may have been executed, or may still be.
    pub(crate) maybe_executed: bool,
}

/// How long to wait for a reply, and how often to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    pub(crate) timeout: Duration,
    pub(crate) sends: u32,
}

/// Runs a script and waits for its reply; a send lost with its connection is repeated while the retry
/// policy allows it.
///
/// Each send is built when it goes out, from the state at that moment.
pub(crate) async fn call<T>(
    route: Route<'_>,
    while_doing: &'static str,
    retry: RetryPolicy,
    build: impl FnMut() -> Call<T>,
) -> Result<Answer<T>, CallError> {
    call_noting(route, while_doing, retry, &AtomicBool::new(false), build).await
}

/// The same, for a caller that must know when its future is dropped whether anything was sent: `sent`
/// is set before the first send is handed to the connection. From then on it will be executed.
pub(crate) async fn call_noting<T>(
    route: Route<'_>,
    while_doing: &'static str,
    retry: RetryPolicy,
    sent: &AtomicBool,
    mut build: impl FnMut() -> Call<T>,
) -> Result<Answer<T>, CallError> {
    let start = Instant::now();
    let mut first_sent_at = None;
    let mut nth = 1;
    // Half of the time is for detecting that a connection is dead, the other half for its
    // replacement.
    let limit = Limit {
        until: start + retry.timeout,
        silence: retry.timeout / retry.sends,
    };
    loop {
        let link = route.ready(limit.until).await;
        // Built only when it can be sent: a call that had waited for a connection would carry a
        // stale count.
        let call = build();
        let answered = match link {
            Ok(link) => link.run(&call, limit, sent).await,
            Err(error) => Err(error),
        };
        let error = match answered {
            Ok((reply, sent_at)) => {
                let repeated = first_sent_at.is_some();
                let first_sent_at = first_sent_at.unwrap_or(sent_at);
                return match (call.decode)(&reply) {
                    Some(value) => Ok(Answer {
                        value,
                        sent_at,
                        first_sent_at,
                        repeated,
                    }),
                    None => Err(CallError {
                        error: Error::UnexpectedReply {
                            script: call.script.name,
                            reply: reply.shown(),
                        },
                        maybe_executed: true,
                    }),
                };
            }
            Err(error) => error,
        };
        let repeated = first_sent_at.is_some();
        let source = match error {
            SendError::Unknown { source, sent_at } => {
                first_sent_at.get_or_insert(sent_at);
                source
            }
            error => return Err(not_repeated(&call, while_doing, error, repeated)),
        };
        if nth == retry.sends || limit.until <= Instant::now() {
            return Err(CallError {
                error: Error::no_answer(while_doing, source),
                maybe_executed: true,
            });
        }
        nth += 1;
    }
}

/// What is said of a send that it makes no sense to repeat. `earlier`: one before it has no answer.
fn not_repeated<T>(
    call: &Call<T>,
    while_doing: &'static str,
    error: SendError,
    earlier: bool,
) -> CallError {
    let (error, executed) = match error {
        SendError::Refused(text) => {
            let key = call.keys.first().map_or("", |key| &**key);
            let error = server_error::of_script(call.script, key, &text);
            let executed = !server_error::is_certain(&error, &text);
            (error, executed)
        }
        SendError::NotAccepted(text) => (
            server_error::of_connection("connecting", "+@connection", &text),
            false,
        ),
        SendError::Closed => (Error::Closed, false),
        SendError::NoRuntime => (Error::NoRuntime, false),
        SendError::NotSent(source) => (Error::no_answer(while_doing, source), false),
        SendError::Unknown { source, .. } => (Error::no_answer(while_doing, source), true),
    };
    CallError {
        error,
        maybe_executed: earlier || executed,
    }
}

fn text(value: &Arc<str>) -> Arg {
    Arg::Text(Arc::clone(value))
}

/// Rounded up, so that a lease on the wire is never shorter than requested.
fn millis(duration: Duration) -> Arg {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    Arg::Number(i64::try_from(ms).unwrap_or(i64::MAX))
}

fn duration(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The header of a script is a contract: it declares exactly the inputs that the body uses, in
    /// order, and every integer that the body returns.
    #[test]
    fn every_header_agrees_with_its_body() {
        for script in ALL {
            let (header, body): (Vec<_>, Vec<_>) = script
                .source
                .lines()
                .partition(|line| line.starts_with("--"));
            let (header, body) = (header.join("\n"), body.join("\n"));
            assert!(
                header.starts_with(&format!("-- {}.lua: ", script.name)),
                "{}: the header opens with the name of the file",
                script.name
            );
            assert!(header.contains("\n-- Returns"), "{}", script.name);
            for input in ["KEYS", "ARGV"] {
                let declared = indices(&header, input);
                let used = indices(&body, input);
                if body.contains(&format!("ipairs({input})")) || body.contains("2 * n") {
                    assert!(header.contains(&format!("{input}[")), "{}", script.name);
                    continue;
                }
                assert_eq!(declared, used, "{}: {input}", script.name);
                let expected: BTreeSet<_> = (1..=declared.len()).collect();
                assert_eq!(declared, expected, "{}: {input} has holes", script.name);
            }
            for code in returned_codes(&body) {
                assert!(
                    header
                        .lines()
                        .any(|line| line.trim_start_matches("-- ").trim().starts_with(&code)),
                    "{}: returns {code}, the header does not say so",
                    script.name
                );
            }
            assert!(
                script.source.lines().count() <= 45,
                "{} is too long",
                script.name
            );
        }
    }

    fn indices(text: &str, input: &str) -> BTreeSet<usize> {
        text.split(&format!("{input}["))
            .skip(1)
            .filter_map(|rest| rest.split(']').next()?.parse().ok())
            .collect()
    }

    fn returned_codes(body: &str) -> BTreeSet<String> {
        body.split(&[' ', '\n'][..])
            .collect::<Vec<_>>()
            .windows(2)
            .filter(|pair| pair[0] == "return")
            .map(|pair| {
                pair[1]
                    .trim_end_matches(|c: char| !c.is_ascii_digit())
                    .to_owned()
            })
            .filter(|code| code.parse::<i64>().is_ok() || code.starts_with("{-"))
            .collect()
    }

    #[test]
    fn leases_round_up_to_whole_milliseconds() {
        let ms = |duration| match millis(duration) {
            Arg::Number(ms) => ms,
            Arg::Text(_) | Arg::Bytes(_) | Arg::Fixed(_) => unreachable!("a number"),
        };
        assert_eq!(ms(Duration::from_millis(10)), 10);
        assert_eq!(ms(Duration::from_nanos(10_000_001)), 11);
        assert_eq!(ms(Duration::MAX), i64::MAX);
    }
}
