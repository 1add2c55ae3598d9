//! The test kit itself.

mod machine;
mod models;
mod traffic;
mod vmemmap_space;
