//! Scripts of fair locks beside real Redisson, on one server, in a state that is rare. The party here sends them itself, each
//! twice, as a client does that had no answer.

use crate::fixture::eventually;
use crate::party::Party;
use crate::stored::{Queue, channel};
use test_support::Control;
use test_support::kinds::FAIR;

const NAME: &str = "fair/a_place_stays";
const OWNER: &str = "00000000-0000-4000-8000-000000000000:1";
const LEASE: &str = "30000";
const WAIT: &str = "300000";

/// Sends it twice; returns what the first copy was answered.
fn send(control: &mut Control, script: &str, args: &[&str]) -> String {
    let queue = ["queue", "timeout"].map(|what| format!("redisson_lock_{what}:{{{NAME}}}"));
    let words = ["EVAL", script, "3", NAME, &queue[0], &queue[1], OWNER];
    let words = [&words, args].concat();
    let answer = control.run(&words);
    control.run(&words);
    answer
}

fn attempt(control: &mut Control) -> bool {
    let args = ["1", LEASE, WAIT, WAIT, &*channel(NAME)];
    let answer = send(control, FAIR.acquire, &args);
    assert!(!answer.starts_with("-3"), "{answer}");
    answer == "1"
}

/// Goes to 0, and gives up a place that was taken with this wait; returns the answer.
fn release(control: &mut Control, wait: &str) -> i64 {
    let args = ["0", LEASE, &*channel(NAME), "publish", wait];
    let answer = send(control, FAIR.release, &args);
    answer.parse().expect("a number")
}

/// A release of an owner that another of its calls waits for leaves its place where it is.
pub async fn check(port: u16, java: &[Party; 2]) {
    let (queue, control) = (Queue::of(NAME), &mut Control::connect(port));
    let (holder, next) = (java[0].worker(), java[1].worker());
    holder.lock(NAME, None).await.expect("free");
    assert!(!attempt(control));
    let waiting = tokio::spawn(async move { next.lock(NAME, None).await.map(|()| next) });
    eventually("both wait", || queue.owners(control).len() == 2).await;
    let owners = queue.owners(control);
    assert_eq!(release(control, "0"), -1);
    assert_eq!(queue.owners(control), owners);
    holder.unlock(NAME).await.expect("held");
    assert!(attempt(control), "its turn");
    assert_eq!(queue.owners(control).len(), 1);
    assert!(release(control, WAIT) > 0);
    let next = waiting.await.expect("no panic").expect("its turn");
    next.unlock(NAME).await.expect("held");
    assert!(queue.owners(control).is_empty());
    assert_eq!(control.run(&["EXISTS", NAME]), "0");
}
