//! Names in Redis: keys, channels, hash fields, and the owners behind them.

pub(crate) mod owner;
pub(crate) mod try_lock;
pub(crate) mod wire;
