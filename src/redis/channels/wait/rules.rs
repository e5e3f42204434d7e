//! The promises of the registry, rule by rule, to the subscriber and to the waiters.

use test_support::tokio;

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
    let subscriptions = Arc::new(Subscriptions::default());
    assert!(!is_ready(subscriptions.changed()), "nothing has changed");
    let first = subscribe(&subscriptions, &channel());
    assert!(is_ready(subscriptions.changed()), "it is wanted");
    subscriptions.take_wanted(9);
    let second = subscribe(&subscriptions, &channel());
    assert!(
        !is_ready(subscriptions.changed()),
        "it was requested before"
    );
    drop(first);
    assert!(!is_ready(subscriptions.changed()), "it is still used");
    drop(second);
    assert!(is_ready(subscriptions.changed()), "it lingers from here on");
    assert_eq!(subscriptions.next_unwanted(), Some(Instant::now() + LINGER));
    let again = subscribe(&subscriptions, &channel());
    drop(again);
    assert!(
        !is_ready(subscriptions.changed()),
        "the subscriber looks at it in time"
    );
    let again = subscribe(&subscriptions, &channel());
    assert_eq!(subscriptions.next_unwanted(), None, "it is used again");
    drop(again);
    assert!(is_ready(subscriptions.changed()), "nothing else is due");
    assert_eq!(subscriptions.next_unwanted(), Some(Instant::now() + LINGER));
}

/// A reply to what was sent before is out of date, and one to what is sent later is not.
#[tokio::test(start_paused = true)]
async fn what_is_heard_after_an_instant_is_a_change_since_then() {
    let subscriptions = Arc::new(Subscriptions::default());
    let subscription = subscribe(&subscriptions, &channel());
    let second = Duration::from_secs(1);
    let changes: [&dyn Fn(); 4] = [
        &|| {
            subscriptions.take_wanted(9);
            subscriptions.subscribed("c");
        },
        &|| subscriptions.message("c"),
        &|| subscriptions.missed_of(|_| true),
        &|| {
            subscriptions.disconnected();
            subscriptions.take_wanted(9);
            subscriptions.subscribed("c");
        },
    ];
    for change in changes {
        let sent_before = Instant::now();
        tokio::time::advance(second).await;
        change();
        let (version, heard) = (subscription.version(), Instant::now());
        assert_eq!(subscription.unchanged_since(sent_before), None);
        assert_eq!(subscription.unchanged_since(heard), None, "perhaps after");
        tokio::time::advance(second).await;
        let sent_later = Instant::now();
        assert_eq!(subscription.unchanged_since(sent_later), Some(version));
    }
    subscriptions.disconnected();
    assert_eq!(subscription.unchanged_since(Instant::now()), None);
}

#[tokio::test(start_paused = true)]
async fn only_an_answer_confirms_and_only_what_is_new_wakes() {
    let subscriptions = Arc::new(Subscriptions::default());
    let subscription = subscribe(&subscriptions, &channel());
    subscriptions.subscribed("c");
    assert!(!is_ready(subscription.confirmed()), "not requested yet");
    subscriptions.take_wanted(9);
    assert!(!is_ready(subscription.confirmed()), "no reply yet");
    let before = subscription.version();
    assert!(!is_ready(subscription.changed_since(before)));
    subscriptions.subscribed("c");
    assert!(is_ready(subscription.confirmed()));
    assert!(
        is_ready(subscription.changed_since(before)),
        "a message may have come before"
    );
    let before = subscription.version();
    subscriptions.message("another");
    subscriptions.subscribed("c");
    assert!(
        !is_ready(subscription.changed_since(before)),
        "it was confirmed already"
    );
    subscriptions.missed_of(|_| true);
    assert!(
        is_ready(subscription.changed_since(before)),
        "on every channel"
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_by_a_message_by_a_gap_and_by_a_refusal() {
    let subscriptions = Arc::new(Subscriptions::default());
    let wakes: [fn(&Subscriptions); 3] = [
        |subscriptions| subscriptions.message("c"),
        |subscriptions| subscriptions.missed_of(|_| true),
        |subscriptions| subscriptions.refused("c", &Cause::new(None, "NOPERM")),
    ];
    for wake in wakes {
        let subscription = subscribe(&subscriptions, &channel());
        let before = subscription.version();
        let mut waiting = std::pin::pin!(subscription.changed_since(before));
        assert!(!is_ready(waiting.as_mut()));
        wake(&subscriptions);
        assert!(is_ready(waiting.as_mut()));
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_a_connection_and_of_the_client_only_what_is_used_stays() {
    for end in [Subscriptions::disconnected, Subscriptions::end] {
        let subscriptions = Arc::new(Subscriptions::default());
        let used = subscribe(&subscriptions, &"used".into());
        drop(subscribe(&subscriptions, &"unused".into()));
        assert_eq!(subscriptions.len(), 2, "it lingers");
        end(&subscriptions);
        assert_eq!(subscriptions.take_wanted(9), [Arc::<str>::from("used")]);
        assert_eq!(subscriptions.len(), 1);
        drop(used);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_on_a_connection_that_ended_is_asked_for_again() {
    let subscriptions = Arc::new(Subscriptions::default());
    let _waiter = subscribe(&subscriptions, &channel());
    subscriptions.take_wanted(9);
    subscriptions.disconnected();
    assert_eq!(subscriptions.take_wanted(9), [channel()]);
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_channel_is_unsubscribed_wants_it_again() {
    let subscriptions = Arc::new(Subscriptions::default());
    drop(subscribe(&subscriptions, &channel()));
    subscriptions.take_wanted(9);
    subscriptions.subscribed("c");
    tokio::time::advance(LINGER).await;
    assert_eq!(subscriptions.take_unwanted(9), [channel()]);
    while is_ready(subscriptions.changed()) {}
    let waiter = subscribe(&subscriptions, &channel());
    assert!(
        is_ready(subscriptions.changed()),
        "its subscription is requested"
    );
    assert_eq!(subscriptions.take_wanted(9), [channel()]);
    assert!(
        !is_ready(waiter.confirmed()),
        "the old confirmation is not its own"
    );
    assert!(subscriptions.take_unwanted(9).is_empty());
}

#[tokio::test(start_paused = true)]
async fn once_the_client_is_closed_nothing_lingers() {
    let subscriptions = Arc::new(Subscriptions::default());
    let (first, second) = (
        subscribe(&subscriptions, &channel()),
        subscribe(&subscriptions, &channel()),
    );
    subscriptions.end();
    drop(first);
    assert_eq!(subscriptions.len(), 1);
    drop(second);
    assert_eq!(subscriptions.len(), 0);
}
