//! Reads the address of a server, of the nodes of a cluster, or of sentinels.

use std::str::FromStr;

use fred::error::ErrorKind;
use fred::prelude::{Config, ServerConfig};

use super::Tls;
use crate::error::{self, Error};

/// Parses an address. No message quotes more of it than its scheme: the rest may contain a
/// password.
pub(super) fn parse(url: &str, tls: Option<&Tls>) -> Result<Config, Error> {
    let parts = url.split_once("://");
    let parts = parts.filter(|(scheme, _)| is_scheme(scheme));
    let (scheme, rest) = parts.ok_or_else(|| malformed("the scheme is missing"))?;
    // The parser treats any unknown scheme as a plain connection, `redis+tls` as well.
    let known = SCHEMES
        .iter()
        .find(|(known, _)| scheme.eq_ignore_ascii_case(known));
    let Some((_, kind)) = known else {
        return Err(invalid(&format!(
            "unknown scheme {}://: use redis:// or valkey://, with TLS rediss:// or valkeys://, for a Unix socket \
             redis+unix:// or valkey+unix://, for a cluster redis-cluster://, behind Sentinel redis-sentinel://",
            error::shorten(scheme)
        )));
    };
    if !is_tls(scheme) {
        return match tls {
            None => read(url, *kind, rest),
            Some(_) => Err(Error::InvalidConfig {
                what: "tls",
                problem: "the address asks for no TLS: begin it with rediss:// or valkeys://, or leave out the settings"
                    .to_owned(),
            }),
        };
    }
    // fred would read the certificates of the platform each time, and fail because of any one of them.
    let plain = scheme.to_ascii_lowercase();
    let plain = plain.replacen("rediss", "redis", 1);
    let plain = plain.replacen("valkeys", "valkey", 1);
    let config = read(&format!("{plain}://{rest}"), *kind, rest)?;
    secured(config, url, tls)
}

#[cfg(feature = "tls-rustls")]
fn secured(mut config: Config, _url: &str, tls: Option<&Tls>) -> Result<Config, Error> {
    let default = Tls::default();
    tls.unwrap_or(&default).secure(&mut config)?;
    Ok(config)
}

/// What fred makes of the address. Its users may have enabled its own features for TLS.
#[cfg(not(feature = "tls-rustls"))]
fn secured(config: Config, url: &str, _none: Option<&Tls>) -> Result<Config, Error> {
    match Config::from_url(url) {
        Ok(secured) if secured.uses_tls() => Ok(Config {
            database: config.database,
            server: config.server,
            ..secured
        }),
        Ok(_) => Err(invalid(
            "TLS is not compiled in: enable the feature `tls-rustls` of redisson-lock",
        )),
        Err(error) => Err(invalid(&format!(
            "TLS cannot be set up: {}",
            error.details()
        ))),
    }
}

/// Reads an address of a known scheme, all but TLS.
fn read(url: &str, kind: Scheme, rest: &str) -> Result<Config, Error> {
    match (kind, Config::from_url(url).map(with_its_host_first)) {
        (Scheme::Sentinel, Err(_)) => Err(invalid(
            "expected redis-sentinel://host:port/database?sentinelServiceName=name, with &node=host:port for each \
             further sentinel",
        )),
        (Scheme::Cluster, Ok(config)) => {
            // fred leaves it out for a cluster.
            let database = Config::from_url_centralized(url)
                .ok()
                .and_then(|one| one.database);
            Ok(Config { database, ..config })
        }
        (Scheme::Cluster, Err(_)) => Err(invalid(
            "expected redis-cluster://host:port, with ?node=host:port&node=host:port for further nodes",
        )),
        (_, Ok(config)) => Ok(config),
        (Scheme::Socket, Err(error)) if *error.kind() == ErrorKind::Config => Err(invalid(
            "Unix sockets are not compiled in: enable fred's feature unix-sockets",
        )),
        (Scheme::Socket, Err(_)) => Err(invalid("expected redis+unix:///path/to/socket")),
        (_, Err(_)) => Err(malformed(wrong_part(rest))),
    }
}

/// fred puts the host of an address behind the nodes that it names in its query.
fn with_its_host_first(mut config: Config) -> Config {
    if let ServerConfig::Clustered { hosts, .. } | ServerConfig::Sentinel { hosts, .. } =
        &mut config.server
    {
        hosts.rotate_right(1);
    }
    config
}

fn malformed(part: &str) -> Error {
    invalid(&format!(
        "{part}; expected redis://[user:password@]host[:port][/database]"
    ))
}

/// What is wrong behind the scheme of an address that the parser has refused without saying where.
fn wrong_part(rest: &str) -> &'static str {
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if behind.contains('@') {
        return "special characters of user and password are written percent-encoded, a `/` as %2F";
    }
    let (login, server) = authority.rsplit_once('@').unwrap_or(("", authority));
    let host_end = match (server.starts_with('['), server.find(']')) {
        (true, None) => return "the `[` of the host is not closed",
        (true, Some(end)) => end + 1,
        (false, _) if server.matches(':').count() > 1 => {
            return "the host has more than one `:`, and an IPv6 address is written as `[::1]`";
        }
        (false, _) => server.find(':').unwrap_or(server.len()),
    };
    let (host, port) = server.split_at(host_end);
    let path = behind.split(['?', '#']).next().unwrap_or_default();
    let database = path.strip_prefix('/').unwrap_or_default();
    if host.is_empty() {
        "the host is missing"
    } else if !port.is_empty() && !port.starts_with(':') {
        "something other than `:` and the port is behind the `]` of the host"
    } else if port.len() > 1 && !is_number::<u16>(&port[1..]) {
        "the port is not a number up to 65535"
    } else if !database.is_empty() && !is_number::<u8>(database) {
        "the database is not a number up to 255"
    } else if login.contains('%') {
        "user or password is not UTF-8 when it is decoded"
    } else {
        "the host has a character that no host has"
    }
}

/// Whether it consists of digits, and is not too large.
fn is_number<N: FromStr>(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<N>().is_ok()
}

/// Whether this is a scheme by the URL grammar. A password with `://` in it must not be quoted as
/// one.
fn is_scheme(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

pub(super) fn invalid(problem: &str) -> Error {
    Error::InvalidConfig {
        what: "address",
        problem: problem.to_owned(),
    }
}

/// What the scheme of an address asks for.
#[derive(Clone, Copy)]
enum Scheme {
    Server,
    Socket,
    Cluster,
    Sentinel,
}

/// Whether the scheme asks for TLS.
fn is_tls(scheme: &str) -> bool {
    let first = scheme.split('-').next().unwrap_or_default();
    first.eq_ignore_ascii_case("rediss") || first.eq_ignore_ascii_case("valkeys")
}

/// All supported schemes.
const SCHEMES: [(&str, Scheme); 14] = [
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
];
