//! Follows page tables as the CPU does, for one address or for all.

use super::builder::TableMemory;
use crate::x86_64::entry::{Access, Entry, PageSize, index_of};

const ROOT_LEVEL: u32 = 4;
const ENTRIES: usize = 512;
/// What the entries above a page allow if none of them forbids anything. Only the page's own entry
/// says whether it is global.
const ANYTHING: Access = Access { write: true, execute: true, global: true, device: false };

/// Translates `address` through the tables at `root`: returns the physical address, the page's size
/// and the permitted access, which is what every entry on the way allows.
pub fn translate(
    memory: &impl TableMemory,
    root: u64,
    address: u64,
) -> Option<(u64, PageSize, Access)> {
    let mut table = root;
    let mut allowed = ANYTHING;
    for level in (1..=ROOT_LEVEL).rev() {
        let entry = memory.read(table, index_of(address, level));
        if !entry.is_present() {
            return None;
        }
        if let Some(size) = PageSize::of_level(level).filter(|_| entry.is_page(level)) {
            let offset = address & (size.bytes() - 1);
            let access = allowed.and(entry.access());
            return Some(((entry.address() & !(size.bytes() - 1)) + offset, size, access));
        }
        allowed = allowed.and(allowed_below(entry));
        table = entry.address();
    }
    None
}

/// What an entry that points to a table allows for the pages below it. How the table itself is
/// cached says nothing about them (Intel SDM volume 3, 4.9).
pub(super) fn allowed_below(entry: Entry) -> Access {
    Access { global: true, device: false, ..entry.access() }
}

/// A mapped page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its virtual address.
    pub address: u64,
    /// Its physical address.
    pub physical: u64,
    /// Its size.
    pub size: PageSize,
    /// What every entry on the way allows.
    pub access: Access,
}

/// Receives what [`walk`] finds.
pub trait Visitor {
    /// Called for a table of level 1 to 3 whose range begins at `address`. Its entries are visited
    /// if this returns true.
    fn table(&mut self, _address: u64, _level: u32, _table: u64) -> bool {
        true
    }

    /// Called for a page.
    fn page(&mut self, mapping: Mapping);
}

/// Visits everything that the tables at `root` map, in ascending order of addresses.
pub fn walk(memory: &impl TableMemory, root: u64, visitor: &mut impl Visitor) {
    visit(
        memory,
        Subtree { table: root, level: ROOT_LEVEL, address: 0, allowed: ANYTHING },
        visitor,
    );
}

/// A table and what it maps.
#[derive(Clone, Copy)]
struct Subtree {
    table: u64,
    level: u32,
    /// The virtual address of its first entry.
    address: u64,
    allowed: Access,
}

fn visit(memory: &impl TableMemory, subtree: Subtree, visitor: &mut impl Visitor) {
    for index in 0..ENTRIES {
        let entry = memory.read(subtree.table, index);
        if !entry.is_present() {
            continue;
        }
        let address = canonical(subtree.address | (index as u64) << (3 + 9 * subtree.level));
        match PageSize::of_level(subtree.level).filter(|_| entry.is_page(subtree.level)) {
            Some(size) => visitor.page(Mapping {
                address,
                physical: entry.address() & !(size.bytes() - 1),
                size,
                access: subtree.allowed.and(entry.access()),
            }),
            // An entry of the lowest level is always a page, so the recursion ends.
            None if visitor.table(address, subtree.level - 1, entry.address()) => {
                let allowed = subtree.allowed.and(allowed_below(entry));
                visit(
                    memory,
                    Subtree { table: entry.address(), level: subtree.level - 1, address, allowed },
                    visitor,
                );
            }
            None => {}
        }
    }
}

/// Extends bit 47 of the address to all bits above it.
const fn canonical(address: u64) -> u64 {
    if address & 1 << 47 == 0 { address } else { address | !0 << 48 }
}
