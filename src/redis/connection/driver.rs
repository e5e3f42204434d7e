//! Drives a connection: a writer that commands of many callers share, and a reader that completes
//! requests in their order.
//!
//! The reader and the writer are tasks of their own. A task that is woken runs after the one that has woken it, on the same
//! thread, and a caller that does not yield then keeps it waiting. The reader is woken by the socket alone, so no caller
//! delays the replies of others.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::io::AsyncWrite as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::answers::Answer;
use super::failed::HUNG_UP;
use super::pushes::{PushReceiver, is_message};
use super::replies::{Arrived, Replies};
use super::requests::{AnswerCallback, Answers, Awaited, Command, Encoded, Requests};
use super::stream::failed;
use crate::base::runtime::isolated;
use crate::redis::transport::{ByteStream, ConnectionError, Reply};

/// The state that the callers of a connection share with its tasks.
#[derive(Default)]
pub(super) struct DriverShared {
    /// Locked before `socket` where both are; not while the waker of a caller is called.
    pub(super) requests: Mutex<Requests>,
    socket: Mutex<SocketState>,
    /// Locked by the reader while it answers the callers of replies that have arrived together. What its thread hands over
    /// meanwhile is written after that, all in one write.
    answering: Mutex<()>,
    pushes: OnceLock<PushReceiver>,
    /// Notified when a request is the first after a while: its limits are to be kept from now on.
    used: Notify,
}

/// Has commands entered, by a call of what it is given, or not.
pub(in crate::redis) type Gate<'a> = &'a dyn Fn(&mut dyn FnMut());

/// Has them entered.
pub(in crate::redis) const OPEN: Gate<'static> = &|enter| enter();

#[derive(Default)]
struct SocketState {
    /// `None`: not connected yet, or the connection has ended.
    stream: Option<Box<dyn ByteStream>>,
    writer: Option<Waker>,
    reader: Option<Waker>,
    /// It has accepted bytes that it may not have sent yet.
    is_unflushed: bool,
    /// It has last accepted nothing: the writer waits for it.
    is_full: bool,
}

impl DriverShared {
    /// Hands commands over: they are written one directly after the other. With nothing else under way there is no
    /// company to wait for, and this call writes them. It also writes when enough has come together for the server to
    /// work on while other tasks go on; otherwise the writer does, with those of all tasks that are ready.
    ///
    /// `Err`: they keep their completions.
    pub(super) fn hand_over(
        &self,
        commands: &mut [Command<'_>],
        deadline: Instant,
        gate: Gate<'_>,
    ) -> Result<(), ConnectionError> {
        self.while_others_are_answered();
        let mut entered = Err(ConnectionError::NotSent("it is not wanted".to_owned()));
        gate(&mut || entered = self.requests.lock().enter(commands, deadline));
        self.write_soon(entered?);
        Ok(())
    }

    /// Enters a command, which is handed over by [`flush`](Self::flush): no system call is made, no waker is called, and no
    /// reader is waited for.
    pub(super) fn enter(
        &self,
        command: Command<'_>,
        deadline: Instant,
        completion: impl FnOnce() -> AnswerCallback,
    ) -> Result<Encoded, ConnectionError> {
        self.requests
            .lock()
            .enter_with(command, deadline, completion)
    }

    pub(super) fn flush(&self, entered: Encoded) {
        self.while_others_are_answered();
        self.write_soon(entered);
    }

    /// The reader may be answering many callers. If each of them on another thread wrote as soon as it was woken, that
    /// thread would sleep in between. Only for a moment, because a waker may take its time. Readers wait for none: two of
    /// them would wait for each other.
    fn while_others_are_answered(&self) {
        if ANSWERING.get().is_null() {
            drop(self.answering.try_lock_for(ANSWERING_MAX));
        }
    }

    fn write_soon(&self, entered: Encoded) {
        if !Answering::is_here(self) {
            self.write(self.requests.lock(), entered.is_alone);
        }
        if entered.is_to_be_looked_at {
            self.used.notify_one();
        }
    }

    fn write(&self, mut requests: MutexGuard<'_, Requests>, is_alone: bool) {
        let mut socket = self.socket.lock();
        let writes_now = is_alone || (!socket.is_full && requests.should_flush());
        let Some(writer) = socket.writer.clone() else {
            // The first poll of the writer finds them.
            return;
        };
        if !writes_now {
            drop((requests, socket));
            return writer.wake();
        }
        let written = socket.write(&mut requests, &mut Context::from_waker(&writer));
        match written {
            Poll::Ready(why) => {
                let closed = socket.close(&mut requests, &why);
                drop((requests, socket));
                closed.wake();
            }
            Poll::Pending => {
                let (late, is_written) = (requests.take_answers(), requests.is_written());
                drop((requests, socket));
                late.send();
                // The socket is full, or this task has had its turn: the writer goes on.
                if !is_written {
                    writer.wake();
                }
            }
        }
    }

    /// Hands commands over, and returns what gets their answers.
    pub(super) fn add<const N: usize>(
        &self,
        commands: [Command<'_>; N],
        deadline: Instant,
    ) -> Result<[oneshot::Receiver<Answer>; N], ConnectionError> {
        self.add_through(OPEN, commands, deadline)
    }

    /// The same, if this has them entered.
    pub(super) fn add_through<const N: usize>(
        &self,
        gate: Gate<'_>,
        mut commands: [Command<'_>; N],
        deadline: Instant,
    ) -> Result<[oneshot::Receiver<Answer>; N], ConnectionError> {
        let replies = commands.each_mut().map(Command::receiver);
        self.hand_over(&mut commands, deadline, gate)?;
        Ok(replies)
    }

    /// Ends the wait for answers whose time is over, while there are any, and calls `looked` after each look with whether
    /// one of them casts doubt on the connection. Never ready.
    pub(super) async fn keep_limits(&self, every: Duration, looked: impl Fn(bool)) {
        loop {
            self.used.notified().await;
            let mut next = Instant::now();
            loop {
                until_read(next).await;
                let now = Instant::now();
                let (look, late) = {
                    let mut requests = self.requests.lock();
                    (requests.look(now), requests.take_answers())
                };
                late.send();
                looked(look.is_doubtful);
                if look.is_over {
                    break;
                }
                next = look.next.unwrap_or(now + every).min(now + every);
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.requests.lock().has_ended()
    }

    /// Sets the receiver of the server's pushes.
    pub(super) fn receive_pushes(&self, pushes: PushReceiver) {
        // It is set once.
        _ = self.pushes.set(pushes);
    }

    /// Completes requests with what has arrived, and writes what was handed over meanwhile. `Err`: nothing counts that
    /// arrives later.
    pub(super) fn complete(&self, replies: &mut Replies) -> Result<(), ConnectionError> {
        let answering = Answering::begin(self);
        let mut messages = SmallVec::new();
        let completed = self.complete_all(replies, &mut messages);
        self.pass_on(&mut messages);
        drop(answering);
        completed?;
        let requests = self.requests.lock();
        if !requests.is_written() {
            self.write(requests, true);
        }
        Ok(())
    }

    /// A message is passed on after the reports that follow it: they are older than what it has sent.
    fn pass_on(&self, messages: &mut SmallVec<[Reply; 1]>) {
        for message in messages.drain(..) {
            isolated(|| _ = self.pushes.get().map(|pushes| pushes.read(message)));
        }
    }

    fn complete_all(
        &self,
        replies: &mut Replies,
        messages: &mut SmallVec<[Reply; 1]>,
    ) -> Result<(), ConnectionError> {
        let pushes = self.pushes.get();
        let mut answering = None;
        while let Some(arrived) = replies.next()? {
            let (push, pushes) = match (arrived, pushes) {
                (Arrived::Push(push), Some(pushes)) => (push, pushes),
                (Arrived::Reply(Ok(reply)), Some(pushes)) if pushes.is_push(&reply) => {
                    (reply, pushes)
                }
                // Nothing was read or subscribed to yet: all keys were deleted.
                (Arrived::Push(_), None) => continue,
                (Arrived::Reply(answer), pushes) => {
                    let answer = match pushes {
                        Some(pushes) => answer.map(|reply| pushes.unwrapped(reply)),
                        None => answer,
                    };
                    self.pass_on(messages);
                    answering.get_or_insert_with(|| self.answering.lock());
                    let awaited = self.requests.lock().next_awaited(&answer)?;
                    self.answer(awaited, answer)?;
                    continue;
                }
            };
            let confirmed = self.requests.lock().next_confirmed(&push);
            match confirmed {
                Some(awaited) => self.answer(awaited, Ok(push))?,
                None if is_message(&push) => messages.push(push),
                None => isolated(|| pushes.read(push)),
            }
        }
        Ok(())
    }

    /// `Err`: the connection has ended, as the caller that has the answer may see.
    fn answer(&self, awaited: Awaited, reply: Answer) -> Result<(), ConnectionError> {
        match awaited.judged(reply) {
            Ok(answer) => {
                awaited.answer(answer);
                Ok(())
            }
            Err(why) => {
                self.end(&why);
                awaited.answer(Err(why.clone()));
                Err(why)
            }
        }
    }

    /// The connection has ended, with this for those who wait.
    pub(super) fn end(&self, why: &ConnectionError) {
        let mut requests = self.requests.lock();
        let closed = self.socket.lock().close(&mut requests, why);
        drop(requests);
        closed.wake();
    }
}

thread_local! {
    /// The connection whose callers this thread is answering.
    static ANSWERING: Cell<*const DriverShared> = const { Cell::new(std::ptr::null()) };
}

/// Until it is dropped, its thread answers the callers of a connection.
struct Answering(*const DriverShared);

impl Answering {
    fn begin(connection: &DriverShared) -> Self {
        Self(ANSWERING.replace(connection))
    }

    fn is_here(connection: &DriverShared) -> bool {
        std::ptr::eq(ANSWERING.get(), connection)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.set(self.0);
    }
}

/// The tasks of a connection that has ended, and what is left of it.
struct Closed {
    answers: Answers,
    stream: Option<Box<dyn ByteStream>>,
    tasks: [Option<Waker>; 2],
}

impl Closed {
    /// They end.
    fn wake(self) {
        self.answers.send();
        drop(self.stream);
        self.tasks.into_iter().flatten().for_each(Waker::wake);
    }
}

impl SocketState {
    fn close(&mut self, requests: &mut Requests, why: &ConnectionError) -> Closed {
        requests.end(why);
        Closed {
            answers: requests.take_answers(),
            stream: self.stream.take(),
            tasks: [self.writer.take(), self.reader.take()],
        }
    }

    /// Writes what the socket accepts. Ready: the connection has ended.
    fn write(
        &mut self,
        requests: &mut Requests,
        context: &mut Context<'_>,
    ) -> Poll<ConnectionError> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(lost("the connection was closed"));
        };
        let mut stream = Pin::new(stream);
        let now = Instant::now();
        loop {
            let bytes = requests.unwritten(now);
            if bytes.is_empty() {
                break;
            }
            let accepted = stream.as_mut().poll_write(context, bytes);
            self.is_full = accepted.is_pending();
            match ready!(accepted) {
                Ok(0) => return unless_refused(requests, lost("the connection accepts nothing")),
                Ok(count) => requests.written(count),
                Err(problem) => return unless_refused(requests, failed(problem)),
            }
            self.is_unflushed = true;
        }
        if self.is_unflushed {
            match ready!(stream.as_mut().poll_flush(context)) {
                Ok(()) => self.is_unflushed = false,
                Err(problem) => return unless_refused(requests, failed(problem)),
            }
        }
        Poll::Pending
    }

    fn read(
        &mut self,
        replies: &mut Replies,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Err(lost("the connection was closed")));
        };
        note(&mut self.reader, context.waker());
        let arrived = &mut replies.arrived;
        if arrived.capacity() - arrived.len() < READ_MIN {
            arrived.reserve(READ_SIZE);
        }
        Poll::Ready(
            match ready!(poll_read_buf(Pin::new(stream), context, arrived)) {
                Ok(0) => Err(lost(HUNG_UP)),
                Ok(_) => Ok(()),
                Err(problem) => Err(failed(problem)),
            },
        )
    }
}

/// A server that refuses a connection says why, and closes it. The reader finds both, after what was written in vain.
fn unless_refused(requests: &Requests, why: ConnectionError) -> Poll<ConnectionError> {
    match requests.is_unanswered() {
        true => Poll::Pending,
        false => Poll::Ready(why),
    }
}

/// Reads and writes until the connection ends. Dropped, it ends it.
pub(super) async fn drive(stream: Box<dyn ByteStream>, shared: Arc<DriverShared>) {
    shared.socket.lock().stream = Some(stream);
    let reader = Reader {
        shared: Arc::clone(&shared),
        replies: Replies::default(),
    };
    let has_yielded = false;
    // It ends with the stream, and that with the reader.
    tokio::spawn(Writer {
        shared,
        has_yielded,
    });
    reader.await;
}

struct Reader {
    shared: Arc<DriverShared>,
    replies: Replies,
}

impl Reader {
    /// Completes requests with what has arrived. Ready: the connection has ended.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<ConnectionError> {
        for _ in 0..READS_AT_A_TIME {
            let read = self.shared.socket.lock().read(&mut self.replies, context);
            if let Err(why) = ready!(read) {
                return Poll::Ready(why);
            }
            if let Err(why) = self.shared.complete(&mut self.replies) {
                return Poll::Ready(why);
            }
        }
        // Others have their turn before more is read.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Future for Reader {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let why = ready!(self.read(context));
        self.shared.end(&why);
        Poll::Ready(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.end(&lost("the connection was closed"));
    }
}

struct Writer {
    shared: Arc<DriverShared>,
    /// It has let others go first since there is something to be written.
    has_yielded: bool,
}

impl Future for Writer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = Arc::clone(&self.shared);
        let mut requests = shared.requests.lock();
        let mut socket = shared.socket.lock();
        if socket.stream.is_none() {
            return Poll::Ready(());
        }
        note(&mut socket.writer, context.waker());
        // Tasks that are ready have commands too. They go first, once: what wakes itself is at the end of the queue,
        // from where any thread takes it.
        if !requests.is_written() && !std::mem::replace(&mut self.has_yielded, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let why = match socket.write(&mut requests, context) {
            Poll::Ready(why) => why,
            Poll::Pending => {
                self.has_yielded = !requests.is_written();
                let late = requests.take_answers();
                drop((requests, socket));
                late.send();
                return Poll::Pending;
            }
        };
        let closed = socket.close(&mut requests, &why);
        drop((requests, socket));
        closed.wake();
        Poll::Ready(())
    }
}

/// Waits until then, and if this process stands still meanwhile, until what has arrived is read.
async fn until_read(at: Instant) {
    let mut at = at.max(Instant::now() + CATCH_UP);
    loop {
        tokio::time::sleep_until(at).await;
        if Instant::now() <= at + STALL {
            return;
        }
        at = Instant::now() + CATCH_UP;
    }
}

fn note(known: &mut Option<Waker>, waker: &Waker) {
    if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *known = Some(waker.clone());
    }
}

pub(super) fn lost(why: &str) -> ConnectionError {
    ConnectionError::Lost(why.to_owned())
}

/// A timer that fires this late indicates a stall of this process, not of the server.
pub(in crate::redis) const STALL: Duration = Duration::from_millis(50);

/// How long what has arrived may take to be read.
const CATCH_UP: Duration = Duration::from_millis(10);

/// As long as some hundred callers take to be woken.
const ANSWERING_MAX: Duration = Duration::from_micros(50);

/// A read for less than this is not worth its system call.
const READ_MIN: usize = 2 << 10;
const READ_SIZE: usize = 16 << 10;

/// A server that answers without a pause leaves the thread to others in between.
const READS_AT_A_TIME: usize = 16;

#[cfg(test)]
mod tests;
