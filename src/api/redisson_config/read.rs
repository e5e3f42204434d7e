//! What the keys of a configuration mean here. Nothing is connected, and nothing is known of the builder.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::keys::{self, Fate, Mode, Setting};
use super::tree::{ConfigNode, Content};

/// The settings in a configuration, and what became of each key. Not `Debug`: it has passwords.
#[derive(Default)]
pub(super) struct Draft {
    mode: Option<Mode>,
    addresses: Vec<String>,
    /// The sentinels' name for their primary.
    service: Option<String>,
    database: u64,
    username: Option<String>,
    password: Option<String>,
    sentinel_username: Option<String>,
    pub(super) sentinel_password: Option<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) watchdog_timeout: Option<Duration>,
    pub(super) fair_wait: Option<Duration>,
    pub(super) client_name: Option<String>,
    synced_slaves: bool,
    sync_timeout: Option<Duration>,
    on_replicas: bool,
    sharded: Option<bool>,
    pub(super) address_map: Vec<(String, String)>,
    pub(super) used: Vec<String>,
    pub(super) not_needed: Vec<(String, &'static str)>,
    refused: Vec<String>,
}

/// Which channels the JVMs of a cluster listen to, if they do not listen where they usually do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listeners {
    OnReplicas,
    ShardedOnly,
    ClassicOnly,
}

/// Reads a configuration. `Err`: everything that is wrong with it.
pub(super) fn read(root: &ConfigNode) -> Result<Draft, Vec<String>> {
    let mut draft = Draft::default();
    let Some(entries) = root.map() else {
        return Err(vec!["it is no object with keys".to_owned()]);
    };
    let modes: Vec<_> = entries
        .iter()
        .filter_map(|(name, node)| match keys::find(name)?.fate {
            Fate::Mode(mode) if !matches!(node.content, Content::Null) => Some((mode, name, node)),
            _ => None,
        })
        .collect();
    match modes[..] {
        [(mode, ..)] => draft.mode = Some(mode),
        [] => draft.refuse("it names no servers: `singleServerConfig`, `sentinelServersConfig`, `clusterServersConfig`, `masterSlaveServersConfig` or `replicatedServersConfig` is missing"),
        [(_, one, _), (_, other, _), ..] => {
            draft.refuse(&format!("`{one}` and `{other}`: remove one of them"));
        }
    }
    draft.read_keys(None, "", entries);
    if let [(mode, name, node)] = modes[..] {
        match node.map() {
            Some(entries) => draft.read_keys(Some(mode), name, entries),
            None => draft.refuse(&format!("`{name}` is no object with keys")),
        }
    }
    draft.check();
    match draft.refused.is_empty() {
        true => Ok(draft),
        false => Err(draft.refused),
    }
}

impl Draft {
    fn refuse(&mut self, problem: &str) {
        self.refused.push(problem.to_owned());
    }

    fn read_keys(&mut self, mode: Option<Mode>, within: &str, entries: &[(String, ConfigNode)]) {
        for (name, node) in entries {
            let path = match within {
                "" => name.clone(),
                within => format!("{within}.{name}"),
            };
            let Some(key) = keys::find(name) else {
                let nearest = keys::nearest(name);
                self.refuse(&format!(
                    "`{path}` is unknown; the nearest key is `{nearest}`"
                ));
                continue;
            };
            if !key.may_stand_in(mode) {
                self.refuse(&format!("`{path}` does not belong there"));
                continue;
            }
            match key.fate {
                _ if matches!(node.content, Content::Null) => {
                    self.not_needed.push((path, "it has no value"));
                }
                Fate::Mode(_) => {}
                Fate::NotNeeded(reason) => self.not_needed.push((path, reason)),
                Fate::Refused(instead) => self.refuse(&format!("`{path}`: {instead}")),
                Fate::Used(setting) => match self.set(setting, node) {
                    Ok(None) => self.used.push(path),
                    Ok(Some(reason)) => self.not_needed.push((path, reason)),
                    Err(problem) => self.refuse(&format!("`{path}`: {problem}")),
                },
            }
        }
    }

    /// Takes a value over. `Ok(Some(…))`: why it is not needed. No message quotes a value.
    fn set(
        &mut self,
        setting: Setting,
        node: &ConfigNode,
    ) -> Result<Option<&'static str>, &'static str> {
        let text = || node.text().map(str::to_owned).ok_or("it is no word");
        let millis = || {
            let millis = node.text().and_then(|text| text.trim().parse().ok());
            let millis = millis.ok_or("it is no number of milliseconds")?;
            Ok::<_, &'static str>(Some(Duration::from_millis(millis)))
        };
        match setting {
            Setting::Addresses => self.addresses = texts(node)?,
            Setting::MasterName => self.service = Some(text()?),
            Setting::Database => {
                let number = node.text().and_then(|text| text.trim().parse().ok());
                self.database = number.ok_or("it is no number")?;
            }
            Setting::Username => self.username = Some(text()?),
            Setting::Password => self.password = Some(text()?),
            Setting::SentinelUsername => self.sentinel_username = Some(text()?),
            Setting::SentinelPassword => self.sentinel_password = Some(text()?),
            Setting::Timeout => self.timeout = millis()?,
            Setting::WatchdogTimeout => self.watchdog_timeout = millis()?,
            Setting::FairLockWait => self.fair_wait = millis()?,
            Setting::ClientName => self.client_name = Some(text()?),
            Setting::SyncTimeout => self.sync_timeout = millis()?,
            Setting::SyncedSlaves => match &*text()?.to_lowercase() {
                "true" if self.mode == Some(Mode::Single) => {
                    return Ok(Some("one server has no replicas here"));
                }
                "true" => self.synced_slaves = true,
                "false" => return Ok(Some("it is off by default here")),
                _ => return Err("it is neither `true` nor `false`"),
            },
            Setting::SubscriptionMode => match &*text()?.to_lowercase() {
                "master" => return Ok(Some("clients subscribe on primaries")),
                "slave" if self.mode == Some(Mode::Cluster) => self.on_replicas = true,
                "slave" => return Ok(Some("messages reach replicas too")),
                _ => return Err("it is neither `MASTER` nor `SLAVE`"),
            },
            Setting::ShardedMode => match &*text()?.to_lowercase() {
                "auto" => return Ok(Some("it is the default")),
                "on" => self.sharded = Some(true),
                "off" => self.sharded = Some(false),
                _ => return Err("it is none of `AUTO`, `ON` and `OFF`"),
            },
            Setting::NatMap => return self.set_nat_map(node),
            Setting::Object(defaults, instead) => {
                return match node.class() {
                    Some(class) if defaults.contains(&class) => Ok(Some("it is the default")),
                    _ => Err(instead),
                };
            }
            Setting::Word(harmless, instead) => {
                let harmless = |word: &String| harmless.contains(&&*word.to_lowercase());
                return match texts(node)?.iter().all(harmless) {
                    true => Ok(Some("it is so here")),
                    false => Err(instead),
                };
            }
        }
        Ok(None)
    }

    fn set_nat_map(&mut self, node: &ConfigNode) -> Result<Option<&'static str>, &'static str> {
        const NO_MAP: &str = "it is no object of addresses";
        let entries = node.map().ok_or(NO_MAP)?;
        let entries = match node.class() {
            Some("DefaultNatMapper") => return Ok(Some("it is the default")),
            Some("HostNatMapper" | "HostPortNatMapper") => entries
                .iter()
                .find(|(name, _)| ["hostsMap", "hostsPortMap"].contains(&&**name))
                .and_then(|(_, map)| map.map())
                .ok_or(NO_MAP)?,
            Some(_) => return Err("a class of Java: remove the key, and set `map_addresses`"),
            None => entries,
        };
        for (from, to) in entries {
            let to = to.text().ok_or(NO_MAP)?;
            self.address_map.push((from.clone(), to.to_owned()));
        }
        Ok(None)
    }

    /// What no key shows alone.
    fn check(&mut self) {
        let Some(mode) = self.mode else { return };
        match self.addresses.len() {
            0 => self.refuse("no server has an address"),
            1 => {}
            _ if matches!(mode, Mode::Single | Mode::MasterSlave) => {
                self.refuse("one server has one address");
            }
            _ if mode == Mode::Replicated => self.refuse(
                "`nodeAddresses`: give one host name that resolves to the primary, also after a failover",
            ),
            _ => {}
        }
        if mode == Mode::Sentinel && self.service.is_none() {
            self.refuse("`masterName` is missing");
        }
        if mode == Mode::Cluster && self.database != 0 {
            self.refuse("`database`: a cluster has one database, number 0");
        }
        if self.sentinel_username.is_some() && self.sentinel_password.is_none() {
            self.refuse("`sentinelUsername` needs `sentinelPassword`");
        }
        if self.username.is_some() && self.password.is_none() {
            self.refuse("`username` needs `password`");
        }
        self.check_addresses();
    }

    fn check_addresses(&mut self) {
        let parts: Vec<Parts> = self.addresses.iter().map(|text| Parts::of(text)).collect();
        let Some(first) = parts.first().cloned() else {
            return;
        };
        if parts.iter().any(|parts| parts.is_tls != first.is_tls) {
            self.refuse("some addresses have TLS, and others have not");
        }
        if parts.iter().any(|parts| parts.is_strange) {
            self.refuse("an address is not `redis://host:port` or `rediss://host:port`");
        }
    }

    /// The URL, with the password in it.
    pub(super) fn url(&self) -> String {
        let parts: Vec<Parts> = self.addresses.iter().map(|text| Parts::of(text)).collect();
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let login = match (&self.username, &self.password) {
            (_, None) => parts.iter().find_map(|parts| parts.login.clone()),
            (user, Some(password)) => {
                let user = user.as_deref().unwrap_or_default();
                Some(format!("{}:{}", encoded(user), encoded(password)))
            }
        };
        let tls = if parts.iter().any(|parts| parts.is_tls) {
            "s"
        } else {
            ""
        };
        let kind = match self.mode {
            Some(Mode::Cluster) => "-cluster",
            Some(Mode::Sentinel) => "-sentinel",
            _ => "",
        };
        let hosts: Vec<&str> = parts.iter().map(|parts| parts.host.as_str()).collect();
        let login = login.map_or_else(String::new, |login| format!("{login}@"));
        let mut url = format!("redis{tls}{kind}://{login}{}", hosts.join(","));
        if self.database != 0 {
            url += &format!("/{}", self.database);
        }
        if let Some(service) = &self.service {
            url += &format!("?sentinelServiceName={}", encoded(service));
        }
        url
    }

    pub(super) fn sentinel_username(&self) -> Option<&str> {
        self.sentinel_username.as_deref()
    }

    /// How long to wait for one replica, if that is wanted.
    pub(super) fn sync_within(&self) -> Option<Duration> {
        let within = self.sync_timeout.unwrap_or(Duration::from_secs(1));
        self.synced_slaves.then_some(within)
    }

    pub(super) fn listeners(&self) -> Option<Listeners> {
        match (self.on_replicas, self.sharded) {
            (true, _) => Some(Listeners::OnReplicas),
            (false, Some(true)) => Some(Listeners::ShardedOnly),
            (false, Some(false)) => Some(Listeners::ClassicOnly),
            (false, None) => None,
        }
    }
}

/// One address, or several.
fn texts(node: &ConfigNode) -> Result<Vec<String>, &'static str> {
    let text = |node: &ConfigNode| node.text().map(str::to_owned).ok_or("a value is no word");
    match &node.content {
        Content::List(items) => items.iter().map(text).collect(),
        _ => Ok(vec![text(node)?]),
    }
}

/// The parts of an address. Older versions of Redisson have it without a scheme, or with `//` alone.
#[derive(Clone)]
struct Parts {
    is_tls: bool,
    /// User and password as they are written, which is how Redisson takes them.
    login: Option<String>,
    host: String,
    is_strange: bool,
}

impl Parts {
    fn of(address: &str) -> Self {
        let address = address.trim().trim_end_matches('/');
        let (scheme, rest) = match address.split_once("//") {
            Some((scheme, rest)) => (scheme.trim_end_matches(':').to_lowercase(), rest),
            None => ("redis".to_owned(), address),
        };
        let (login, host) = match rest.rsplit_once('@') {
            Some((login, host)) => (Some(login.to_owned()), host),
            None => (None, rest),
        };
        let known = ["", "redis", "valkey", "rediss", "valkeys"];
        Self {
            is_tls: ["rediss", "valkeys"].contains(&&*scheme),
            login,
            host: host.to_owned(),
            is_strange: host.is_empty() || host.contains('/') || !known.contains(&&*scheme),
        }
    }
}
