//! The program at a terminal, under a shell with job control.
