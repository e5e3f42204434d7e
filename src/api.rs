//! The client, its builder, and the locks that combine several.

pub(crate) mod any_lock;
pub(crate) mod builder;
pub(crate) mod client;
pub(crate) mod find;
#[cfg(feature = "macros")]
pub(crate) mod locked;
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod macro_support;
pub(crate) mod multi;
pub(crate) mod red;
#[cfg(feature = "redisson-config")]
pub(crate) mod redisson_config;
pub(crate) mod scope;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod test_util;
