//! The set of free 2 MiB blocks whose merge is deferred.
//!
//! If blocks merged at once, every second free would remove a block from one list and insert it
//! into another, and the next request would split the result again. So a freed movable block only
//! becomes a bit in a set: its entry still says that it is allocated, as if it were in a CPU's
//! cache, but it counts as free. Requests for one block take the lowest bit. 64 neighbours in the
//! set become one free block of 128 MiB at once; the others are *coalesced*, that is merged and put
//! into the lists, when there are too many, or when somebody wants more than one block or looks at
//! what is free (`Zone::lock_coalesced`).
//!
//! Blocks of each grade have a set of their own, because they merge with no other type.

use super::bit_sets::{BitSets, Neighbours};
use super::buddy::GRADES;
use super::migrate_type::MigrateType;
use super::state::{BlockState, State};
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::AtomicU64;
use crate::units::{Order, PAGES_PER_BLOCK};
use core::mem::MaybeUninit;

/// What the entry of each such block says already, so that deferring a merge need not write it.
pub(crate) const MERGE_DEFERRED: BlockState =
    BlockState::head(State::Whole, Order::BLOCK, MigrateType::Movable);

/// What the entry of a graded block whose merge is deferred says, by the number of its grade.
pub(crate) const GRADED_MERGE_DEFERRED: [BlockState; GRADES] = [
    BlockState::head(State::Whole, Order::BLOCK, MigrateType::MovableOnly),
    BlockState::head(State::Whole, Order::BLOCK, MigrateType::Cma),
];

/// Returns the grade of a block whose entry says that it is allocated whole, of order 9, and
/// nothing more.
pub(crate) fn deferrable_grade(state: BlockState) -> Option<usize> {
    let grade = state.migrate_type().grade_index()?;
    (state == GRADED_MERGE_DEFERRED[grade]).then_some(grade)
}

/// The most blocks whose merge is deferred, 8 GiB: this bounds the wait of a caller that needs them
/// merged. Beyond it, a freed block is merged at once, together with its neighbours in the set. A
/// graded block is merged at once if all sets together hold this many, so these and the movable
/// blocks freed later are at most twice as many.
const MOST: u32 = 4096;
/// The frames of that many blocks.
pub(super) const MOST_PAGES: u64 = MOST as u64 * PAGES_PER_BLOCK;

/// See the module documentation. Changed under the zone lock only.
pub(crate) struct DeferredMerges {
    set: BitSets,
    blocks: u32,
}

/// The number of sets for grades in this build.
const GRADED_SETS: usize = if cfg!(feature = "moving") { GRADES } else { 0 };

/// Returns the number of words that all sets for `blocks` indices take.
pub(crate) const fn words_for(blocks: usize) -> usize {
    (1 + GRADED_SETS) * words_of_one(blocks)
}

const fn words_of_one(blocks: usize) -> usize {
    BitSets::words_for(1, blocks)
}

/// Makes the sets of a zone empty sets for `blocks` indices, over [`words_for`] words of any
/// content.
pub(crate) fn attach(
    movable: &mut DeferredMerges,
    graded: &mut [DeferredMerges; GRADES],
    words: &'static [AtomicU64],
    blocks: usize,
) {
    let mut parts = words.chunks_exact(words_of_one(blocks).max(1));
    for set in core::iter::once(movable).chain(graded.iter_mut().take(GRADED_SETS)) {
        if let Some(own) = parts.next() {
            set.attach(own, blocks);
        }
    }
}

impl DeferredMerges {
    /// Initialises an empty set for no indices in place.
    pub(crate) fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(DeferredMerges at place, { blocks: 0 }, { set: BitSets::write })
    }

    /// Makes this an empty set for `blocks` indices, over words of any content.
    fn attach(&mut self, words: &'static [AtomicU64], blocks: usize) {
        self.blocks = 0;
        self.set.attach(words, 1, blocks);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Returns whether the set has more blocks than it should.
    pub(super) const fn is_over_full(&self) -> bool {
        self.blocks > MOST
    }

    /// Takes those of the 64 blocks from `base` on that are in the set.
    pub(super) fn take_near(&mut self, base: u32) -> Option<Neighbours> {
        let bits = if self.blocks == 0 { 0 } else { self.set.members(0, base) };
        let near = Neighbours { base, bits };
        if bits != 0 {
            self.remove(near);
        }
        (bits != 0).then_some(near)
    }

    /// Returns the frames of the blocks in the set.
    pub(crate) const fn pages(&self) -> u64 {
        self.blocks as u64 * PAGES_PER_BLOCK
    }

    /// Prefetches the word that inserting a block writes. Only useful under the lock: before that
    /// the lock's holder may have the cache line and would have to fetch it back.
    pub(crate) fn prefetch(&self, index: u32) {
        self.set.prefetch(0, index);
    }

    /// Returns whether a block is in the set.
    pub(crate) fn contains(&self, index: u32) -> bool {
        let Neighbours { base, bits } = Neighbours::new(index, 1);
        self.blocks != 0 && self.set.members(0, base) & bits != 0
    }

    /// Returns the lowest block in the set from `from` on.
    pub(super) fn members_from(&self, from: u32) -> Option<u32> {
        if self.blocks == 0 { None } else { self.set.next(0, from) }
    }

    /// Returns the number of blocks in the set, recounted bit by bit.
    pub(crate) fn count(&self) -> u64 {
        if self.blocks == 0 { 0 } else { self.set.count(0) }
    }

    /// Inserts blocks. Returns which of their group of 64 are in the set afterwards; returns
    /// nothing and changes nothing if one of the blocks was in it before.
    pub(crate) fn insert(&mut self, added: Neighbours) -> Option<u64> {
        let Neighbours { base, bits } = added;
        let before = self.set.insert_members(0, added);
        if before & bits != 0 {
            return self.undo(Neighbours { base, bits: bits & !before });
        }
        self.blocks += bits.count_ones();
        Some(before | bits)
    }

    /// [`insert`](Self::insert) for one block, without counting bits.
    pub(super) fn insert_one(&mut self, index: u32) -> Option<u64> {
        let block = Neighbours::new(index, 1);
        let before = self.set.insert_members(0, block);
        if before & block.bits != 0 {
            return None;
        }
        self.blocks += 1;
        Some(before | block.bits)
    }

    #[cold]
    fn undo(&mut self, added: Neighbours) -> Option<u64> {
        if added.bits != 0 {
            self.set.remove_members(0, added);
        }
        None
    }

    /// Takes up to `most` of the lowest blocks, all from one group of 64.
    pub(crate) fn take(&mut self, most: u32) -> Option<Neighbours> {
        if self.blocks == 0 || most == 0 {
            return None;
        }
        let Neighbours { base, bits: members } = self.set.lowest_members(0)?;
        let taken = if most < members.count_ones() {
            members & !(0..most).fold(members, |rest, _| rest & (rest - 1))
        } else {
            members
        };
        let taken = Neighbours { base, bits: taken };
        self.remove(taken);
        Some(taken)
    }

    pub(super) fn remove(&mut self, members: Neighbours) {
        self.set.remove_members(0, members);
        self.blocks -= members.count();
    }
}
