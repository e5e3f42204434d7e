//! Running a script: the one place where it is sent again. The call itself is plain data, see `redis/call.rs`.

use std::time::Duration;

use tokio::time::Instant;

use super::refused::refused;
use crate::error::{Cause, Error, Operation, RefusalKind};
use crate::redis::{
    Arg, Call, Limit, OUTDATED, Received, Route, RoutedLink, SendError, not_reached, wanted_in,
};

/// A reply, with what is needed to judge it.
pub(crate) struct ScriptAnswer<T> {
    pub(crate) value: T,
    /// Before the answered send; leases count from here.
    pub(crate) sent_at: Instant,
    /// Where it came from.
    pub(crate) way: RoutedLink,
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

impl RetryPolicy {
    /// Of sends of which the first is made now. While there may be another, half of the time is for detecting that a connection
    /// is dead, the other half for its replacement.
    pub(crate) fn limit(self, now: Instant) -> Limit {
        Limit {
            until: now + self.timeout,
            silence: self.timeout / self.sends,
        }
    }
}

/// Runs a script and waits for its reply; a send lost with its connection is repeated while the retry
/// policy allows it.
///
/// Each send is built when it goes out, from the state at that moment. `None`: there is no reason for it
/// any more.
///
/// On the heap: a caller that only waits for a lock would keep the room for it.
pub(crate) async fn call<T: 'static>(
    route: Route<'_>,
    while_doing: Operation,
    retry: RetryPolicy,
    mut build: impl FnMut() -> Option<Call<T>>,
) -> Result<ScriptAnswer<T>, CallError> {
    let build = |_| build();
    Box::pin(call_after(None, route, (while_doing, retry), build)).await
}

/// A send, and what became of it.
pub(crate) struct SendOutcome<T> {
    pub(crate) call: Call<T>,
    pub(crate) outcome: Result<Received, SendError>,
}

/// [`call`] for a task that is on the heap already; perhaps after a first send. `build` learns that of the send before: it was
/// certainly not executed.
pub(crate) async fn call_after<T: 'static>(
    first: Option<SendOutcome<T>>,
    route: Route<'_>,
    (while_doing, retry): (Operation, RetryPolicy),
    mut build: impl FnMut(bool) -> Option<Call<T>>,
) -> Result<ScriptAnswer<T>, CallError> {
    // Not executed, and to be sent where that leads to, or in another form.
    let (mut first, mut followed) = match first {
        Some(SendOutcome {
            call,
            outcome: Err(SendError::Refused(cause)),
        }) if route.follows(cause.refusal.as_ref()) => (None, Some((call, cause))),
        first => (first, None),
    };
    let (mut repeated, mut unwritten) = (false, followed.is_some());
    let mut nth = 1;
    let limit = retry.limit(Instant::now());
    loop {
        let SendOutcome { call, outcome } = match first.take() {
            Some(first) => first,
            None => {
                let way = match route.ready(limit.until).await {
                    Ok(way) => way,
                    Err(error) => return Err(unready(error, followed, while_doing, repeated)),
                };
                // Built only when it can be sent: a call that had waited for a connection would carry a
                // stale count.
                let Some(mut call) = build(unwritten) else {
                    let source = way.link.cause(match while_doing {
                        Operation::Writing => OUTDATED,
                        _ => "another task continues it",
                    });
                    let error = SendError::NotSent(source);
                    return Err(final_error(None::<&Call<T>>, while_doing, error, repeated));
                };
                let followed = followed.take();
                let lacks_script =
                    |(_, cause): (_, Box<Cause>)| cause.refusal == Some(RefusalKind::NoScript);
                call.is_unknown = followed.is_some_and(lacks_script);
                let follow = Follow::Redirects;
                let outcome = exchange(route, way, &mut call, limit, follow).await;
                SendOutcome { call, outcome }
            }
        };
        let error = match outcome {
            Ok(received) => return answered(&call, received),
            Err(error) => error,
        };
        match &error {
            SendError::Unknown(_) | SendError::TakenOver(_) => {
                (repeated, unwritten) = (true, false);
            }
            SendError::Unwritten(_) => unwritten = true,
            _ => return Err(final_error(Some(&call), while_doing, error, repeated)),
        }
        // A slot may change hands several times in a row, and maps be read from nodes that lag behind: only the time
        // bounds how often a send follows.
        let follows = retry.sends > 1 && matches!(error, SendError::TakenOver(_));
        if nth == retry.sends && !follows || limit.until <= Instant::now() {
            return Err(final_error(Some(&call), while_doing, error, repeated));
        }
        nth += u32::from(!follows);
    }
}

/// The error of a send for which there is no connection, perhaps after one that was refused and is to follow.
fn unready<T>(
    error: SendError,
    followed: Option<(Call<T>, Box<Cause>)>,
    while_doing: Operation,
    earlier: bool,
) -> CallError {
    match (error, followed) {
        (SendError::NotSent(_), Some((call, cause)))
            if cause.refusal != Some(RefusalKind::NoScript) =>
        {
            final_error(Some(&call), while_doing, not_reached(cause), earlier)
        }
        (error, _) => final_error(None::<&Call<T>>, while_doing, error, earlier),
    }
}

/// Sends a script to the server of its lock, and never again: without an answer it may have been executed.
///
/// It is built when it goes out. `None`: there is no reason for it any more.
pub(crate) async fn call_once<T: 'static>(
    route: Route<'_>,
    while_doing: Operation,
    timeout: Duration,
    build: impl FnOnce() -> Option<Call<T>>,
) -> Result<Option<ScriptAnswer<T>>, CallError> {
    let limit = Limit {
        until: Instant::now() + timeout,
        silence: timeout,
    };
    let way = match route.ready(limit.until).await {
        Ok(way) => way,
        Err(error) => return Err(final_error(None::<&Call<T>>, while_doing, error, false)),
    };
    let Some(mut call) = build() else {
        return Ok(None);
    };
    match exchange(route, way, &mut call, limit, Follow::Redirects).await {
        Ok(received) => answered(&call, received).map(Some),
        Err(error) => Err(final_error(Some(&call), while_doing, error, false)),
    }
}

/// Sends a script once, over the connection that has answered before: to no other server, and never again.
pub(crate) async fn call_there<T: 'static>(
    route: Route<'_>,
    way: RoutedLink,
    while_doing: Operation,
    timeout: Duration,
    mut call: Call<T>,
) -> Result<ScriptAnswer<T>, CallError> {
    let limit = Limit {
        until: Instant::now() + timeout,
        silence: timeout,
    };
    match exchange(route, way, &mut call, limit, Follow::Nothing).await {
        Ok(received) => answered(&call, received),
        Err(error) => Err(final_error(Some(&call), while_doing, error, false)),
    }
}

/// Whether a call goes to another server if it is sent on.
enum Follow {
    Redirects,
    Nothing,
}

/// Sends a call until its script has every key that it decides by.
///
/// In a cluster a slot may be moving, so that some keys of a lock are on one node and the rest on the other. A server checks
/// this for declared keys only: an absent one that was not declared looks as if it had expired. So a script that would
/// decide by such a key leaves all holds and answers with the keys that it needs, and the call is sent again with these, fifty more
/// each time. Of readers that are dead it needs no key again, because it removes their fields. Like a
/// redirection this counts as no send, because no hold was changed.
async fn exchange<T: 'static>(
    route: Route<'_>,
    mut way: RoutedLink,
    call: &mut Call<T>,
    limit: Limit,
    follow: Follow,
) -> Result<Received, SendError> {
    if !route.is_in_cluster() {
        call.others = None;
    }
    if let Some(others) = &mut call.others
        && others.is_empty()
    {
        // By these the script knows that it is in a cluster.
        others.extend(call.keys.first().map(|lock| Arg::Text(lock.clone())));
    }
    loop {
        let received = match follow {
            Follow::Redirects => route.run(way, call, limit).await?,
            Follow::Nothing => route.run_there(way, call, limit).await?,
        };
        let Some(others) = &mut call.others else {
            return Ok(received);
        };
        let Some(wanted) = wanted_in(&received.reply) else {
            return Ok(received);
        };
        if wanted.len() > OTHERS_MAX {
            let text = format!("the call would need {} keys", wanted.len());
            let mut source = received.way.link.cause(text);
            source.refusal = Some(RefusalKind::TooManyKeys);
            return Err(SendError::Refused(source));
        }
        *others = wanted;
        way = received.way;
    }
}

/// How many keys a call may have in addition: all that a script reads of a dead reader, which are 300, and some. A server
/// before Redis 7.2 that reports changes tracks each of them at each command of the script that reads.
const OTHERS_MAX: usize = 500;

/// The meaning of a reply.
fn answered<T>(call: &Call<T>, received: Received) -> Result<ScriptAnswer<T>, CallError> {
    let Received {
        reply,
        sent_at,
        way,
    } = received;
    match (call.reads.decode)(&reply, call.keys.len()) {
        Some(value) => Ok(ScriptAnswer {
            value,
            sent_at,
            way,
        }),
        None => Err(CallError {
            error: Error::UnexpectedReply {
                script: call.script.name,
                reply: reply.shown(),
            },
            maybe_executed: true,
        }),
    }
}

/// The error of a send that it makes no sense to repeat. `earlier`: one before it has no answer.
fn final_error<T>(
    call: Option<&Call<T>>,
    while_doing: Operation,
    error: SendError,
    earlier: bool,
) -> CallError {
    let (error, executed) = match error {
        // So a caller that has lost the first answer does not take the write for undone.
        SendError::Refused(source) if earlier && while_doing == Operation::Writing => {
            (Error::no_answer(while_doing, source), true)
        }
        SendError::Closed | SendError::NoRuntime
            if earlier && while_doing == Operation::Writing =>
        {
            let source = Cause::new(None, "the client ended before a copy was answered");
            (Error::no_answer(while_doing, source), true)
        }
        SendError::Refused(source) => {
            let call = call.unwrap_or_else(|| unreachable!("what was not sent is not refused"));
            let keys = match while_doing {
                Operation::Writing => &call.keys[..],
                // Those of many locks are too many for an error.
                _ => &call.keys[..call.keys.len().min(KEYS_SHOWN)],
            };
            refused(call.script, keys, source)
        }
        // Its words would say that nothing was sent, or that nothing changed. An acquisition is undone.
        SendError::NotAccepted(source) if earlier && while_doing != Operation::Acquiring => {
            (Error::no_answer(while_doing, source), true)
        }
        other => {
            let executed = matches!(other, SendError::Unknown(_) | SendError::TakenOver(_));
            (send_error(other, while_doing), executed)
        }
    };
    CallError {
        error,
        maybe_executed: earlier || executed,
    }
}

/// Why nothing was sent, or why no reply came.
pub(crate) fn send_error(error: SendError, while_doing: Operation) -> Error {
    match error {
        SendError::NotAccepted(source) => {
            Error::of_connection(Operation::Connecting, "+@connection", source)
        }
        SendError::Closed => Error::Closed,
        SendError::NoRuntime => Error::NoRuntime,
        SendError::NotSent(source)
        | SendError::Unwritten(source)
        | SendError::Unknown(source)
        | SendError::TakenOver(source)
        | SendError::Refused(source) => Error::no_answer(while_doing, source),
    }
}

/// As many as a lock of any kind has.
const KEYS_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RefusalKind;

    /// A connection that is not accepted says nothing about what was sent on the one before it.
    #[test]
    fn what_may_have_been_executed_is_not_said_to_have_changed_nothing() {
        let refused = |earlier| {
            let text = "WRONGPASS invalid username-password pair".to_owned();
            let cause = Cause::refused(&"server".into(), RefusalKind::read(&text), text);
            let error = SendError::NotAccepted(cause);
            final_error(None::<&Call<()>>, Operation::Releasing, error, earlier)
        };
        let first = refused(false);
        assert!(matches!(first.error, Error::Auth { .. }), "{}", first.error);
        assert!(!first.maybe_executed);
        let second = refused(true);
        let Error::NoAnswer { source, .. } = &second.error else {
            panic!("{}", second.error)
        };
        assert!(source.to_string().starts_with("WRONGPASS"), "{source}");
        assert!(second.maybe_executed);
    }

    /// A client that is closed says that nothing was sent.
    #[test]
    fn a_write_that_may_have_run_is_not_said_to_be_unsent_when_the_client_ends() {
        for ended in [|| SendError::Closed, || SendError::NoRuntime] {
            let of = |earlier| final_error(None::<&Call<()>>, Operation::Writing, ended(), earlier);
            let first = of(false).error;
            assert!(matches!(first, Error::Closed | Error::NoRuntime), "{first}");
            let second = of(true);
            assert!(
                matches!(second.error, Error::NoAnswer { .. }),
                "{}",
                second.error
            );
            assert!(second.maybe_executed);
        }
    }
}
