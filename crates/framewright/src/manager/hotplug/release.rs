//! Handing over what was reserved for boot.
//!
//! Orders of memory: Relaxed: counts that are only told.

use super::{Hotplug, Piece, bytes_of, pages_of};
use crate::manager::init::adopts_at_once;
use crate::manager::state::hotplug::Changing;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{PAGE_SIZE, Pfn, PfnRange, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::Zone;
use crate::zone::release::Unreleasable;
use core::panic::Location;
use core::{fmt, ptr};

/// Blocks that are looked at under one hold of a lock.
const BLOCKS_AT_ONCE: u32 = 64;

/// What was released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// Pages that are free now.
    pub pages: u64,
}

impl Released {
    /// What Linux says of it: `Freeing initrd memory: 8192K` for `what` *initrd* (Linux:
    /// `mm/page_alloc.c`, `free_reserved_area`).
    #[must_use]
    pub const fn line(self, what: &str) -> impl fmt::Display {
        Line { what, kbytes: self.pages * (PAGE_SIZE / 1024) }
    }
}

struct Line<'a> {
    what: &'a str,
    kbytes: u64,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Freeing {} memory: {}K", self.what, self.kbytes)
    }
}

/// Why frames were not released. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseError {
    /// There is no frame in the range.
    Empty(PfnRange),
    /// This frame is no memory that the manager knows, or frame 0, which nobody gets.
    NotMemory(Pfn),
    /// This frame was given to the manager already: at bring-up, or by a release.
    Managed(Pfn),
    /// This frame is of the manager's own tables.
    Manager(Pfn),
    /// This frame cannot be used before it is accepted.
    Unaccepted(Pfn),
    /// The block of this frame would be one more that is released in part, and there is no place to
    /// write down which of its frames are.
    TooManyPieces(Pfn),
    /// Somebody adds, removes or releases memory and cannot be waited for from here, or does so
    /// further out on this task.
    Busy,
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(range) => write!(f, "there is no frame in {range:?}"),
            Self::NotMemory(pfn) => write!(f, "pfn {pfn} is no memory"),
            Self::Managed(pfn) => write!(f, "pfn {pfn} is managed already"),
            Self::Manager(pfn) => write!(f, "pfn {pfn} is of the manager's tables"),
            Self::Unaccepted(pfn) => write!(f, "pfn {pfn} is not accepted"),
            Self::TooManyPieces(pfn) => {
                write!(f, "too many blocks are released in part: that of pfn {pfn} is one more")
            }
            Self::Busy => f.write_str("somebody else adds, removes or releases memory"),
        }
    }
}

impl core::error::Error for ReleaseError {}

impl<'m, P: Platform> Hotplug<'m, P> {
    /// Hands frames over that were reserved when memory came up: an initial RAM disk, code and data
    /// that only boot needed, tables of firmware, memory of the early allocator. Any frames, in any
    /// pieces, each once (Linux: `free_reserved_area`, `memblock_free_late`).
    ///
    /// # Errors
    /// [`ReleaseError`]; nothing has changed.
    ///
    /// # Safety
    /// The caller owns the frames, as whoever reserved them, and nobody uses them any more
    /// (invariant 42).
    pub unsafe fn release(self, range: PfnRange) -> Result<Released, ReleaseError> {
        // Until watermarks follow: who adds memory after that counts what came here, too.
        let _changing = self.make_allocated(range, |frames| {
            // They are allocated now, to us, and have any content.
            self.manager.fill_added(frames, true);
            let freed = self.manager.free_bare(frames);
            debug_assert!(freed.is_ok(), "adopted: {freed:?}");
        })?;
        self.manager.hotplug.released_pages.fetch_add(range.pages(), Ordering::Relaxed);
        self.after_change();
        Ok(Released { pages: range.pages() })
    }

    /// Makes frames that were reserved when memory came up allocated ones: who reserved them has
    /// them still, and frees them like any allocation, in any pieces, whenever it is done with
    /// them. For kernels that have one call for both.
    ///
    /// # Errors
    /// [`ReleaseError`]; nothing has changed.
    #[track_caller]
    pub fn adopt(self, range: PfnRange) -> Result<(), ReleaseError> {
        let place = Location::caller();
        self.make_allocated(range, |frames| self.manager.note_adopted(frames, place)).map(drop)
    }

    /// [`adopt`](Self::adopt) of frames all of which are reserved, before anybody else has the
    /// manager. What cannot be adopted stays reserved.
    pub(crate) fn adopt_at_start(self, range: PfnRange) {
        if !cfg!(feature = "vmemmap") || adopts_at_once(self.manager.hotplug.descriptors_are_wanted)
        {
            return self.manager.note_adopted(range, Location::caller());
        }
        let platform = self.manager.platform;
        let blocks = BlockRange::around(range);
        // What lies side by side is one allocation.
        let mut run = PfnRange { end: range.start, ..range };
        for piece in self.known(blocks) {
            let frames = pages_of(piece.blocks).intersection(range);
            for part in parts(frames) {
                let index = piece.segment.index_of(BlockNumber::containing(part.start));
                let wants = piece.zone.check_release(platform, index, part);
                if wants.is_ok_and(|wants| !wants || piece.zone.partials_left(platform) != 0) {
                    piece.zone.adopt(platform, index, part);
                    if part.start != run.end {
                        self.manager.note_adopted(run, Location::caller());
                        run.start = part.start;
                    }
                    run.end = part.end;
                }
            }
        }
        self.manager.note_adopted(run, Location::caller());
    }

    /// Makes reserved frames allocated ones; those of each segment are `then` the callback's.
    fn make_allocated(
        self,
        range: PfnRange,
        then: impl Fn(PfnRange),
    ) -> Result<Changing<'m>, ReleaseError> {
        if range.is_empty() {
            return Err(ReleaseError::Empty(range));
        }
        let end = Pfn::containing(crate::units::PHYSICAL_ADDRESS_END);
        if range.end > end {
            return Err(ReleaseError::NotMemory(range.start.max(end)));
        }
        let changing = self.begin_release()?;
        if range.start == Pfn(0) {
            return Err(ReleaseError::NotMemory(range.start));
        }
        if let Some(pfn) = self.own_frame(range) {
            return Err(ReleaseError::Manager(pfn));
        }
        let platform = self.manager.platform;
        let blocks = BlockRange::around(range);
        let mut next = range.start;
        // Only the first block and the last can be managed in part afterwards.
        let mut first_in_part: Option<&Zone> = None;
        for piece in self.known(blocks) {
            let frames = pages_of(piece.blocks).intersection(range);
            if frames.start != next {
                return Err(ReleaseError::NotMemory(next));
            }
            next = frames.end;
            self.bring_up(piece, frames)?;
            for part in parts(frames) {
                let index = piece.segment.index_of(BlockNumber::containing(part.start));
                let wants = piece
                    .zone
                    .check_release(platform, index, part)
                    .map_err(|error| refused(error, part))?;
                if wants {
                    let is_second = first_in_part.is_some_and(|it| ptr::eq(it, piece.zone));
                    if piece.zone.partials_left(platform) <= usize::from(is_second) {
                        return Err(ReleaseError::TooManyPieces(part.start));
                    }
                    first_in_part = Some(piece.zone);
                }
            }
        }
        if next != range.end {
            return Err(ReleaseError::NotMemory(next));
        }
        for piece in self.known(blocks) {
            let frames = pages_of(piece.blocks).intersection(range);
            for part in parts(frames) {
                let index = piece.segment.index_of(BlockNumber::containing(part.start));
                piece.zone.adopt(platform, index, part);
            }
            then(frames);
        }
        Ok(changing)
    }

    /// [`release`](Self::release) of bytes: of the frames that lie wholly in them.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn release_bytes(self, range: PhysRange) -> Result<Released, ReleaseError> {
        // SAFETY: passed on to the caller.
        unsafe { self.release(range.whole_frames()) }
    }

    fn begin_release(self) -> Result<Changing<'m>, ReleaseError> {
        self.begin().map_err(|_| ReleaseError::Busy)
    }

    /// Frames that have been released since bring-up.
    #[must_use]
    pub fn released_pages(self) -> u64 {
        self.manager.hotplug.released_pages.load(Ordering::Relaxed)
    }

    /// The first frame of a range that is of the manager's tables.
    fn own_frame(self, range: PfnRange) -> Option<Pfn> {
        let zones = self.manager.zones().iter().map(|zone| zone.table_memory());
        let windows = self.manager.hotplug.segments.as_slice().iter();
        let inside =
            windows.zip(self.manager.hotplug.own_tables.as_slice()).map(|(window, &own)| {
                let end = BlockNumber(window.start.0 + own);
                bytes_of(BlockRange { start: window.start, end })
            });
        let tables = zones.chain(self.manager.hotplug.tables).chain(inside);
        let own = tables.map(|table| table.touched_frames().intersection(range));
        own.filter(|own| !own.is_empty()).map(|own| own.start).min()
    }

    /// Withheld memory around what is released comes up first, so that its descriptors are there.
    fn bring_up(self, piece: Piece, frames: PfnRange) -> Result<(), ReleaseError> {
        let isolation = self.manager.isolation();
        isolation.bring_up_withheld(piece.zone, frames).map_err(|_| ReleaseError::Busy)
    }
}

fn refused(error: Unreleasable, part: PfnRange) -> ReleaseError {
    match error {
        Unreleasable::NotMemory(offset) => ReleaseError::NotMemory(frame(part, offset)),
        Unreleasable::Managed(offset) => ReleaseError::Managed(frame(part, offset)),
        Unreleasable::Unaccepted => ReleaseError::Unaccepted(part.start),
    }
}

/// The frame `offset` frames into the block of a part.
fn frame(part: PfnRange, offset: usize) -> Pfn {
    BlockNumber::containing(part.start).start().add(offset as u64)
}

/// What of frames lies in each block, some whole blocks at a time.
fn parts(frames: PfnRange) -> impl Iterator<Item = PfnRange> {
    let mut rest = frames;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let block = BlockNumber::containing(rest.start);
        let next = BlockNumber(block.0 + 1).start();
        let whole = block.start() == rest.start && next <= rest.end;
        let end = if whole {
            let most = BlockNumber(block.0.saturating_add(BLOCKS_AT_ONCE)).start();
            let last = BlockNumber::containing(rest.end).start();
            most.min(last)
        } else {
            next.min(rest.end)
        };
        let part = PfnRange { start: rest.start, end };
        rest.start = end;
        Some(part)
    })
}
