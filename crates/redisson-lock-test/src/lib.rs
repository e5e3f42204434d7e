//! A Redis inside the process, for tests of code that uses `redisson-lock`.
//!
//! It runs the very scripts that the client sends, under the time of the test's runtime, and has
//! its own network, which can be harmed.

#[doc(hidden)]
pub mod sim;
