//! The final page tables. They map this program at its own addresses, each part with only the
//! rights that it needs, and all present memory in the direct map.
//!
//! Everything else in the boot tables disappears: address 0, the page below the stack, devices, and
//! memory at its own address. Tables come from early memory that is mapped already, so memory
//! beyond the boot tables' reach is mapped in steps, and each step may use the memory of the one
//! before.
//!
//! ```text
//! 0 .. 2 MiB            nothing: null pointers fault
//! from 2 MiB            the image where it was loaded: code (read, execute), constants (read),
//!                       data (read, write), an unmapped page, the stack of CPU 0 (384 KiB); what
//!                       boot alone needs disappears when it is released (`release`)
//! 0xffff800000000000    + physical address: all present memory, in pages of up to 1 GiB if the CPU
//!                       has them; read, write, the image's code and constants read only; what is
//!                       not accepted (`accept`) comes when it is
//! 0xffffd00000000000    the shell's window for huge pages (`window`), 512 GiB
//! 0xffffd80000000000    the shell's movable memory (`mapping`), 512 GiB
//! 0xffffea0000000000    + 64 for each frame: the vmemmap, 1 GiB of addresses for 64 GiB of memory;
//!                       present: read, write; absent: read, and zero
//! 0xfffffe0000000000    + 256 KiB for each other CPU: a stack of 64 KiB, four interrupt stacks,
//!                       segments, each above a page that is not mapped
//! 0xfffffe8000000000    registers of the local interrupt controller when they are in memory,
//!                       uncached
//! 0xffffff0000000000    with virtio devices: their registers, uncached, 1 GiB of addresses for
//!                       each of their ranges
//! ```

use crate::image;
use crate::platform::{BOOT_MAP_LIMIT, DIRECT_MAP, EarlyMemory, GuestPlatform, PLATFORM};
use crate::window;
use core::ptr::NonNull;
use framewright::firmware::{MemoryKind, MemoryMap};
use framewright::memblock::MemblockRequest;
use framewright::platform::Platform;
use framewright::units::{PAGE_SIZE, PhysRange};
use framewright::{Manager, MigrateType, Request};
use framewright_arch::paging::{
    Access, Entry, FlushRequest, FlushTlb, MapFault, MapRequest, Mapped, PageSize, PageTable,
    TableMemory, VirtualRange, index_of,
};
use framewright_arch::x86_64::features::Features;
use framewright_arch::x86_64::registers::{page_table_root, set_page_table_root};

/// Where the stacks of CPUs are mapped.
pub const STACKS: u64 = 0xffff_fe00_0000_0000;
/// Where the registers of devices are mapped.
pub const DEVICES: u64 = 0xffff_fe80_0000_0000;

/// Physical addresses from here on have no place in the direct map.
pub const DIRECT_MAP_END: u64 = window::BASE - DIRECT_MAP;

/// Physical addresses from here on cannot be used: the direct map has no place for them, or page
/// table entries have no bits for them.
pub fn end() -> u64 {
    let bits = Features::read().physical_address_bits;
    DIRECT_MAP_END.min(1u64.checked_shl(bits).unwrap_or(u64::MAX))
}

/// How much is mapped before the direct map's limit is raised.
const STEP_BYTES: u64 = 64 << 30;

/// Allocates tables from the memblock allocator.
struct EarlyTables<'a, 'b> {
    early: &'a mut EarlyMemory<'b>,
}

impl TableMemory for EarlyTables<'_, '_> {
    fn allocate(&mut self) -> Option<u64> {
        self.early
            .allocate(&MemblockRequest::new(PAGE_SIZE, PAGE_SIZE))
            .ok()
            .map(|frame| frame.start)
    }

    fn read(&self, table: u64, index: usize) -> Entry {
        // SAFETY: the builder names only frames that `allocate` gave it, which are tables and
        // nothing else (invariant 3), and an entry is a number. Volatile, because the CPU reads and
        // marks them too.
        unsafe { entry(table, index).read_volatile() }
    }

    fn write(&mut self, table: u64, index: usize, value: Entry) {
        // SAFETY: as for `read`. The builder's caller answers for what the new entry maps.
        unsafe { entry(table, index).write_volatile(value) };
    }
}

/// The final tables, once they are in use.
#[derive(Clone, Copy, Debug)]
pub struct KernelTables(PageTable);

impl KernelTables {
    /// Maps `range` at `address`, where nothing was mapped.
    pub fn map(
        &self,
        early: &mut EarlyMemory<'_>,
        address: u64,
        range: PhysRange,
        access: Access,
    ) -> Result<(), MapFault> {
        self.0.map(
            &mut EarlyTables { early },
            &MapRequest { address, range, access },
            &mut Mapped::default(),
        )
    }

    /// Maps what `request` says, where nothing was mapped, with tables from `memory`.
    pub fn add(
        &self,
        memory: &mut impl TableMemory,
        request: &MapRequest,
        mapped: &mut Mapped,
    ) -> Result<(), MapFault> {
        self.0.map(memory, request, mapped)
    }

    /// Unmaps a part of the image from its own addresses, on all CPUs. Returns false, without
    /// having changed anything, if it is not mapped there in 4 KiB pages.
    pub fn unmap_image(&self, part: PhysRange, flush: &impl FlushTlb) -> bool {
        let addresses =
            || (part.start / PAGE_SIZE..part.end / PAGE_SIZE).map(|page| page * PAGE_SIZE);
        let leaf = |address: u64| {
            let mut table = self.0.root();
            for level in [4, 3, 2] {
                let found = read(table, index_of(address, level));
                if !found.is_present() || found.is_page(level) {
                    return None;
                }
                table = found.address();
            }
            let index = index_of(address, 1);
            (read(table, index).address() == address).then_some((table, index))
        };
        if !addresses().all(|address| leaf(address).is_some()) {
            return false;
        }
        for (table, index) in addresses().filter_map(leaf) {
            // SAFETY: this is an entry of the tables in use (invariant 3). By the caller's promise
            // nobody uses the part any more, and the flush removes the cached translations.
            unsafe { entry(table, index).write_volatile(Entry::default()) };
        }
        let pages = VirtualRange { start: part.start, end: part.end };
        flush.flush(FlushRequest::Ranges(&[pages]));
        true
    }
}

/// Builds the tables, calls `attach` with them, switches to them, and raises the direct map's limit
/// to the end of memory, which is at most [`end`].
pub fn build(
    early: &mut EarlyMemory<'_>,
    map: MemoryMap<'_>,
    attach: impl FnOnce(&mut EarlyMemory<'_>, &KernelTables) -> Result<(), MapFault>,
) -> Result<(KernelTables, Mapped), MapFault> {
    let largest = if Features::read().pages_1g { PageSize::Large } else { PageSize::Medium };
    let mut memory = EarlyTables { early };
    let mut mapped = Mapped::default();
    let tables = PageTable::new(&mut memory, largest)
        .ok_or(MapFault::OutOfFrames { address: DIRECT_MAP })?;
    for (part, access) in [
        (image::code(), Access::CODE),
        (image::constants(), Access::CONSTANTS),
        (image::data(), Access::DATA),
        (image::boot_tables(), Access::DATA),
        (image::init(), Access::DATA),
        (image::zeroed(), Access::DATA),
        (image::stack(), Access::DATA),
    ] {
        tables.map(
            &mut memory,
            &MapRequest { address: part.start, range: part, access },
            &mut mapped,
        )?;
    }
    let end = map.present_end();
    let mut step = PhysRange::new(0, BOOT_MAP_LIMIT.min(end));
    map_present(&tables, &mut memory, map, step, &mut mapped)?;
    attach(memory.early, &KernelTables(tables))?;
    // SAFETY: the image is mapped as before, so code, stack, data and descriptor tables stay where
    // they are. Physical memory is reached only through the direct map, which is where the boot
    // tables had it. The devices that disappear are no longer used.
    unsafe { set_page_table_root(tables.root()) };
    while step.end < end {
        step = PhysRange::new(step.end, (step.end + STEP_BYTES).min(end));
        map_present(&tables, &mut memory, map, step, &mut mapped)?;
        PLATFORM.raise_direct_limit(step.end);
    }
    Ok((KernelTables(tables), mapped))
}

/// Maps all present memory in `window` that does not have to be accepted first. Code and constants
/// are read-only here, too.
fn map_present(
    tables: &PageTable,
    memory: &mut EarlyTables<'_, '_>,
    map: MemoryMap<'_>,
    window: PhysRange,
    mapped: &mut Mapped,
) -> Result<(), MapFault> {
    let fixed = PhysRange::new(image::code().start, image::constants().end);
    let is_accepted = |kind| kind != MemoryKind::Unaccepted || PLATFORM.accept_memory().is_none();
    let ranges = map.ranges().iter().filter(|entry| entry.kind.is_present());
    for entry in ranges.filter(|entry| is_accepted(entry.kind)) {
        let range = entry.range.intersection(window);
        for (part, access) in [
            (range.intersection(PhysRange::new(0, fixed.start)), Access::DATA),
            (range.intersection(fixed), Access::CONSTANTS),
            (range.intersection(PhysRange::new(fixed.end, u64::MAX)), Access::DATA),
        ] {
            if !part.is_empty() {
                let address = DIRECT_MAP + part.start;
                tables.map(memory, &MapRequest { address, range: part, access }, mapped)?;
            }
        }
    }
    Ok(())
}

/// Allocates tables from the manager, for what is mapped after it has taken over.
struct ManagedTables<'a> {
    manager: &'a Manager<GuestPlatform>,
}

impl TableMemory for ManagedTables<'_> {
    fn allocate(&mut self) -> Option<u64> {
        let request = Request {
            zeroed: true,
            max_address: PLATFORM.direct_limit(),
            // Tables stay where they are.
            migrate_type: MigrateType::Unmovable,
            ..Request::pages(1)
        };
        self.manager.allocate(&request).ok().map(|range| range.start.address())
    }

    fn read(&self, table: u64, index: usize) -> Entry {
        // SAFETY: the builder names the tables in use, those that they lead to, and those that
        // `allocate` gave it. Otherwise as for `EarlyTables`.
        unsafe { entry(table, index).read_volatile() }
    }

    fn write(&mut self, table: u64, index: usize, value: Entry) {
        // SAFETY: as for `read`. Only entries that were empty change, so no translation in use
        // does.
        unsafe { entry(table, index).write_volatile(value) };
    }
}

/// Maps a device's registers at `address`, uncached, where nothing was mapped. They stay mapped.
/// Two CPUs must not call this at once.
pub fn add_registers(
    manager: &Manager<GuestPlatform>,
    address: u64,
    range: PhysRange,
) -> Result<(), MapFault> {
    let tables = PageTable::at(page_table_root() & !(PAGE_SIZE - 1), PageSize::Small);
    tables.map(
        &mut ManagedTables { manager },
        &MapRequest { address, range, access: Access::DEVICE },
        &mut Mapped::default(),
    )
}

/// Maps memory in the direct map that is there, or may be there later, and was not mapped yet, and
/// raises the map's limit. Two CPUs must not call this at once.
pub fn add_memory(manager: &Manager<GuestPlatform>, range: PhysRange) -> Result<(), MapFault> {
    let address = DIRECT_MAP + range.start;
    if range.end > end() {
        return Err(MapFault::BadRange { address, range });
    }
    let largest = if Features::read().pages_1g { PageSize::Large } else { PageSize::Medium };
    let tables = PageTable::at(page_table_root() & !(PAGE_SIZE - 1), largest);
    let request = MapRequest { address, range, access: Access::DATA };
    tables.map(&mut ManagedTables { manager }, &request, &mut Mapped::default())?;
    PLATFORM.raise_direct_limit(range.end);
    Ok(())
}

/// Reads an entry of a table in use.
fn read(table: u64, index: usize) -> Entry {
    // SAFETY: only tables in use are read (invariant 3), and an entry is a number. Volatile,
    // because the CPU may mark it.
    unsafe { entry(table, index).read_volatile() }
}

/// Returns where an entry of a table is in the direct map.
pub fn entry(table: u64, index: usize) -> NonNull<Entry> {
    assert!(index < 512, "a table has 512 entries");
    // SAFETY: within the frame of one table.
    unsafe { PLATFORM.direct(table).cast::<Entry>().add(index) }
}
