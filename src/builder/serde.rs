//! A builder in a configuration file: each setting under the name of its method, durations as `30s`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::LockClientBuilder;
use crate::core::HandOver;

/// What stands in the file. What is left out has its default, as with the builder.
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    #[serde(with = "humantime_serde")]
    watchdog_timeout: Duration,
    #[serde(with = "humantime_serde")]
    command_timeout: Option<Duration>,
    connections: usize,
    connection_fence: bool,
    key_prefix: String,
    client_name: Option<String>,
    #[serde(with = "humantime_serde")]
    max_hold: Option<Duration>,
    #[serde(with = "humantime_serde")]
    retry_for: Option<Duration>,
    handover: HandOver,
}

impl Default for Settings {
    fn default() -> Self {
        LockClientBuilder::new().into()
    }
}

impl From<LockClientBuilder> for Settings {
    fn from(builder: LockClientBuilder) -> Self {
        let LockClientBuilder {
            watchdog_timeout,
            command_timeout,
            connections,
            connection_fence,
            key_prefix,
            client_name,
            max_hold,
            retry_for,
            handover,
        } = builder;
        Self {
            watchdog_timeout,
            command_timeout,
            connections,
            connection_fence,
            key_prefix,
            client_name,
            max_hold,
            retry_for,
            handover,
        }
    }
}

impl From<Settings> for LockClientBuilder {
    fn from(settings: Settings) -> Self {
        let Settings {
            watchdog_timeout,
            command_timeout,
            connections,
            connection_fence,
            key_prefix,
            client_name,
            max_hold,
            retry_for,
            handover,
        } = settings;
        Self {
            watchdog_timeout,
            command_timeout,
            connections,
            connection_fence,
            key_prefix,
            client_name,
            max_hold,
            retry_for,
            handover,
        }
    }
}

impl Serialize for LockClientBuilder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Settings::from(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LockClientBuilder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Settings::deserialize(deserializer).map(Self::from)
    }
}
