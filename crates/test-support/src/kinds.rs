//! What tests of all kinds of locks share.

use redisson_lock::LockKind;

use crate::scripts::{ACQUIRE, FORCE_UNLOCK, INSPECT, PASS, RELEASE, RENEW, TOUCH, is_script};
use crate::server::Control;

/// A test in `tests/kinds.rs` compares them with those of the library.
pub const KINDS: [LockKind; 7] = [
    LockKind::Plain,
    LockKind::Spin,
    LockKind::Fenced,
    LockKind::String,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Write,
];

/// Those that an owner may hold several times.
pub const NESTED: [LockKind; 6] = [
    LockKind::Plain,
    LockKind::Spin,
    LockKind::Fenced,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Write,
];

/// Those that a client hands from one caller to the next.
pub const HANDED_OVER: [LockKind; 4] = [
    LockKind::Plain,
    LockKind::Spin,
    LockKind::Fenced,
    LockKind::String,
];

/// The scripts of a kind.
#[derive(Clone, Copy)]
pub struct Scripts {
    pub acquire: &'static str,
    pub release: &'static str,
    pub pass: &'static str,
    pub renew: &'static str,
    pub force_unlock: &'static str,
    pub inspect: &'static str,
    pub touch: &'static str,
    pub look: &'static str,
}

const PLAIN: Scripts = Scripts {
    acquire: ACQUIRE,
    release: RELEASE,
    pass: PASS,
    renew: RENEW,
    force_unlock: FORCE_UNLOCK,
    inspect: INSPECT,
    touch: TOUCH,
    look: include_str!("../../../lua/look.lua"),
};

pub const FENCED: Scripts = Scripts {
    acquire: include_str!("../../../lua/fenced/acquire.lua"),
    pass: include_str!("../../../lua/fenced/pass.lua"),
    look: include_str!("../../../lua/fenced/look.lua"),
    ..PLAIN
};

pub const STRING: Scripts = Scripts {
    acquire: include_str!("../../../lua/string/acquire.lua"),
    release: include_str!("../../../lua/string/release.lua"),
    pass: include_str!("../../../lua/string/pass.lua"),
    renew: include_str!("../../../lua/string/renew.lua"),
    force_unlock: include_str!("../../../lua/string/force_unlock.lua"),
    inspect: include_str!("../../../lua/string/inspect.lua"),
    touch: include_str!("../../../lua/string/touch.lua"),
    look: include_str!("../../../lua/string/look.lua"),
};

/// It is never handed over.
pub const FAIR: Scripts = Scripts {
    acquire: concat!(
        include_str!("../../../lua/fair/queue.lua"),
        include_str!("../../../lua/fair/acquire.lua")
    ),
    release: concat!(
        include_str!("../../../lua/fair/queue.lua"),
        include_str!("../../../lua/fair/release.lua")
    ),
    force_unlock: concat!(
        include_str!("../../../lua/fair/queue.lua"),
        include_str!("../../../lua/fair/force_unlock.lua")
    ),
    ..PLAIN
};

/// Neither part is ever handed over.
pub const READ: Scripts = Scripts {
    acquire: concat!(
        include_str!("../../../lua/read_write/keys.lua"),
        include_str!("../../../lua/read_write/read_acquire.lua")
    ),
    release: concat!(
        include_str!("../../../lua/read_write/keys.lua"),
        include_str!("../../../lua/read_write/read_release.lua")
    ),
    renew: concat!(
        include_str!("../../../lua/read_write/keys.lua"),
        include_str!("../../../lua/read_write/read_renew.lua")
    ),
    ..WRITE
};

pub const WRITE: Scripts = Scripts {
    acquire: include_str!("../../../lua/read_write/write_acquire.lua"),
    release: include_str!("../../../lua/read_write/write_release.lua"),
    force_unlock: concat!(
        include_str!("../../../lua/read_write/keys.lua"),
        include_str!("../../../lua/read_write/force_unlock.lua")
    ),
    inspect: concat!(
        include_str!("../../../lua/read_write/keys.lua"),
        include_str!("../../../lua/read_write/inspect.lua")
    ),
    ..PLAIN
};

pub fn scripts(kind: LockKind) -> Scripts {
    match kind {
        LockKind::Plain | LockKind::Spin => PLAIN,
        LockKind::Fenced => FENCED,
        LockKind::String => STRING,
        LockKind::Fair => FAIR,
        LockKind::Read => READ,
        LockKind::Write => WRITE,
        _ => unreachable!("a kind without its scripts: {kind}"),
    }
}

/// The kind under which another owner does not get a lock of this kind: readers exclude writers.
pub const fn against(kind: LockKind) -> LockKind {
    match kind {
        LockKind::Read => LockKind::Write,
        kind => kind,
    }
}

/// Who has the lock in Redis: the field of a hash, or the value of a string.
pub fn holder(control: &mut Control, key: &str) -> Option<String> {
    match control.run(&["TYPE", key]).as_str() {
        "none" => None,
        "string" => Some(control.run(&["GET", key])),
        _ => {
            let fields = control.run(&["HKEYS", key]);
            let fields = fields.split(' ').filter(|field| *field != "mode");
            Some(fields.collect::<Vec<_>>().join(" "))
        }
    }
}

/// How often the lock is held: a string once.
pub fn count(control: &mut Control, key: &str) -> i64 {
    match control.run(&["TYPE", key]).as_str() {
        "none" => 0,
        "string" => 1,
        _ => match holder(control, key) {
            Some(field) => control.number(&["HGET", key, &field]),
            None => 0,
        },
    }
}

/// Deletes a lock, with the keys of its read holds.
pub fn delete(control: &mut Control, key: &str) {
    control.run(&["DEL", key]);
    let base = match key.contains('{') {
        true => key.to_owned(),
        false => format!("{{{key}}}"),
    };
    let reads = control.run(&["KEYS", &format!("{base}:*:rwlock_timeout:*")]);
    for read in reads.split(' ').filter(|key| !key.is_empty()) {
        control.run(&["DEL", read]);
    }
}

/// Another client takes the lock away.
pub fn rob(control: &mut Control, kind: LockKind, key: &str) {
    control.run(&["DEL", key]);
    match kind {
        LockKind::String => control.run(&["SET", key, "another", "PX", "30000"]),
        LockKind::Read | LockKind::Write => {
            control.run(&["HSET", key, "mode", "write", "another:1:write", "1"]);
            control.run(&["PEXPIRE", key, "30000"])
        }
        _ => {
            control.run(&["HSET", key, "another:1", "1"]);
            control.run(&["PEXPIRE", key, "30000"])
        }
    };
}

/// The key of a fenced lock's token.
pub fn token_key(key: &str) -> String {
    match key.contains('{') {
        true => format!("redisson_lock_token:{key}"),
        false => format!("redisson_lock_token:{{{key}}}"),
    }
}

/// Whether a key is that of a token, which has no expiry and is never deleted.
pub fn is_token(key: &str) -> bool {
    key.starts_with("redisson_lock_token:")
}

/// Every key of this server that is neither a token nor has an expiry.
pub fn endless(control: &mut Control) -> Vec<String> {
    let keys = control.run(&["KEYS", "*"]);
    let keys = keys.split(' ').filter(|key| !key.is_empty());
    let mut keys: Vec<String> = keys.map(str::to_owned).collect();
    keys.retain(|key| !is_token(key) && control.pttl(key) == -1);
    keys
}

/// Makes the scripts of all kinds known to a server, so that each call of one is one command.
pub fn load_scripts(control: &mut Control) {
    for kind in KINDS {
        let Scripts {
            acquire,
            release,
            pass,
            ..
        } = scripts(kind);
        for source in [acquire, release, pass] {
            control.run(&["SCRIPT", "LOAD", source]);
        }
    }
}

/// Matches the script with which this kind goes up to a count.
pub fn acquires(kind: LockKind, target: u32) -> impl Fn(&[String]) -> bool + Send + 'static {
    let source = scripts(kind).acquire;
    move |words| is_script(words, source) && has_target(words, target)
}

/// Matches the script with which this kind goes down to a count.
pub fn releases(kind: LockKind, target: u32) -> impl Fn(&[String]) -> bool + Send + 'static {
    let source = scripts(kind).release;
    move |words| is_script(words, source) && has_target(words, target)
}

/// Matches the script with which this kind hands the lock over.
pub fn passes(kind: LockKind) -> impl Fn(&[String]) -> bool + Send + 'static {
    let source = scripts(kind).pass;
    move |words| is_script(words, source)
}

/// The target is the second argument after the keys.
fn has_target(words: &[String], target: u32) -> bool {
    let keys: usize = words[2].parse().unwrap_or(1);
    words.get(keys + 4) == Some(&target.to_string())
}
