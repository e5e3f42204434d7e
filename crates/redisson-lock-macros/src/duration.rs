//! Durations as options: a whole number and a unit.

use std::time::Duration;

use syn::{Error, LitStr, Result};

/// In milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// The bounds of `Lock::lease`.
const LEASE_MIN: Duration = Duration::from_millis(10);
const LEASE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

pub(crate) fn parse(option: &str, text: &LitStr) -> Result<Duration> {
    let given = text.value();
    read(&given).ok_or_else(|| {
        let problem = format!(
            "`{given}` is not a duration: write a whole number and one of ms, s, m, h and d, such as `{option} = \"5s\"`"
        );
        Error::new(text.span(), problem)
    })
}

pub(crate) fn parse_lease(option: &str, text: &LitStr) -> Result<Duration> {
    let lease = parse(option, text)?;
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        return Ok(lease);
    }
    let problem = format!(
        "a lease of `{}` is out of bounds: write 10ms to 3650d, or leave `{option}` out to have the lease renewed",
        text.value()
    );
    Err(Error::new(text.span(), problem))
}

fn read(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let number: u64 = number.parse().ok()?;
    number.checked_mul(*factor).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_read() {
        for (text, millis) in [
            ("0s", 0),
            ("250ms", 250),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("3d", 259_200_000),
        ] {
            assert_eq!(read(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "s",
            "5",
            "5 s",
            " 5s",
            "-5s",
            "1.5s",
            "5sec",
            "1m30s",
            "99999999999999999999s",
            "99999999999999999d",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_lease_has_bounds() {
        for (text, fits) in [
            ("0s", false),
            ("9ms", false),
            ("10ms", true),
            ("3650d", true),
            ("3651d", false),
        ] {
            let text = LitStr::new(text, proc_macro2::Span::call_site());
            let parsed = parse_lease("lease", &text);
            assert_eq!(parsed.is_ok(), fits, "{}", text.value());
        }
    }
}
