//! The task that drives a connection.

use tokio::task::{AbortHandle, JoinHandle};

use crate::redis::transport::BoxFuture;

/// The task that drives a connection. It ends with the connection, and dropping it ends the connection.
pub(in crate::redis) struct Task {
    /// Whether it has panicked. `None`: it has ended.
    ended: Option<BoxFuture<'static, bool>>,
    abort: AbortHandle,
}

impl Task {
    pub(super) fn of<T: Send + 'static>(task: JoinHandle<T>) -> Self {
        let abort = task.abort_handle();
        let ended = async move { task.await.is_err_and(|error| error.is_panic()) };
        Self {
            ended: Some(Box::pin(ended)),
            abort,
        }
    }

    /// Waits for the end of the connection.
    pub(in crate::redis) async fn ended(&mut self) {
        self.has_panicked().await;
    }

    /// Waits for the end of the connection. `true`: its task has panicked, as tokio does where a runtime has no
    /// sockets. There is no way to check beforehand.
    pub(super) async fn has_panicked(&mut self) -> bool {
        let has_panicked = match &mut self.ended {
            Some(ended) => ended.await,
            None => false,
        };
        self.ended = None;
        has_panicked
    }

    /// Ends the connection, and waits until its socket is closed, which happens when its task is dropped.
    pub(in crate::redis) async fn end(mut self) {
        self.abort.abort();
        self.ended().await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}
