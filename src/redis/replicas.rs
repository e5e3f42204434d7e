//! Whether enough replicas have what was taken: `sync_replicas`.
//!
//! WAIT stops everything behind it on its connection, so it has a connection of its own at each primary. It
//! waits for what its connection has written, and for everything that was executed before that: one write and
//! one WAIT confirm every lock that was taken before, however many callers there are.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lane::Surroundings;
use super::link::{Limit, Link};
use super::transport::Reply;
use crate::script::Call;

/// The questions at one primary that have no answer yet.
#[derive(Default)]
pub(super) struct Replicas {
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    questions: Vec<Question>,
    /// A task asks them.
    is_served: bool,
    /// How many tasks have begun so far.
    begun: u64,
}

/// How many replicas have a lock that was taken.
struct Question {
    /// Opened before the lock was taken: a server that has taken over meanwhile knows nothing of it.
    link: Arc<Link>,
    touch: Call<bool>,
    wanted: Wanted,
    answer: oneshot::Sender<u32>,
}

/// How many replicas are to have a lock, and for how long they are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub(crate) struct Wanted {
    pub(crate) replicas: u32,
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub(crate) within: Duration,
}

impl Replicas {
    /// Asks how many replicas have the lock that `touch` writes to. Without an answer it is none.
    ///
    /// Dropped, the question may still be asked; nothing else is left of it.
    pub(super) async fn acknowledged(
        self: &Arc<Self>,
        around: &Surroundings,
        link: Arc<Link>,
        touch: Call<bool>,
        wanted: Wanted,
    ) -> u32 {
        let (answer, answered) = oneshot::channel();
        let begun = {
            let mut pending = self.pending.lock();
            pending.questions.push(Question {
                link,
                touch,
                wanted,
                answer,
            });
            let is_served = std::mem::replace(&mut pending.is_served, true);
            pending.begun += u64::from(!is_served);
            (!is_served).then_some(pending.begun)
        };
        if let Some(nth) = begun {
            // Made here: a task that the end of the client keeps from its first poll is dropped too.
            let serving = Serving {
                replicas: Arc::clone(self),
                nth,
            };
            around.spawn(async move { serving.replicas.serve().await });
        }
        answered.await.unwrap_or(0)
    }

    /// Asks until there are no questions left: those over one connection together, and then those that have
    /// come meanwhile.
    async fn serve(&self) {
        loop {
            let questions = {
                let mut pending = self.pending.lock();
                let Some(first) = pending.questions.first() else {
                    // Under the same lock: whoever asks from here on starts another task.
                    pending.is_served = false;
                    return;
                };
                let (link, wanted) = (Arc::clone(&first.link), first.wanted);
                let all = std::mem::take(&mut pending.questions);
                // Whoever waits for less does not wait for more.
                let is_same = |question: &Question| {
                    Arc::ptr_eq(&question.link, &link) && question.wanted == wanted
                };
                let (same, others) = all.into_iter().partition(is_same);
                pending.questions = others;
                same
            };
            answer(questions).await;
        }
    }
}

/// The task that asks. Without it nobody answers: those who wait are told, and the next one starts another.
struct Serving {
    replicas: Arc<Replicas>,
    nth: u64,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut pending = self.replicas.pending.lock();
        // Served to the end there are none; or there are, and another task.
        if pending.is_served && pending.begun == self.nth {
            pending.questions.clear();
            pending.is_served = false;
        }
    }
}

/// Has one of the locks written to, and waits for replicas on behalf of all.
async fn answer(mut questions: Vec<Question>) {
    while let Some(first) = questions.first() {
        let Wanted { replicas, within } = first.wanted;
        if first.answer.is_closed() {
            questions.remove(0);
            continue;
        }
        // WAIT looks at its clock now and then only.
        let timeout = within * 2 + MARGIN;
        let limit = Limit {
            until: Instant::now() + timeout,
            silence: timeout,
        };
        // Both are handed over in this order by their first polls.
        let (touched, acknowledged) = tokio::join!(
            first.link.run_text(&first.touch, limit),
            first.link.wait_for_replicas(replicas, within, limit)
        );
        match touched {
            Ok(Reply::Number(1)) => {
                for question in questions {
                    let _ = question.answer.send(acknowledged);
                }
                return;
            }
            // It is not held any more, nothing was written, and WAIT has waited for nothing: the next lock
            // is written to.
            Ok(_) => _ = questions.remove(0).answer.send(0),
            // Neither will the others be answered.
            Err(_) => return,
        }
    }
}

/// For the way there and back.
const MARGIN: Duration = Duration::from_millis(500);
