//! Finds the tables from the root pointer on and makes checked copies of them.

use super::domains::{Domains, MAX_CPUS};
use super::error::{AcpiError, Fault, Signature};
use super::srat::{Affinity, affinities};
use super::table::{HEADER_BYTES, Header, Table};
use crate::PhysicalMemory;
use crate::bytes::{sum, u8_at, u32_at, u64_at};
use crate::physical::Storage;
use framewright::units::PhysRange;

const RSDP_BYTES: usize = 20;
const RSDP_2_BYTES: usize = 36;
/// The tables that are copied: all those that this crate reads.
const COPIED: [Signature; 5] =
    [Signature::MADT, Signature::SRAT, Signature::SLIT, Signature::HPET, Signature::FADT];

/// What is kept of each entry of the root table: name, length (all ones if the header cannot be
/// read), address.
const RECORD_BYTES: usize = 20;
const RECORD_LENGTH: usize = 4;
const RECORD_ADDRESS: usize = 12;
const UNREADABLE: u64 = u64::MAX;

/// Copies of the tables that this crate reads (MADT, SRAT, SLIT, HPET, FADT), and the addresses of
/// all tables that the root table names. Each byte of firmware's memory is read only once, so what
/// was checked is what is used.
#[derive(Debug)]
pub struct Tables<'a> {
    rsdp: PhysRange,
    root: Table<'a>,
    /// One record for each entry of the root table.
    records: &'a [[u8; RECORD_BYTES]],
    /// The first table of each name, in the order of [`COPIED`].
    copies: [Option<Result<Table<'a>, AcpiError>>; COPIED.len()],
    domains: Domains<'a>,
}

impl<'a> Tables<'a> {
    /// Enough storage for the tables of about 4000 CPUs.
    pub const USUAL_STORAGE_BYTES: usize = 256 << 10;

    /// Copies the root pointer, the root table and the tables into `storage`, and checks them. In
    /// addition to the tables, this takes 20 bytes for each table that the root table names and 12
    /// bytes for each CPU that the SRAT names.
    ///
    /// # Errors
    /// The root pointer or the root table is malformed, or `storage` is too small for the root
    /// table. An error in another table is reported by [`find`](Self::find).
    pub fn open(
        memory: &impl PhysicalMemory,
        rsdp: u64,
        storage: &'a mut [u8],
    ) -> Result<Self, AcpiError> {
        let mut storage = Storage::new(storage);
        let (rsdp, signature, address) = read_root_pointer(memory, &mut storage, rsdp)?;
        let error = |fault| AcpiError { table: signature, address, offset: 0, fault };
        let header = read_header(memory, address)
            .ok_or(error(Fault::Unreadable { length: HEADER_BYTES }))?;
        if !header.starts_with(&signature.0) {
            return Err(error(Fault::WrongSignature));
        }
        let root = Table::read(memory, &mut storage, signature, address, &header)?;
        let address_bytes = if signature == Signature::XSDT { 8 } else { 4 };
        let entries = root.bytes[HEADER_BYTES..].chunks_exact(address_bytes);
        let (length, left) = (entries.len() * RECORD_BYTES, storage.left());
        let records = storage.take(length).ok_or(error(Fault::NoRoom { length, left }))?;
        let (records, _) = records.as_chunks_mut::<RECORD_BYTES>();
        let mut copies = [None; COPIED.len()];
        for (index, (entry, record)) in entries.zip(records.iter_mut()).enumerate() {
            let address = u64_at(entry, 0).or(u32_at(entry, 0).map(u64::from)).unwrap_or(0);
            let header =
                if address == 0 { Some([0; HEADER_BYTES]) } else { read_header(memory, address) };
            let name = header.map_or([0; 4], |header| [header[0], header[1], header[2], header[3]]);
            let length =
                header.map_or(UNREADABLE, |header| u64::from(u32_at(&header, 4).unwrap_or(0)));
            record[..RECORD_LENGTH].copy_from_slice(&name);
            record[RECORD_LENGTH..RECORD_ADDRESS].copy_from_slice(&length.to_le_bytes());
            record[RECORD_ADDRESS..].copy_from_slice(&address.to_le_bytes());
            for (copy, signature) in
                copies.iter_mut().zip(COPIED).filter(|(copy, _)| copy.is_none())
            {
                match &header {
                    // An unreadable entry might have been any table, so tables found after it are
                    // not used.
                    None => *copy = Some(Err(unreadable(root, index, address_bytes))),
                    Some(header) if address != 0 && name == signature.0 => {
                        *copy = Some(Table::read(memory, &mut storage, signature, address, header));
                    }
                    Some(_) => {}
                }
            }
        }
        let mut tables = Self { rsdp, root, records, copies, domains: Domains::default() };
        tables.sort_domains(&mut storage);
        Ok(tables)
    }

    fn sort_domains(&mut self, storage: &mut Storage<'a>) {
        let Ok(Some(srat)) = self.find(Signature::SRAT) else { return };
        let Ok(affinities) = affinities(srat) else { return };
        let cpus = affinities.flatten().filter_map(|(_, affinity)| match affinity {
            Affinity::Cpu { apic_id, domain } => Some((apic_id, domain)),
            Affinity::Memory { .. } => None,
        });
        let left = storage.left();
        match Domains::sort(cpus.take(MAX_CPUS), storage) {
            Ok(domains) => self.domains = domains,
            Err(length) => {
                let refused = Err(srat.error(0, Fault::NoRoom { length, left }));
                for (copy, _) in
                    self.copies.iter_mut().zip(COPIED).filter(|(_, name)| *name == Signature::SRAT)
                {
                    *copy = Some(refused);
                }
            }
        }
    }

    /// The first table called `signature`, checked; `None` if the root table names none, or if this
    /// crate does not copy such tables.
    ///
    /// # Errors
    /// The table is malformed, there was no room for it, or the root table names an unreadable
    /// address before it.
    pub fn find(&self, signature: Signature) -> Result<Option<Table<'a>>, AcpiError> {
        let copy = self.copies.iter().zip(COPIED).find(|(_, name)| *name == signature);
        copy.and_then(|(copy, _)| *copy).transpose()
    }

    /// Name and byte range of every table that the root table names. Only the headers were read.
    /// Null addresses, which real firmware leaves for tables that it has removed, are skipped.
    pub fn headers(&self) -> impl Iterator<Item = Result<(Signature, PhysRange), AcpiError>> + '_ {
        let address_bytes = if self.root.signature == Signature::XSDT { 8 } else { 4 };
        self.records.iter().enumerate().filter_map(move |(index, record)| {
            let (length, address) =
                (u64_at(record, RECORD_LENGTH)?, u64_at(record, RECORD_ADDRESS)?);
            if address == 0 {
                return None;
            }
            if length == UNREADABLE {
                return Some(Err(unreadable(self.root, index, address_bytes)));
            }
            Some(Ok((Signature(*record.first_chunk()?), PhysRange::with_size(address, length))))
        })
    }

    /// Where the root pointer and the root table are.
    #[must_use]
    pub fn root_ranges(&self) -> [PhysRange; 2] {
        [self.rsdp, PhysRange::with_size(self.root.address, self.root.bytes.len() as u64)]
    }

    /// The domains of the SRAT's CPUs.
    pub(super) fn domains(&self) -> Domains<'a> {
        self.domains
    }
}

/// The error that entry `index` of the root table has an unreadable address.
fn unreadable(root: Table<'_>, index: usize, address_bytes: usize) -> AcpiError {
    root.error(HEADER_BYTES + index * address_bytes, Fault::Unreadable { length: HEADER_BYTES })
}

fn read_header(memory: &impl PhysicalMemory, address: u64) -> Option<Header> {
    let mut header = [0; HEADER_BYTES];
    memory.copy(address, &mut header).then_some(header)
}

/// Checks the root pointer: returns its own range, and the name and address of the root table.
fn read_root_pointer(
    memory: &impl PhysicalMemory,
    storage: &mut Storage<'_>,
    rsdp: u64,
) -> Result<(PhysRange, Signature, u64), AcpiError> {
    let error = |offset, fault| AcpiError { table: Signature::RSDP, address: rsdp, offset, fault };
    let unreadable = |length| error(0, Fault::Unreadable { length });
    // Each part is read once, and only as far as the previous part says.
    let read = |offset: usize, to: &mut [u8]| {
        rsdp.checked_add(offset as u64).is_some_and(|address| memory.copy(address, to))
    };
    let mut pointer = [0; RSDP_2_BYTES];
    let (first, second) = pointer.split_at_mut(RSDP_BYTES);
    if !read(0, first) {
        return Err(unreadable(RSDP_BYTES));
    }
    if !first.starts_with(b"RSD PTR ") {
        return Err(error(0, Fault::WrongSignature));
    }
    // The first checksum covers the part that version 1 has, and the second one covers everything.
    let check = |sum, offset| {
        if sum == 0 { Ok(()) } else { Err(error(offset, Fault::WrongChecksum { sum })) }
    };
    check(sum(first), 8)?;
    let mut size = RSDP_BYTES;
    let mut wide_address = 0;
    if u8_at(first, 15).is_some_and(|revision| revision >= 2) {
        if !read(RSDP_BYTES, second) {
            return Err(unreadable(RSDP_2_BYTES));
        }
        size = u32_at(&pointer, 20).map_or(0, |size| size as usize);
        if !(RSDP_2_BYTES..=4096).contains(&size) {
            let fault = Fault::WrongLength { length: size as u64, least: RSDP_2_BYTES, most: 4096 };
            return Err(error(20, fault));
        }
        let (length, left) = (size - RSDP_2_BYTES, storage.left());
        let rest = storage.take(length).ok_or(error(0, Fault::NoRoom { length, left }))?;
        if !rest.is_empty() && !read(RSDP_2_BYTES, rest) {
            return Err(unreadable(size));
        }
        check(sum(&pointer).wrapping_add(sum(rest)), 32)?;
        wide_address = u64_at(&pointer, 24).unwrap_or(0);
    }
    let range = PhysRange::with_size(rsdp, size as u64);
    Ok(match wide_address {
        0 => (range, Signature::RSDT, u32_at(&pointer, 16).map_or(0, u64::from)),
        address => (range, Signature::XSDT, address),
    })
}
