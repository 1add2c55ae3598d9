//! Allocation in one zone, under its lock.
//!
//! [`Zone::allocate`] takes the first path that applies:
//!
//! 1. a block of 1 GiB: [`Zone::take_largest`], which the manager tries before it calls this;
//! 2. more than the 4 MiB that are shuffled as a unit: [`Zone::allocate_gathered`];
//! 3. an upper limit that lies inside the zone: [`Zone::allocate_below`], a search by address;
//! 4. pages: [`LockedZone::take_pages`], out of the fullest block that has a free run;
//! 5. blocks: `Buddy::take`, which prefers blocks whose merge is deferred.

use super::Zone;
use super::locked::LockedZone;
use crate::block::segment::{self, offset_in_block};
use crate::block::table::blocks_of;
use crate::block::{MigrateType, State};
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;

/// How many free map words of single frames are taken under one hold of the lock.
const WORDS_AT_ONCE: usize = 32;

impl Zone {
    /// Takes 2^`order` pages that end at or below `max`. Returns them and whether they are known to
    /// be zero.
    pub(crate) fn allocate<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<(PfnRange, bool)> {
        if self.span.start >= max {
            return None;
        }
        self.preferred(migrate_type)
            .and_then(|grade| self.allocate_of(platform, order, grade, max))
            .or_else(|| self.allocate_of(platform, order, migrate_type, max))
            .or_else(|| self.allocate_graded(platform, order, migrate_type, max))
    }

    /// The last resort of [`allocate`](Self::allocate) for a movable request: memory that has a
    /// grade. Searches by address and for large pieces look at one migrate type at a time.
    /// Otherwise they would take the lowest memory, whatever its grade.
    #[inline]
    fn allocate_graded<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<(PfnRange, bool)> {
        if self.out_of_reach(MigrateType::Unmovable) == 0 || migrate_type != MigrateType::Movable {
            return None;
        }
        let grades = migrate_type.fallbacks().iter().filter(|grade| grade.is_grade());
        grades.copied().find_map(|grade| self.allocate_of(platform, order, grade, max))
    }

    /// [`allocate`](Self::allocate) from one migrate type and those that it may fall back to,
    /// without trying a preferred grade first.
    fn allocate_of<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<(PfnRange, bool)> {
        if self.gathers(order) {
            let taken = self.allocate_gathered(platform, order, migrate_type, max)?;
            return Some((taken, false));
        }
        if self.span.end > max {
            return Some((self.allocate_below(platform, order, migrate_type, max)?, false));
        }
        // Do deferred merges first: otherwise a larger block would be divided although this one's
        // pieces are free.
        let (index, offset, is_zero) = if order > Order::BLOCK {
            let mut locked = self.lock_coalesced(platform);
            let (index, offset) = locked.take(order, migrate_type)?;
            (index, offset, locked.is_known_zero(index, order))
        } else {
            self.search(platform, |locked| {
                let (index, offset) = locked.take(order, migrate_type)?;
                Some((index, offset, locked.is_known_zero(index, order)))
            })?
        };
        Some((segment::run(self.segments, index, offset, order)?, is_zero))
    }

    /// Calls `look` under the lock until it finds something or has looked everywhere. Between two
    /// calls other CPUs may have the lock.
    pub(super) fn search<P: Platform, T>(
        &self,
        platform: &P,
        mut look: impl FnMut(&mut LockedZone) -> Option<T>,
    ) -> Option<T> {
        loop {
            let mut locked = self.lock(platform);
            locked.vain_looks = 0;
            let found = look(&mut locked);
            if found.is_some() || !locked.is_cut_short() {
                return found;
            }
        }
    }

    /// Takes single frames until `pages` is full or only `keep` free pages are left in the zone.
    /// Returns how many it took.
    pub(crate) fn allocate_bulk<P: Platform>(
        &self,
        platform: &P,
        migrate_type: MigrateType,
        keep: u64,
        pages: &mut [Pfn],
    ) -> usize {
        let mut done = 0;
        while done < pages.len() {
            let sources = [self.preferred(migrate_type), Some(migrate_type)];
            let got = sources.into_iter().flatten().find_map(|from| {
                self.search(platform, |locked| {
                    let got = locked.take_singles(from, keep, &mut pages[done..]);
                    (got != 0).then_some(got)
                })
            });
            let Some(got) = got else { break };
            done += got;
        }
        done
    }

    /// Takes the frames of `order` that begin at `start`, if all of them are free.
    pub(crate) fn allocate_at<P: Platform>(
        &self,
        platform: &P,
        start: Pfn,
        order: Order,
        migrate_type: MigrateType,
    ) -> Option<PfnRange> {
        let block = BlockNumber::containing(start);
        let index = segment::find(self.segments, block)?.index_of(block);
        let offset = offset_in_block(start);
        let mut locked = self.lock_coalesced(platform);
        if order >= Order::BLOCK && (index..index + blocks_of(order)).contains(&locked.spare) {
            locked.release_spare();
        }
        let own = locked.buddy.table.head_of(index)?.1.migrate_type();
        if own.is_grade() && migrate_type != MigrateType::Movable {
            return None;
        }
        let taken = if order < Order::BLOCK {
            locked.take_at(index, offset, order, migrate_type)
        } else {
            locked.take_block_at(index, order, own.taken_for(migrate_type))
        };
        drop(locked);
        if taken { segment::run(self.segments, index, offset, order) } else { None }
    }

    /// Merges the spare, the all-free block that is kept split. A request for whole blocks that
    /// finds none does this, too. Returns whether there was a spare: then the frames of its
    /// descriptors, if it had any inside, are free now.
    pub(crate) fn give_up_spare<P: Platform>(&self, platform: &P) -> bool {
        self.lock_coalesced(platform).release_spare()
    }
}

impl LockedZone {
    /// Takes single frames until `pages` is full, only `keep` free pages are left, or it is time to
    /// let other CPUs have the lock. Returns how many it took.
    fn take_singles(&mut self, migrate_type: MigrateType, keep: u64, pages: &mut [Pfn]) -> usize {
        let mut done = 0;
        for _ in 0..WORDS_AT_ONCE {
            let spare = self.free_pages().saturating_sub(keep);
            let limit = u32::try_from(spare.min((pages.len() - done) as u64)).unwrap_or(u32::MAX);
            let taken =
                if limit == 0 { None } else { self.take_word(Order::PAGE, migrate_type, limit) };
            let Some(word) = taken else { break };
            let Some(start) = self.frame(word.index, word.first) else { break };
            let mut runs = word.runs;
            while runs != 0 {
                pages[done] = start.add(u64::from(runs.trailing_zeros()));
                done += 1;
                runs &= runs - 1;
            }
        }
        done
    }

    /// Takes 2^`order` pages. Returns the block's index and the first frame in it.
    pub(super) fn take(&mut self, order: Order, migrate_type: MigrateType) -> Option<(u32, usize)> {
        if order < Order::BLOCK {
            return self.take_pages(order, migrate_type);
        }
        if let Some(index) = self.buddy.take(order, migrate_type) {
            return Some((index, 0));
        }
        // The spare, once merged, may be all that is missing.
        self.release_spare();
        self.buddy.take(order, migrate_type).map(|index| (index, 0))
    }

    /// Takes the blocks of `order` that begin at `index`, if all of them are free.
    fn take_block_at(&mut self, index: u32, order: Order, migrate_type: MigrateType) -> bool {
        if order > self.buddy.largest {
            let inside = self.buddy.segment_of(index).end - index >= blocks_of(order);
            return inside && self.buddy.gather(index, order, migrate_type).is_ok();
        }
        let Some((head, state)) = self.buddy.table.head_of(index) else { return false };
        // Free neighbours of one type are merged, so an aligned piece is free only if one free
        // block holds it.
        if !state.is(State::Free) || state.order() < order {
            return false;
        }
        self.buddy.take_from(head, index, order, migrate_type);
        true
    }
}
