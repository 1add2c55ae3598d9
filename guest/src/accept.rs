//! An accept device made of page tables, standing in for the one of a confidential guest
//! (`unaccepted=` on the command line). Unaccepted memory is not mapped in the direct map, so
//! touching it too early is a page fault whose address says where.
//!
//! Accepting a range maps it with the largest pages that fit. Only empty entries change, and no CPU
//! caches an empty entry, so nothing has to be flushed. A CPU that learns from the manager, through
//! a lock, that the memory is there also sees the entries that were written before.
//!
//! Nothing can be allocated while memory is being accepted, so page tables for unaccepted memory
//! are taken at boot: one for each GiB that has such memory (unused if that GiB is accepted in one
//! go), and some more for pieces.
//!
//! Orders of memory: Relaxed: words of the command line, counters, and the region, which is set
//! once, before there is memory in it.

use crate::direct_map::{DIRECT_MAP_END, KernelTables, entry};
use crate::platform::{DIRECT_MAP, EarlyMemory, GuestPlatform, PLATFORM, set_accept_device};
use crate::storage::Settled;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::firmware::{MapBuilder, MapError, MemoryKind, MemoryMap};
use framewright::memblock::MemblockRequest;
use framewright::platform::Platform;
use framewright::units::{PAGE_SIZE, PAGES_PER_BLOCK, PfnRange, PhysRange};
use framewright::{AcceptError, AcceptMemory, Manager, MigrateType, Request, SpinLock};
use framewright_arch::paging::{
    Access, Entry, MapFault, MapRequest, Mapped, TableMemory, translate,
};
use framewright_arch::x86_64::registers::page_table_root;

/// The smallest amount that is accepted at once.
const UNIT: u64 = PAGES_PER_BLOCK * PAGE_SIZE;
const GIB: u64 = 1 << 30;
/// What one table of 1 GiB pages covers.
const HALF_TIB: u64 = GIB << 9;
/// Tables for pieces that are not whole units.
const TABLES_FOR_PIECES: u64 = 8;
/// Most ranges that can be accepted before there are tables. Neighbouring ranges are merged.
const MOST_EARLY: usize = 64;

/// The device, if the command line asks for one.
static DEVICE: Settled<Device> = Settled::new();

/// What the command line leaves unaccepted, and how accepting it behaves.
#[derive(Clone, Copy, Debug)]
pub struct Unaccepted {
    /// The usable memory in this range is left unaccepted.
    pub range: PhysRange,
    /// The 2 MiB unit with this address cannot be accepted.
    pub fault: Option<u64>,
    /// Accepting each 2 MiB takes this long.
    pub delay_us: u64,
}

/// Stands in for the CPU's module that accepts memory.
struct Device {
    /// The memory map, with the ranges that firmware left unaccepted.
    map: MemoryMap<'static>,
    /// The unit at this address cannot be accepted; `u64::MAX` if all can be.
    fault: u64,
    delay_us: u64,
    /// Where memory may be added, if anywhere. None of it is accepted beforehand.
    region: [AtomicU64; 2],
    state: SpinLock<State>,
    calls: AtomicU64,
    faults: AtomicU64,
    /// How often it was asked to accept memory that is mapped already. Must stay zero.
    repeated: AtomicU64,
}

struct State {
    tables: Option<KernelTables>,
    /// Ranges that were accepted before there were tables.
    early: [PhysRange; MOST_EARLY],
    early_count: usize,
    /// Unused frames for tables: first those taken at boot, then those for memory that may be
    /// added.
    spare: [PhysRange; 2],
    /// How much of the device's region is accepted.
    accepted_in_region: u64,
    mapped: Mapped,
}

/// Makes a device for the memory that `map` calls unaccepted, if the options ask for one. To be
/// called once, before there is an allocator.
pub fn begin(map: MemoryMap<'static>, asked: Option<&Unaccepted>) {
    let Some(asked) = asked else { return };
    let device = DEVICE.settle(Device {
        map,
        fault: asked.fault.map_or(u64::MAX, |address| address / UNIT * UNIT),
        delay_us: asked.delay_us,
        region: [const { AtomicU64::new(0) }; 2],
        state: SpinLock::new(State {
            tables: None,
            early: [PhysRange::new(0, 0); MOST_EARLY],
            early_count: 0,
            spare: [PhysRange::new(0, 0); 2],
            accepted_in_region: 0,
            mapped: Mapped::default(),
        }),
        calls: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        repeated: AtomicU64::new(0),
    });
    set_accept_device(device);
}

/// Leaves the units in `asked` unaccepted that are usable memory as a whole and hold nothing that
/// firmware or the boot loader left there (`taken`), since these had to accept such memory
/// themselves.
pub fn leave_unaccepted(
    builder: &mut MapBuilder<'_>,
    asked: &Unaccepted,
    taken: &[PhysRange],
) -> Result<(), MapError> {
    let mut next = asked.range.start;
    while next < asked.range.end {
        let wanted = PhysRange::new(next, asked.range.end);
        let usable = builder.ranges().iter().filter(|entry| entry.kind.is_usable());
        let mut parts = usable.map(|entry| entry.range.intersection(wanted));
        let Some(part) = parts.find(|part| !part.is_empty()) else { break };
        next = part.end;
        let units = PhysRange::new(part.start.next_multiple_of(UNIT), part.end / UNIT * UNIT);
        let mut start = units.start;
        while start < units.end {
            let rest = PhysRange::new(start, units.end);
            let in_use = taken.iter().map(|taken| taken.intersection(rest));
            let first = in_use.filter(|range| !range.is_empty()).min_by_key(|range| range.start);
            let end = first.map_or(units.end, |range| range.start / UNIT * UNIT);
            if start < end {
                builder.leave_unaccepted(PhysRange::new(start, end))?;
            }
            start = first.map_or(units.end, |range| range.end.next_multiple_of(UNIT));
        }
    }
    Ok(())
}

/// From now on, accepted memory is mapped in `tables`, which are not in use yet. Memory that was
/// accepted before is mapped in them now. Does nothing without a device.
pub fn attach(early: &mut EarlyMemory<'_>, tables: &KernelTables) -> Result<(), MapFault> {
    let Some(device) = DEVICE.get() else { return Ok(()) };
    let bytes = device.tables_needed() * PAGE_SIZE;
    // This allocation may itself accept memory.
    let spare = early
        .allocate(&MemblockRequest::new(bytes, PAGE_SIZE))
        .map_err(|_| MapFault::OutOfFrames { address: DIRECT_MAP })?;
    device.state.with(&PLATFORM, |state| {
        state.spare[0] = spare;
        state.tables = Some(*tables);
        let accepted = state.early;
        accepted[..state.early_count].iter().try_for_each(|&range| state.map(range))
    })
}

/// Prepares for memory that may be added in `region` later, and that is accepted then. There can be
/// only one such region. Returns `None` if there is no device.
pub fn expect(manager: &Manager<GuestPlatform>, region: PhysRange) -> Option<Result<(), MapFault>> {
    let device = DEVICE.get()?;
    let fault = MapFault::OutOfFrames { address: DIRECT_MAP + region.start };
    let tables = region.size().div_ceil(GIB) + region.size().div_ceil(HALF_TIB) + 2;
    let request = Request { migrate_type: MigrateType::Unmovable, ..Request::pages(tables) };
    let Ok(spare) = manager.allocate(&request) else { return Some(Err(fault)) };
    device.state.with(&PLATFORM, |state| state.spare[1] = spare.to_phys());
    device.region[1].store(region.end, Ordering::Relaxed);
    device.region[0].store(region.start, Ordering::Relaxed);
    PLATFORM.raise_direct_limit(region.end);
    Some(Ok(()))
}

/// Whether the memory at a physical address must be accepted before it can be touched.
pub fn is_unaccepted(address: u64) -> bool {
    let Some(device) = DEVICE.get() else { return false };
    let root = page_table_root() & !(PAGE_SIZE - 1);
    // Without the lock, which a CPU may hold that was stopped for a report of a failure.
    let mut nothing = [PhysRange::new(0, 0); 2];
    let mut ranges = device.unaccepted().chain([device.region()]);
    ranges.any(|range| range.start <= address && address < range.end)
        && translate(&SpareTables { left: &mut nothing }, root, DIRECT_MAP + address).is_none()
}

/// The highest unit that is not accepted yet.
pub fn highest_unaccepted() -> Option<PhysRange> {
    let ranges = DEVICE.get().into_iter().flat_map(Device::unaccepted);
    let last = |range: PhysRange| {
        let mut units = (range.start / UNIT..range.end / UNIT).rev();
        units.find(|unit| is_unaccepted(unit * UNIT))
    };
    let unit = ranges.filter_map(last).max()?;
    Some(PhysRange::with_size(unit * UNIT, UNIT))
}

/// Bytes that are not accepted: of the memory map, and of memory that may be added.
pub fn unaccepted_bytes() -> [u64; 2] {
    DEVICE.get().map_or([0; 2], |device| {
        let all: u64 = device.unaccepted().map(|range| range.size()).sum();
        device.state.with(&PLATFORM, |state| {
            let added = state.accepted_in_region;
            [all - (state.accepted_bytes() - added), device.region().size() - added]
        })
    })
}

/// Returns the spare tables of boot once all memory is accepted and they are no longer needed. They
/// belong to the caller from now on.
pub fn take_spare() -> PfnRange {
    let none = PfnRange::new(0, 0);
    let Some(device) = DEVICE.get().filter(|_| unaccepted_bytes() == [0; 2]) else { return none };
    let taken = |state: &mut State| core::mem::replace(&mut state.spare[0], PhysRange::new(0, 0));
    device.state.with(&PLATFORM, taken).whole_frames()
}

/// Writes the device's counters, one name and number a line; nothing if there is no device.
pub fn show(out: &mut dyn Write) -> fmt::Result {
    let Some(device) = DEVICE.get() else { return Ok(()) };
    let (mapped, spare) = device.state.with(&PLATFORM, |state| (state.mapped, state.spare));
    let lines = [
        ("unaccepted_bytes", unaccepted_bytes().iter().sum()),
        ("accepted_bytes", mapped.bytes()),
        ("calls", device.calls.load(Ordering::Relaxed)),
        ("faults", device.faults.load(Ordering::Relaxed)),
        ("repeated", device.repeated.load(Ordering::Relaxed)),
        ("pages_1g", mapped.large),
        ("pages_2m", mapped.medium),
        ("pages_4k", mapped.small),
        ("tables", mapped.tables),
        ("tables_left", spare.iter().map(|range| range.size() / PAGE_SIZE).sum()),
    ];
    lines.iter().try_for_each(|(name, value)| writeln!(out, "{name} {value}"))
}

impl Device {
    fn unaccepted(&self) -> impl Iterator<Item = PhysRange> {
        let ranges = self.map.ranges().iter();
        ranges.filter(|entry| entry.kind == MemoryKind::Unaccepted).map(|entry| entry.range)
    }

    fn region(&self) -> PhysRange {
        let [start, end] = [0, 1].map(|place: usize| self.region[place].load(Ordering::Relaxed));
        PhysRange::new(start, end)
    }

    /// How many tables it takes to accept all memory in the smallest steps.
    fn tables_needed(&self) -> u64 {
        let of = |bytes: u64| {
            let mut seen = 0;
            let mut count = 0;
            for range in self.unaccepted() {
                let start = (range.start / bytes).max(seen);
                let end = range.end.div_ceil(bytes).max(start);
                count += end - start;
                seen = end;
            }
            count
        };
        of(GIB) + of(HALF_TIB) + TABLES_FOR_PIECES
    }

    /// Waits for as long as accepting `bytes` is to take.
    fn delay(&self, bytes: u64) {
        let Some(start_ns) = PLATFORM.now_ns().filter(|_| self.delay_us != 0) else { return };
        let delay_ns = (bytes / UNIT).max(1).saturating_mul(self.delay_us * 1000);
        while PLATFORM.now_ns().is_some_and(|now_ns| now_ns < start_ns.saturating_add(delay_ns)) {
            PLATFORM.relax();
        }
    }
}

// SAFETY: accepted memory is mapped in the direct map, and nobody unmaps it again. Memory that was
// accepted before there were final tables is mapped in the boot tables, and is mapped in the final
// tables before these are in use.
unsafe impl AcceptMemory for Device {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
        let bytes = range.to_phys();
        self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = PhysRange::new(self.fault, self.fault.saturating_add(UNIT));
        let wrong = fault.intersection(bytes);
        let good = if wrong.is_empty() { bytes } else { PhysRange::new(bytes.start, wrong.start) };
        self.delay(good.size());
        let accepted = self.state.with(&PLATFORM, |state| {
            let before = state.accepted_bytes();
            let result = state.accept(good);
            if let Err(MapFault::Occupied { .. }) = result {
                self.repeated.fetch_add(1, Ordering::Relaxed);
            }
            let accepted = state.accepted_bytes() - before;
            if !good.intersection(self.region()).is_empty() {
                state.accepted_in_region += accepted;
            }
            result.map_or(accepted, |()| good.size())
        });
        if accepted == bytes.size() {
            return Ok(());
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        Err(AcceptError { accepted_pages: accepted / PAGE_SIZE })
    }
}

impl State {
    fn accepted_bytes(&self) -> u64 {
        let early = self.early[..self.early_count].iter().map(|range| range.size()).sum::<u64>();
        // Both counts are non-zero only while the early ranges are being mapped.
        if self.tables.is_some() { self.mapped.bytes() } else { early }
    }

    fn accept(&mut self, range: PhysRange) -> Result<(), MapFault> {
        if range.is_empty() || self.tables.is_some() {
            return self.map(range);
        }
        let known = &mut self.early[..self.early_count];
        if let Some(after) = known.iter_mut().find(|known| known.start == range.end) {
            after.start = range.start;
        } else if let Some(before) = known.iter_mut().find(|known| known.end == range.start) {
            before.end = range.end;
        } else {
            let full = MapFault::OutOfFrames { address: DIRECT_MAP + range.start };
            *self.early.get_mut(self.early_count).ok_or(full)? = range;
            self.early_count += 1;
        }
        Ok(())
    }

    fn map(&mut self, range: PhysRange) -> Result<(), MapFault> {
        let address = DIRECT_MAP + range.start;
        if range.end > DIRECT_MAP_END {
            return Err(MapFault::BadRange { address, range });
        }
        let Some(tables) = self.tables else { return Ok(()) };
        let request = MapRequest { address, range, access: Access::DATA };
        let mut memory = SpareTables { left: &mut self.spare };
        tables.add(&mut memory, &request, &mut self.mapped)
    }
}

/// Allocates tables from frames that were taken for them.
struct SpareTables<'a> {
    left: &'a mut [PhysRange; 2],
}

impl TableMemory for SpareTables<'_> {
    fn allocate(&mut self) -> Option<u64> {
        let left = self.left.iter_mut().find(|range| !range.is_empty())?;
        let frame = left.start;
        left.start += PAGE_SIZE;
        (0..512).for_each(|index| self.write(frame, index, Entry::default()));
        Some(frame)
    }

    fn read(&self, table: u64, index: usize) -> Entry {
        // SAFETY: the builder names the tables in use, those that they lead to, and those that
        // `allocate` gave it, which were taken for this (invariants 3 and 42). Volatile, because
        // the CPU reads and marks them too.
        unsafe { entry(table, index).read_volatile() }
    }

    fn write(&mut self, table: u64, index: usize, value: Entry) {
        // SAFETY: as for `read`. The state's lock lets in one CPU at a time. Only entries that were
        // empty change, so no translation in use does.
        unsafe { entry(table, index).write_volatile(value) };
    }
}
