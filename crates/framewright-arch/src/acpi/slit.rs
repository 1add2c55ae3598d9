//! The distances between domains (SLIT): a square matrix in which 10 means local.

use super::error::{AcpiError, Fault};
use super::table::{MAX_TABLE_BYTES, Table};
use crate::bytes::u64_at;

const COUNT: usize = 36;
/// The offset in the table at which the distances begin.
pub(super) const FIRST_DISTANCE: usize = 44;

/// The matrix of distances.
#[derive(Clone, Copy, Debug)]
pub struct Slit<'a> {
    localities: usize,
    distances: &'a [u8],
}

impl<'a> Slit<'a> {
    /// Checks that the matrix is complete.
    ///
    /// # Errors
    /// The table is too short for the number of domains that it claims.
    pub fn new(table: Table<'a>) -> Result<Self, AcpiError> {
        table.at_least(FIRST_DISTANCE)?;
        let claimed = u64_at(table.bytes, COUNT).unwrap_or(0);
        let rest = &table.bytes[FIRST_DISTANCE..];
        let square = usize::try_from(claimed)
            .ok()
            .and_then(|count| Some((count, count.checked_mul(count)?)));
        match square.and_then(|(localities, square)| Some((localities, rest.get(..square)?))) {
            Some((localities, distances)) => Ok(Self { localities, distances }),
            None => {
                let least = square
                    .and_then(|(_, square)| square.checked_add(FIRST_DISTANCE))
                    .unwrap_or(usize::MAX);
                let length = table.bytes.len() as u64;
                Err(table.error(COUNT, Fault::WrongLength { length, least, most: MAX_TABLE_BYTES }))
            }
        }
    }

    /// The number of domains, which are numbered from 0.
    #[must_use]
    pub const fn localities(&self) -> usize {
        self.localities
    }

    /// The distance from one domain to another; `None` if one of them is not in the table.
    #[must_use]
    pub fn distance(&self, from: usize, to: usize) -> Option<u8> {
        if from >= self.localities || to >= self.localities {
            return None;
        }
        self.distances.get(from * self.localities + to).copied()
    }
}
