//! What runs before there is a manager: the intake of firmware maps, and the allocator of early
//! boot.
#![cfg(not(any(loom, shuttle)))]

mod firmware;
mod memblock;
