//! Channels: who listens to which one, where it is subscribed to, and what was heard.
//!
//! Plain data. `topology/listening.rs` subscribes, over the connections that carry the scripts of the locks.

mod due;
mod registry;
mod signal;
mod subscription;

pub(crate) use registry::Channels;
pub(super) use registry::{ChannelPart, ChannelRequest, ChannelRoute, LaneId};
pub(crate) use signal::ChannelObserver;
pub(crate) use subscription::{Subscription, UNCONFIRMED};

#[cfg(test)]
mod tests;
