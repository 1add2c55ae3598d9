//! Hands over memory that was reserved for boot.
//!
//! Orders of memory: Relaxed: counts that are only reported.

use super::{Hotplug, Piece, bytes_of, pages_of};
use crate::manager::state::hotplug::Changing;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{PAGE_SIZE, Pfn, PfnRange, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::Zone;
use crate::zone::release::Unreleasable;
use core::panic::Location;
use core::{fmt, ptr};

/// How many blocks are examined under one hold of a lock.
const BLOCKS_AT_ONCE: u32 = 64;

/// The result of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// Pages that are free now.
    pub pages: u64,
}

impl Released {
    /// Returns Linux's message about it: `Freeing initrd memory: 8192K` if `what` is *initrd*
    /// (Linux: `mm/page_alloc.c`, `free_reserved_area`).
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
    /// The manager does not know this frame as memory, or it is frame 0, which nobody gets.
    NotMemory(Pfn),
    /// The manager already has this frame: since bring-up, or from a release.
    Managed(Pfn),
    /// This frame belongs to the manager's own tables.
    Manager(Pfn),
    /// This frame, which is to be used or lies behind what is, has not been accepted or could not
    /// be.
    Unaccepted(Pfn),
    /// The block of this frame would be released in part, and there is no place left to record
    /// which of its frames are.
    TooManyPieces(Pfn),
    /// Another caller adds, removes or releases memory and cannot be waited for from this context,
    /// or this task is already doing so in an outer call.
    Busy,
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(range) => write!(f, "{range:?} holds no frame"),
            Self::NotMemory(pfn) => write!(f, "pfn {pfn} is not memory"),
            Self::Managed(pfn) => write!(f, "pfn {pfn} is managed already"),
            Self::Manager(pfn) => write!(f, "pfn {pfn} belongs to the manager's tables"),
            Self::Unaccepted(pfn) => write!(f, "pfn {pfn} is not accepted"),
            Self::TooManyPieces(pfn) => {
                write!(f, "too many partly released blocks: no room for that of pfn {pfn}")
            }
            Self::Busy => f.write_str("memory is being added, removed or released already"),
        }
    }
}

impl core::error::Error for ReleaseError {}

impl<'m, P: Platform> Hotplug<'m, P> {
    /// Hands over frames that were reserved at bring-up: an initial RAM disk, code and data that
    /// only boot needed, tables of firmware, memory of the early allocator. Takes any frames, in
    /// any pieces, each once (Linux: `free_reserved_area`, `memblock_free_late`). Blocks where a
    /// node's memory was [movable](crate::manager::Moving::start_on_node) at boot get that grade,
    /// if the caller may wait for other CPUs ([`Platform::can_wait`]).
    ///
    /// Whole blocks that firmware reported as unaccepted cannot be released. Whoever releases
    /// reserved parts of such a block has accepted them
    /// ([`reads_past_pages`](crate::AcceptMemory::reads_past_pages)).
    ///
    /// # Errors
    /// [`ReleaseError`]; nothing has changed.
    ///
    /// # Safety
    /// The caller owns the frames, which it has reserved, and nobody uses them any more (invariant
    /// 42).
    pub unsafe fn release(self, range: PfnRange) -> Result<Released, ReleaseError> {
        self.make_allocated(range, &|frames| {
            // The frames are now allocated to this call, and their content does not matter.
            self.manager.fill_added(frames, true);
            let freed = self.manager.free_bare(frames);
            debug_assert!(freed.is_ok(), "adopted: {freed:?}");
        })?;
        self.manager.hotplug.released_pages.fetch_add(range.pages(), Ordering::Relaxed);
        Ok(Released { pages: range.pages() })
    }

    /// Turns frames that were reserved at bring-up into allocated ones: the caller that reserved
    /// them keeps them, and frees them like any allocation, in any pieces, when it no longer needs
    /// them. For kernels that have one call for both. As for [`release`](Self::release), parts of a
    /// block have to be accepted already.
    ///
    /// # Errors
    /// [`ReleaseError`]; nothing has changed.
    #[track_caller]
    pub fn adopt(self, range: PfnRange) -> Result<(), ReleaseError> {
        let place = Location::caller();
        self.make_allocated(range, &|frames| self.manager.note_adopted(frames, place))
    }

    /// Does [`adopt`](Self::adopt) for frames that are all reserved, before anybody else has the
    /// manager. Frames that cannot be adopted stay reserved.
    pub(crate) fn adopt_at_start(self, range: PfnRange) {
        if self.manager.hotplug.adopts_at_once {
            return self.manager.note_adopted(range, Location::caller());
        }
        let platform = self.manager.platform;
        let blocks = BlockRange::around(range);
        // Neighbouring frames are one allocation.
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

    /// Turns reserved frames into allocated ones, and calls `then` for those of each segment.
    fn make_allocated(self, range: PfnRange, then: &dyn Fn(PfnRange)) -> Result<(), ReleaseError> {
        if range.is_empty() {
            return Err(ReleaseError::Empty(range));
        }
        let end = Pfn::containing(crate::units::PHYSICAL_ADDRESS_END);
        if range.end > end {
            return Err(ReleaseError::NotMemory(range.start.max(end)));
        }
        // Held until the watermarks are updated: a caller that adds memory after that counts these
        // frames, too.
        let _changing = self.begin_release()?;
        if range.start == Pfn(0) {
            return Err(ReleaseError::NotMemory(range.start));
        }
        if let Some(pfn) = self.own_frame(range) {
            return Err(ReleaseError::Manager(pfn));
        }
        let platform = self.manager.platform;
        let blocks = BlockRange::around(range);
        let mut next = range.start;
        // Only the first and the last block can be managed in part afterwards.
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
        if !self.manager.accept_behind(range.end) {
            return Err(ReleaseError::Unaccepted(range.end));
        }
        for piece in self.known(blocks) {
            let frames = pages_of(piece.blocks).intersection(range);
            for part in parts(frames) {
                let index = piece.segment.index_of(BlockNumber::containing(part.start));
                piece.zone.adopt(platform, index, part);
            }
            // Before anybody else can have them.
            self.manager.grade_movable(piece.zone, piece.segment, piece.blocks);
            then(frames);
        }
        self.after_change();
        Ok(())
    }

    /// Does [`release`](Self::release) for the frames that lie wholly in a range of bytes.
    ///
    /// # Errors
    /// As for [`release`](Self::release).
    ///
    /// # Safety
    /// As for [`release`](Self::release).
    pub unsafe fn release_bytes(self, range: PhysRange) -> Result<Released, ReleaseError> {
        // SAFETY: passed on to the caller.
        unsafe { self.release(range.whole_frames()) }
    }

    fn begin_release(self) -> Result<Changing<'m>, ReleaseError> {
        self.begin().map_err(|_| ReleaseError::Busy)
    }

    /// Returns how many frames have been released since bring-up.
    #[must_use]
    pub fn released_pages(self) -> u64 {
        self.manager.hotplug.released_pages.load(Ordering::Relaxed)
    }

    /// Returns the first frame of a range that belongs to the manager's tables.
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

    /// Initialises withheld memory around the released frames first, so that their descriptors
    /// exist.
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

/// Returns the frame `offset` frames into the block of a part.
fn frame(part: PfnRange, offset: usize) -> Pfn {
    BlockNumber::containing(part.start).start().add(offset as u64)
}

/// Divides frames into the parts that lie in each block; several whole blocks make one part.
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
