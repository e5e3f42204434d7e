//! One connection as the rest of `redis/` sees it: commands with a timeout, channels, messages, its
//! end.
//!
//! What it returns is a [`Reply`], or a [`ConnectionError`](super::transport::ConnectionError) that distinguishes a refusal
//! by the server from a connection without a reply.

pub(super) mod answers;
mod driver;
mod encode;
mod failed;
mod pushes;
mod replies;
#[cfg(any(test, feature = "test-util"))]
mod reply_path;
mod requests;
mod shared;
mod stream;

use super::transport::Reply;

pub(super) use driver::STALL;
pub(super) use failed::{Failed, connect_error, explained};
pub(super) use pushes::PushReceiver;
#[cfg(feature = "test-util")]
pub(crate) use reply_path::check_reply_path;
pub(crate) use requests::AnswerCallback;
pub(super) use requests::AnswerLimits;
pub(crate) use shared::Unflushed;
pub(super) use shared::{Connection, Task};

/// A text in the reply to `HELLO`.
pub(super) fn hello_field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let Reply::List(items) = reply else {
        return None;
    };
    items.chunks(2).find_map(|field| match field {
        [Reply::Text(found), Reply::Text(value)] if found == name => Some(value.as_str()),
        _ => None,
    })
}

/// The hash slot of a key, which decides its node in a cluster: that of the text between its first `{` and the next `}`,
/// if there is any.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let hashed = match tag {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    };
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % SLOTS
}

/// The slots of a cluster.
const SLOTS: u16 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_hello_is_the_text_after_its_name() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let hello = Reply::List(["server", "version", "version", "7.2"].map(text).into());
        assert_eq!(hello_field(&hello, "server"), Some("version"));
        assert_eq!(hello_field(&hello, "version"), Some("7.2"));
        assert_eq!(hello_field(&hello, "mode"), None);
        assert_eq!(hello_field(&Reply::List(vec![text("mode")]), "mode"), None);
        assert_eq!(hello_field(&Reply::Nil, "mode"), None);
    }

    /// The answer of a server's CLUSTER KEYSLOT.
    #[test]
    fn a_slot_is_that_of_the_tag_or_of_the_whole_key() {
        for (key, slot) in [
            ("a", 15495),
            ("foo", 12182),
            ("123456789", 12739),
            ("lock:{42}", 8000),
            ("42", 8000),
            ("{42}:lock:{43}", 8000),
            ("a{}b{c}", 7353),
            ("a{b", 13340),
            ("a}b{c}", 7365),
            ("{{a}}", 10276),
            ("{a", 10276),
            ("stück 一", 4873),
        ] {
            assert_eq!(slot_of(key), slot, "{key:?}");
        }
    }
}
