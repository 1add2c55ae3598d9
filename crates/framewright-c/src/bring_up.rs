//! From a memory map to a manager.

use crate::error::*;
use crate::instance;
use crate::platform::{Checked, fw_platform};
use core::cell::UnsafeCell;
use core::ffi::c_char;
use core::mem::MaybeUninit;
use framewright::firmware::{MapBuilder, MapRange, MemoryKind, MemoryMap, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::parameters::{MAX_MEMMAP, Problem};
use framewright::units::{PHYSICAL_ADDRESS_END, PhysRange};
use framewright::{BringUp, Manager, Parameters, Platform};

/// Ranges of the map that always have room, whatever their order and overlaps.
const MOST_RANGES: usize = 256;
/// The pieces into which these ranges, and those of a command line, can cut each other: see
/// `MapBuilder::new`.
const MOST_PIECES: usize = 2 * (MOST_RANGES + MAX_MEMMAP) + 5;
/// Ranges that are in use.
const MOST_USED: usize = 64;

/// Bytes of a command line, its zero included.
const MOST_TEXT_BYTES: usize = 4096;

/// What a range of the memory map is.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum fw_kind {
    /// Usable memory (e820 type 1).
    FW_CONVENTIONAL = 0,
    /// Must not be touched (e820 type 2 and every unknown type).
    FW_RESERVED = 1,
    /// ACPI tables, in use until they are released with `fw_release` (e820 type 3). They count as
    /// one of the ranges that are `used`, each.
    FW_ACPI_RECLAIMABLE = 2,
    /// ACPI non-volatile storage (e820 type 4).
    FW_ACPI_NVS = 3,
    /// Known to be bad (e820 type 5).
    FW_UNUSABLE = 4,
}

/// A range of the memory map. Ranges may come in any order, touch and overlap: the most restrictive
/// kind wins on every byte. Those of no bytes are skipped.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fw_range {
    /// Its first physical address.
    pub start: u64,
    /// Its size.
    pub bytes: u64,
    /// An `fw_kind`.
    pub kind: u32,
}

/// Physical memory that is in use when memory comes up.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fw_span {
    /// Its first physical address.
    pub start: u64,
    /// Its size.
    pub bytes: u64,
}

/// What bring-up needs and kernels' stacks have no room for.
struct Scratch {
    pieces: [MapRange; MOST_PIECES],
    used: [PhysRange; MOST_USED],
    storage: MaybeUninit<MemblockStorage>,
    parameters: MaybeUninit<Parameters>,
    topology: MaybeUninit<Topology<'static>>,
}

struct Shared(UnsafeCell<Scratch>);

// SAFETY: only the caller that is making the manager has it (invariant 51).
unsafe impl Sync for Shared {}

static SCRATCH: Shared = Shared(UnsafeCell::new(Scratch {
    pieces: [MapRange::EMPTY; MOST_PIECES],
    used: [PhysRange::new(0, 0); MOST_USED],
    storage: MaybeUninit::uninit(),
    parameters: MaybeUninit::uninit(),
    topology: MaybeUninit::uninit(),
}));

/// Writes a value to its place in the scratch. Not inlined, so that what the stack holds of the
/// value meanwhile is gone when the next step begins. Through a pointer, because builds that are
/// not optimised pass values by way of the stack.
#[inline(never)]
fn place<T>(place: &mut MaybeUninit<T>, make: impl FnOnce() -> T) -> &mut T {
    // SAFETY: it is a place for such a value.
    unsafe { place.as_mut_ptr().write(make()) };
    // SAFETY: it was just written.
    unsafe { place.assume_init_mut() }
}

/// An array as C passes it; no elements need no array.
///
/// # Safety
/// `start` points to `count` elements that nobody changes meanwhile, unless `count` is 0.
unsafe fn array<'a, T>(start: *const T, count: usize) -> Result<&'a [T], fw_error> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() {
        return Err(FW_NULL);
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(FW_TOO_MANY_RANGES);
    }
    // SAFETY: the caller promises the elements (invariant 51).
    Ok(unsafe { core::slice::from_raw_parts(start, count) })
}

/// A string of C; none is an empty one. The library's own search for the end would want C's
/// `strlen`.
///
/// # Safety
/// `start` is null, or a zero comes before the text is too long.
unsafe fn text<'a>(start: *const c_char) -> Result<&'a str, fw_error> {
    if start.is_null() {
        return Ok("");
    }
    let start = start.cast::<u8>();
    // SAFETY: no zero was found before, so the byte is there, says the caller (invariant 51).
    let mut ends = (0..MOST_TEXT_BYTES).map(|at| unsafe { start.wrapping_add(at).read() } == 0);
    let bytes = ends.position(|is_end| is_end).ok_or(FW_WRONG_TEXT)?;
    // SAFETY: so many bytes were read just now (invariant 51).
    let text = unsafe { core::slice::from_raw_parts(start, bytes) };
    core::str::from_utf8(text).map_err(|_| FW_WRONG_TEXT)
}

/// The range of `bytes` bytes from `start` on.
pub(crate) fn span(start: u64, bytes: u64) -> Result<PhysRange, fw_error> {
    let end = start.checked_add(bytes).filter(|&end| end <= PHYSICAL_ADDRESS_END);
    end.map(|end| PhysRange::new(start, end)).ok_or(FW_BEYOND_ADDRESS_SPACE)
}

const ACPI_RECLAIMABLE: u32 = fw_kind::FW_ACPI_RECLAIMABLE as u32;

fn kind(kind: u32) -> Result<MemoryKind, fw_error> {
    Ok(match kind {
        0 => MemoryKind::Conventional,
        1 => MemoryKind::Reserved,
        // Memory, to be released.
        ACPI_RECLAIMABLE => MemoryKind::Conventional,
        3 => MemoryKind::AcpiNvs,
        4 => MemoryKind::Unusable,
        _ => return Err(FW_WRONG_KIND),
    })
}

/// Brings memory up. What is in `map` and not in `used` belongs to the manager from now on; the
/// kernel's image, its stack and what the boot loader left belong in `used`. Page 0 is never
/// handed out. `command_line` may be null and has less than 4096 bytes; words in it that are no
/// parameters of the manager are skipped.
///
/// If it fails nothing has happened, and it may be called again. It takes up to 16 KiB of stack, 32
/// in debug builds.
///
/// # Safety
/// What `map` calls conventional and `used` does not name is memory that nobody uses, seen at
/// `direct_base`. `map` and `used` have as many elements as is said, and `command_line` ends in a
/// zero. The platform's functions do what their descriptions say, for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_bring_up(
    platform: *const fw_platform,
    map: *const fw_range,
    map_count: usize,
    used: *const fw_span,
    used_count: usize,
    command_line: *const c_char,
) -> i32 {
    let prepare = || {
        // SAFETY: passed on to the caller (invariant 51).
        let platform = unsafe { Checked::read(platform) }?;
        // SAFETY: passed on to the caller (invariant 51).
        let map = unsafe { array(map, map_count) }?;
        // SAFETY: passed on to the caller (invariant 51).
        let used = unsafe { array(used, used_count) }?;
        // SAFETY: passed on to the caller (invariant 51).
        let text = unsafe { text(command_line) }?;
        instance::make(platform, |platform, manager| {
            // SAFETY: the caller that makes the manager has it to itself (invariant 51).
            let scratch = unsafe { &mut *SCRATCH.0.get() };
            let Scratch { pieces, used: places, storage, parameters, topology } = scratch;
            let started_ns = platform.now_ns();
            let say = &mut |problem: Problem<'_>| platform.say(format_args!("{problem}"));
            let parameters = &*place(parameters, || Parameters::parse(text, say));
            let topology = &*place(topology, || Topology::new(&mut []));
            let storage = place(storage, MemblockStorage::new);
            let known = read(platform, pieces, places, map, used, parameters)?;
            let input = BringUp { parameters, started_ns };
            // SAFETY: passed on to the caller (invariants 1 and 51); the instance is made once.
            unsafe { start(platform, manager, storage, topology, known, &input) }
        })
    };
    number(prepare())
}

/// The memory map, and what is in use.
type Known<'a> = (MemoryMap<'a>, &'a [PhysRange]);

/// Reads the map, with what the command line changes of it, and what is in use.
#[inline(never)]
fn read<'a>(
    platform: &Checked,
    pieces: &'a mut [MapRange],
    places: &'a mut [PhysRange],
    map: &[fw_range],
    used: &[fw_span],
    parameters: &Parameters,
) -> Result<Known<'a>, fw_error> {
    let mut builder = MapBuilder::new(pieces);
    // The kind of what is empty may be anything.
    for range in map.iter().filter(|range| range.bytes != 0) {
        builder.add(range.start, range.bytes, kind(range.kind)?)?;
    }
    builder.limit(platform.direct_limit())?;
    parameters.apply(&mut builder)?;
    let acpi = map.iter().filter(|range| range.kind == ACPI_RECLAIMABLE && range.bytes != 0);
    let acpi = acpi.map(|range| span(range.start, range.bytes));
    let mut used_count = 0;
    for used in used.iter().map(|used| span(used.start, used.bytes)).chain(acpi) {
        *places.get_mut(used_count).ok_or(FW_TOO_MANY_RANGES)? = used?;
        used_count += 1;
    }
    Ok((builder.finish()?, &places[..used_count]))
}

/// Makes the manager in its place.
///
/// # Safety
/// See [`fw_bring_up`].
#[inline(never)]
unsafe fn start<'a>(
    platform: &'static Checked,
    place: &'a mut MaybeUninit<Manager<Checked>>,
    storage: &mut MemblockStorage,
    topology: &Topology<'_>,
    (map, used): Known<'_>,
    input: &BringUp<'_>,
) -> Result<&'a mut Manager<Checked>, fw_error> {
    // SAFETY: passed on to the caller (invariants 1 and 51).
    let early = unsafe { Memblock::with_reserved(platform, storage, map, topology, used) }
        .inspect_err(|error| platform.say(format_args!("{error}")))?;
    let manager = Manager::bring_up(early, input).map_err(|failed| {
        platform.say(format_args!("{}", failed.error));
        failed.error
    })?;
    Ok(place.write(manager))
}
