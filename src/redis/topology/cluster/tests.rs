//! When a cluster is asked for its slots, and which report is believed.

use test_support::{FakeCluster, tokio};

use super::*;
use crate::base::runtime::Runtime;
use crate::redis::node::lane::ConnectionContext;

fn settings() -> Arc<Settings> {
    // Nothing listens there.
    let url = "redis-cluster://127.0.0.1:1";
    let settings = Settings::from_url(url, None, Duration::from_millis(1_500), true);
    Arc::new(settings.expect("valid"))
}

fn map(settings: &Arc<Settings>) -> Arc<Map> {
    let context = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
    let settings = Arc::clone(settings);
    Map::new(settings, Expected::WorkingCluster, 16_384, 1, context)
}

fn addresses(cluster: &FakeCluster) -> Vec<Address> {
    let port = |nth| cluster.proxy(nth).port;
    (0..3)
        .map(|nth| Address::new("127.0.0.1", port(nth)))
        .collect()
}

/// How often something is tried that a machine without time fails.
const TRIES: usize = 20;

#[tokio::test(start_paused = true)]
async fn without_a_reason_the_slots_are_asked_for_every_five_seconds() {
    let settings = settings();
    let (map, mut refresher) = (map(&settings), SlotMapRefresher::new(&settings));
    let start = Instant::now();
    refresher.until_outdated(&map).await;
    assert_eq!(start.elapsed().as_secs(), REFRESH_INTERVAL.as_secs());
    map.context.end();
}

#[tokio::test(start_paused = true)]
async fn out_of_doubt_the_slots_are_asked_for_at_most_every_second() {
    let settings = settings();
    let (map, mut refresher) = (map(&settings), SlotMapRefresher::new(&settings));
    let start = Instant::now();
    map.context.doubted.notify_one();
    refresher.until_outdated(&map).await;
    assert_eq!(start.elapsed().as_secs(), LOOK_INTERVAL.as_secs());
    map.context.doubted.notify_one();
    refresher.until_outdated(&map).await;
    let again = start.elapsed().as_secs();
    assert_eq!(
        again,
        LOOK_INTERVAL.as_secs(),
        "the last question was a second ago"
    );
    map.context.end();
}

/// It is looked at over the connection of the last question.
#[tokio::test]
async fn the_epoch_shows_whether_the_slots_have_changed() {
    let cluster = FakeCluster::start().await;
    let (settings, nodes) = (settings(), addresses(&cluster));
    let (map, mut refresher) = (map(&settings), SlotMapRefresher::new(&settings));
    let mut is_same = false;
    for _ in 0..TRIES {
        refresher.refresh(&map, &nodes).await;
        assert!(refresher.source.is_some(), "its report contradicts nothing");
        is_same = refresher.has_same_epoch().await;
        if is_same {
            break;
        }
    }
    assert!(is_same);
    cluster.change(|view| view.epoch += 1);
    assert!(!refresher.has_same_epoch().await);
    map.context.end();
}

#[tokio::test]
async fn of_the_reports_of_a_lower_epoch_the_newest_is_believed() {
    let cluster = FakeCluster::start().await;
    let (settings, nodes) = (settings(), addresses(&cluster));
    let mut refresher = SlotMapRefresher::new(&settings);
    for (nth, epoch) in [1, 2, 1].into_iter().enumerate() {
        cluster.change_at(nth, |view| view.epoch = epoch);
    }
    refresher.epoch = 3;
    let mut believed = None;
    for _ in 0..TRIES {
        // A node that does not respond in time may know more.
        believed = refresher.query(&nodes, TIME_LIMIT).await.ok();
        if believed.is_some() {
            break;
        }
    }
    assert_eq!(believed.map(|table| table.epoch), Some(2));
}
