//! Measurements, as rows for people or for programs.
//!
//! `all` runs the others, each in a process of its own, and keeps what they find; every one of them
//! makes a `section`, which is shown in one way. `bring_up` times the library's bring-up; `alloc`,
//! `traffic` and `fragment` put the manager beside allocators of others, all behind `subject`;
//! `hugepages` fills and empties pools; `jobs` puts parallel jobs beside other ways to run a loop;
//! `reporting` watches free memory go back to the host; `scaling` has the sources' tables of times
//! by threads.

mod all;
pub mod alloc;
pub mod bring_up;
pub mod common;
pub mod fragment;
pub mod host;
pub mod hugepages;
pub mod init;
pub mod jobs;
mod page_set;
mod random;
pub mod reporting;
pub mod scaling;
pub mod section;
mod statistics;
mod subject;
pub mod traffic;

pub use common::wrapped;

use crate::args::{Bench, BenchInit, BenchOn};
use crate::{model, progress};
use framewright_cli::args::Where;
use framewright_cli::error::Error;

/// Runs one benchmark.
///
/// # Errors
/// A machine that this process cannot stand in for, or an allocator that did not do what it must.
pub fn run(bench: &Bench) -> Result<(), Error> {
    if !matches!(bench, Bench::All(_)) {
        progress::begin(0);
    }
    match bench {
        Bench::All(options) => all::run(options),
        Bench::BringUp(options) => bring_up::run(options),
        Bench::Alloc(options) => alloc::run(options),
        Bench::Fragment(options) => fragment::run(options),
        Bench::Traffic(options) => traffic::run(options),
        Bench::Init(BenchInit { table: true, quick, json }) => {
            scaling::run(&BenchOn { on: Where::Hosted, quick: *quick, json: *json })
        }
        Bench::Init(options) => init::run(options),
        Bench::Jobs(options) => jobs::run(options),
        Bench::Hugepages(options) => hugepages::run(options),
        Bench::Reporting(options) => reporting::run(options),
        Bench::Scaling(options) => scaling::run(options),
        Bench::CheckModel(options) => model::check(options),
    }
}
