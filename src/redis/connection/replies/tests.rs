//! Tests of replies, wherever they are cut.

use super::*;

/// Everything that comes of these bytes, which arrive in parts of this length.
fn read(bytes: &[u8], step: usize) -> Result<Vec<Answer>, Malformed> {
    let (mut replies, mut all) = (Replies::default(), Vec::new());
    for part in bytes.chunks(step) {
        replies.arrived.extend_from_slice(part);
        while let Some(arrived) = replies.next()? {
            all.push(match arrived {
                Arrived::Reply(answer) => answer,
                Arrived::Push(push) => Ok(Reply::List(vec![text(PUSHED), push])),
            });
        }
    }
    assert!(replies.arrived.is_empty(), "all of it was read");
    Ok(all)
}

const PUSHED: &str = "pushed";

fn text(text: &str) -> Reply {
    Reply::Text(text.to_owned())
}

#[test]
fn replies_are_the_same_wherever_they_are_cut() {
    let bytes = b"+OK\r\n:-7\r\n$5\r\na\r\nbc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n$2\r\n\xff\0\r\n\
        -NOSCRIPT No matching script\r\n*3\r\n:1\r\n*2\r\n+a\r\n*1\r\n*0\r\n-inner error\r\n\
        _\r\n#t\r\n#f\r\n,1.5\r\n(12345678901234567890\r\n=6\r\ntxt:ab\r\n!7\r\nERR a\r\n\r\n\
        ~2\r\n+a\r\n_\r\n%2\r\n+b\r\n:1\r\n+a\r\n%0\r\n\
        >2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n>2\r\n+invalidate\r\n_\r\n+last\r\n";
    let invalidate = |about| {
        Reply::List(vec![
            text(PUSHED),
            Reply::List(vec![text("invalidate"), about]),
        ])
    };
    let expected = [
        Ok(text("OK")),
        Ok(Reply::Number(-7)),
        Ok(text("a\r\nbc")),
        Ok(text("")),
        Ok(Reply::Nil),
        Ok(Reply::Nil),
        Ok(Reply::List(Vec::new())),
        Ok(Reply::Bytes([0xff, 0].as_slice().into())),
        Err("NOSCRIPT No matching script"),
        Ok(Reply::List(vec![
            Reply::Number(1),
            Reply::List(vec![text("a"), Reply::List(vec![Reply::List(Vec::new())])]),
            text("inner error"),
        ])),
        Ok(Reply::Nil),
        Ok(Reply::Number(1)),
        Ok(Reply::Number(0)),
        Ok(text("1.5")),
        Ok(text("12345678901234567890")),
        Ok(text("ab")),
        Err("ERR a\r\n"),
        Ok(Reply::List(vec![text("a"), Reply::Nil])),
        Ok(Reply::List(vec![
            text("b"),
            Reply::Number(1),
            text("a"),
            Reply::List(Vec::new()),
        ])),
        Ok(invalidate(Reply::List(vec![text("a")]))),
        Ok(invalidate(Reply::Nil)),
        Ok(text("last")),
    ];
    for step in 1..=bytes.len() {
        let all = read(bytes, step).expect("well formed");
        assert_eq!(all.len(), expected.len(), "{step}");
        for (answer, expected) in all.into_iter().zip(&expected) {
            let answer = answer.map_err(|problem| problem.to_string());
            let answer = answer.as_ref().map_err(String::as_str);
            assert_eq!(answer, expected.as_ref().map_err(|text| *text), "{step}");
        }
    }
}

#[test]
fn what_no_server_sends_is_found_as_soon_as_it_is_there() {
    for (bytes, expected) in [
        (&b"?"[..], None),
        (b"?\r\n", Some(Malformed::Type(b'?'))),
        (b"$-2\r\n", Some(Malformed::Length)),
        (b"$x\r\n", Some(Malformed::Length)),
        (b":x\r\n", Some(Malformed::Length)),
        (b"*99999999999999\r\n", Some(Malformed::TooLong)),
        (b"$99999999999\r\n", Some(Malformed::TooLong)),
        (b"$3\r\nabcde\r\n", Some(Malformed::Length)),
        (b"%99999999999999\r\n", Some(Malformed::TooLong)),
        (b"*1\r\n>1\r\n", Some(Malformed::Type(b'>'))),
        (b"*?\r\n", Some(Malformed::Length)),
    ] {
        let mut replies = Replies::default();
        replies.arrived.extend_from_slice(bytes);
        let found = replies.next().err();
        assert_eq!(found, expected, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn lists_within_lists_end_before_the_stack_does() {
    let mut replies = Replies::default();
    let deep = b"*1\r\n".repeat(DEPTH_MAX);
    replies.arrived.extend_from_slice(&deep);
    assert!(matches!(replies.next(), Ok(None)));
    replies.arrived.extend_from_slice(b":1\r\n");
    assert!(
        matches!(replies.next(), Ok(Some(Arrived::Reply(Ok(_))))),
        "as deep as that is allowed"
    );
    replies.arrived.extend_from_slice(&deep);
    replies.arrived.extend_from_slice(b"*1\r\n");
    assert_eq!(replies.next().err(), Some(Malformed::TooDeep));
}

/// Of short items, too.
#[test]
fn a_list_that_does_not_end_is_found_at_the_bound() {
    let mut replies = Replies::default();
    let header = format!("*{ITEMS_MAX}\r\n");
    replies.arrived.extend_from_slice(header.as_bytes());
    let items = format!("+{}\r\n", "a".repeat(100));
    let items = items.repeat(1 << 14).into_bytes();
    let found = loop {
        replies.arrived.extend_from_slice(&items);
        match replies.next() {
            Ok(None) => assert!(replies.arrived.len() <= REPLY_MAX + items.len()),
            other => break other.err(),
        }
    };
    assert_eq!(found, Some(Malformed::TooLong));
}

/// Each takes more memory than it has bytes.
#[test]
fn a_reply_of_too_many_items_is_found_before_they_arrive() {
    for (bytes, expected) in [
        (format!("*{ITEMS_MAX}\r\n"), None),
        (format!("*{}\r\n", ITEMS_MAX + 1), Some(Malformed::TooMany)),
        (
            format!("*2\r\n*0\r\n*{}\r\n", ITEMS_MAX - 1),
            Some(Malformed::TooMany),
        ),
        (
            format!("%{}\r\n", ITEMS_MAX / 2 + 1),
            Some(Malformed::TooMany),
        ),
        // Those of an earlier reply do not count.
        (format!("*2\r\n_\r\n_\r\n*{ITEMS_MAX}\r\n"), None),
    ] {
        let mut replies = Replies::default();
        replies.arrived.extend_from_slice(bytes.as_bytes());
        let found = loop {
            match replies.next() {
                Ok(Some(_)) => {}
                other => break other.err(),
            }
        };
        assert_eq!(found, expected, "{bytes}");
    }
}

/// Of what arrives byte by byte no part is searched again and again.
#[test]
fn a_long_line_that_drips_is_read_once() {
    let mut replies = Replies::default();
    let start = tokio::time::Instant::now();
    replies.arrived.extend_from_slice(b"+");
    for _ in 0..200_000 {
        replies.arrived.extend_from_slice(b"a");
        assert!(matches!(replies.next(), Ok(None)));
    }
    replies.arrived.extend_from_slice(b"\r\n");
    let Ok(Some(Arrived::Reply(Ok(Reply::Text(text))))) = replies.next() else {
        panic!("it is complete");
    };
    assert_eq!(text.len(), 200_000);
    assert!(start.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn a_long_reply_leaves_no_long_buffer() {
    let text = vec![b'a'; 8 << 20];
    let bytes = [
        format!("${}\r\n", text.len()).as_bytes(),
        &text,
        b"\r\n+OK\r\n",
    ]
    .concat();
    let mut replies = Replies::default();
    for nth in 0..2 {
        let mut count = 0;
        for part in bytes.chunks(100_000) {
            replies.arrived.extend_from_slice(part);
            while replies.next().expect("well formed").is_some() {
                count += 1;
            }
        }
        assert_eq!(count, 2);
        assert!(!replies.arrived.try_reclaim(text.len() / 8), "{nth}");
    }
}
