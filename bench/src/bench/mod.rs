//! Measurements, as rows for people or for programs.
//!
//! `all` runs the others, each in a process of its own, and keeps their results; each of them makes
//! a `section`, and all sections are shown in one way. `bring_up` times the library's bring-up;
//! `alloc`, `traffic` and `fragment` compare the manager with other allocators, all behind
//! `subject`; `contig` moves memory and compares this with a plain copy; `longest` looks for the
//! longest call, on a machine that is `watched`; `hugepages` fills and empties pools; `jobs`
//! compares parallel jobs with other ways to run a loop; `reporting` watches free memory go back to
//! the host; `scaling` makes the tables of times by threads that its sources published; `simulate`
//! says what more CPUs would do than this host has.
//!
//! # Adding a benchmark
//!
//! 1. Write it in a file of its own here. It makes a `Section`: rows (`rows`), repetitions, and the
//!    sentence that says what is timed.
//! 2. Add its command to `args`, and the benchmark with its tables, figures and limits (`targets`)
//!    to `registry`. The report then draws it and says met or missed.
//! 3. Say in `docs/performance.md` what the limit is, why, and what was measured on which machine,
//!    with the command. When the numbers are replaced later, the old ones move to `docs/log`.

mod all;
pub mod alloc;
pub mod bring_up;
pub mod common;
pub mod contig;
pub mod fragment;
pub mod host;
pub mod hotplug;
pub mod hugepages;
pub mod init;
pub mod jobs;
pub mod longest;
mod page_set;
mod random;
pub mod reporting;
pub mod scaling;
pub mod section;
pub mod simulate;
mod statistics;
mod subject;
pub mod traffic;
mod watched;

pub use common::wrapped;

use crate::args::{Bench, BenchBringUp, BenchInit, BenchOn, BenchReporting};
use crate::{model, progress, registry};
use framewright_cli::args::Where;
use framewright_cli::error::Error;

/// Runs one benchmark.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or an allocator did not do its task.
pub fn run(bench: &Bench) -> Result<(), Error> {
    if !matches!(bench, Bench::All(_)) {
        progress::begin(0);
    }
    let (section, json) = match bench {
        Bench::All(options) => return all::run(options),
        Bench::BringUp(BenchBringUp { first_touch_of: Some(index), .. }) => {
            return bring_up::first_touch_of(*index);
        }
        Bench::BringUp(options) => (bring_up::section(options.quick)?, options.json),
        Bench::Alloc(options) => (alloc::section(options.quick)?, options.json),
        Bench::Longest(options) => (longest::section(options.quick)?, options.json),
        Bench::Fragment(options) => (fragment::section(options.quick)?, options.json),
        Bench::Contig(options) => (contig::section(options.quick)?, options.json),
        Bench::Hotplug(options) => (hotplug::section(options.quick)?, options.json),
        Bench::Traffic(options) => (traffic::section(options.quick)?, options.json),
        Bench::Init(BenchInit { table: true, common }) => {
            (scaling::section(Where::Hosted, common.quick)?, common.json)
        }
        Bench::Init(options) => (init::section(options.common.quick)?, options.common.json),
        Bench::Jobs(options) => (jobs::section(options.quick)?, options.json),
        Bench::Hugepages(BenchOn { on, common }) => {
            (hugepages::section(*on, common.quick)?, common.json)
        }
        Bench::Reporting(BenchReporting { on, common }) => {
            (reporting::section(*on, common.quick)?, common.json)
        }
        Bench::Scaling(BenchOn { on, common }) => {
            (scaling::section(*on, common.quick)?, common.json)
        }
        Bench::Simulate(options) => (simulate::section(options.quick)?, options.json),
        Bench::CheckModel(options) => (model::check(options.quick)?, options.json),
    };
    section.print(json, registry::tables(&section.bench))
}
