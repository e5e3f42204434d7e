//! Cuts what a server sends into replies and reports, in either version of the protocol.
//!
//! No codec of a library: those at hand read each part again whenever more arrives, follow lists within lists until the
//! stack ends, wait for any length that a server claims, and keep the pairs of a map in no order.

use bytes::{Buf, BytesMut};
use smallvec::SmallVec;

use super::answers::Answer;
use super::failed::{WEB_SERVER, without_arguments};
use super::requests::give_back;
use crate::redis::transport::{ConnectionError, Reply};

/// Something that has arrived completely.
#[derive(Debug)]
pub(super) enum Arrived {
    /// The reply to the first request that has none.
    Reply(Answer),
    /// A push of the server.
    Push(Reply),
}

/// Bytes that have arrived, and how far the first reply in them is complete.
#[derive(Default)]
pub(super) struct Replies {
    pub(super) arrived: BytesMut,
    /// Where the next part of the reply begins.
    at: usize,
    /// Up to where that part has no end of a line.
    searched: usize,
    /// How many items each list lacks that is not complete, the outermost one first.
    lists: SmallVec<[u64; 4]>,
    /// How many items all lists of the reply have, as far as they have begun.
    items: usize,
}

/// From where to where.
type ByteRange = (usize, usize);

/// Bytes that are no reply, or too large a one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    Length,
    TooLong,
    TooDeep,
    TooMany,
    Type(u8),
}

impl From<Malformed> for ConnectionError {
    fn from(malformed: Malformed) -> Self {
        let what = match malformed {
            // What begins so is the answer of a web server, or a page without one.
            Malformed::Type(b'H' | b'<') => return Self::Lost(WEB_SERVER.to_owned()),
            Malformed::Length => "a length that is no number".to_owned(),
            Malformed::TooLong => format!("more than {} MiB", REPLY_MAX >> 20),
            Malformed::TooDeep => format!("lists within lists, {DEPTH_MAX} deep"),
            Malformed::TooMany => format!("a reply of more than {ITEMS_MAX} items"),
            Malformed::Type(byte) => format!("an unknown type, {:?}", char::from(byte)),
        };
        Self::Lost(format!("the server has sent {what}"))
    }
}

impl Replies {
    /// The next reply or report, if it is there.
    pub(super) fn next(&mut self) -> Result<Option<Arrived>, Malformed> {
        loop {
            if self.at > REPLY_MAX {
                return Err(Malformed::TooLong);
            }
            let Some((kind, line)) = self.line()? else {
                return Ok(None);
            };
            let after = line.1 + CRLF.len();
            let has_ended = match kind {
                b'+' | b'-' | b'_' | b'#' | b',' | b'(' => {
                    self.at = after;
                    true
                }
                b':' => {
                    self.number(line)?;
                    self.at = after;
                    true
                }
                b'$' | b'=' | b'!' => {
                    let length = self.length(line)?;
                    let end = length.map_or(after, |length| after + length + CRLF.len());
                    if end > REPLY_MAX {
                        return Err(Malformed::TooLong);
                    }
                    if end > self.arrived.len() {
                        // Its line is read again when there is more.
                        self.searched = line.1;
                        return Ok(None);
                    }
                    if length.is_some() && self.arrived.get(end - CRLF.len()..end) != Some(CRLF) {
                        return Err(Malformed::Length);
                    }
                    self.at = end;
                    true
                }
                b'*' | b'~' | b'%' | b'>' => {
                    let is_within = self.at > 0;
                    let items = self.length_of_list(kind, line)?;
                    self.at = after;
                    self.items += items;
                    if kind == b'>' && is_within {
                        return Err(Malformed::Type(kind));
                    }
                    if self.items > ITEMS_MAX {
                        return Err(Malformed::TooMany);
                    }
                    if items > 0 && self.lists.len() == DEPTH_MAX {
                        return Err(Malformed::TooDeep);
                    }
                    if items > 0 {
                        self.lists.push(items as u64);
                    }
                    items == 0
                }
                other => return Err(Malformed::Type(other)),
            };
            self.searched = self.at;
            if has_ended && self.is_complete() {
                return Ok(Some(self.cut()));
            }
        }
    }

    /// A part of a list is there, or the reply itself. Returns whether the reply is.
    fn is_complete(&mut self) -> bool {
        while let Some(missing) = self.lists.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.lists.pop();
        }
        true
    }

    /// The type of the next part, and from where to where its first line goes.
    fn line(&mut self) -> Result<Option<(u8, ByteRange)>, Malformed> {
        let Some(kind) = self.arrived.get(self.at).copied() else {
            return Ok(None);
        };
        let from = self.searched.max(self.at + 1);
        let rest = self.arrived.get(from..).unwrap_or_default();
        let end = rest.windows(CRLF.len()).position(|end| end == CRLF);
        match end {
            Some(end) => Ok(Some((kind, (self.at + 1, from + end)))),
            None if self.arrived.len() > REPLY_MAX => Err(Malformed::TooLong),
            None => {
                self.searched = self.arrived.len().max(from + 1) - 1;
                Ok(None)
            }
        }
    }

    fn number(&self, (from, to): ByteRange) -> Result<i64, Malformed> {
        let text = self.arrived.get(from..to).unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| Malformed::Length)?;
        text.parse().map_err(|_| Malformed::Length)
    }

    /// `None`: there is no value.
    fn length(&self, line: ByteRange) -> Result<Option<usize>, Malformed> {
        match self.number(line)? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) if length <= REPLY_MAX => Ok(Some(length)),
                Ok(_) => Err(Malformed::TooLong),
                Err(_) => Err(Malformed::Length),
            },
        }
    }

    /// How many values the list of this type has that begins with this line.
    fn length_of_list(&self, kind: u8, line: ByteRange) -> Result<usize, Malformed> {
        let length = self.length(line)?.unwrap_or(0);
        // A map counts its pairs.
        Ok(if kind == b'%' { 2 * length } else { length })
    }

    fn cut(&mut self) -> Arrived {
        let length = std::mem::take(&mut self.at);
        (self.searched, self.items) = (0, 0);
        let bytes = self.arrived.get(..length).unwrap_or_default();
        let kind = bytes.first().copied();
        let reply = Complete(bytes).value();
        self.arrived.advance(length);
        give_back(&mut self.arrived);
        match (kind, reply) {
            (Some(b'-' | b'!'), Reply::Text(text)) => {
                let refused = ConnectionError::refused(without_arguments(&text));
                Arrived::Reply(Err(refused))
            }
            (Some(b'>'), push) => Arrived::Push(push),
            (_, reply) => Arrived::Reply(Ok(reply)),
        }
    }
}

/// The rest of something that is there completely.
struct Complete<'a>(&'a [u8]);

impl<'a> Complete<'a> {
    /// The next value, as the older version of the protocol has it: lists for maps and sets, texts for doubles, numbers
    /// for booleans. An error within a list is a text.
    fn value(&mut self) -> Reply {
        let (kind, line) = self.line();
        match kind {
            b':' => Reply::Number(number(line)),
            b'#' => Reply::Number((line == b"t").into()),
            b'_' => Reply::Nil,
            b'-' => Reply::Text(String::from_utf8_lossy(line).into_owned()),
            b'$' | b'=' | b'!' => match usize::try_from(number(line)) {
                Ok(length) => {
                    let text = self.take(length + CRLF.len());
                    let text = text.get(..length).unwrap_or_default();
                    match kind {
                        // Three letters say what it is.
                        b'=' => read_text(text.get(4..).unwrap_or_default()),
                        b'!' => Reply::Text(String::from_utf8_lossy(text).into_owned()),
                        _ => read_text(text),
                    }
                }
                Err(_) => Reply::Nil,
            },
            b'*' | b'~' | b'%' | b'>' => match usize::try_from(number(line)) {
                Ok(length) => {
                    let length = if kind == b'%' { 2 * length } else { length };
                    Reply::List((0..length).map(|_| self.value()).collect())
                }
                Err(_) => Reply::Nil,
            },
            _ => read_text(line),
        }
    }

    fn line(&mut self) -> (u8, &'a [u8]) {
        let end = self.0.windows(CRLF.len()).position(|end| end == CRLF);
        let line = self.take(end.unwrap_or(0) + CRLF.len());
        let kind = line.first().copied().unwrap_or_default();
        (
            kind,
            line.get(1..line.len() - CRLF.len()).unwrap_or_default(),
        )
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// It was read before.
fn number(line: &[u8]) -> i64 {
    let text = std::str::from_utf8(line);
    text.ok().and_then(|text| text.parse().ok()).unwrap_or(-1)
}

fn read_text(bytes: &[u8]) -> Reply {
    match std::str::from_utf8(bytes) {
        Ok(text) => Reply::Text(text.to_owned()),
        Err(_) => Reply::Bytes(bytes.into()),
    }
}

const CRLF: &[u8] = b"\r\n";

/// No script of this crate returns more than some hundred bytes for each lock; one of a user may.
const REPLY_MAX: usize = 64 << 20;

/// An item takes up to twenty times its bytes in memory.
const ITEMS_MAX: usize = 1 << 20;

/// What a script returns is less deep: Redis converts no deeper tables than this.
const DEPTH_MAX: usize = 128;

#[cfg(test)]
mod tests;
