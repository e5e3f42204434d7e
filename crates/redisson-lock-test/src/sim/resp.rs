//! The protocol as the server speaks it: commands as arrays of texts, and replies and pushes as either version has them.

use redisson_lock::test_util::Reply;

/// What a client has sent, as far as its end has not arrived.
#[derive(Debug, Default)]
pub(super) struct Incoming(Vec<u8>);

impl Incoming {
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The words of the next command, if all of it is there.
    pub(super) fn next(&mut self) -> Option<Vec<String>> {
        let mut rest = self.0.as_slice();
        let count = length(&mut rest, b'*')?;
        let mut words = Vec::with_capacity(count);
        for _ in 0..count {
            let length = length(&mut rest, b'$')?;
            let word = rest.get(..length)?;
            words.push(String::from_utf8_lossy(word).into_owned());
            rest = rest.get(length + CRLF.len()..)?;
        }
        let read = self.0.len() - rest.len();
        self.0.drain(..read);
        Some(words)
    }
}

/// A line with this sign and a length.
fn length(rest: &mut &[u8], sign: u8) -> Option<usize> {
    let end = rest.windows(CRLF.len()).position(|bytes| bytes == CRLF)?;
    let line = std::str::from_utf8(&rest[..end]).expect("a line of a client is text");
    let (found, length) = line.split_at(1);
    assert_eq!(found.as_bytes(), [sign], "{line}");
    *rest = &rest[end + CRLF.len()..];
    Some(length.parse().expect("a length"))
}

/// Something that a server sends.
pub(super) struct Outgoing<'a> {
    /// In the newer version of the protocol.
    pub(super) is_new: bool,
    pub(super) bytes: &'a mut Vec<u8>,
}

impl Outgoing<'_> {
    pub(super) fn answer(&mut self, answer: &Result<Reply, String>) {
        match answer {
            Ok(reply) => self.reply(reply),
            Err(text) => self.line(b'-', text.replace(['\r', '\n'], " ")),
        }
    }

    pub(super) fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Nil if self.is_new => self.line(b'_', ""),
            Reply::Nil => self.line(b'$', "-1"),
            Reply::Number(number) => self.line(b':', number.to_string()),
            Reply::Text(text) => self.text(text.as_bytes()),
            Reply::Bytes(bytes) => self.text(bytes),
            Reply::List(items) => self.list(b'*', items),
        }
    }

    /// What is sent without a command, or beside its reply.
    pub(super) fn push(&mut self, items: &[Reply]) {
        let sign = if self.is_new { b'>' } else { b'*' };
        self.list(sign, items);
    }

    fn list(&mut self, sign: u8, items: &[Reply]) {
        self.line(sign, items.len().to_string());
        items.iter().for_each(|item| self.reply(item));
    }

    fn text(&mut self, text: &[u8]) {
        self.line(b'$', text.len().to_string());
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(CRLF);
    }

    fn line(&mut self, sign: u8, text: impl AsRef<[u8]>) {
        self.bytes.push(sign);
        self.bytes.extend_from_slice(text.as_ref());
        self.bytes.extend_from_slice(CRLF);
    }
}

const CRLF: &[u8] = b"\r\n";
