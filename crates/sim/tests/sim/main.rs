//! The simulator's tests: schedules, the traces that once went wrong, every future polled and
//! dropped, and the simulated server against a real one.

#[macro_use]
extern crate test_support;

mod cancellation;
mod crosscheck;
mod endings;
mod fixture;
mod neighbours;
mod owners;
mod passes;
mod regressions;
mod releases;
mod schedules;
mod traces;
mod wakeups;
