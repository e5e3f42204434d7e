//! Parameters that other clients have, and what takes their place here.

/// What to do about a parameter of another client, if it is known. Written with or without `_`, `-` and capitals.
pub(super) fn instead(name: &str) -> Option<&'static str> {
    let name = name.replace(['_', '-'], "").to_ascii_lowercase();
    let row = INSTEAD
        .iter()
        .find(|(names, _)| names.split(' ').any(|known| known == name));
    row.map(|(_, instead)| *instead)
}

pub(super) const VERIFIED: &str =
    "certificates are always verified; a CA of your own is named with the builder's `tls`";

const LEFT_OUT: &str = "leave it out, it has no meaning for locks";

/// Parameters of redis-py, redis-rs, fred, go-redis, Lettuce, Jedis, ioredis, node-redis, Predis and phpredis.
const INSTEAD: [(&str, &str); 14] = [
    (
        "node nodes hosts",
        "several nodes are those of a cluster, redis-cluster://",
    ),
    (
        "master mastername masterset sentinelmasterid sentinelservicename servicename sentinels sentinelusername \
         sentinelpassword",
        "sentinels are asked with redis-sentinel://",
    ),
    (
        "user username pass password auth credentials",
        "user and password are written before the host, `user:password@`",
    ),
    (
        "ssl tls usessl usetls ssltls",
        "TLS is asked for with rediss://",
    ),
    (
        "sslcertreqs sslcheckhostname sslverify sslverifypeer sslverifyhost verify verifypeer verifymode skipverify \
         insecure insecureskipverify tlsinsecure rejectunauthorized starttls",
        VERIFIED,
    ),
    (
        "sslcacerts sslcapath sslcadata sslcertfile sslkeyfile sslcert sslkey cacert cafile ca cert key tlsca tlscert \
         tlskey servername tlsservername sslservername",
        "certificates are given with the builder's `tls`",
    ),
    (
        "timeout sockettimeout socketconnecttimeout connecttimeout connectiontimeout dialtimeout readtimeout \
         writetimeout commandtimeout readwritetimeout asynctimeout synctimeout responsetimeout",
        "how long to wait for an answer is the builder's `command_timeout`",
    ),
    (
        "clientname name connectionname",
        "connections are named with the builder's `client_name`",
    ),
    (
        "prefix keyprefix namespace",
        "keys are prefixed with the builder's `key_prefix`",
    ),
    (
        "family ipfamily",
        "leave it out, IPv4 and IPv6 are both tried",
    ),
    (
        "connections",
        "the number of connections is the builder's `connections`",
    ),
    (
        "poolsize maxconnections maxpoolsize minpoolsize minidle maxidle maxactive maxtotal minidleconns maxidleconns \
         maxactiveconns pooltimeout poolfifo connmaxidletime connmaxlifetime blockonexhaustion maxwait",
        "leave it out, there is no pool, and all calls share a few connections",
    ),
    (
        "maxretries retries retry retryontimeout retryattempts retryinterval minretrybackoff maxretrybackoff \
         maxretriesperrequest maxredirects maxredirections clustererrorretryattempts",
        "leave it out, what may be repeated is; for how long `lock` tries is the builder's `retry_for`",
    ),
    (
        "protocol resp version decoderesponses encoding encodingerrors charset codec serializer healthcheckinterval \
         keepalive socketkeepalive tcpkeepalive tcpnodelay pinginterval disableidentity identitysuffix libname libver \
         libraryname libraryversion readfrom readmode readonly readfromreplicas routebylatency routerandomly \
         loadbalancer scanmode persistent alias weight lazyconnect enableofflinequeue enablereadycheck offlinequeue",
        LEFT_OUT,
    ),
];
