//! Tests of TLS: which addresses ask for it, and the names that certificates are checked against.

#[cfg(feature = "tls-rustls")]
use fred::types::config::{HostMapping, TlsConfig, TlsConnector, TlsHostMapping};

use super::*;
#[cfg(feature = "tls-rustls")]
use crate::redis::settings::tls::with_name;

#[test]
fn every_scheme_with_an_s_asks_for_tls() {
    let schemes = [
        "rediss",
        "valkeys",
        "Rediss",
        "rediss-cluster",
        "valkeys-CLUSTER",
        "rediss-sentinel",
        "valkeys-sentinel",
    ];
    for scheme in schemes {
        let kind = scheme.to_ascii_lowercase();
        let query = match kind.split('-').nth(1) {
            None => "",
            Some("cluster") => "?node=b:2",
            Some(_) => "?sentinelServiceName=shop&node=b:2",
        };
        let url = format!("{scheme}://user:hidden@host:1{query}");
        #[cfg(feature = "tls-rustls")]
        {
            let server = made(Settings::from_url(&url, None, TIMEOUT, true));
            assert!(server.config.uses_rustls(), "{scheme}");
            let plain = url
                .replacen("ediss", "edis", 1)
                .replacen("valkeys", "valkey", 1);
            let plain = made(Settings::from_url(&plain, None, TIMEOUT, true));
            assert_eq!(server.config, plain.config, "{scheme}");
            assert!(!plain.config.uses_tls(), "{scheme}");
        }
        // Unless something else in the build has enabled fred's own features.
        #[cfg(not(feature = "tls-rustls"))]
        {
            let reported = refused(&url);
            assert!(
                reported.contains("enable the feature `tls-rustls`")
                    && !reported.contains("hidden"),
                "{scheme}: {reported}"
            );
        }
    }
}

/// The name against which a certificate is checked, of the server itself and of one that it has named.
#[cfg(feature = "tls-rustls")]
#[test]
fn a_server_is_checked_against_its_name_or_the_first_that_was_given() {
    let name = |settings: &Settings| {
        let server = made(Ok(settings.clone()));
        match with_name(server.config, &server.first_host).server {
            ServerConfig::Centralized { server } => server.tls_server_name,
            other => other
                .hosts()
                .first()
                .expect("a host")
                .tls_server_name
                .clone(),
        }
        .map(|name| name.to_string())
    };
    // The host of the address, that of a node, and the name of that node.
    let table = [
        ("redis.example", "10.0.0.1", Some("redis.example")),
        ("redis.example", "::1", Some("redis.example")),
        ("redis.example", "node.example", None),
        ("10.0.0.9", "10.0.0.1", Some("10.0.0.1")),
        ("[::9]", "::1", Some("::1")),
    ];
    for (host, node, expected) in table {
        let url = format!("rediss-cluster://{host}:1?node=10.0.0.8:1&node=other.example:2");
        for tls in [Tls::new(), Tls::new().server_name("given.example")] {
            let given = format!("{tls:?}").contains("given");
            let settings = Settings::from_url(&url, Some(&tls), TIMEOUT, true);
            let settings = settings.expect("valid settings");
            let node = settings.at(&Address::new(node, 2), Expected::Nothing);
            let expected = if given {
                Some("given.example")
            } else {
                expected
            };
            assert_eq!(name(&node).as_deref(), expected, "{host} {tls:?}");
            let sentinel = settings.at_sentinel(&Address::new("10.0.0.1", 2));
            assert_eq!(given, name(&sentinel).as_deref() == Some("given.example"));
        }
    }
    let one = |url: &str| name(&Settings::from_url(url, None, TIMEOUT, true).expect("valid"));
    assert_eq!(one("rediss://redis.example:1"), None);
    assert_eq!(one("rediss://10.0.0.1:1").as_deref(), Some("10.0.0.1"));
    // As a certificate has it.
    assert_eq!(one("rediss://[::1]:1").as_deref(), Some("::1"));
    assert_eq!(one("redis://[::1]:1"), None);
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
    let connector: TlsConnector = made(rustls).config.tls.expect("TLS").connector;
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
                connector: connector.clone(),
                hostnames: hostnames.clone(),
            }),
            ..Config::default()
        };
        let client = Builder::from_config(config)
            .build()
            .expect("valid settings");
        let settings = Settings::from_fred(&client, None, TIMEOUT, true).expect("valid settings");
        let server = made(Ok(settings.at(&Address::new(node, 1), Expected::Nothing)));
        match with_name(server.config, &server.first_host).server {
            ServerConfig::Centralized { server } => {
                server.tls_server_name.map(|name| name.to_string())
            }
            other => panic!("{other:?}"),
        }
    };
    let custom = TlsHostMapping::Custom(Arc::new(ByFirst));
    let ip = "10.0.0.1";
    for (hostnames, node, expected) in [
        (&TlsHostMapping::None, ip, Some(ip)),
        (&TlsHostMapping::DefaultHost, ip, Some("a.example")),
        (&custom, ip, Some("10.0.0.1.a.example")),
        (&custom, "::1", Some("::1")),
        (&custom, "b.example", None),
    ] {
        let hosts = vec![named("a.example", None), named("b.example", None)];
        assert_eq!(
            name(hosts, hostnames, node).as_deref(),
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
        assert_eq!(name.as_deref(), Some(expected), "{node}");
    }
}
