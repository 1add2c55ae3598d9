//! Control files.

mod counters;
mod formats;
mod memory;
mod pools;
mod reporting;
mod writes;
