//! The names that Redisson also writes: keys, channels and hash fields; and the key of a guarded write's id,
//! which only this crate writes.
//!
//! Values only, no I/O. No other file of this crate builds such a name. The names are those of Redisson 3.5.5
//! to 4.7.0 (see `docs/protocol.md`). The unlock message, `0`, is in `lua/` and `redis/link.rs`.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use redisson_lock_core::Face;

use crate::error::{Error, pattern_of};
use crate::kind::LockKind;

/// A lock's name: as the user gave it, and as Redis has it.
#[derive(Debug, Clone)]
pub(crate) struct LockName {
    /// With the prefix.
    key: Arc<str>,
    prefix_bytes: u32,
    /// Made when it is first needed: a lock that is only held needs none.
    channel: OnceLock<Arc<str>>,
    /// `None`: a plain lock. Apart, so that those need no room for it.
    not_plain: Option<Box<NotPlain>>,
}

#[derive(Debug, Clone)]
struct NotPlain {
    kind: LockKind,
    /// The key of the token, if the kind has one.
    token: Option<Arc<str>>,
    /// The keys of the queue and of the times when its places end, if the kind has them.
    queue: Option<[Arc<str>; 2]>,
    /// The name of the other part, if the lock has two.
    other_face: Option<Box<LockName>>,
}

impl LockName {
    /// Checks the name and derives the key and channel. The prefix replaces Redisson's
    /// `NameMapper`: it is part of the raw name, from which the channel is built.
    pub(crate) fn new(kind: LockKind, prefix: &str, given: &str) -> Result<Self, Error> {
        if given.is_empty() {
            return Err(Error::InvalidName {
                name: String::new(),
                problem: "a lock name must not be empty",
            });
        }
        let key = format!("{prefix}{given}");
        if key.len() > NAME_BYTES_MAX {
            let shown: String = given.chars().take(40).collect();
            return Err(Error::InvalidName {
                name: format!("{shown}…"),
                problem: "a lock name with its prefix has at most 65536 bytes",
            });
        }
        let not_plain = (kind != LockKind::Plain).then(|| {
            let token = || braced("redisson_lock_token", &key).into();
            let token = kind.has_token().then(token);
            let queue = ["redisson_lock_queue", "redisson_lock_timeout"];
            let queue = || queue.map(|name| braced(name, &key).into());
            let queue = kind.has_queue().then(queue);
            Box::new(NotPlain {
                kind,
                token,
                queue,
                other_face: None,
            })
        });
        let mut name = Self {
            key: key.into(),
            prefix_bytes: u32::try_from(prefix.len()).unwrap_or_default(),
            channel: OnceLock::new(),
            not_plain,
        };
        name.add_other_face();
        Ok(name)
    }

    fn add_other_face(&mut self) {
        let (mut other, other_kind) = match self.kind().face() {
            Face::Only => return,
            Face::Read => (self.clone(), self.kind().with_face(Face::Write)),
            Face::Write => (self.clone(), self.kind().with_face(Face::Read)),
        };
        if let (Some(own), Some(not_plain)) = (&mut self.not_plain, &mut other.not_plain) {
            not_plain.kind = other_kind;
            own.other_face = Some(Box::new(other));
        }
    }

    /// The name of this part of the lock, as the name of an entry has both: that of the other part, which this may return,
    /// has itself alone.
    pub(crate) fn of_face(&self, face: Face) -> &Self {
        let other = self.not_plain.as_deref();
        let other = other.and_then(|not_plain| not_plain.other_face.as_deref());
        match other {
            Some(other) if self.kind().face() != face => other,
            _ => self,
        }
    }

    pub(crate) fn kind(&self) -> LockKind {
        let not_plain = self.not_plain.as_deref();
        not_plain.map_or(LockKind::Plain, |not_plain| not_plain.kind)
    }

    /// The name as the user gave it.
    pub(crate) fn given(&self) -> &str {
        self.key
            .get(self.prefix_bytes as usize..)
            .unwrap_or_default()
    }

    /// The key of the lock: a hash, or the string of a string lock.
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub(crate) fn token(&self) -> Option<&Arc<str>> {
        self.not_plain.as_deref()?.token.as_ref()
    }

    /// The keys of the queue of a fair lock: its list, and the times when places end.
    pub(crate) fn queue(&self) -> Option<&[Arc<str>; 2]> {
        self.not_plain.as_deref()?.queue.as_ref()
    }

    /// The channel on which the owner with this field hears that it may have a fair lock.
    pub(crate) fn channel_of(&self, field: &str) -> Arc<str> {
        format!("{}:{field}", self.channel()).into()
    }

    /// The field of the lock's hash in which the holds of an owner with this field are counted.
    pub(crate) fn counted_in(&self, field: &Arc<str>) -> Arc<str> {
        match self.kind().face() {
            Face::Only | Face::Read => Arc::clone(field),
            Face::Write => format!("{field}{WRITES}").into(),
        }
    }

    /// The key that covers the first read hold of an owner with this field; the scripts derive the others from it.
    pub(crate) fn first_read(&self, field: &str) -> Option<Arc<str>> {
        let reads = self.kind().face() == Face::Read;
        reads.then(|| self.first_read_of(field))
    }

    /// That key, whichever part of the lock this name is of.
    pub(crate) fn first_read_of(&self, field: &str) -> Arc<str> {
        first_read(&self.key, field)
    }

    /// The key that covers this read hold of an owner with this field.
    pub(crate) fn nth_read(&self, field: &str, hold: u32) -> Option<Arc<str>> {
        let first = self.first_read(field)?;
        let prefix = first.strip_suffix('1')?;
        Some(format!("{prefix}{hold}").into())
    }

    /// The permission for those of all owners, as a rule of an ACL.
    pub(crate) fn all_reads(&self) -> String {
        all_reads(&self.key)
    }

    /// The key of a guarded write's id. No other lock and id have the same key, because the id has no colon in it, and
    /// a lock's key to which no braces are added is followed by two.
    pub(crate) fn once(&self, id: &str) -> String {
        let id = id.replace('%', "%25").replace(':', "%3A");
        let more = if self.key.contains('{') { ":" } else { "" };
        format!("{}{more}:{id}", braced("redisson_lock_once", &self.key))
    }

    /// The channel on which the last unlock is announced.
    pub(crate) fn channel(&self) -> &Arc<str> {
        self.channel.get_or_init(|| self.channel_text().into())
    }

    /// Builds the name of that channel without keeping it.
    pub(crate) fn channel_text(&self) -> String {
        channel_of_kind(self.kind(), &self.key)
    }
}

/// A lock as the one with its key, whatever its kind.
pub(crate) struct ByKey(pub(crate) Arc<LockName>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key().cmp(other.0.key())
    }
}

/// The channels on which the clients of a cluster publish that a lock is free. Outside a cluster it is always
/// [`Classic`](Self::Classic).
///
/// A cluster has two kinds of channels: classic ones, whose messages go to every node, and sharded ones, whose messages
/// stay on the primary that has the lock and its replicas. Redisson 3.24.3 and newer use sharded ones if the
/// server has them; 3.20.0 and older use classic ones.
///
/// # Examples
///
/// ```no_run
/// use redisson_lock::{Announce, LockClient};
/// let builder = LockClient::builder().announce(Announce::Both);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Announce {
    /// Sharded, and also classic if a client is subscribed to the classic channel on the primary that has the
    /// lock. Subscribes to both. For fleets with Redisson 3.20 or newer; older ones subscribe on other nodes and need
    /// [`Both`](Self::Both). Classic if the servers have no sharded channels, which came with Redis 7.0.
    #[default]
    Auto,
    /// Sharded only: for fleets without old Redisson versions. It costs the cluster least.
    Sharded,
    /// Classic only: for old servers, and Redisson with `shardedSubscriptionMode=OFF`.
    Classic,
    /// Both, always: for Redisson before 3.20, or Redisson that subscribes on replicas (`subscriptionMode=SLAVE`). It
    /// costs the cluster most.
    Both,
}

impl Announce {
    /// Whether the client subscribes to classic channels.
    pub(crate) fn hears_classic(self) -> bool {
        self != Self::Sharded
    }

    /// Whether the client subscribes to sharded channels.
    pub(crate) fn hears_sharded(self) -> bool {
        self != Self::Classic
    }
}

/// What Redis has for an owner: the field of a lock hash, or the value of a string lock. `clientId:threadId`.
pub(crate) fn field(client_id: &str, thread_id: i64) -> Arc<str> {
    // Each call of a task makes one, and a client's own id leaves room for any number.
    let mut buffer = [0; FIELD_USUAL];
    let mut rest = buffer.as_mut_slice();
    let written = write!(rest, "{client_id}:{thread_id}");
    let length = FIELD_USUAL - rest.len();
    let field = std::str::from_utf8(&buffer[..length]);
    match (written, field) {
        (Ok(()), Ok(field)) => field.into(),
        _ => format!("{client_id}:{thread_id}").into(),
    }
}

const FIELD_USUAL: usize = 64;

/// Whether a field was written by this client. The part after the colon belongs to the writer and
/// is not parsed.
pub(crate) fn is_field_of(client_id: &str, field: &str) -> bool {
    field
        .strip_prefix(client_id)
        .is_some_and(|rest| rest.starts_with(':'))
}

/// The owner of a field in the hash of a lock with two parts, and its part.
pub(crate) fn owner_in_lock(field: &str) -> (&str, Face) {
    let writer = field.strip_suffix(WRITES);
    writer.map_or((field, Face::Read), |writer| (writer, Face::Write))
}

/// The part which a field in the hash of a lock with two parts is of.
pub(crate) fn face_in_lock(field: &[u8]) -> Face {
    match field.ends_with(WRITES.as_bytes()) {
        true => Face::Write,
        false => Face::Read,
    }
}

/// How the field of an owner that writes ends.
const WRITES: &str = ":write";

/// See [`LockName::first_read`].
pub(crate) fn first_read(key: &str, field: &str) -> Arc<str> {
    let hold = format!(":{field}{READ}");
    let key = if key.contains('{') {
        format!("{key}{hold}")
    } else {
        format!("{{{key}}}{hold}")
    };
    key.into()
}

/// Whether a key is one that covers a read hold.
pub(crate) fn is_read(key: &str) -> bool {
    key.ends_with(READ)
}

/// How the key ends that covers the first read hold of an owner.
const READ: &str = ":rwlock_timeout:1";

/// See [`LockName::all_reads`].
pub(crate) fn all_reads(key: &str) -> String {
    let key = pattern_of(key);
    if key.contains('{') {
        format!("~{key}:*")
    } else {
        format!("~{{{key}}}:*")
    }
}

fn channel_of_kind(kind: LockKind, key: &str) -> String {
    match kind.has_faces() {
        true => faces_channel(key),
        false => channel(key),
    }
}

/// The channel of the key of a lock with two parts.
pub(crate) fn faces_channel(key: &str) -> String {
    braced("redisson_rwlock", key)
}

/// The channel of a key. Redisson's `prefixName`: braces are added unless the name contains an opening one anywhere.
pub(crate) fn channel(key: &str) -> String {
    braced("redisson_lock__channel", key)
}

fn braced(prefix: &str, key: &str) -> String {
    match key.contains('{') {
        true => format!("{prefix}:{key}"),
        false => format!("{prefix}:{{{key}}}"),
    }
}

/// Longest key, in bytes.
const NAME_BYTES_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn channel_of(name: &str) -> String {
        LockName::new(LockKind::Plain, "", name)
            .expect("valid")
            .channel()
            .to_string()
    }

    #[test]
    fn a_field_has_the_client_and_the_thread_however_long_they_are() {
        for length in [1, 36, 43, 44, 62, 63, 64, 200] {
            for thread in [0, 7, -1, i64::MAX, i64::MIN] {
                let client = "c".repeat(length);
                assert_eq!(*field(&client, thread), format!("{client}:{thread}"));
            }
        }
    }

    #[test]
    fn channel_is_braced_unless_the_name_has_an_opening_brace() {
        assert_eq!(channel_of("a"), "redisson_lock__channel:{a}");
        assert_eq!(channel_of("a:b"), "redisson_lock__channel:{a:b}");
        assert_eq!(channel_of("{t}:a"), "redisson_lock__channel:{t}:a");
        assert_eq!(channel_of("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(channel_of("a}b"), "redisson_lock__channel:{a}b}");
    }

    #[test]
    fn prefix_is_part_of_key_and_channel_but_not_of_the_given_name() {
        let name = LockName::new(LockKind::Plain, "app:", "a").expect("valid");
        assert_eq!(name.given(), "a");
        assert_eq!(&**name.key(), "app:a");
        assert_eq!(&**name.channel(), "redisson_lock__channel:{app:a}");
    }

    #[test]
    fn empty_and_endless_names_are_refused() {
        let name = |prefix, given: &str| LockName::new(LockKind::Plain, prefix, given);
        assert!(name("app:", "").is_err());
        assert!(name("", &"x".repeat(NAME_BYTES_MAX)).is_ok());
        assert!(name("p", &"x".repeat(NAME_BYTES_MAX)).is_err());
    }

    #[test]
    fn the_key_of_an_id_is_that_of_no_other_lock_and_id() {
        let once = |name: &str, id: &str| {
            let name = LockName::new(LockKind::Plain, "", name).expect("valid");
            name.once(id)
        };
        assert_eq!(once("a", "7"), "redisson_lock_once:{a}:7");
        assert_eq!(once("{t}:a", "7"), "redisson_lock_once:{t}:a::7");
        assert_eq!(once("a", "b:7%"), "redisson_lock_once:{a}:b%3A7%25");
        let parts = [
            "", "a", "b", ":", "::", "{", "}", "{a}", "}:", "%", "%3A", "7",
        ];
        let texts: Vec<String> = parts
            .iter()
            .flat_map(|a| parts.iter().map(move |b| format!("{a}{b}")))
            .collect();
        let mut seen = std::collections::HashMap::new();
        for name in texts.iter().filter(|name| !name.is_empty()) {
            for id in &texts {
                let before = seen.insert(once(name, id), (name, id));
                assert!(
                    before.is_none_or(|before| before == (name, id)),
                    "{before:?}, {:?}",
                    (name, id)
                );
            }
        }
    }

    #[test]
    fn a_field_belongs_to_a_client_only_up_to_the_colon() {
        assert!(is_field_of("ab", "ab:1"));
        assert!(!is_field_of("ab", "abc:1"));
        assert!(!is_field_of("ab", "ab"));
    }
}
