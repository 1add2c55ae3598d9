//! Helpers that all benchmarks share.

use framewright_cli::error::Error;
pub use framewright_cli::grid::{median, wrapped};
use framewright_hosted::Machine;

/// Why something could not be measured.
pub fn failed(why: impl ToString) -> Error {
    Error::Failed(why.to_string())
}

/// A synthetic machine.
///
/// # Errors
/// Fails if this process cannot emulate the machine.
pub fn synthetic(memory_bytes: u64, nodes: u32, cpus: u32) -> Result<Machine, Error> {
    Machine::synthetic(memory_bytes, nodes, cpus).map_err(failed)
}
