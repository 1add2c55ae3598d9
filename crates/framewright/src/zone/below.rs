//! Allocation below an address inside the zone.
//!
//! Pages come out of split blocks, which the free index has in the order of addresses, and blocks
//! out of the lowest group that has one large enough (`block::free_heads`). One hold of the lock
//! takes [`MOST_VAIN_LOOKS`](super::locked::MOST_VAIN_LOOKS) vain looks, or [`GROUPS`] words and
//! the heads of one group.

use super::Zone;
use super::locked::LockedZone;
use crate::block::table::{GROUP, GroupSearch};
use crate::block::{MigrateType, State, segment};
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;

/// Groups whose counts one hold of the lock looks at: 24 bytes each.
const GROUPS: u32 = 2048;

/// What is wanted.
#[derive(Clone, Copy)]
struct Below {
    order: Order,
    migrate_type: MigrateType,
    /// Where it must end.
    max: Pfn,
}

/// What a search under one hold of the lock came to.
enum Search {
    /// The first frame in the block at this index.
    Found(u32, usize),
    /// It goes on with the group of this index.
    From(u32),
    /// There is nothing.
    Nothing,
}

impl Zone {
    /// Takes 2^`order` pages that end at or below `max`: of blocks the lowest.
    pub(super) fn allocate_below<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<PfnRange> {
        let below = Below { order, migrate_type, max };
        let mut from = 0;
        loop {
            let mut locked = self.lock_coalesced(platform);
            locked.vain_looks = 0;
            match locked.take_below(&below, from) {
                Search::Found(index, offset) => {
                    drop(locked);
                    return segment::run(self.segments, index, offset, order);
                }
                Search::From(index) => from = index,
                Search::Nothing if locked.is_cut_short() => {}
                Search::Nothing => return None,
            }
        }
    }
}

impl LockedZone {
    /// Takes what is wanted: pages of a split block of the own type, a free block or a part of it,
    /// or pages of a split block of another type. Blocks are looked for from index `from` on.
    fn take_below(&mut self, below: &Below, from: u32) -> Search {
        let Below { order, migrate_type, .. } = *below;
        if order >= Order::BLOCK {
            self.release_spare();
            return match self.head_below(below, from) {
                Search::Found(head, _) => {
                    self.buddy.take_from(head, head, order, migrate_type);
                    Search::Found(head, 0)
                }
                other => other,
            };
        }
        if from == 0
            && let Some((index, start)) = self.run_below(below, migrate_type)
            && self.take_at(index, start, order, migrate_type)
        {
            return Search::Found(index, start);
        }
        match self.head_below(below, from) {
            Search::Found(head, _) if self.take_at(head, 0, order, migrate_type) => {
                Search::Found(head, 0)
            }
            // Before another place is looked at, all split blocks of the own type are.
            Search::From(_) if self.is_cut_short() => Search::From(from),
            Search::From(index) => Search::From(index),
            _ => {
                let foreign = migrate_type.fallbacks().iter().filter(|kind| !kind.is_grade());
                let mut foreign = foreign.filter_map(|&kind| self.run_below(below, kind));
                match foreign.next() {
                    Some((index, start)) if self.take_at(index, start, order, migrate_type) => {
                        Search::Found(index, start)
                    }
                    _ => Search::Nothing,
                }
            }
        }
    }

    /// A run in a split block of one type. As `find_split`: each vain look moves a block to where
    /// it belongs.
    fn run_below(&mut self, below: &Below, migrate_type: MigrateType) -> Option<(u32, usize)> {
        let order = below.order.get();
        let mut level = order;
        while !self.is_cut_short() {
            level = self.free_index.smallest(migrate_type, level)?;
            let index = self.free_index.first(migrate_type, level)?;
            if self.frame(index, 0)? < below.max {
                let Some(start) = self.buddy.table.free_map(index).find(order) else {
                    self.looked_in_vain(index);
                    continue;
                };
                if self.run(index, start, below.order)?.end <= below.max {
                    return Some((index, start));
                }
            }
            // All others of the set are higher still.
            level += 1;
        }
        None
    }

    /// The lowest free head that has what is wanted at its beginning, of the type or one that it
    /// may take from, but for those with a grade, which are looked for by themselves.
    fn head_below(&self, below: &Below, from: u32) -> Search {
        let Below { order, migrate_type, max } = *below;
        let least = order.max(Order::BLOCK);
        let fits = |of: MigrateType| {
            of == migrate_type || !of.is_grade() && migrate_type.fallbacks().contains(&of)
        };
        for segment in self.buddy.segments {
            // Blocks that begin below the limit.
            let blocks = BlockNumber::containing(Pfn(max.0.saturating_sub(1))).0 + 1;
            let blocks = blocks.saturating_sub(segment.start.0).min(segment.blocks);
            let end = segment.index + blocks;
            if blocks == 0 {
                break;
            }
            let start = segment.index.max(from);
            if start >= end {
                continue;
            }
            match self.buddy.table.group_with_free(start..end, least, GROUPS) {
                GroupSearch::None => {}
                GroupSearch::From(index) => return Search::From(index),
                GroupSearch::Found(group) => {
                    let heads = group.max(segment.index)..(group + GROUP).min(end);
                    let found = self.buddy.table.heads(heads).find(|found| {
                        found.head == found.index
                            && found.state.is(State::Free)
                            && found.state.order() >= least
                            && fits(found.state.migrate_type())
                            && self.run(found.head, 0, order).is_some_and(|run| run.end <= max)
                    });
                    if let Some(found) = found {
                        return Search::Found(found.head, 0);
                    }
                    // What was counted is another segment's, or reaches over the limit.
                    if group + GROUP < end {
                        return Search::From(group + GROUP);
                    }
                }
            }
        }
        Search::Nothing
    }
}
