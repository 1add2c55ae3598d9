//! The proximity domain of each CPU in the SRAT, sorted by CPU, so that finding those of `n` CPUs
//! takes `n log n` steps in whatever order the tables list them.

use crate::bytes::u32_at;
use crate::physical::Storage;

/// The most CPUs that a table may plausibly list.
pub const MAX_CPUS: usize = 8192;

/// A CPU's identifier, its index in the table, and its domain, 32 bits each.
const ENTRY_BYTES: usize = 12;

type Entry = [u8; ENTRY_BYTES];

/// See the module documentation. If the table lists a CPU twice, the first entry counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Domains<'a>(&'a [Entry]);

impl<'a> Domains<'a> {
    /// Sorts CPUs with their domains into `storage`.
    ///
    /// # Errors
    /// The number of bytes needed, if the storage has fewer.
    pub(crate) fn sort<I>(cpus: I, storage: &mut Storage<'a>) -> Result<Self, usize>
    where
        I: Iterator<Item = (u32, u32)> + Clone,
    {
        let bytes = cpus.clone().count() * ENTRY_BYTES;
        let (entries, _) = storage.take(bytes).ok_or(bytes)?.as_chunks_mut();
        for ((place, (apic_id, domain)), entry) in (0u32..).zip(cpus).zip(entries.iter_mut()) {
            let numbers = [apic_id, place, domain].map(u32::to_le_bytes);
            entry.as_chunks_mut().0.copy_from_slice(&numbers);
        }
        entries.sort_unstable_by_key(|entry| (number(entry, 0), number(entry, 1)));
        Ok(Self(entries))
    }

    /// The domain of a CPU; `None` if the table does not mention the CPU.
    pub(crate) fn find(self, apic_id: u32) -> Option<u32> {
        self.search(apic_id, &mut 0)
    }

    /// Does what [`find`](Self::find) does, and adds the number of entries that it looks at to
    /// `steps`.
    fn search(self, apic_id: u32, steps: &mut u64) -> Option<u32> {
        let first = self.0.partition_point(|entry| {
            *steps += 1;
            number(entry, 0) < apic_id
        });
        self.0.get(first).filter(|entry| number(entry, 0) == apic_id).map(|entry| number(entry, 2))
    }
}

/// One of an entry's three numbers.
fn number(entry: &Entry, index: usize) -> u32 {
    u32_at(entry, 4 * index).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::vec;

    #[test]
    fn placing_cpus_takes_few_steps_in_whatever_order_they_come() {
        const CPUS: u32 = 8192;
        // The table lists every second CPU, backwards: the search for the other CPUs fails.
        let read = Cell::new(0u64);
        let listed = (0..CPUS)
            .rev()
            .filter(|cpu| cpu % 2 == 0)
            .map(|cpu| (cpu, cpu / 128))
            .inspect(|_| read.set(read.get() + 1));
        let mut bytes = vec![0; 1 << 20];
        let domains = Domains::sort(listed, &mut Storage::new(&mut bytes)).expect("room");
        let mut steps = 0;
        for cpu in 0..CPUS {
            let expected = (cpu % 2 == 0).then_some(cpu / 128);
            assert_eq!(domains.search(cpu, &mut steps), expected);
        }
        assert!(read.get() <= u64::from(CPUS), "{} entries of the table were read", read.get());
        assert!(steps <= u64::from(CPUS) * 14, "{steps} steps");
    }

    #[test]
    fn the_first_entry_of_a_cpu_counts_and_too_little_room_is_said() {
        let listed = [(7, 1), (3, 2), (7, 3), (3, 4)];
        let mut bytes = [0; 48];
        let domains =
            Domains::sort(listed.into_iter(), &mut Storage::new(&mut bytes)).expect("room");
        assert_eq!([3, 7, 5].map(|cpu| domains.find(cpu)), [Some(2), Some(1), None]);
        let refused =
            Domains::sort(listed.into_iter(), &mut Storage::new(&mut bytes[..47])).map(|_| ());
        assert_eq!(refused, Err(48));
    }
}
