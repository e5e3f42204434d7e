//! The simulator: the whole client against a simulated server, under paused time, every schedule by
//! its seed.
//!
//! [`workload`] is what is done: programs, rolled from a seed, and who works them off. [`oracle`]
//! judges it. Everything above one connection, the replacement of connections and the fence
//! included, is the code that ships, and the server runs the scripts that the client sends.

// The futures of the actors are deep.
#![recursion_limit = "256"]
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    reason = "only the tests of this crate use it, and a panic is how a test fails"
)]

pub mod oracle;
pub mod workload;
