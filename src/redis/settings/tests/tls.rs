//! Tests of TLS: which addresses ask for it, and the names that certificates are checked against.

use super::*;

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
            assert!(server.uses_tls(), "{scheme}");
            let plain = url
                .replacen("ediss", "edis", 1)
                .replacen("valkeys", "valkey", 1);
            let plain = made(Settings::from_url(&plain, None, TIMEOUT, true));
            assert_eq!(server.place, plain.place, "{scheme}");
            assert_eq!(server.given, plain.given, "{scheme}");
            assert_eq!(login(&server), login(&plain), "{scheme}");
            assert!(!plain.uses_tls(), "{scheme}");
        }
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
    let name = |settings: &Settings, host: &str| {
        let server = made(Ok(settings.clone()));
        let tls = server.session.tls.as_ref()?;
        Some(server.tls_name(tls, &Address::new(host, 2)))
    };
    // The host of the address, that of a node, and the name of that node.
    let table = [
        ("redis.example", "10.0.0.1", Some("redis.example")),
        ("redis.example", "::1", Some("redis.example")),
        ("redis.example", "node.example", Some("node.example")),
        ("10.0.0.9", "10.0.0.1", Some("10.0.0.1")),
        ("[::9]", "::1", Some("::1")),
    ];
    for (host, node, expected) in table {
        let url = format!("rediss-cluster://{host}:1?node=10.0.0.8:1&node=other.example:2");
        for tls in [Tls::new(), Tls::new().server_name("given.example")] {
            let given = format!("{tls:?}").contains("given");
            let settings = Settings::from_url(&url, Some(&tls), TIMEOUT, true);
            let settings = settings.expect("valid settings");
            let expected = if given {
                Some("given.example")
            } else {
                expected
            };
            assert_eq!(name(&settings, node).as_deref(), expected, "{host} {tls:?}");
            let sentinel = settings.at_sentinel(&Address::new("10.0.0.1", 2));
            assert_eq!(
                given,
                name(&sentinel, "10.0.0.1").as_deref() == Some("given.example")
            );
        }
    }
    let one = |url: &str, host: &str| {
        let settings = Settings::from_url(url, None, TIMEOUT, true);
        name(&settings.expect("valid"), host)
    };
    let named = |url, host| one(url, host).expect("TLS");
    assert_eq!(
        named("rediss://redis.example:1", "redis.example"),
        "redis.example"
    );
    assert_eq!(named("rediss://10.0.0.1:1", "10.0.0.1"), "10.0.0.1");
    // As a certificate has it.
    assert_eq!(named("rediss://[::1]:1", "::1"), "::1");
    assert_eq!(one("redis://[::1]:1", "::1"), None);
}
