//! Tests of addresses: what is accepted, and how everything else is refused.

use super::*;

#[test]
fn a_scheme_is_one_of_a_closed_list() {
    let schemes = [
        "redis",
        "valkey",
        "REDIS",
        #[cfg(unix)]
        "redis+unix",
        #[cfg(unix)]
        "valkey+unix",
    ];
    for scheme in schemes {
        let url = format!("{scheme}://user:hidden@localhost/7");
        let server = made(Settings::from_url(&url, None, TIMEOUT, true));
        let is_tcp = matches!(server.place, Some(ServerPlace::Tcp(_)));
        assert_eq!(is_tcp, !scheme.ends_with("+unix"), "{scheme}");
        assert_eq!(login(&server), (Some("user"), Some("hidden")), "{scheme}");
    }
    for scheme in SENTINEL {
        let reported = refused(&format!("{scheme}://user:hidden@host:1"));
        assert!(
            reported.contains("sentinelServiceName") && !reported.contains("hidden"),
            "{scheme}: {reported}"
        );
    }
}

const SENTINEL: [&str; 4] = [
    "redis-sentinel",
    "rediss-sentinel",
    "valkey-sentinel",
    "valkeys-sentinel",
];

#[test]
fn an_address_with_another_scheme_or_none_is_refused_without_its_password() {
    let unknown = [
        "redis+tls",
        "redis+ssl",
        "redis-tls",
        "redissl",
        "redis+insecure",
        "redis2",
        "rediss+unix",
        "rediss+tls",
        "redisss",
        "valkey+tls",
        "valkeyss",
        "valkey-cluster-sentinel",
        "http",
        "tcp",
    ];
    for scheme in unknown {
        let reported = refused(&format!("{scheme}://user:hidden@host:1"));
        assert!(
            reported.contains(&format!("unknown scheme {scheme}://")),
            "{scheme}: {reported}"
        );
        assert!(
            reported.contains("rediss:// or valkeys://") && !reported.contains("hidden"),
            "{scheme}: {reported}"
        );
    }
    for url in [
        "",
        "host",
        "user:hidden@host",
        "user:hid://den@host",
        "://hidden@host",
        "redis:hidden@host",
    ] {
        let reported = refused(url);
        assert!(
            reported.contains("the scheme is missing; expected redis://")
                && !reported.contains("hid"),
            "{url}: {reported}"
        );
    }
}

#[test]
fn what_is_wrong_with_an_address_is_said_part_by_part_and_without_its_password() {
    let table = [
        ("redis://", "the host is missing"),
        ("redis:///7", "the host is missing"),
        ("redis://:6379", "the host is missing"),
        ("redis://:hidden@", "the host is missing"),
        ("redis://user:hidden@:6379/1", "the host is missing"),
        ("redis://:hidden@[::1", "the `[` of the host is not closed"),
        ("redis://:hidden@::1", "the host has more than one `:`"),
        ("redis://:hidden@::1:6379", "written as `[::1]`"),
        ("valkey://:hidden@h:99999", "the port is not a number"),
        ("redis://:hidden@h:port", "the port is not a number"),
        ("redis://:hidden@h:-1", "the port is not a number"),
        ("redis://:hidden@[::1]:port/1", "the port is not a number"),
        ("redis://:hidden@[::1]6379", "after the `]` of the host"),
        ("redis://:hidden@[::hid]:1", "is no IPv6 address"),
        ("redis://:hidden@h%68:1", "a character that no host has"),
        ("redis://:hid%ffden@h", "is not UTF-8 when it is decoded"),
        ("redis://:hidden@h/x/y", "the database is not a number"),
        ("redis://:hidden@h/x", "the database is not a number"),
        ("redis://:hidden@h:1/256", "the database is not a number"),
        ("redis://:hid/den@h:1", "user and password"),
        ("redis://:hid#den@h", "user and password"),
        ("redis://:hid?den@h:1/0", "user and password"),
        (
            "redis://:hidden@a b",
            "the host has a character that no host has",
        ),
    ];
    for (url, part) in table {
        let reported = refused(url);
        assert!(reported.contains(part), "{url}: {reported}");
        assert!(
            reported.contains("expected redis://") && !reported.contains("hid"),
            "{url}: {reported}"
        );
    }
    // Accepted, so no part of it is wrong.
    for url in [
        "redis://h:/1",
        "redis://h/",
        "redis://[::1]:1/255",
        "redis://u:p@h?",
        "redis://h/1\n",
    ] {
        made(Settings::from_url(url, None, TIMEOUT, true));
    }
}

/// What it means: kind and hosts, database, user and password, those for sentinels.
fn shown(url: &str) -> String {
    let settings = Settings::from_url(url, None, TIMEOUT, true);
    let settings = settings.unwrap_or_else(|error| panic!("{url}: {error}"));
    let (name, hosts) = kind(Ok(settings.clone()));
    let hosts = match hosts.is_empty() {
        true => settings.address.to_string(),
        false => hosts.join(" "),
    };
    let named = |(user, password): (Option<&str>, Option<&str>)| match (user, password) {
        (None, None) => "-".to_owned(),
        (user, password) => format!(
            "{}:{}",
            user.unwrap_or_default(),
            password.unwrap_or_default()
        ),
    };
    let sentinel = settings.sentinel_credentials.clone();
    let sentinel = sentinel.as_ref();
    let sentinel = named((
        sentinel.and_then(|given| given.user.as_deref()),
        sentinel.map(|given| &*given.password),
    ));
    let server = made(Ok(settings));
    let (database, own) = (server.session.database, named(login(&server)));
    format!("{name} {hosts} {database:?} {own} {sentinel}")
}

#[test]
fn every_form_of_an_address_means_what_it_says() {
    let table = [
        ("redis://h", "server h:6379 None - -"),
        ("valkey://h:1/", "server h:1 None - -"),
        ("redis://h:1/0", "server h:1 Some(0) - -"),
        ("redis://[::1]/255", "server [::1]:6379 Some(255) - -"),
        ("redis://:p@h", "server h:6379 None :p -"),
        ("redis://u:p%2f%25@h:1/7", "server h:1 Some(7) u:p/% -"),
        (
            "redis://:p@s:s^|{}<>[]\\\"`é 1%@h",
            "server h:6379 None :p@s:s^|{}<>[]\\\"`é 1% -",
        ),
        ("redis-cluster://h", "cluster h:6379 None - -"),
        (
            "redis-cluster://h:1/0?node=b:2",
            "cluster h:1 b:2 Some(0) - -",
        ),
        (
            "valkey-cluster://u:p@[::1]:1?node=[::2]:2&node=%5B::3%5D:3",
            "cluster [::1]:1 [::2]:2 [::3]:3 None u:p -",
        ),
        (
            "redis-sentinel://h?sentinelServiceName=shop",
            "shop h:26379 None - -",
        ),
        (
            "valkey-sentinel://u:p@h:1/3?node=b:2&sentinelServiceName=a%26b+c&node=c:3",
            "a&b+c h:1 b:2 c:3 Some(3) u:p -",
        ),
        (
            "redis-sentinel://h?sentinelPassword=p%40%20%26&sentinelServiceName=shop",
            "shop h:26379 None - :p@ &",
        ),
        (
            "redis-sentinel://u:p@h?sentinelUsername=v&sentinelPassword=q&sentinelServiceName=shop",
            "shop h:26379 None u:p v:q",
        ),
        #[cfg(unix)]
        ("redis+unix:///run/r.sock", "server /run/r.sock None - -"),
        #[cfg(unix)]
        (
            "valkey+unix://localhost/run/a b",
            "server /run/a b None - -",
        ),
        #[cfg(unix)]
        ("redis+unix://u:p@/a%20b%25%3F?", "server /a b%? None u:p -"),
        #[cfg(unix)]
        (
            "redis+unix://u:p@localhost/user@7/%2e/r",
            "server /user@7/./r None u:p -",
        ),
    ];
    for (url, expected) in table {
        assert_eq!(shown(url), expected, "{url}");
    }
}

/// What a builder is given comes before what the address says.
#[test]
fn credentials_for_sentinels_are_the_builders_or_those_of_the_address() {
    let url = "redis-sentinel://h?sentinelServiceName=shop&sentinelPassword=address";
    for (given, expected) in [(None, "address"), (Some("builder"), "builder")] {
        let given = given.map(|password: &str| Credentials {
            user: None,
            password: password.to_owned(),
        });
        let settings = Settings::from_url(url, None, TIMEOUT, true).expect("valid");
        let settings = settings.with_sentinel_credentials(given);
        let sentinel = made(Ok(settings.at_sentinel(&Address::new("h", 1))));
        assert_eq!(login(&sentinel).1, Some(expected));
    }
}

/// Each is refused by name, with the whole form of such an address, and no value is shown.
#[test]
fn parameters_that_are_unknown_wrong_missing_or_there_twice_are_named_without_their_values() {
    let one = "expected redis://[user:password@]host[:port][/database]";
    let cluster = "redis-cluster://[user:password@]host[:port][,host[:port]…][?node=host:port&…]";
    let sentinel = "?sentinelServiceName=name[&node=host:port&…][&sentinelUsername=user]";
    let table = [
        ("redis://h/1?db=hidden", "the database is not a number", one),
        ("redis://h/1?db=2", "two databases", one),
        (
            "redis://h/?db=1&database=1",
            "`database` says the same as `db`, which is there too",
            one,
        ),
        (
            "redis://h?password=hidden",
            "unknown parameter `password`",
            one,
        ),
        ("redis://h?node=hidden:1", "unknown parameter `node`", one),
        ("redis://h?&&db", "`db` has no value", one),
        ("redis://h?d%62=hidden", "unknown parameter; ", one),
        ("redis://h?hidden%20=1", "unknown parameter; ", one),
        ("redis://u:hidden@h#hidden", "a `#` is written as %23", one),
        ("redis://u@h", "a user without a password", one),
        ("redis://u:@h", "a user without a password", one),
        (
            "redis://6379:hidden@h?x@hidden",
            "written percent-encoded",
            one,
        ),
        (
            "redis-cluster://h?sentinelServiceName=hidden",
            "unknown parameter `sentinelServiceName`",
            cluster,
        ),
        (
            "redis-cluster://h?NODE=hidden:1",
            "unknown parameter `NODE`",
            cluster,
        ),
        (
            "redis-cluster://h?node=b:1&node=hidden",
            "`node` is not host:port",
            cluster,
        ),
        (
            "redis-cluster://h?node=hidden:99999",
            "`node` is not host:port",
            cluster,
        ),
        (
            "redis-cluster://h?node=hidden:0",
            "`node` is not host:port",
            cluster,
        ),
        (
            "redis-cluster://h?node=:1",
            "`node` is not host:port",
            cluster,
        ),
        (
            "redis-cluster://h?node=hi:dden:1",
            "`node` is not host:port",
            cluster,
        ),
        ("redis-cluster://h?node=", "`node` has no value", cluster),
        ("redis-cluster://h?node", "`node` has no value", cluster),
        (
            "redis-cluster://h?node=hidden%ff:1",
            "`node` is not UTF-8",
            cluster,
        ),
        (
            "redis-cluster://h/hidden",
            "the database is not a number",
            cluster,
        ),
        (
            "redis-sentinel://h/1",
            "`sentinelServiceName` is missing",
            sentinel,
        ),
        (
            "redis-sentinel://h?sentinelServiceName=",
            "`sentinelServiceName` has no value",
            sentinel,
        ),
        (
            "redis-sentinel://h?sentinelServiceName=hidden&sentinelServiceName=hidden",
            "`sentinelServiceName` is there more than once",
            sentinel,
        ),
        (
            "redis-sentinel://h?sentinelServiceName=hidden&sentinelUsername=hidden",
            "`sentinelUsername` needs `sentinelPassword`",
            sentinel,
        ),
        (
            "redis-sentinel://h?sentinelServiceName=hidden&db=hidden",
            "the database is not a number",
            sentinel,
        ),
        #[cfg(unix)]
        (
            "redis+unix:///run/hidden?db=hidden",
            "the database is not a number",
            "expected redis+unix://[user:password@localhost]/path",
        ),
        #[cfg(unix)]
        (
            "redis+unix://hidden/r.sock",
            "begins with a third `/`",
            "/path/to/socket",
        ),
        #[cfg(unix)]
        (
            "redis+unix://localhost/",
            "the path of the socket is missing",
            "/path/to/socket",
        ),
        #[cfg(unix)]
        (
            "redis+unix:///run/a#hidden",
            "a `#` is written as %23",
            "/path/to/socket",
        ),
    ];
    for (url, problem, expected) in table {
        let said = refused(url);
        assert!(said.starts_with("invalid URL: "), "{url}: {said}");
        assert!(
            said.contains(problem) && said.contains(expected),
            "{url}: {said}"
        );
        assert!(!said.contains("hidden"), "{url}: {said}");
    }
    let long = "hidden".repeat(10);
    let said = refused(&format!("redis://h?{long}=1"));
    assert!(
        said.contains("unknown parameter; ") && !said.contains("hidden"),
        "{said}"
    );
}

/// What people paste, from the documentation of ten other clients and from their bug reports: `=` what it means, or the
/// words that help.
#[test]
fn what_people_bring_is_understood_or_refused_with_words_that_help() {
    let table = include_str!("urls.txt");
    let (mut accepted, mut rows) = (0, 0);
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let (url, outcome) = line.split_once(" | ").expect("a URL and its outcome");
        if !cfg!(feature = "tls-rustls") && (url.contains("rediss") || url.contains("valkeys"))
            || !cfg!(unix) && url.contains("sock")
        {
            continue;
        }
        rows += 1;
        match outcome.strip_prefix("= ") {
            Some(meaning) => {
                accepted += 1;
                assert_eq!(shown(url), meaning, "{url}");
            }
            None => {
                let said = refused(url);
                assert!(said.contains(outcome), "{url}: {said}");
                assert!(!said.contains("hidden"), "{url}: {said}");
            }
        }
    }
    assert!(rows >= 100 && accepted >= 50, "{accepted} of {rows}");
}

/// The table in the documentation of `connect`: each form with all that is optional, and without.
#[test]
fn every_form_in_the_documentation_is_accepted_and_every_scheme_is_there() {
    let page = include_str!("../../../api/builder.rs");
    let rows = page.lines().filter_map(|line| {
        let (form, _) = line.trim().strip_prefix("/// | `")?.split_once('`')?;
        form.contains("://").then_some(form)
    });
    let forms: Vec<&str> = rows.collect();
    assert_eq!(forms.len(), 4, "{forms:?}");
    let filled = |form: String| {
        let form = form.replace("&…", "").replace("=host:port", "=h:1");
        let form = form.replace('…', "").replace("=database", "=0");
        form.replace(":port", ":1").replace("/database", "/0")
    };
    for form in &forms {
        let all = filled(form.replace(['[', ']'], ""));
        let mut least = (*form).to_owned();
        while let Some((before, rest)) = least.split_once('[') {
            let (_, behind) = rest.split_once(']').expect("closed");
            least = format!("{before}{behind}");
        }
        for url in [all, filled(least)] {
            if cfg!(unix) || !url.contains("+unix") {
                shown(&url);
            }
        }
    }
    for named in [
        "`valkey`",
        "`rediss://`",
        "`valkeys://`",
        "`-cluster`",
        "`-sentinel`",
    ] {
        assert!(page.contains(named), "{named}");
    }
}
