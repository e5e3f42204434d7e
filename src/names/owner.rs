//! Owners: explicit, by scope, by task, by thread. Values only, no I/O.
//!
//! An owner is one field of the lock hash, `clientId:threadId`. This module decides which thread id
//! a call uses; it never asks Redis and never looks at holds.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};

use redisson_lock_core::{Face, OwnerKey, ThreadId};
use smallvec::SmallVec;
use tokio::task::coop;

use crate::names::wire;

/// The owner of a hold: the `clientId:threadId` in the lock hash.
///
/// Without an explicit owner a call belongs to the tokio task it runs in, so nested calls of one
/// task re-enter and two tasks exclude each other. The branches of one `join!` or `select!` share
/// their task and therefore re-enter as well; give each branch its own owner to make them exclude
/// each other:
///
/// ```no_run
/// # async fn sell() {}
/// # async fn run(client: redisson_lock::LockClient) {
/// let (a, b) = (client.owner(), client.owner());
/// let stock = client.lock("stock:42");
/// tokio::join!(
///     a.scope(async { let _held = stock.lock().await; sell().await }),
///     b.scope(async { let _held = stock.lock().await; sell().await }),
/// );
/// # }
/// ```
///
/// In a bare `block_on`, such as the body of a `#[tokio::main]`, calls belong to the thread. The crate detects this by
/// tokio's budget per poll, which [`tokio::task::unconstrained`] removes: inside it each call has its own owner, and a
/// nested `lock()` deadlocks. Use [`scope`](Self::scope) in such a body.
///
/// Calls of a [blocking](crate#features) client belong to the thread that makes them.
///
/// Owners are created by [`LockClient::owner`](crate::LockClient::owner) and belong to that client
/// only.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// `clientId:threadId`.
    field: Arc<str>,
    thread_id: i64,
    origin: Origin,
}

impl Owner {
    /// A new, unique owner.
    pub(crate) fn fresh(client_id: &str) -> Self {
        Self::new(client_id, next_own_id(), Origin::Explicit)
    }

    /// An owner with the given thread id.
    pub(crate) fn with_id(client_id: &str, thread_id: i64) -> Self {
        Self::new(client_id, thread_id, Origin::Explicit)
    }

    /// The owner of the current call: its scope, its task, its thread inside a bare `block_on`, or
    /// a fresh one.
    pub(crate) fn current(client_id: &str) -> Self {
        if let Some(owner) = Self::of_scope(|owner| owner.is_of(client_id)) {
            return owner;
        }
        if let Some(id) = tokio::task::try_id() {
            return Self::latest(client_id, task_number(id), Origin::Task);
        }
        if polled_by_tokio() {
            return Self::latest(client_id, THREAD_ID.with(Cell::get), Origin::Thread);
        }
        Self::new(client_id, next_own_id(), Origin::Call)
    }

    /// The owner of a blocking call: its scope, or the thread that makes it.
    #[cfg(feature = "blocking")]
    pub(crate) fn of_thread(client_id: &str) -> Self {
        let thread = || Self::latest(client_id, THREAD_ID.with(Cell::get), Origin::Thread);
        Self::of_scope(|owner| owner.is_of(client_id)).unwrap_or_else(thread)
    }

    /// The owner of the innermost scope that is meant.
    pub(crate) fn of_scope(is_meant: impl Fn(&Self) -> bool) -> Option<Self> {
        let owner = SCOPE.try_with(|scope| scope.innermost(is_meant));
        owner.unwrap_or_default()
    }

    /// The owner with this number. That of the latest call on this thread is kept, because most often it is the next one's
    /// too, and each would have its field made.
    fn latest(client_id: &str, thread_id: i64, origin: Origin) -> Self {
        let of_call = |latest: &RefCell<Option<Self>>| {
            let mut latest = latest.borrow_mut();
            let is_same = |owner: &Self| {
                (owner.thread_id, owner.origin) == (thread_id, origin) && owner.is_of(client_id)
            };
            if !latest.as_ref().is_some_and(is_same) {
                *latest = None;
            }
            let new = || Self::new(client_id, thread_id, origin);
            latest.get_or_insert_with(new).clone()
        };
        LATEST
            .try_with(of_call)
            .unwrap_or_else(|_| Self::new(client_id, thread_id, origin))
    }

    fn new(client_id: &str, thread_id: i64, origin: Origin) -> Self {
        Self {
            field: wire::field(client_id, thread_id),
            thread_id,
            origin,
        }
    }

    /// Runs `future` with this owner as the current one.
    ///
    /// The scope covers everything polled inside, including nested scopes of other clients.
    /// `tokio::spawn` does not inherit it: wrap the spawned future too, or use
    /// [`Lock::owned_by`](crate::Lock::owned_by).
    ///
    /// # Cancel safety
    ///
    /// It is as cancel safe as `future`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let owner = client.owner();
    /// let lock = client.lock("stock:42");
    /// owner.scope(async {
    ///     let outer = lock.lock().await?;
    ///     let spawned = tokio::spawn({
    ///         let (owner, lock) = (owner.clone(), lock.clone());
    ///         async move { owner.scope(async { lock.lock().await?.unlock().await }).await }
    ///     });
    ///     spawned.await.expect("no panic")?;
    ///     outer.unlock().await
    /// }).await
    /// # }
    /// ```
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        let scope = Scope {
            owner: self.clone(),
            outer: SCOPE.try_with(|outer| Box::new(outer.clone())).ok(),
        };
        SCOPE.scope(scope, future).await
    }

    /// Returns the number after the colon.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_eq!(client.owner_with_id(7).thread_id(), 7);
    /// # }
    /// ```
    pub fn thread_id(&self) -> i64 {
        self.thread_id
    }

    /// As a lock knows it of which this is the part.
    pub(crate) fn key(&self, face: Face) -> OwnerKey {
        OwnerKey::of(ThreadId(self.thread_id), face)
    }

    pub(crate) fn is_of(&self, client_id: &str) -> bool {
        wire::is_field_of(client_id, &self.field)
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn field(&self) -> &Arc<str> {
        &self.field
    }
}

impl fmt::Display for Owner {
    /// As stored in Redis: `clientId:threadId`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

/// Where an owner's thread id came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    Explicit,
    Task,
    Thread,
    Call,
}

/// An id from the range above all tokio task ids.
pub(crate) fn next_own_id() -> i64 {
    NEXT_OWN_ID.fetch_add(1, Ordering::Relaxed)
}

#[derive(Clone)]
struct Scope {
    owner: Owner,
    outer: Option<Box<Self>>,
}

impl Scope {
    fn innermost(&self, is_meant: impl Fn(&Owner) -> bool) -> Option<Owner> {
        let mut scope = self;
        while !is_meant(&scope.owner) {
            scope = scope.outer.as_deref()?;
        }
        Some(scope.owner.clone())
    }
}

/// Whether this code is polled by tokio, as a task or by its `block_on`, rather than by some other
/// executor or by none.
///
/// Only tokio's own loops run a future under a cooperative budget. Outside a task nothing else
/// distinguishes the two, and the difference matters: another executor may poll many futures on one
/// thread, which must not share an owner. The probe consumes budget until it is refused or clearly
/// unlimited, then restores it.
pub(crate) fn polled_by_tokio() -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let mut taken = SmallVec::<[_; BUDGET_PROBE]>::new();
    let mut refused = false;
    for _ in 0..BUDGET_PROBE {
        match coop::poll_proceed(&mut context) {
            Poll::Ready(restore) => taken.push(restore),
            Poll::Pending => {
                refused = true;
                break;
            }
        }
    }
    // Each drop puts back the budget from before its own step, so the first step is undone last.
    while let Some(restore) = taken.pop() {
        drop(restore);
    }
    refused
}

/// `Id` exposes its number only as text, which is read without being kept.
fn task_number(id: tokio::task::Id) -> i64 {
    struct Number(i64);

    impl fmt::Write for Number {
        fn write_str(&mut self, digits: &str) -> fmt::Result {
            for digit in digits.bytes() {
                let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10);
                let more = |number: i64| number.checked_mul(10)?.checked_add(digit?.into());
                self.0 = more(self.0).ok_or(fmt::Error)?;
            }
            Ok(())
        }
    }

    let mut number = Number(0);
    let is_number = fmt::Write::write_fmt(&mut number, format_args!("{id}")).is_ok();
    assert!(is_number, "tokio prints a task id as a decimal below 2^63");
    number.0
}

static NEXT_OWN_ID: AtomicI64 = AtomicI64::new(FIRST_OWN_ID);

thread_local! {
    static THREAD_ID: Cell<i64> = Cell::new(next_own_id());
    static LATEST: RefCell<Option<Owner>> = const { RefCell::new(None) };
}

tokio::task_local! {
    static SCOPE: Scope;
}

/// Task ids count up from 1, so they never meet this range.
const FIRST_OWN_ID: i64 = 1 << 62;

/// More than tokio's budget of 128 operations per poll.
const BUDGET_PROBE: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::tokio;

    const CLIENT_ID: &str = "c";

    #[test]
    fn block_on_is_told_from_no_executor_and_keeps_its_budget() {
        assert!(!polled_by_tokio());
        for runtime in [
            tokio::runtime::Builder::new_current_thread().build(),
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .build(),
        ] {
            let runtime = runtime.expect("runtime");
            let _entered = runtime.enter();
            assert!(!polled_by_tokio(), "a context alone is no block_on");
            runtime.block_on(async {
                assert!(polled_by_tokio());
                assert!(
                    coop::has_budget_remaining(),
                    "the probe gave the budget back"
                );
                assert_eq!(
                    Owner::current(CLIENT_ID).thread_id,
                    Owner::current(CLIENT_ID).thread_id
                );
            });
        }
    }

    #[tokio::test]
    async fn a_task_is_its_own_owner_and_a_scope_wins_over_it() {
        let owner = || Owner::current(CLIENT_ID);
        let (a, b) = tokio::spawn(async move { (owner(), owner()) })
            .await
            .expect("no panic");
        assert_eq!(a, b);
        assert_eq!(a.origin, Origin::Task);

        let explicit = Owner::fresh(CLIENT_ID);
        let foreign = Owner::fresh("other");
        let seen = explicit.scope(foreign.scope(async { owner() })).await;
        assert_eq!(seen, explicit, "another client's scope does not hide ours");
    }
}
