//! The simulated server: the data, the scripts, and the network in front of them. Hidden, and
//! outside of semantic versioning.
//!
//! A client connects over [`Access`]; an [`Observer`] sees every script that is executed. Each
//! connection is a pipe of commands and a pipe of answers, in order. Everything that happens is an
//! event at an instant of paused time; events of the same instant happen in an order that the seed
//! decides. When a connection is cut, its answers vanish and the commands that were not executed
//! yet become *late*: each may be executed at any later moment, or never, until somebody kills the
//! connection at the server.
//!
//! The public kit uses the same server without events (`direct.rs`): what is sent is executed
//! immediately, or waits for the server to be resumed, and nothing is late.

mod clients;
mod cluster;
mod command;
mod connection;
mod direct;
mod execute;
mod faults;
mod keyspace;
mod lua;
mod network;
mod resp;
mod rights;
mod server;
mod tracking;

pub use cluster::{Gossip, NODES, Promoted};
pub use connection::Access;
pub(crate) use keyspace::WATCHDOG_TIMEOUT_MS;
pub use keyspace::{Answer, Keyspace};
pub use lua::Interpreter;
pub use network::Latency;
pub use rights::Rights;
pub use server::{APPLIED_LATE_MS, Executed, Observer, Server};
