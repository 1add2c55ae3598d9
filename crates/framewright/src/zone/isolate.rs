//! Takes blocks out of circulation, under the zone lock, a bounded number at a time.
//!
//! An isolated free block is in no list and merges with nothing. An isolated block that is
//! allocated or split keeps its place, but memory freed in it stays there. Linux has the migrate
//! type *isolate* for this (`mm/page_isolation.c`). Here it is a bit of the state word, so the
//! block keeps its migrate type.
//!
//! ```text
//!   free ──Isolate──> isolated ──Claim──> allocated       in use ──Isolate──> in use, isolated
//!        <──PutBack──          <─Unclaim─                        <──PutBack──       │
//!                       isolated <──────────────────────────────────────free────────┘
//! ```

use super::locked::LockedZone;
use super::unaccepted::is_listed;
use super::{FreeError, Zone};
use crate::block::heads::HeadIn;
use crate::block::list::Position;
use crate::block::split::divide_whole;
use crate::block::table::blocks_of;
use crate::block::table::largest_piece;
use crate::block::{BlockState, Segment, State};
use crate::debug::Damage;
use crate::platform::Platform;
use crate::sync::add_fields::add_fields;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn};
use crate::vmemmap_space::BlockRange;
use core::fmt;
use core::ops::{AddAssign, Range};

/// The use of the pages in a range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IsolatedPages {
    /// Free pages. In an isolated block no request can have them.
    pub free_pages: u64,
    /// Allocated pages.
    pub in_use_pages: u64,
    /// Pages that hold the descriptors of others.
    pub descriptor_pages: u64,
    /// Memory that the manager was not given, or that is still withheld.
    pub reserved_pages: u64,
    /// No memory, or memory of another zone.
    pub absent_pages: u64,
}

impl AddAssign for IsolatedPages {
    fn add_assign(&mut self, other: Self) {
        add_fields!(
            self += other,
            free_pages,
            in_use_pages,
            descriptor_pages,
            reserved_pages,
            absent_pages
        );
    }
}

/// Why blocks were not isolated, put back or claimed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsolateError {
    /// There is no block in the range.
    Empty(BlockRange),
    /// The range does not lie in one segment of one zone.
    Place(FreeError),
    /// The block at this frame is isolated already.
    Isolated(Pfn),
    /// The block at this frame is not isolated.
    NotIsolated(Pfn),
    /// The block with its head at this frame reaches out of the range and cannot be divided: it has
    /// a reference count, or belongs or will belong to a pool.
    Indivisible(Pfn),
    /// Not all of the range is free. Tells what its pages were just after that was found.
    InUse(IsolatedPages),
    /// The caches of CPUs cannot be emptied from this context ([`Platform::can_wait`]), or another
    /// CPU is bringing up withheld memory of the range and cannot be waited for. Where waiting is
    /// allowed, memory of the range has been given to a hypervisor again and again: try later.
    CannotWait,
    /// The memory was written to while it was free (`page_poison=1`). It was filled with poison
    /// again and stays isolated. Blocks of it that others isolated during the check are now
    /// isolated by them.
    Damaged(Damage),
}

impl fmt::Display for IsolateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(range) => write!(f, "{range:?} holds no block"),
            Self::Place(_) => f.write_str("the blocks do not lie in one run of one zone"),
            Self::Isolated(pfn) => write!(f, "the block at pfn {pfn} is isolated already"),
            Self::NotIsolated(pfn) => write!(f, "the block at pfn {pfn} is not isolated"),
            Self::Indivisible(pfn) => {
                write!(
                    f,
                    "the block at pfn {pfn} is in use as one and only a part of it lies in the \
                     range"
                )
            }
            Self::InUse(pages) => write!(
                f,
                "{} pages are in use, {} reserved, {} absent",
                pages.in_use_pages + pages.descriptor_pages,
                pages.reserved_pages,
                pages.absent_pages
            ),
            Self::CannotWait => f.write_str(
                "this context cannot empty the CPUs' caches, or memory keeps going to a hypervisor",
            ),
            Self::Damaged(damage) => damage.fmt(f),
        }
    }
}

impl core::error::Error for IsolateError {}

/// A change to a range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Free memory of the blocks is handed out no more.
    Isolate,
    /// The opposite of `Isolate`.
    PutBack,
    /// Isolated blocks that are free become allocated ones.
    Claim,
    /// The opposite of `Claim`.
    Unclaim,
}

impl Zone {
    /// Changes either all blocks at `range` or none. They lie in `segment` and are so few that the
    /// lock may be held meanwhile. Returns how many were changed, which are those with at least one
    /// managed frame.
    pub(crate) fn change<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: Range<u32>,
        change: Change,
    ) -> Result<u64, IsolateError> {
        let mut locked = self.lock_coalesced(platform);
        self.check(segment, &range, change)?;
        let (mut changed, before) = (0, locked.unused_pages());
        let mut index = range.start;
        while let Some(found) = self.table.heads(index..range.end).next() {
            index = found.end();
            if is_managed(found.state) {
                let blocks = locked.change_one(found.index, range.end, found.state, change);
                changed += u64::from(blocks);
                index = found.index + blocks;
            }
        }
        // `Unclaim` frees blocks.
        locked.note_freed_since(before);
        Ok(changed)
    }

    /// Where a piece of a range that begins at `from` ends: at the next multiple of `at_once`, or
    /// at the end of an indivisible block that begins at `from` if that is later.
    pub(crate) fn slice_end<P: Platform>(&self, platform: &P, from: u32, at_once: u32) -> u32 {
        let whole = self.whole(platform, from);
        let behind = if whole.start == from { whole.end } else { 0 };
        behind.max((from / at_once + 1) * at_once)
    }

    /// The blocks of the indivisible head that covers `index`, or the block at `index` alone if its
    /// head is divisible.
    #[inline(never)]
    pub(crate) fn whole<P: Platform>(&self, platform: &P, index: u32) -> Range<u32> {
        match self.head_unlocked(platform, index).filter(|(_, state)| is_indivisible(*state)) {
            Some((head, state)) => head..head + blocks_of(state.order()),
            None => index..index + 1,
        }
    }

    /// Checks whether [`change`](Self::change) would succeed.
    pub(crate) fn check_change<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: &Range<u32>,
        change: Change,
    ) -> Result<(), IsolateError> {
        let _locked = self.read_coalesced(platform);
        self.check(segment, range, change)
    }

    /// Checks a change under the lock, with no merge deferred.
    fn check(
        &self,
        segment: &Segment,
        range: &Range<u32>,
        change: Change,
    ) -> Result<(), IsolateError> {
        for HeadIn { index, head, state } in self.table.heads(range.clone()) {
            let pfn = segment.block_of(index).start();
            let isolated = state.is_isolated();
            match change {
                // Withheld memory is brought up before it is isolated.
                Change::Isolate if is_withheld(state) => Err(IsolateError::CannotWait),
                Change::PutBack if is_withheld(state) => Err(IsolateError::NotIsolated(pfn)),
                _ if !is_managed(state) && change != Change::Claim => Ok(()),
                Change::Isolate | Change::Unclaim if isolated => Err(IsolateError::Isolated(pfn)),
                Change::PutBack if !isolated => Err(IsolateError::NotIsolated(pfn)),
                Change::Claim if !isolated && is_managed(state) => {
                    Err(IsolateError::NotIsolated(pfn))
                }
                Change::Claim if !state.is(State::Isolated) => {
                    // The counts are empty: a caller that claims surveys its whole range, of which
                    // this is a part.
                    Err(IsolateError::InUse(IsolatedPages::default()))
                }
                _ if is_indivisible(state) && !is_inside(head, state, range) => {
                    Err(IsolateError::Indivisible(segment.block_of(head).start()))
                }
                _ => Ok(()),
            }?;
        }
        if change == Change::Claim && range.clone().any(|index| self.table.head_of(index).is_none())
        {
            return Err(IsolateError::InUse(IsolatedPages::default()));
        }
        Ok(())
    }

    /// Counts what the pages of the blocks at `range` are.
    pub(crate) fn survey<P: Platform>(&self, platform: &P, range: &Range<u32>) -> IsolatedPages {
        let _locked = self.read_coalesced(platform);
        self.survey_of(range)
    }

    fn survey_of(&self, range: &Range<u32>) -> IsolatedPages {
        let mut all = IsolatedPages::default();
        let mut described_blocks = 0;
        for HeadIn { index, head, state } in self.table.heads(range.clone()) {
            let blocks = (head + blocks_of(state.order())).min(range.end) - index;
            let pages = u64::from(blocks) * PAGES_PER_BLOCK;
            described_blocks += u64::from(blocks);
            all += match state.state() {
                Some(State::Free | State::Isolated) => {
                    IsolatedPages { free_pages: pages, ..IsolatedPages::default() }
                }
                Some(State::Whole | State::Pool | State::Reporting) => {
                    IsolatedPages { in_use_pages: pages, ..IsolatedPages::default() }
                }
                Some(State::Split) => IsolatedPages {
                    free_pages: state.free_pages(),
                    in_use_pages: state.managed_pages()
                        - state.free_pages()
                        - state.descriptor_pages(),
                    descriptor_pages: state.descriptor_pages(),
                    reserved_pages: state.present_pages() - state.managed_pages(),
                    absent_pages: PAGES_PER_BLOCK - state.present_pages(),
                },
                _ => IsolatedPages { reserved_pages: pages, ..IsolatedPages::default() },
            };
        }
        all.absent_pages +=
            (u64::from(range.end - range.start) - described_blocks) * PAGES_PER_BLOCK;
        all
    }
}

impl LockedZone {
    /// Changes the block that begins at `index` and ends at or before `end`, after cutting it out
    /// of its head. Returns its size in blocks of 2 MiB.
    fn change_one(&mut self, index: u32, end: u32, state: BlockState, change: Change) -> u32 {
        let blocks = self.change_head(index, end, state, change);
        let isolated = &mut self.isolated_blocks[state.migrate_type() as usize];
        match change {
            Change::Isolate | Change::Unclaim => *isolated += blocks,
            Change::PutBack | Change::Claim => *isolated -= blocks,
        }
        blocks
    }

    fn change_head(&mut self, index: u32, end: u32, state: BlockState, change: Change) -> u32 {
        if state.is(State::Split) {
            match change {
                Change::Isolate => self.isolate(index),
                Change::PutBack => self.put_back(index),
                Change::Claim | Change::Unclaim => {}
            }
            return 1;
        }
        let table = self.buddy.table;
        let migrate_type = state.migrate_type();
        let order = if state.is(State::Free) {
            let order = largest_piece(index, end, state.order());
            let head = index & !(blocks_of(state.order()) - 1);
            self.buddy.isolate_from(head, index, order, migrate_type);
            order
        } else {
            // An indivisible block lies wholly in the range, which `check` has seen to.
            divide_whole(&table, index, end).unwrap_or(state.order())
        };
        let now = table.state(index);
        match (change, state.state()) {
            (Change::Isolate, Some(State::Free)) | (Change::Unclaim, _) => {
                self.isolated_pages += order.pages();
                table.set_state(index, BlockState::head(State::Isolated, order, migrate_type));
            }
            (Change::Claim, _) => {
                self.isolated_pages -= order.pages();
                table.set_state(index, BlockState::head(State::Whole, order, migrate_type));
            }
            (Change::Isolate, _) => table.set_state(index, now.with(BlockState::ISOLATED)),
            (Change::PutBack, Some(State::Isolated)) => {
                self.isolated_pages -= order.pages();
                self.buddy.free(index, order, migrate_type, Position::Tail);
            }
            (Change::PutBack, _) => table.set_state(index, now.without(BlockState::ISOLATED)),
        }
        blocks_of(order)
    }
}

/// Whether some of a block's frames may be managed.
pub(super) fn is_managed(state: BlockState) -> bool {
    matches!(
        state.state(),
        Some(
            State::Free
                | State::Whole
                | State::Split
                | State::Pool
                | State::Isolated
                | State::Reporting
        )
    )
}

/// Whether this is memory that comes up once it is wanted.
fn is_withheld(state: BlockState) -> bool {
    state.is(State::Deferred) || is_listed(state)
}

fn is_indivisible(state: BlockState) -> bool {
    // A kept GiB may become a page of a pool that does not exist yet.
    let is_whole = |bit: u64| state.is(State::Whole) && state.has(bit);
    state.is(State::Pool)
        || is_whole(BlockState::COUNTED)
        || is_whole(BlockState::KEPT) && state.order() == Order::MAX
}

fn is_inside(head: u32, state: BlockState, range: &Range<u32>) -> bool {
    range.start <= head && head + blocks_of(state.order()) <= range.end
}
