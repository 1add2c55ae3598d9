//! Control files.

mod counters;
mod extfrag;
mod formats;
mod grades;
mod memory;
mod moving;
mod pools;
mod reporting;
mod writes;
