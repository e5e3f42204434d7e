//! Every key that some version of Redisson has, 0.9 to 4, and what becomes of it here.

/// The object that says which servers there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Single,
    Sentinel,
    Cluster,
    MasterSlave,
    Replicated,
}

/// What is read from a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    Addresses,
    MasterName,
    Database,
    Username,
    Password,
    SentinelUsername,
    SentinelPassword,
    Timeout,
    WatchdogTimeout,
    FairLockWait,
    ClientName,
    SyncedSlaves,
    SyncTimeout,
    SubscriptionMode,
    ShardedMode,
    NatMap,
    /// An object that is not needed if its class has one of these names, or none was given.
    Object(&'static [&'static str], &'static str),
    /// A word that is not needed if it is one of these, without regard to case.
    Word(&'static [&'static str], &'static str),
}

#[derive(Clone, Copy)]
pub(super) enum Fate {
    Mode(Mode),
    Used(Setting),
    NotNeeded(&'static str),
    Refused(&'static str),
}

pub(super) struct Key {
    pub(super) name: &'static str,
    /// Where it may stand.
    places: u8,
    pub(super) fate: Fate,
}

impl Key {
    /// `None`: at the top.
    pub(super) fn may_stand_in(&self, mode: Option<Mode>) -> bool {
        self.places & mode.map_or(TOP, place) != 0
    }
}

fn place(mode: Mode) -> u8 {
    match mode {
        Mode::Single => SINGLE,
        Mode::Sentinel => SENTINEL,
        Mode::Cluster => CLUSTER,
        Mode::MasterSlave => MASTER,
        Mode::Replicated => REPLICATED,
    }
}

const TOP: u8 = 1;
const SINGLE: u8 = 2;
const SENTINEL: u8 = 4;
const CLUSTER: u8 = 8;
const MASTER: u8 = 16;
const REPLICATED: u8 = 32;
const MODES: u8 = SINGLE | SENTINEL | CLUSTER | MASTER | REPLICATED;
/// Settings that versions of Redisson have at the top or in a mode.
const BOTH: u8 = TOP | MODES;

/// Keys are compared without regard to case, `-` and `_`: Spring writes them with hyphens.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    let name = plain(name);
    KEYS.iter().find(|key| plain(key.name) == name)
}

fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| !"-_".contains(*letter));
    letters.flat_map(char::to_lowercase).collect()
}

/// The known key with the fewest differences.
pub(super) fn nearest(name: &str) -> &'static str {
    let name = plain(name);
    let nearest = KEYS
        .iter()
        .min_by_key(|key| distance(&plain(key.name), &name));
    nearest.map_or("", |key| key.name)
}

/// Levenshtein's.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (nth, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = nth + 1;
        for (at, b) in (1..).zip(other.chars()) {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[at];
            row[at] = replaced.min(row[at] + 1).min(row[at - 1] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

const POOL: &str = "one connection serves all tasks; see `connections`";
const REPLICAS: &str = "locks are taken on the primary alone";
const LIVENESS: &str = "the client finds lost connections and failovers by itself";
const RETRIES: &str = "a command is sent again within the command timeout; see `retry_for`";
const SOCKET: &str = "the client sets its sockets itself";
const JVM: &str = "it is about threads and classes of the JVM";
const OTHER: &str = "it is about other objects than locks";
const STORE: &str = "the key store that it belongs to is refused";
const DNS: &str = "each new connection looks its host up";
const STORES: &str = "export it as PEM, remove the key, and set the builder's `tls`";
const ENCRYPTED: &str = "a manager of Java: remove the key, and set the builder's `tls`";
const TLS_ALWAYS: &str = "certificates are always verified: remove the key, and set `Tls::ca_file` or `Tls::server_name`";

const fn key(name: &'static str, places: u8, fate: Fate) -> Key {
    Key { name, places, fate }
}

const fn used(name: &'static str, places: u8, setting: Setting) -> Key {
    key(name, places, Fate::Used(setting))
}

const fn not(name: &'static str, places: u8, reason: &'static str) -> Key {
    key(name, places, Fate::NotNeeded(reason))
}

const fn refused(name: &'static str, instead: &'static str) -> Key {
    key(name, BOTH, Fate::Refused(instead))
}

static KEYS: [Key; 130] = [
    key("singleServerConfig", TOP, Fate::Mode(Mode::Single)),
    key("singleConnectionConfig", TOP, Fate::Mode(Mode::Single)),
    key("sentinelServersConfig", TOP, Fate::Mode(Mode::Sentinel)),
    key("clusterServersConfig", TOP, Fate::Mode(Mode::Cluster)),
    key(
        "masterSlaveServersConfig",
        TOP,
        Fate::Mode(Mode::MasterSlave),
    ),
    key(
        "masterSlaveConnectionConfig",
        TOP,
        Fate::Mode(Mode::MasterSlave),
    ),
    key("replicatedServersConfig", TOP, Fate::Mode(Mode::Replicated)),
    key(
        "elasticacheServersConfig",
        TOP,
        Fate::Mode(Mode::Replicated),
    ),
    used("address", SINGLE, Setting::Addresses),
    used("masterAddress", MASTER, Setting::Addresses),
    used("sentinelAddresses", SENTINEL, Setting::Addresses),
    used("nodeAddresses", CLUSTER | REPLICATED, Setting::Addresses),
    not("slaveAddresses", MASTER, REPLICAS),
    used("masterName", SENTINEL, Setting::MasterName),
    used("database", MODES, Setting::Database),
    used("username", BOTH, Setting::Username),
    used("password", BOTH, Setting::Password),
    used("sentinelUsername", SENTINEL, Setting::SentinelUsername),
    used("sentinelPassword", SENTINEL, Setting::SentinelPassword),
    used("timeout", MODES, Setting::Timeout),
    used("lockWatchdogTimeout", TOP, Setting::WatchdogTimeout),
    used("fairLockWaitTimeout", TOP, Setting::FairLockWait),
    used("clientName", MODES, Setting::ClientName),
    used("checkLockSyncedSlaves", TOP, Setting::SyncedSlaves),
    used("slavesSyncTimeout", TOP, Setting::SyncTimeout),
    used("subscriptionMode", MODES, Setting::SubscriptionMode),
    used("shardedSubscriptionMode", CLUSTER, Setting::ShardedMode),
    used("natMap", CLUSTER | SENTINEL, Setting::NatMap),
    used(
        "natMapper",
        CLUSTER | SENTINEL | REPLICATED,
        Setting::NatMap,
    ),
    used(
        "nameMapper",
        BOTH,
        Setting::Object(
            &["DefaultNameMapper"],
            "remove the key, and set `key_prefix`, or give the mapped names",
        ),
    ),
    used(
        "commandMapper",
        BOTH,
        Setting::Object(
            &["DefaultCommandMapper"],
            "commands keep their names here: remove the key if the server knows these",
        ),
    ),
    used(
        "credentialsResolver",
        BOTH,
        Setting::Object(
            &["DefaultCredentialsResolver"],
            "set the builder's `credentials_provider`",
        ),
    ),
    used(
        "sslVerificationMode",
        BOTH,
        Setting::Word(&["strict"], TLS_ALWAYS),
    ),
    used(
        "sslEnableEndpointIdentification",
        BOTH,
        Setting::Word(&["true"], TLS_ALWAYS),
    ),
    used(
        "sslProtocols",
        BOTH,
        Setting::Word(
            &["tlsv1.2", "tlsv1.3"],
            "the client has TLS 1.2 and 1.3: remove the key",
        ),
    ),
    refused("addresses", "write `singleServerConfig` with its `address`"),
    refused("sslCiphers", "rustls chooses among its own: remove the key"),
    refused("sslTruststore", STORES),
    refused("sslKeystore", STORES),
    refused("sslTrustManagerFactory", ENCRYPTED),
    refused("sslKeyManagerFactory", ENCRYPTED),
    not("sslTruststorePassword", BOTH, STORE),
    not("sslKeystorePassword", BOTH, STORE),
    not("sslKeystoreType", BOTH, STORE),
    not("sslProvider", BOTH, "the client has rustls"),
    not("retryAttempts", BOTH, RETRIES),
    not("retryInterval", BOTH, RETRIES),
    not("retryDelay", BOTH, RETRIES),
    not("failedAttempts", MODES, RETRIES),
    not("slaveFailedAttempts", MODES, RETRIES),
    not("closeConnectionAfterFailAttempts", MODES, RETRIES),
    not("reconnectionDelay", MODES, LIVENESS),
    not("reconnectionTimeout", MODES, LIVENESS),
    not("slaveReconnectionTimeout", MODES, LIVENESS),
    not("idleConnectionTimeout", MODES, POOL),
    not(
        "connectTimeout",
        MODES,
        "connecting has the command timeout; see `connect_for`",
    ),
    not(
        "subscriptionTimeout",
        MODES,
        "subscribing has the command timeout",
    ),
    not("pingTimeout", MODES, LIVENESS),
    not("pingConnection", MODES, LIVENESS),
    not("pingConnectionInterval", MODES, LIVENESS),
    not("scanInterval", MODES, LIVENESS),
    not("checkSlotsCoverage", CLUSTER, LIVENESS),
    not("checkMasterLinkStatus", CLUSTER, REPLICAS),
    not("monitorIPChanges", REPLICATED, DNS),
    not(
        "checkSentinelsList",
        SENTINEL,
        "one sentinel is enough to connect",
    ),
    not(
        "sentinelsDiscovery",
        SENTINEL,
        "other sentinels are always learned",
    ),
    not("checkSlaveStatusWithSyncing", SENTINEL, REPLICAS),
    not("dnsMonitoring", MODES, DNS),
    not("dnsMonitoringInterval", MODES, DNS),
    not("dnsMonitoringTimes", MODES, DNS),
    not("addressResolverGroupFactory", TOP, DNS),
    not("keepAlive", BOTH, SOCKET),
    not("tcpKeepAlive", BOTH, SOCKET),
    not("tcpKeepAliveCount", BOTH, SOCKET),
    not("tcpKeepAliveIdle", BOTH, SOCKET),
    not("tcpKeepAliveInterval", BOTH, SOCKET),
    not("tcpUserTimeout", BOTH, SOCKET),
    not("tcpNoDelay", BOTH, SOCKET),
    not("subscriptionsPerConnection", BOTH, POOL),
    not("subscriptionConnectionMinimumIdleSize", MODES, POOL),
    not("subscriptionConnectionPoolSize", MODES, POOL),
    not("slaveSubscriptionConnectionMinimumIdleSize", MODES, POOL),
    not("slaveSubscriptionConnectionPoolSize", MODES, POOL),
    not("connectionMinimumIdleSize", MODES, POOL),
    not("connectionPoolSize", BOTH, POOL),
    not("masterConnectionMinimumIdleSize", MODES, POOL),
    not("masterConnectionPoolSize", MODES, POOL),
    not("slaveConnectionMinimumIdleSize", MODES, POOL),
    not("slaveConnectionPoolSize", MODES, POOL),
    not("failedSlaveReconnectionInterval", MODES, REPLICAS),
    not("failedSlaveCheckInterval", MODES, REPLICAS),
    not("failedSlaveNodeDetector", MODES, REPLICAS),
    not("fallbackLoadingToMaster", MODES, REPLICAS),
    not("readMode", MODES, REPLICAS),
    not("readFromSlaves", MODES, REPLICAS),
    not("loadBalancer", BOTH, REPLICAS),
    not(
        "credentialsReapplyInterval",
        BOTH,
        "credentials of a file do not change",
    ),
    not("codec", TOP, "a lock has no values to encode"),
    not("codecProvider", TOP, "a lock has no values to encode"),
    not("threads", TOP, JVM),
    not("nettyThreads", TOP, JVM),
    not("transportMode", TOP, JVM),
    not("useLinuxNativeEpoll", TOP, JVM),
    not("decodeInExecutor", TOP, JVM),
    not("lazyInitialization", TOP, "`connect` connects"),
    not("protocol", TOP, "the client chooses the protocol"),
    not("useScriptCache", TOP, "scripts are always cached"),
    not("lockWatchdogBatchSize", TOP, "renewals are batched"),
    not("keepPubSubOrder", TOP, OTHER),
    not("reliableTopicWatchdogTimeout", TOP, OTHER),
    not("minCleanUpDelay", TOP, OTHER),
    not("maxCleanUpDelay", TOP, OTHER),
    not("cleanUpKeysAmount", TOP, OTHER),
    not("valkeyCapabilities", TOP, REPLICAS),
    not("executor", TOP, JVM),
    not("eventLoopGroup", TOP, JVM),
    not("nettyExecutor", TOP, JVM),
    not("nettyHook", TOP, JVM),
    not("connectionListener", TOP, JVM),
    not("connectionManager", TOP, JVM),
    not("useThreadClassLoader", TOP, JVM),
    not("beanFactory", TOP, JVM),
    not("redissonNodeInitializer", TOP, JVM),
    not("resolverProvider", TOP, JVM),
    not("referenceCodecProvider", TOP, JVM),
    not("referenceEnabled", TOP, OTHER),
    not("redissonReferenceEnabled", TOP, OTHER),
    not("executorServiceWorkers", TOP, OTHER),
    not("executorServiceThreads", TOP, OTHER),
    not("mapReduceWorkers", TOP, OTHER),
];
