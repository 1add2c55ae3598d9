//! Control files.

mod counters;
mod extfrag;
mod formats;
mod memory;
mod pools;
mod reporting;
mod writes;
