//! Jobs of the manager. The code that runs a job is compiled once, for all helpers and all chunks.

use core::convert::Infallible;
use core::ops::Range;
use framewright_jobs::{Helpers, Job};

/// Runs a job whose chunks cannot fail. Returns how many threads took part.
#[inline(never)]
pub(super) fn run(
    job: &Job<'_>,
    helpers: &dyn Helpers,
    chunk: &(dyn Fn(Range<u64>) + Sync),
) -> u32 {
    let ended = job.run(helpers, |units, _| {
        chunk(units);
        Ok::<(), Infallible>(())
    });
    debug_assert!(ended.is_ok(), "a job that makes sense, and nothing fails");
    ended.map_or(1, |summary| summary.threads.max(1))
}
