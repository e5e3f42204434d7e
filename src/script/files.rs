//! The files in `lua/`, and which of them serve which kind of lock.

use std::sync::LazyLock;

use crate::kind::LockKind;
use crate::redis::ServerScript;

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("../../lua/", $name, ".lua"))
    };
}

macro_rules! scripts {
    ($($const:ident = $name:literal $(after $($before:expr),+)?;)*) => {
        $(pub(super) static $const: ServerScript = ServerScript {
            name: $name,
            source: concat!($($($before,)+)? lua!($name)),
            sha: LazyLock::new(|| sha1_smol::Sha1::from($const.source).digest().to_string()),
        };)*
        #[cfg(test)]
        pub(crate) static ALL: &[&ServerScript] = &[$(&$const),*];
    };
}

// Those that change the queue of a fair lock begin with `queue.lua`, and those that read the keys of read holds with
// `keys.lua`. A guarded write begins with the `look.lua` of its
// kind, as a function.
scripts! {
    ACQUIRE = "acquire";
    RELEASE = "release";
    PASS = "pass";
    RENEW = "renew";
    FORCE_UNLOCK = "force_unlock";
    INSPECT = "inspect";
    TOUCH = "touch";
    FENCED_ACQUIRE = "fenced/acquire";
    FENCED_PASS = "fenced/pass";
    FENCED_INSPECT = "fenced/inspect";
    STRING_ACQUIRE = "string/acquire";
    STRING_RELEASE = "string/release";
    STRING_PASS = "string/pass";
    STRING_RENEW = "string/renew";
    STRING_FORCE_UNLOCK = "string/force_unlock";
    STRING_INSPECT = "string/inspect";
    STRING_TOUCH = "string/touch";
    FAIR_INSPECT = "fair/inspect";
    FAIR_ACQUIRE = "fair/acquire" after lua!("fair/queue");
    FAIR_RELEASE = "fair/release" after lua!("fair/queue");
    FAIR_LEAVE = "fair/leave" after lua!("fair/queue");
    FAIR_FORCE_UNLOCK = "fair/force_unlock" after lua!("fair/queue");
    READ_ACQUIRE = "read_write/read_acquire" after lua!("read_write/keys");
    READ_RELEASE = "read_write/read_release" after lua!("read_write/keys");
    READ_RENEW = "read_write/read_renew" after lua!("read_write/keys");
    WRITE_ACQUIRE = "read_write/write_acquire";
    WRITE_RELEASE = "read_write/write_release";
    DOWNGRADE = "read_write/downgrade";
    RW_FORCE_UNLOCK = "read_write/force_unlock" after lua!("read_write/keys");
    RW_INSPECT = "read_write/inspect" after lua!("read_write/keys");
    TAKE_OVER = "acquire" after lua!("take_over");
    FENCED_TAKE_OVER = "fenced/acquire" after lua!("fenced/take_over");
    STRING_TAKE_OVER = "string/acquire" after lua!("string/take_over");
    FAIR_TAKE_OVER = "fair/acquire" after lua!("fair/queue"), lua!("fair/take_over");
    WRITE_TAKE_OVER = "read_write/write_acquire" after lua!("read_write/take_over");
    GUARDED = "guarded" after "local look = function() ", lua!("look"), "end\n";
    FENCED_GUARDED = "guarded" after "local look = function() ", lua!("fenced/look"), "end\n";
    STRING_GUARDED = "guarded" after "local look = function() ", lua!("string/look"), "end\n";
}

/// The scripts of a kind. Those for one purpose are called in the same way, so one function serves every kind:
/// the ARGV that some have in addition come last, and only a kind with tokens has the key of the token as its last
/// KEYS, and a token in place of the reply 1.
pub(super) struct Scripts {
    pub(super) acquire: &'static ServerScript,
    /// For a kind of which one owner alone holds a lock.
    pub(super) take_over: Option<&'static ServerScript>,
    pub(super) release: &'static ServerScript,
    pub(super) pass: &'static ServerScript,
    pub(super) renew: &'static ServerScript,
    pub(super) force_unlock: &'static ServerScript,
    /// Of one key, so that it also works while a slot migrates.
    pub(super) inspect: &'static ServerScript,
    /// Of two keys, for a kind that has a token.
    pub(super) inspect_with_token: Option<&'static ServerScript>,
    /// For a kind that has a queue.
    pub(super) inspect_queue: Option<&'static ServerScript>,
    pub(super) touch: &'static ServerScript,
    pub(super) guarded: &'static ServerScript,
}

static PLAIN: Scripts = Scripts {
    acquire: &ACQUIRE,
    take_over: Some(&TAKE_OVER),
    release: &RELEASE,
    pass: &PASS,
    renew: &RENEW,
    force_unlock: &FORCE_UNLOCK,
    inspect: &INSPECT,
    inspect_with_token: None,
    inspect_queue: None,
    touch: &TOUCH,
    guarded: &GUARDED,
};

static FENCED: Scripts = Scripts {
    acquire: &FENCED_ACQUIRE,
    take_over: Some(&FENCED_TAKE_OVER),
    pass: &FENCED_PASS,
    inspect_with_token: Some(&FENCED_INSPECT),
    guarded: &FENCED_GUARDED,
    ..PLAIN
};

static STRING: Scripts = Scripts {
    acquire: &STRING_ACQUIRE,
    take_over: Some(&STRING_TAKE_OVER),
    release: &STRING_RELEASE,
    pass: &STRING_PASS,
    renew: &STRING_RENEW,
    force_unlock: &STRING_FORCE_UNLOCK,
    inspect: &STRING_INSPECT,
    inspect_with_token: None,
    inspect_queue: None,
    touch: &STRING_TOUCH,
    guarded: &STRING_GUARDED,
};

/// It is never handed over: that would overtake the queue.
static FAIR: Scripts = Scripts {
    acquire: &FAIR_ACQUIRE,
    take_over: Some(&FAIR_TAKE_OVER),
    release: &FAIR_RELEASE,
    inspect_queue: Some(&FAIR_INSPECT),
    force_unlock: &FAIR_FORCE_UNLOCK,
    ..PLAIN
};

/// Neither part is handed over to another owner: others may read, or wait to read.
static READ: Scripts = Scripts {
    acquire: &READ_ACQUIRE,
    take_over: None,
    release: &READ_RELEASE,
    renew: &READ_RENEW,
    ..WRITE
};

static WRITE: Scripts = Scripts {
    acquire: &WRITE_ACQUIRE,
    take_over: Some(&WRITE_TAKE_OVER),
    release: &WRITE_RELEASE,
    // To the same owner, which reads.
    pass: &DOWNGRADE,
    force_unlock: &RW_FORCE_UNLOCK,
    inspect: &RW_INSPECT,
    ..PLAIN
};

impl Scripts {
    pub(super) fn of(kind: LockKind) -> &'static Self {
        match kind {
            LockKind::Plain | LockKind::Spin => &PLAIN,
            LockKind::Fenced => &FENCED,
            LockKind::String => &STRING,
            LockKind::Fair => &FAIR,
            LockKind::Read => &READ,
            LockKind::Write => &WRITE,
        }
    }
}

/// Every script that calls about a lock of this kind run.
#[cfg(test)]
pub(crate) fn of_kind(kind: LockKind) -> Vec<&'static ServerScript> {
    let Scripts {
        acquire,
        take_over,
        release,
        pass,
        renew,
        force_unlock,
        inspect,
        inspect_with_token,
        inspect_queue,
        touch,
        guarded,
    } = Scripts::of(kind);
    let always: [&'static ServerScript; 8] = [
        acquire,
        release,
        pass,
        renew,
        force_unlock,
        inspect,
        touch,
        guarded,
    ];
    let some = [*take_over, *inspect_with_token, *inspect_queue]
        .into_iter()
        .flatten();
    let leave = kind.has_queue().then_some(&FAIR_LEAVE);
    always.into_iter().chain(some).chain(leave).collect()
}
