//! The program as its users see it: arguments, signals, exit codes, texts, and what is left in
//! Redis. Every test has a server of its own.
#![cfg(unix)]

#[macro_use]
extern crate test_support;

mod fixture;
mod inspecting;
mod losses;
mod output;
mod runs;
mod signals;
#[cfg(target_os = "linux")]
mod terminals;
mod watching;
