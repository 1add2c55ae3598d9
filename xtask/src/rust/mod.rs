//! Reading Rust: enough of its grammar for lists of what is public and of who names whom.

pub mod items;
pub mod source;
pub mod tree;
