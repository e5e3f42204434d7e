//! A client with the settings of a Redisson configuration file.

mod keys;
mod read;
mod tree;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::api::builder::LockClientBuilder;
use crate::api::client::LockClient;
use crate::error::Error;
use crate::names::wire::Announce;
use read::{Draft, Listeners};

/// The settings in a configuration file of Redisson, and a report of what became of each key.
///
/// `Display` is the report, without any value; `Debug` shows no password. Change further settings with
/// [`map_builder`](Self::map_builder), then [`connect`](Self::connect).
///
/// # Examples
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use redisson_lock::RedissonConfig;
///
/// let text = std::fs::read_to_string("redisson.yaml")?;
/// let config = RedissonConfig::read(&text, |name| std::env::var(name).ok())?;
/// println!("{config}");
/// let client = config.map_builder(|builder| builder.key_prefix("shop:")).connect().await?;
/// # Ok(()) }
/// ```
#[must_use = "a configuration does nothing until it connects"]
pub struct RedissonConfig {
    builder: LockClientBuilder,
    url: String,
    used: Vec<String>,
    not_needed: Vec<(String, &'static str)>,
}

impl RedissonConfig {
    /// Reads a configuration in YAML or JSON, of any version of Redisson: one server, servers behind Sentinel, a
    /// cluster, the primary of `masterSlaveServersConfig`, or a replicated server behind one host name.
    ///
    /// `variable` returns the value of `NAME` for each `${NAME}` and `${NAME:-default}` in a value. Each key is used,
    /// not needed here, or refused. Without `checkLockSyncedSlaves: true` the client waits for no replicas. The sentinels get
    /// `sentinelPassword` alone, also where Redisson would give them `password`. A `timeout`
    /// of a third of `lockWatchdogTimeout` or more is shortened to a bit less than that.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] with everything that is wrong: each key that is refused, with what to do instead; each
    /// unknown key, with the nearest known one; each variable without a value. No value is quoted.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run() -> Result<(), redisson_lock::Error> {
    /// let text = "{ singleServerConfig: { address: \"redis://${HOST:-127.0.0.1}:6379\" }, threads: 16 }";
    /// let config = redisson_lock::RedissonConfig::read(text, |_name| None)?;
    /// assert_eq!(config.used().collect::<Vec<_>>(), ["singleServerConfig.address"]);
    /// assert_eq!(config.not_needed().next().map(|(key, _reason)| key), Some("threads"));
    /// # Ok(()) }
    /// # run().expect("valid");
    /// ```
    pub fn read(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let mut root = tree::parse(text).map_err(|problem| invalid(&[problem]))?;
        let mut missing = BTreeSet::new();
        root.substitute(&variable, &mut missing);
        let read = read::read(&root);
        let missing = missing.iter();
        let mut problems: Vec<String> = missing
            .map(|name| {
                format!("`${{{name}}}` has no value; a default is written `${{{name}:-default}}`")
            })
            .collect();
        match read {
            Ok(draft) if problems.is_empty() => Ok(Self::of(draft)),
            Ok(_) => Err(invalid(&problems)),
            Err(refused) => {
                problems.extend(refused);
                Err(invalid(&problems))
            }
        }
    }

    fn of(draft: Draft) -> Self {
        let mut builder = LockClient::builder();
        let watchdog_timeout = draft.watchdog_timeout.unwrap_or(WATCHDOG_TIMEOUT);
        if draft.watchdog_timeout.is_some() {
            builder = builder.watchdog_timeout(watchdog_timeout);
        }
        if let Some(timeout) = draft.timeout {
            let longest = watchdog_timeout / 3;
            let shorter = longest.saturating_sub(Duration::from_millis(1));
            builder = builder.command_timeout(timeout.min(shorter));
        }
        if let Some(fair_wait) = draft.fair_wait {
            builder = builder.fair_wait(fair_wait);
        }
        if let Some(name) = &draft.client_name {
            builder = builder.client_name(name);
        }
        if let Some(password) = &draft.sentinel_password {
            builder = builder.sentinel_credentials(draft.sentinel_username(), password);
        }
        if let Some(within) = draft.sync_within() {
            let within = within.min(builder.command_timeout_or_default());
            builder = builder.sync_replicas(1, within);
        }
        if let Some(listeners) = draft.listeners() {
            builder = builder.announce(match listeners {
                Listeners::OnReplicas => Announce::Both,
                Listeners::ShardedOnly => Announce::Sharded,
                Listeners::ClassicOnly => Announce::Classic,
            });
        }
        if !draft.address_map.is_empty() {
            builder = builder.address_map(draft.address_map.clone());
        }
        Self {
            builder,
            url: draft.url(),
            used: draft.used,
            not_needed: draft.not_needed,
        }
    }

    /// Changes the builder that has the settings of the file.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(config: redisson_lock::RedissonConfig) {
    /// let config = config.map_builder(|builder| builder.key_prefix("shop:"));
    /// # }
    /// ```
    pub fn map_builder(self, change: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> Self {
        let builder = change(self.builder);
        Self { builder, ..self }
    }

    /// Connects to the servers in the file.
    ///
    /// # Errors
    ///
    /// See [`LockClientBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(config: redisson_lock::RedissonConfig) -> Result<(), redisson_lock::Error> {
    /// let client = config.connect().await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(self) -> Result<LockClient, Error> {
        self.builder.connect(&self.url).await
    }

    /// Returns the builder with the settings of the file, and the URL of its servers, **which contains the password**,
    /// for example for `connect_blocking` or [`scope`](LockClientBuilder::scope).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(config: redisson_lock::RedissonConfig) {
    /// let (builder, url) = config.into_parts();
    /// # }
    /// ```
    pub fn into_parts(self) -> (LockClientBuilder, String) {
        (self.builder, self.url)
    }

    /// Returns the keys that were used, in the order of the file.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(config: redisson_lock::RedissonConfig) {
    /// assert!(config.used().any(|key| key == "singleServerConfig.address"));
    /// # }
    /// ```
    pub fn used(&self) -> impl Iterator<Item = &str> {
        self.used.iter().map(String::as_str)
    }

    /// Returns the keys that are not needed here, with the reason, in the order of the file.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(config: redisson_lock::RedissonConfig) {
    /// for (key, reason) in config.not_needed() {
    ///     println!("{key}: {reason}");
    /// }
    /// # }
    /// ```
    pub fn not_needed(&self) -> impl Iterator<Item = (&str, &str)> {
        let keys = self.not_needed.iter();
        keys.map(|(key, reason)| (key.as_str(), *reason))
    }
}

impl fmt::Display for RedissonConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "used: {}", self.used.join(", "))?;
        for (key, reason) in &self.not_needed {
            write!(f, "\nnot needed: {key} ({reason})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for RedissonConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            builder,
            url: _,
            used,
            not_needed,
        } = self;
        f.debug_struct("RedissonConfig")
            .field("builder", builder)
            .field("used", used)
            .field("not_needed", not_needed)
            .finish_non_exhaustive()
    }
}

fn invalid(problems: &[String]) -> Error {
    Error::InvalidConfig {
        what: "Redisson configuration",
        problem: problems.join("; "),
    }
}

/// Redisson's default, and that of the builder.
const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
