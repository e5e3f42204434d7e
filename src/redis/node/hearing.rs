//! Whether the connections to a server carry channels beside scripts.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::base::runtime::event;

/// What the connections to one server tell each other.
#[derive(Default)]
pub(in crate::redis) struct Hearing {
    is_apart: AtomicBool,
    /// One of them leads to a server that accepts no writes: those that only listen would not find out.
    pub(super) moved: Notify,
}

impl Hearing {
    /// Whether channels have a connection of their own.
    pub(in crate::redis) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::Relaxed)
    }

    /// From now on channels have a connection of their own: a proxy may pass scripts on, and close each connection that
    /// subscribes.
    pub(super) fn set_apart(&self, server: &str) {
        if !self.is_apart.swap(true, Ordering::Relaxed) {
            event!(
                WARN,
                server,
                "connections end when channels are subscribed to: channels get a connection of their own"
            );
        }
    }
}

/// What a connection has had of channels.
#[derive(Default)]
pub(in crate::redis) struct ChannelRecord {
    has_asked: AtomicBool,
    has_answered: AtomicBool,
}

impl ChannelRecord {
    pub(super) fn note_asked(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    pub(in crate::redis) fn note_answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Whether the server has confirmed a channel, or refused one.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Whether channels were asked for, and the server has said nothing to that.
    pub(super) fn is_in_vain(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed) && !self.has_answered()
    }
}
