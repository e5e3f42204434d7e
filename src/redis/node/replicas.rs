//! Whether enough replicas have what was taken or renewed: `sync_replicas`.
//!
//! WAIT stops everything behind it on its connection, so it has connections of its own at each primary: one
//! for each number of replicas that is asked for, or a call that needs one would wait for the second. It waits
//! for what its connection has written, and for everything that was executed before that: one WAIT after a
//! write to each lock that was taken, and one for each batch that was renewed, confirms all of them. A question
//! that comes in the meantime needs what is waited for already, and more: waiting for it delays no answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::unconstrained;
use tokio::time::Instant;

use super::lane::ConnectionContext;
use super::link::{Limit, Link};
use crate::redis::call::Call;
use crate::redis::transport::{BoxFuture, Reply};

/// How many replicas are to have a lock, and for how long they are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub(crate) struct SyncReplicas {
    pub(crate) replicas: u32,
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub(crate) within: Duration,
}

/// The client waits for at most this many replicas.
pub(crate) const REPLICAS_MAX: u32 = 8;

/// The questions for one number of replicas at one primary that have no answer yet.
#[derive(Default)]
pub(in crate::redis) struct Replicas {
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    questions: Vec<AckRequest>,
    /// A task asks them.
    is_served: bool,
}

/// How many replicas have a lock that was taken, or the locks that a call has renewed.
struct AckRequest {
    link: Arc<Link>,
    touch: Call<bool>,
    until: Instant,
    /// Dropped, the answer is that none has it.
    answer: oneshot::Sender<u32>,
}

impl Replicas {
    /// Asks how many replicas have the locks that `touch` is about, until then. Without an answer it is
    /// none.
    ///
    /// Dropped, the question may still be asked; nothing else is left of it.
    pub(in crate::redis) async fn acknowledged(
        self: &Arc<Self>,
        context: &ConnectionContext,
        replicas: u32,
        (link, touch, until): (Arc<Link>, Call<bool>, Instant),
    ) -> u32 {
        let (answer, mut answered) = oneshot::channel();
        let is_served = {
            let mut pending = self.pending.lock();
            pending.questions.push(AckRequest {
                link,
                touch,
                until,
                answer,
            });
            std::mem::replace(&mut pending.is_served, true)
        };
        if !is_served {
            // Made here: a task that the end of the client keeps from its first poll is dropped too.
            let serving = AckTask {
                replicas: Arc::clone(self),
                is_done: false,
            };
            context.spawn(serving.serve(replicas));
        }
        let answer = match tokio::time::timeout_at(until, &mut answered).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                // Who has not had a turn by now is not asked about any more: others before it have more time.
                let is_in_time = |question: &AckRequest| question.until > Instant::now();
                self.pending.lock().questions.retain(is_in_time);
                tokio::time::timeout_at(until + WAIT_SLACK, answered).await
            }
        };
        answer.ok().and_then(Result::ok).unwrap_or(0)
    }

    /// Those over one connection that a call still waits for.
    fn next(&self) -> Option<Vec<AckRequest>> {
        let (mut pending, now) = (self.pending.lock(), Instant::now());
        let mut all = std::mem::take(&mut pending.questions);
        all.retain(|question| question.until > now && !question.answer.is_closed());
        let Some(first) = all.first() else {
            // Under the same lock: a call that asks from here on starts another task.
            pending.is_served = false;
            return None;
        };
        let link = Arc::clone(&first.link);
        let is_same = |question: &AckRequest| Arc::ptr_eq(&question.link, &link);
        let (same, others) = all.into_iter().partition(is_same);
        pending.questions = others;
        Some(same)
    }
}

/// The task that asks. Dropped before its end, it answers what was not asked: no replica has the lock. The next
/// question starts another task.
struct AckTask {
    replicas: Arc<Replicas>,
    /// There was nothing left to ask. What there is now, another task asks.
    is_done: bool,
}

impl AckTask {
    /// Asks until there are no questions left: those over one connection together, and then those that have
    /// come meanwhile.
    async fn serve(mut self, replicas: u32) {
        while let Some(questions) = self.replicas.next() {
            // A poll that tokio cuts short, after many answers, would hand WAIT over before the writes.
            unconstrained(answer(questions, replicas)).await;
        }
        self.is_done = true;
    }
}

impl Drop for AckTask {
    fn drop(&mut self) {
        if !self.is_done {
            let mut pending = self.replicas.pending.lock();
            pending.questions.clear();
            pending.is_served = false;
        }
    }
}

/// Has each of the locks written to, and waits for replicas on behalf of all.
async fn answer(questions: Vec<AckRequest>, replicas: u32) {
    let Some((link, until)) = soonest(&questions) else {
        return;
    };
    // No WAIT precedes the writes, so they are answered immediately.
    let silence = MARGIN;
    let limit = Limit {
        silence,
        ..limit(until)
    };
    // Handed over in this order by their first polls.
    let (mut written, mut acknowledged) =
        tokio::join!(write(questions, limit), wait(&link, replicas, until));
    while let Some(number) = acknowledged {
        let now = Instant::now();
        let is_answered = |question: &mut AckRequest| {
            number >= replicas || question.until <= now || question.answer.is_closed()
        };
        for question in written.extract_if(.., is_answered) {
            let _ = question.answer.send(number);
        }
        let Some((_, until)) = soonest(&written) else {
            return;
        };
        // For those who have more time, and for what was written: who has come meanwhile comes later.
        acknowledged = wait(&link, replicas, until).await;
    }
}

/// The connection of these questions, and when the time of the first of them is over.
fn soonest(questions: &[AckRequest]) -> Option<(Arc<Link>, Instant)> {
    let first = questions.iter().min_by_key(|question| question.until)?;
    Some((Arc::clone(&first.link), first.until))
}

/// How many replicas have what was written, once they are enough or the time is over.
async fn wait(link: &Link, replicas: u32, until: Instant) -> Option<u32> {
    let left = until.saturating_duration_since(Instant::now());
    // Zero would be for ever.
    let left = left + Duration::from_millis(1);
    link.wait_for_replicas(replicas, left, limit(until)).await
}

/// Writes to each lock. One that is not held there any more, or whose slot is on its way, is answered
/// immediately; it says nothing about the others.
async fn write(questions: Vec<AckRequest>, limit: Limit) -> Vec<AckRequest> {
    let writing = |question| TouchSend::Sent(Box::pin(written(question, limit)));
    let mut all: Vec<_> = questions.into_iter().map(writing).collect();
    poll_fn(|context| {
        all.iter_mut().for_each(|one| one.send(context));
        Poll::Ready(())
    })
    .await;
    let mut held = Vec::new();
    // They are answered in this order.
    for one in all {
        held.extend(one.answered().await);
    }
    held
}

async fn written(question: AckRequest, limit: Limit) -> Option<AckRequest> {
    let written = question.link.run_text(&question.touch, limit).await;
    matches!(written, Ok(Reply::Number(1))).then_some(question)
}

/// A write under way, or what came of it.
enum TouchSend {
    Sent(BoxFuture<'static, Option<AckRequest>>),
    Answered(Option<Box<AckRequest>>),
}

impl TouchSend {
    fn send(&mut self, context: &mut Context<'_>) {
        if let Self::Sent(writing) = self
            && let Poll::Ready(answered) = writing.as_mut().poll(context)
        {
            *self = Self::Answered(answered.map(Box::new));
        }
    }

    async fn answered(self) -> Option<AckRequest> {
        match self {
            Self::Sent(writing) => writing.await,
            Self::Answered(answered) => answered.map(|answered| *answered),
        }
    }
}

fn limit(until: Instant) -> Limit {
    let left = until.saturating_duration_since(Instant::now());
    // WAIT looks at its clock now and then only.
    let timeout = left * 2 + MARGIN;
    Limit {
        until: Instant::now() + timeout,
        silence: timeout,
    }
}

/// Before a connection is doubted.
const MARGIN: Duration = Duration::from_millis(500);

/// WAIT is up to 100 ms late, and there is the way there and back.
const WAIT_SLACK: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
