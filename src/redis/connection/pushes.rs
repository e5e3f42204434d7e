//! What a server sends by itself: reports of changed keys, and messages on channels.

use std::sync::Arc;

use crate::redis::reports::LaneReports;
use crate::redis::transport::{PubSubEvent, Reply};

/// Called with each message. It is called by the reader of the connection, so it waits for nothing.
pub(in crate::redis) type MessageSink = Arc<dyn Fn(PubSubEvent) + Send + Sync>;

/// Who is told of the pushes of one connection.
pub(super) enum Pushes {
    Reports(LaneReports),
    Channels(MessageSink),
}

impl Pushes {
    /// Whether a reply is a push of the older version of the protocol, which has lists in their place. No command that is
    /// sent beside channels has such a reply.
    pub(super) fn are_pushed(&self, reply: &Reply) -> bool {
        matches!(self, Self::Channels(_))
            && kind(reply).is_some_and(|kind| ABOUT_CHANNELS.contains(&kind))
    }

    /// A confirmation that nobody awaits says nothing.
    pub(super) fn read(&self, push: Reply) {
        match self {
            Self::Reports(reports) => reports.read(&push),
            Self::Channels(heard) => {
                if !kind(&push).is_some_and(|kind| MESSAGES.contains(&kind)) {
                    return;
                }
                let Reply::List(items) = push else { return };
                // A channel whose name is no text is not one of a lock.
                if let Some(Reply::Text(channel)) = items.into_iter().nth(1) {
                    heard(PubSubEvent::Message(channel));
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

const MESSAGES: [&str; 2] = ["message", "smessage"];

const ABOUT_CHANNELS: [&str; 6] = [
    MESSAGES[0],
    MESSAGES[1],
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
    use crate::redis::connection::requests::{Command, Confirmation, Requests};
    use crate::redis::transport::{Arg, ConnectionError};

    /// A connection for channels without a socket.
    struct Fixture {
        requests: Mutex<Requests>,
        replies: Replies,
        pushes: Pushes,
        heard: Arc<Mutex<Vec<String>>>,
    }

    impl Fixture {
        fn new() -> Self {
            let heard = Arc::<Mutex<Vec<String>>>::default();
            let hears = Arc::clone(&heard);
            let hear = move |event| match event {
                PubSubEvent::Message(channel) => hears.lock().push(channel),
                other => panic!("{other:?}"),
            };
            Self {
                requests: Mutex::default(),
                replies: Replies::default(),
                pushes: Pushes::Channels(Arc::new(hear)),
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
            assert_eq!(fixture.heard(), ["a", "b"]);
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

    /// A channel that is no text, one that a server ends by itself, and what a later version may send.
    #[test]
    fn other_pushes_say_nothing() {
        let mut fixture = Fixture::new();
        let mut ping = fixture.ping();
        for text in [
            ">3\r\n+message\r\n$1\r\n\u{1}\r\n".to_owned() + "+x\r\n",
            push('>', "sunsubscribe", "a"),
            push('>', "invalidate", "a"),
            ">1\r\n+message\r\n".to_owned(),
            ">0\r\n".to_owned(),
        ] {
            fixture.arrives(&text).expect("it says nothing");
        }
        assert_eq!(fixture.heard(), ["\u{1}"]);
        fixture.arrives("+PONG\r\n").expect("in step");
        assert!(matches!(ping.try_recv(), Ok(Ok(_))));
    }
}
