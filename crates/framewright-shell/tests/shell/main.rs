//! The command interpreter: commands, control files and workloads.

mod common;

mod commands;
mod moving;
mod workloads;
