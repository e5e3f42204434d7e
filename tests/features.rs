//! The features `metrics` and `serde`: what is measured, and what a configuration says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use redisson_lock::{Error, LockClientBuilder, TryLock};
use serde_json::json;
use test_support::{TestServer, eventually, lock_and_unlock, ms, test, tokio};

/// What was recorded: a counter's value, or how many values a histogram was told.
fn recorded(snapshotter: &Snapshotter) -> BTreeMap<String, u64> {
    let snapshot = snapshotter.snapshot().into_vec();
    let told = snapshot.into_iter().map(|(key, _, _, value)| {
        let key = key.key();
        let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
        let value = match value {
            DebugValue::Counter(value) => value,
            DebugValue::Histogram(values) => values.len() as u64,
            DebugValue::Gauge(value) => value.into_inner() as u64,
        };
        (format!("{} {}", key.name(), labels.join(" ")), value)
    });
    told.collect()
}

#[tokio::test]
async fn calls_and_holds_are_measured_by_class_and_outcome() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let lock = client.lock("stock:42").class("checkout");

    lock_and_unlock(&lock).await;
    let theirs = other.lock("stock:42").lock().await.expect("free");
    assert!(lock.try_lock().await.expect("asked").is_none());
    {
        let waiting = std::pin::pin!(lock.lock());
        assert!(tokio::time::timeout(ms(50), waiting).await.is_err());
    }
    client
        .lock("")
        .class("checkout")
        .lock()
        .await
        .expect_err("no name");
    let short = lock.lease(ms(1)).lock().await;
    short.expect_err("no lease");
    theirs.unlock().await.expect("held");

    let lost = lock.lock().await.expect("free");
    lock.force_unlock().await.expect("answered");
    eventually("it is lost", Duration::from_secs(20), || lost.is_lost()).await;
    drop(lost);
    let lease = lock.lease(ms(10_000));
    lease.lock().await.expect("free").detach();
    lock.unlock().await.expect("detached");
    // The default class says of which kind a lock is that is not plain; another one says what it wants.
    for string in [
        client.string_lock("string"),
        client.string_lock("string").class("checkout"),
    ] {
        let guard = string.lock().await.expect("free");
        guard.unlock().await.expect("held");
    }

    let recorded = recorded(&snapshotter);
    let expected = [
        ("redisson_lock_acquires_total checkout acquired", 4),
        ("redisson_lock_acquires_total checkout busy", 1),
        ("redisson_lock_acquires_total checkout cancelled", 1),
        ("redisson_lock_acquires_total checkout failed", 2),
        ("redisson_lock_acquires_total default acquired", 1),
        ("redisson_lock_acquires_total default string acquired", 1),
        ("redisson_lock_connected ", 2),
        ("redisson_lock_given_up_total ", 0),
        ("redisson_lock_held checkout", 0),
        ("redisson_lock_held default", 0),
        ("redisson_lock_held default string", 0),
        ("redisson_lock_hold_seconds checkout", 4),
        ("redisson_lock_hold_seconds default", 1),
        ("redisson_lock_hold_seconds default string", 1),
        ("redisson_lock_holds_total checkout detached", 1),
        ("redisson_lock_holds_total checkout lost", 1),
        ("redisson_lock_holds_total checkout released", 2),
        ("redisson_lock_holds_total default released", 1),
        ("redisson_lock_holds_total default string released", 1),
        ("redisson_lock_lost_total ", 1),
        ("redisson_lock_reconnects_total ", 0),
        ("redisson_lock_wait_seconds checkout", 4),
        ("redisson_lock_wait_seconds default", 1),
        ("redisson_lock_wait_seconds default string", 1),
        ("redisson_lock_waiting checkout", 0),
        ("redisson_lock_waiting default", 0),
        ("redisson_lock_waiting default string", 0),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(recorded, BTreeMap::from(expected));
    server.finish([client, other]).await;
}

/// The totals of the statistics that `docs/operations.md` alerts on.
#[tokio::test]
async fn losses_and_locks_left_to_their_leases_are_counted_whoever_finds_them() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(300)))
        .await;
    let mut control = server.control();

    // A detached hold, of which no guard can count the end.
    client.lock("detached").lock().await.expect("free").detach();
    control.run(&["DEL", "detached"]);
    let lost = client.lock("detached").unlock().await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    // A lock that is left to its lease, because the server refuses each release: it wants a replica that there is not.
    let leased = client.lock("left").lease(ms(2_000));
    let guard = leased.lock().await.expect("free");
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    drop(guard);
    let stats = || client.stats();
    eventually("it gives up", ms(10_000), || stats().given_up_total == 1).await;
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);

    let recorded = recorded(&snapshotter);
    for (name, total) in [
        ("redisson_lock_lost_total ", stats().lost_total),
        ("redisson_lock_given_up_total ", stats().given_up_total),
    ] {
        assert_eq!((recorded[name], total), (1, 1), "{name}");
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn each_metric_is_documented_and_described_with_its_unit() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = TestServer::new();
    let client = server.client().await;
    let guard = client.lock("a").lock().await.expect("free");
    guard.unlock().await.expect("held");
    let mut described = BTreeSet::new();
    for (key, unit, description, _) in snapshotter.snapshot().into_vec() {
        let name = key.key().name().to_owned();
        assert!(description.is_some(), "{name}");
        let expected = match name.ends_with("_seconds") {
            true => metrics::Unit::Seconds,
            false => metrics::Unit::Count,
        };
        assert_eq!(unit, Some(expected), "{name}");
        described.insert(name);
    }
    let page = include_str!("../docs/operations.md");
    let words = page.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    let gauges = ["waiting", "held", "connected"];
    let is_metric = |word: &&str| {
        let name = word.strip_prefix("redisson_lock_").unwrap_or_default();
        name.ends_with("_total") || name.ends_with("_seconds") || gauges.contains(&name)
    };
    let documented = words.filter(is_metric).map(str::to_owned).collect();
    assert_eq!(described, documented);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_recorder_that_panics_costs_nobody_a_lock() {
    #[derive(Default)]
    struct Panics {
        called: AtomicUsize,
    }
    impl Panics {
        fn panic(&self) -> ! {
            self.called.fetch_add(1, Ordering::Relaxed);
            panic!("nothing is kept here")
        }
    }
    impl metrics::Recorder for Panics {
        fn describe_counter(
            &self,
            _: metrics::KeyName,
            _: Option<metrics::Unit>,
            _: metrics::SharedString,
        ) {
        }
        fn describe_gauge(
            &self,
            _: metrics::KeyName,
            _: Option<metrics::Unit>,
            _: metrics::SharedString,
        ) {
        }
        fn describe_histogram(
            &self,
            _: metrics::KeyName,
            _: Option<metrics::Unit>,
            _: metrics::SharedString,
        ) {
        }
        fn register_counter(
            &self,
            _: &metrics::Key,
            _: &metrics::Metadata<'_>,
        ) -> metrics::Counter {
            self.panic()
        }
        fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
            self.panic()
        }
        fn register_histogram(
            &self,
            _: &metrics::Key,
            _: &metrics::Metadata<'_>,
        ) -> metrics::Histogram {
            self.panic()
        }
    }
    let recorder = Panics::default();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = TestServer::new();
    let client = server.client().await;
    let guard = client.lock("a").lock().await.expect("free");
    guard.unlock().await.expect("held");
    drop(client.lock("a").lock().await.expect("free"));
    // The gauge of the connection, the first total, and for each of two locks three of its call and three of its hold: a gauge
    // that goes up and down, and a counter before its histogram.
    assert_eq!(recorder.called.load(Ordering::Relaxed), 14);
    server.finish([client]).await;
}

#[test]
fn a_builder_is_read_from_a_configuration_and_written_as_one() {
    let all = json!({
        "watchdog_timeout": "10s",
        "command_timeout": "1s 500ms",
        "connections": 2,
        "connection_fence": false,
        "tracking": false,
        "key_prefix": "shop:",
        "client_name": "orders-7",
        "max_hold": "1h",
        "retry_for": "1m",
        "connect_for": "30s",
        "fair_wait": "30s",
        "handoff": false,
        "close_grace": "10s",
        "announce": "both",
        "address_map": { "172.20.0.2:7001": "docker.example:7001" },
        "sync_replicas": { "replicas": 2, "within": "100ms" },
    });
    let read: LockClientBuilder = serde_json::from_value(all.clone()).expect("it is one");
    let built = redisson_lock::LockClient::builder()
        .watchdog_timeout(ms(10_000))
        .command_timeout(ms(1_500))
        .connections(2)
        .connection_fence(false)
        .tracking(false)
        .key_prefix("shop:")
        .client_name("orders-7")
        .max_hold(Duration::from_secs(3_600))
        .connect_for(ms(30_000))
        .retry_for(Duration::from_secs(60))
        .fair_wait(Duration::from_secs(30))
        .handoff(false)
        .close_grace(ms(10_000))
        .announce(redisson_lock::Announce::Both)
        .address_map([("172.20.0.2:7001", "docker.example:7001")])
        .sync_replicas(2, ms(100));
    assert_eq!(format!("{read:?}"), format!("{built:?}"));
    assert_eq!(serde_json::to_value(&built).expect("plain data"), all);

    let nothing: LockClientBuilder = serde_json::from_value(json!({})).expect("the defaults");
    let default = redisson_lock::LockClient::builder();
    assert_eq!(format!("{nothing:?}"), format!("{default:?}"));

    for (wrong, problem) in [
        (json!({ "watchdog": "10s" }), "unknown field `watchdog`"),
        (json!({ "max_hold": "soon" }), "a duration"),
        (json!({ "handoff": 8 }), "expected a boolean"),
    ] {
        let refused = serde_json::from_value::<LockClientBuilder>(wrong).expect_err(problem);
        assert!(refused.to_string().contains(problem), "{refused}");
    }
}

#[tokio::test]
async fn statistics_holders_and_reports_are_serialised() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let lock = client.lock("a").lease(ms(60_000));
    let guard = lock.lock().await.expect("free");
    let owner = guard.owner().to_string();

    let stats = serde_json::to_value(client.stats()).expect("plain data");
    assert_eq!(
        (&stats["held"], &stats["connection_fence"]),
        (&json!(1), &json!("active"))
    );
    let holder = lock.inspect().await.expect("asked").expect("held");
    let shown = serde_json::to_value(&holder).expect("plain data");
    assert_eq!(
        (&shown["owner"], &shown["hold_count"]),
        (&json!(owner), &json!(1))
    );
    let left = shown["lease_left"].as_str().expect("as people write it");
    assert!(
        left.ends_with("ms") || left.ends_with('s') || left == "1m",
        "{left}"
    );
    let busy = other.lock("a").try_lock_or_holder().await.expect("asked");
    let TryLock::Busy { holder: Some(by) } = busy else {
        panic!("{busy:?}")
    };
    let by = serde_json::to_value(by).expect("plain data");
    assert_eq!(by["owner"], json!(owner));

    let report = client.close(ms(0)).await;
    let report = serde_json::to_value(&report).expect("plain data");
    let abandoned = json!([{ "lock": "a", "owner": owner }]);
    assert_eq!(report["abandoned"], abandoned);
    drop(guard);
    server.control().run(&["DEL", "a"]);
    server.finish([other]).await;
}
