//! Page table entries, and tables in memory.

use crate::machine::FakeMachine;
use framewright::units::Pfn;

/// The number of entries in a table.
pub(super) const ENTRIES: u64 = 512;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const FRAME: u64 = ((1 << 52) - 1) & !0xfff;

/// A table entry, with the bits of x86-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) fn read_only(frame: Pfn) -> Self {
        Self(frame.address() | PRESENT)
    }

    pub(super) fn writable(frame: Pfn) -> Self {
        Self(frame.address() | PRESENT | WRITABLE)
    }

    /// An upper entry that maps 2 MiB.
    pub(super) fn large(start: Pfn) -> Self {
        Self(start.address() | PRESENT | WRITABLE | LARGE)
    }

    /// An upper entry that names a table.
    pub(super) fn table(frame: Pfn) -> Self {
        Self::writable(frame)
    }

    pub(super) fn frame(self) -> Pfn {
        Pfn::containing(self.0 & FRAME)
    }

    pub(super) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    pub(super) fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    pub(super) fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }
}

/// A table of 512 entries in a frame of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Table(pub(super) Pfn);

impl Table {
    pub(super) fn get(self, machine: &FakeMachine, index: u64) -> Entry {
        Entry(machine.load(self.0.address() + 8 * index))
    }

    pub(super) fn set(self, machine: &FakeMachine, index: u64, entry: Entry) {
        assert!(index < ENTRIES, "entry {index} of a table");
        // SAFETY: the frame was taken for a table and is not free yet, so there is no reference
        // into it.
        unsafe { machine.store(self.0.address() + 8 * index, entry.0) };
    }

    pub(super) fn fill(self, machine: &FakeMachine, entry: impl Fn(u64) -> Entry) {
        for index in 0..ENTRIES {
            self.set(machine, index, entry(index));
        }
    }
}
