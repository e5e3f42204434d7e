//! What is done in a schedule: programs, and who works them off.

mod actors;
mod expected;
mod faults;
mod java;
mod program;
mod roll;
mod roll_fair;
mod roll_read_write;
mod roll_several;
mod run;
mod shown;
mod shrink;
mod world;

pub use actors::limited;
pub use program::{
    ClientPlan, Fault, Generation, Inspect, JavaReads, JavaStep, KeysMoved, Program, Round,
    Several, Step, TaskPlan, Until, Verb, ms,
};
pub use run::{Outcome, connect, run, runtime};
pub use shrink::shrink;
pub use world::World;
