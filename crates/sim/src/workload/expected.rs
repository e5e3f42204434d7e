//! Which errors a caller may see, and within what time: each must have a cause in the program.

use std::time::Duration;

use super::program::{Fault, Program, ms};

/// Which errors a caller may see in this program.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) no_answer: bool,
    /// What is sent once has no answer when its slot moves meanwhile.
    pub(crate) no_answer_to_force: bool,
    pub(crate) denied: bool,
    /// A slot may be nobody's for longer than a command may take.
    pub(crate) not_served: bool,
    pub(crate) closed: bool,
    pub(crate) command_timeout: Duration,
}

impl Expected {
    pub(crate) fn in_program(program: &Program) -> Self {
        Self {
            no_answer: match program.cluster {
                true => program.may_be_not_served(),
                false => !program.is_healthy(),
            },
            no_answer_to_force: program.has(|fault| matches!(fault, Fault::Move { .. })),
            denied: program.has(|fault| matches!(fault, Fault::Deny { .. })),
            not_served: program.may_be_not_served(),
            closed: program
                .has(|fault| matches!(fault, Fault::Close { .. } | Fault::EndRuntime { .. })),
            command_timeout: ms(program.command_ms),
        }
    }
}
