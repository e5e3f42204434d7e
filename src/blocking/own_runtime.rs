//! The runtime of a blocking client: what its calls wait on, and how it ends.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::api::client::LockClient as AsyncClient;
use crate::base::runtime::isolated;
use crate::error::{Error, Operation};
use crate::names::owner::polled_by_tokio;

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
        if may_wait() {
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
            .map_err(|error| Error::NoAnswer {
                while_doing: Operation::Connecting,
                source: error.into(),
            })?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    fn wait<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        if !may_wait() {
            return Err(Error::InsideRuntime);
        }
        Ok(park_on(&self.handle, future))
    }

    fn take(&mut self) -> Self {
        Self {
            handle: self.handle.clone(),
            runtime: self.runtime.take(),
        }
    }

    /// Waits for the releases that were started, then ends the runtime. This thread may wait.
    fn end(mut self, client: AsyncClient) {
        let shared = client.handle.shared();
        let (limit, silence) = (shared.watchdog_timeout(), shared.command_timeout() * 2);
        // It runs in a drop, maybe that of a panic, where a second one would end the process.
        isolated(|| {
            park_on(&self.handle, async {
                let _ = tokio::time::timeout(limit, client.close(silence)).await;
            });
        });
        drop(client);
        // Inside of another runtime it ends in the background: its client has ended already.
        if Handle::try_current().is_err()
            && let Some(runtime) = self.runtime.take()
        {
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
/// tells that from polling, except within `tokio::task::unconstrained`: there a call waits, and keeps
/// the thread.
fn may_wait() -> bool {
    match Handle::try_current() {
        Err(error) => error.is_missing_context(),
        Ok(_) => !polled_by_tokio(),
    }
}

/// Waits for a future on this thread, in the context of a runtime. tokio's own `block_on` panics where
/// it finds a runtime at work; a program may abort on that.
fn park_on<F: Future>(runtime: &Handle, future: F) -> F::Output {
    struct Unparks(Thread);

    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
    let mut future = pin!(future);
    loop {
        let polled = {
            let _entered = runtime.enter();
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        match polled {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// How long the end waits for its thread. A name that is still being resolved is not waited for.
const THREADS_END: Duration = Duration::from_millis(100);
