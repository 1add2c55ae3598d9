//! Tables that are lists of entries, where each entry has a kind and a length.

use super::error::{AcpiError, Fault};
use super::table::Table;
use crate::bytes::{u32_at, u64_at};

/// One entry of a table.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The table that contains the entry.
    pub table: Table<'a>,
    /// The offset of its first byte in the table.
    pub offset: usize,
    /// Its kind.
    pub kind: u8,
    /// All its bytes, including kind and length.
    pub bytes: &'a [u8],
}

impl Entry<'_> {
    /// Fails unless the entry has at least `least` bytes.
    pub(super) fn at_least(&self, least: usize) -> Result<(), AcpiError> {
        if self.bytes.len() >= least {
            return Ok(());
        }
        let left = self.table.bytes.len() - self.offset;
        let fault =
            Fault::WrongEntryLength { kind: self.kind, length: self.bytes.len(), least, left };
        Err(self.table.error(self.offset, fault))
    }

    /// The byte at `offset`; 0 beyond the end, which [`at_least`](Self::at_least) rules out.
    pub(super) fn u8(&self, offset: usize) -> u8 {
        self.bytes.get(offset).copied().unwrap_or(0)
    }

    /// The 32 bits at `offset`; 0 beyond the end.
    pub(super) fn u32(&self, offset: usize) -> u32 {
        u32_at(self.bytes, offset).unwrap_or(0)
    }

    /// The 64 bits at `offset`; 0 beyond the end.
    pub(super) fn u64(&self, offset: usize) -> u64 {
        u64_at(self.bytes, offset).unwrap_or(0)
    }
}

/// The entries of a table. Iteration ends after the first error, because nothing after a wrong
/// length can be trusted.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    table: Table<'a>,
    offset: usize,
}

impl<'a> Entries<'a> {
    /// The entries of `table`, which begin at byte `first`.
    ///
    /// # Errors
    /// The table ends before `first`.
    pub fn new(table: Table<'a>, first: usize) -> Result<Self, AcpiError> {
        table.at_least(first)?;
        Ok(Self { table, offset: first })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, AcpiError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let rest = self.table.bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let (kind, length) = (rest[0], rest.get(1).map_or(0, |&length| usize::from(length)));
        // With a length below two the iteration might never advance.
        match rest.get(..length).filter(|_| length >= 2) {
            Some(bytes) => {
                self.offset = offset + length;
                Some(Ok(Entry { table: self.table, offset, kind, bytes }))
            }
            None => {
                self.offset = self.table.bytes.len();
                let fault = Fault::WrongEntryLength { kind, length, least: 2, left: rest.len() };
                Some(Err(self.table.error(offset, fault)))
            }
        }
    }
}
