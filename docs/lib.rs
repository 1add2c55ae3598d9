//! The documents as documentation of modules, so that `cargo test` compiles and runs their
//! snippets, and the longer examples that they link to.

#![no_std]

#[doc = include_str!("porting.md")]
pub mod porting {
    pub mod balloon;
    pub mod boot_log;
    pub mod jobs;
    pub mod pools;
    pub mod references;
    pub mod shell;
    pub mod smp;
    pub mod stress;
    pub mod vmemmap;
}
