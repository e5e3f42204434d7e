//! A client with the settings of a Redisson configuration file (feature `redisson-config`).

use redisson_lock::{Error, RedissonConfig};
use test_support::{Cluster, TestServer, ms, test, tokio};

#[tokio::test]
async fn a_server_is_locked_with_the_settings_of_a_yaml_file() {
    let server = TestServer::new();
    let text = "singleServerConfig:
  address: \"redis://${REDIS_HOST:-127.0.0.1}:${REDIS_PORT}\"
  clientName: from-yaml
  connectionPoolSize: 64
codec: !<org.redisson.codec.Kryo5Codec> {}
lockWatchdogTimeout: 6000
";
    let port = server.port.to_string();
    let variable = |name: &str| (name == "REDIS_PORT").then(|| port.clone());
    let config = RedissonConfig::read(text, variable).expect("all keys are known");
    let config = config.map_builder(|builder| builder.key_prefix("shop:"));
    let client = config.connect().await.expect("it responds");
    let lock = client.lock("stock");
    let guard = lock.lock().await.expect("free");
    let left = lock.lease_left().await.expect("asked").expect("held");
    assert!(left <= ms(6_000), "{left:?}");
    let names = server.control().run(&["CLIENT", "LIST"]);
    assert!(names.contains("name=from-yaml"), "{names}");
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_cluster_is_locked_with_the_settings_of_a_json_file() {
    let cluster = Cluster::start(false).await;
    let [one, two] = [cluster.port(0), cluster.port(1)];
    let text = format!(
        "{{\"clusterServersConfig\": {{\"nodeAddresses\": \
         [\"redis://127.0.0.1:{one}\", \"redis://127.0.0.1:{two}\"], \"scanInterval\": 2000}}}}"
    );
    let config = RedissonConfig::read(&text, |_| None).expect("all keys are known");
    let client = config.connect().await.expect("it responds");
    let guard = client.lock("stock").lock().await.expect("free");
    guard.unlock().await.expect("held");
    client.close(ms(0)).await;
}

#[test]
fn every_problem_of_a_file_is_one_error() {
    let text = "singleServerConfig: {adress: x}\nsslCiphers: [a]";
    let error = RedissonConfig::read(text, |_| None).expect_err("two problems");
    let shown = error.to_string();
    assert!(
        shown.contains("adress") && shown.contains("sslCiphers"),
        "{shown}"
    );
    assert!(matches!(error, Error::InvalidConfig { .. }));
}
