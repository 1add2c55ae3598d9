//! From the root pointer to checked tables.

use super::{AcpiError, Fault, Signature};
use crate::PhysicalMemory;
use crate::bytes::{sum, u8_at, u32_at, u64_at};
use core::marker::PhantomData;
use framewright::units::PhysRange;

/// Longest table that is read as a whole. Longer ones (program code) are only stepped over.
pub const MAX_TABLE_BYTES: usize = 1 << 20;

const HEADER_BYTES: usize = 36;
const RSDP_BYTES: usize = 20;
const RSDP_2_BYTES: usize = 36;

/// A table whose length and checksum are right.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// Its name.
    pub signature: Signature,
    /// Its physical address.
    pub address: u64,
    /// All its bytes, the header included.
    pub bytes: &'a [u8],
}

impl<'a> Table<'a> {
    /// Reads and checks the table at `address`.
    fn read(memory: &impl PhysicalMemory<'a>, signature: Signature, address: u64) -> Result<Self, AcpiError> {
        let error = |offset, fault| AcpiError { table: signature, address, offset, fault };
        let header = memory.bytes(address, HEADER_BYTES).unwrap_or_default();
        let (Some(found), Some(length)) = (header.first_chunk(), u32_at(header, 4)) else {
            return Err(error(0, Fault::Unreadable { length: HEADER_BYTES }));
        };
        if Signature(*found) != signature {
            return Err(error(0, Fault::WrongSignature));
        }
        let length = length as usize;
        if !(HEADER_BYTES..=MAX_TABLE_BYTES).contains(&length) {
            let fault = Fault::WrongLength { length: length as u64, least: HEADER_BYTES, most: MAX_TABLE_BYTES };
            return Err(error(4, fault));
        }
        let bytes = memory.bytes(address, length).ok_or(error(0, Fault::Unreadable { length }))?;
        match sum(bytes) {
            0 => Ok(Self { signature, address, bytes }),
            sum => Err(error(9, Fault::WrongChecksum { sum })),
        }
    }

    /// Revision of the table's format.
    #[must_use]
    pub fn revision(&self) -> u8 {
        u8_at(self.bytes, 8).unwrap_or(0)
    }

    /// An error in this table.
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
        Err(self.error(4, Fault::WrongLength { length: length as u64, least, most: MAX_TABLE_BYTES }))
    }
}

/// All tables that the root table names.
#[derive(Debug)]
pub struct Tables<'a, M> {
    memory: M,
    rsdp: PhysRange,
    root: Table<'a>,
    address_bytes: usize,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a, M: PhysicalMemory<'a>> Tables<'a, M> {
    /// Checks the root pointer at `rsdp` and the root table.
    ///
    /// # Errors
    /// Whatever is wrong with one of the two.
    pub fn open(memory: M, rsdp: u64) -> Result<Self, AcpiError> {
        let error = |offset, fault| AcpiError { table: Signature::RSDP, address: rsdp, offset, fault };
        let unreadable = error(0, Fault::Unreadable { length: RSDP_BYTES });
        let first = memory.bytes(rsdp, RSDP_BYTES).ok_or(unreadable)?;
        if !first.starts_with(b"RSD PTR ") {
            return Err(error(0, Fault::WrongSignature));
        }
        // The first checksum covers what version 1 had, the second one everything.
        let check = |bytes: &[u8], offset| match sum(bytes) {
            0 => Ok(()),
            sum => Err(error(offset, Fault::WrongChecksum { sum })),
        };
        check(first, 8)?;
        let mut size = RSDP_BYTES;
        let mut wide_address = 0;
        if u8_at(first, 15).is_some_and(|revision| revision >= 2) {
            let second =
                memory.bytes(rsdp, RSDP_2_BYTES).ok_or(error(0, Fault::Unreadable { length: RSDP_2_BYTES }))?;
            size = u32_at(second, 20).ok_or(unreadable)? as usize;
            if !(RSDP_2_BYTES..=4096).contains(&size) {
                let fault = Fault::WrongLength { length: size as u64, least: RSDP_2_BYTES, most: 4096 };
                return Err(error(20, fault));
            }
            check(memory.bytes(rsdp, size).ok_or(error(0, Fault::Unreadable { length: size }))?, 32)?;
            wide_address = u64_at(second, 24).ok_or(unreadable)?;
        }
        let (root, address_bytes) = if wide_address == 0 {
            let address = u32_at(first, 16).ok_or(unreadable)?;
            (Table::read(&memory, Signature::RSDT, u64::from(address))?, 4)
        } else {
            (Table::read(&memory, Signature::XSDT, wide_address)?, 8)
        };
        let rsdp = PhysRange::with_size(rsdp, size as u64);
        Ok(Self { memory, rsdp, root, address_bytes, bytes: PhantomData })
    }

    /// The first table called `signature`, checked; `None` when the root table names none.
    ///
    /// # Errors
    /// The table is malformed, or the root table names an address that cannot be read.
    pub fn find(&self, signature: Signature) -> Result<Option<Table<'a>>, AcpiError> {
        for header in self.headers() {
            let (found, range) = header?;
            if found == signature {
                return Table::read(&self.memory, signature, range.start).map(Some);
            }
        }
        Ok(None)
    }

    /// Name and bytes of every table that the root table names. Only the headers are looked at; null addresses, which real firmware
    /// leaves for tables that it took away, are stepped over.
    pub fn headers(&self) -> impl Iterator<Item = Result<(Signature, PhysRange), AcpiError>> + '_ {
        let addresses = self.root.bytes[HEADER_BYTES..].chunks_exact(self.address_bytes).enumerate();
        addresses.filter_map(|(index, entry)| {
            let address = u64_at(entry, 0).or(u32_at(entry, 0).map(u64::from)).filter(|&address| address != 0)?;
            let header = self.memory.bytes(address, HEADER_BYTES).unwrap_or_default();
            let (Some(signature), Some(length)) = (header.first_chunk(), u32_at(header, 4)) else {
                let offset = HEADER_BYTES + index * self.address_bytes;
                return Some(Err(self.root.error(offset, Fault::Unreadable { length: HEADER_BYTES })));
            };
            Some(Ok((Signature(*signature), PhysRange::with_size(address, u64::from(length)))))
        })
    }

    /// Where the root pointer and the root table are.
    #[must_use]
    pub fn root_ranges(&self) -> [PhysRange; 2] {
        [self.rsdp, PhysRange::with_size(self.root.address, self.root.bytes.len() as u64)]
    }
}
