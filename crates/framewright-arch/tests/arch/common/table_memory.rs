//! Page tables in the memory of a simulated machine.

use framewright_arch::paging::{Entry, TableMemory};
use framewright_testkit::FakeMachine;

/// The machine's memory, accessed as page tables.
#[derive(Clone, Copy)]
pub struct Memory(pub &'static FakeMachine);

impl TableMemory for Memory {
    fn allocate(&mut self) -> Option<u64> {
        None
    }
    fn read(&self, table: u64, index: usize) -> Entry {
        Entry(self.0.load(table + 8 * index as u64))
    }
    fn write(&mut self, table: u64, index: usize, entry: Entry) {
        // SAFETY: tests write only to a root table, which is theirs.
        unsafe { self.0.store(table + 8 * index as u64, entry.0) };
    }
}
