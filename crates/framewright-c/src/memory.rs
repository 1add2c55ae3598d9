//! Allocating, freeing, adding memory, counting.

use crate::bring_up::span;
use crate::error::*;
use crate::instance::manager;
use crate::platform::Checked;
use core::alloc::Layout;
use core::ffi::c_void;
use core::fmt::Display;
use framewright::units::{NodeId, Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::zone::{Counts, FreeError, Grade};
use framewright::{Manager, MigrateType, Platform, Request};

/// What pages are for: memory of one type lies together, so that what can be moved does not stand
/// between what cannot.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum fw_type {
    /// Stays where it is: page tables, memory for devices.
    FW_UNMOVABLE = 0,
    /// Can be moved: memory of processes.
    FW_MOVABLE = 1,
    /// Can be dropped: caches.
    FW_RECLAIMABLE = 2,
}

/// Pages by what they are, all of 4096 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fw_counters {
    /// Memory that the map has.
    pub present_pages: u64,
    /// Given to the manager to hand out.
    pub managed_pages: u64,
    /// In use before, with the manager's tables among them.
    pub reserved_pages: u64,
    /// Can be handed out.
    pub free_pages: u64,
    /// Handed out, in a CPU's cache, or tables of memory that was added.
    pub allocated_pages: u64,
    /// Bytes of the manager's own tables.
    pub metadata_bytes: u64,
}

impl fw_counters {
    fn of(manager: &Manager<Checked>, counts: &Counts) -> Self {
        Self {
            present_pages: counts.present_pages,
            managed_pages: counts.managed_pages,
            reserved_pages: counts.reserved_pages,
            free_pages: counts.free_pages,
            allocated_pages: counts.allocated_pages,
            metadata_bytes: manager.metadata_bytes(),
        }
    }
}

/// Writes a result where C wants it.
///
/// # Safety
/// `to` is null, or points to room for a `T` that nobody else uses.
unsafe fn put<T>(to: *mut T, value: impl FnOnce() -> Result<T, fw_error>) -> i32 {
    if to.is_null() || !to.is_aligned() {
        return FW_NULL.number();
    }
    number(value().map(|value| {
        // SAFETY: the caller promises the room (invariant 51).
        unsafe { to.write(value) };
    }))
}

/// The result of a free. One that is about other pages, freed twice before and found on their way
/// out of a cache, is for the log: these are free.
fn unless_of_others(
    manager: &Manager<Checked>,
    freed: Result<(), FreeError>,
    range: PfnRange,
) -> Result<(), fw_error> {
    let is_of_others = freed.is_err_and(|error| !error.concerns(range));
    let result = logged(manager, freed);
    if is_of_others { Ok(()) } else { result }
}

/// Does something that can go wrong in more ways than there are numbers; the log has them all.
fn logged<T, E: Display + Copy + Into<fw_error>>(
    manager: &Manager<Checked>,
    result: Result<T, E>,
) -> Result<T, fw_error> {
    result.map_err(|error| {
        manager.platform().say(format_args!("{error}"));
        error.into()
    })
}

fn order(order: u32) -> Result<Order, fw_error> {
    u8::try_from(order).ok().and_then(Order::new).ok_or(FW_BAD_ORDER)
}

/// The frame that begins at `address`.
fn frame(address: u64) -> Result<Pfn, fw_error> {
    let is_aligned = address.is_multiple_of(PAGE_SIZE);
    if is_aligned { Ok(Pfn::containing(address)) } else { Err(FW_NOT_ALIGNED) }
}

fn layout(bytes: u64, align_bytes: u64) -> Result<Layout, fw_error> {
    if !align_bytes.is_power_of_two() {
        return Err(FW_BAD_ORDER);
    }
    let size = |bytes| usize::try_from(bytes).map_err(|_| FW_BAD_SIZE);
    Layout::from_size_align(size(bytes)?, size(align_bytes)?).map_err(|_| FW_BAD_SIZE)
}

fn migrate_type(number: u32) -> Result<MigrateType, fw_error> {
    Ok(match number {
        0 => MigrateType::Unmovable,
        1 => MigrateType::Movable,
        2 => MigrateType::Reclaimable,
        _ => return Err(FW_BAD_TYPE),
    })
}

/// Allocates 2^`order` pages of a migrate type (`fw_type`), aligned to their size, and writes their
/// physical address to `address`. Orders are 0 to 18.
///
/// # Safety
/// `address` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_allocate_order(
    order: u32,
    migrate_type: u32,
    address: *mut u64,
) -> i32 {
    let allocate = || {
        let migrate_type = self::migrate_type(migrate_type)?;
        Ok(manager()?.allocate_order(self::order(order)?, migrate_type)?.address())
    };
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { put(address, allocate) }
}

/// Frees what `fw_allocate_order` gave, with its order.
///
/// # Safety
/// The caller owns these pages, and nobody uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_order(address: u64, order: u32) -> i32 {
    let free = || {
        let (manager, start, order) = (manager()?, frame(address)?, self::order(order)?);
        // SAFETY: passed on to the caller (invariants 42 and 51).
        let freed = unsafe { manager.free_order(start, order) };
        unless_of_others(manager, freed, PfnRange::of_order(start, order))
    };
    number(free())
}

/// Allocates `pages` movable pages in one run, any number, whose first is aligned to
/// 2^`align_order` pages, and writes their physical address to `address`.
///
/// # Safety
/// `address` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_allocate_pages(pages: u64, align_order: u32, address: *mut u64) -> i32 {
    // SAFETY: passed on to the caller (invariant 51).
    unsafe {
        put(address, || {
            let range = manager()?.allocate_pages(pages, order(align_order)?)?;
            Ok(range.start.address())
        })
    }
}

/// Allocates `pages` pages of a migrate type (`fw_type`) in one run of at most 1 GiB, whose first
/// is aligned to 2^`align_order` pages, and writes their physical address to `address`. Stacks,
/// heaps and rings are `FW_UNMOVABLE`.
///
/// # Safety
/// `address` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_allocate_run(
    pages: u64,
    align_order: u32,
    migrate_type: u32,
    address: *mut u64,
) -> i32 {
    let allocate = || {
        let (align, migrate_type) = (order(align_order)?, self::migrate_type(migrate_type)?);
        let request = Request { align, migrate_type, ..Request::pages(pages) };
        Ok(manager()?.allocate(&request)?.start.address())
    };
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { put(address, allocate) }
}

/// Frees a run of pages that `fw_allocate_pages` or `fw_allocate_run` gave, or a part of one.
///
/// # Safety
/// The caller owns these pages, and nobody uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_pages(address: u64, pages: u64) -> i32 {
    let free = || {
        let (manager, start) = (manager()?, frame(address)?);
        // SAFETY: passed on to the caller (invariants 42 and 51).
        let freed = unsafe { manager.free_pages(start, pages) };
        let end = Pfn(start.0.saturating_add(pages));
        unless_of_others(manager, freed, PfnRange { start, end })
    };
    number(free())
}

/// Allocates whole movable pages for `bytes` bytes, aligned to `align_bytes` and to a page, and
/// writes their physical address to `address`. No bytes take one page. For pages that stay where
/// they are there is `fw_allocate_run`.
///
/// # Safety
/// `address` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_allocate_layout(
    bytes: u64,
    align_bytes: u64,
    address: *mut u64,
) -> i32 {
    // SAFETY: passed on to the caller (invariant 51).
    unsafe {
        put(address, || {
            Ok(manager()?.allocate_layout(layout(bytes, align_bytes)?)?.start.address())
        })
    }
}

/// Frees what `fw_allocate_layout` gave for `bytes` bytes.
///
/// # Safety
/// The caller owns these pages, and nobody uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_layout(address: u64, bytes: u64) -> i32 {
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { fw_free_pages(address, bytes.div_ceil(PAGE_SIZE).max(1)) }
}

/// Where physical `address` is seen. Null where it is not, in the first page, which is never handed
/// out, and while memory is not up.
#[unsafe(no_mangle)]
pub extern "C" fn fw_direct(address: u64) -> *mut c_void {
    let place = manager().ok().map(Manager::platform);
    let place = place.filter(|platform| address < platform.direct_limit() && address >= PAGE_SIZE);
    place.map_or(core::ptr::null_mut(), |platform| platform.direct(address).as_ptr().cast())
}

/// Adds memory that the map did not have, below `direct_limit`. Start and size are multiples of 2
/// MiB. Of the memory that is there, its tables take 1 MiB at most, or about 24 bytes for each GiB
/// that is added if that is more; the others lie in the new memory. With
/// `memory_hotplug.memmap_on_memory=N` on the command line all of them are in the memory that is
/// there. `pages`, if it is not null, gets the pages that can be handed out.
///
/// # Safety
/// The range is memory that nobody uses, seen at `direct_base`, and stays so. `pages` is null or
/// points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_add_memory(start: u64, bytes: u64, pages: *mut u64) -> i32 {
    let add = || {
        let (manager, range) = (manager()?, span(start, bytes)?);
        if range.end > manager.platform().direct_limit() {
            return Err(FW_BEYOND_ADDRESS_SPACE);
        }
        // SAFETY: passed on to the caller (invariants 15 and 51).
        let added = unsafe { manager.hotplug().add(range, NodeId::ZERO, Grade::Any) };
        logged(manager, added).map(|added| added.pages)
    };
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { put_if_wanted(pages, add) }
}

/// Hands memory over that was in use when memory came up: an initial RAM disk, page tables of the
/// boot loader, ACPI tables. The pages that lie wholly in the range, each once. All of them have to
/// be memory that was used, or none is handed over: a range that begins at 0 is given from 4096 on,
/// as page 0 is never handed out. `pages`, if it is not null, gets their number.
///
/// # Safety
/// The caller owns the range, having named it in `used`, and nobody uses it any more. `pages`
/// is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_release(start: u64, bytes: u64, pages: *mut u64) -> i32 {
    let release = || {
        let (manager, range) = (manager()?, span(start, bytes)?);
        // SAFETY: passed on to the caller (invariants 42 and 51).
        let released = unsafe { manager.hotplug().release_bytes(range) };
        logged(manager, released).map(|released| released.pages)
    };
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { put_if_wanted(pages, release) }
}

/// Writes a result that C may not want.
///
/// # Safety
/// As of [`put`].
unsafe fn put_if_wanted<T>(to: *mut T, value: impl FnOnce() -> Result<T, fw_error>) -> i32 {
    if to.is_null() {
        return number(value().map(drop));
    }
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { put(to, value) }
}

/// Counts pages. Takes no lock: what others do meanwhile is in some counters and not in others.
///
/// # Safety
/// `counters` is null or points to an `fw_counters`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_get_counters(counters: *mut fw_counters) -> i32 {
    // SAFETY: passed on to the caller (invariant 51).
    unsafe {
        put(counters, || manager().map(|manager| fw_counters::of(manager, &manager.totals())))
    }
}

/// Gives back what CPUs keep for their next requests. Where others cannot be waited for
/// (`can_wait`), only the calling CPU does. `pages`, if it is not null, gets how many.
///
/// # Safety
/// `pages` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_drain(pages: *mut u64) -> i32 {
    let drain = || manager().and_then(|manager| logged(manager, manager.drain()));
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { put_if_wanted(pages, drain) }
}

/// Recounts everything and compares it with the tables; slow, for tests. `counters`, if it is not
/// null, gets what was counted.
///
/// # Safety
/// `counters` is null or points to an `fw_counters`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_verify(counters: *mut fw_counters) -> i32 {
    let verify = || {
        let manager = manager()?;
        let counts = manager.verify().map_err(|fault| {
            manager.platform().say(format_args!("{fault}"));
            FW_FAULT
        })?;
        Ok(fw_counters::of(manager, &counts))
    };
    // SAFETY: passed on to the caller (invariant 51).
    unsafe { put_if_wanted(counters, verify) }
}
