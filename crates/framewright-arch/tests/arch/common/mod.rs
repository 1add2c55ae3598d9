//! A machine's firmware built by hand: bytes at addresses, and ACPI tables with correct lengths and
//! checksums.
#![allow(dead_code, reason = "every test program uses its own part")]

pub mod table_memory;

use framewright_arch::PhysicalMemory;
use std::collections::BTreeMap;

/// The address of the root pointer.
pub const RSDP: u64 = 0xf_5000;
/// The address of the first table; each further table lies 1 MiB higher.
const FIRST_TABLE: u64 = 0x7ff0_0000;

/// Bytes at addresses. A read must not cross the end of a piece.
#[derive(Clone, Default, Debug)]
pub struct Memory {
    pub pieces: BTreeMap<u64, Vec<u8>>,
}

impl Memory {
    fn bytes(&self, address: u64, length: usize) -> Option<&[u8]> {
        let (start, piece) = self.pieces.range(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        piece.get(offset..)?.get(..length)
    }
}

impl PhysicalMemory for Memory {
    fn copy(&self, address: u64, to: &mut [u8]) -> bool {
        self.bytes(address, to.len()).map(|bytes| to.copy_from_slice(bytes)).is_some()
    }
}

/// Returns a buffer large enough for copies of all the tests' tables.
pub fn room() -> Vec<u8> {
    vec![0; 1 << 20]
}

/// Makes the bytes sum to zero by setting the one at `at`.
pub fn fix_checksum(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    let sum = bytes.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
    bytes[at] = 0u8.wrapping_sub(sum);
}

/// Builds a table with a header, `revision` and `body`.
pub fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = signature.to_vec();
    bytes.extend(u32::try_from(36 + body.len()).expect("small").to_le_bytes());
    bytes.extend([revision, 0]);
    bytes.extend(b"HANDMATESTTABL\0\0\0\x01HAND\x01\0");
    bytes.resize(36, 0);
    bytes.extend(body);
    fix_checksum(&mut bytes, 9);
    bytes
}

/// How the root table is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Root {
    /// Version 1, 32-bit addresses.
    Rsdt,
    /// Version 2, 64-bit addresses.
    Xsdt,
}

/// Builds firmware with these tables.
pub fn firmware(root: Root, tables: &[Vec<u8>]) -> Memory {
    let mut memory = Memory::default();
    let mut addresses = Vec::new();
    let mut next = FIRST_TABLE;
    for bytes in tables {
        addresses.push(next);
        memory.pieces.insert(next, bytes.clone());
        next += 0x10_0000;
    }
    let mut rsdp = b"RSD PTR \0HANDMA".to_vec();
    let narrow = |address: u64| u32::try_from(address).expect("below 4 GiB").to_le_bytes();
    match root {
        Root::Rsdt => {
            let body: Vec<u8> = addresses.iter().flat_map(|&address| narrow(address)).collect();
            memory.pieces.insert(next, table(b"RSDT", 1, &body));
            rsdp.push(0);
            rsdp.extend(narrow(next));
            fix_checksum(&mut rsdp, 8);
        }
        Root::Xsdt => {
            let body: Vec<u8> =
                addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
            memory.pieces.insert(next, table(b"XSDT", 1, &body));
            rsdp.push(2);
            rsdp.extend(narrow(0));
            fix_checksum(&mut rsdp, 8);
            rsdp.extend(36u32.to_le_bytes());
            rsdp.extend(next.to_le_bytes());
            rsdp.extend([0; 4]);
            fix_checksum(&mut rsdp, 32);
        }
    }
    memory.pieces.insert(RSDP, rsdp);
    memory
}

/// Builds a MADT with these entries.
pub fn madt(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = [0xfee0_0000u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    body.extend(entries.concat());
    table(b"APIC", 3, &body)
}

/// MADT entry: a local APIC.
pub fn local_apic(apic_id: u8, flags: u32) -> Vec<u8> {
    [&[0, 8, apic_id, apic_id][..], &flags.to_le_bytes()].concat()
}

/// MADT entry: a local x2APIC.
pub fn local_x2apic(apic_id: u32, flags: u32) -> Vec<u8> {
    [&[9, 16, 0, 0][..], &apic_id.to_le_bytes(), &flags.to_le_bytes(), &apic_id.to_le_bytes()]
        .concat()
}

/// MADT entry of a kind that the parser ignores.
pub fn io_apic() -> Vec<u8> {
    vec![1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]
}

/// Builds a SRAT of this revision with these entries.
pub fn srat(revision: u8, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(entries.concat());
    table(b"SRAT", revision, &body)
}

/// SRAT entry: a CPU by its 8-bit identifier.
pub fn cpu_affinity(apic_id: u8, domain: u32, flags: u32) -> Vec<u8> {
    let [low, high @ ..] = domain.to_le_bytes();
    [&[0, 16, low, apic_id][..], &flags.to_le_bytes(), &[0], &high, &[0; 4]].concat()
}

/// SRAT entry: a CPU by its 32-bit identifier.
pub fn x2apic_affinity(apic_id: u32, domain: u32, flags: u32) -> Vec<u8> {
    let numbers = [domain, apic_id, flags, 0, 0];
    [vec![2, 24, 0, 0], numbers.iter().flat_map(|number| number.to_le_bytes()).collect()].concat()
}

/// SRAT entry: memory.
pub fn memory_affinity(start: u64, size_bytes: u64, domain: u32, flags: u32) -> Vec<u8> {
    let mut bytes = vec![1, 40];
    bytes.extend(domain.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(start.to_le_bytes());
    bytes.extend(size_bytes.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(flags.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// Builds a SLIT of these rows.
pub fn slit(rows: &[&[u8]]) -> Vec<u8> {
    table(b"SLIT", 1, &[&(rows.len() as u64).to_le_bytes()[..], &rows.concat()].concat())
}
