//! The range of a zone's frames that CPU caches may keep: from the first to the last that can ever
//! be handed out.
//!
//! Tables are often placed at an end of a zone. A cache compares each frame that is freed with two
//! bounds anyway, so with these bounds it refuses to free such tables at no extra cost.

use super::{Segment, Zone};
use crate::block::table::blocks_of;
use crate::block::{BlockState, FreeMap, State};
use crate::page::Near;
use crate::units::{Order, Pfn, PfnRange};
use core::ops::Range;

/// The frames of the zone that has these parts.
pub(crate) fn range_of<'a>(parts: impl Iterator<Item = &'a Zone>) -> PfnRange {
    let ranges = parts.map(|part| part.pfn_range).filter(|range| !range.is_empty());
    let all = ranges.reduce(|all, range| PfnRange {
        start: all.start.min(range.start),
        end: all.end.max(range.end),
    });
    all.unwrap_or(PfnRange::new(0, 0))
}

/// What a CPU's cache knows of a zone whose frames are `range`, and of one part of it: frames in
/// the `nth` longest segment of that part are found at once. The second longest is for caches that
/// have no other zone to know, as memory has a hole below 4 GiB.
#[inline(never)]
pub(crate) fn near(range: PfnRange, part: Option<&Zone>, nth: usize) -> Near<'_> {
    let Some(part) = part else { return Near::NONE };
    let mut longest = [Segment::EMPTY; 2];
    for segment in part.segments {
        if segment.blocks > longest[0].blocks {
            longest = [*segment, longest[0]];
        } else if segment.blocks > longest[1].blocks {
            longest[1] = *segment;
        }
    }
    let segment = longest[nth & 1];
    if nth != 0 && segment.blocks == 0 {
        return Near::NONE;
    }
    Near { range, table: &part.table, segment }
}

impl Zone {
    /// The range in the module documentation, as bring-up found it.
    pub(crate) const fn pfn_range(&self) -> PfnRange {
        self.pfn_range
    }

    /// Finds the range at the end of bring-up, when all managed frames of a partly managed block
    /// are still free.
    pub(super) fn find_pfn_range(&mut self) {
        let first = self.segments.iter().find_map(|segment| self.first_of(segment));
        let last = self.segments.iter().rev().find_map(|segment| self.last_of(segment));
        if let (Some(start), Some(last)) = (first, last) {
            self.pfn_range = PfnRange { start, end: last.add(1) };
        }
    }

    fn first_of(&self, segment: &Segment) -> Option<Pfn> {
        let Range { start: mut next, end } = segment.indices();
        while next < end {
            let Some((head, state)) = self.table.cold_head_of(next) else {
                next += 1;
                continue;
            };
            if let Some((first, _)) = self.ends_of(segment, head, state) {
                return Some(first);
            }
            next = (head + blocks_of(state.order().max(Order::BLOCK))).max(next + 1);
        }
        None
    }

    fn last_of(&self, segment: &Segment) -> Option<Pfn> {
        let mut end = segment.indices().end;
        while end > segment.index {
            let Some((head, state)) = self.table.cold_head_of(end - 1) else {
                end -= 1;
                continue;
            };
            if let Some((_, last)) = self.ends_of(segment, head, state) {
                return Some(last);
            }
            end = head;
        }
        None
    }

    /// The first and the last frame of a block that can be handed out, if any can. The vmemmap's
    /// blocks that the manager keeps can be, once they are given back.
    fn ends_of(&self, segment: &Segment, head: u32, state: BlockState) -> Option<(Pfn, Pfn)> {
        let (first, last) = match state.state()? {
            State::Free | State::Deferred | State::Whole | State::Accepting => {
                (0, state.order().max(Order::BLOCK).pages() - 1)
            }
            State::Unaccepted if !state.has(BlockState::KEPT) => {
                (0, state.order().max(Order::BLOCK).pages() - 1)
            }
            State::Split => {
                let map = self.table.cold_free_map(head);
                let first = map.first_free(0, FreeMap::<8>::PAGES)?;
                (first as u64, map.last_free().unwrap_or(first) as u64)
            }
            _ => return None,
        };
        let block = segment.block_of(head).start();
        Some((block.add(first), block.add(last)))
    }
}
