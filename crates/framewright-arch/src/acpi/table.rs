//! One table: a checked copy of its bytes.

use super::error::{AcpiError, Fault, Signature};
use crate::PhysicalMemory;
use crate::bytes::{sum, u8_at, u32_at};
use crate::physical::Storage;

/// The longest table that is read as a whole. Longer ones (program code) are skipped.
pub const MAX_TABLE_BYTES: usize = 1 << 20;

pub(super) const HEADER_BYTES: usize = 36;

pub(super) type Header = [u8; HEADER_BYTES];

/// A table whose length and checksum are correct.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// Its name.
    pub signature: Signature,
    /// Its physical address.
    pub address: u64,
    /// A copy of all its bytes, including the header.
    pub bytes: &'a [u8],
}

impl<'a> Table<'a> {
    /// Copies and checks the rest of the table at `address`, whose header has already been read.
    pub(super) fn read(
        memory: &impl PhysicalMemory,
        storage: &mut Storage<'a>,
        signature: Signature,
        address: u64,
        header: &Header,
    ) -> Result<Self, AcpiError> {
        let error = |offset, fault| AcpiError { table: signature, address, offset, fault };
        let length = u32_at(header, 4).map_or(0, |length| length as usize);
        if !(HEADER_BYTES..=MAX_TABLE_BYTES).contains(&length) {
            let fault = Fault::WrongLength {
                length: length as u64,
                least: HEADER_BYTES,
                most: MAX_TABLE_BYTES,
            };
            return Err(error(4, fault));
        }
        let left = storage.left();
        let bytes = storage.take(length).ok_or(error(0, Fault::NoRoom { length, left }))?;
        let (first, rest) = bytes.split_at_mut(HEADER_BYTES);
        first.copy_from_slice(header);
        let is_read = address
            .checked_add(HEADER_BYTES as u64)
            .is_some_and(|address| memory.copy(address, rest));
        if !is_read {
            return Err(error(0, Fault::Unreadable { length }));
        }
        match sum(bytes) {
            0 => Ok(Self { signature, address, bytes }),
            sum => Err(error(9, Fault::WrongChecksum { sum })),
        }
    }

    /// The revision of the table's format.
    #[must_use]
    pub fn revision(&self) -> u8 {
        u8_at(self.bytes, 8).unwrap_or(0)
    }

    /// Creates an error about this table.
    #[must_use]
    pub fn error(&self, offset: usize, fault: Fault) -> AcpiError {
        AcpiError { table: self.signature, address: self.address, offset, fault }
    }

    /// Fails unless the table has at least `least` bytes.
    pub(super) fn at_least(&self, least: usize) -> Result<(), AcpiError> {
        let length = self.bytes.len();
        if length >= least {
            return Ok(());
        }
        Err(self
            .error(4, Fault::WrongLength { length: length as u64, least, most: MAX_TABLE_BYTES }))
    }
}
