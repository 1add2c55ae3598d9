//! What surrounds the manager: bring-up on whole machines, control files, the boot log, and
//! adapters for other crates' interfaces.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod bootlog;
mod bring_up;
mod neighbours;
mod procfs;
