//! Reads Rust: enough of its grammar for lists of public items and of names that files use.

pub mod items;
pub mod source;
pub mod tree;
