//! Operations that are interrupted between any two instructions, by signals that single-step
//! through them.
#![cfg(all(not(any(loom, shuttle)), target_arch = "x86_64"))]

#[path = "../common/mod.rs"]
mod common;

mod holds;
mod interrupts;
mod life;
mod lives;
