//! What a server sends by itself: reports of changed keys, and messages on channels.

use std::sync::Arc;

use super::requests::Requests;
use crate::error::RefusalKind;
use crate::redis::reports::LaneReports;
use crate::redis::transport::{ConnectionError, PubSubEvent, Refusal, Reply};

/// Called with each message. It is called by the reader of the connection, so it waits for nothing.
pub(in crate::redis) type MessageSink = Arc<dyn Fn(PubSubEvent) + Send + Sync>;

/// The receiver of a connection's pushes.
pub(super) enum PushReceiver {
    Reports(LaneReports),
    Channels(MessageSink),
}

impl PushReceiver {
    /// Whether a reply is a push of the older version of the protocol, which has lists in their place. No command that is
    /// sent beside channels has such a reply.
    pub(super) fn is_push(&self, reply: &Reply) -> bool {
        matches!(self, Self::Channels(_))
            && kind(reply).is_some_and(|kind| ABOUT_CHANNELS.contains(&kind))
    }

    /// Whether a reply is a second one to `SUNSUBSCRIBE`. A server that gives the slot away ends the subscription, which
    /// looks like the confirmation, and then answers that the slot has moved. Nothing else beside channels is answered so.
    pub(super) fn is_late(&self, refused: &ConnectionError, requests: &Requests) -> bool {
        let is_moved = |refusal: &Refusal| matches!(refusal.kind, RefusalKind::Moved { .. });
        matches!(self, Self::Channels(_))
            && matches!(refused, ConnectionError::Refused(refusal) if is_moved(refusal))
            && !requests.awaits_confirmation()
    }

    /// Passes a push on. A confirmation that no request awaits is ignored.
    pub(super) fn read(&self, push: Reply) {
        match self {
            Self::Reports(reports) => reports.read(&push),
            Self::Channels(heard) => {
                let event = match kind(&push) {
                    Some("message" | "smessage") => PubSubEvent::Message,
                    // Another server has the slot.
                    Some("sunsubscribe") => PubSubEvent::Unsubscribed,
                    _ => return,
                };
                let Reply::List(items) = push else { return };
                // A channel whose name is no text is not one of a lock.
                if let Some(Reply::Text(channel)) = items.into_iter().nth(1) {
                    heard(event(channel));
                }
            }
        }
    }
}

fn kind(push: &Reply) -> Option<&str> {
    match push {
        Reply::List(items) => match items.first() {
            Some(Reply::Text(kind)) => Some(kind),
            _ => None,
        },
        _ => None,
    }
}

const ABOUT_CHANNELS: [&str; 6] = [
    "message",
    "smessage",
    "subscribe",
    "unsubscribe",
    "ssubscribe",
    "sunsubscribe",
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;
    use crate::redis::connection::answers::Answer;
    use crate::redis::connection::driver::complete;
    use crate::redis::connection::replies::Replies;
    use crate::redis::connection::requests::{Command, Confirmation};
    use crate::redis::transport::Arg;

    /// A connection for channels without a socket.
    struct Fixture {
        requests: Mutex<Requests>,
        replies: Replies,
        pushes: PushReceiver,
        heard: Arc<Mutex<Vec<String>>>,
    }

    impl Fixture {
        fn new() -> Self {
            let heard = Arc::<Mutex<Vec<String>>>::default();
            let hears = Arc::clone(&heard);
            let hear = move |event| hears.lock().push(format!("{event:?}"));
            Self {
                requests: Mutex::default(),
                replies: Replies::default(),
                pushes: PushReceiver::Channels(Arc::new(hear)),
                heard,
            }
        }

        fn add(&self, name: &str, confirmation: Option<Confirmation>) -> oneshot::Receiver<Answer> {
            let command = Command {
                name,
                args: &[Arg::Fixed("x")],
                expected: None,
                confirmation,
            };
            let later = Instant::now() + Duration::from_secs(3600);
            let mut requests = self.requests.lock();
            let [reply] = requests.add([command], later).expect("it is open");
            let length = requests.unwritten(Instant::now()).len();
            requests.written(length);
            reply
        }

        fn subscribe(&self, channel: &str) -> oneshot::Receiver<Answer> {
            let (kind, channel) = ("subscribe", channel.into());
            self.add("SUBSCRIBE", Some(Confirmation { kind, channel }))
        }

        fn ping(&self) -> oneshot::Receiver<Answer> {
            self.add("PING", None)
        }

        fn arrives(&mut self, text: &str) -> Result<(), ConnectionError> {
            self.replies.arrived.extend_from_slice(text.as_bytes());
            complete(&mut self.replies, &self.requests, Some(&self.pushes))
        }

        fn heard(&self) -> Vec<String> {
            std::mem::take(&mut *self.heard.lock())
        }
    }

    /// A push of three words, the last of which is a number, in the given version of the protocol.
    fn push(sign: char, kind: &str, channel: &str) -> String {
        let (kinds, channels) = (kind.len(), channel.len());
        format!("{sign}3\r\n${kinds}\r\n{kind}\r\n${channels}\r\n{channel}\r\n:1\r\n")
    }

    fn is_confirmed(reply: &mut oneshot::Receiver<Answer>) -> bool {
        matches!(reply.try_recv(), Ok(Ok(Reply::List(_))))
    }

    fn is_refused(reply: &mut oneshot::Receiver<Answer>) -> bool {
        matches!(reply.try_recv(), Ok(Err(ConnectionError::Refused(_))))
    }

    const NO_CHANNEL: &str = "-NOPERM No permissions to access a channel\r\n";

    #[test]
    fn a_push_confirms_and_a_reply_refuses_in_either_version() {
        for sign in ['>', '*'] {
            let mut fixture = Fixture::new();
            let mut a = fixture.subscribe("a");
            let mut b = fixture.subscribe("b");
            let mut c = fixture.subscribe("c");
            let mut ping = fixture.ping();
            let parts = [
                push(sign, "subscribe", "a"),
                push(sign, "message", "a"),
                NO_CHANNEL.to_owned(),
                push(sign, "smessage", "b"),
                push(sign, "subscribe", "c"),
                "+PONG\r\n".to_owned(),
            ];
            fixture.arrives(&parts.concat()).expect("in step");
            assert!(is_confirmed(&mut a) && is_refused(&mut b) && is_confirmed(&mut c));
            assert!(matches!(ping.try_recv(), Ok(Ok(Reply::Text(_)))));
            assert_eq!(fixture.heard(), [r#"Message("a")"#, r#"Message("b")"#]);
        }
    }

    #[test]
    fn a_confirmation_counts_for_its_own_channel_alone_and_once() {
        for sign in ['>', '*'] {
            let mut fixture = Fixture::new();
            let mut a = fixture.subscribe("a");
            let mut b = fixture.subscribe("b");
            for (kind, channel) in [
                ("subscribe", "b"),
                ("unsubscribe", "a"),
                ("ssubscribe", "a"),
            ] {
                let other = push(sign, kind, channel);
                fixture.arrives(&other).expect("it says nothing");
                assert!(!is_confirmed(&mut a) && !is_confirmed(&mut b), "{other}");
            }
            let twice = push(sign, "subscribe", "a").repeat(2);
            fixture.arrives(&twice).expect("the second says nothing");
            assert!(is_confirmed(&mut a) && !is_confirmed(&mut b));
            fixture
                .arrives(&push(sign, "subscribe", "b"))
                .expect("in step");
            assert!(is_confirmed(&mut b));
            assert!(fixture.heard().is_empty());
        }
    }

    #[test]
    fn a_reply_in_the_place_of_a_confirmation_ends_the_connection() {
        let mut fixture = Fixture::new();
        let mut a = fixture.subscribe("a");
        let mut ping = fixture.ping();
        assert!(fixture.arrives("+PONG\r\n").is_err());
        assert!(!is_confirmed(&mut a) && ping.try_recv().is_err());
    }

    #[test]
    fn a_push_has_the_limits_of_a_reply() {
        let deep = format!(">2\r\n+message\r\n{}", "*1\r\n".repeat(5_000));
        for (text, why) in [
            (deep.as_str(), "deep"),
            (">1048577\r\n", "items"),
            (">2\r\n+message\r\n$67108865\r\n", "MiB"),
        ] {
            let problem = Fixture::new().arrives(text).expect_err(why).to_string();
            assert!(problem.contains(why), "{problem}");
        }
    }

    /// A subscription that the server ends by itself is one that is lost, and no confirmation of another.
    #[test]
    fn the_end_of_a_subscription_is_heard() {
        for sign in ['>', '*'] {
            let mut fixture = Fixture::new();
            let (kind, channel) = ("sunsubscribe", "a".into());
            let mut own = fixture.add("SUNSUBSCRIBE", Some(Confirmation { kind, channel }));
            fixture
                .arrives(&push(sign, "sunsubscribe", "b"))
                .expect("in step");
            assert_eq!(fixture.heard(), [r#"Unsubscribed("b")"#]);
            fixture
                .arrives(&push(sign, "sunsubscribe", "a"))
                .expect("in step");
            assert!(is_confirmed(&mut own) && fixture.heard().is_empty());
        }
    }

    /// The end of a subscription by the server looks like the confirmation of its end by this client, which is then refused.
    #[test]
    fn a_slot_that_moves_before_its_channel_is_left_shifts_no_reply() {
        for is_pinged in [false, true] {
            let mut fixture = Fixture::new();
            let mut first = fixture.ping();
            fixture.arrives("+PONG\r\n").expect("in step");
            assert!(matches!(first.try_recv(), Ok(Ok(_))));
            let (kind, channel) = ("sunsubscribe", "a".into());
            let mut own = fixture.add("SUNSUBSCRIBE", Some(Confirmation { kind, channel }));
            let ping = is_pinged.then(|| fixture.ping());
            let both = push('>', "sunsubscribe", "a") + "-MOVED 1 127.0.0.1:7001\r\n";
            fixture.arrives(&both).expect("in step");
            assert!(is_confirmed(&mut own));
            if let Some(mut ping) = ping {
                fixture.arrives("+PONG\r\n").expect("in step");
                assert!(matches!(ping.try_recv(), Ok(Ok(_))));
            }
            let mut next = fixture.subscribe("b");
            fixture
                .arrives("-MOVED 1 127.0.0.1:7001\r\n")
                .expect("in step");
            assert!(is_refused(&mut next));
        }
    }

    /// A channel that is no text, and what a later version may send.
    #[test]
    fn other_pushes_say_nothing() {
        let mut fixture = Fixture::new();
        let mut ping = fixture.ping();
        for text in [
            ">3\r\n+message\r\n$1\r\n\u{1}\r\n".to_owned() + "+x\r\n",
            push('>', "invalidate", "a"),
            ">1\r\n+message\r\n".to_owned(),
            ">0\r\n".to_owned(),
        ] {
            fixture.arrives(&text).expect("it says nothing");
        }
        assert_eq!(fixture.heard(), [r#"Message("\u{1}")"#]);
        fixture.arrives("+PONG\r\n").expect("in step");
        assert!(matches!(ping.try_recv(), Ok(Ok(_))));
    }
}
