//! What users write and read: durations and names, output, messages.

use std::any::Any;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::exit::{self, Problem};

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

/// Reads the name of a lock. Names are shown, so an address that was misplaced must not become one.
pub(crate) fn lock_name(text: &str) -> Result<String, String> {
    match text.trim().to_ascii_lowercase().split_once("://") {
        Some((scheme, _)) if scheme.starts_with("redis") || scheme.starts_with("valkey") => {
            Err("an address is given with --url or in REDISSON_LOCK_URL".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

/// Whether a terminal would obey the character instead of showing it: controls, which begin escape
/// sequences, and those that reorder the text around them.
fn steers(character: char) -> bool {
    let reorders = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || reorders
}

/// Escapes what could steer a terminal in a text that another program wrote.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match steers(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// The value as indented JSON. `serde_json` escapes only the controls of ASCII, as it has to.
pub(crate) fn json(value: &serde_json::Value) -> String {
    let mut shown = String::new();
    for character in format!("{value:#}").chars() {
        // All of them take one UTF-16 unit. The line breaks are those of the layout.
        match steers(character) && character != '\n' {
            true => shown += &format!("\\u{:04x}", u32::from(character)),
            false => shown.push(character),
        }
    }
    shown
}

/// Writes one line to stderr.
pub(crate) fn say(sentence: &str) {
    // The exit code stays what it is if stderr cannot be written: there is nowhere else to say it.
    let _ = writeln!(std::io::stderr(), "redisson-lock: {}", plain(sentence));
}

/// Writes to stdout.
pub(crate) fn print(text: &str) -> Result<(), Problem> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written.and_then(|()| stdout.flush()).map_err(unwritable)
}

pub(crate) fn unwritable(error: impl Display) -> Problem {
    let sentence = format!("the output cannot be written: {error}");
    Problem::new(exit::UNWRITABLE, sentence)
}

/// The message of a panic. A text that was put together at run time is left out, because it may
/// quote an address with its password.
pub(crate) fn of_panic(payload: &dyn Any, location: Option<impl Display>) -> String {
    let location = location.map_or_else(String::new, |location| format!(" at {location}"));
    let literal = payload.downcast_ref::<&'static str>();
    let literal = literal.map_or_else(String::new, |literal| format!(": {literal}"));
    format!("a bug{location}{literal}")
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
    fn an_address_is_no_name() {
        for address in [
            "redis://h",
            "rediss://:p@h",
            "valkey-cluster://h",
            "redis+unix://x",
            "REDIS://:p@h",
            " redis://:p@h",
        ] {
            assert!(lock_name(address).is_err(), "{address}");
        }
        for name in ["stock:42", "redis", "http://stock/42", "://", ""] {
            assert_eq!(lock_name(name).as_deref(), Ok(name));
        }
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(plain("\u{9b}\u{7f}\u{202e}"), "\\u{9b}\\u{7f}\\u{202e}");
        assert_eq!(plain("über"), "über");
        let value = serde_json::json!(["ü\u{1b}\u{9b}\u{7f}\u{202e}"]);
        assert_eq!(json(&value), "[\n  \"ü\\u001b\\u009b\\u007f\\u202e\"\n]");
    }

    #[test]
    fn a_panic_shows_no_text_that_was_put_together() {
        let location = std::panic::Location::caller();
        let shown = of_panic(&"no such node", Some(location));
        assert_eq!(shown, format!("a bug at {location}: no such node"));
        let shown = of_panic(&"redis://:secret@host".to_owned(), Some(location));
        assert_eq!(shown, format!("a bug at {location}"));
        assert_eq!(of_panic(&7, None::<&str>), "a bug");
    }
}
