//! Tests of the settings.

use fred::prelude::Builder;
use fred::types::config::{
    ClusterDiscoveryPolicy, PerformanceConfig, TcpConfig, UnresponsiveConfig,
};

use super::*;

const TIMEOUT: Duration = Duration::from_millis(1234);

fn made(settings: Result<Settings, Error>) -> Server {
    match settings.expect("valid settings").target {
        Target::Server(server) => *server,
        #[cfg(feature = "test-util")]
        Target::Custom(_) => unreachable!("made from an address"),
    }
}

fn refused(url: &str) -> String {
    match Settings::from_url(url, None, TIMEOUT, true) {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error.to_string(),
    }
}

/// The tables that translate a configuration of Redisson or Spring.
#[test]
fn every_address_in_the_guide_to_migrating_is_one() {
    let page = include_str!("../../../docs/migrating.md");
    let quoted = page.lines().filter(|line| line.starts_with('|'));
    let quoted = quoted.flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_address = |text: &&str| text.starts_with("redis") && !text.ends_with("://");
    let addresses: Vec<&str> = quoted.filter(is_address).collect();
    assert!(addresses.len() >= 15, "{addresses:?}");
    for address in addresses {
        // Without the feature, what TLS leaves of it.
        let address = match cfg!(feature = "tls-rustls") {
            true => address.to_owned(),
            false => address.replacen("rediss", "redis", 1),
        };
        let settings = Settings::from_url(&address, None, TIMEOUT, true);
        assert!(settings.is_ok(), "{address}: {:?}", settings.err());
    }
}

/// The settings of each connection, whatever was given.
fn our_rules(server: &Server) {
    assert_eq!(server.command_timeout(), TIMEOUT);
    let socket = server.socket();
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10));
    assert_eq!(format!("{:?}", socket.keepalive), format!("{keepalive:?}"));
    #[cfg(target_os = "linux")]
    assert_eq!(socket.user_timeout, TIMEOUT);
}

#[test]
fn an_address_gives_whom_to_ask_and_our_rules_the_rest() {
    let server = made(Settings::from_url(
        "redis://user:p%25w@host:1/7",
        None,
        TIMEOUT,
        true,
    ));
    our_rules(&server);
    assert_eq!(
        server.config.server,
        ServerConfig::new_centralized("host", 1)
    );
    assert_eq!(server.config.username.as_deref(), Some("user"));
    assert_eq!(server.config.password.as_deref(), Some("p%w"));
    assert_eq!(server.config.database, Some(7));
}

#[allow(clippy::needless_update, reason = "some of fred's features add fields")]
#[test]
fn of_a_fred_client_whom_to_ask_and_as_whom_is_kept_and_nothing_else() {
    for timeout in [Duration::ZERO, Duration::MAX] {
        let config = Config {
            username: Some("user".to_owned()),
            password: Some("hidden".to_owned()),
            server: ServerConfig::new_centralized("host", 1),
            database: Some(7),
            ..Config::default()
        };
        let mut builder = Builder::from_config(config.clone());
        builder.set_policy(fred::prelude::ReconnectPolicy::new_constant(0, 1));
        builder.set_connection_config(ConnectionConfig {
            connection_timeout: timeout,
            internal_command_timeout: timeout,
            cluster_cache_update_delay: timeout,
            max_command_attempts: 9,
            max_redirections: 0,
            unresponsive: UnresponsiveConfig {
                max_timeout: Some(Duration::from_millis(1)),
                interval: Duration::ZERO,
            },
            reconnect_on_auth_error: true,
            auto_client_setname: true,
            max_command_buffer_len: 3,
            disable_cluster_health_check: true,
            tcp: TcpConfig {
                nodelay: Some(false),
                linger: Some(Duration::from_secs(60)),
                ttl: Some(9),
                keepalive: None,
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        });
        builder.set_performance_config(PerformanceConfig {
            default_command_timeout: timeout,
            max_feed_count: u64::MAX,
            broadcast_channel_capacity: 1,
            ..PerformanceConfig::default()
        });
        let client = builder.build().expect("valid settings");
        let settings = Settings::from_fred(&client, None, TIMEOUT, true);
        let named = settings
            .as_ref()
            .ok()
            .and_then(|settings| settings.client_name.clone());
        assert_eq!(
            named.as_deref(),
            Some(client.id()),
            "by `auto_client_setname`"
        );
        let server = made(settings);
        our_rules(&server);
        assert_eq!(server.config, config, "address, credentials and database");
        assert_eq!(server.socket().ttl, Some(9));
    }
}

fn kind(settings: Result<Settings, Error>) -> (String, Vec<String>) {
    let shown = |addresses: Vec<Address>| addresses.iter().map(ToString::to_string).collect();
    match settings.expect("valid settings").kind {
        Kind::Server => ("server".to_owned(), Vec::new()),
        Kind::Cluster(known) => ("cluster".to_owned(), shown(known)),
        Kind::Sentinel(known, service) => (service, shown(known)),
    }
}

#[test]
fn a_node_has_the_credentials_of_all_and_a_sentinel_its_own() {
    let url = "redis-sentinel://user:hidden@a:1/3?sentinelServiceName=shop";
    let settings = Settings::from_url(url, None, TIMEOUT, true).expect("valid settings");
    let credentials = Credentials {
        user: None,
        password: "other".to_owned(),
    };
    let settings = settings.with_sentinel_credentials(Some(credentials));
    let address = Address::new("10.0.0.1", 6379);
    let node = made(Ok(settings.at(&address, Expected::Primary)));
    our_rules(&node);
    assert_eq!(
        node.config.server,
        ServerConfig::new_centralized("10.0.0.1", 6379)
    );
    assert_eq!(node.config.username.as_deref(), Some("user"));
    assert_eq!(node.config.password.as_deref(), Some("hidden"));
    assert_eq!(node.config.database, Some(3));
    let sentinel = made(Ok(settings.at_sentinel(&address)));
    our_rules(&sentinel);
    assert_eq!(sentinel.config.username, None);
    assert_eq!(sentinel.config.password.as_deref(), Some("other"));
    assert_eq!(sentinel.config.database, None);
}

#[test]
fn a_cluster_has_one_database() {
    let cluster = ServerConfig::Clustered {
        hosts: vec![("host", 1).into()],
        policy: ClusterDiscoveryPolicy::default(),
    };
    let client = |database| {
        let config = Config {
            server: cluster.clone(),
            database,
            ..Config::default()
        };
        Builder::from_config(config)
            .build()
            .expect("valid settings")
    };
    let refused = Settings::from_fred(&client(Some(1)), None, TIMEOUT, true);
    let refused = refused.err().expect("refused").to_string();
    assert!(refused.contains("one database"), "{refused}");
    for database in [None, Some(0)] {
        let settings = Settings::from_fred(&client(database), None, TIMEOUT, true);
        assert_eq!(
            kind(settings),
            ("cluster".to_owned(), vec!["host:1".to_owned()])
        );
    }
}

mod tls;
mod url;

/// An IPv6 address has brackets in an address, and none in what a node calls another one.
#[test]
fn a_host_of_ipv6_has_no_brackets_of_its_own() {
    let from = |url: &str| Settings::from_url(url, None, TIMEOUT, true).expect("valid");
    assert_eq!(&*from("redis://[::1]:6379").address, "[::1]:6379");
    let settings = from("redis-cluster://[::1]:7000");
    assert_eq!(&*settings.address, "[::1]:7000");
    let Kind::Cluster(known) = &settings.kind else {
        panic!("a cluster");
    };
    let named = |host: &str, port| Address::named(host, port, &Address::default());
    assert_eq!(*known, [named("::1", 7000)]);
    // What the given server has besides its address is found by what the nodes call it.
    let given = ServerConfig::Clustered {
        hosts: vec![
            config::Server::new("[::1]", 7000),
            config::Server::new("[fd00::2]", 7001),
        ],
        policy: ClusterDiscoveryPolicy::default(),
    };
    let second = leading_to(&named("fd00::2", 7001), &given);
    assert_eq!(second.hosts(), [config::Server::new("fd00::2", 7001)]);
}
