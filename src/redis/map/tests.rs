//! Tests of the map without a server.

use test_support::tokio;

use super::*;
use crate::redis::lane::Lane;
use crate::runtime::Runtime;

fn map() -> Arc<Map> {
    // Nobody listens there.
    let url = "redis-cluster://127.0.0.1:1";
    let settings = Settings::from_url(url, None, Duration::from_millis(100), true);
    let settings = Arc::new(settings.expect("valid"));
    let around = Surroundings::new(&Runtime::current().expect("in a runtime"));
    Arc::new(Map::new(settings, Expected::Nothing, 16_384, 1, around))
}

fn address(nth: usize) -> Address {
    Address::new("127.0.0.1", nth as u16 + 1)
}

#[tokio::test]
async fn more_servers_than_there_are_numbers_are_not_followed() {
    let map = map();
    for nth in 0..NODES_MAX {
        map.apply(&[(0..=16_383, address(nth))]);
    }
    let (last, node) = map.owner(5).expect("it has one");
    assert_eq!(
        (usize::from(last), &node.address),
        (NODES_MAX - 1, &address(NODES_MAX - 1))
    );
    map.apply(&[(0..=5, address(NODES_MAX)), (6..=9, address(3))]);
    assert_eq!(map.owner(5).expect("as before").0, last);
    assert_eq!(map.owner(6).expect("a known one").0, 3);
    assert!(map.taking_over(&address(NODES_MAX)).is_none());
    assert_eq!(map.nodes().len(), 2);
    map.around.end();
}

/// Half of the threads have lanes made, the others change whether they are wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_begins_while_its_server_is_dismissed_knows_that() {
    let map = map();
    for round in 0..4_000 {
        let settings = Arc::clone(&map.settings);
        let node = Arc::new(Node::new(address(1), settings, 1, 1));
        let (other, around) = (Arc::clone(&node), map.around.clone());
        let runtime = tokio::runtime::Handle::current();
        let start = Arc::new(std::sync::Barrier::new(2));
        let at = Arc::clone(&start);
        let making = std::thread::spawn(move || {
            let _runtime = runtime.enter();
            at.wait();
            other.lane(0, &around);
        });
        start.wait();
        (0..round % 64).for_each(|_| std::hint::spin_loop());
        node.set_wanted(false);
        making.join().expect("no panic");
        let wanted = node.lanes().any(Lane::is_wanted);
        assert!(!wanted, "round {round}");
    }
    map.around.end();
}
