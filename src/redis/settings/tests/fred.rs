//! What is taken over from a fred client.

use ::fred::interfaces::ClientLike;
use ::fred::prelude::{Builder, Config, ReconnectPolicy, ServerConfig};
#[cfg(feature = "tls-rustls")]
use ::fred::types::config::{self, HostMapping, TlsConfig, TlsConnector, TlsHostMapping};
use ::fred::types::config::{
    ClusterDiscoveryPolicy, ConnectionConfig, PerformanceConfig, TcpConfig, UnresponsiveConfig,
};

use super::*;

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
        let mut builder = Builder::from_config(config);
        builder.set_policy(ReconnectPolicy::new_constant(0, 1));
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
        assert_eq!(server.place, tcp("host", 1));
        assert_eq!(login(&server), (Some("user"), Some("hidden")));
        assert_eq!(server.session.database, Some(7));
        assert_eq!(server.socket().ttl, Some(9));
    }
}

#[test]
fn a_cluster_of_a_fred_client_has_one_database() {
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

/// A fred client says how IP addresses become names, and may name each of its hosts.
#[cfg(feature = "tls-rustls")]
#[test]
fn of_a_fred_client_the_names_for_tls_are_kept() {
    #[derive(Debug)]
    struct ByFirst;
    impl HostMapping for ByFirst {
        fn map(&self, ip: &std::net::IpAddr, default_host: &str) -> Option<String> {
            ip.is_ipv4().then(|| format!("{ip}.{default_host}"))
        }
    }
    let rustls = Settings::from_url("rediss://host", None, TIMEOUT, true);
    let connector = made(rustls).session.tls.expect("TLS").connector;
    let named = |host: &str, name: Option<&str>| {
        config::Server::new_with_tls(host, 1, name.map(str::to_owned))
    };
    let name = |hosts: Vec<config::Server>, hostnames: &TlsHostMapping, node: &str| {
        let config = Config {
            server: ServerConfig::Clustered {
                hosts,
                policy: ClusterDiscoveryPolicy::default(),
            },
            tls: Some(TlsConfig {
                connector: TlsConnector::Rustls(connector.clone()),
                hostnames: hostnames.clone(),
            }),
            ..Config::default()
        };
        let client = Builder::from_config(config)
            .build()
            .expect("valid settings");
        let server = made(Settings::from_fred(&client, None, TIMEOUT, true));
        let tls = server.session.tls.as_ref().expect("TLS");
        server.tls_name(tls, &Address::new(node, 1))
    };
    let custom = TlsHostMapping::Custom(Arc::new(ByFirst));
    let ip = "10.0.0.1";
    for (hostnames, node, expected) in [
        (&TlsHostMapping::None, ip, ip),
        (&TlsHostMapping::DefaultHost, ip, "a.example"),
        (&custom, ip, "10.0.0.1.a.example"),
        (&custom, "::1", "::1"),
        (&custom, "b.example", "b.example"),
    ] {
        let hosts = vec![named("a.example", None), named("b.example", None)];
        assert_eq!(
            name(hosts, hostnames, node),
            expected,
            "{hostnames:?} {node}"
        );
    }
    let hosts = || vec![named("a.example", Some("x")), named("b.example", Some("y"))];
    for (node, expected) in [
        ("a.example", "x"),
        ("b.example", "y"),
        (ip, "x"),
        ("c.example", "x"),
    ] {
        let name = name(hosts(), &TlsHostMapping::None, node);
        assert_eq!(name, expected, "{node}");
    }
}
