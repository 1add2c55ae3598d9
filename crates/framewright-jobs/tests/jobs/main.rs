//! Jobs and the guarantees that callers rely on.
#![cfg(not(any(loom, shuttle)))]

mod common;

mod cover;
mod ends;
mod known_cost;
mod resources;
mod sharing;
mod slices;
mod small_jobs;
mod vectors;
