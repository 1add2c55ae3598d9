//! The command interpreter: commands, control files and workloads.

mod common;
mod cpus;

mod areas;
mod cache;
mod commands;
mod moving;
mod registered;
mod workloads;
