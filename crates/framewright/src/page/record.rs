//! A page's descriptor.
//!
//! Orders of memory: Relaxed where whoever has the page alone reads or clears it; its count has its
//! own orders (`sync::references`).

use crate::sync::ReferenceCount;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::PAGES_PER_BLOCK;

/// The descriptor of one page of a split block: 64 bytes, a cache line. 64 zero bytes describe a
/// page that is free, or that nobody has had yet.
///
/// Node, zone and migrate type come from the block, and whether the page is free from the block's
/// free map, so none of these is stored here.
///
/// ```text
///  0.. 3  reference count             8..15  flags, the owner's
///  4.. 7  part of which run          16..63  owner words: six of 64 bits, the owner's
/// ```
///
/// Flags and owner words belong to whoever has the page: the manager never reads them, and clears
/// them when the last reference is put. A caller that frees a page in another way must leave its
/// descriptor zero, with [`clear`](Self::clear).
#[repr(C, align(64))]
pub struct Page {
    references: ReferenceCount<AtomicU32>,
    run: AtomicU32,
    flags: AtomicU64,
    owner_words: [AtomicU64; Self::OWNER_WORDS],
}

const _: () = assert!(size_of::<Page>() == 64 && align_of::<Page>() == 64);
const _: () =
    assert!(core::mem::offset_of!(Page, references) == 0 && core::mem::offset_of!(Page, run) == 4);
const _: () = assert!(
    core::mem::offset_of!(Page, flags) == 8 && core::mem::offset_of!(Page, owner_words) == 16
);

/// Which part of a run of pages with one reference count a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartOf {
    /// A page by itself.
    Single,
    /// The first page of a run, whose count is the run's.
    Head {
        /// The number of pages in the run, at least 2.
        pages: u32,
    },
    /// Another page of a run.
    Tail {
        /// How many pages before this one the head is.
        pages_to_head: u32,
    },
}

/// Flag in `run` that marks a head.
const HEAD: u32 = 1 << 31;

impl Page {
    /// The number of 64-bit words that belong to the owner.
    pub const OWNER_WORDS: usize = 6;

    /// Returns the number of references at some moment: 0 means frozen or free, `u32::MAX`
    /// saturated. A tail has no count; its head has it.
    #[must_use]
    pub fn references(&self) -> u32 {
        self.references.get()
    }

    /// Returns which part of a run the page is.
    #[must_use]
    pub fn part_of(&self) -> PartOf {
        match self.run.load(Ordering::Relaxed) {
            0 => PartOf::Single,
            word if word & HEAD != 0 => PartOf::Head { pages: word & !HEAD },
            pages_to_head => PartOf::Tail { pages_to_head },
        }
    }

    /// Returns 64 bits for the owner.
    #[must_use]
    pub const fn flags(&self) -> &AtomicU64 {
        &self.flags
    }

    /// Returns 48 bytes for the owner.
    #[must_use]
    pub const fn owner_words(&self) -> &[AtomicU64; Self::OWNER_WORDS] {
        &self.owner_words
    }

    /// Zeroes flags and owner words.
    pub fn clear(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.owner_words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Returns whether the whole descriptor is zero.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.references() == 0
            && self.run.load(Ordering::Relaxed) == 0
            && self.flags.load(Ordering::Relaxed) == 0
            && self.owner_words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Returns whether the page has no count and is in no run, and its flags and owner words are
    /// `words`.
    pub(crate) fn is_template(&self, words: &[u64; 1 + Self::OWNER_WORDS]) -> bool {
        self.references() == 0
            && self.run.load(Ordering::Relaxed) == 0
            && self.flags.load(Ordering::Relaxed) == words[0]
            && self
                .owner_words
                .iter()
                .zip(&words[1..])
                .all(|(word, &first)| word.load(Ordering::Relaxed) == first)
    }

    pub(crate) const fn count(&self) -> &AtomicU32 {
        &self.references.0
    }

    pub(crate) fn set_part_of(&self, part: PartOf) {
        let word = match part {
            PartOf::Single => 0,
            PartOf::Head { pages } => HEAD | pages,
            PartOf::Tail { pages_to_head } => pages_to_head,
        };
        self.run.store(word, Ordering::Relaxed);
    }
}

/// A run of pages with one count lies in one block.
const _: () = assert!(PAGES_PER_BLOCK < HEAD as u64);
