//! Texts for people: durations, names that others chose, and addresses without their passwords.

use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Reads `500ms`, `30s`, `5m`, `2h`, `1d`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(FORM.to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| FORM.to_owned())?;
    let total = number.checked_mul(milliseconds).map(Duration::from_millis);
    total
        .filter(|total| *total <= LONGEST)
        .ok_or_else(|| "it is longer than 3650d".to_owned())
}

/// Far from the end of the clock's range.
const LONGEST: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

const FORM: &str = "a duration is a number with ms, s, m, h or d, such as 30s";

/// A lease that the library accepts.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        Ok(lease)
    } else {
        Err("a lease is at least 300ms and at most 1d".to_owned())
    }
}

const LEASE_MIN: Duration = Duration::from_millis(300);
const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration with a tenth of a second; without it from a minute on.
pub(crate) fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(60) {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} s", duration.as_secs())
    }
}

/// A name or an owner that another program wrote: what could steer a terminal is escaped.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The text with the credentials of every address in it left out.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, address) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = address.find(char::is_whitespace).unwrap_or(address.len());
        // The last one: a password may contain the sign itself.
        let host = address[..end].rfind('@').unwrap_or(0);
        if host > 0 {
            shown.push_str("***");
        }
        rest = &address[host..];
    }
    shown.push_str(rest);
    shown
}

/// Says something on stderr, and never a password.
pub(crate) fn say(sentence: &str) {
    let sentence = without_passwords(sentence);
    // A stderr that is closed is no reason to end otherwise.
    let _ = writeln!(std::io::stderr(), "redisson-lock: {sentence}");
}

/// Writes to stdout. A reader that is gone wants nothing more, and is no problem.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Whether stderr is a terminal that may be coloured.
pub(crate) fn may_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in [
            "",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            "1w",
            "99999999999999999999d",
            "3651d",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(lease("299ms").is_err() && lease("300ms").is_ok() && lease("25h").is_err());
    }

    #[test]
    fn passwords_are_left_out_whatever_they_contain() {
        let cases = [
            ("no address at all", "no address at all"),
            ("redis://host:6379/0", "redis://host:6379/0"),
            ("`redis://u:p@host` is wrong", "`redis://***@host` is wrong"),
            ("rediss://:p@ss/w:rd@host:1", "rediss://***@host:1"),
            (
                "redis://:a@h and redis://:b@h",
                "redis://***@h and redis://***@h",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(without_passwords(text), expected);
        }
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(plain("über"), "über");
    }
}
