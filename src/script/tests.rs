//! Tests of the scripts as calls.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;

/// The files of a folder and of those in it: the name of each, and its text.
fn files(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in folder.read_dir().expect("a folder") {
        let path = entry.expect("readable").path();
        match path.is_dir() {
            true => files(&path, found),
            false => {
                let text = std::fs::read_to_string(&path).expect("text");
                let name = path.strip_prefix(lua()).expect("inside").with_extension("");
                found.push((name.to_str().expect("text").to_owned(), text));
            }
        }
    }
}

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// The header of a script is a contract: it declares exactly the inputs that the body uses, in
/// order, and every integer that the body returns.
#[test]
fn every_header_agrees_with_its_body() {
    let mut all = Vec::new();
    files(&lua(), &mut all);
    for script in ALL {
        let is_file = all.iter().any(|(name, _)| name == script.name);
        assert!(is_file, "{}", script.name);
    }
    for (name, source) in all {
        let (header, body): (Vec<_>, Vec<_>) =
            source.lines().partition(|line| line.starts_with("--"));
        let (header, body) = (header.join("\n"), body.join("\n"));
        assert!(
            header.starts_with(&format!("-- {}.lua: ", name)),
            "{}: the header opens with the name of the file",
            name
        );
        assert!(header.contains("\n-- Returns"), "{}", name);
        for input in ["KEYS", "ARGV"] {
            let declared = indices(&header, input);
            let used = indices(&body, input);
            let is_batch = [
                format!("ipairs({input})"),
                format!("{input}[1] = {input}[n]"),
                "2 * n".to_owned(),
            ];
            if is_batch.iter().any(|loops| body.contains(loops)) {
                assert!(header.contains(&format!("{input}[")), "{}", name);
                continue;
            }
            assert_eq!(declared, used, "{}: {input}", name);
            // Those are parts of another script, and have its inputs.
            if ["look", "queue", "take_over"]
                .iter()
                .any(|part| name.ends_with(part))
            {
                continue;
            }
            let expected: BTreeSet<_> = (1..=declared.len()).collect();
            assert_eq!(declared, expected, "{}: {input} has holes", name);
        }
        for code in returned_codes(&body) {
            assert!(
                header
                    .lines()
                    .any(|line| line.trim_start_matches("-- ").trim().starts_with(&code)),
                "{}: returns {code}, the header does not say so",
                name
            );
        }
        assert!(source.lines().count() <= 80, "{} is too long", name);
    }
}

fn indices(text: &str, input: &str) -> BTreeSet<usize> {
    text.split(&format!("{input}["))
        .skip(1)
        .filter_map(|rest| rest.split(']').next()?.parse().ok())
        .collect()
}

fn returned_codes(body: &str) -> BTreeSet<String> {
    body.split(&[' ', '\n'][..])
        .collect::<Vec<_>>()
        .windows(2)
        .filter(|pair| pair[0] == "return")
        .map(|pair| {
            pair[1]
                .trim_end_matches(|c: char| !c.is_ascii_digit())
                .to_owned()
        })
        .filter(|code| code.parse::<i64>().is_ok() || code.starts_with("{-"))
        .collect()
}

#[test]
fn leases_round_up_to_whole_milliseconds() {
    let ms = |duration| match millis(duration) {
        Arg::Number(ms) => ms,
        Arg::Text(_) | Arg::Bytes(_) | Arg::Fixed(_) => unreachable!("a number"),
    };
    assert_eq!(ms(Duration::from_millis(10)), 10);
    assert_eq!(ms(Duration::from_nanos(10_000_001)), 11);
    assert_eq!(ms(Duration::MAX), i64::MAX);
}

/// A batch of another size is another call's.
#[test]
fn a_renewal_has_an_answer_for_each_of_its_keys() {
    let renewal = RenewalKey {
        kind: LockKind::Plain,
        key: "a".into(),
        field: "f".into(),
        asked: RenewalAsk::Check,
    };
    let call = renew([&renewal, &renewal].into_iter());
    let read = |answers: &[i64]| {
        let answers = answers.iter().map(|&answer| Reply::Number(answer));
        (call.reads.decode)(&Reply::List(answers.collect()), call.keys.len())
    };
    assert_eq!(read(&[1, 0]), Some(vec![Ok(()), Err(LossReason::Gone)]));
    for other in [&[][..], &[1], &[1, 1, 1]] {
        assert_eq!(read(other), None, "{other:?}");
    }
}

#[test]
fn no_number_is_too_small_for_the_reply_to_a_release() {
    for number in [i64::MIN, i64::MIN + 1, -5, -3] {
        assert!(released(&Reply::Number(number)).is_none(), "{number}");
    }
}
