//! How values become the words of a call.

use std::sync::Arc;
use std::time::Duration;

use crate::kind::LockKind;
use crate::names::wire::{Announce, LockName};
use crate::redis::{Arg, Args};

pub(super) fn sharded(name: &LockName, announce: Announce) -> Option<(Arc<str>, Announce)> {
    (name.kind().announces() && announce.hears_sharded())
        .then(|| (Arc::clone(name.channel()), announce))
}

/// The arguments with the channel and the word for the way. Without the word a script uses classic channels, which is
/// all that there is outside of clusters.
pub(super) fn announced_by(name: &LockName, announce: Announce, mut args: Args) -> Args {
    match name.kind() {
        LockKind::Plain | LockKind::Fenced | LockKind::Fair | LockKind::Read | LockKind::Write => {
            args.push(text(name.channel()))
        }
        // Its scripts are those of plain locks, which take a channel.
        LockKind::Spin => {
            args.push(Arg::Fixed(""));
            return args;
        }
        LockKind::String => return args,
    }
    let way = match announce {
        // Other words come after it.
        Announce::Classic if name.kind().has_queue() || name.kind().has_faces() => "publish",
        Announce::Classic => return args,
        Announce::Sharded => "spublish",
        Announce::Both => "both",
        Announce::Auto => "auto",
    };
    args.push(Arg::Fixed(way));
    args
}

pub(super) fn text(value: &Arc<str>) -> Arg {
    Arg::Text(Arc::clone(value))
}

/// Rounded up, so that a lease on the wire is never shorter than requested.
pub(super) fn millis(duration: Duration) -> Arg {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    Arg::Number(i64::try_from(ms).unwrap_or(i64::MAX))
}

pub(super) fn duration(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
