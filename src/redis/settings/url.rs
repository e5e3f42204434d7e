//! Reads the URL of a server, of the nodes of a cluster, or of sentinels.
//!
//! No parser of URLs does this: those that keep to the grammar refuse passwords that say what they mean (`p@ss`, `a^b`,
//! `100%`) and IPv6 addresses in parameters, and none says which part is wrong without quoting it.

mod foreign;
mod parameters;
mod scheme;

use percent_encoding::percent_decode_str;

use super::Tls;
use super::address::{Address, host_and_port};
use super::credentials::Credentials;
use super::given::{Given, GivenPlace};
use super::server::{ServerPlace, SessionSettings};
use crate::error::{self, Error};
use parameters::Parameters;
use scheme::Scheme;

/// Parses a URL. No message quotes more of it than its scheme and the name of a parameter: the rest may
/// contain a password.
pub(super) fn parse(url: &str, tls: Option<&Tls>) -> Result<Given, Error> {
    let parts = bare(url).split_once("://");
    let parts = parts.filter(|(scheme, _)| is_scheme(scheme));
    let missing = || malformed(Scheme::Server, "the scheme is missing");
    let (scheme, rest) = parts.ok_or_else(missing)?;
    // The parser treats any unknown scheme as a plain connection, `redis+tls` as well.
    let known = SCHEMES
        .iter()
        .find(|(known, _)| scheme.eq_ignore_ascii_case(known));
    let Some(&(_, kind)) = known else {
        return Err(invalid(&format!(
            "unknown scheme {}://: use redis:// or valkey://, with TLS rediss:// or valkeys://, for a Unix socket \
             redis+unix:// or valkey+unix://, for a cluster redis-cluster://, behind Sentinel redis-sentinel://",
            error::shorten(scheme)
        )));
    };
    if tls.is_some() && !is_tls(scheme) {
        return Err(Error::InvalidConfig {
            what: "tls",
            problem: "the URL asks for no TLS: begin it with rediss:// or valkeys://, or leave out the settings"
                .to_owned(),
        });
    }
    let given = read(kind, rest).map_err(|problem| malformed(kind, &problem))?;
    match is_tls(scheme) {
        true => secured(given, tls),
        false => Ok(given),
    }
}

/// The URL without what a file or a shell has put around it: blanks, quotes, and the name of a variable.
fn bare(text: &str) -> &str {
    let text = text.trim_ascii();
    let is_name = |name: &str| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let value = text.split_once('=').filter(|(name, _)| is_name(name));
    let value = value.map_or(text, |(_, value)| value.trim_ascii());
    let quotes = ['"', '\''].into_iter();
    let mut quoted = quotes.filter_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    quoted.next().map_or(value, str::trim_ascii)
}

#[cfg(feature = "tls-rustls")]
fn secured(mut given: Given, tls: Option<&Tls>) -> Result<Given, Error> {
    let default = Tls::default();
    let tls = tls.unwrap_or(&default);
    given.session.tls = Some(tls.client()?);
    for host in given.place.hosts_mut() {
        host.tls_name = tls.name().map(Into::into);
    }
    Ok(given)
}

#[cfg(not(feature = "tls-rustls"))]
pub(super) const NO_TLS: &str =
    "TLS is not compiled in: enable the feature `tls-rustls` of redisson-lock";

#[cfg(not(feature = "tls-rustls"))]
fn secured(_given: Given, _none: Option<&Tls>) -> Result<Given, Error> {
    Err(invalid(NO_TLS))
}

/// Reads a URL of a known scheme from after its `://`, all but TLS. `Err`: what is wrong with it.
fn read(kind: Scheme, rest: &str) -> Result<Given, String> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    if !matches!(kind, Scheme::Socket) && after.contains('@') {
        return Err(PERCENT_ENCODED.to_owned());
    }
    let (login, host) = match authority.rsplit_once('@') {
        Some((login, host)) => (Some(login), host),
        None => (None, authority),
    };
    let (user, password) = read_login(login.unwrap_or_default())?;
    let (after, fragment) = match after.split_once('#') {
        Some((after, fragment)) => (after, Some(fragment)),
        None => (after, None),
    };
    let (path, query) = after.split_once('?').unwrap_or((after, ""));
    let mut parameters = Parameters::read(query, kind)?;
    let (user, password) = (decoded(user)?, decoded(password)?);
    let mut hosts = Vec::new();
    match kind {
        Scheme::Socket => {}
        Scheme::Server if host.contains(',') => return Err(SEVERAL_HOSTS.to_owned()),
        Scheme::Server | Scheme::Cluster | Scheme::Sentinel => {
            // They come before the nodes of the query: they are asked first.
            for host in host.split(',') {
                hosts.push(host_and_port(host, kind.default_port())?);
            }
            let path = match kind {
                Scheme::Sentinel => parameters.named_in_path(path, fragment)?,
                _ => path,
            };
            parameters.database_in_path(path)?;
        }
    }
    match (kind, fragment) {
        (Scheme::Sentinel, _) | (_, None) => {}
        (_, Some("insecure")) => return Err(foreign::VERIFIED.to_owned()),
        (_, Some(_)) => return Err("a `#` is written as %23".to_owned()),
    }
    hosts.extend(parameters.nodes);
    let given = |(host, port): (String, u16)| Address::named(&host, port, &Address::default());
    let mut hosts = hosts.into_iter().map(|host| given(host).into());
    let place = match (kind, parameters.service_name) {
        (Scheme::Socket, _) => GivenPlace::Socket(socket(path, host, login.is_some())?),
        (Scheme::Server, _) => GivenPlace::Server(hosts.next().ok_or("the host is missing")?),
        (Scheme::Cluster, _) => GivenPlace::Cluster(hosts.collect()),
        (Scheme::Sentinel, Some(name)) => GivenPlace::Sentinel(hosts.collect(), name),
        (Scheme::Sentinel, None) => {
            return Err("the parameter `sentinelServiceName` is missing".to_owned());
        }
    };
    Ok(Given {
        session: SessionSettings {
            login: password.map(|password| Credentials { user, password }),
            database: parameters.database,
            ..SessionSettings::default()
        },
        sentinel_credentials: parameters.sentinel_credentials,
        ..Given::at(place)
    })
}

/// User and password, still encoded.
fn read_login(login: &str) -> Result<(&str, &str), &'static str> {
    // Of `u:p@one,u:p@two` the first host would be a part of the password.
    if login
        .split_once('@')
        .is_some_and(|(_, after)| after.contains(','))
    {
        return Err(
            "user and password are given once, before the first host; in them `@` is written as %40 and `,` as %2C",
        );
    }
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    // It would connect as the default user.
    match !user.is_empty() && password.is_empty() {
        true => Err(NO_PASSWORD),
        false => Ok((user, password)),
    }
}

/// User or password; `None`: there is none.
fn decoded(text: &str) -> Result<Option<String>, &'static str> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| "user or password is not UTF-8 when it is decoded")?;
    Ok((!text.is_empty()).then(|| text.into_owned()))
}

/// A Unix socket.
#[cfg(unix)]
fn socket(path: &str, host: &str, has_login: bool) -> Result<ServerPlace, &'static str> {
    use std::os::unix::ffi::OsStringExt;

    if !["", "localhost"].contains(&host) {
        return Err(match has_login {
            false => "the path begins with a third `/`",
            true => "after user and password the host of a socket is `localhost`",
        });
    }
    let path: Vec<u8> = percent_decode_str(path).collect();
    if path.len() < 2 {
        return Err("the path of the socket is missing");
    }
    Ok(ServerPlace::Unix(std::ffi::OsString::from_vec(path).into()))
}

#[cfg(not(unix))]
fn socket(_path: &str, _host: &str, _has_login: bool) -> Result<ServerPlace, &'static str> {
    Err("there are no Unix sockets here")
}

fn malformed(kind: Scheme, problem: &str) -> Error {
    invalid(&format!("{problem}; expected {}", kind.form()))
}

const NO_PASSWORD: &str = "a user without a password: a password alone is written `:password@`, with a user \
     `user:password@` (a user with `nopass` accepts any password)";

const SEVERAL_HOSTS: &str = "one server has one host: several nodes of a cluster are redis-cluster://host,host, \
     several sentinels redis-sentinel://host,host";

const PERCENT_ENCODED: &str =
    "special characters of user and password are written percent-encoded, a `/` as %2F";

/// Whether this is a scheme by the URL grammar. A password with `://` in it must not be quoted as
/// one.
fn is_scheme(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

pub(super) fn invalid(problem: &str) -> Error {
    Error::InvalidConfig {
        what: "URL",
        problem: problem.to_owned(),
    }
}

/// Whether the scheme asks for TLS.
fn is_tls(scheme: &str) -> bool {
    let first = scheme.split(['-', '+']).next().unwrap_or_default();
    first.eq_ignore_ascii_case("rediss") || first.eq_ignore_ascii_case("valkeys")
}

/// All supported schemes.
const SCHEMES: [(&str, Scheme); 19] = [
    ("redis", Scheme::Server),
    ("valkey", Scheme::Server),
    ("rediss", Scheme::Server),
    ("valkeys", Scheme::Server),
    ("redis+unix", Scheme::Socket),
    ("valkey+unix", Scheme::Socket),
    ("redis-cluster", Scheme::Cluster),
    ("rediss-cluster", Scheme::Cluster),
    ("valkey-cluster", Scheme::Cluster),
    ("valkeys-cluster", Scheme::Cluster),
    ("redis-sentinel", Scheme::Sentinel),
    ("rediss-sentinel", Scheme::Sentinel),
    ("valkey-sentinel", Scheme::Sentinel),
    ("valkeys-sentinel", Scheme::Sentinel),
    // As other clients write them.
    ("unix", Scheme::Socket),
    ("redis+uds", Scheme::Socket),
    ("redis-socket", Scheme::Socket),
    ("redis+cluster", Scheme::Cluster),
    ("redis+sentinel", Scheme::Sentinel),
];
