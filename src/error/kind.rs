//! Reading the name of a kind of lock.

use std::str::FromStr;

use super::Error;
use crate::kind::LockKind;

impl FromStr for LockKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named.map(|(kind, _)| *kind).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
            Error::InvalidConfig {
                what: "lock kind",
                problem: format!("`{text}` is none of {}", names.join(", ")),
            }
        })
    }
}
