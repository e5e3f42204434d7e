//! Guarded writes: scripts of the user that run only while the lock is held.
//!
//! The look at the lock and the user's script are one script call, so no other client can take the lock between them. It goes
//! over the connection of the lock's other commands: after a reconnect the fence keeps a late copy out, as it does for
//! those.

mod value;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use crate::core::Ending;
use crate::error::{Error, Operation, is_of_a_replica};
use crate::lock::hold_handle::{Hold, HoldHandle};
use crate::redis::Arg;
use crate::script::{self, CallError, Guarded, ScriptAnswer};
use crate::state::bounds::check_keep;
use crate::state::entry::Entry;

pub use value::Value;

/// A script of Lua for [guarded writes](HoldHandle::eval). Cheap to clone.
///
/// It has `KEYS` and `ARGV`, and can do what a script of `EVAL` can, with three exceptions: it must not yield, its outermost
/// block has at most 198 locals, and the globals `_G.KEYS` and `_G.ARGV` are those of the whole call. The server compiles
/// it for each write, which is sent with its text and takes longer than the script itself if that is short.
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
    /// A script with this text. Whether it is correct Lua the server says at each write: [`Error::ScriptFailed`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the text begins with `#!`: the script runs inside of one of this crate, to which
    /// flags do not apply.
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

    /// The text.
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
    /// It has run before under this id, perhaps by an earlier copy of this very call: what it returned is not known.
    DoneBefore,
}

impl<K> HoldHandle<K> {
    /// Runs a script on the server of the lock, and only if this hold still has the lock there: a holder that was
    /// paused, or that has not heard of its loss yet, writes nothing. Await what it returns.
    ///
    /// The look and the script are one call, so no other client can take the lock in between. The look is for the hold's field in the lock's
    /// hash; of a [`FencedLock`](crate::FencedLock) its token has to be the latest too; of a string lock it is for its
    /// value. `keys` and `args` become `KEYS` and `ARGV` of the script. In a cluster all keys have to be in the slot
    /// of the lock: give the names a common `{tag}`.
    ///
    /// The write runs at most once: it is not sent again if it may have run, and without an answer it ran or it did not.
    /// With [`once`](GuardedWrite::once) it is sent again.
    ///
    /// # What it does not protect
    ///
    /// Data on other servers: for those there are tokens, see [`FencedLock`](crate::FencedLock). A failover that loses
    /// the latest writes loses this one too, perhaps together with the lock; the new primary then may let in another
    /// holder. Redis does not undo what a script wrote before it failed. While the script runs, the server does nothing
    /// else: keep it short. The script must not change the keys of the lock, and not select another database.
    ///
    /// The script runs as the Redis user of the client, which needs the permissions for its commands and its keys. A
    /// reply of more than 64 MiB or 1,048,576 items ends the connection, and with it the calls of others under way.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is not held: nothing ran. If the server is the first to say so, all holds of the owner are
    /// lost, and [`lost`](Self::lost) is ready. [`Error::Misuse`] if the hold was released.
    ///
    /// [`Error::ScriptFailed`] if the script failed, with the server's message: a mistake in its text, a command that was
    /// refused (also for a missing permission), or an error that it raised or returned, in a list too, or a value that
    /// is nested more than 32 deep or has a metatable. What it had written before stays, and the lock is held. `READONLY` from a command
    /// of the script is one too, and `NOREPLICAS`; after `READONLY` the connection is replaced. With an id both come
    /// before the script: they are [`Error::Refused`], and nothing ran.
    ///
    /// [`Error::OtherSlot`] if a key is in another slot than the lock: nothing was sent. [`Error::PermissionDenied`] if
    /// the user may not use a key, or may not look at the lock; and the other refusals of [`lock`](crate::Lock::lock): nothing ran.
    /// `TRYAGAIN`, a [`RefusedKind::ClusterDown`](crate::RefusedKind), is one while the slot moves and a key of the call does not exist.
    ///
    /// [`Error::NoAnswer`] if no answer came within the command timeout: it ran, or it did not, and as long as the
    /// connection lives it may still run. Also [`Error::UnexpectedReply`], for instance after `SCRIPT KILL`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before its first poll, or while it waits for a connection, sends nothing. Later, the script runs at
    /// most once, and only while the lock is held. It changes nothing of the hold.
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
    /// Has the script run at most once under this id, by this holder or a later one of the same lock, as long as the
    /// server remembers the id: for `keep`, from the run on. So it can be sent again, within the command timeout, and by the caller
    /// after an [`Error::NoAnswer`].
    ///
    /// The lock is looked at first, then the id. The id is a key with an expiry beside the lock:
    /// `redisson_lock_once:{<lock>}:<id>`, or `redisson_lock_once:<lock>::<id>` if the lock has a `{` in its name. In the
    /// id `%` and `:` are written `%25` and `%3A`. In a cluster that key has to be in the slot of the lock: with names
    /// such as `a}b` and `a{b` it never is, and [`Error::OtherSlot`] names it.
    ///
    /// The id alone counts: another script under the same id does not run either. The id is the first write, and Redis
    /// looks at `maxmemory` only before that: the script may write beyond it. A script that runs for too long can no
    /// longer be ended by `SCRIPT KILL`.
    ///
    /// A script that fails takes its id back and may run again, and what it wrote before it failed stays. If it does, and
    /// the answer of a copy is lost, the next copy runs it again.
    ///
    /// # Errors
    ///
    /// As [`eval`](HoldHandle::eval). [`Error::InvalidDuration`] if `keep` is shorter than two command timeouts, as copies
    /// are sent within one, or longer than ten years; [`Error::Misuse`] if the id is empty. The Redis user also needs
    /// `+set +exists +pexpire ~redisson_lock_once:*`.
    ///
    /// [`Error::NoAnswer`] also if the last copy was refused, or not sent as the hold or the client ended, and an earlier one has no
    /// answer. [`Error::Lost`] says that no copy of this call has run and not failed; an earlier call under the id may have. If an
    /// earlier copy without an answer has run, and then the lock was lost, the answer is [`Once::DoneBefore`], and [`lost`](HoldHandle::lost) is ready; if that
    /// copy has failed, it is [`Error::Lost`], and what it wrote stays.
    ///
    /// # Cancel safety
    ///
    /// As [`eval`](HoldHandle::eval).
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
            // Looked at whenever a copy goes out, also after a refusal: the hold may have ended meanwhile, and the next
            // one of its owner has the same field.
            let still = Arc::new({
                let (hold, field) = (self.hold.again(), Arc::clone(&field));
                move || held_as(&hold).as_ref() == Some(&field)
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
    let (owner, id) = (hold.key(), hold.id);
    hold.entry.step(|core, now, out| {
        core.tick(now, out);
        core.snapshot(now, owner, id)?;
        core.field(owner)
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
