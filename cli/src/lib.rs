//! What the programs `framewright` and `framewright-bench` share: machines in this process and in
//! QEMU, output, files that are written whole or not at all, snapshots of memory and their pages.
//!
//! `framewright` itself is `main.rs` over [`boot`], [`shell`], [`top`], [`plug`] and [`report`].
//! `framewright-bench` uses the other modules and adds the allocators and thread pools that it
//! compares with. Users who only boot a machine need not build those.

pub mod args;
pub mod attach;
pub mod boot;
pub mod error;
pub mod file;
pub mod grid;
pub mod interrupt;
pub mod output;
pub mod page;
pub mod plug;
pub mod qemu;
pub mod report;
pub mod shell;
pub mod snapshot;
pub mod target;
mod terminal;
pub mod top;

pub use framewright_session as hosted;
