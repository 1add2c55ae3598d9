//! Searches the place of a contiguous run where the least has to be moved. A window slides over the
//! blocks of a zone; the search reads 16 bytes of the table for each block and takes no lock. It
//! fetches the costs of 64 blocks at a time.
//!
//! ```text
//!   blocks   . . f f m m f X f f f f m . .      f free  m movable  X cannot be moved or had
//!                [ cost  ]   [cost ]            a window never holds X
//! ```
//!
//! The search covers the first 4 GiB of blocks, and goes on only as long as it has found no place
//! at all. Neighbouring parts of a zone form one run of blocks.

use super::contiguous::ContiguousRequest;
use crate::block::MigrateType;
use crate::platform::Platform;
use crate::units::{PAGES_PER_BLOCK, PHYSICAL_ADDRESS_END, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{Cost, Segment, Zone};

/// How many blocks a search looks at if it has found a place: 4 GiB.
const BLOCKS_LOOKED_AT: u32 = 1 << 11;
/// How many blocks' costs are kept: enough for windows of up to 1 GiB.
const KEPT: u32 = 512;
/// How many blocks' costs are fetched together.
const AHEAD: usize = 64;

/// Tells which blocks to avoid; `None` if there are none.
pub(super) type Avoided<'a> = Option<&'a dyn Fn(BlockNumber) -> bool>;

/// Which blocks are too costly.
pub(super) struct Costly<'a> {
    pub(super) avoided: Avoided<'a>,
    /// Blocks from which more pages than this have to be moved are too costly.
    pub(super) most: u64,
}

/// A place, and how many frames in its blocks are in use.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) range: PfnRange,
    pub(super) to_move: u64,
}

/// Finds the table entries of ascending blocks.
struct Cursor<'a, P> {
    platform: &'a P,
    parts: &'a [Zone],
    part: usize,
    segment: usize,
    /// Whether blocks with a grade are suitable.
    has_graded: bool,
}

impl<'a, P: Platform> Cursor<'a, P> {
    fn at(&mut self, block: BlockNumber) -> Option<(&'a Zone, &'a Segment)> {
        loop {
            let zone = self.parts.get(self.part)?;
            match zone.segments().get(self.segment) {
                Some(segment) if block < segment.end() => {
                    return Some((zone, segment)).filter(|_| segment.start <= block);
                }
                Some(_) => self.segment += 1,
                None => (self.part, self.segment) = (self.part + 1, 0),
            }
        }
    }

    /// Computes the costs of the blocks from `first` on, up to the end of `costs` or of the
    /// segment. Returns the block after the last of them.
    #[inline(never)]
    fn costs(&mut self, first: BlockNumber, costs: &mut [Cost]) -> BlockNumber {
        let Some((zone, segment)) = self.at(first) else {
            costs.fill(Cost::NEVER);
            return BlockNumber(first.0 + 1);
        };
        let blocks = ((segment.end().0 - first.0) as usize).min(costs.len());
        let costs = &mut costs[..blocks];
        zone.to_move(self.platform, segment.index_of(first), self.has_graded, costs);
        #[expect(clippy::cast_possible_truncation, reason = "of a segment")]
        BlockNumber(first.0 + blocks as u32)
    }
}

/// The costs of one block after another. They are kept until the window has passed the blocks.
struct Costs<'a, P> {
    /// The cursors of the block that enters the window and of the block that leaves it.
    front: Cursor<'a, P>,
    back: Cursor<'a, P>,
    costly: &'a Costly<'a>,
    /// The costs of the blocks `first..end`, which enter next.
    ahead: [Cost; AHEAD],
    first: BlockNumber,
    end: BlockNumber,
    kept: [Cost; KEPT as usize],
}

impl<P: Platform> Costs<'_, P> {
    /// Returns the cost of the next block; `None` if it must not be in a window.
    #[inline]
    fn of(&mut self, block: BlockNumber) -> Option<u64> {
        if block < self.first || block >= self.end {
            self.first = block;
            self.end = self.front.costs(block, &mut self.ahead);
        }
        let cost = *self.ahead.get((block.0 - self.first.0) as usize)?;
        let pages = cost.pages()?;
        let avoided = self.costly.avoided.is_some_and(|avoided| avoided(block));
        if pages > self.costly.most || avoided {
            return None;
        }
        self.kept[(block.0 % KEPT) as usize] = cost;
        Some(pages)
    }

    /// Returns the cost of the first block of a window of `blocks` blocks.
    #[inline]
    fn of_first(&mut self, block: BlockNumber, blocks: u32) -> u64 {
        if blocks <= KEPT {
            return self.kept[(block.0 % KEPT) as usize].pages().unwrap_or(0);
        }
        let mut cost = [Cost::NEVER];
        self.back.costs(block, &mut cost);
        cost[0].pages().unwrap_or(0)
    }
}

/// Returns the runs of contiguous blocks of a zone, which may span its parts.
fn runs(parts: &[Zone]) -> impl Iterator<Item = BlockRange> {
    let mut segments = parts.iter().flat_map(Zone::segments).peekable();
    core::iter::from_fn(move || {
        let first = segments.next()?;
        let mut run = BlockRange { start: first.start, end: first.end() };
        while let Some(next) = segments.next_if(|next| next.start == run.end) {
            run.end = next.end();
        }
        Some(run)
    })
}

/// Returns the cheapest place in a zone, without the blocks that are `costly`.
pub(super) fn cheapest_in<P: Platform>(
    platform: &P,
    parts: &[Zone],
    request: &ContiguousRequest,
    costly: &Costly<'_>,
) -> Option<Candidate> {
    let mut best: Option<Candidate> = None;
    let mut left = BLOCKS_LOOKED_AT;
    let has_graded = request.migrate_type == MigrateType::Movable;
    let cursor = Cursor { platform, parts, part: 0, segment: 0, has_graded };
    let mut costs = Costs {
        front: Cursor { ..cursor },
        back: cursor,
        costly,
        ahead: [Cost::NEVER; AHEAD],
        first: BlockNumber(0),
        end: BlockNumber(0),
        kept: [Cost::NEVER; KEPT as usize],
    };
    for run in runs(parts) {
        let found = cheapest_of(run, request, &mut costs, &mut left);
        if found.is_some_and(|found| best.is_none_or(|best| found.to_move < best.to_move)) {
            best = found;
        }
        if best.is_some_and(|best| best.to_move == 0 || left == 0) {
            break;
        }
    }
    best
}

/// Returns the cheapest window of one run of blocks.
fn cheapest_of<P: Platform>(
    run: BlockRange,
    request: &ContiguousRequest,
    costs: &mut Costs<'_, P>,
    left: &mut u32,
) -> Option<Candidate> {
    let blocks = u32::try_from(request.pages.div_ceil(PAGES_PER_BLOCK)).ok()?;
    let step = u32::try_from(request.align.pages().max(PAGES_PER_BLOCK) / PAGES_PER_BLOCK).ok()?;
    // The last possible start, by the end of memory and by the highest address.
    let (_, max_address) = request.zone.within(request.max_address);
    let max_address = max_address.min(PHYSICAL_ADDRESS_END);
    let below = Pfn::containing(max_address).0.checked_sub(request.pages)?;
    let last = run.end.0.checked_sub(blocks)?.min(BlockNumber::containing(Pfn(below)).0);
    // `step` is a power of two, so there is no division.
    let aligned = |block: u32| block.checked_add(step.wrapping_sub(block) & (step - 1));
    let mut best: Option<(u32, u64)> = None;
    let mut start = aligned(run.start.0)?;
    // The window is `start..next`, which costs `cost`.
    let (mut next, mut cost) = (start, 0_u64);
    while start <= last {
        if next < start {
            (next, cost) = (start, 0);
        }
        while next < start + blocks {
            *left = left.saturating_sub(1);
            let Some(each) = costs.of(BlockNumber(next)) else { break };
            cost += each;
            next += 1;
        }
        if next < start + blocks {
            // No window may contain this block.
            let Some(after) = aligned(next + 1) else { break };
            (start, next, cost) = (after, after, 0);
        } else {
            if best.is_none_or(|(_, least)| cost < least) {
                best = Some((start, cost));
            }
            if cost == 0 {
                break;
            }
            let after = start.saturating_add(step);
            for block in start..after.min(next) {
                cost = cost.saturating_sub(costs.of_first(BlockNumber(block), blocks));
            }
            start = after;
        }
        if *left == 0 && best.is_some() {
            break;
        }
    }
    best.map(|(start, to_move)| {
        let first = BlockNumber(start).start();
        Candidate { range: PfnRange { start: first, end: first.add(request.pages) }, to_move }
    })
}
