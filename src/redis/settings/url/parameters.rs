//! Reads the parameters of an address.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::redis::settings::address::host_and_port;

/// Another node of the cluster, or another sentinel. May be there several times.
pub(super) const NODE: &str = "node";
/// The sentinels' name for the primary and its replicas.
pub(super) const SERVICE_NAME: &str = "sentinelServiceName";
/// As whom to ask the sentinels.
pub(super) const SENTINEL_USERNAME: &str = "sentinelUsername";
pub(super) const SENTINEL_PASSWORD: &str = "sentinelPassword";

/// The settings in the parameters of a URL.
pub(super) struct Parameters {
    pub(super) nodes: Vec<(String, u16)>,
    pub(super) service_name: Option<String>,
    pub(super) sentinel_credentials: Option<Credentials>,
}

/// As whom to ask the sentinels.
#[derive(Clone)]
pub(crate) struct Credentials {
    /// `None`: the default user.
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Parameters {
    /// Reads what comes after the `?`. `Err`: what is wrong with it, with the name of the parameter and without any
    /// value.
    pub(super) fn read(query: &str, known: &[&'static str]) -> Result<Self, String> {
        let mut nodes = Vec::new();
        let (mut service_name, mut user, mut password) = (None, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            // The name of the list: none that was given is quoted unless it is harmless.
            let known = known.iter().find(|known| **known == name);
            let name = *known.ok_or_else(|| unknown(name))?;
            let wrong = |problem| format!("the parameter `{name}` {problem}");
            let value = percent_decode_str(value).decode_utf8();
            let value = value.map_err(|_| wrong("is not UTF-8 when it is decoded"))?;
            if value.is_empty() {
                return Err(wrong("has no value"));
            }
            let once = match name {
                NODE => {
                    // Without a port it has the 0, which is no port.
                    let node = host_and_port(&value, 0).ok().filter(|(_, port)| *port > 0);
                    nodes.push(node.ok_or_else(|| wrong("is not host:port"))?);
                    continue;
                }
                SERVICE_NAME => &mut service_name,
                SENTINEL_USERNAME => &mut user,
                _ => &mut password,
            };
            if once.replace(value.into_owned()).is_some() {
                return Err(wrong("is there more than once"));
            }
        }
        if user.is_some() && password.is_none() {
            return Err(format!(
                "the parameter `{SENTINEL_USERNAME}` needs `{SENTINEL_PASSWORD}`"
            ));
        }
        Ok(Self {
            nodes,
            service_name,
            sentinel_credentials: password.map(|password| Credentials { user, password }),
        })
    }
}

fn unknown(name: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    match name.len() <= NAME_SHOWN_MAX && name.bytes().all(is_word) {
        true => format!("unknown parameter `{name}`"),
        // It may be part of a password whose `?` was not encoded.
        false => "unknown parameter".to_owned(),
    }
}

/// A longer name is no mistake in a name.
const NAME_SHOWN_MAX: usize = 40;
