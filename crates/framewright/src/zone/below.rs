//! Allocation below an address inside the zone.
//!
//! Pages come out of split blocks, which the free index keeps in the order of addresses. Blocks
//! come out of the lowest group that has one large enough (`block::free_heads`). One hold of the
//! lock lasts for at most [`MOST_VAIN_LOOKS`](super::locked::MOST_VAIN_LOOKS) vain looks, or for
//! [`GROUPS`] words and the heads of one group.

use super::Zone;
use super::locked::LockedZone;
use crate::block::table::{GROUP, GroupSearch};
use crate::block::{MigrateType, State, segment};
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;

/// How many groups' counts are looked at under one hold of the lock: 24 bytes each.
const GROUPS: u32 = 2048;

/// A request for memory below an address.
#[derive(Clone, Copy)]
struct Below {
    order: Order,
    migrate_type: MigrateType,
    /// The frame at or below which the run must end.
    max: Pfn,
}

/// The result of a search under one hold of the lock.
enum Search {
    /// The index of a block, and the first frame in it.
    Found(u32, usize),
    /// Nothing yet; the search goes on at the group of this index.
    From(u32),
    /// There is no such memory.
    Nothing,
}

impl Zone {
    /// Takes 2^`order` pages that end at or below `max`. Blocks are taken lowest first.
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
    /// Takes memory for the request: pages of a split block of the own type, a free block or a part
    /// of it, or pages of a split block of another type. Blocks are looked for from index `from`
    /// on.
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
            // All split blocks of the own type are looked at before any other place.
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

    /// Finds a run in a split block of one type. Like `find_split`, it moves each block in which it
    /// looks in vain to the set where that belongs.
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
            // All other blocks of the set are higher still.
            level += 1;
        }
        None
    }

    /// Finds the lowest free head that has a fitting run at its beginning and is of the own type or
    /// of one that it may fall back to. Grades count only if they are the own type: the caller
    /// searches each grade by itself.
    fn head_below(&self, below: &Below, from: u32) -> Search {
        let Below { order, migrate_type, max } = *below;
        let least = order.max(Order::BLOCK);
        let fits = |of: MigrateType| {
            of == migrate_type || !of.is_grade() && migrate_type.fallbacks().contains(&of)
        };
        for segment in self.buddy.segments {
            // How many blocks begin below the limit.
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
                    // The free head that the group's count promised lies in another segment, does
                    // not fit, or reaches over the limit.
                    if group + GROUP < end {
                        return Search::From(group + GROUP);
                    }
                }
            }
        }
        Search::Nothing
    }
}
