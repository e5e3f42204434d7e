//! The methods that inspect a lock from outside, and `force_unlock`.

use std::time::Duration;

use super::guard::LockGuard;
use super::lock::Lock;
use crate::error::Error;
use crate::lock::Holder;
use crate::lock::TryLock;

impl Lock {
    /// Frees the lock, no matter who holds it, and wakes a waiter. Returns whether it was locked.
    ///
    /// The loss is reported to the holder by its next renewal, within a third of its watchdog
    /// timeout. The holder is read first and passed to the script, which is never sent twice: a
    /// later holder is not affected.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if the reply is lost: the lock may or may not be free. Otherwise the
    /// refusals of [`lock`](Self::lock), and [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// let was_locked = lock.force_unlock()?;
    /// # Ok(()) }
    /// ```
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().force_unlock())
    }

    /// The same as [`try_lock`](Self::try_lock), with who holds the lock if it is held. If callers of this client
    /// queue for it, it is only looked at.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// use redisson_lock::TryLock;
    /// match lock.try_lock_or_holder()? {
    ///     TryLock::Acquired(guard) => guard.unlock()?,
    ///     TryLock::Busy { holder } => println!("not now: {holder:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock_or_holder(&self) -> Result<TryLock<LockGuard>, Error> {
        let taken = self.wait(self.of_caller().try_lock_or_holder())?;
        Ok(taken.map(|guard| self.guard(guard)))
    }

    /// Whether the lock is held, by any owner. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.is_locked()?);
    /// # Ok(()) }
    /// ```
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().is_locked())
    }

    /// Whether this thread, or the lock's [given owner](Self::owned_by), holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.is_held()?);
    /// # Ok(()) }
    /// ```
    pub fn is_held(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().is_held())
    }

    /// The hold count of this thread, or of the lock's [given owner](Self::owned_by). Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.hold_count()?);
    /// # Ok(()) }
    /// ```
    pub fn hold_count(&self) -> Result<u32, Error> {
        self.wait(self.of_caller().hold_count())
    }

    /// Time left on the lease; `None` if the lock is free, or has no expiry. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{:?}", lock.lease_left()?);
    /// # Ok(()) }
    /// ```
    pub fn lease_left(&self) -> Result<Option<Duration>, Error> {
        self.wait(self.of_caller().lease_left())
    }

    /// The holder of the lock, in Rust or Java; `None` if it is free. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// if let Some(holder) = lock.inspect()? {
    ///     println!("held {} times by {}", holder.hold_count, holder.owner);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn inspect(&self) -> Result<Option<Holder>, Error> {
        self.wait(self.of_caller().inspect())
    }
}
