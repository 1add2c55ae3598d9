//! Which blocks of a zone the array describes, and where their descriptors are.

use super::Page;
use super::fill::Fill;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{PAGES_PER_BLOCK, Pfn};
use core::ops::Range;
use core::ptr::NonNull;

/// The array as one zone sees it. A block's bit is set after its 512 descriptors are initialised
/// and before any of its frames can be handed out.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    /// The descriptor of frame 0.
    base: NonNull<Page>,
    /// One bit for each index of the zone's table.
    described: &'static [AtomicU64],
    fill: Fill,
}

// SAFETY: this is only an address; code that makes a reference of it must ensure that the reference
// is valid (invariant 28).
unsafe impl Send for Array {}
// SAFETY: this is only an address, as for `Send`.
unsafe impl Sync for Array {}

impl Array {
    /// `base` is what [`VmemmapSpace::base`](crate::vmemmap_space::VmemmapSpace::base) returns; no
    /// bit is set.
    pub(crate) const fn new(
        base: NonNull<u8>,
        described: &'static [AtomicU64],
        fill: Fill,
    ) -> Self {
        Self { base: base.cast(), described, fill }
    }

    /// Returns the number of bitmap words for a table with `entries` entries.
    pub(crate) const fn words(entries: usize) -> usize {
        entries.div_ceil(64)
    }

    /// Returns whether the array has the descriptors of the block at `index`. For callers with the
    /// zone lock, or for a block that cannot change.
    #[inline]
    pub(crate) fn describes(&self, index: u32) -> bool {
        let word = self.described.get((index / 64) as usize);
        // Acquire pairs with the Release in `describe`, which is not always under the lock.
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (index % 64) & 1 != 0)
    }

    /// Initialises the descriptors of blocks, the first of which begins at `start`, and publishes
    /// them. Returns how many of the blocks had none before. The blocks must belong to nobody
    /// meanwhile, and their part of the array must be present.
    // One copy serves bring-up and later additions, which then need no new code in the instruction
    // cache.
    #[inline(never)]
    pub(crate) fn describe(&self, blocks: Range<u32>, start: Pfn) -> u32 {
        let count = blocks.len() as u64 * PAGES_PER_BLOCK;
        let first = self.at(start).cast();
        // SAFETY: these descriptors are present and describe memory that nobody has yet, so nobody
        // reads them (invariant 28).
        unsafe { self.fill.write(first, usize::try_from(count).unwrap_or(0)) };
        // Release pairs with the Acquire in `describes`: a reader that finds the bit finds the
        // descriptors initialised.
        self.change(blocks, &|word, mask| !word.fetch_or(mask, Ordering::Release))
    }

    /// Calls `change` with each bitmap word of the blocks and the mask of their bits in it. Returns
    /// how many of the bits that `change` returned are theirs.
    #[inline(never)]
    fn change(&self, blocks: Range<u32>, change: &dyn Fn(&AtomicU64, u64) -> u64) -> u32 {
        let (mut index, mut count) = (blocks.start, 0);
        while index < blocks.end {
            let end = blocks.end.min((index / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (end - index))) << (index % 64);
            if let Some(word) = self.described.get((index / 64) as usize) {
                count += (change(word, mask) & mask).count_ones();
            }
            index = end;
        }
        count
    }

    /// Notes that the block's descriptors are no longer there. Needs the zone lock; the block must
    /// not be split.
    pub(crate) fn unpublish(&self, index: u32) {
        if let Some(word) = self.described.get((index / 64) as usize) {
            // Relaxed suffices: the block is whole, so nobody finds descriptors by this bit alone.
            word.fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        }
    }

    /// [`unpublish`](Self::unpublish) for blocks that only the caller has. Returns how many of them
    /// were described.
    pub(crate) fn unpublish_all(&self, blocks: Range<u32>) -> u32 {
        self.change(blocks, &|word, mask| word.fetch_and(!mask, Ordering::Relaxed))
    }

    /// Returns whether a descriptor has the value that it had at first.
    pub(crate) fn is_first_value(&self, page: &Page) -> bool {
        page.is_template(self.fill.words())
    }

    /// Returns the address of a frame's descriptor, which may be absent.
    pub(crate) fn at(&self, pfn: Pfn) -> NonNull<Page> {
        let offset = usize::try_from(pfn.0).unwrap_or(0).wrapping_mul(size_of::<Page>());
        self.base.map_addr(|base| base.saturating_add(offset))
    }
}
