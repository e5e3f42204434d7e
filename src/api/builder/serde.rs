//! A builder in a configuration file: each setting under the name of its method, durations as `30s`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::HandOff;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::LockClientBuilder;
use crate::names::wire::Announce;
use crate::redis::{AddressMap, Credentials, CredentialsProvider, SyncReplicas, Tls};

/// The fields of the builder as the file has them. What is left out has its default, as with the builder.
#[derive(Serialize, Deserialize)]
#[serde(
    remote = "LockClientBuilder",
    default = "LockClientBuilder::new",
    deny_unknown_fields
)]
struct BuilderSettings {
    #[serde(with = "humantime_serde")]
    watchdog_timeout: Duration,
    #[serde(with = "humantime_serde")]
    command_timeout: Option<Duration>,
    connections: usize,
    connection_fence: bool,
    tracking: bool,
    key_prefix: String,
    client_name: Option<String>,
    #[serde(with = "humantime_serde")]
    max_hold: Option<Duration>,
    #[serde(with = "humantime_serde")]
    retry_for: Option<Duration>,
    #[serde(with = "humantime_serde")]
    connect_for: Option<Duration>,
    #[serde(with = "humantime_serde")]
    fair_wait: Duration,
    #[serde(serialize_with = "is_on", deserialize_with = "by_switch")]
    handoff: HandOff,
    #[serde(with = "humantime_serde")]
    close_grace: Option<Duration>,
    /// A secret, which does not belong into a file that is written.
    #[serde(skip)]
    sentinel_credentials: Option<Credentials>,
    #[serde(skip)]
    credentials_provider: Option<Arc<dyn CredentialsProvider>>,
    announce: Announce,
    /// A function does not belong into a file.
    #[serde(
        skip_serializing_if = "has_no_entries",
        serialize_with = "entries",
        deserialize_with = "by_entries"
    )]
    address_map: Option<AddressMap>,
    sync_replicas: Option<SyncReplicas>,
    /// Not written if there are none: a build without TLS does not know the name.
    #[cfg_attr(feature = "tls-rustls", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(not(feature = "tls-rustls"), serde(skip))]
    tls: Option<Tls>,
}

fn is_on<S: Serializer>(handoff: &HandOff, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(handoff.passes > 0)
}

fn by_switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HandOff, D::Error> {
    bool::deserialize(deserializer).map(Into::into)
}

fn has_no_entries(map: &Option<AddressMap>) -> bool {
    !matches!(map, Some(AddressMap::Entries(_)))
}

fn entries<S: Serializer>(map: &Option<AddressMap>, serializer: S) -> Result<S::Ok, S::Error> {
    match map {
        Some(AddressMap::Entries(entries)) => entries.serialize(serializer),
        Some(AddressMap::Function(_)) | None => serializer.serialize_none(),
    }
}

fn by_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AddressMap>, D::Error> {
    let entries = Option::<BTreeMap<String, String>>::deserialize(deserializer)?;
    Ok(entries.map(AddressMap::Entries))
}

impl Serialize for LockClientBuilder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        BuilderSettings::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for LockClientBuilder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BuilderSettings::deserialize(deserializer)
    }
}
