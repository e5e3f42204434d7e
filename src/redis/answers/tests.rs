//! Who may believe which answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use test_support::tokio;
use tokio::sync::oneshot;

use super::*;

type Reading = oneshot::Sender<Answer>;

/// Hands over a command that is answered with a number.
fn send<'a>(answers: &'a Answers, command: &'static str) -> (Reading, Answering<'a>) {
    let (reading, reply) = oneshot::channel();
    let reply = Box::pin(async move { reply.await.expect("answered") });
    let expected = Expected::of(command, |reply| matches!(reply, Reply::Number(_)));
    let mut answering = answers.to(reply, expected);
    assert!(poll(&mut answering).is_none());
    (reading, answering)
}

fn poll(answering: &mut Answering<'_>) -> Option<Answer> {
    poll_with(answering, Waker::noop())
}

fn poll_with(answering: &mut Answering<'_>, waker: &Waker) -> Option<Answer> {
    let mut context = Context::from_waker(waker);
    match Pin::new(answering).poll(&mut context) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// What the only command of a connection is answered.
fn only(misfits: &Arc<Misfits>, command: &'static str, reply: Reply) -> (Answer, bool) {
    only_with(misfits, command, Ok(reply))
}

fn only_with(misfits: &Arc<Misfits>, command: &'static str, answer: Answer) -> (Answer, bool) {
    let answers = Answers::new(Arc::clone(misfits));
    let (reading, mut answering) = send(&answers, command);
    reading.send(answer).expect("awaited");
    let answer = poll(&mut answering).expect("answered");
    (answer, answers.misfit().is_some())
}

fn list() -> Reply {
    Reply::List(Vec::new())
}

fn is_lost(answer: &Option<Answer>) -> bool {
    matches!(answer, Some(Err(ConnectionError::Lost(_))))
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn answers_count_in_the_order_of_their_commands_and_not_of_the_polls() {
    for is_dropped in [false, true] {
        let answers = Answers::new(Arc::default());
        let (first_reading, first) = send(&answers, "first");
        let (second_reading, mut second) = send(&answers, "second");
        let (_third_reading, mut third) = send(&answers, "third");
        first_reading.send(Ok(list())).expect("awaited");
        second_reading.send(Ok(Reply::Number(1))).expect("awaited");
        let mut first = (!is_dropped).then_some(first);
        assert!(is_lost(&poll(&mut second)));
        let misfit = answers.misfit().map(|misfit| misfit.command);
        assert_eq!(misfit, Some("first"));
        assert!(is_lost(&poll(&mut third)), "it has no answer yet");
        assert!(first.as_mut().is_none_or(|first| is_lost(&poll(first))));
        let send_error = Box::pin(async { unreachable!("handed over") });
        let mut late = answers.to(send_error, Expected::of("late", |_| true));
        assert!(is_lost(&poll(&mut late)));
    }
}

#[test]
fn an_answer_that_another_caller_has_judged_is_there_for_its_own() {
    let answers = Answers::new(Arc::default());
    let (first_reading, mut first) = send(&answers, "first");
    let (second_reading, mut second) = send(&answers, "second");
    let count = Arc::new(Count(AtomicUsize::new(0)));
    assert!(poll_with(&mut first, &Waker::from(Arc::clone(&count))).is_none());
    first_reading.send(Ok(Reply::Number(1))).expect("awaited");
    second_reading.send(Ok(Reply::Number(2))).expect("awaited");
    assert!(matches!(poll(&mut second), Some(Ok(Reply::Number(2)))));
    assert_eq!(count.0.load(Ordering::Relaxed), 1, "its task is woken");
    assert!(matches!(poll(&mut first), Some(Ok(Reply::Number(1)))));
    assert!(answers.misfit().is_none());
    let state = answers.state.lock();
    assert!(state.awaited.is_empty() && state.judged.is_empty());
}

/// As at the end of the connection, which reaches their callers in any order.
#[test]
fn an_answer_before_those_to_earlier_commands_is_returned() {
    let answers = Answers::new(Arc::default());
    let (first_reading, mut first) = send(&answers, "first");
    let (second_reading, mut second) = send(&answers, "second");
    let lost = ConnectionError::Lost("connection lost".to_owned());
    second_reading.send(Err(lost)).expect("awaited");
    assert!(is_lost(&poll(&mut second)));
    assert!(poll(&mut first).is_none());
    first_reading.send(Ok(Reply::Number(1))).expect("awaited");
    assert!(matches!(poll(&mut first), Some(Ok(Reply::Number(1)))));
}

#[test]
fn nothing_is_kept_for_a_caller_that_has_gone() {
    let answers = Answers::new(Arc::default());
    let (first_reading, first) = send(&answers, "first");
    let (second_reading, mut second) = send(&answers, "second");
    drop(first);
    first_reading.send(Ok(Reply::Number(1))).expect("awaited");
    second_reading.send(Ok(Reply::Number(2))).expect("awaited");
    assert!(matches!(poll(&mut second), Some(Ok(Reply::Number(2)))));
    let state = answers.state.lock();
    assert!(state.awaited.is_empty() && state.judged.is_empty());
}

#[test]
fn what_a_fresh_connection_answers_too_is_the_servers_answer() {
    let misfits = Arc::default();
    let (answer, is_replaced) = only(&misfits, "acquire", list());
    assert!(answer.is_err() && is_replaced);
    // The same on the next one, as long as it goes on, and whatever has no reply meanwhile.
    for _ in 0..2 {
        let lost = Err(ConnectionError::Lost("connection lost".to_owned()));
        assert!(!only_with(&misfits, "acquire", lost).1);
        let (answer, is_replaced) = only(&misfits, "acquire", list());
        assert!(matches!(answer, Ok(Reply::List(_))) && !is_replaced);
    }
    // Another shape, or of another script, is not.
    assert!(only(&misfits, "acquire", Reply::Nil).1);
    assert!(only(&misfits, "release", list()).1);
    // And none after an answer that fits.
    assert!(!only(&misfits, "acquire", Reply::Number(1)).1);
    assert!(only(&misfits, "acquire", list()).1);
}

/// The next incident is not the server's answer, however much other commands have been answered.
#[tokio::test(start_paused = true)]
async fn a_misfit_is_the_servers_only_for_a_while() {
    let misfits = Arc::default();
    assert!(only(&misfits, "force_unlock", list()).1);
    // While it goes on, it is known.
    for _ in 0..5 {
        tokio::time::advance(KEPT - Duration::from_millis(1)).await;
        assert!(!only(&misfits, "force_unlock", list()).1);
    }
    tokio::time::advance(KEPT).await;
    assert!(only(&misfits, "force_unlock", list()).1);
}

#[test]
fn only_a_call_by_hash_is_refused_for_a_script_that_is_not_known() {
    for by_hash in [true, false] {
        let answers = Answers::new(Arc::default());
        let refused = ConnectionError::refused("NOSCRIPT No matching script.");
        let expected = Expected {
            by_hash,
            ..Expected::of("acquire", |_| true)
        };
        let mut answering = answers.to(Box::pin(async { Err(refused) }), expected);
        let answer = poll(&mut answering);
        assert_eq!(is_lost(&answer), !by_hash, "{answer:?}");
        assert_eq!(answers.misfit().is_some(), !by_hash);
    }
}
