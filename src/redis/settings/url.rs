//! Reads the address of a server, of the nodes of a cluster, or of sentinels.
//!
//! fred reads host, port, database and credentials. The rest is read here: fred ignores parameters that it does not
//! know, and does not decode the path of a socket.

mod parameters;

use std::str::FromStr;

use fred::prelude::{Config, ServerConfig};

use super::Tls;
use crate::error::{self, Error};
pub(crate) use parameters::Credentials;
use parameters::Parameters;

/// What an address says.
pub(super) struct Given {
    pub(super) config: Config,
    pub(super) sentinel_credentials: Option<Credentials>,
}

/// Parses an address. No message quotes more of it than its scheme and the name of a parameter: the rest may
/// contain a password.
pub(super) fn parse(url: &str, tls: Option<&Tls>) -> Result<Given, Error> {
    // A blank at the end comes from a file.
    let parts = url.trim_ascii().split_once("://");
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
            problem: "the address asks for no TLS: begin it with rediss:// or valkeys://, or leave out the settings"
                .to_owned(),
        });
    }
    let parts = Parts::of(rest);
    let given = read(kind, &parts).map_err(|problem| malformed(kind, &problem))?;
    match is_tls(scheme) {
        true => Ok(Given {
            config: secured(given.config, tls)?,
            ..given
        }),
        false => Ok(given),
    }
}

#[cfg(feature = "tls-rustls")]
fn secured(mut config: Config, tls: Option<&Tls>) -> Result<Config, Error> {
    let default = Tls::default();
    tls.unwrap_or(&default).secure(&mut config)?;
    Ok(config)
}

#[cfg(not(feature = "tls-rustls"))]
pub(super) const NO_TLS: &str =
    "TLS is not compiled in: enable the feature `tls-rustls` of redisson-lock";

#[cfg(not(feature = "tls-rustls"))]
fn secured(_given: Config, _none: Option<&Tls>) -> Result<Config, Error> {
    Err(invalid(NO_TLS))
}

/// The parts of an address after its scheme, as they are written.
struct Parts<'a> {
    /// User, password, host and port.
    authority: &'a str,
    path: &'a str,
    query: &'a str,
    /// Path, query and what comes after them.
    behind: &'a str,
}

impl<'a> Parts<'a> {
    fn of(rest: &'a str) -> Self {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, behind) = rest.split_at(end);
        let (before, _) = behind.split_once('#').unwrap_or((behind, ""));
        let (path, query) = before.split_once('?').unwrap_or((before, ""));
        Self {
            authority,
            path,
            query,
            behind,
        }
    }

    /// User and password, and the server.
    fn login_and_server(&self) -> (Option<&'a str>, &'a str) {
        match self.authority.rsplit_once('@') {
            Some((login, server)) => (Some(login), server),
            None => (None, self.authority),
        }
    }
}

/// Reads an address of a known scheme, all but TLS. `Err`: what is wrong with it.
fn read(kind: Scheme, parts: &Parts<'_>) -> Result<Given, String> {
    if !matches!(kind, Scheme::Socket) && parts.behind.contains('@') {
        return Err(PERCENT_ENCODED.to_owned());
    }
    let (login, _) = parts.login_and_server();
    let (user, password) = login.map_or(("", ""), |login| {
        login.split_once(':').unwrap_or((login, ""))
    });
    // It would connect as the default user.
    if !user.is_empty() && password.is_empty() {
        return Err(NO_PASSWORD.to_owned());
    }
    if parts.behind.contains('#') {
        return Err("a `#` is written as %23".to_owned());
    }
    let config = match kind {
        Scheme::Socket => socket(parts)?,
        kind => server(kind, parts)?,
    };
    let Parameters {
        nodes,
        service_name,
        sentinel_credentials,
    } = Parameters::read(parts.query, kind.parameters())?;
    let hosts = config.server.hosts().into_iter();
    // The host comes before the nodes of the query: it is asked first.
    let hosts = hosts.map(|server| (server.host.to_string(), server.port));
    let hosts = hosts.chain(nodes).collect();
    let server = match (kind, service_name) {
        (Scheme::Server | Scheme::Socket, _) => config.server,
        (Scheme::Cluster, _) => ServerConfig::new_clustered(hosts),
        (Scheme::Sentinel, Some(name)) => ServerConfig::new_sentinel(hosts, name),
        (Scheme::Sentinel, None) => {
            return Err("the parameter `sentinelServiceName` is missing".to_owned());
        }
    };
    Ok(Given {
        config: Config { server, ..config },
        sentinel_credentials,
    })
}

/// The first server of an address, with credentials and database.
fn server(kind: Scheme, parts: &Parts<'_>) -> Result<Config, String> {
    let address = format!("redis://{}{}", parts.authority, parts.path);
    let config = match kind {
        // Another port is the default. Without a name fred refuses the address.
        Scheme::Sentinel => Config::from_url_sentinel(&(address + "?sentinelServiceName=name")),
        _ => Config::from_url_centralized(&address),
    };
    config.map_err(|_| wrong_part(parts).to_owned())
}

/// A Unix socket, with credentials.
#[cfg(unix)]
fn socket(parts: &Parts<'_>) -> Result<Config, String> {
    use std::os::unix::ffi::OsStringExt;

    let (login, host) = parts.login_and_server();
    if !["", "localhost"].contains(&host) {
        let problem = match login {
            None => "the path begins with a third `/`",
            Some(_) => "after user and password the host of a socket is `localhost`",
        };
        return Err(problem.to_owned());
    }
    let path: Vec<u8> = percent_encoding::percent_decode_str(parts.path).collect();
    if path.len() < 2 {
        return Err("the path of the socket is missing".to_owned());
    }
    let credentials = match login {
        Some(login) => Config::from_url_centralized(&format!("redis://{login}@localhost")),
        None => Ok(Config::default()),
    };
    let path = std::ffi::OsString::from_vec(path);
    Ok(Config {
        server: ServerConfig::new_unix_socket(path),
        ..credentials.map_err(|_| PERCENT_ENCODED.to_owned())?
    })
}

#[cfg(not(unix))]
fn socket(_parts: &Parts<'_>) -> Result<Config, String> {
    Err("there are no Unix sockets here".to_owned())
}

fn malformed(kind: Scheme, problem: &str) -> Error {
    invalid(&format!("{problem}; expected {}", kind.form()))
}

const NO_PASSWORD: &str =
    "a user without a password: write `user:password@` (a user with `nopass` accepts any password)";

const PERCENT_ENCODED: &str =
    "special characters of user and password are written percent-encoded, a `/` as %2F";

/// What is wrong after the scheme of a URL that the parser has refused without saying where.
fn wrong_part(parts: &Parts<'_>) -> &'static str {
    let (login, server) = parts.login_and_server();
    let host_end = match (server.starts_with('['), server.find(']')) {
        (true, None) => return "the `[` of the host is not closed",
        (true, Some(end)) => end + 1,
        (false, _) if server.matches(':').count() > 1 => {
            return "the host has more than one `:`, and an IPv6 address is written as `[::1]`";
        }
        (false, _) => server.find(':').unwrap_or(server.len()),
    };
    let (host, port) = server.split_at(host_end);
    let database = parts.path.strip_prefix('/').unwrap_or_default();
    if host.is_empty() {
        "the host is missing"
    } else if !port.is_empty() && !port.starts_with(':') {
        "something other than `:` and the port is after the `]` of the host"
    } else if port.len() > 1 && !is_number::<u16>(&port[1..]) {
        "the port is not a number up to 65535"
    } else if !database.is_empty() && !is_number::<u8>(database) {
        "the database is not a number up to 255"
    } else if login.is_some_and(|login| login.contains('%')) {
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

impl Scheme {
    /// What such an address looks like.
    fn form(self) -> &'static str {
        match self {
            Self::Server => "redis://[user:password@]host[:port][/database]",
            Self::Socket => "redis+unix://[user:password@localhost]/path/to/socket",
            Self::Cluster => "redis-cluster://[user:password@]host[:port][?node=host:port&…]",
            Self::Sentinel => {
                "redis-sentinel://[user:password@]host[:port][/database]?sentinelServiceName=name[&node=host:port&…]\
                 [&sentinelUsername=user][&sentinelPassword=password]"
            }
        }
    }

    /// The parameters that mean something there.
    fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Server | Self::Socket => &[],
            Self::Cluster => &[parameters::NODE],
            Self::Sentinel => &[
                parameters::SERVICE_NAME,
                parameters::NODE,
                parameters::SENTINEL_USERNAME,
                parameters::SENTINEL_PASSWORD,
            ],
        }
    }
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
