//! Intake: translates what the boot protocol and ACPI report into the manager's types.

use crate::accept::{self, Unaccepted};
use crate::image;
use crate::platform::{BOOT_MAP_LIMIT, DIRECT_MAP};
use framewright::Parameters;
use framewright::firmware::{MapBuilder, MapError, MapRange, MemoryKind, MemoryMap, Topology};
use framewright::units::{NodeId, PHYSICAL_ADDRESS_END, PfnRange, PhysRange};
use framewright_arch::acpi::{AcpiError, Tables, read_topology};
use framewright_arch::x86_64::pvh::StartInfo;

/// Most entries of the memory map.
pub const MAP_CAPACITY: usize = 1024;
/// Most affinity ranges.
pub const AFFINITY_CAPACITY: usize = 512;
/// Most ranges that are reserved before there is a page allocator.
pub const RESERVED_CAPACITY: usize = 512;
/// The real-mode vectors, the BIOS data area and anything else that firmware keeps at low
/// addresses.
const LOW_MEMORY: PhysRange = PhysRange::new(0, 64 * 1024);

/// The kind of memory that holds ACPI's tables until they are read.
const ACPI: MemoryKind = MemoryKind::AcpiReclaimable;

/// The ACPI tables as this guest sees them.
pub type AcpiTables = Tables<'static>;

/// Room for copies of the boot protocol's information, in bytes.
const START_BYTES: usize = StartInfo::storage_bytes(MAP_CAPACITY);
/// Room for copies of everything that firmware and the boot loader left, in bytes.
pub const COPIES_BYTES: usize = START_BYTES + Tables::USUAL_STORAGE_BYTES;

/// Divides the room for copies: one part for the boot protocol's information, one for ACPI tables.
pub fn divide(copies: &mut [u8; COPIES_BYTES]) -> (&mut [u8], &mut [u8]) {
    copies.split_at_mut(START_BYTES)
}

/// Copies bytes that firmware or the boot loader left. Returns false if the boot tables do not
/// reach them.
///
/// Only the intake calls this, while the boot tables are in use.
pub fn physical(address: u64, to: &mut [u8]) -> bool {
    let end = address.checked_add(to.len() as u64);
    if end.is_none_or(|end| end > BOOT_MAP_LIMIT) {
        return false;
    }
    let Ok(first) = usize::try_from(DIRECT_MAP | address) else { return false };
    for (place, byte) in (first..).zip(to) {
        let byte_there = core::ptr::with_exposed_provenance::<u8>(place);
        // SAFETY: the boot tables map everything below the limit at this offset. Where there is no
        // memory, a read gives some byte. No reference is made to the byte, and the access is
        // volatile, because a host may write there at any time.
        *byte = unsafe { byte_there.read_volatile() };
    }
    true
}

/// Whether `range` touches anything that the boot loader calls memory, whatever its use. Register
/// windows are reserved in that map, or missing from it.
pub fn is_memory(start_info: &StartInfo<'_>, range: PhysRange) -> bool {
    start_info.memory_map().filter(|entry| entry.kind != MemoryKind::Reserved).any(|entry| {
        let memory = PhysRange::new(entry.start, entry.start.saturating_add(entry.size_bytes));
        !memory.intersection(range).is_empty()
    })
}

/// Copies the memory map as the boot loader gave it, for the log.
pub fn copy_raw_map<'a>(start_info: &StartInfo<'_>, storage: &'a mut [MapRange]) -> &'a [MapRange] {
    let mut count = 0;
    let entries = start_info.memory_map().filter(|entry| entry.size_bytes != 0);
    for (slot, entry) in storage.iter_mut().zip(entries) {
        let range = PhysRange::new(entry.start, entry.start.saturating_add(entry.size_bytes));
        *slot = MapRange { range, kind: entry.kind };
        count += 1;
    }
    &storage[..count]
}

/// Returns the memory map, normalised and with the command line's changes, and how many bytes that
/// are or may become memory are left out because they lie at `end` or above.
pub fn memory_map<'a>(
    start_info: &StartInfo<'_>,
    parameters: &Parameters,
    end: u64,
    storage: &'a mut [MapRange],
) -> Result<(MemoryMap<'a>, u64), MapError> {
    let mut builder = MapBuilder::new(storage);
    for entry in start_info.memory_map() {
        builder.add(entry.start, entry.size_bytes, entry.kind)?;
    }
    parameters.apply(&mut builder)?;
    let beyond = PhysRange::new(end, PHYSICAL_ADDRESS_END);
    let ranges = builder.ranges().iter();
    let memory = ranges.filter(|entry| entry.kind.is_present() || entry.kind == ACPI);
    let lost = memory.map(|entry| entry.range.intersection(beyond).size()).sum();
    if lost > 0 {
        builder.add(beyond.start, beyond.size(), MemoryKind::Reserved)?;
    }
    Ok((builder.finish()?, lost))
}

/// Returns `found` as this boot uses it. The memory of ACPI's tables, which are read and then
/// released, counts as usable, and what the options leave unaccepted is marked so, except for what
/// is `taken`.
pub fn as_used<'a>(
    found: MemoryMap<'_>,
    asked: Option<&Unaccepted>,
    taken: &[PhysRange],
    storage: &'a mut [MapRange],
) -> Result<MemoryMap<'a>, MapError> {
    let mut builder = MapBuilder::new(storage);
    for entry in found.ranges() {
        let kind = if entry.kind == ACPI { MemoryKind::Conventional } else { entry.kind };
        builder.add(entry.range.start, entry.range.size(), kind)?;
    }
    if let Some(asked) = asked {
        accept::leave_unaccepted(&mut builder, asked, taken)?;
    }
    builder.finish()
}

/// Fills `topology`. With malformed tables there is one node; with malformed distances all nodes
/// have the usual distances. The error is for the log.
pub fn read_nodes(
    tables: Option<&AcpiTables>,
    parameters: &Parameters,
    topology: &mut Topology<'_>,
) -> Result<(), AcpiError> {
    let read = match tables {
        Some(tables) => read_topology(tables, topology),
        None => {
            // This is the CPU that executes this. Adding one CPU to node 0 cannot fail.
            let _ = topology.add_cpu(NodeId::ZERO);
            Ok(())
        }
    };
    if !parameters.numa {
        topology.flatten();
    }
    read
}

/// What a range holds that is reserved from the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It is never released.
    Kept,
    /// The boot protocol's information, which is copied.
    BootParameters,
    /// An initial RAM disk or another file, which this guest does not read.
    Module,
    /// ACPI tables, which are copied.
    AcpiTables,
}

/// Ranges that hold something when the guest starts.
pub struct Reserved {
    ranges: [PhysRange; RESERVED_CAPACITY],
    what: [Left; RESERVED_CAPACITY],
    count: usize,
}

/// There are more than [`RESERVED_CAPACITY`] such ranges.
#[derive(Clone, Copy, Debug)]
pub struct TooManyReserved;

impl Reserved {
    /// No ranges yet.
    pub const fn new() -> Self {
        Self {
            ranges: [PhysRange::new(0, 0); RESERVED_CAPACITY],
            what: [Left::Kept; RESERVED_CAPACITY],
            count: 0,
        }
    }

    /// Collects the ranges that this program, the boot protocol and ACPI occupy.
    pub fn collect(
        &mut self,
        start_info: &StartInfo<'_>,
        tables: Option<&AcpiTables>,
        map: MemoryMap<'_>,
    ) -> Result<(), TooManyReserved> {
        self.add(LOW_MEMORY, Left::Kept)?;
        self.add(image::whole(), Left::Kept)?;
        self.add(start_info.own_range, Left::BootParameters)?;
        self.add(start_info.memory_map_range, Left::BootParameters)?;
        self.add(start_info.command_line_range, Left::BootParameters)?;
        self.add(start_info.module_list_range, Left::BootParameters)?;
        for module in start_info.modules() {
            self.add(module, Left::Module)?;
        }
        for entry in map.ranges().iter().filter(|entry| entry.kind == ACPI) {
            self.add(entry.range, Left::AcpiTables)?;
        }
        if let Some(tables) = tables {
            // ACPI tables normally lie in memory of their own kind.
            let usable = |range: &PhysRange| {
                map.ranges().iter().any(|entry| {
                    entry.kind.is_usable() && !entry.range.intersection(*range).is_empty()
                })
            };
            let named = tables.headers().flatten().map(|(_, range)| range);
            for range in tables.root_ranges().into_iter().chain(named).filter(usable) {
                self.add(range, Left::AcpiTables)?;
            }
        }
        Ok(())
    }

    /// All reserved ranges.
    pub fn ranges(&self) -> &[PhysRange] {
        &self.ranges[..self.count]
    }

    /// Returns the frames that hold nothing but things of this sort, run by run, each frame once.
    pub fn frames_of(&self, sort: Left) -> impl Iterator<Item = PfnRange> {
        let all = self.ranges().iter().zip(&self.what).enumerate();
        all.filter(move |(_, (_, what))| **what == sort)
            .flat_map(move |(number, (range, _))| self.alone_in(number, range.touched_frames()))
    }

    /// Returns the frames of range `number` that no other range touches, apart from later ranges of
    /// its own sort.
    fn alone_in(&self, number: usize, frames: PfnRange) -> impl Iterator<Item = PfnRange> {
        let mut rest = frames;
        core::iter::from_fn(move || {
            while !rest.is_empty() {
                let others = self.ranges().iter().zip(&self.what).enumerate();
                let others = others.filter(|(other, (_, what))| {
                    *other < number || *other > number && **what != self.what[number]
                });
                let parts = others.map(|(_, (range, _))| range.touched_frames().intersection(rest));
                let first = parts.filter(|part| !part.is_empty()).min_by_key(|part| part.start);
                let run = PfnRange { end: first.map_or(rest.end, |part| part.start), ..rest };
                rest.start = first.map_or(rest.end, |part| part.end);
                if !run.is_empty() {
                    return Some(run);
                }
            }
            None
        })
    }

    fn add(&mut self, range: PhysRange, what: Left) -> Result<(), TooManyReserved> {
        if range.is_empty() {
            return Ok(());
        }
        *self.ranges.get_mut(self.count).ok_or(TooManyReserved)? = range;
        self.what[self.count] = what;
        self.count += 1;
        Ok(())
    }
}
