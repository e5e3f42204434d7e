//! Commands as the protocol has them.

use bytes::BytesMut;

use crate::redis::transport::Arg;

/// A command as the protocol has it: an array of texts.
pub(super) fn encode(buffer: &mut BytesMut, name: &str, args: &[Arg]) {
    length(buffer, b'*', args.len() + 1);
    word(buffer, name.as_bytes());
    for arg in args {
        match arg {
            Arg::Text(text) => word(buffer, text.as_bytes()),
            Arg::Bytes(bytes) => word(buffer, bytes),
            Arg::Fixed(text) => word(buffer, text.as_bytes()),
            Arg::Number(number) => {
                let number = Line::of((*number < 0).then_some(b'-'), number.unsigned_abs());
                length(buffer, b'$', number.as_bytes().len() - CRLF.len());
                buffer.extend_from_slice(number.as_bytes());
            }
        }
    }
}

fn word(buffer: &mut BytesMut, word: &[u8]) {
    length(buffer, b'$', word.len());
    buffer.extend_from_slice(word);
    buffer.extend_from_slice(CRLF);
}

fn length(buffer: &mut BytesMut, sign: u8, length: usize) {
    // Nearly every command has fewer than a hundred words, none of them longer than that.
    if let Ok(small @ ..100) = u8::try_from(length) {
        let (tens, ones) = (b'0' + small / 10, b'0' + small % 10);
        return match small {
            ..10 => buffer.extend_from_slice(&[sign, ones, b'\r', b'\n']),
            _ => buffer.extend_from_slice(&[sign, tens, ones, b'\r', b'\n']),
        };
    }
    buffer.extend_from_slice(Line::of(Some(sign), length as u64).as_bytes());
}

/// A line with a number. It is put together before it is added, because a buffer is asked for room each time; formatting the
/// number would take longer than all the rest of a command.
struct Line {
    text: [u8; 23],
    from: usize,
}

impl Line {
    fn of(sign: Option<u8>, mut number: u64) -> Self {
        let (mut text, mut from) = ([0; 23], 21);
        text[from..].copy_from_slice(CRLF);
        loop {
            from -= 1;
            text[from] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        if let Some(sign) = sign {
            from -= 1;
            text[from] = sign;
        }
        Self { text, from }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.text[self.from..]
    }
}

const CRLF: &[u8] = b"\r\n";
