//! What a server sends by itself: reports of changed keys, and messages on channels.

use crate::redis::reports::LaneReports;
use crate::redis::transport::{ChannelEvent, Delivery, MessageSink, Reply};

/// The receiver of a connection's pushes.
#[derive(Default)]
pub(in crate::redis) struct PushReceiver {
    /// `None`: nothing is subscribed to over this connection.
    pub(in crate::redis) heard: Option<MessageSink>,
    pub(in crate::redis) reports: Option<LaneReports>,
    /// The server knows the older version of the protocol alone, which has lists in the place of pushes. Nothing is sent
    /// over such a connection but what is about channels.
    pub(in crate::redis) has_lists: bool,
}

impl PushReceiver {
    /// Whether a reply is a push of the older version of the protocol. No command that is sent beside channels has such a reply.
    pub(super) fn is_push(&self, reply: &Reply) -> bool {
        self.has_lists && kind(reply).is_some_and(|kind| ABOUT_CHANNELS.contains(&kind))
    }

    /// The reply as the newer version of the protocol has it: beside channels, the older one answers PING with a list.
    pub(super) fn unwrapped(&self, reply: Reply) -> Reply {
        match reply {
            Reply::List(mut items) if self.has_lists && is_pong(&items) => {
                items.pop().unwrap_or(Reply::Nil)
            }
            reply => reply,
        }
    }

    /// Passes a push on. A confirmation that no request awaits is ignored.
    pub(super) fn read(&self, push: Reply) {
        let event = match kind(&push) {
            Some("message") => |channel| ChannelEvent::Message(Delivery::Classic, channel),
            Some("smessage") => |channel| ChannelEvent::Message(Delivery::Sharded, channel),
            // At the request of this client, or because another server has the slot.
            Some("sunsubscribe") => ChannelEvent::Ended,
            Some("invalidate") => {
                if let Some(reports) = &self.reports {
                    reports.read(&push);
                }
                return;
            }
            _ => return,
        };
        let (Some(heard), Reply::List(items)) = (&self.heard, push) else {
            return;
        };
        // A channel whose name is no text is not one of a lock.
        if let Some(Reply::Text(channel)) = items.into_iter().nth(1) {
            heard(event(channel));
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

/// Whether this is a message on a channel.
pub(super) fn is_message(push: &Reply) -> bool {
    matches!(kind(push), Some("message" | "smessage"))
}

fn is_pong(items: &[Reply]) -> bool {
    matches!(items, [Reply::Text(kind), _] if kind == "pong")
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
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;
    use crate::redis::connection::answers::Answer;
    use crate::redis::connection::driver::DriverShared;
    use crate::redis::connection::replies::Replies;
    use crate::redis::connection::requests::{AnswerForm, Command, Confirmation};
    use crate::redis::transport::{Arg, ConnectionError};

    /// A connection without a socket.
    struct Fixture {
        driver: DriverShared,
        replies: Replies,
        heard: Arc<Mutex<Vec<String>>>,
    }

    impl Fixture {
        /// That the server sends lists: it knows the older version of the protocol alone.
        fn new(sign: char) -> Self {
            let heard = Arc::<Mutex<Vec<String>>>::default();
            let hears = Arc::clone(&heard);
            let hear = move |event| hears.lock().push(format!("{event:?}"));
            let driver = DriverShared::default();
            driver.receive_pushes(PushReceiver {
                heard: Some(Arc::new(hear)),
                reports: None,
                has_lists: sign == '*',
            });
            Self {
                driver,
                replies: Replies::default(),
                heard,
            }
        }

        fn add(&self, name: &str, form: AnswerForm) -> oneshot::Receiver<Answer> {
            let command = Command {
                form,
                ..Command::new(name, &[Arg::Fixed("x")])
            };
            let later = Instant::now() + Duration::from_secs(3600);
            let mut requests = self.driver.requests.lock();
            let [reply] = requests.add([command], later).expect("it is open");
            let length = requests.unwritten(Instant::now()).len();
            requests.written(length);
            reply
        }

        fn subscribe(&self, channel: &str) -> oneshot::Receiver<Answer> {
            let (kind, channel) = ("subscribe", channel.into());
            self.add(
                "SUBSCRIBE",
                AnswerForm::ByPush(Confirmation { kind, channel }),
            )
        }

        fn ping(&self) -> oneshot::Receiver<Answer> {
            self.add("PING", AnswerForm::ByReply)
        }

        fn arrives(&mut self, text: &str) -> Result<(), ConnectionError> {
            self.replies.arrived.extend_from_slice(text.as_bytes());
            self.driver.complete(&mut self.replies)
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

    fn is_refused_answer(reply: &mut oneshot::Receiver<Answer>) -> bool {
        matches!(reply.try_recv(), Ok(Err(ConnectionError::Refused(_))))
    }

    const NO_CHANNEL: &str = "-NOPERM No permissions to access a channel\r\n";

    #[test]
    fn a_push_confirms_and_a_reply_refuses_in_either_version() {
        for sign in ['>', '*'] {
            let mut fixture = Fixture::new(sign);
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
            assert!(is_confirmed(&mut a) && is_refused_answer(&mut b) && is_confirmed(&mut c));
            assert!(matches!(ping.try_recv(), Ok(Ok(Reply::Text(_)))));
            let heard = [r#"Message(Classic, "a")"#, r#"Message(Sharded, "b")"#];
            assert_eq!(fixture.heard(), heard);
        }
    }

    #[test]
    fn a_confirmation_counts_for_its_own_channel_alone_and_once() {
        for sign in ['>', '*'] {
            let mut fixture = Fixture::new(sign);
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
        let mut fixture = Fixture::new('>');
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
            let arrived = Fixture::new('>').arrives(text);
            let problem = arrived.expect_err(why).to_string();
            assert!(problem.contains(why), "{problem}");
        }
    }

    const MOVED: &str = "-MOVED 1 127.0.0.1:7001\r\n";
    const NO_PING: &str = "-NOPERM User x has no permissions to run the 'ping' command\r\n";

    /// Redis refuses PING so, and not SUNSUBSCRIBE.
    const FULL: &str = "-MISCONF Errors writing to the AOF file: No space left on device\r\n";

    /// The server may end a subscription by itself, and then refuses to be asked; the PING that goes behind may be refused as
    /// well. No reply is given to another command.
    #[test]
    fn the_end_of_a_subscription_shifts_no_reply() {
        let pong = "$1\r\nx\r\n";
        let ended = push('>', "sunsubscribe", "a");
        for (sent, is_refused) in [
            (format!("{ended}{pong}"), false),
            (format!("{ended}{MOVED}{pong}"), false),
            (format!("{MOVED}{pong}"), false),
            (format!("{ended}{NO_PING}"), true),
            (format!("{ended}{MOVED}{NO_PING}"), true),
            (format!("{ended}{FULL}"), true),
            (format!("{ended}{MOVED}{FULL}"), true),
            (format!("{FULL}{pong}"), false),
        ] {
            let mut fixture = Fixture::new('>');
            let form = AnswerForm::IfRefused {
                channel: "a".into(),
                has_ended: false,
            };
            let _left = fixture.add("SUNSUBSCRIBE", form);
            let mut ping = fixture.ping();
            let mut script = fixture.add("EVAL", AnswerForm::ByReply);
            let mut next = fixture.subscribe("b");
            fixture.arrives(&sent).expect("in step");
            let answer = ping.try_recv().expect("answered");
            assert_eq!(answer.is_err(), is_refused, "{sent}");
            assert!(script.try_recv().is_err(), "{sent}");
            let has_ended = sent.starts_with(&ended);
            assert_eq!(fixture.heard().len(), usize::from(has_ended), "{sent}");
            fixture.arrives(MOVED).expect("in step");
            assert!(is_refused_answer(&mut script), "a script is redirected");
            fixture.arrives(MOVED).expect("in step");
            assert!(is_refused_answer(&mut next), "a channel is redirected");
        }
    }

    /// Beside channels the older version of the protocol answers so.
    #[test]
    fn a_list_is_the_answer_to_ping_in_the_older_version_alone() {
        let pong = "*2\r\n$4\r\npong\r\n$1\r\nx\r\n";
        for (sign, is_text) in [('*', true), ('>', false)] {
            let mut fixture = Fixture::new(sign);
            let mut ping = fixture.ping();
            fixture.arrives(pong).expect("in step");
            let answer = ping.try_recv().expect("answered").expect("no refusal");
            assert_eq!(answer == Reply::Text("x".to_owned()), is_text, "{sign}");
        }
    }

    /// Scripts return lists, and what they return may begin with any word.
    #[test]
    fn a_list_is_no_push_in_the_newer_version() {
        let mut fixture = Fixture::new('>');
        let mut script = fixture.add("EVAL", AnswerForm::ByReply);
        fixture
            .arrives(&push('*', "message", "a"))
            .expect("in step");
        assert!(matches!(script.try_recv(), Ok(Ok(Reply::List(_)))));
        assert!(fixture.heard().is_empty());
    }

    /// A channel that is no text, and what a later version may send.
    #[test]
    fn other_pushes_say_nothing() {
        let mut fixture = Fixture::new('>');
        let mut ping = fixture.ping();
        for text in [
            ">3\r\n+message\r\n$1\r\n\u{1}\r\n".to_owned() + "+x\r\n",
            push('>', "invalidate", "a"),
            ">1\r\n+message\r\n".to_owned(),
            ">0\r\n".to_owned(),
        ] {
            fixture.arrives(&text).expect("it says nothing");
        }
        assert_eq!(fixture.heard(), [r#"Message(Classic, "\u{1}")"#]);
        fixture.arrives("+PONG\r\n").expect("in step");
        assert!(matches!(ping.try_recv(), Ok(Ok(_))));
    }
}
