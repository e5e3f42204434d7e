//! Tests of requests without a connection.

use std::time::Duration;

use std::sync::Arc;

use super::*;
use crate::redis::connection::answers::{Fits, ReplyChecker};
use crate::redis::transport::Reply;

fn command<'a>(name: &'a str, args: &'a [Arg]) -> Command<'a> {
    Command::new(name, args)
}

fn ping() -> Command<'static> {
    command("PING", &[])
}

const PING_BYTES: &[u8] = b"*1\r\n$4\r\nPING\r\n";

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn add(requests: &mut Requests, deadline: Instant) -> oneshot::Receiver<Answer> {
    let [reply] = requests.add([ping()], deadline).expect("it is open");
    reply
}

fn reply(requests: &mut Requests, reply: Answer) -> Result<(), ConnectionError> {
    let awaited = requests.next_awaited(&reply)?;
    let judged = awaited.judged(reply);
    let (answer, outcome) = match judged {
        Ok(answer) => (answer, Ok(())),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    awaited.answer(answer);
    outcome
}

fn number(number: i64) -> Answer {
    Ok(Reply::Number(number))
}

fn is_number(reply: &mut oneshot::Receiver<Answer>, expected: i64) -> bool {
    matches!(reply.try_recv(), Ok(Ok(Reply::Number(number))) if number == expected)
}

fn not_sent(reply: &mut oneshot::Receiver<Answer>) -> bool {
    matches!(reply.try_recv(), Ok(Err(ConnectionError::NotSent(_))))
}

#[test]
fn a_command_is_an_array_of_texts() {
    let args = [
        Arg::Text("a text".into()),
        Arg::Bytes([0xff, 0].as_slice().into()),
        Arg::Fixed(""),
        Arg::Number(-10),
    ];
    let mut requests = Requests::default();
    let added = requests.add([command("EVAL", &args)], later());
    assert!(added.is_ok());
    assert_eq!(
        requests.unwritten(Instant::now()),
        b"*5\r\n$4\r\nEVAL\r\n$6\r\na text\r\n$2\r\n\xff\0\r\n$0\r\n\r\n$3\r\n-10\r\n"
    );
}

#[test]
fn replies_go_to_requests_in_their_order_however_the_bytes_are_accepted() {
    for step in 1..=PING_BYTES.len() * 2 {
        let mut requests = Requests::default();
        let mut first = add(&mut requests, later());
        let mut second = add(&mut requests, later());
        while !requests.is_written() {
            let length = requests.unwritten(Instant::now()).len();
            requests.written(length.min(step));
        }
        assert!(requests.unwritten(Instant::now()).is_empty());
        reply(&mut requests, number(1)).expect("one is awaited");
        reply(&mut requests, number(2)).expect("one is awaited");
        assert!(
            is_number(&mut first, 1) && is_number(&mut second, 2),
            "{step}"
        );
    }
}

#[test]
fn what_was_not_begun_by_its_deadline_is_never_written() {
    let now = Instant::now();
    let mut requests = Requests::default();
    let soon = now + Duration::from_secs(1);
    let mut begun = add(&mut requests, soon);
    let mut late = add(&mut requests, soon);
    let mut patient = add(&mut requests, later());
    assert_eq!(requests.unwritten(now).len(), PING_BYTES.len() * 3);
    requests.written(3);
    let rest = requests.unwritten(now + Duration::from_secs(1)).to_vec();
    assert_eq!(rest, [&PING_BYTES[3..], PING_BYTES].concat());
    requests.take_answers().send();
    assert!(not_sent(&mut late));
    requests.written(rest.len());
    reply(&mut requests, number(1)).expect("one is awaited");
    reply(&mut requests, number(2)).expect("one is awaited");
    assert!(is_number(&mut begun, 1) && is_number(&mut patient, 2));
}

#[test]
fn a_caller_that_has_gone_keeps_the_order() {
    let mut requests = Requests::default();
    drop(add(&mut requests, later()));
    let mut second = add(&mut requests, later());
    let length = requests.unwritten(Instant::now()).len();
    assert_eq!(
        length,
        PING_BYTES.len() * 2,
        "it is executed though dropped"
    );
    requests.written(length);
    reply(&mut requests, number(1)).expect("one is awaited");
    reply(&mut requests, number(2)).expect("one is awaited");
    assert!(is_number(&mut second, 2));
}

#[test]
fn a_reply_that_is_not_awaited_is_an_error() {
    let mut requests = Requests::default();
    // It is not written yet.
    let _reply = add(&mut requests, later());
    assert!(reply(&mut requests, number(1)).is_err());
}

/// A server that refuses a connection says why before it reads. Any other error is no answer to a command of its own.
#[test]
fn an_error_before_any_reply_is_why_the_connection_is_refused() {
    let full = || ConnectionError::refused("ERR max number of clients reached");
    let mut requests = Requests::default();
    let mut unwritten = add(&mut requests, later());
    let why = reply(&mut requests, Err(full())).expect_err("refused");
    requests.end(&why);
    requests.take_answers().send();
    let is_refused = |answer: &ConnectionError| matches!(answer, ConnectionError::Refused(_));
    assert!(matches!(unwritten.try_recv(), Ok(Err(why)) if is_refused(&why)));
    let after = requests.add([ping()], later());
    assert!(matches!(after, Err(why) if is_refused(&why)));

    let later_on = ConnectionError::refused("ERR come back later");
    let why = reply(&mut Requests::default(), Err(later_on)).expect_err("refused");
    assert!(matches!(&why, ConnectionError::Lost(text) if text.contains("come back")));

    let mut in_use = Requests::default();
    let _reply = add(&mut in_use, later());
    in_use.written(PING_BYTES.len());
    reply(&mut in_use, number(1)).expect("it fits");
    let why = reply(&mut in_use, Err(full())).expect_err("out of step");
    assert!(!is_refused(&why), "{why:?}");
}

#[test]
fn at_the_end_only_what_was_not_begun_is_known_not_to_be_executed() {
    let mut requests = Requests::default();
    let mut written = add(&mut requests, later());
    let mut begun = add(&mut requests, later());
    let mut unwritten = add(&mut requests, later());
    requests.written(PING_BYTES.len() + 1);
    requests.end(&ConnectionError::Lost("cut".to_owned()));
    requests.take_answers().send();
    for unknown in [&mut written, &mut begun] {
        assert!(matches!(
            unknown.try_recv(),
            Ok(Err(ConnectionError::Lost(_)))
        ));
    }
    assert!(not_sent(&mut unwritten));
    let after = requests.add([ping()], later());
    assert!(matches!(after, Err(ConnectionError::NotSent(_))));
    assert!(requests.unwritten(Instant::now()).is_empty());
}

#[test]
fn a_command_after_one_that_was_written_whole_is_known_not_to_be_executed() {
    let mut requests = Requests::default();
    let _written = add(&mut requests, later());
    let mut unwritten = add(&mut requests, later());
    requests.unwritten(Instant::now());
    requests.written(PING_BYTES.len());
    requests.end(&ConnectionError::Lost("x".to_owned()));
    requests.take_answers().send();
    assert!(not_sent(&mut unwritten));
}

#[test]
fn a_server_that_reads_nothing_does_not_fill_the_memory() {
    let mut requests = Requests::default();
    let big: Arc<[u8]> = vec![0; 1 << 20].into();
    let args = [Arg::Bytes(big)];
    let mut refused = 0;
    for _ in 0..64 {
        let added = requests.add([command("SET", &args)], later());
        refused += usize::from(matches!(added, Err(ConnectionError::NotSent(_))));
    }
    assert!(refused > 40, "{refused}");
    let held = requests.unwritten(Instant::now()).len();
    assert!(held < UNWRITTEN_MAX + (2 << 20), "{held}");
    requests.written(held);
    assert!(requests.add([ping()], later()).is_ok(), "it is read again");
}

/// A reply that its command cannot have, of a caller that may have gone: what comes after it belongs to another command.
fn add_judged(requests: &mut Requests, judge: &Arc<ReplyChecker>) -> oneshot::Receiver<Answer> {
    let expected = ExpectedReply {
        command: "acquire",
        by_hash: false,
        nonce: None,
        fits: Fits::Command(|reply| matches!(reply, Reply::Number(_))),
        judge: Arc::clone(judge),
    };
    let command = Command {
        expected: Some(expected),
        ..ping()
    };
    let [reply] = requests.add([command], later()).expect("it is open");
    reply
}

/// A renewed password goes between the commands.
#[test]
fn after_an_unjudged_reply_an_idle_connection_counts_as_idle() {
    let judge = Arc::new(ReplyChecker::new(Arc::default()));
    let mut requests = Requests::default();
    for is_written in [true, false] {
        judge.note_begun(judge.micros(Instant::now()));
        let _judged = add_judged(&mut requests, &judge);
        requests.written(PING_BYTES.len());
        let _renewed = add(&mut requests, later());
        if is_written {
            requests.written(PING_BYTES.len());
        }
        reply(&mut requests, number(1)).expect("it fits");
        assert!(judge.waits_since().is_some(), "the other is owed");
        if !is_written {
            requests.written(PING_BYTES.len());
        }
        reply(&mut requests, number(2)).expect("anything fits");
        assert!(judge.waits_since().is_none(), "nothing is owed");
    }
}

#[test]
fn after_a_reply_that_does_not_fit_none_counts() {
    for is_dropped in [false, true] {
        let judge = Arc::new(ReplyChecker::new(Arc::default()));
        let mut requests = Requests::default();
        let mut add = || add_judged(&mut requests, &judge);
        let (first, mut second) = (add(), add());
        let mut first = (!is_dropped).then_some(first);
        requests.written(2 * PING_BYTES.len());
        let list = Ok(Reply::List(Vec::new()));
        let why = reply(&mut requests, list).expect_err("out of step");
        let is_lost = |reply: &mut oneshot::Receiver<Answer>| {
            matches!(reply.try_recv(), Ok(Err(ConnectionError::Lost(_))))
        };
        assert!(first.as_mut().is_none_or(is_lost));
        requests.end(&why);
        requests.take_answers().send();
        assert!(is_lost(&mut second));
        assert!(requests.add([ping()], later()).is_err());
        assert!(judge.misfit().is_some());
    }
}

/// ASKING is about the command after it, so one that is not written any more must not leave it to another.
#[test]
fn asking_goes_with_its_command_or_not_at_all() {
    let (now, later) = (Instant::now(), later());
    let soon = now + Duration::from_secs(1);
    let mut requests = Requests::default();
    let pair = requests.add([command("ASKING", &[]), command("EVAL", &[])], soon);
    let next = requests.add([ping()], later);
    assert!(pair.is_ok() && next.is_ok());
    // All of ASKING, and nothing of its command.
    requests.written(b"*1\r\n$6\r\nASKING\r\n".len());
    let unwritten = requests.unwritten(now + Duration::from_secs(2));
    assert!(unwritten.starts_with(b"*1\r\n$4\r\nEVAL\r\n"));
}

#[test]
fn a_server_that_answers_nothing_is_not_asked_without_end() {
    for is_read in [true, false] {
        let mut requests = Requests::default();
        let mut added = 0;
        while requests.add([ping()], later()).is_ok() {
            added += 1;
            if is_read {
                requests.written(PING_BYTES.len());
            }
            assert!(added <= UNANSWERED_MAX, "it is bounded");
        }
        assert_eq!(added, UNANSWERED_MAX);
    }
}

/// Part of ASKING was accepted, and nothing more in time: what comes next would be executed as asking.
#[test]
fn asking_that_was_begun_takes_its_command_along() {
    let (now, soon) = (Instant::now(), Instant::now() + Duration::from_secs(1));
    let mut requests = Requests::default();
    let pair = requests.add([command("ASKING", &[]), command("EVAL", &[])], soon);
    let [mut asked, mut executed] = pair.expect("it is open");
    let _other = add(&mut requests, later());
    requests.written(3);
    let rest = requests.unwritten(now + Duration::from_secs(2));
    assert!(rest.ends_with(&[b"*1\r\n$4\r\nEVAL\r\n", PING_BYTES].concat()));
    let length = rest.len();
    requests.written(length);
    for _ in 0..2 {
        reply(&mut requests, number(1)).expect("one is awaited");
    }
    requests.take_answers().send();
    assert!(is_number(&mut asked, 1) && is_number(&mut executed, 1));
}

/// One of a user's may be tens of megabytes long.
#[test]
fn a_long_command_leaves_no_long_buffer() {
    let mut requests = Requests::default();
    for nth in 0..2 {
        let word = Arg::Bytes(vec![b'a'; 8 << 20].into());
        let added = requests.add([command("EVAL", &[word])], later());
        assert!(added.is_ok());
        // It is written in parts, and another one comes before its end.
        requests.written(7 << 20);
        let _other = add(&mut requests, later());
        let length = requests.unwritten(Instant::now()).len();
        requests.written(length);
        assert!(!requests.buffer.try_reclaim(BUFFER_KEPT + 1), "{nth}");
    }
    let _kept = add(&mut requests, later());
    requests.written(PING_BYTES.len());
    let is_kept = requests.buffer.try_reclaim(PING_BYTES.len());
    assert!(is_kept, "not every command makes a buffer");
}

#[test]
fn a_burst_of_commands_leaves_no_long_queue() {
    let mut requests = Requests::default();
    for _ in 0..QUEUE_KEPT * 8 {
        drop(add(&mut requests, later()));
    }
    let length = requests.unwritten(Instant::now()).len();
    requests.written(length);
    for _ in 0..QUEUE_KEPT * 8 {
        reply(&mut requests, number(1)).expect("one is awaited");
    }
    let kept = [requests.unwritten.capacity(), requests.awaited.capacity()];
    assert!(kept.iter().all(|kept| *kept <= QUEUE_KEPT), "{kept:?}");
}

fn limited(requests: &mut Requests, until: Instant) -> oneshot::Receiver<Answer> {
    let limits = AnswerLimits {
        until: Some(until),
        doubt_at: Some(until - Duration::from_secs(1)),
    };
    let command = Command { limits, ..ping() };
    let [reply] = requests.add([command], later()).expect("it is open");
    reply
}

fn is_late(reply: &mut oneshot::Receiver<Answer>) -> bool {
    matches!(reply.try_recv(), Ok(Err(ConnectionError::Timeout(_))))
}

#[test]
fn a_request_without_an_answer_in_time_keeps_its_place() {
    let (mut requests, now) = (Requests::default(), Instant::now());
    let [soon, later] = [2, 5].map(|seconds| now + Duration::from_secs(seconds));
    let mut first = limited(&mut requests, soon);
    let mut second = limited(&mut requests, later);
    let length = requests.unwritten(now).len();
    requests.written(length - 1);
    let mut look = |at| {
        let look = requests.look(at);
        requests.take_answers().send();
        (look.is_doubtful, look.next, look.is_over)
    };
    let second_doubt = later - Duration::from_secs(1);
    assert_eq!(
        look(now),
        (false, Some(soon - Duration::from_secs(1)), false)
    );
    let doubt = soon - Duration::from_secs(1);
    assert_eq!(look(doubt), (true, Some(soon), false));
    assert_eq!(look(doubt), (false, Some(soon), false), "it was said");
    assert!(!is_late(&mut first));
    assert_eq!(look(soon), (false, Some(second_doubt), false));
    assert!(is_late(&mut first));
    assert_eq!(look(later), (true, None, false));
    assert!(is_late(&mut second), "it was begun");
    requests.written(1);
    reply(&mut requests, number(1)).expect("one is awaited");
    reply(&mut requests, number(2)).expect("one is awaited");
    assert!(requests.is_idle());
}

/// A connection that is used now and then has a look each time, and no wake-up for it.
#[test]
fn a_look_is_asked_for_once_until_nothing_is_under_way() {
    let (mut requests, now) = (Requests::default(), Instant::now());
    let enter = |requests: &mut Requests| {
        requests
            .enter(&mut [ping()], later())
            .expect("open")
            .is_to_be_looked_at
    };
    let answer = |requests: &mut Requests| {
        let length = requests.unwritten(now).len();
        requests.written(length);
        reply(requests, number(1)).expect("one is awaited");
    };
    assert!(enter(&mut requests));
    assert!(!enter(&mut requests));
    answer(&mut requests);
    assert!(!requests.look(now).is_over, "one is under way");
    answer(&mut requests);
    assert!(requests.look(now).is_over);
    assert!(enter(&mut requests));
    answer(&mut requests);
    assert!(!requests.look(now).is_over, "there was one");
    assert!(!enter(&mut requests));
}
