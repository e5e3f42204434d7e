//! A hold of this client that no owner knows of: from a delayed command on a connection that was replaced without a
//! fence, or the value of a string lock whose attempt was executed again after its reply.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::Face;

use crate::base::runtime::event;
use crate::error::Operation;
use crate::names::wire;
use crate::script;
use crate::state::entry::Entry;

/// Whether a busy lock is held by a field of this client that no owner holds or works with.
pub(super) fn is_stray_hold(entry: &Entry, holder: &str) -> bool {
    let shared = entry.shared();
    (entry.name.kind().has_value_per_hold() || entry.route().unfenced() > 0)
        && wire::is_field_of(&shared.client_id, holder)
        && {
            let (field, face) = parts(entry, holder);
            entry.peek(|core| core.owner_of(field, face).is_none())
        }
}

/// The field of an owner that holds the lock so, and its part.
fn parts<'a>(entry: &Entry, holder: &'a str) -> (&'a str, Face) {
    match entry.name.kind().has_faces() {
        true => wire::owner_in_lock(holder),
        false => (holder, Face::Only),
    }
}

/// Frees the lock from a field of this client that no owner holds.
pub(super) async fn release_stray_hold(entry: &Entry, holder: &str) {
    let shared = entry.shared();
    let (field, face) = parts(entry, holder);
    let (field, name): (Arc<str>, _) = (field.into(), entry.name.of_face(face));
    let call = || {
        let lease = Duration::from_millis(1);
        // Which call took a place under it is not known.
        let leaves = Some(shared.config.rules.fair_wait);
        let announce = shared.redis.announce();
        Some(script::release(name, &field, 0, lease, (leaves, announce)))
    };
    let released = script::call(entry.route(), Operation::Releasing, shared.retry(), call)
        .await
        .is_ok();
    let lock = entry.name.given();
    event!(
        INFO, %lock, owner = holder, released,
        "outcome reconciled: a late send of an earlier hold was released"
    );
}
