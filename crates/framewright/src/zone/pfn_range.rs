//! The frames of a zone that caches of CPUs keep: from the first to the last that can ever be
//! handed out.
//!
//! Tables are often placed at an end of a zone. A cache asks two numbers about a frame that is
//! freed, whatever they are, so that with these two a free of such tables is refused at no cost.

use super::{Segment, Zone};
use crate::block::table::blocks_of;
use crate::block::{BlockState, FreeMap, State};
use crate::units::{Order, Pfn, PfnRange};

impl Zone {
    /// See the module documentation; as bring-up left the zone.
    pub(crate) const fn pfn_range(&self) -> PfnRange {
        self.pfn_range
    }

    /// Finds it, at the end of bring-up, while what is free in a block in pieces is all that is
    /// managed there.
    pub(super) fn find_pfn_range(&mut self) {
        let first = self.segments.iter().find_map(|segment| self.first_of(segment));
        let last = self.segments.iter().rev().find_map(|segment| self.last_of(segment));
        if let (Some(start), Some(last)) = (first, last) {
            self.pfn_range = PfnRange { start, end: last.add(1) };
        }
    }

    fn first_of(&self, segment: &Segment) -> Option<Pfn> {
        let mut index = segment.index;
        while index < segment.indices().end {
            let Some((head, state)) = self.table.cold_head_of(index) else {
                index += 1;
                continue;
            };
            if let Some((first, _)) = self.ends_of(head, state) {
                return Some(segment.block_of(head).start().add(first));
            }
            index = head + blocks_of(state.order());
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
            if let Some((_, last)) = self.ends_of(head, state) {
                return Some(segment.block_of(head).start().add(last));
            }
            end = head;
        }
        None
    }

    /// The first and the last frame of a block that can be handed out, if any can. What is kept for
    /// the vmemmap can, once that is given back.
    fn ends_of(&self, head: u32, state: BlockState) -> Option<(u64, u64)> {
        match state.state()? {
            State::Free | State::Deferred | State::Whole => {
                Some((0, state.order().max(Order::BLOCK).pages() - 1))
            }
            State::Split => {
                let map = self.table.free_map(head);
                let mut free =
                    (0_u64..).zip(0..FreeMap::<8>::PAGES).filter(|&(_, frame)| map.is_free(frame));
                let (first, _) = free.next()?;
                Some((first, free.last().map_or(first, |(last, _)| last)))
            }
            _ => None,
        }
    }
}
