//! Cuts what a server sends into replies.
//!
//! The codec reads a reply that is there completely: by itself it would read each part again whenever more arrives, follow
//! lists within lists until the stack ends, and wait for any length that a server claims.

use bytes::{Buf, BytesMut};
use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;
use smallvec::SmallVec;

use super::failed::without_arguments;
use super::requests::Answer;
use crate::redis::transport::{ConnectionError, Reply};

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
}

/// From where to where, as the codec has it.
type Range = (usize, usize);

/// What no server sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    Length,
    TooLong,
    TooDeep,
    Type(u8),
    Codec,
}

impl From<Malformed> for ConnectionError {
    fn from(malformed: Malformed) -> Self {
        let what = match malformed {
            Malformed::Length => "a length that is no number".to_owned(),
            Malformed::TooLong => format!("more than {} MiB", REPLY_MAX >> 20),
            Malformed::TooDeep => format!("lists within lists, {DEPTH_MAX} deep"),
            Malformed::Type(byte) => format!("an unknown type, {:?}", char::from(byte)),
            Malformed::Codec => "something that is no reply".to_owned(),
        };
        Self::Lost(format!("the server has sent {what}"))
    }
}

impl Replies {
    /// The next reply, if it is there.
    pub(super) fn next(&mut self) -> Result<Option<Answer>, Malformed> {
        loop {
            let Some((kind, line)) = self.line()? else {
                return Ok(None);
            };
            let after = line.1 + CRLF.len();
            let has_ended = match kind {
                b'+' | b'-' => {
                    self.at = after;
                    true
                }
                b':' => {
                    self.number(line)?;
                    self.at = after;
                    true
                }
                b'$' => {
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
                b'*' => {
                    let items = self.length(line)?.unwrap_or(0);
                    self.at = after;
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
                return self.cut().map(Some);
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
    fn line(&mut self) -> Result<Option<(u8, Range)>, Malformed> {
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

    fn number(&self, (from, to): Range) -> Result<i64, Malformed> {
        let text = self.arrived.get(from..to).unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| Malformed::Length)?;
        text.parse().map_err(|_| Malformed::Length)
    }

    /// `None`: there is no value.
    fn length(&self, line: Range) -> Result<Option<usize>, Malformed> {
        match self.number(line)? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) if length <= REPLY_MAX => Ok(Some(length)),
                Ok(_) => Err(Malformed::TooLong),
                Err(_) => Err(Malformed::Length),
            },
        }
    }

    fn cut(&mut self) -> Result<Answer, Malformed> {
        let length = std::mem::take(&mut self.at);
        self.searched = 0;
        let bytes = self.arrived.get(..length).unwrap_or_default();
        let decoded = decode_range(bytes).ok().flatten();
        let Some((frame, _)) = decoded.filter(|(_, decoded)| *decoded == length) else {
            return Err(Malformed::Codec);
        };
        let answer = match frame {
            RangeFrame::Error(range) => {
                let text = lossy(bytes, range);
                Err(ConnectionError::refused(without_arguments(&text)))
            }
            frame => Ok(reply(bytes, frame)),
        };
        self.arrived.advance(length);
        Ok(answer)
    }
}

fn reply(bytes: &[u8], frame: RangeFrame) -> Reply {
    match frame {
        RangeFrame::SimpleString((from, to)) | RangeFrame::BulkString((from, to)) => {
            let bytes = bytes.get(from..to).unwrap_or_default();
            match std::str::from_utf8(bytes) {
                Ok(text) => Reply::Text(text.to_owned()),
                Err(_) => Reply::Bytes(bytes.into()),
            }
        }
        // Within a list: as a text.
        RangeFrame::Error(range) => Reply::Text(lossy(bytes, range)),
        RangeFrame::Integer(number) => Reply::Number(number),
        RangeFrame::Array(items) => {
            let items = items.into_iter().map(|item| reply(bytes, item));
            Reply::List(items.collect())
        }
        RangeFrame::Null => Reply::Nil,
    }
}

fn lossy(bytes: &[u8], (from, to): Range) -> String {
    String::from_utf8_lossy(bytes.get(from..to).unwrap_or_default()).into_owned()
}

const CRLF: &[u8] = b"\r\n";

/// No script of this crate returns more than some hundred bytes for each lock; one of a user may.
const REPLY_MAX: usize = 64 << 20;

/// What a script returns is less deep: Redis converts no deeper tables than this.
const DEPTH_MAX: usize = 128;

#[cfg(test)]
mod tests;
