//! The allocator of early boot.

mod cases;
mod growth;
mod large_maps;
mod platform;
mod properties;
