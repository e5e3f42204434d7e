//! Tests of the settings.

use socket2::TcpKeepalive;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(1234);

fn made(settings: Result<Settings, Error>) -> Server {
    match settings.expect("valid settings").target {
        Target::Server(server) => *server,
        #[cfg(feature = "test-util")]
        Target::Custom(_) => unreachable!("made from an address"),
    }
}

fn tcp(host: &str, port: u16) -> Option<ServerPlace> {
    Some(ServerPlace::Tcp(Address::new(host, port)))
}

/// User and password.
fn login(server: &Server) -> (Option<&str>, Option<&str>) {
    let login = server.session.login.as_ref();
    let user = login.and_then(|login| login.user.as_deref());
    (user, login.map(|login| &*login.password))
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
    assert_eq!(server.place, tcp("host", 1));
    assert_eq!(login(&server), (Some("user"), Some("p%w")));
    assert_eq!(server.session.database, Some(7));
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
    assert_eq!(node.place, tcp("10.0.0.1", 6379));
    assert_eq!(login(&node), (Some("user"), Some("hidden")));
    assert_eq!(node.session.database, Some(3));
    let sentinel = made(Ok(settings.at_sentinel(&address)));
    our_rules(&sentinel);
    assert_eq!(login(&sentinel), (None, Some("other")));
    assert_eq!(sentinel.session.database, None);
}

#[test]
fn a_cluster_has_one_database() {
    let refused = refused("redis-cluster://host:1/1");
    assert!(refused.contains("one database"), "{refused}");
    for url in ["redis-cluster://host:1", "redis-cluster://host:1/0"] {
        assert_eq!(
            kind(Settings::from_url(url, None, TIMEOUT, true)),
            ("cluster".to_owned(), vec!["host:1".to_owned()])
        );
    }
}

#[cfg(feature = "fred")]
mod fred;
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
}
