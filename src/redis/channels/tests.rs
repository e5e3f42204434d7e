//! What the registry promises to those who listen, and to the task that subscribes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use test_support::tokio;
use tokio::time::Instant;

use super::*;
use crate::error::Cause;
use crate::names::wire::Announce;
use crate::redis::transport::Delivery;

const HERE: LaneId = LaneId { node: 0, nth: 0 };
const THERE: LaneId = LaneId { node: 1, nth: 0 };
const ROUTE: ChannelRoute = ChannelRoute { group: 7, lane: 0 };

fn is_ready<T>(future: impl Future<Output = T>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::pin!(future).poll(&mut context).is_ready()
}

/// How often a lock has heard of a channel.
#[derive(Default)]
struct Heard(AtomicUsize);

impl ChannelObserver for Heard {
    fn note_change(self: Arc<Self>, next: Option<i64>) {
        assert_eq!(next, None);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Heard {
    fn of(subscription: &Subscription) -> Arc<Self> {
        let heard = Arc::new(Self::default());
        let observer: Weak<dyn ChannelObserver> = Arc::<Self>::downgrade(&heard);
        subscription.report_to(&observer, None);
        heard
    }

    /// Since this was asked last.
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// The channels of a client, of which one is named `c`.
struct Scene(Arc<Channels>);

impl Scene {
    fn new(announce: Announce) -> Self {
        let channels = Arc::<Channels>::default();
        channels.set_announce(announce, Duration::from_secs(3));
        Self(channels)
    }

    fn classic() -> Self {
        Self::new(Announce::Classic)
    }

    fn joins(&self) -> (Subscription, Vec<ChannelRequest>) {
        let (subscription, wanted) = self.0.join(&"c".into(), ROUTE);
        (subscription, wanted.into_vec())
    }

    fn asks(&self, part: &ChannelPart) -> u64 {
        self.0.asked(part, HERE).expect("it is wanted")
    }

    /// Joins, and has it confirmed.
    fn listens(&self) -> Subscription {
        let (subscription, wanted) = self.joins();
        for request in wanted {
            let number = self.asks(&request.part);
            self.0.confirmed(&request.part, number);
        }
        subscription
    }

    /// The channels that are to be asked for, by their deliveries.
    fn due(&self) -> Vec<Delivery> {
        let due = self.0.due().into_iter();
        due.map(|request| request.part.delivery).collect()
    }

    fn unused(&self) -> Vec<LaneId> {
        self.0.unused().into_iter().map(|(_, lane)| lane).collect()
    }
}

fn part(delivery: Delivery) -> ChannelPart {
    ChannelPart {
        delivery,
        name: "c".into(),
    }
}

use Delivery::{Classic, Sharded};

#[tokio::test(start_paused = true)]
async fn the_first_listener_asks_and_only_its_own_answer_confirms() {
    let scene = Scene::new(Announce::Both);
    let (first, wanted) = scene.joins();
    assert_eq!(wanted.len(), 2);
    let (second, more) = scene.joins();
    assert!(more.is_empty(), "it is asked for by the first");
    for request in &wanted {
        let number = scene.asks(&request.part);
        assert_eq!(scene.0.asked(&request.part, HERE), None, "it was asked for");
        scene.0.confirmed(&request.part, number + 1);
        assert!(!second.is_confirmed(), "another request's answer");
        assert!(!first.is_confirmed(), "there is another part");
        scene.0.confirmed(&request.part, number);
    }
    assert!(first.is_confirmed() && second.is_confirmed());
    assert!(scene.due().is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_what_is_new_is_heard() {
    let scene = Scene::classic();
    let (subscription, wanted) = scene.joins();
    let heard = Heard::of(&subscription);
    let number = scene.asks(&wanted[0].part);
    scene.0.message(Classic, "another");
    scene.0.message(Sharded, "c");
    assert_eq!(heard.take(), 0);
    scene.0.confirmed(&wanted[0].part, number);
    assert_eq!(heard.take(), 1, "a message may have come before");
    scene.0.confirmed(&wanted[0].part, number);
    assert_eq!(heard.take(), 0, "it was confirmed already");
    scene.0.message(Classic, "c");
    assert_eq!(heard.take(), 1);
    scene.0.missed_of(|name| name == "c");
    assert_eq!(heard.take(), 1);
}

/// A reply to what was sent before is out of date, and one to what is sent later is not.
#[tokio::test(start_paused = true)]
async fn what_is_heard_after_an_instant_is_a_change_since_then() {
    let scene = Scene::classic();
    let subscription = scene.listens();
    let second = Duration::from_secs(1);
    let again = || {
        scene.0.lane_lost(HERE);
        let number = scene.asks(&part(Classic));
        scene.0.confirmed(&part(Classic), number);
    };
    let changes: [&dyn Fn(); 3] = [
        &|| scene.0.message(Classic, "c"),
        &|| scene.0.missed_of(|_| true),
        &again,
    ];
    for change in changes {
        let sent_before = Instant::now();
        tokio::time::advance(second).await;
        change();
        let heard = Instant::now();
        assert!(!subscription.is_unchanged_since(sent_before));
        assert!(!subscription.is_unchanged_since(heard), "perhaps after");
        tokio::time::advance(second).await;
        let sent_later = Instant::now();
        assert!(subscription.is_unchanged_since(sent_later));
    }
    scene.0.lane_lost(HERE);
    assert!(!subscription.is_unchanged_since(Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_subscription_lingers_and_is_unsubscribed_from_once() {
    let scene = Scene::classic();
    drop(scene.listens());
    assert!(
        is_ready(scene.0.changed()),
        "the task has a time to look at"
    );
    let lingers_until = scene.0.next_due().expect("it lingers");
    assert!(scene.unused().is_empty());
    drop(scene.listens());
    assert!(!is_ready(scene.0.changed()), "the task looks in time");
    tokio::time::advance(lingers_until - Instant::now()).await;
    assert_eq!(scene.unused(), [HERE]);
    assert_eq!(scene.0.left(&part(Classic)), None);
    assert_eq!((scene.0.len(), scene.0.next_due()), (0, None));
    assert!(scene.unused().is_empty());
}

/// Its SUBSCRIBE must not be overtaken by the UNSUBSCRIBE.
#[tokio::test(start_paused = true)]
async fn who_comes_while_a_channel_is_left_waits_for_that_and_wants_it_again() {
    let scene = Scene::classic();
    drop(scene.listens());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(scene.unused(), [HERE]);
    let (listener, wanted) = scene.joins();
    assert!(
        wanted.is_empty() && scene.due().is_empty(),
        "UNSUBSCRIBE is not written yet"
    );
    assert!(!listener.is_unchanged_since(Instant::now()));
    let request = scene.0.left(&part(Classic)).expect("it is wanted");
    let number = scene.asks(&request.part);
    scene.0.confirmed(&request.part, number);
    assert!(listener.is_confirmed());
    assert_eq!(scene.0.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_has_what_is_used_wanted_again_and_forgets_the_rest() {
    let scene = Scene::new(Announce::Both);
    let used = scene.listens();
    let (unused, wanted) = scene.0.join(&"unused".into(), ROUTE);
    for request in wanted {
        scene.asks(&request.part);
    }
    drop(unused);
    scene.0.lane_lost(THERE);
    assert!(scene.due().is_empty(), "it was another connection");
    scene.0.lane_lost(HERE);
    assert_eq!(scene.due(), [Classic, Sharded]);
    assert_eq!(scene.0.len(), 1);
    assert!(is_ready(scene.0.changed()));
    assert!(!is_ready(scene.0.changed()));
    scene.0.lane_up();
    assert!(
        is_ready(scene.0.changed()),
        "there may be a connection for it"
    );
    let heard = Heard::of(&used);
    let number = scene.asks(&part(Classic));
    scene.0.confirmed(&part(Classic), number);
    assert_eq!(heard.take(), 1, "a message may have been missed");
}

#[tokio::test(start_paused = true)]
async fn a_refused_channel_tells_its_listeners_and_can_be_asked_for_again() {
    let scene = Scene::classic();
    let (refused, wanted) = scene.joins();
    let number = scene.asks(&wanted[0].part);
    let heard = Heard::of(&refused);
    scene
        .0
        .refused(&wanted[0].part, number, *Cause::new(None, "NOPERM"));
    assert!(heard.take() == 1 && refused.is_refused());
    let cause = refused.problem().expect("refused");
    assert_eq!(cause.text, "NOPERM");
    let (again, wanted) = scene.joins();
    assert_eq!(wanted.len(), 1, "the refusal was of before");
    drop(refused);
    assert!(!again.is_refused());
    scene.asks(&wanted[0].part);
}

#[tokio::test(start_paused = true)]
async fn what_fails_for_a_moment_is_asked_for_again_after_a_pause() {
    let scene = Scene::classic();
    let (subscription, wanted) = scene.joins();
    let number = scene.asks(&wanted[0].part);
    let cause = || Some(Cause::new(None, "LOADING"));
    scene.0.failed(&wanted[0].part, number + 1, cause());
    assert!(subscription.problem().is_none(), "of another request");
    scene.0.failed(&wanted[0].part, number, cause());
    assert!(is_ready(scene.0.changed()));
    assert!(scene.due().is_empty());
    let at = scene.0.next_due().expect("it is wanted");
    tokio::time::advance(at - Instant::now()).await;
    assert_eq!(scene.due(), [Classic]);
    let problem = subscription.problem().expect("the server's reason");
    assert_eq!(problem.text, "LOADING");
    let number = scene.asks(&wanted[0].part);
    scene.0.confirmed(&wanted[0].part, number);
    assert!(subscription.problem().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_the_server_ends_is_wanted_again() {
    let scene = Scene::new(Announce::Sharded);
    let _listener = scene.listens();
    assert!(!scene.0.ended(THERE, "c"), "another connection's");
    assert!(!scene.0.ended(HERE, "other"));
    assert!(scene.0.ended(HERE, "c"));
    assert!(!scene.0.ended(HERE, "c"), "it is known");
    tokio::time::advance(Duration::from_millis(50)).await;
    assert_eq!(scene.due(), [Sharded]);
    scene.asks(&part(Sharded));
    assert!(
        !scene.0.ended(HERE, "c"),
        "that is the answer to an earlier SUNSUBSCRIBE"
    );
}

#[tokio::test(start_paused = true)]
async fn a_channel_follows_its_slot() {
    let scene = Scene::new(Announce::Sharded);
    let listener = scene.listens();
    assert!(scene.0.moved(|_, lane| lane == HERE).is_empty());
    let moved = scene.0.moved(|_, lane| lane == THERE);
    assert_eq!(moved, [(part(Sharded), HERE)]);
    assert!(!listener.is_unchanged_since(Instant::now()));
    assert!(scene.0.left(&part(Sharded)).is_some());
    let number = scene.0.asked(&part(Sharded), THERE).expect("it is wanted");
    scene.0.confirmed(&part(Sharded), number);
    assert!(scene.0.moved(|_, lane| lane == THERE).is_empty());
}

/// With `Auto` the lock's server is asked whether anyone listens.
#[tokio::test(start_paused = true)]
async fn a_classic_channel_is_elsewhere_unless_that_takes_too_long() {
    let scene = Scene::new(Announce::Auto);
    let (_listener, wanted) = scene.joins();
    let elsewhere: Vec<_> = wanted.iter().map(|request| request.is_elsewhere).collect();
    assert_eq!(elsewhere, [true, false]);
    assert!(
        is_ready(scene.0.changed()),
        "the task looks when that takes too long"
    );
    scene.0.asked(&part(Classic), THERE).expect("it is wanted");
    assert!(scene.0.not_confirmed_elsewhere().is_empty());
    let at = scene.0.next_due().expect("it is not confirmed");
    tokio::time::advance(at - Instant::now()).await;
    assert_eq!(scene.0.not_confirmed_elsewhere(), [(part(Classic), THERE)]);
    let request = scene.0.left(&part(Classic)).expect("it is wanted");
    assert!(!request.is_elsewhere);
    let number = scene.asks(&part(Classic));
    scene.0.confirmed(&part(Classic), number);
    assert_eq!(scene.0.next_due(), None);
    scene.0.lane_lost(HERE);
    let classic = scene
        .0
        .due()
        .into_iter()
        .find(|request| request.part == part(Classic));
    assert!(classic.expect("it is wanted").is_elsewhere);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_in_use_while_channels_are_asked_for_or_confirmed_there() {
    let scene = Scene::classic();
    assert!(!scene.0.uses(HERE));
    let (listener, wanted) = scene.joins();
    assert!(!scene.0.uses(HERE));
    let number = scene.asks(&wanted[0].part);
    assert_eq!([HERE, THERE].map(|lane| scene.0.uses(lane)), [true, false]);
    scene.0.confirmed(&wanted[0].part, number);
    assert!(scene.0.uses(HERE));
    assert_eq!(scene.0.own_listeners("c"), 1);
    drop(listener);
    scene.0.end();
    assert!(!scene.0.uses(HERE));
}

#[tokio::test(start_paused = true)]
async fn once_the_client_is_closed_nothing_lingers() {
    let scene = Scene::classic();
    let (first, second) = (scene.listens(), scene.listens());
    scene.0.end();
    drop(first);
    assert_eq!(scene.0.len(), 1);
    drop(second);
    assert_eq!(scene.0.len(), 0);
}
