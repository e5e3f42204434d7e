//! The scripts that only read-write locks have.

use std::sync::LazyLock;

use super::{PLAIN, Scripts};
use crate::redis::Script;

macro_rules! scripts {
    ($($const:ident = $name:literal;)*) => {
        $(static $const: Script = Script {
            name: concat!("read_write/", $name),
            source: include_str!(concat!("../../lua/read_write/", $name, ".lua")),
            sha: LazyLock::new(|| sha1_smol::Sha1::from($const.source).digest().to_string()),
        };)*
        #[cfg(test)]
        pub(crate) static OF_FACES: &[&Script] = &[$(&$const),*];
    };
}

scripts! {
    READ_ACQUIRE = "read_acquire";
    READ_RELEASE = "read_release";
    READ_RENEW = "read_renew";
    WRITE_ACQUIRE = "write_acquire";
    WRITE_RELEASE = "write_release";
    FORCE_UNLOCK = "force_unlock";
    INSPECT = "inspect";
}

/// Neither part is handed over: others may read, or wait to read.
pub(super) static READ: Scripts = Scripts {
    acquire: &READ_ACQUIRE,
    release: &READ_RELEASE,
    renew: &READ_RENEW,
    ..WRITE
};

pub(super) static WRITE: Scripts = Scripts {
    acquire: &WRITE_ACQUIRE,
    release: &WRITE_RELEASE,
    force_unlock: &FORCE_UNLOCK,
    inspect: &INSPECT,
    ..PLAIN
};
