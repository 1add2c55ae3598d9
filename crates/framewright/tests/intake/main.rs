//! What comes before there is a manager: firmware's maps and the allocator of early boot.
#![cfg(not(any(loom, shuttle)))]

mod firmware;
mod memblock;
