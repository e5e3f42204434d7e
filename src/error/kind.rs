//! Reading the name of a kind of lock.

use std::str::FromStr;

use super::Error;
use crate::kind::LockKind;

impl FromStr for LockKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::InvalidConfig {
                what: "lock kind",
                problem: format!("`{text}`; expected one of {names}"),
            }
        })
    }
}
