//! Which answer counts.

use test_support::tokio;

use super::*;

/// What is expected of a command that is answered with a number.
fn expected(judge: &Arc<ReplyChecker>, command: &'static str) -> ExpectedReply {
    ExpectedReply {
        command,
        by_hash: false,
        nonce: None,
        fits: Fits::Command(|reply| matches!(reply, Reply::Number(_))),
        judge: Arc::clone(judge),
    }
}

/// What the only command of a connection is answered, and whether that ends the connection.
fn only(
    misfits: &Arc<ImpossibleReplies>,
    command: &'static str,
    reply: Reply,
) -> (Option<Answer>, bool) {
    let judge = Arc::new(ReplyChecker::new(Arc::clone(misfits)));
    let answer = expected(&judge, command).judged(Ok(reply));
    (answer.ok(), judge.misfit().is_some())
}

fn list() -> Reply {
    Reply::List(Vec::new())
}

#[test]
fn what_a_fresh_connection_answers_too_is_the_servers_answer() {
    let misfits = Arc::default();
    let (answer, is_replaced) = only(&misfits, "acquire", list());
    assert!(answer.is_none() && is_replaced);
    // The same on the next one, as long as it goes on.
    for _ in 0..2 {
        let (answer, is_replaced) = only(&misfits, "acquire", list());
        assert!(matches!(answer, Some(Ok(Reply::List(_)))) && !is_replaced);
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
        let judge = Arc::new(ReplyChecker::new(Arc::default()));
        let refused = ConnectionError::refused("NOSCRIPT No matching script.");
        let expected = ExpectedReply {
            by_hash,
            ..expected(&judge, "acquire")
        };
        assert_eq!(expected.judged(Err(refused)).is_ok(), by_hash);
        assert_eq!(judge.misfit().is_some(), !by_hash);
    }
}

#[test]
fn a_connection_is_silent_from_its_first_send_since_the_last_reply() {
    let judge = Arc::new(ReplyChecker::new(Arc::default()));
    let refused = ConnectionError::refused("ERR no");
    for answer in [Ok(Reply::Number(1)), Err(refused), Ok(list())] {
        assert_eq!(judge.note_sent(5), 5);
        assert_eq!(judge.note_sent(7), 5, "the oldest without a reply");
        _ = expected(&judge, "acquire").judged(answer);
        judge.postpone(5, 9);
        assert_eq!(judge.silent_at(), NEVER);
    }
    judge.note_sent(5);
    judge.postpone(5, 9);
    assert_eq!(judge.silent_at(), 9);
}

/// However often that has happened before.
#[test]
fn a_nonce_is_the_answer_to_its_own_ping_alone() {
    let judge = Arc::new(ReplyChecker::new(Arc::default()));
    let (first, second) = (judge.nonce(), judge.nonce());
    let text = |text: &str| Ok(Reply::Text(text.to_owned()));
    let ping = ExpectedReply {
        nonce: Some(Arc::clone(&second)),
        fits: Fits::Command(|_| true),
        ..expected(&judge, "PING")
    };
    let read = ExpectedReply {
        fits: Fits::Command(|_| true),
        ..expected(&judge, "read")
    };
    for _ in 0..2 {
        assert!(ping.judged(text(&second)).is_ok());
        for other in [text(&first), text("PONG"), Ok(list())] {
            assert!(ping.judged(other).is_err());
        }
        assert!(read.judged(text("PONG")).is_ok());
        assert!(read.judged(text(&second)).is_err());
    }
}

/// It costs one PING in that time, however many commands there are.
#[test]
fn a_connection_is_long_busy_once_in_that_time() {
    let judge = ReplyChecker::new(Arc::default());
    let busy_at = |now| judge.is_long_busy(now, 10);
    judge.note_begun(5);
    judge.note_begun(7);
    let seen = [14, 15, 16, 24, 25].map(busy_at);
    assert_eq!(seen, [false, true, false, false, true]);
    judge.note_idle();
    assert!(!busy_at(40), "it has none");
    judge.note_begun(40);
    assert_eq!([49, 50].map(busy_at), [false, true]);
}

/// Replies that were sent before the server hung may be read after a command was sent to it.
#[tokio::test(start_paused = true)]
async fn a_command_that_waits_does_so_after_the_reply_to_another_one() {
    let judge = Arc::new(ReplyChecker::new(Arc::default()));
    let now = || judge.micros(Instant::now());
    let reply = || expected(&judge, "acquire").judged(Ok(list()));
    let sent_at = Instant::now();
    judge.note_begun(now());
    tokio::time::advance(KEPT).await;
    judge.note_begun(now());
    assert_eq!(judge.waits_since(), Some(sent_at));
    _ = reply();
    assert_eq!(judge.waits_since(), Some(Instant::now()));
    judge.note_idle();
    _ = reply();
    assert_eq!(judge.waits_since(), None);
}
