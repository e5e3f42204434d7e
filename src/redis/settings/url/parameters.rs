//! Reads the parameters of a URL, and what other clients write in its path instead.

use percent_encoding::percent_decode_str;

use super::foreign;
use super::scheme::{DATABASE, NODE, SENTINEL_PASSWORD, SENTINEL_USERNAME, SERVICE_NAME, Scheme};
use crate::redis::settings::address::{host_and_port, number};
use crate::redis::settings::credentials::Credentials;

/// The settings in the parameters of a URL.
pub(super) struct Parameters {
    pub(super) database: Option<u8>,
    pub(super) nodes: Vec<(String, u16)>,
    pub(super) service_name: Option<String>,
    pub(super) sentinel_credentials: Option<Credentials>,
}

impl Parameters {
    /// Reads what comes after the `?`. `Err`: what is wrong with it, with the name of the parameter and without any
    /// value.
    pub(super) fn read(query: &str, kind: Scheme) -> Result<Self, String> {
        let mut nodes = Vec::new();
        let (mut database, mut service_name) = (None, None);
        let (mut user, mut password) = (None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            // The name of the list: none that was given is quoted unless it is harmless.
            let synonym = SYNONYMS.iter().find(|(foreign, _)| *foreign == name);
            let own = synonym.map_or(name, |(_, own)| own);
            let known = kind.parameters().iter().find(|known| **known == own);
            let name = *known.ok_or_else(|| unknown(name))?;
            let given = synonym.map_or(name, |(foreign, _)| foreign);
            let wrong = |problem: &str| format!("the parameter `{given}` {problem}");
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
                DATABASE => &mut database,
                SERVICE_NAME => &mut service_name,
                SENTINEL_USERNAME => &mut user,
                _ => &mut password,
            };
            if once.replace(value.into_owned()).is_some() {
                return Err(match given == name {
                    true => wrong("is there more than once"),
                    false => wrong(&format!("says the same as `{name}`, which is there too")),
                });
            }
        }
        if user.is_some() && password.is_none() {
            return Err(format!(
                "the parameter `{SENTINEL_USERNAME}` needs `{SENTINEL_PASSWORD}`"
            ));
        }
        let database = database.map(|database| number(&database).ok_or(NO_DATABASE));
        Ok(Self {
            database: database.transpose()?,
            nodes,
            service_name,
            sentinel_credentials: password.map(|password| Credentials { user, password }),
        })
    }

    /// Reads the path of the URL of a server, with or without a `/` at its end.
    pub(super) fn database_in_path(&mut self, path: &str) -> Result<(), &'static str> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let Some(database) = path.strip_prefix('/') else {
            return Ok(());
        };
        let database = number(database).ok_or(NO_DATABASE)?;
        match self.database.replace(database) {
            Some(other) if other != database => {
                Err("there are two databases, in the path and in `db`")
            }
            _ => Ok(()),
        }
    }

    /// The sentinels' name for their primary, where other clients write it: `/name`, `/name/database`, `/database#name`.
    /// Returns what is left of the path.
    pub(super) fn named_in_path<'a>(
        &mut self,
        path: &'a str,
        fragment: Option<&str>,
    ) -> Result<&'a str, &'static str> {
        let first = path.strip_prefix('/').unwrap_or(path);
        let first = first.split('/').next().unwrap_or_default();
        let is_database = first.bytes().all(|byte| byte.is_ascii_digit());
        let (name, path) = match is_database {
            true => (fragment, path),
            false => (Some(first), &path[1 + first.len()..]),
        };
        if !is_database && fragment.is_some() {
            return Err(TWO_NAMES);
        }
        let Some(name) = name else { return Ok(path) };
        let name = percent_decode_str(name).decode_utf8();
        let name = name.map_err(|_| "the sentinels' name is not UTF-8 when it is decoded")?;
        match self.service_name.replace(name.clone().into_owned()) {
            Some(other) if other != *name => Err(TWO_NAMES),
            _ => Ok(path),
        }
    }
}

const TWO_NAMES: &str = "the sentinels' name is there twice";

const NO_DATABASE: &str = "the database is not a number up to 255";

/// What other clients call our parameters.
const SYNONYMS: [(&str, &str); 7] = [
    ("database", DATABASE),
    ("addr", NODE),
    ("master", SERVICE_NAME),
    ("masterName", SERVICE_NAME),
    ("master_name", SERVICE_NAME),
    ("sentinelMasterId", SERVICE_NAME),
    ("service_name", SERVICE_NAME),
];

fn unknown(name: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    match name.len() <= NAME_SHOWN_MAX && name.bytes().all(is_word) {
        true => match foreign::instead(name) {
            Some(instead) => format!("unknown parameter `{name}`: {instead}"),
            None => format!("unknown parameter `{name}`"),
        },
        // It may be part of a password whose `?` was not encoded.
        false => "unknown parameter".to_owned(),
    }
}

/// A longer name is no mistake in a name.
const NAME_SHOWN_MAX: usize = 40;
