//! The documents as documentation of modules, so that `cargo test` compiles and runs their
//! snippets. There is no code in it.

#[doc = include_str!("porting.md")]
pub mod porting {}
