//! The runtime of a blocking client: what its calls wait on, and how it ends.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::client::LockClient as AsyncClient;
use crate::error::{Error, Operation};
use crate::owner::polled_by_tokio;
use crate::runtime::isolated;

/// A client with its runtime. Clients, locks and guards share it; the last of them ends it.
pub(super) struct Running {
    pub(super) client: AsyncClient,
    runtime: OwnRuntime,
}

impl Running {
    /// Starts the runtime and connects there.
    pub(super) fn start(
        connecting: impl Future<Output = Result<AsyncClient, Error>>,
    ) -> Result<Arc<Self>, Error> {
        let runtime = OwnRuntime::start()?;
        let client = runtime.wait(connecting)??;
        Ok(Arc::new(Self { client, runtime }))
    }

    /// Waits for a call of the client, on this thread.
    pub(super) fn wait<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.runtime.wait(call)?
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (client, runtime) = (self.client.clone(), self.runtime.take());
        if may_wait(&runtime.handle) {
            return runtime.end(client);
        }
        let thread = std::thread::Builder::new().name("redisson-lock-end".to_owned());
        // Without a thread nothing is waited for, and the leases free what is left.
        let _ = thread.spawn(move || runtime.end(client));
    }
}

/// A runtime that may be dropped anywhere; tokio's own panics when it is dropped inside of another.
struct OwnRuntime {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl OwnRuntime {
    fn start() -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redisson-lock")
            .enable_all()
            .build()
            .map_err(|error| Error::no_answer(Operation::Connecting, error))?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    fn wait<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        if !may_wait(&self.handle) {
            return Err(Error::InsideRuntime);
        }
        Ok(self.handle.block_on(future))
    }

    fn take(&mut self) -> Self {
        Self {
            handle: self.handle.clone(),
            runtime: self.runtime.take(),
        }
    }

    /// Waits for the releases that were started, then ends the runtime. This thread may wait.
    fn end(mut self, client: AsyncClient) {
        let limit = client.handle.shared().watchdog_timeout();
        // It runs in a drop, maybe that of a panic, where a second one would end the process.
        isolated(|| {
            self.handle.block_on(async {
                let _ = tokio::time::timeout(limit, client.close(Duration::ZERO)).await;
            });
        });
        drop(client);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(THREADS_END);
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether a call may wait on this thread: not where tokio polls a future, nor when the thread ends.
///
/// A thread that has a runtime may still wait, in `spawn_blocking` and `block_in_place`. The budget
/// tells that from polling, except within `tokio::task::unconstrained`. tokio cannot be asked; there
/// its `block_on` panics, and reports that on stderr.
fn may_wait(own: &Handle) -> bool {
    match Handle::try_current() {
        Err(error) => error.is_missing_context(),
        Ok(_) if polled_by_tokio() => false,
        Ok(_) => catch_unwind(AssertUnwindSafe(|| own.block_on(async {}))).is_ok(),
    }
}

/// How long the end waits for its thread. A name that is still being resolved is not waited for.
const THREADS_END: Duration = Duration::from_millis(100);
