//! The locks that are held, by a pattern of their names.

use std::pin::pin;

use futures_util::future::try_join_all;

use super::client::LockClient;
use crate::error::{Error, Operation};
use crate::lock::Holder;
use crate::redis::SendError;
use crate::script::send_error;

impl LockClient {
    /// Returns the locks of all clients, in Rust and Java, that are held and whose names match `pattern`, sorted by name.
    /// `*` stands for any text, `?` for one character, `[ab]` for one of these; `\` before one of them takes it as it is.
    ///
    /// For dashboards and reports. It reads the whole keyspace of every primary in small steps (`SCAN`), and asks for the
    /// holders of what may be a lock, 32 at a time. A lock that was acquired or released in the meantime may be missing
    /// or listed. String locks are not found, because any string may be one. A hash of another program with a
    /// field like an owner's would be listed.
    ///
    /// Needs Redis 6.0 and the permission `+scan`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Lock::inspect`](crate::Lock::inspect), each step having the command timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// for lock in client.find_held("stock:*").await? {
    ///     println!("{} is held by {}", lock.name, lock.holders[0].owner);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn find_held(&self, pattern: &str) -> Result<Vec<FoundLock>, Error> {
        let shared = self.handle.shared();
        let prefix = &shared.config.key_prefix;
        let matches = format!("{}{pattern}", literal(prefix)).into();
        let finding = async {
            if shared.is_closed() {
                return Err(Error::Closed);
            }
            let keys = shared.redis.keys(&matches, shared.command_timeout()).await;
            let keys = keys.map_err(|error| match error {
                SendError::Refused(source) => {
                    Error::of_connection(Operation::Inspecting, "+scan", source)
                }
                error => send_error(error, Operation::Inspecting),
            })?;
            let names = keys.iter().filter_map(|key| key.strip_prefix(&**prefix));
            let names: Vec<&str> = names.collect();
            let mut found = Vec::new();
            // A few in flight at a time: the server has other clients.
            for names in names.chunks(AT_ONCE) {
                let looks = names.iter().map(|name| self.found(name));
                found.extend(try_join_all(looks).await?.into_iter().flatten());
            }
            Ok(found)
        };
        shared.on_client_runtime(pin!(finding)).await
    }

    /// `None`: it is no lock, or free.
    async fn found(&self, name: &str) -> Result<Option<FoundLock>, Error> {
        let holders = match self.lock(name).inspect().await {
            Ok(holder) => Ok(holder.into_iter().collect()),
            // The hash of a read-write lock is not that of a plain one.
            Err(Error::NotALock { .. }) => {
                let holders = self.rw_lock(name).inspect().await;
                holders.map(|holders| {
                    let all = holders.map(|all| all.writer.into_iter().chain(all.readers));
                    all.into_iter().flatten().collect::<Vec<_>>()
                })
            }
            Err(error) => Err(error),
        };
        match holders {
            Ok(mut holders) => {
                holders.retain(|holder: &Holder| is_owner(&holder.owner));
                let name = name.to_owned();
                Ok((!holders.is_empty()).then_some(FoundLock { name, holders }))
            }
            Err(Error::NotALock { .. } | Error::InvalidName { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A lock that [`find_held`](LockClient::find_held) has found.
///
/// # Examples
///
/// ```no_run
/// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
/// let first: Option<redisson_lock::FoundLock> = client.find_held("*").await?.into_iter().next();
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FoundLock {
    /// The name, without the client's key prefix.
    pub name: String,
    /// At least one; of a read-write lock a writer, then all readers.
    pub holders: Vec<Holder>,
}

/// A pattern that this text alone matches.
fn literal(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^');
    let escape = |c| special(c).then_some('\\').into_iter().chain([c]);
    text.chars().flat_map(escape).collect()
}

/// Whether a field is an owner's, `clientId:threadId` or that with `:write`. Other programs have hashes with one number
/// too.
fn is_owner(field: &str) -> bool {
    let owner = field.strip_suffix(":write").unwrap_or(field);
    owner
        .rsplit_once(':')
        .is_some_and(|(client, thread)| !client.is_empty() && thread.parse::<i64>().is_ok())
}

/// How many locks are inspected at the same time.
const AT_ONCE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_from_other_fields() {
        assert!(is_owner("8743c9c0-0795-4907-87fd-6c719a6b4586:1"));
        assert!(is_owner("some:client:-7"));
        assert!(is_owner("some:client:-7:write"));
        for other in ["visits", ":1", "a:b", "a:"] {
            assert!(!is_owner(other), "{other}");
        }
    }

    #[test]
    fn a_prefix_stands_for_itself() {
        assert_eq!(literal("app:{a}"), "app:{a}");
        assert_eq!(literal(r"a*?[b]\^"), r"a\*\?\[b\]\\\^");
    }
}
