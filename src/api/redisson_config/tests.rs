//! Files as people have them, and what becomes of them.

use super::*;

fn variable(name: &str) -> Option<String> {
    (name == "REDIS_PASSWORD").then(|| "s/cret#1".to_owned())
}

fn read(text: &str) -> RedissonConfig {
    RedissonConfig::read(text, variable).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    let refused = RedissonConfig::read(text, variable).err();
    refused
        .unwrap_or_else(|| panic!("accepted: {text}"))
        .to_string()
}

#[test]
fn each_kind_of_servers_becomes_its_url() {
    for (text, url) in [
        (
            "singleServerConfig:\n  address: \"redis://${REDIS_HOST:-127.0.0.1}:6379\"\n  password: 0123\n  database: 2\n",
            "redis://:0123@127.0.0.1:6379/2",
        ),
        (
            "singleServerConfig:\n  address: \"//10.0.0.1:6379\"\n  password: null\n",
            "redis://10.0.0.1:6379",
        ),
        (
            "singleServerConfig: { address: [\"rediss://:hidden@10.0.0.1:6379\"] }",
            "rediss://:hidden@10.0.0.1:6379",
        ),
        (
            "single-server-config:\n  address: redis://h:1\n  user-name: u@x\n  password: ${REDIS_PASSWORD}\n",
            "redis://u%40x:s%2Fcret%231@h:1",
        ),
        (
            "sentinelServersConfig:\n  masterName: my master\n  sentinelAddresses:\n  - redis://a:26379\n  - redis://b:26379\n  database: 7\n  checkSentinelsList: false\n",
            "redis-sentinel://a:26379,b:26379/7?sentinelServiceName=my%20master",
        ),
        (
            "{\"clusterServersConfig\":{\"nodeAddresses\":[\"rediss://a:1\",\"rediss://[::1]:2\"],\n\t\"scanInterval\":2000}}",
            "rediss-cluster://a:1,[::1]:2",
        ),
        (
            "masterSlaveServersConfig:\n  masterAddress: redis://a:1\n  slaveAddresses: [\"redis://b:2\"]\n",
            "redis://a:1",
        ),
        (
            "replicatedServersConfig:\n  nodeAddresses: [\"redis://primary.example:1\"]\n",
            "redis://primary.example:1",
        ),
        ("defaults: &one\nsingleServerConfig: *one\n", ""),
    ] {
        if url.is_empty() {
            assert!(refused(text).contains("`defaults` is unknown"));
            continue;
        }
        assert_eq!(read(text).url, url, "{text}");
    }
}

#[test]
fn settings_reach_the_builder_and_each_key_is_in_the_report() {
    let config = read(
        "clusterServersConfig:
  nodeAddresses: [\"redis://a:1\"]
  timeout: 20000
  clientName: orders
  subscriptionMode: SLAVE
  readMode: MASTER
  loadBalancer: !<org.redisson.connection.balancer.RoundRobinLoadBalancer> {}
  natMapper: !<org.redisson.config.HostPortNatMapper>
    hostsPortMap: { \"172.20.0.2:7001\": \"docker.example:7001\" }
password: hidden
lockWatchdogTimeout: 10000
fairLockWaitTimeout: 5000
checkLockSyncedSlaves: true
slavesSyncTimeout: 500
codec: !<org.redisson.codec.Kryo5Codec> {}
nameMapper: !<org.redisson.config.DefaultNameMapper> {}
sslVerificationMode: STRICT
threads: 16
",
    );
    let built = LockClient::builder()
        .watchdog_timeout(Duration::from_secs(10))
        .command_timeout(Duration::from_secs(10) / 3 - Duration::from_millis(1))
        .client_name("orders")
        .announce(Announce::Both)
        .fair_wait(Duration::from_secs(5))
        .sync_replicas(1, Duration::from_millis(500))
        .address_map([("172.20.0.2:7001", "docker.example:7001")]);
    assert_eq!(format!("{:?}", config.builder), format!("{built:?}"));
    assert_eq!(config.url, "redis-cluster://:hidden@a:1");
    let shown = format!("{config:?} {config}");
    assert!(!shown.contains("hidden"), "{shown}");
    for key in [
        "used: password, lockWatchdogTimeout, fairLockWaitTimeout",
        "not needed: codec (",
        "not needed: nameMapper (",
        "not needed: sslVerificationMode (",
        "not needed: clusterServersConfig.loadBalancer (",
        "clusterServersConfig.natMapper",
    ] {
        assert!(shown.contains(key), "{key}: {shown}");
    }
    assert_eq!(config.used().count() + config.not_needed().count(), 16);
}

#[test]
fn all_problems_are_reported_together_and_no_value_is_quoted() {
    let said = refused(
        "singleServerConfig:
  adress: redis://:hidden@h:1
  timeout: hidden
  password: ${MISSING}
  nodeAddresses: [\"redis://hidden\"]
  sslTruststore: file:/hidden.jks
  nameMapper: !<com.example.hidden.Mapper> {}
sslVerificationMode: NONE
nettyThread: 4
",
    );
    for problem in [
        "invalid Redisson configuration: `${MISSING}` has no value",
        "`nettyThread` is unknown; the nearest key is `nettyThreads`",
        "`singleServerConfig.adress` is unknown; the nearest key is `address`",
        "`singleServerConfig.timeout`: it is no number of milliseconds",
        "`singleServerConfig.nodeAddresses` does not belong there",
        "`singleServerConfig.sslTruststore`: export it as PEM",
        "`singleServerConfig.nameMapper`: remove the key, and set `key_prefix`",
        "`sslVerificationMode`: certificates are always verified",
        "no server has an address",
    ] {
        assert!(said.contains(problem), "{problem}: {said}");
    }
    assert!(!said.contains("hidden"), "{said}");
}

#[test]
fn a_file_that_means_nothing_says_why() {
    for (text, problem) in [
        ("", "it is empty"),
        ("a: [", "it is no YAML and no JSON"),
        ("- a", "it is no object with keys"),
        ("threads: 1", "it names no servers"),
        ("threads: 1\nthreads: 2", "`threads` is there twice"),
        ("threads: 1\n---\nthreads: 1", "several documents"),
        ("singleServerConfig: 1", "`singleServerConfig` is no object"),
        (
            "singleServerConfig: {address: \"redis://a:1\"}\nclusterServersConfig: {nodeAddresses: [\"redis://a:1\"]}",
            "remove one of them",
        ),
        (
            "sentinelServersConfig: {sentinelAddresses: [\"redis://a:1\"]}",
            "`masterName` is missing",
        ),
        (
            "clusterServersConfig: {nodeAddresses: [\"redis://a:1\"], database: 1}",
            "a cluster has one database",
        ),
        (
            "clusterServersConfig: {nodeAddresses: [\"redis://a:1\", \"rediss://b:1\"]}",
            "some addresses have TLS",
        ),
        (
            "replicatedServersConfig: {nodeAddresses: [\"redis://a:1\", \"redis://b:1\"]}",
            "one host name that resolves to the primary",
        ),
        (
            "singleServerConfig: {address: \"redis+uds:///tmp/s\"}",
            "an address is not `redis://host:port`",
        ),
        (
            "singleServerConfig: {address: \"redis://a:1\", username: u}",
            "`username` needs `password`",
        ),
        (
            "clusterServersConfig: {nodeAddresses: [\"redis://a:1\"], natMapper: !<com.example.Mapper> {}}",
            "set `map_addresses`",
        ),
    ] {
        let said = refused(text);
        assert!(said.contains(problem), "{text}: {said}");
    }
}
