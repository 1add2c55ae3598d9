//! The vmemmap's address range, and the only way in which a frame may leave it.
//!
//! The memory map in its *array* form is an array indexed by frame number, in a virtual range of
//! its own. The part of it that describes one 2 MiB block is eight pages (512 times 64 bytes).
//! [`VmemmapSpace`] is what the manager needs from page tables to build such parts, to take them
//! away and to give their frames back. Types enforce the rule that matters: frames that leave the
//! tables go into an [`Unflushed`], only [`VmemmapSpace::flush`] turns that into a [`FrameList`],
//! and only the frames of a `FrameList` can be freed. So no frame is reused while some CPU may
//! still reach it through a stale translation (invariant 12).

use crate::stores::{Line, Store};
use crate::units::{Order, Pfn, PfnRange};
use core::fmt;
use core::ptr::NonNull;

/// Pages of the array that describe one block.
pub const VMEMMAP_PAGES_PER_BLOCK: u64 = 8;
/// The most blocks that one call may name: a memory section, whose part of the array is 2 MiB.
pub const BLOCKS_PER_CALL: u32 = 64;

/// The number of a block: a physical address divided by 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct BlockNumber(pub u32);

impl BlockNumber {
    /// The block that holds `pfn`, which must be below the 52-bit limit.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "52 - 21 = 31 bits")]
    pub const fn containing(pfn: Pfn) -> Self {
        Self((pfn.0 >> crate::units::BLOCK_ORDER) as u32)
    }

    /// The first frame of the block.
    #[must_use]
    pub const fn start(self) -> Pfn {
        Pfn((self.0 as u64) << crate::units::BLOCK_ORDER)
    }
}

/// A half-open range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct BlockRange {
    /// First block.
    pub start: BlockNumber,
    /// One past the last block.
    pub end: BlockNumber,
}

impl BlockRange {
    /// The blocks `start..end`.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Self {
        Self { start: BlockNumber(start), end: BlockNumber(if end < start { start } else { end }) }
    }

    /// The blocks that hold `frames`, which is not empty.
    pub(crate) fn around(frames: PfnRange) -> Self {
        let last = BlockNumber::containing(Pfn(frames.end.0 - 1));
        let end = BlockNumber(last.0.saturating_add(1));
        Self { start: BlockNumber::containing(frames.start), end }
    }

    /// The number of blocks; 0 when the range ends before it begins.
    #[must_use]
    pub const fn blocks(self) -> u32 {
        self.end.0.saturating_sub(self.start.0)
    }
}

/// The source from which a [`VmemmapSpace`] gets frames for page tables and for the array itself.
///
/// # Safety
/// A run that [`take`](Self::take) returns is memory as [`crate::Platform`] describes it, and
/// nobody else uses it until it is put back or freed after a flush: page tables are built in it.
pub unsafe trait FrameSource {
    /// Takes a run of `order`, aligned to it, with undefined content; `None` when there is none.
    fn take(&mut self, order: Order) -> Option<Pfn>;

    /// Takes back exactly the run that one [`take`](Self::take) returned (the undo of a failed
    /// call).
    ///
    /// # Safety
    /// `start` and `order` are those of one [`take`](Self::take) from this source that was not put
    /// back yet, and nobody uses the frames: no table has ever named them (invariant 42).
    unsafe fn put_back(&mut self, start: Pfn, order: Order);
}

/// There was no frame for a page table or for the array. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfFrames;

impl fmt::Display for OutOfFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no frame left for the memory map's page tables")
    }
}

impl core::error::Error for OutOfFrames {}

/// A bounded list of frame runs, without heap. Each run is one word: frame number and length.
struct Runs {
    words: [u64; Unflushed::CAPACITY],
    len: usize,
}

const LENGTH_BITS: u32 = 20;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;

impl Runs {
    fn push(&mut self, run: PfnRange) -> bool {
        if self.len > 0 {
            let word = self.words[self.len - 1];
            let (start, pages) = (word >> LENGTH_BITS, word & LENGTH_MASK);
            if start + pages == run.start.0 && pages + run.pages() <= LENGTH_MASK {
                self.words[self.len - 1] = start << LENGTH_BITS | (pages + run.pages());
                return true;
            }
        }
        if self.len == self.words.len() || run.pages() > LENGTH_MASK {
            return false;
        }
        self.words[self.len] = run.start.0 << LENGTH_BITS | run.pages();
        self.len += 1;
        true
    }
}

/// The blocks whose translations changed, so that a flush can be as small as the change.
struct Changed {
    ranges: [BlockRange; Unflushed::CHANGED_RANGES],
    len: usize,
    /// The changes are too many ranges to record, or a change came without its place.
    anywhere: bool,
    /// A page table may be among the frames.
    tables: bool,
}

impl Changed {
    const NOTHING: Self = Self {
        ranges: [BlockRange::new(0, 0); Unflushed::CHANGED_RANGES],
        len: 0,
        anywhere: false,
        tables: false,
    };

    fn add(&mut self, blocks: BlockRange) {
        let last = self.len.checked_sub(1).and_then(|index| self.ranges.get_mut(index));
        if let Some(last) = last.filter(|last| last.start <= blocks.end && blocks.start <= last.end)
        {
            *last =
                BlockRange { start: last.start.min(blocks.start), end: last.end.max(blocks.end) };
        } else if let Some(next) = self.ranges.get_mut(self.len) {
            *next = blocks;
            self.len += 1;
        } else {
            self.anywhere = true;
        }
    }
}

/// Frames that have left the tables but may still be in some CPU's TLB, and translations that must
/// be flushed.
///
/// Its frames cannot be reached through it: pass it to [`VmemmapSpace::flush`]. Dropping it leaks
/// its frames, which is safe.
#[must_use = "its frames come back only through VmemmapSpace::flush"]
pub struct Unflushed {
    runs: Runs,
    changed: Changed,
}

impl Unflushed {
    /// The number of runs that fit. One call on [`BLOCKS_PER_CALL`] blocks never needs more, even
    /// when every frame is a run of its own and the section's page table leaves with them.
    #[expect(clippy::cast_possible_truncation, reason = "two small constants")]
    pub const CAPACITY: usize = BLOCKS_PER_CALL as usize * VMEMMAP_PAGES_PER_BLOCK as usize + 1;
    /// The number of ranges of changed blocks that are recorded. With more ranges than this,
    /// [`changed`](Self::changed) returns `None`.
    pub const CHANGED_RANGES: usize = 8;

    /// Nothing to flush.
    pub const fn new() -> Self {
        Self { runs: Runs { words: [0; Self::CAPACITY], len: 0 }, changed: Changed::NOTHING }
    }

    /// For implementers of [`VmemmapSpace`]: records frames that a changed translation no longer
    /// names, wherever that translation is.
    ///
    /// Returns false when the run does not fit; the implementer must then not have changed the
    /// translation.
    #[must_use]
    pub fn push(&mut self, frames: PfnRange) -> bool {
        (self.changed.anywhere, self.changed.tables) = (true, true);
        frames.is_empty() || self.runs.push(frames)
    }

    /// Like [`push`](Self::push), for frames that only translations of the parts of `blocks` named.
    #[must_use]
    pub fn push_from(&mut self, blocks: BlockRange, frames: PfnRange) -> bool {
        self.changed.add(blocks);
        frames.is_empty() || self.runs.push(frames)
    }

    /// Like [`push_from`](Self::push_from), for a frame that was a page table, so CPUs may have
    /// cached steps of walks through it.
    #[must_use]
    pub fn push_table_from(&mut self, blocks: BlockRange, frame: Pfn) -> bool {
        self.changed.tables = true;
        self.push_from(blocks, PfnRange { start: frame, end: frame.add(1) })
    }

    /// Whether a page table may be among the frames; [`push`](Self::push) counts as one, as it does
    /// not say. If there is none, a sleeping CPU need not be woken: it can flush before its next
    /// access, because nothing that it does on its own follows a page table that is gone.
    #[must_use]
    pub const fn has_tables(&self) -> bool {
        self.changed.tables
    }

    /// For implementers: records that a translation was changed (split, say) without freeing a
    /// frame.
    pub const fn mark_stale(&mut self) {
        self.changed.anywhere = true;
    }

    /// Like [`mark_stale`](Self::mark_stale), for a change to the parts of `blocks` only.
    pub fn mark_changed(&mut self, blocks: BlockRange) {
        self.changed.add(blocks);
    }

    /// Whether a flush is needed.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        self.changed.anywhere || self.changed.len > 0
    }

    /// For [`VmemmapSpace::flush`]: the blocks whose parts of the array may be stale, or `None`
    /// when any block's may be.
    #[must_use]
    pub fn changed(&self) -> Option<&[BlockRange]> {
        if self.changed.anywhere { None } else { self.changed.ranges.get(..self.changed.len) }
    }

    /// How many more runs fit.
    #[must_use]
    pub const fn room(&self) -> usize {
        Self::CAPACITY - self.runs.len
    }

    /// Turns the frames into a [`FrameList`]; only [`VmemmapSpace::flush`] calls this.
    ///
    /// # Safety
    /// Every CPU has dropped every translation that was changed since `self` was made (invariant
    /// 12).
    pub unsafe fn into_flushed(self) -> FrameList {
        FrameList { runs: self.runs }
    }
}

impl Default for Unflushed {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Unflushed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unflushed")
            .field("runs", &self.runs.len)
            .field("changed", &self.changed())
            .finish()
    }
}

/// Frames that nobody can reach any more. They belong to the owner of the list.
#[must_use = "free the frames"]
pub struct FrameList {
    runs: Runs,
}

impl FrameList {
    /// The runs, in the order in which they left the tables.
    pub fn runs(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.runs.words[..self.runs.len].iter().map(|word| {
            let start = word >> LENGTH_BITS;
            PfnRange::new(start, start + (word & LENGTH_MASK))
        })
    }

    /// The number of frames in all runs.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.runs().map(PfnRange::pages).sum()
    }
}

impl fmt::Debug for FrameList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

/// Owns the vmemmap's addresses and translations. The frames belong to the manager, except between
/// the call that puts them into an [`Unflushed`] and the flush. A kernel without page arrays has no
/// such space ([`crate::Platform::vmemmap_space`] returns `None`).
///
/// Every call names at most [`BLOCKS_PER_CALL`] blocks, all in one section. A block's part of the
/// array is in one of two states: *present* (eight writable pages of its own) or *absent* (the
/// shared read-only zero frame mapped eight times, so that a read returns zero bytes, which is a
/// valid descriptor, and a write faults). All parts start absent.
///
/// A change takes effect on every CPU at the next flush. Before that, a CPU may still see a block
/// as it was: after `populate` it may read zero and fault on a write; after `evict` it may read and
/// write the old frames.
///
/// # Safety
/// The implementer promises that
/// * once a `populate` was flushed, the parts of the array are readable and writable, and no other
///   address of the array reaches their frames;
/// * after `evict` no table names the frames, and all of them are in the given [`Unflushed`], as is
///   every page table that is no longer used;
/// * `flush` returns only after every CPU has dropped every translation that changed before, cached
///   steps of a table walk included;
/// * a failed call has changed nothing that can be seen. So all frames are taken before the first
///   entry is written: a frame that some CPU may already have reached cannot be put back.
///
/// # Who may call
///
/// The calls that change translations are `unsafe`, because safe code could otherwise take a part
/// of the array away from under the manager's descriptors. All of them ask one thing of the caller,
/// which is the manager or the owner of a separate space: **it owns what the array shows of the
/// blocks.** That is,
/// * nobody else makes a call for the section meanwhile, no lock is held and interrupts are on;
/// * no part that a call may make absent or move is in use: there is no reference into it, and
///   nobody writes to it until the flush;
/// * the [`Unflushed`] was filled by this space alone, and goes to this space's `flush`.
pub unsafe trait VmemmapSpace: Sync {
    /// Returns the address of frame 0's descriptor.
    fn base(&self) -> NonNull<u8>;

    /// Whether the array consists of frames of the machine. A space in a process uses another kind
    /// of memory for it, and takes no frame from its `FrameSource`.
    fn takes_frames(&self) -> bool {
        true
    }

    /// Whether the parts that [`populate`](Self::populate) makes present are known to be zero, so
    /// that nobody has to zero them.
    fn is_zeroed(&self) -> bool {
        false
    }

    /// Returns the store that writes the first values of descriptors, all equal to `descriptor`,
    /// into the array; it may be made for this content. The manager asks once, at bring-up, and
    /// uses the store wherever it is called, interrupt handlers included. The default is this CPU's
    /// fastest store that needs no vector registers.
    fn store(&self, descriptor: &Line) -> Store {
        Store::of_this_cpu(descriptor)
    }

    /// Makes the parts of absent blocks present, with undefined content, mapped as large as
    /// alignment allows. Blocks that are present stay as they are. All or nothing.
    ///
    /// A page table that a large mapping replaces goes into `unflushed` if there is room for one
    /// run; otherwise it stays in use.
    ///
    /// # Errors
    /// [`OutOfFrames`]; everything that was taken from `frames` was put back.
    ///
    /// # Safety
    /// See *Who may call*.
    unsafe fn populate(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames>;

    /// Splits mappings as far as needed for [`evict`](Self::evict) on exactly these blocks to need
    /// no frame. Changes no translation's target. A mapping that lies wholly in `blocks` may stay
    /// large, so a whole section costs no page table.
    ///
    /// A CPU may evict blocks of a section before the flush of another CPU that split it. Nobody
    /// looks at descriptors of what is evicted, so either translation will do until its own flush.
    ///
    /// # Errors
    /// [`OutOfFrames`]; everything that was taken from `frames` was put back.
    ///
    /// # Safety
    /// See *Who may call*.
    unsafe fn prepare(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames>;

    /// Makes the parts of present blocks absent, puts their frames into `unflushed` and returns how
    /// many blocks of the range are still present: those that were not prepared, and those for
    /// which `unflushed` has no room. Absent blocks stay absent.
    ///
    /// No block is left present if exactly this range was prepared before and `unflushed` has room
    /// for [`VMEMMAP_PAGES_PER_BLOCK`] runs for each block. With room for one more run, a page
    /// table that no present block needs leaves too.
    ///
    /// # Safety
    /// See *Who may call*.
    #[must_use = "blocks may be left present"]
    unsafe fn evict(&self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32;

    /// Maps a section that is wholly present in small mappings as one large mapping again, and
    /// returns whether it is one now. If the frames no longer form an aligned run, their content
    /// moves to such a run from `frames`. Everything that is no longer mapped or used, the page
    /// table included, goes into `unflushed`. Nothing changes when there is no room for that or
    /// when a block is absent. An implementer that has nothing to merge keeps this default. The
    /// manager never calls it: it is for adopters who know when nobody writes descriptors.
    ///
    /// # Errors
    /// [`OutOfFrames`] when the content had to move and there was no run for it; nothing has
    /// changed.
    ///
    /// # Safety
    /// See *Who may call*; and nobody writes to any of the section's part of the array until the
    /// flush, because a CPU may write to the old frame while another reads the new one. For
    /// example, no block of the section is split meanwhile.
    unsafe fn merge(
        &self,
        _section: BlockRange,
        _frames: &mut dyn FrameSource,
        _unflushed: &mut Unflushed,
    ) -> Result<bool, OutOfFrames> {
        Ok(false)
    }

    /// Flushes everything that was changed, on every CPU, and releases the frames. This is the only
    /// way out of [`Unflushed`]. Flushes nothing when [`Unflushed::is_stale`] is false.
    ///
    /// # Safety
    /// See *Who may call*: frames of another space's tables, or frames that somebody pushed by
    /// number, would come out as free.
    unsafe fn flush(&self, unflushed: Unflushed) -> FrameList;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_and_stay_bounded() {
        let mut unflushed = Unflushed::new();
        assert!(!unflushed.is_stale());
        assert!(unflushed.push(PfnRange::new(10, 11)));
        assert!(unflushed.push(PfnRange::new(11, 13)));
        assert_eq!(unflushed.room(), Unflushed::CAPACITY - 1);
        for single in 0..Unflushed::CAPACITY as u64 - 1 {
            assert!(unflushed.push(PfnRange::new(100 + 2 * single, 101 + 2 * single)));
        }
        assert!(!unflushed.push(PfnRange::new(9_000_000, 9_000_001)));
        // SAFETY: no translation was ever changed here, so none can be stale (invariant 12).
        let list = unsafe { unflushed.into_flushed() };
        assert_eq!(list.pages(), 3 + Unflushed::CAPACITY as u64 - 1);
        assert_eq!(list.runs().next(), Some(PfnRange::new(10, 13)));
    }

    #[test]
    fn changed_blocks_join_and_stay_bounded() {
        let mut unflushed = Unflushed::new();
        assert_eq!(unflushed.changed(), Some(&[][..]));
        unflushed.mark_changed(BlockRange::new(4, 6));
        assert!(unflushed.push_from(BlockRange::new(6, 9), PfnRange::new(1, 1)));
        unflushed.mark_changed(BlockRange::new(2, 5));
        assert_eq!(unflushed.changed(), Some(&[BlockRange::new(2, 9)][..]));
        assert!(unflushed.is_stale() && !unflushed.has_tables());
        assert!(
            unflushed.push_table_from(BlockRange::new(2, 3), Pfn(77)) && unflushed.has_tables()
        );
        for range in 1..8 {
            unflushed.mark_changed(BlockRange::new(100 * range, 100 * range + 1));
        }
        assert_eq!(unflushed.changed().map(<[_]>::len), Some(8));
        unflushed.mark_changed(BlockRange::new(5000, 5001));
        assert_eq!(unflushed.changed(), None);
        let mut anywhere = Unflushed::new();
        anywhere.mark_stale();
        assert!(anywhere.is_stale() && anywhere.changed().is_none());
    }

    #[test]
    fn the_highest_frame_fits_in_a_run() {
        let last = (1u64 << 40) - 1;
        let mut unflushed = Unflushed::new();
        assert!(unflushed.push(PfnRange::new(last, last + 1)));
        // SAFETY: as above (invariant 12).
        let list = unsafe { unflushed.into_flushed() };
        assert_eq!(list.runs().next(), Some(PfnRange::new(last, last + 1)));
    }
}
