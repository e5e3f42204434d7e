//! What the registry promises, rule by rule: to the subscriber, and to those who wait.

use super::*;

fn channel() -> Arc<str> {
    "c".into()
}

fn is_ready<T>(future: impl Future<Output = T>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::pin!(future).poll(&mut context).is_ready()
}

#[tokio::test(start_paused = true)]
async fn the_subscriber_is_told_what_is_wanted_once_and_what_is_unwanted_once() {
    let waits = Arc::new(Waits::default());
    assert!(!is_ready(waits.changed()), "nothing has changed");
    let first = waits.subscribe(&channel());
    assert!(is_ready(waits.changed()), "it is wanted");
    waits.take_wanted(9);
    let second = waits.subscribe(&channel());
    assert!(!is_ready(waits.changed()), "it was asked for before");
    drop(first);
    assert!(!is_ready(waits.changed()), "it is still used");
    drop(second);
    assert!(is_ready(waits.changed()), "it lingers from here on");
    assert_eq!(waits.next_unwanted(), Some(Instant::now() + LINGER));
    let _again = waits.subscribe(&channel());
    assert_eq!(waits.next_unwanted(), None, "it is used again");
}

#[tokio::test(start_paused = true)]
async fn only_an_answer_confirms_and_only_what_is_new_wakes() {
    let waits = Arc::new(Waits::default());
    let subscription = waits.subscribe(&channel());
    waits.subscribed("c");
    assert!(!is_ready(subscription.confirmed()), "nobody has asked yet");
    waits.take_wanted(9);
    assert!(
        !is_ready(subscription.confirmed()),
        "nothing was answered yet"
    );
    let before = subscription.heard();
    assert!(!is_ready(subscription.heard_since(before)));
    waits.subscribed("c");
    assert!(is_ready(subscription.confirmed()));
    assert!(
        is_ready(subscription.heard_since(before)),
        "a message may have come before"
    );
    let before = subscription.heard();
    waits.message("another");
    waits.subscribed("c");
    assert!(
        !is_ready(subscription.heard_since(before)),
        "it was in force already"
    );
    waits.missed();
    assert!(
        is_ready(subscription.heard_since(before)),
        "on every channel"
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_by_a_message_by_a_gap_and_by_a_refusal() {
    let waits = Arc::new(Waits::default());
    let wakes: [fn(&Waits); 3] = [
        |waits| waits.message("c"),
        Waits::missed,
        |waits| waits.refused("c", "NOPERM"),
    ];
    for wake in wakes {
        let subscription = waits.subscribe(&channel());
        let before = subscription.heard();
        let mut waiting = std::pin::pin!(subscription.heard_since(before));
        assert!(!is_ready(waiting.as_mut()));
        wake(&waits);
        assert!(is_ready(waiting.as_mut()));
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_a_connection_and_of_the_client_only_what_is_used_stays() {
    for end in [Waits::disconnected, Waits::end] {
        let waits = Arc::new(Waits::default());
        let used = waits.subscribe(&"used".into());
        drop(waits.subscribe(&"unused".into()));
        assert_eq!(waits.len(), 2, "it lingers");
        end(&waits);
        assert_eq!(waits.take_wanted(9), [Arc::<str>::from("used")]);
        assert_eq!(waits.len(), 1);
        drop(used);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_on_a_connection_that_ended_is_asked_for_again() {
    let waits = Arc::new(Waits::default());
    let _waiter = waits.subscribe(&channel());
    waits.take_wanted(9);
    waits.disconnected();
    assert_eq!(waits.take_wanted(9), [channel()]);
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_channel_is_unsubscribed_wants_it_again() {
    let waits = Arc::new(Waits::default());
    drop(waits.subscribe(&channel()));
    waits.take_wanted(9);
    waits.subscribed("c");
    tokio::time::advance(LINGER).await;
    assert_eq!(waits.take_unwanted(9), [channel()]);
    while is_ready(waits.changed()) {}
    let waiter = waits.subscribe(&channel());
    assert!(is_ready(waits.changed()), "its subscription is asked for");
    assert_eq!(waits.take_wanted(9), [channel()]);
    assert!(
        !is_ready(waiter.confirmed()),
        "the old confirmation is not its own"
    );
    assert!(waits.take_unwanted(9).is_empty());
}

#[tokio::test(start_paused = true)]
async fn once_the_client_is_closed_nothing_lingers() {
    let waits = Arc::new(Waits::default());
    let (first, second) = (waits.subscribe(&channel()), waits.subscribe(&channel()));
    waits.end();
    drop(first);
    assert_eq!(waits.len(), 1);
    drop(second);
    assert_eq!(waits.len(), 0);
}
