//! The command interpreter: commands, control files and workloads.

mod common;
mod cpus;

mod cache;
mod areas;
mod commands;
mod moving;
mod registered;
mod workloads;
