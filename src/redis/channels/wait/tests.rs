//! What waiters and the subscriber see of the registry, by hand; `rules.rs` tries every order.

use test_support::tokio;

use super::*;

fn channel() -> Arc<str> {
    "c".into()
}

#[tokio::test(start_paused = true)]
async fn a_channel_is_wanted_once_and_unwanted_a_second_after_its_last_user_left() {
    let subscriptions = Arc::new(Subscriptions::default());
    let (first, second) = (
        subscribe(&subscriptions, &channel()),
        subscribe(&subscriptions, &channel()),
    );
    assert_eq!(subscriptions.take_wanted(9), [channel()]);
    assert!(subscriptions.take_wanted(9).is_empty());
    subscriptions.subscribed("c");
    first.confirmed().await.expect("confirmed");

    drop(first);
    assert_eq!(subscriptions.next_unwanted(), None);
    drop(second);
    assert!(subscriptions.take_unwanted(9).is_empty(), "it lingers");
    tokio::time::advance(LINGER).await;
    assert_eq!(subscriptions.take_unwanted(9), [channel()]);
    assert_eq!(subscriptions.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_before_the_wait_is_not_missed() {
    let subscriptions = Arc::new(Subscriptions::default());
    let subscription = subscribe(&subscriptions, &channel());
    let before = subscription.version();
    subscriptions.message("c");
    subscription.changed_since(before).await;
    assert_ne!(subscription.version(), before);
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_wants_used_channels_again_and_wakes_their_waiters() {
    let subscriptions = Arc::new(Subscriptions::default());
    let subscription = subscribe(&subscriptions, &channel());
    subscriptions.take_wanted(9);
    subscriptions.subscribed("c");
    let before = subscription.version();
    subscriptions.disconnected();
    assert_eq!(subscriptions.take_wanted(9), [channel()]);
    assert_eq!(
        subscription.version(),
        before,
        "not before the channel is subscribed again"
    );
    subscriptions.subscribed("c");
    subscription.changed_since(before).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_channel_notifies_its_waiters_and_can_be_requested_again() {
    let subscriptions = Arc::new(Subscriptions::default());
    let refused = subscribe(&subscriptions, &channel());
    subscriptions.take_wanted(9);
    subscriptions.refused("c", &Cause::new(None, "NOPERM"));
    let cause = refused.confirmed().await.expect_err("refused");
    assert_eq!(cause.text, "NOPERM");
    let again = subscribe(&subscriptions, &channel());
    drop(refused);
    assert_eq!(
        subscriptions.take_wanted(9),
        [channel()],
        "the old user does not count as one of the new"
    );
    drop(again);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_was_under_way_when_its_connection_ended_is_wanted_again() {
    let subscriptions = Arc::new(Subscriptions::default());
    let _subscription = subscribe(&subscriptions, &channel());
    assert_eq!(subscriptions.take_wanted(9), [channel()]);
    subscriptions.disconnected();
    assert_eq!(subscriptions.take_wanted(9), [channel()]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_comes_while_its_channel_is_being_unsubscribed_wants_it_again() {
    let subscriptions = Arc::new(Subscriptions::default());
    drop(subscribe(&subscriptions, &channel()));
    subscriptions.take_wanted(9);
    subscriptions.subscribed("c");
    tokio::time::advance(LINGER).await;
    assert_eq!(subscriptions.take_unwanted(9), [channel()]);
    // From here on UNSUBSCRIBE is in flight.
    subscriptions.changed().await;
    let again = subscribe(&subscriptions, &channel());
    tokio::time::timeout(LINGER, subscriptions.changed())
        .await
        .expect("the subscriber is notified");
    assert_eq!(subscriptions.take_wanted(9), [channel()]);
    assert!(subscriptions.take_unwanted(9).is_empty());
    subscriptions.subscribed("c");
    again.confirmed().await.expect("confirmed");
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_is_refused_after_a_reconnect_wakes_its_waiters_who_see_it() {
    let subscriptions = Arc::new(Subscriptions::default());
    let subscription = subscribe(&subscriptions, &channel());
    subscriptions.take_wanted(9);
    subscriptions.subscribed("c");
    assert!(!subscription.is_refused());
    let before = subscription.version();
    subscriptions.disconnected();
    subscriptions.take_wanted(9);
    subscriptions.refused("c", &Cause::new(None, "NOPERM"));
    subscription.changed_since(before).await;
    assert!(subscription.is_refused(), "a woken waiter sees why");
}
