//! Subscriptions: who listens to which channel, and the connections that bring their messages.

pub(super) mod shards;
pub(super) mod subscriber;
pub(crate) mod wait;
