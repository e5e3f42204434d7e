//! Guarded writes: user scripts that run only while the lock is held.
//!
//! The check of the lock and the user's script are one script call, so no other client can take the lock between them.
//! The call uses the connection of the lock's other commands: after a reconnect the fence also keeps out late copies.

mod value;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::Ending;
use redisson_lock_core::input::TimePasses;

use crate::error::{Error, Operation, is_of_a_replica};
use crate::lock::hold_handle::{Hold, HoldHandle};
use crate::redis::Arg;
use crate::script::{self, CallError, Guarded, ScriptAnswer};
use crate::state::bounds::check_keep;
use crate::state::entry::Entry;

pub use value::Value;

/// A Lua script for [guarded writes](HoldHandle::eval). Cheap to clone.
///
/// It has `KEYS` and `ARGV`, and can do what an `EVAL` script can, with three exceptions: it must not yield, its
/// outermost block has at most 198 locals, and the globals `_G.KEYS` and `_G.ARGV` are those of the whole call. Each
/// write sends its text, and the server compiles it, which takes longer than running a short script.
///
/// # Examples
///
/// ```
/// let sell = redisson_lock::Script::new("return redis.call('decrby', KEYS[1], ARGV[1])")?;
/// # Ok::<(), redisson_lock::Error>(())
/// ```
#[derive(Clone)]
pub struct Script(Arc<str>);

impl Script {
    /// Creates a script from this text. Only the server checks its Lua, at each write: see [`Error::ScriptFailed`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidConfig`] if the text begins with `#!`, because flags do not apply: the script runs
    /// inside one of this crate's scripts.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::Script;
    /// assert!(Script::new("#!lua flags=no-writes\nreturn 1").is_err());
    /// ```
    pub fn new(source: impl Into<Arc<str>>) -> Result<Self, Error> {
        let source = source.into();
        if source.starts_with("#!") {
            return Err(Error::InvalidConfig {
                what: "script",
                problem: "it begins with #!: leave that line out".to_owned(),
            });
        }
        Ok(Self(source))
    }

    /// Returns the text.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), redisson_lock::Error> {
    /// let script = redisson_lock::Script::new("return 1")?;
    /// assert_eq!(script.source(), "return 1");
    /// # Ok(()) }
    /// ```
    pub fn source(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.source()).finish()
    }
}

/// The outcome of a guarded write with an id.
///
/// # Examples
///
/// ```
/// use redisson_lock::{Once, Value};
/// assert_ne!(Once::Ran(Value::Nil), Once::DoneBefore);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Once {
    /// It ran now, and returned this.
    Ran(Value),
    /// It ran before under this id, perhaps by an earlier copy of this very call. What it returned is not known.
    DoneBefore,
}

impl<K> HoldHandle<K> {
    /// Runs a script on the lock's server, and only if this hold still has the lock there: a holder that was paused, or
    /// does not know of its loss yet, writes nothing. Await the returned value.
    ///
    /// The check and the script are one call, so no other client can take the lock in between. The check looks for the
    /// hold's field in the lock's hash, or for the value of a string lock; the token of a
    /// [`FencedLock`](crate::FencedLock) must also be the latest. `keys` and `args` become the script's `KEYS` and
    /// `ARGV`. In a cluster all keys must be in the lock's slot: give the names a common `{tag}`.
    ///
    /// The write runs at most once: it is not resent if it may have run, and without a response it may or may not have
    /// run. With [`once`](GuardedWrite::once) it is resent.
    ///
    /// # What it does not protect
    ///
    /// Data on other servers: use tokens for those, see [`FencedLock`](crate::FencedLock). A failover that loses the
    /// latest writes also loses this one, perhaps together with the lock, and the new primary may then let in another
    /// holder. Redis does not roll back what a script wrote before it failed. While the script runs, the server does
    /// nothing else, so keep it short. The script must not change the lock's keys, or select another database.
    ///
    /// The script runs as the client's Redis user, which needs the permissions for its commands and keys. A reply of
    /// more than 64 MiB or 1,048,576 items ends the connection, and with it other calls in flight.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the lock is not held; nothing ran. If the server is the first to report this, all
    /// holds of the owner are lost, and [`lost`](Self::lost) is ready. Returns [`Error::Misuse`] if the hold was
    /// released.
    ///
    /// Returns [`Error::ScriptFailed`], with the server's message, if the script failed: a mistake in its text, a
    /// refused command (also for a missing permission), an error that it raised or returned, even in a list, or a value
    /// that is nested more than 32 deep or has a metatable. What it had written before stays, and the lock is held.
    /// This includes `READONLY` and `NOREPLICAS` from a command of the script; after `READONLY` the connection is
    /// replaced. With an id both come before the script, as [`Error::Refused`], and nothing ran.
    ///
    /// Returns [`Error::OtherSlot`] if a key is not in the lock's slot; nothing was sent. Returns
    /// [`Error::PermissionDenied`] if the user may not use a key or read the lock, and the other refusals of
    /// [`lock`](crate::Lock::lock); nothing ran. One of these is `TRYAGAIN`, a
    /// [`RefusedKind::ClusterDown`](crate::RefusedKind), while the slot moves and a key of the call does not exist.
    ///
    /// Returns [`Error::NoAnswer`] if no response came within the command timeout: the script may or may not have run,
    /// and while the connection lives it may still run. Also [`Error::UnexpectedReply`], as after `SCRIPT KILL`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before its first poll, or while it waits for a connection, sends nothing. If it is dropped
    /// later, the script runs at most once, and only while the lock is held. The hold does not change.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// use redisson_lock::{Error, Script};
    ///
    /// let sell = Script::new("return redis.call('decrby', KEYS[1], ARGV[1])")?;
    /// client.lock("stock:{42}").run(async |held| {
    ///     let left = held.eval(&sell, &["left:{42}"], &["3"]).await?;
    ///     println!("{:?} left", left.as_int());
    ///     Ok::<_, Error>(())
    /// })
    /// .await
    /// # }
    /// ```
    pub fn eval(&self, script: &Script, keys: &[&str], args: &[impl AsRef<[u8]>]) -> GuardedWrite {
        GuardedWrite {
            hold: self.hold.again(),
            script: script.clone(),
            keys: keys.iter().map(|key| Arc::from(*key)).collect(),
            args: args
                .iter()
                .map(|arg| Arg::Bytes(arg.as_ref().into()))
                .collect(),
        }
    }
}

/// A script that is about to run while a lock is held: see [`HoldHandle::eval`]. Await it.
///
/// # Examples
///
/// ```no_run
/// # async fn run(guard: redisson_lock::LockGuard) -> Result<(), redisson_lock::Error> {
/// let script = redisson_lock::Script::new("return redis.call('incr', KEYS[1])")?;
/// let write: redisson_lock::GuardedWrite = guard.eval(&script, &["sold"], &[""; 0]);
/// println!("{:?}", write.await?);
/// # Ok(()) }
/// ```
#[must_use = "a guarded write is sent when it is awaited"]
pub struct GuardedWrite {
    hold: Hold,
    script: Script,
    keys: Vec<Arc<str>>,
    args: Vec<Arg>,
}

impl GuardedWrite {
    /// Runs the script at most once under this id, by this holder or a later one of the same lock, as long as the
    /// server remembers the id: for `keep`, from the run on. It can therefore be resent within the command timeout, and
    /// by the caller after an [`Error::NoAnswer`].
    ///
    /// The server checks the lock first, then the id. The id is a key with an expiry next to the lock:
    /// `redisson_lock_once:{<lock>}:<id>`, or `redisson_lock_once:<lock>::<id>` if the lock has a `{` in its name. In
    /// the id, `%` and `:` are written `%25` and `%3A`. In a cluster that key must be in the lock's slot: with names
    /// such as `a}b` and `a{b` it never is, and [`Error::OtherSlot`] names it.
    ///
    /// Only the id counts: another script under the same id does not run either. The id is the first write, and Redis
    /// checks `maxmemory` only before it, so the script may exceed that. `SCRIPT KILL` can no longer end a script that
    /// runs for too long.
    ///
    /// A script that fails removes its id and may run again, and what it wrote before it failed stays. If the reply to
    /// a copy that failed is lost, the next copy runs it again.
    ///
    /// # Errors
    ///
    /// See [`eval`](HoldHandle::eval). Also [`Error::InvalidDuration`] if `keep` is shorter than two command timeouts,
    /// because copies are sent within one, or longer than ten years; [`Error::Misuse`] if the id is empty. The Redis
    /// user also needs `+set +exists +pexpire ~redisson_lock_once:*`.
    ///
    /// Also [`Error::NoAnswer`] if the last copy was refused, or was not sent because the hold or the client ended, and
    /// an earlier one got no response. [`Error::Lost`] means that no copy of this call ran without failing; an earlier
    /// call under the id may have. If an earlier copy without a response ran, and then the lock was lost, the call
    /// returns [`Once::DoneBefore`], and [`lost`](HoldHandle::lost) is ready. If that copy failed, it returns
    /// [`Error::Lost`], and what the copy wrote stays.
    ///
    /// # Cancel safety
    ///
    /// See [`eval`](HoldHandle::eval).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(guard: redisson_lock::LockGuard, order: u64) -> Result<(), redisson_lock::Error> {
    /// use redisson_lock::{Once, Script};
    ///
    /// let sell = Script::new("return redis.call('decr', KEYS[1])")?;
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// match guard.eval(&sell, &["left"], &[""; 0]).once(format!("order-{order}"), day).await? {
    ///     Once::Ran(left) => println!("sold, {:?} left", left.as_int()),
    ///     Once::DoneBefore => println!("sold before"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn once(self, id: impl Into<String>, keep: Duration) -> OnceWrite {
        OnceWrite {
            write: self,
            id: id.into(),
            keep,
        }
    }

    async fn run(self) -> Result<Value, Error> {
        match self.send(None).await? {
            Some(value) => Ok(value),
            None => unreachable!("without an id nothing is known of earlier runs"),
        }
    }

    /// `None`: it has run before under the id.
    async fn send(&self, id: Option<(Arc<str>, Duration)>) -> Result<Option<Value>, Error> {
        let shared = self.hold.entry.shared();
        shared
            .on_client_runtime(pin!(async {
                if shared.is_closed() {
                    return Err(Error::Closed);
                }
                self.check_slots(id.as_ref())?;
                let (answer, copies) = self.ask(id.as_ref()).await?;
                self.outcome(answer, copies)
            }))
            .await
    }

    fn check_slots(&self, id: Option<&(Arc<str>, Duration)>) -> Result<(), Error> {
        let Entry { name, .. } = &*self.hold.entry;
        let mut others = self.keys.iter().chain(id.map(|(key, _)| key));
        match others.find(|key| !self.hold.entry.is_beside(key)) {
            None => Ok(()),
            Some(key) => Err(Error::OtherSlot {
                lock: name.given().to_string(),
                key: key.to_string(),
            }),
        }
    }

    /// The answer, and the number of copies up to the answered one.
    async fn ask(&self, id: Option<&(Arc<str>, Duration)>) -> Result<(Guarded, u32), Error> {
        let (entry, doing) = (&self.hold.entry, Operation::Writing);
        let (route, shared) = (entry.route(), entry.shared());
        let mut copies = 0;
        let mut build = || {
            let field = held_as(&self.hold)?;
            copies += 1;
            // Asked whenever a copy goes out, also after a refusal: the hold may have ended meanwhile, and the next
            // one of its owner has the same field.
            let still = Arc::new({
                let (hold, field) = (self.hold.again(), Arc::clone(&field));
                move |enter: &mut dyn FnMut()| {
                    if_held(&hold, |held| (held == Some(&field)).then(enter).is_some())
                }
            });
            let (token, script) = (self.hold.status.token(), &self.script.0);
            let of_user = (&self.keys[..], &self.args[..]);
            let name = entry.name_of(self.hold.key());
            let call = script::guarded(name, (&field, token), script, id, of_user, still);
            Some(call)
        };
        let answer = match id {
            None => script::call_once(route, doing, shared.command_timeout(), build)
                .await
                .map(|answer| answer.map(noted)),
            Some(_) => script::call(route, doing, shared.retry(), &mut build)
                .await
                .map(|answer| Some(noted(answer))),
        };
        match answer {
            Ok(Some(answer)) => Ok((answer, copies)),
            Ok(None) => Err(self.ended()),
            Err(CallError {
                error,
                maybe_executed,
            }) => {
                let is_unsent = copies == 0 || matches!(error, Error::NoAnswer { .. });
                match !maybe_executed && is_unsent && held_as(&self.hold).is_none() {
                    true => Err(self.ended()),
                    false => Err(error),
                }
            }
        }
    }

    fn outcome(&self, answer: Guarded, copies: u32) -> Result<Option<Value>, Error> {
        let Hold { entry, id, .. } = &self.hold;
        match answer {
            Guarded::Ran(value) => Ok(Some(Value::read(value))),
            Guarded::RanBefore => Ok(None),
            Guarded::Failed(text) => Err(Error::script_failed(entry.name.given(), text)),
            Guarded::Lost { reason, ran_before } => {
                entry.lose(self.hold.key(), *id, reason);
                match ran_before && copies > 1 {
                    true => Ok(None),
                    false => Err(self.hold.lost_by(reason)),
                }
            }
        }
    }

    fn ended(&self) -> Error {
        match self.hold.status.ending() {
            Some(Ending::Lost(reason)) => self.hold.lost_by(reason),
            Some(Ending::Released) | None => Error::Misuse {
                problem: "the hold was released: a guarded write needs one",
            },
        }
    }
}

/// The field of the hold, if it has not ended as far as this client knows.
fn held_as(hold: &Hold) -> Option<Arc<str>> {
    if_held(hold, |field| field.cloned())
}

/// Calls this with that field, before anything can end the hold.
fn if_held<T>(hold: &Hold, call: impl FnOnce(Option<&Arc<str>>) -> T) -> T {
    let (owner, id) = (hold.key(), hold.id);
    hold.entry.steps(|core, now, out| {
        core.tell(now, TimePasses {}, out);
        let field = core.snapshot(now, owner, id);
        let field = field.and_then(|_| core.field(owner));
        call(field.as_ref())
    })
}

/// A command of the script may be the only one that finds out that the server takes no writes.
fn noted(answer: ScriptAnswer<Guarded>) -> Guarded {
    if matches!(&answer.value, Guarded::Failed(text) if is_of_a_replica(text)) {
        answer.way.link.note_misplaced();
    }
    answer.value
}

/// A [`GuardedWrite`] that runs at most once under its id: see [`GuardedWrite::once`]. Await it.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn run(write: redisson_lock::GuardedWrite) -> Result<(), redisson_lock::Error> {
/// let write: redisson_lock::OnceWrite = write.once("order-7", Duration::from_secs(60));
/// println!("{:?}", write.await?);
/// # Ok(()) }
/// ```
#[must_use = "a guarded write is sent when it is awaited"]
pub struct OnceWrite {
    write: GuardedWrite,
    id: String,
    keep: Duration,
}

impl OnceWrite {
    async fn run(self) -> Result<Once, Error> {
        let Self { write, id, keep } = self;
        let entry = &write.hold.entry;
        check_keep(keep, entry.shared().command_timeout())?;
        if id.is_empty() {
            let problem = "the id of a guarded write must not be empty";
            return Err(Error::Misuse { problem });
        }
        let key = entry.name.once(&id).into();
        Ok(match write.send(Some((key, keep))).await? {
            Some(value) => Once::Ran(value),
            None => Once::DoneBefore,
        })
    }
}

/// On the heap, as a caller that selects between futures would have room for all of it.
type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl IntoFuture for GuardedWrite {
    type Output = Result<Value, Error>;
    type IntoFuture = Boxed<Value>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl IntoFuture for OnceWrite {
    type Output = Result<Once, Error>;
    type IntoFuture = Boxed<Once>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

// Without the arguments: they are the user's data.
impl fmt::Debug for GuardedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedWrite")
            .field("hold", &self.hold)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OnceWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceWrite")
            .field("write", &self.write)
            .field("id", &self.id)
            .field("keep", &self.keep)
            .finish()
    }
}
