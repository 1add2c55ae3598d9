//! Physical memory: reserved address space of this process, which takes host memory only once it is
//! touched.
//!
//! Usable ranges are mapped, and everything else faults. A pattern is a small file that is mapped
//! privately again and again, so it fills frames at no cost until they are written.

use framewright::units::PhysRange;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The values that every byte of memory may have at the start. In memory that was never cleared, a
/// table then shows, depending on the pattern, each state of a block (the low four bits of a word),
/// and one value that is not a state.
pub const PATTERNS: [u8; 13] =
    [0x00, 0x11, 0x22, 0x33, 0x44, 0xa5, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xff];

/// The size of the part at each end of a range that holds the pattern; the middle does not, because
/// the host limits the number of mappings.
const POISONED_EDGE: usize = 2 << 30;
/// The sizes of the files from which a pattern is mapped, for small and for large ranges.
const TILES: [usize; 2] = [2 << 20, 16 << 20];
/// The end of the addresses that a linear direct map can have.
const LINEAR_END: u64 = 1 << 44;
/// The direct map is only aligned to pages, because no interface promises more.
const SKEW: usize = 0x7000;

/// How physical addresses become addresses of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Base plus address, if that fits.
    Auto,
    /// Each range separately, the highest first.
    Scattered,
}

struct Region {
    range: PhysRange,
    start: NonNull<u8>,
}

/// Physical memory; see the module documentation.
pub(super) struct Memory {
    base: NonNull<u8>,
    size: usize,
    regions: Vec<Region>,
    retired: AtomicBool,
}

// SAFETY: the pointers name a mapping that lives as long as the process; users that write through
// them are responsible for their accesses.
unsafe impl Send for Memory {}
// SAFETY: the pointers name a mapping that lives as long as the process; users that write through
// them are responsible for their accesses.
unsafe impl Sync for Memory {}

impl Memory {
    /// `ranges` are ascending, disjoint and page aligned.
    pub(super) fn new(ranges: &[PhysRange], layout: Layout, pattern: u8) -> Self {
        let end = ranges.last().map_or(0, |last| last.end);
        let linear = layout == Layout::Auto && end <= LINEAR_END;
        let mut offsets = Vec::with_capacity(ranges.len());
        let mut size = SKEW;
        if linear {
            offsets.extend(ranges.iter().map(|range| SKEW + to_usize(range.start)));
            size += to_usize(end);
        } else {
            // Gaps of odd sizes leave no relation between ranges except their order, which is
            // reversed.
            for range in ranges.iter().rev() {
                offsets.push(size);
                size += to_usize(range.size()) + SKEW;
            }
            offsets.reverse();
        }
        let base = map(None, size, libc::PROT_NONE, libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1);
        let memory = Self {
            base,
            size,
            regions: ranges
                .iter()
                .zip(offsets)
                .map(|(&range, offset)| region(base, range, offset))
                .collect(),
            retired: AtomicBool::new(false),
        };
        for region in &memory.regions {
            Self::open(region, pattern);
        }
        memory
    }

    /// Makes a region usable.
    fn open(region: &Region, pattern: u8) {
        let poisoned = pattern != 0;
        let size = to_usize(region.range.size());
        let fixed = libc::MAP_FIXED | libc::MAP_NORESERVE;
        if !poisoned || size > 2 * POISONED_EDGE {
            map_usable(region.start, size, fixed | libc::MAP_ANONYMOUS, -1);
        }
        if poisoned {
            let middle = POISONED_EDGE..size.saturating_sub(POISONED_EDGE).max(POISONED_EDGE);
            let tile = if size <= TILES[1] { 0 } else { 1 };
            let mut offset = 0;
            while offset < size {
                if middle.contains(&offset) {
                    offset = middle.end;
                }
                let piece = TILES[tile].min(size - offset);
                // SAFETY: the offset is inside the region, which is one mapping.
                let address = unsafe { region.start.add(offset) };
                map_usable(address, piece, fixed, pattern_file(tile, pattern));
                offset += piece;
            }
        }
    }

    /// The end of the last region.
    pub(super) fn end(&self) -> u64 {
        self.regions.last().map_or(0, |last| last.range.end)
    }

    /// The host address of `address`, if a region holds it.
    pub(super) fn find(&self, address: u64) -> Option<NonNull<u8>> {
        let index = self.regions.partition_point(|region| region.range.end <= address);
        let region = self.regions.get(index).filter(|region| region.range.start <= address)?;
        // SAFETY: the address is in the region's range, so the offset is inside its mapping.
        Some(unsafe { region.start.add(to_usize(address - region.range.start)) })
    }

    pub(super) fn direct(&self, address: u64) -> NonNull<u8> {
        assert!(!self.retired.load(Ordering::Relaxed), "direct({address:#x}) on a retired machine");
        self.find(address).unwrap_or_else(|| panic!("direct({address:#x}) is not usable memory"))
    }

    pub(super) fn word(&self, address: u64) -> &AtomicU64 {
        assert!(address.is_multiple_of(8), "{address:#x} is not a multiple of 8");
        let word = self.direct(address).cast::<AtomicU64>();
        // SAFETY: the word is mapped, aligned and inside one page, and every bit pattern is a valid
        // value.
        unsafe { word.as_ref() }
    }

    /// Takes all access rights away from memory of one region, so that accesses fault.
    pub(super) fn close(&self, range: PhysRange) {
        self.protect(range, libc::PROT_NONE);
    }

    /// Makes closed memory usable again, with its old content.
    pub(super) fn reopen(&self, range: PhysRange) {
        self.protect(range, libc::PROT_READ | libc::PROT_WRITE);
    }

    fn protect(&self, range: PhysRange, protection: libc::c_int) {
        if range.is_empty() {
            return;
        }
        let start = self.direct(range.start).as_ptr().cast();
        // SAFETY: the range lies in one region of this module's own mapping.
        let changed = unsafe { libc::mprotect(start, to_usize(range.size()), protection) };
        assert!(changed == 0, "mprotect of {range:?}: {}", std::io::Error::last_os_error());
    }

    /// Removes memory of one region: accesses fault, and the content is lost.
    pub(super) fn unplug(&self, range: PhysRange) {
        let flags = libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = self.direct(range.start);
        map(Some(start), to_usize(range.size()), libc::PROT_NONE, flags, -1);
    }

    /// Brings memory of one region back, with new content.
    pub(super) fn plug(&self, range: PhysRange, pattern: u8) {
        Self::open(&Region { range, start: self.direct(range.start) }, pattern);
    }

    /// Replaces everything with a mapping that faults.
    pub(super) fn retire(&self) {
        if self.retired.swap(true, Ordering::Relaxed) {
            return;
        }
        let flags = libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        map(Some(self.base), self.size, libc::PROT_NONE, flags, -1);
    }
}

fn region(base: NonNull<u8>, range: PhysRange, offset: usize) -> Region {
    // SAFETY: the layout reserved room for every range at its offset.
    Region { range, start: unsafe { base.add(offset) } }
}

fn map_usable(address: NonNull<u8>, size: usize, flags: libc::c_int, file: libc::c_int) {
    map(Some(address), size, libc::PROT_READ | libc::PROT_WRITE, flags, file);
}

pub(super) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the host has 64-bit addresses")
}

/// Makes a private mapping with `mmap`. `at` is an address inside a reservation of this module, and
/// `flags` then say to replace it.
pub(super) fn map(
    at: Option<NonNull<u8>>,
    size: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    file: libc::c_int,
) -> NonNull<u8> {
    let address = at.map_or(std::ptr::null_mut(), NonNull::as_ptr).cast();
    // SAFETY: without an address a new mapping is made; with one, a part is replaced of a
    // reservation that this module made and that holds no reference.
    let mapped =
        unsafe { libc::mmap(address, size, protection, flags | libc::MAP_PRIVATE, file, 0) };
    assert!(
        mapped != libc::MAP_FAILED,
        "the host cannot map {size:#x} bytes: {} (retire machines that are done)",
        std::io::Error::last_os_error()
    );
    NonNull::new(mapped.cast()).expect("mmap does not return the null address")
}

/// A file as large as tile `tile`, with `pattern` in every byte, made once.
fn pattern_file(tile: usize, pattern: u8) -> libc::c_int {
    static FILES: Mutex<Vec<((usize, u8), File)>> = Mutex::new(Vec::new());
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, file)) = files.iter().find(|(key, _)| *key == (tile, pattern)) {
        return file.as_raw_fd();
    }
    // SAFETY: the name is a terminated string.
    let descriptor = unsafe { libc::memfd_create(c"pattern".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and has no other owner.
    let file = unsafe { File::from_raw_fd(descriptor) };
    let piece = [pattern; 1 << 16];
    for offset in (0..TILES[tile]).step_by(piece.len()) {
        std::os::unix::fs::FileExt::write_all_at(&file, &piece, offset as u64)
            .expect("memory for the pattern");
    }
    files.push(((tile, pattern), file));
    descriptor
}
