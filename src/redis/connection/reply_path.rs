//! The path of replies, for a fuzzer: from bytes that have arrived to the requests that they answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::driver::DriverShared;
use super::pushes::PushReceiver;
use super::replies::Replies;
use super::requests::Command;
use crate::redis::connection::answers::{ExpectedReply, Fits, ReplyChecker};
use crate::redis::reports::{LaneReports, Reports};
use crate::redis::transport::Reply;

/// Panics if it matters where the bytes of this input are cut. Its first byte is one more length of parts.
pub(crate) fn check_reply_path(input: &[u8]) {
    let Some((&part, input)) = input.split_first() else {
        return;
    };
    let bytes = bytes_of(input);
    let whole = answers(&bytes, bytes.len());
    for part in [1, 2, 3, 7, part.into()] {
        let in_parts = answers(&bytes, part);
        assert_eq!(in_parts, whole, "{part}: {}", bytes.escape_ascii());
    }
}

/// One byte for each of the usual replies and beginnings, so that chance finds them too; `\x20` to `\xff` stay as they are.
fn bytes_of(input: &[u8]) -> Vec<u8> {
    let parts = input.iter().map(|byte| {
        let part = PARTS.get(usize::from(*byte)).copied();
        part.unwrap_or_else(|| std::slice::from_ref(byte))
    });
    parts.collect::<Vec<_>>().concat()
}

const PARTS: [&[u8]; 32] = [
    b"+OK\r\n",
    b":12\r\n",
    b":-1\r\n",
    b"$3\r\nabc\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*1\r\n",
    b"*2\r\n",
    b"-ERR no\r\n",
    b"-NOSCRIPT no\r\n",
    b"-MOVED 1 a:1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(12\r\n",
    b"=6\r\ntxt:ab\r\n",
    b"!3\r\nERR\r\n",
    b"~1\r\n",
    b"%1\r\n",
    b">2\r\n+invalidate\r\n",
    b">2\r\n",
    b"+invalidate\r\n",
    b"*3\r\n:1\r\n+a\r\n:2\r\n",
    b"$12\r\n",
    b"$67108864\r\n",
    b"*1048577\r\n",
    b":",
    b"\r",
    b"\n",
    b"\r\n",
];

/// What six requests are answered, which keys are reported, and why the connection ends, when the bytes arrive in parts of
/// this length.
fn answers(bytes: &[u8], part: usize) -> (Vec<String>, String, Option<String>) {
    let driver = DriverShared::default();
    let requests = &driver.requests;
    let mut replies = Replies::default();
    let judge = Arc::new(ReplyChecker::new(Arc::default()));
    let later = Instant::now() + Duration::from_secs(3600);
    let added = (0..6).map(|nth| {
        let fits: fn(&Reply) -> bool = match nth {
            4 => |reply| matches!(reply, Reply::Number(_)),
            _ => |_| true,
        };
        let expected = ExpectedReply {
            command: "EVALSHA",
            by_hash: nth % 2 == 0,
            nonce: None,
            fits: Fits::Command(fits),
            judge: Arc::clone(&judge),
        };
        let command = Command {
            expected: Some(expected),
            ..Command::new("EVALSHA", &[])
        };
        requests.lock().add([command], later)
    });
    let added: Result<Vec<_>, _> = added.collect();
    let mut awaited = added
        .expect("the connection is open")
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    let length = requests.lock().unwritten(Instant::now()).len();
    requests.lock().written(length);
    let (reports, lane) = (Arc::new(Reports::new(1)), 0);
    driver.receive_pushes(PushReceiver {
        reports: Some(LaneReports {
            reports: Arc::clone(&reports),
            lane,
        }),
        ..PushReceiver::default()
    });
    let end = bytes.chunks(part.max(1)).find_map(|part| {
        replies.arrived.extend_from_slice(part);
        driver.complete(&mut replies).err()
    });
    if let Some(why) = &end {
        requests.lock().end(why);
    }
    requests.lock().take_answers().send();
    let answers = awaited.iter_mut().map(|reply| match reply.try_recv() {
        Ok(answer) => format!("{answer:?}"),
        Err(TryRecvError::Empty) => NONE.to_owned(),
        Err(TryRecvError::Closed) => panic!("a request without an answer"),
    });
    let answers: Vec<_> = answers.collect();
    let answered = answers.iter().filter(|answer| *answer != NONE).count();
    assert!(
        answers[..answered].iter().all(|answer| answer != NONE),
        "{answers:?}"
    );
    assert!(answered == answers.len() || end.is_none(), "{answers:?}");
    let reported = reports.next().now_or_never();
    (
        answers,
        format!("{reported:?}"),
        end.map(|why| why.to_string()),
    )
}

const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use test_support::Rolls;

    use super::*;

    /// Chance instead of a fuzzer.
    #[test]
    fn whatever_arrives_answers_the_same_requests_wherever_it_is_cut() {
        let mut rolls = Rolls(7);
        for _ in 0..20_000 {
            let input: Vec<_> = (0..2 + rolls.below(10))
                .map(|_| {
                    let codes = if rolls.below(8) == 0 { 256 } else { 32 };
                    rolls.below(codes) as u8
                })
                .collect();
            check_reply_path(&input);
        }
    }
}
