//! Tests of the tasks of a connection, over a pipe.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use test_support::tokio;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::task::JoinHandle;

use super::*;
use crate::redis::connection::answers::{ExpectedReply, Fits, ReplyChecker};
use crate::redis::connection::requests::{AnswerLimits, Completion};
use crate::redis::transport::Reply;

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// One end of a pipe, which counts attempts to write.
struct Counted {
    stream: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// One end of a pipe behind a buffer, as rustls has one: it accepts more than the pipe does, and passes that on when it
/// is flushed.
struct Buffered {
    stream: DuplexStream,
    held: Vec<u8>,
}

impl Buffered {
    fn pass_on(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = Pin::new(&mut self.stream).poll_write(context, &self.held);
            self.held.drain(..ready!(written)?);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Buffered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Buffered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.held.len() >= BUFFER {
            ready!(self.pass_on(context))?;
        }
        let accepted = bytes.len().min(BUFFER - self.held.len());
        self.held.extend_from_slice(&bytes[..accepted]);
        Poll::Ready(Ok(accepted))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pass_on(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

const BUFFER: usize = PING_LENGTH * 3;

struct Fixture {
    shared: Arc<DriverShared>,
    server: DuplexStream,
    writes: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Fixture {
    /// A connection whose pipe holds this many bytes.
    fn new(capacity: usize) -> Self {
        let (stream, server) = duplex(capacity);
        let writes = Arc::default();
        let counted = Counted {
            stream,
            writes: Arc::clone(&writes),
        };
        Self::over(Box::new(counted), server, writes)
    }

    /// A connection with a buffer before the pipe.
    fn buffered(capacity: usize) -> Self {
        let (stream, server) = duplex(capacity);
        let held = Vec::new();
        Self::over(Box::new(Buffered { stream, held }), server, Arc::default())
    }

    fn over(stream: Box<dyn ByteStream>, server: DuplexStream, writes: Arc<AtomicUsize>) -> Self {
        let shared = Arc::new(DriverShared::default());
        let task = tokio::spawn(drive(stream, Arc::clone(&shared)));
        Self {
            shared,
            server,
            writes,
            task,
        }
    }

    fn ping(&self) -> oneshot::Receiver<Answer> {
        let [reply] = self.shared.add([ping()], later()).expect("it is open");
        reply
    }

    /// A lone command is answered.
    async fn pong(&mut self) {
        let reply = self.ping();
        self.read(1).await;
        self.answers(b"+PONG\r\n").await;
        assert!(matches!(reply.await, Ok(Ok(_))));
    }

    async fn read(&mut self, pings: usize) {
        let mut bytes = vec![0; PING_LENGTH * pings];
        let read =
            tokio::time::timeout(Duration::from_secs(10), self.server.read_exact(&mut bytes));
        read.await.expect("written").expect("open");
    }

    async fn answers(&mut self, bytes: &[u8]) {
        self.server.write_all(bytes).await.expect("open");
    }
}

fn ping() -> Command<'static> {
    Command::new("PING", &[])
}

const PING_LENGTH: usize = 14;

fn is_lost(answer: Result<Answer, oneshot::error::RecvError>) -> bool {
    matches!(answer, Ok(Err(ConnectionError::Lost(_))))
}

/// Each is a task of its own, ready at the same time.
#[tokio::test]
async fn commands_of_tasks_that_are_ready_share_writes() {
    let mut fixture = Fixture::new(1 << 16);
    let pings = (0..64).map(|_| {
        let shared = Arc::clone(&fixture.shared);
        tokio::spawn(async move {
            let [reply] = shared.add([ping()], later()).expect("it is open");
            reply.await.expect("it is answered")
        })
    });
    let pings: Vec<_> = pings.collect();
    fixture.read(64).await;
    // Without a reply in between they are more and more.
    assert!(fixture.writes.load(Ordering::Relaxed) <= 12);
    fixture.answers(&b"+PONG\r\n".repeat(64)).await;
    for ping in pings {
        let answer = ping.await.expect("no panic").expect("no error");
        assert_eq!(answer, Reply::Text("PONG".to_owned()));
    }
}

/// Its caller writes it, so it waits neither for company nor for another task.
#[tokio::test]
async fn a_lone_command_is_written_by_the_call_that_hands_it_over() {
    let mut fixture = Fixture::new(1 << 16);
    for nth in 1..=3 {
        fixture.pong().await;
        let before = fixture.writes.load(Ordering::Relaxed);
        let reply = fixture.ping();
        let after = fixture.writes.load(Ordering::Relaxed);
        assert_eq!(after, before + 1, "{nth}: nothing was polled in between");
        fixture.read(1).await;
        fixture.answers(b"+PONG\r\n").await;
        assert!(matches!(reply.await, Ok(Ok(_))), "{nth}");
    }
}

/// No task yields to the writer.
#[tokio::test]
async fn a_server_has_work_while_callers_go_on() {
    let mut fixture = Fixture::new(1 << 16);
    fixture.pong().await;
    let mut given = Vec::new();
    for nth in 1..=64 {
        let _reply = fixture.ping();
        let mut bytes = [0; 64 * PING_LENGTH];
        let mut bytes = ReadBuf::new(&mut bytes);
        let server = Pin::new(&mut fixture.server);
        let mut context = Context::from_waker(Waker::noop());
        _ = server.poll_read(&mut context, &mut bytes);
        let read = bytes.filled().len() / PING_LENGTH;
        if read > 0 {
            given.push((nth, read));
        }
    }
    // A lone one at first, then pairs, then a quarter of all.
    assert_eq!(
        given,
        [
            (1, 1),
            (3, 2),
            (5, 2),
            (7, 2),
            (10, 3),
            (14, 4),
            (19, 5),
            (26, 7),
            (35, 9),
            (47, 12),
            (63, 16)
        ]
    );
}

/// Too few to be written by a caller.
#[tokio::test]
async fn the_writer_lets_tasks_that_are_ready_go_first() {
    let mut fixture = Fixture::new(1 << 16);
    fixture.pong().await;
    let replies: Vec<_> = (0..10).map(|_| fixture.ping()).collect();
    fixture.read(10).await;
    let before = fixture.writes.load(Ordering::Relaxed);
    // It wakes the writer, which so comes before the other task.
    let reply = fixture.ping();
    let shared = Arc::clone(&fixture.shared);
    let other = tokio::spawn(async move { shared.add([ping()], later()).map(|_| ()) });
    fixture.read(2).await;
    assert!(other.await.expect("no panic").is_ok());
    assert_eq!(fixture.writes.load(Ordering::Relaxed), before + 1);
    drop((replies, reply));
}

/// The writer waits for it.
#[tokio::test]
async fn a_socket_that_is_full_is_not_tried_by_every_caller() {
    let mut fixture = Fixture::new(PING_LENGTH);
    fixture.pong().await;
    let before = fixture.writes.load(Ordering::Relaxed);
    let replies: Vec<_> = (0..100).map(|_| fixture.ping()).collect();
    // The first fills the pipe, the third finds it full.
    assert_eq!(fixture.writes.load(Ordering::Relaxed), before + 2);
    fixture.read(100).await;
    drop(replies);
}

#[tokio::test]
async fn a_socket_that_was_full_is_written_to_by_callers_again() {
    let mut fixture = Fixture::new(PING_LENGTH * 8);
    fixture.pong().await;
    let replies: Vec<_> = (0..100).map(|_| fixture.ping()).collect();
    fixture.read(100).await;
    fixture.answers(&b"+PONG\r\n".repeat(100)).await;
    for reply in replies {
        assert!(matches!(reply.await, Ok(Ok(_))));
    }
    fixture.pong().await;
    let before = fixture.writes.load(Ordering::Relaxed);
    let replies = [fixture.ping(), fixture.ping(), fixture.ping()];
    // The first alone, and the other two together.
    assert_eq!(fixture.writes.load(Ordering::Relaxed), before + 2);
    drop(replies);
}

/// All that is accepted arrives, although no command comes after it: a lone one, those that fill the buffer, and those that
/// wait for the buffer.
#[tokio::test]
async fn what_a_stream_holds_behind_a_full_socket_is_flushed() {
    for pings in [1, 2, 3, 4, 7, 64] {
        for capacity in [1, PING_LENGTH, PING_LENGTH * 3 / 2, BUFFER] {
            let mut fixture = Fixture::buffered(capacity);
            fixture.pong().await;
            let replies: Vec<_> = (0..pings).map(|_| fixture.ping()).collect();
            // The tasks have their turns, and find the socket full.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            fixture.read(pings).await;
            fixture.answers(&b"+PONG\r\n".repeat(pings)).await;
            for reply in replies {
                assert!(matches!(reply.await, Ok(Ok(_))), "{pings} {capacity}");
            }
            fixture.pong().await;
        }
    }
}

/// The task that has handed it over goes on without yielding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_written_beside_a_task_that_does_not_yield() {
    let mut fixture = Fixture::new(1 << 16);
    let (shared, blocked) = (Arc::clone(&fixture.shared), Arc::new(AtomicUsize::new(0)));
    let ends = Arc::clone(&blocked);
    let blocking = tokio::spawn(async move {
        let reply = shared.add([ping()], later());
        while ends.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        reply.is_ok()
    });
    fixture.read(1).await;
    blocked.store(1, Ordering::Relaxed);
    assert!(blocking.await.expect("no panic"));
}

#[tokio::test]
async fn a_command_whose_caller_has_gone_is_written() {
    let mut fixture = Fixture::new(1 << 16);
    drop(fixture.ping());
    fixture.read(1).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_does_not_accept_in_time_is_not_written_later() {
    let mut fixture = Fixture::new(PING_LENGTH + 1);
    let soon = Instant::now() + Duration::from_secs(1);
    let _first = fixture.ping();
    let [begun] = fixture.shared.add([ping()], soon).expect("it is open");
    let [late] = fixture.shared.add([ping()], soon).expect("it is open");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let _last = fixture.ping();
    fixture.read(3).await;
    assert!(matches!(late.await, Ok(Err(ConnectionError::NotSent(_)))));
    fixture.answers(b"+a\r\n+b\r\n+c\r\n").await;
    let answer = begun.await.expect("it is answered").expect("no error");
    assert_eq!(answer, Reply::Text("b".to_owned()));
}

#[tokio::test]
async fn the_end_of_a_connection_ends_all_that_is_in_flight() {
    for bytes in [
        &b""[..],
        b"+PONG\r\n+not asked for\r\n",
        b"?\r\n",
        b"$-7\r\n",
    ] {
        let mut fixture = Fixture::new(1 << 16);
        let first = fixture.ping();
        fixture.read(1).await;
        fixture.answers(bytes).await;
        if bytes.is_empty() {
            drop(fixture.server);
        }
        fixture.task.await.expect("no panic");
        let is_answered = bytes.starts_with(b"+PONG");
        let first = first.await;
        assert!(is_answered != is_lost(first), "{bytes:?}");
        let after = fixture.shared.add([ping()], later());
        assert!(matches!(after, Err(ConnectionError::NotSent(_))));
    }
}

/// A server that refuses connections closes them before it reads: the reason is there, and a write fails.
#[tokio::test]
async fn why_a_connection_is_refused_is_read_before_a_failed_write_counts() {
    for is_begun in [false, true] {
        let mut fixture = Fixture::new(1 << 16);
        if is_begun {
            // The tasks wait for the socket.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fixture
            .answers(b"-ERR max number of clients reached\r\n")
            .await;
        drop(std::mem::replace(&mut fixture.server, duplex(1).0));
        let refused = fixture.ping().await.expect("answered");
        assert!(
            matches!(refused, Err(ConnectionError::Refused(_))),
            "{is_begun}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn an_aborted_task_leaves_no_caller_waiting() {
    let mut fixture = Fixture::new(1 << 16);
    let reply = fixture.ping();
    fixture.read(1).await;
    fixture.task.abort();
    assert!(is_lost(reply.await));
}

/// What a caller has for a waker.
struct Foreign<F>(F);

impl<F: Fn() + Send + Sync> Wake for Foreign<F> {
    fn wake(self: Arc<Self>) {
        self.0();
    }
}

fn waits_with(
    reply: &mut oneshot::Receiver<Answer>,
    woken: impl Fn() + Send + Sync + 'static,
) -> bool {
    let waker = Arc::new(Foreign(woken)).into();
    let mut context = Context::from_waker(&waker);
    Pin::new(reply).poll(&mut context).is_pending()
}

/// A waker may poll another call: with a reply, with the end of its time, and with that of the connection.
#[tokio::test(start_paused = true)]
async fn a_waker_may_use_the_connection() {
    let mut fixture = Fixture::new(PING_LENGTH);
    let woken = Arc::<AtomicUsize>::default();
    let calls = || {
        let (shared, woken) = (Arc::clone(&fixture.shared), Arc::clone(&woken));
        move || {
            // It is refused if the connection has ended.
            _ = shared.add([ping()], later());
            woken.fetch_add(1, Ordering::Relaxed);
        }
    };
    let is_woken = async |times| {
        while woken.load(Ordering::Relaxed) < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut answered = fixture.ping();
    assert!(waits_with(&mut answered, calls()));
    let soon = Instant::now() + Duration::from_secs(1);
    let [mut late] = fixture.shared.add([ping()], soon).expect("it is open");
    assert!(waits_with(&mut late, calls()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut ended = fixture.ping();
    assert!(waits_with(&mut ended, calls()));
    is_woken(1).await;
    assert!(matches!(
        late.try_recv(),
        Ok(Err(ConnectionError::NotSent(_)))
    ));
    fixture.read(1).await;
    fixture.answers(b"+PONG\r\n").await;
    is_woken(2).await;
    assert!(matches!(answered.try_recv(), Ok(Ok(_))));
    fixture.read(1).await;
    drop(fixture.server);
    is_woken(3).await;
    assert!(is_lost(ended.await));
}

#[tokio::test]
async fn a_waker_that_panics_costs_no_other_caller_its_reply() {
    let mut fixture = Fixture::new(1_000);
    let mut panics = fixture.ping();
    assert!(waits_with(&mut panics, || panic!("a waker that panics")));
    let next = fixture.ping();
    fixture.read(2).await;
    fixture.answers(b"+PONG\r\n+PONG\r\n").await;
    assert!(matches!(next.await, Ok(Ok(_))));
    assert!(matches!(panics.await, Ok(Ok(_))));
    fixture.pong().await;
    let mut panics = fixture.ping();
    assert!(waits_with(&mut panics, || panic!("a waker that panics")));
    let next = fixture.ping();
    fixture.read(2).await;
    drop(fixture.server);
    assert!(is_lost(next.await));
    fixture.task.await.expect("it has ended by itself");
}

/// A completion may send the next command. Its thread is the one that writes.
#[tokio::test]
async fn what_is_handed_over_while_callers_are_answered_goes_out_in_one_write() {
    const CALLS: usize = 8;
    let mut fixture = Fixture::new(1 << 16);
    for _ in 0..CALLS {
        let shared = Arc::clone(&fixture.shared);
        let again = move |_| {
            let entered = shared.enter(ping(), later(), || Box::new(|_| {}));
            shared.flush(entered.expect("it is open"));
        };
        let first = fixture.shared.enter(ping(), later(), || Box::new(again));
        fixture.shared.flush(first.expect("it is open"));
    }
    fixture.read(CALLS).await;
    let before = fixture.writes.load(Ordering::Relaxed);
    fixture.answers(&b"+PONG\r\n".repeat(CALLS)).await;
    fixture.read(CALLS).await;
    assert_eq!(fixture.writes.load(Ordering::Relaxed), before + 1);
}

/// A caller that sends it again would find the same connection.
#[tokio::test]
async fn a_connection_has_ended_when_a_caller_has_a_reply_that_does_not_fit() {
    let mut fixture = Fixture::new(1_000);
    let expected = ExpectedReply {
        command: "PING",
        by_hash: false,
        nonce: None,
        fits: Fits::Command(|reply| matches!(reply, Reply::Text(_))),
        judge: Arc::new(ReplyChecker::new(Arc::default())),
    };
    let (said, has_ended) = oneshot::channel();
    let shared = Arc::clone(&fixture.shared);
    let completion = Completion::Callback(Box::new(move |answer| {
        assert!(is_lost(Ok(answer)));
        said.send(shared.has_ended()).expect("it is heard");
    }));
    let command = Command {
        expected: Some(expected),
        completion,
        ..ping()
    };
    let added = fixture.shared.hand_over(&mut [command], later(), OPEN);
    added.expect("it is open");
    let next = fixture.ping();
    fixture.read(2).await;
    fixture.answers(b":1\r\n+PONG\r\n").await;
    assert_eq!(has_ended.await, Ok(true));
    assert!(is_lost(next.await), "none counts after it");
}

/// Nothing but the limits has a timer, and an idle connection has none.
#[tokio::test(start_paused = true)]
async fn a_caller_needs_no_timer_for_its_limit() {
    let mut fixture = Fixture::new(1_000);
    let (shared, looks) = (Arc::clone(&fixture.shared), Arc::new(AtomicUsize::new(0)));
    let doubts = Arc::new(AtomicUsize::new(0));
    tokio::spawn({
        let (looks, doubts) = (Arc::clone(&looks), Arc::clone(&doubts));
        async move {
            let looked = |is_doubtful| {
                looks.fetch_add(1, Ordering::Relaxed);
                doubts.fetch_add(usize::from(is_doubtful), Ordering::Relaxed);
            };
            let every = Duration::from_millis(100);
            shared.keep_limits(every, looked).await;
        }
    });
    let start = Instant::now();
    let limited = |seconds: u64| {
        let until = start + Duration::from_secs(seconds);
        let limits = AnswerLimits {
            until: Some(until),
            doubt_at: Some(until - Duration::from_millis(500)),
        };
        let command = Command { limits, ..ping() };
        let [reply] = fixture.shared.add([command], later()).expect("it is open");
        reply
    };
    let (first, second) = (limited(1), limited(2));
    for (reply, seconds) in [(first, 1), (second, 2)] {
        let answer = reply.await.expect("it is answered");
        assert!(matches!(answer, Err(ConnectionError::Timeout(_))));
        assert_eq!(start.elapsed(), Duration::from_secs(seconds));
        assert_eq!(doubts.load(Ordering::Relaxed) as u64, seconds);
    }
    fixture.read(2).await;
    fixture.answers(b"+PONG\r\n+PONG\r\n").await;
    fixture.pong().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let while_idle = looks.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(looks.load(Ordering::Relaxed), while_idle);
}
