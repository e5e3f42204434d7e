//! Tests of the map without a server.

use std::ops::RangeInclusive;
use std::pin::pin;

use futures_util::FutureExt;
use test_support::{Server, eventually, tokio, within};

use super::send::NO_OWNER;
use super::values::NODES_MAX;
use super::*;
use crate::base::runtime::Runtime;
use crate::kind::LockKind;
use crate::redis::connection::{AnswerCallback, Connection};
use crate::redis::node::BackgroundClass;
use crate::redis::node::lane::Lane;
use crate::redis::node::link::{Limit, Link, SendError};
use crate::redis::topology::route::Route;
use crate::redis::transport::{ConnectionError, Reply};
use crate::script;

fn map() -> Arc<Map> {
    map_of(CLUSTER, 16_384, 1)
}

fn map_of(url: &str, routes: usize, connections: usize) -> Arc<Map> {
    let settings = Settings::from_url(url, None, Duration::from_millis(1_500), true);
    let settings = Arc::new(settings.expect("valid"));
    let context = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
    let expected = match url == CLUSTER {
        true => Expected::WorkingCluster,
        false => Expected::Primary,
    };
    Map::new(settings, expected, routes, connections, context)
}

/// No server listens there.
const CLUSTER: &str = "redis-cluster://127.0.0.1:1";

/// A table without identities.
fn table(routes: Vec<(RangeInclusive<u16>, Address)>) -> RouteTable {
    RouteTable {
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
    map.context.end();
}

/// A table of one range, with identities.
fn named(epoch: u64, owner: (&str, usize), others: &[&str]) -> RouteTable {
    let id = |id: &str| ServerId::from(id);
    let server = Named {
        address: address(owner.1),
        id: Some(id(owner.0)),
    };
    RouteTable {
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
    assert_eq!(map.stats().failovers, 2);
    map.context.end();
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
    map.context.end();
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
    let mut changed = pin!(map.switched());
    changed.as_mut().enable();
    node.lane(0, &map.context);
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
    map.context.end();
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
    node.lane(0, &map.context);
    let is_wanted = || node.lanes().any(Lane::is_wanted);
    change();
    assert!(is_wanted(), "from the first moment on");
    tokio::time::advance(TAKING_OVER - Duration::from_millis(1)).await;
    change();
    assert!(is_wanted());
    tokio::time::advance(Duration::from_millis(1)).await;
    change();
    assert!(!is_wanted(), "it has taken over nothing");
    map.context.end();
}

#[tokio::test]
async fn a_table_tells_which_server_an_address_leads_to() {
    let map = map();
    map.apply(&named(1, ("a", 1), &[]));
    map.moved(5, 0, address(2));
    assert_eq!(owner(&map), 1, "nobody has named it");
    assert!(map.apply(&named(1, ("a", 2), &[])));
    assert_eq!((owner(&map), map.nodes().len()), (0, 1));
    assert_eq!(map.stats().failovers, 0, "it was the same server");
    map.context.end();
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
    map.context.end();
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
    map.context.end();
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
    let from_it = RouteTable {
        source: Some("b".into()),
        ..named(2, ("a", 1), &["b"])
    };
    assert!(map.apply(&from_it));
    assert_eq!(here(&map), (0, 0));
    map.context.end();
}

#[tokio::test]
async fn only_a_server_that_routes_had_before_was_taken_over_from() {
    let map = map();
    let reported = || {
        let routes = map.switches.next().now_or_never();
        (routes.is_some(), map.stats().failovers)
    };
    map.apply(&named(1, ("a", 1), &["b"]));
    assert_eq!(reported(), (false, 0), "nothing was known before");
    map.moved(5, 0, address(2));
    assert_eq!(reported(), (true, 0), "it has other routes");
    map.apply(&named(2, ("b", 2), &["a"]));
    assert_eq!(reported(), (true, 1));
    map.context.end();
}

#[tokio::test(start_paused = true)]
async fn a_route_without_a_server_is_waited_for_until_the_limit() {
    let map = map();
    let (start, limit) = (Instant::now(), NO_OWNER * 9 / 2);
    let missing = map.ready(5, 0, start + limit).await;
    assert!(matches!(missing, Err(SendError::NotAccepted(_))));
    assert_eq!(start.elapsed().as_millis(), limit.as_millis());
    let is_asked_for = map.context.outdated.notified().now_or_never();
    assert!(is_asked_for.is_some());
    map.context.end();
}

#[tokio::test]
async fn the_connections_of_a_server_share_the_calls_of_a_kind() {
    let map = map_of(CLUSTER, 10, 4);
    map.apply(&named(1, ("a", 1), &[]));
    let node = map.node(0);
    let begin = || node.bulk(3, BackgroundClass::Renewals).now_or_never();
    let begun: Vec<_> = std::iter::from_fn(begin).collect();
    assert_eq!(begun.len(), BULK_MAX / 4);
    map.context.end();
}

#[tokio::test]
async fn the_last_route_has_a_server_and_those_beyond_are_not_looked_at() {
    let map = map_of(CLUSTER, 8, 1);
    map.apply(&table(vec![(6..=u16::MAX, address(1))]));
    let known: Vec<_> = (0..8).filter(|route| map.owner(*route).is_some()).collect();
    assert_eq!(known, [6, 7]);
    // Its next server turns out to be the same.
    let id = ServerId::from("a");
    assert_eq!(map.identify(0, Some(&id)), Identified::Same);
    map.moved(7, 0, address(2));
    assert_eq!(map.owner(7).expect("it has one").0, 1);
    assert_eq!(map.identify(1, Some(&id)), Identified::Other);
    assert_eq!(map.owner(7).expect("it has one").0, 0);
    map.context.end();
}

#[tokio::test]
async fn a_server_that_takes_over_a_slot_under_another_address_has_connections() {
    let map = map();
    map.apply(&named(1, ("a", 1), &["b"]));
    map.apply(&named(2, ("b", 2), &["a"]));
    let (known, (alias, named_so)) = (
        map.node(0),
        map.importing(&address(7)).expect("one is left"),
    );
    known.lane(0, &map.context);
    named_so.lane(0, &map.context);
    let wanted = || [&known, &named_so].map(|node| node.lanes().any(Lane::is_wanted));
    assert_eq!(wanted(), [false, true]);
    let id = ServerId::from("a");
    assert_eq!(map.identify(alias, Some(&id)), Identified::Other);
    assert_eq!(wanted(), [true, false]);
    map.context.end();
}

#[tokio::test]
async fn the_connections_of_a_server_that_was_replaced_end() {
    let server = Server::start();
    let map = map_of(&server.url(), 10, 1);
    // Its port is that of this address.
    let nth = usize::from(server.port) - 1;
    map.apply(&named(1, ("a", nth), &[]));
    let (_, node) = map.owner(5).expect("it has one");
    let limit = Instant::now() + LONG;
    let link = node.lane(0, &map.context).ready(limit).await;
    let link = link.expect("it responds");
    map.apply(&named(2, ("b", nth), &[]));
    let ended = within(LONG, async {
        while !link.has_ended() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let ended = ended.await;
    assert!(ended.is_some(), "it leads to a server that is gone");
    map.context.end();
}

/// A release that waited for the former server would be late at the next one.
#[tokio::test]
async fn what_was_entered_ends_when_another_server_has_its_route() {
    let server = Server::start();
    let map = map_of(&server.url(), 10, 1);
    map.apply(&named(1, ("a", usize::from(server.port) - 1), &[]));
    let (number, node) = map.owner(5).expect("it has one");
    let limit = Limit {
        until: Instant::now() + LONG,
        silence: LONG,
    };
    let link = node.lane(0, &map.context).ready(limit.until).await;
    let link = link.expect("it responds");
    server.pause();
    let enter = |route: u16| {
        let (told, answer) = tokio::sync::oneshot::channel();
        let (key, field) = ("k".into(), "f".into());
        let call = script::touch(LockKind::Plain, [(&key, &field)].into_iter());
        let done = |_| -> AnswerCallback { Box::new(|answer| _ = told.send(answer)) };
        let entered = link.enter(call, (Instant::now(), limit), Some(route), done);
        entered.expect("it is open").flush();
        answer
    };
    let (lost, mut stays) = (enter(5), enter(6));
    map.moved(5, number, address(1));
    let way = RoutedLink::to(number, Arc::clone(&link));
    let answer = within(LONG / 2, lost).await.expect("at once");
    let outcome = map.counted(5, &way, link.outcome(answer.expect("once")));
    assert!(
        matches!(outcome, Err(SendError::TakenOver(_))),
        "{outcome:?}"
    );
    assert!(stays.try_recv().is_err(), "another route");
    // An answer that is being read then does not count.
    let route = Route::new(&map, false, "k");
    let counts = || route.outcome(&way, Ok(Reply::Number(1))).is_ok();
    assert!(counts());
    // A refusal says where the next send goes.
    let moved = ConnectionError::refused("MOVED 0 127.0.0.1:2");
    let refused = route.outcome(&way, Err(moved));
    assert!(matches!(refused, Err(SendError::Refused(_))));
    assert!(!counts());
    map.context.end();
}

/// Far longer than it takes.
const LONG: Duration = Duration::from_secs(10);

/// A way to this server, over a connection that is never opened.
fn way(map: &Map, node: u16, migrating_from: Option<u16>) -> RoutedLink {
    let address = Arc::clone(&map.settings.address);
    let link = Link::new(Connection::unopened(), false, None, address, Arc::default());
    RoutedLink {
        node,
        migrating_from,
        ..RoutedLink::only(Arc::new(link))
    }
}

#[tokio::test]
async fn a_way_is_lost_with_the_route_of_its_server_or_of_the_one_that_still_has_the_slot() {
    let map = map();
    let ways = [(0, None), (1, None), (1, Some(0))].map(|(node, from)| way(&map, node, from));
    let lost = || [0, 1, 2].map(|nth| map.lost(5, &ways[nth]).now_or_never().is_some());
    assert_eq!(lost(), [true, true, true], "no server has it");
    map.apply(&named(1, ("a", 1), &["b"]));
    assert_eq!(lost(), [false, true, false]);
    map.apply(&named(2, ("b", 2), &["a"]));
    assert_eq!(lost(), [true, false, false], "it has been taken over");
    map.apply(&named(3, ("c", 3), &["a", "b"]));
    assert_eq!(lost(), [true, true, true], "a third one has it");
    assert_eq!(
        ways.map(|way| way.is_on_the_way()),
        [false, false, true],
        "only where the slot is about to be"
    );
    map.context.end();
}

/// The answer has arrived by then, but the call has not read it.
#[tokio::test]
async fn an_answer_is_read_only_while_its_server_has_the_route() {
    let server = Server::start();
    let mut control = server.control();
    let map = map_of(&server.url(), 10, 1);
    let nth = usize::from(server.port) - 1;
    map.apply(&named(1, ("a", nth), &[]));
    let (key, field) = ("stock".into(), "owner:1".into());
    let call = script::touch(LockKind::Plain, [(&key, &field)].into_iter());
    for is_taken_over in [false, true] {
        let until = Instant::now() + LONG;
        let silence = LONG;
        let limit = Limit { until, silence };
        let way = map.ready(5, 0, until).await.expect("it responds");
        let before = control.calls("evalsha");
        let mut answer = pin!(map.run_there(5, 0, way, &call, limit));
        assert!((&mut answer).now_or_never().is_none());
        let is_executed = || control.calls("evalsha") > before;
        eventually("a call", LONG, is_executed).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        if is_taken_over {
            map.apply(&named(2, ("b", 1), &["a"]));
        }
        let is_known = match answer.await {
            Ok(_) => true,
            Err(SendError::TakenOver(_)) => false,
            Err(problem) => unreachable!("{problem:?}"),
        };
        assert_eq!(is_known, !is_taken_over);
    }
    map.context.end();
}

/// Half of the threads have lanes made, the others change whether they are wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_begins_while_its_server_is_dismissed_knows_that() {
    let map = map();
    for round in 0..4_000 {
        let settings = Arc::clone(&map.settings);
        let endpoint = Endpoint::new(address(1), settings, None, None);
        let node = Arc::new(Node::new(0, endpoint, 1, 1));
        let (other, context) = (Arc::clone(&node), map.context.clone());
        let runtime = tokio::runtime::Handle::current();
        let start = Arc::new(std::sync::Barrier::new(2));
        let at = Arc::clone(&start);
        let making = std::thread::spawn(move || {
            let _runtime = runtime.enter();
            at.wait();
            other.lane(0, &context);
        });
        start.wait();
        (0..round % 64).for_each(|_| std::hint::spin_loop());
        node.set_wanted(false);
        making.join().expect("no panic");
        let wanted = node.lanes().any(Lane::is_wanted);
        assert!(!wanted, "round {round}");
    }
    map.context.end();
}
