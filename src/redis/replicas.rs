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
        let is_served = {
            let mut pending = self.pending.lock();
            pending.questions.push(Question {
                link,
                touch,
                wanted,
                answer,
            });
            std::mem::replace(&mut pending.is_served, true)
        };
        if !is_served {
            let this = Arc::clone(self);
            around.spawn(async move { this.serve().await });
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
                    pending.is_served = false;
                    return;
                };
                let link = Arc::clone(&first.link);
                let all = std::mem::take(&mut pending.questions);
                let is_same = |question: &Question| Arc::ptr_eq(&question.link, &link);
                let (same, others) = all.into_iter().partition(is_same);
                pending.questions = others;
                same
            };
            answer(questions).await;
        }
    }
}

/// Has one of the locks written to, and waits for replicas on behalf of all.
async fn answer(mut questions: Vec<Question>) {
    while let Some(first) = questions.first() {
        let replicas = questions.iter().map(|one| one.wanted.replicas).max();
        let within = questions.iter().map(|one| one.wanted.within).max();
        let (replicas, within) = (replicas.unwrap_or(0), within.unwrap_or_default());
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
        if touched.is_ok_and(|reply| reply == Reply::Number(1)) {
            for question in questions {
                let _ = question.answer.send(acknowledged);
            }
            return;
        }
        // Nothing was written, so WAIT has waited for nothing: the next lock is written to.
        let _ = questions.remove(0).answer.send(0);
    }
}

/// For the way there and back.
const MARGIN: Duration = Duration::from_millis(500);
