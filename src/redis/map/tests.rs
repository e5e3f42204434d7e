//! Tests of the map without a server.

use std::ops::RangeInclusive;

use futures_util::FutureExt;
use test_support::tokio;

use super::send::NO_OWNER;
use super::values::NODES_MAX;
use super::*;
use crate::redis::lane::Lane;
use crate::redis::link::SendError;
use crate::runtime::Runtime;

fn map() -> Arc<Map> {
    // No server listens there.
    let url = "redis-cluster://127.0.0.1:1";
    let settings = Settings::from_url(url, None, Duration::from_millis(100), true);
    let settings = Arc::new(settings.expect("valid"));
    let around = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
    Map::new(settings, Expected::WorkingCluster, 16_384, 1, around)
}

/// A table without identities.
fn table(routes: Vec<(RangeInclusive<u16>, Address)>) -> Table {
    Table {
        source: None,
        epoch: 1,
        routes: routes
            .into_iter()
            .map(|(slots, address)| (slots, address.into()))
            .collect(),
        members: BTreeSet::new(),
    }
}

fn address(nth: usize) -> Address {
    Address::new("127.0.0.1", nth as u16 + 1)
}

#[tokio::test]
async fn more_servers_than_there_are_numbers_are_not_followed() {
    let map = map();
    for nth in 0..NODES_MAX {
        map.apply(&table(vec![(0..=16_383, address(nth))]));
    }
    let (last, node) = map.owner(5).expect("it has one");
    assert_eq!(
        (usize::from(last), node.endpoint.address()),
        (NODES_MAX - 1, address(NODES_MAX - 1))
    );
    map.apply(&table(vec![
        (0..=5, address(NODES_MAX)),
        (6..=9, address(3)),
    ]));
    assert_eq!(map.owner(5).expect("as before").0, last);
    assert_eq!(map.owner(6).expect("a known one").0, 3);
    assert!(map.importing(&address(NODES_MAX)).is_none());
    assert_eq!(map.nodes().len(), 2);
    map.around.end();
}

/// A table of one range, with identities.
fn named(epoch: u64, owner: (&str, usize), others: &[&str]) -> Table {
    let id = |id: &str| ServerId::from(id);
    let server = Named {
        address: address(owner.1),
        id: Some(id(owner.0)),
    };
    Table {
        source: None,
        epoch,
        routes: vec![(0..=9, server)],
        members: others.iter().copied().chain([owner.0]).map(id).collect(),
    }
}

fn owner(map: &Map) -> u16 {
    map.owner(5).expect("it has one").0
}

#[tokio::test]
async fn a_server_keeps_its_number_under_every_address() {
    let map = map();
    map.apply(&named(1, ("a", 1), &[]));
    map.apply(&named(2, ("a", 2), &[]));
    assert_eq!(owner(&map), 0);
    assert_eq!(
        map.owner(5).expect("it has one").1.endpoint.address(),
        address(2)
    );
    // Another one has its address now.
    map.apply(&named(3, ("b", 2), &["a"]));
    assert_eq!(owner(&map), 1);
    map.apply(&named(4, ("a", 3), &["b"]));
    assert_eq!(owner(&map), 0);
    assert_eq!(map.figures().failovers, 2);
    map.around.end();
}

#[tokio::test]
async fn a_server_that_takes_the_place_of_one_that_is_gone_has_its_number_and_its_holds_are_looked_at()
 {
    let map = map();
    let with_two_ranges = |epoch, id| {
        let mut table = named(epoch, (id, 1), &[]);
        let server = table.routes[0].1.clone();
        table.routes.push((20..=29, server));
        table
    };
    map.apply(&with_two_ranges(1, "a"));
    map.apply(&with_two_ranges(2, "b"));
    assert_eq!(
        owner(&map),
        0,
        "its connections are fenced from those of the last"
    );
    let all = (0..=9).chain(20..=29).collect();
    assert_eq!(map.switches.next().await, all);
    map.around.end();
}

#[tokio::test]
async fn a_connection_tells_which_server_an_address_leads_to() {
    let map = map();
    map.apply(&named(1, ("a", 1), &[]));
    let id = |id: &str| Some(ServerId::from(id));
    map.moved(5, 0, address(2));
    assert_eq!(owner(&map), 1, "nobody has named it");
    let unknown = map.identify(1, None);
    assert_eq!(unknown, Identified::Unknown);
    // It is the first one.
    assert_eq!(map.identify(1, id("a").as_ref()), Identified::Other);
    assert_eq!(owner(&map), 0);
    let at = map.node(0).endpoint.address();
    assert_eq!(at, address(2), "where it has just been seen to work");
    let agrees = map.apply(&named(1, ("a", 1), &[]));
    assert!(agrees, "the owner meant the same server");
    // One that takes over a slot, and has none yet.
    let (number, node) = map.importing(&address(7)).expect("a number is left");
    let mut changed = std::pin::pin!(map.switched());
    changed.as_mut().enable();
    node.lane(0, &map.around);
    assert_eq!(map.identify(number, id("a").as_ref()), Identified::Other);
    changed.await;
    assert_eq!(map.importing(&address(7)).expect("known").0, 0);
    assert!(!node.lanes().any(Lane::is_wanted), "it is not opened again");
    map.moved(5, 0, address(3));
    assert_eq!(map.identify(3, id("c").as_ref()), Identified::Same);
    assert_eq!(owner(&map), 3);
    assert_eq!(
        map.identify(3, id("d").as_ref()),
        Identified::Other,
        "only the table says so"
    );
    map.around.end();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_to_take_over_a_slot_keeps_its_connections_for_a_while() {
    let map = map();
    let mut epoch = 0;
    // Each time the slots have another owner.
    let mut change = || {
        epoch += 1;
        let owner = [("a", 1), ("b", 2)][epoch as usize % 2];
        map.apply(&named(epoch, owner, &["a", "b"]));
    };
    change();
    let (_, node) = map.importing(&address(7)).expect("a number is left");
    node.lane(0, &map.around);
    let is_wanted = || node.lanes().any(Lane::is_wanted);
    change();
    assert!(is_wanted(), "from the first moment on");
    tokio::time::advance(TAKING_OVER - Duration::from_millis(1)).await;
    change();
    assert!(is_wanted());
    tokio::time::advance(Duration::from_millis(1)).await;
    change();
    assert!(!is_wanted(), "it has taken over nothing");
    map.around.end();
}

#[tokio::test]
async fn a_table_tells_which_server_an_address_leads_to() {
    let map = map();
    map.apply(&named(1, ("a", 1), &[]));
    map.moved(5, 0, address(2));
    assert_eq!(owner(&map), 1, "nobody has named it");
    assert!(map.apply(&named(1, ("a", 2), &[])));
    assert_eq!((owner(&map), map.nodes().len()), (0, 1));
    assert_eq!(map.figures().failovers, 0, "it was the same server");
    map.around.end();
}

#[tokio::test]
async fn an_identity_that_comes_back_at_another_address_is_another_server() {
    let map = map();
    map.apply(&named(1, ("a", 1), &[]));
    map.apply(&named(2, ("b", 1), &[]));
    assert_eq!(owner(&map), 0, "it has taken the place of the first");
    map.apply(&named(3, ("a", 2), &["b"]));
    assert_eq!(owner(&map), 1);
    let at = map.node(0).endpoint.address();
    assert_eq!(at, address(1), "the other one is still there");
    map.around.end();
}

#[tokio::test]
async fn a_server_that_was_named_by_its_address_is_known_by_its_identity_from_then_on() {
    let map = map();
    map.apply(&named(1, ("a", 1), &[]));
    // Its identity is in a table.
    map.moved(5, 0, address(2));
    map.apply(&named(2, ("b", 2), &["a"]));
    assert_eq!(owner(&map), 1);
    assert_eq!(map.node(1).endpoint.id(), Some(ServerId::from("b")));
    // Its connection reports it.
    map.moved(5, 1, address(3));
    let id = ServerId::from("c");
    assert_eq!(map.identify(2, Some(&id)), Identified::Same);
    map.apply(&named(3, ("c", 4), &["a", "b"]));
    assert_eq!(owner(&map), 2, "wherever it is now");
    map.around.end();
}

#[tokio::test]
async fn the_owner_of_a_route_knows_who_is_next_and_others_may_have_heard_of_it_late() {
    let map = map();
    let here = |map: &Map| (owner(map), map.owner(6).expect("it has one").0);
    map.apply(&named(1, ("a", 1), &["b"]));
    map.moved(5, 7, address(2));
    assert_eq!(here(&map), (0, 0), "it is not its owner");
    map.moved(5, 0, address(2));
    assert_eq!(here(&map), (1, 0));
    assert_eq!(map.newest(), [address(2)], "its table knows of it");
    assert!(
        !map.apply(&named(1, ("a", 1), &["b"])),
        "another node should be asked"
    );
    assert_eq!(here(&map), (1, 0));
    // A server does not redirect to itself.
    map.moved(6, 0, address(1));
    assert_eq!(here(&map), (1, 2));
    assert!(map.apply(&named(2, ("a", 1), &["b"])), "a later epoch");
    assert_eq!(here(&map), (0, 0));
    // The next owner itself is believed.
    map.moved(5, 0, address(2));
    assert_eq!(map.identify(1, Some(&"b".into())), Identified::Same);
    let from_it = Table {
        source: Some("b".into()),
        ..named(2, ("a", 1), &["b"])
    };
    assert!(map.apply(&from_it));
    assert_eq!(here(&map), (0, 0));
    map.around.end();
}

#[tokio::test]
async fn only_a_server_that_routes_had_before_was_taken_over_from() {
    let map = map();
    let reported = || {
        let routes = map.switches.next().now_or_never();
        let is_server_gone = map.around.moved.notified().now_or_never().is_some();
        (routes.is_some(), is_server_gone)
    };
    map.apply(&named(1, ("a", 1), &["b"]));
    assert_eq!(reported(), (false, false), "nothing was known before");
    map.moved(5, 0, address(2));
    assert_eq!(reported(), (true, false), "it has other routes");
    map.apply(&named(2, ("b", 2), &["a"]));
    assert_eq!(reported(), (true, true));
    map.around.end();
}

#[tokio::test(start_paused = true)]
async fn a_route_without_a_server_is_waited_for_until_the_limit() {
    let map = map();
    let (start, limit) = (Instant::now(), NO_OWNER * 9 / 2);
    let missing = map.ready(5, 0, start + limit).await;
    assert!(matches!(missing, Err(SendError::NotSent(_))));
    assert_eq!(start.elapsed().as_millis(), limit.as_millis());
    let is_asked_for = map.around.outdated.notified().now_or_never();
    assert!(is_asked_for.is_some());
    map.around.end();
}

/// Half of the threads have lanes made, the others change whether they are wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_begins_while_its_server_is_dismissed_knows_that() {
    let map = map();
    for round in 0..4_000 {
        let settings = Arc::clone(&map.settings);
        let endpoint = Endpoint::new(address(1), settings, None, None);
        let node = Arc::new(Node::new(endpoint, 1, 1));
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
