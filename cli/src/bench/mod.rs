//! `framewright bench`: measurements, as rows for people or for programs.
//!
//! `bring_up` times the library's bring-up; `alloc` and `fragment` put the manager beside allocators of others, all behind `subject`;
//! `hugepages` fills and empties pools; `jobs` puts parallel jobs beside other ways to run a loop; `reporting` watches free memory go back to the host.

mod alloc;
mod bring_up;
mod common;
mod fragment;
mod host;
mod hugepages;
mod init;
mod jobs;
mod page_set;
mod random;
mod reporting;
mod subject;

pub use common::{median, wrapped};
pub use reporting::{machine_process, resident_bytes};

use crate::args::Bench;
use crate::error::Error;

/// Runs one benchmark.
///
/// # Errors
/// A machine that this process cannot stand in for, or an allocator that did not do what it must.
pub fn run(bench: &Bench) -> Result<(), Error> {
    match bench {
        Bench::BringUp(options) => bring_up::run(options),
        Bench::Alloc(options) => alloc::run(options),
        Bench::Fragment(options) => fragment::run(options),
        Bench::Init(options) => init::run(options),
        Bench::Jobs(options) => jobs::run(options),
        Bench::Hugepages(options) => hugepages::run(options),
        Bench::Reporting(options) => reporting::run(options),
    }
}
