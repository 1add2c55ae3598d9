//! Takes memory out of use.
//!
//! Orders of memory: Relaxed: counts that are only reported.

use super::{Hotplug, HotplugError, Piece, blocks_of, bytes_of, pages_of};
use crate::manager::moving::{Budget, Obstacle, ObstacleKind, RangeError, VacateError};
use crate::manager::state::hotplug::{HotplugEvent, Looked, Veto};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{NodeId, PAGE_SIZE, PAGES_PER_BLOCK, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{IsolateError, Pieces, Presence};
use core::panic::Location;

const BLOCK_BYTES: u64 = PAGES_PER_BLOCK * PAGE_SIZE;
/// How many blocks are vacated at once, 256 MiB, unless the alignment of pieces is larger.
/// Isolating more takes as long as some callers have for one call, and leads nowhere if the next
/// call has to begin with it again.
const BLOCKS_AT_ONCE: u32 = 128;
/// How often to look for free memory again if others take it meanwhile.
const MOST_LOOKS: u32 = 8;

/// The memory that was taken out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The memory.
    pub range: PhysRange,
    /// Pages that could be handed out before, so without those that could not be accepted or had
    /// memory errors.
    pub pages: u64,
}

/// The result of taking some memory out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// This range is out of use now.
    Run(PhysRange),
    /// Nothing could be taken. The obstacle of the last attempt, if it can be named.
    Nothing(Option<Obstacle>),
    /// Nothing could be taken before the budget was used up; more time may help.
    OutOfTime,
}

/// Memory on its way out of use. If this is dropped, even because a mover panics, the memory stays
/// and everything is undone.
struct Leaving<'m, P: Platform> {
    hotplug: Hotplug<'m, P>,
    blocks: BlockRange,
    /// The memory before this block is taken.
    taken_end: BlockNumber,
    /// Set if the notifier was told; the inner value is the node that would have no memory left.
    told: Option<Option<NodeId>>,
}

impl<P: Platform> Drop for Leaving<'_, P> {
    fn drop(&mut self) {
        let Self { hotplug, blocks, taken_end, told } = *self;
        hotplug.visit_memory(BlockRange { end: taken_end, ..blocks }, &mut |taken| {
            // This cannot fail, as the frames were just taken.
            let _ = hotplug.manager.free_uncached(pages_of(taken.blocks), Location::caller());
            true
        });
        hotplug.set_going(PhysRange::new(0, 0));
        hotplug.keep_unaccepted(blocks);
        if let Some(last) = told {
            hotplug.cancel(bytes_of(blocks), last);
        }
    }
}

/// The parameters and the progress of [`Hotplug::remove_some`].
struct Search {
    pieces: Pieces,
    looked: Looked,
    /// The search continues an earlier one and time is short, so skip the first look at everything.
    is_short: bool,
    budget: Budget,
    /// The last obstacle.
    obstacle: Option<Obstacle>,
    /// The notifier refused some memory.
    is_refused: bool,
}

/// Unaccepted memory that nobody gets while this lives.
struct Withheld<'m, P: Platform> {
    hotplug: Hotplug<'m, P>,
    blocks: BlockRange,
}

impl<P: Platform> Drop for Withheld<'_, P> {
    fn drop(&mut self) {
        self.hotplug.keep_unaccepted(self.blocks);
    }
}

impl<P: Platform> Hotplug<'_, P> {
    /// Takes memory out of use. Its contents are moved elsewhere first, as far as the mover and the
    /// budget allow. When this returns, nobody uses the range and the manager does not touch it.
    /// Offline memory can be removed as well. Free pages of pools in the range are replaced by
    /// other pages of their node; a caller that lacks room for these shrinks the pool first. Pages
    /// that left a pool because of a memory error do not keep their memory from going.
    /// (Linux: `mm/memory_hotplug.c`, `offline_pages`, `try_remove_memory`.)
    ///
    /// # Errors
    /// [`HotplugError`], which names the obstacle. Nothing has changed, except that some contents
    /// may have moved.
    ///
    /// # Safety
    /// Nobody looks up descriptors of the range by number meanwhile
    /// ([`References::try_get`](crate::manager::References::try_get)), because the answer could be
    /// read from memory that is gone.
    pub unsafe fn remove(self, range: PhysRange, budget: Budget) -> Result<Removed, HotplugError> {
        self.take_out(range, budget, Presence::Absent)
    }

    /// Does [`remove`](Self::remove) for memory that stays in the machine until
    /// [`online`](Self::online) makes it available again, except pages with memory errors. Memory
    /// that holds tables of more than itself stays in use.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove); also if a part of the range is already offline.
    pub fn offline(self, range: PhysRange, budget: Budget) -> Result<Removed, HotplugError> {
        self.take_out(range, budget, Presence::Offline)
    }

    fn take_out(
        self,
        range: PhysRange,
        budget: Budget,
        to: Presence,
    ) -> Result<Removed, HotplugError> {
        let blocks = blocks_of(range)?;
        let _changing = self.begin()?;
        self.take_out_alone(blocks, &mut { budget }, to)
    }

    fn take_out_alone(
        self,
        blocks: BlockRange,
        budget: &mut Budget,
        to: Presence,
    ) -> Result<Removed, HotplugError> {
        let range = bytes_of(blocks);
        // Notifiers were told of offline memory when it went offline.
        let is_told = self.check_removal(blocks, to)?;
        self.check_areas(blocks)?;
        let last = self.last_of(blocks);
        if is_told {
            self.ask_removal(range, last)?;
        }
        // Memory that is going to be removed must not be accepted in vain.
        let unaccepted_pages = self.withhold_unaccepted(blocks);
        self.set_going(range);
        let told = is_told.then_some(last);
        let mut leaving = Leaving { hotplug: self, blocks, taken_end: blocks.start, told };
        let pages = unaccepted_pages + self.take(&mut leaving, budget)?;
        // An area that was begun meanwhile either saw `going`, or is seen here.
        self.check_areas(blocks)?;
        core::mem::forget(leaving);
        self.tell_of_taken(blocks);
        for piece in self.known(blocks) {
            let was_gone = piece.zone.is_gone();
            let isolated = piece.zone.take_offline(self.manager.platform, piece.indices(), to);
            if isolated != 0 {
                self.manager.isolation().forget(isolated);
            }
            if !was_gone && piece.zone.is_gone() {
                let tables = bytes_of(self.tables_of(piece.segment)).size();
                self.manager.hotplug.table_bytes.fetch_sub(tables, Ordering::Relaxed);
            }
        }
        self.set_going(PhysRange::new(0, 0));
        self.after_change();
        if let Some(node) = last {
            let _ = self.notify(HotplugEvent::RemovedLast(node));
        }
        if is_told {
            let _ = self.notify(HotplugEvent::Offline(range));
        }
        Ok(Removed { range, pages })
    }

    fn set_going(self, range: PhysRange) {
        *self.manager.hotplug.going.lock(self.manager.platform) = range;
    }

    /// Returns the range that is being vacated to be taken out of use; empty if there is none.
    #[must_use]
    pub fn going(self) -> PhysRange {
        *self.manager.hotplug.going.lock(self.manager.platform)
    }

    fn check_areas(self, blocks: BlockRange) -> Result<(), HotplugError> {
        self.manager.moving().area_in(blocks).map_or(Ok(()), |pfn| Err(HotplugError::Area(pfn)))
    }

    /// Checks that all blocks can be removed. Returns whether any of them are online memory other
    /// than tables. Tables of a window only go with the last of its memory.
    fn check_removal(self, blocks: BlockRange, to: Presence) -> Result<bool, HotplugError> {
        let (mut next, mut pages) = (blocks.start, 0);
        let mut node = None;
        for piece in self.known(blocks) {
            let of = piece.zone.id().node;
            if *node.get_or_insert(of) != of {
                return Err(HotplugError::OtherNode(piece.blocks.start.start(), of));
            }
            if piece.blocks.start != next {
                return Err(HotplugError::Absent(next.start()));
            }
            next = piece.blocks.end;
            let mut of_piece = 0;
            for (place, run) in self.runs_of(piece) {
                match place {
                    Presence::Online => of_piece += pages_of(run.blocks).pages(),
                    Presence::Offline if to == Presence::Absent => {}
                    _ => return Err(HotplugError::Absent(run.blocks.start.start())),
                }
            }
            pages += of_piece;
            let tables = self.tables_of(piece.segment);
            let touches = piece.blocks.start < tables.end && tables.start < piece.blocks.end;
            if touches && (to != Presence::Absent || !self.is_all_of_window(piece)) {
                return Err(HotplugError::Tables(bytes_of(tables)));
            }
            if touches {
                pages -= pages_of(tables).pages();
            }
        }
        if next == blocks.end { Ok(pages != 0) } else { Err(HotplugError::Absent(next.start())) }
    }

    /// Returns whether all of a window except these blocks is absent. Offline blocks are not: the
    /// tables record them as offline memory.
    fn is_all_of_window(self, piece: Piece) -> bool {
        let (start, end) = (piece.segment.start, piece.segment.end());
        let before = BlockRange { start, end: piece.blocks.start };
        let after = BlockRange { start: piece.blocks.end, end };
        [before, after].into_iter().filter(|rest| rest.start < rest.end).all(|blocks| {
            self.runs_of(Piece { blocks, ..piece }).all(|(place, _)| place == Presence::Absent)
        })
    }

    /// Returns the node that would have no memory left.
    fn last_of(self, blocks: BlockRange) -> Option<NodeId> {
        let node = self.known(blocks).next()?.zone.id().node;
        let runs = self.known(blocks).flat_map(|piece| self.runs_of(piece));
        let memory = runs.filter(|(place, _)| *place == Presence::Online);
        let going = memory.map(|(_, run)| {
            let tables = pages_of(self.tables_of(run.segment)).intersection(pages_of(run.blocks));
            pages_of(run.blocks).pages() - tables.pages()
        });
        let going: u64 = going.sum();
        (going == self.memory_pages(node) && going != 0).then_some(node)
    }

    fn ask_removal(self, range: PhysRange, last: Option<NodeId>) -> Result<(), HotplugError> {
        if let Some(node) = last {
            self.notify(HotplugEvent::RemovingLast(node)).map_err(|veto| {
                let _ = self.notify(HotplugEvent::CancelLast(node));
                HotplugError::Veto(veto)
            })?;
        }
        self.notify(HotplugEvent::GoingOffline(range)).map_err(|veto| {
            self.cancel(range, last);
            HotplugError::Veto(veto)
        })
    }

    fn cancel(self, range: PhysRange, last: Option<NodeId>) {
        let _ = self.notify(HotplugEvent::CancelOffline(range));
        if let Some(node) = last {
            let _ = self.notify(HotplugEvent::CancelLast(node));
        }
    }

    /// Passes the runs of memory among blocks that have or can have an owner to `visit`, until that
    /// returns false. Leaves out tables, and unaccepted memory, which is removed as it is.
    #[inline(never)]
    fn visit_memory(self, blocks: BlockRange, visit: &mut dyn FnMut(Piece) -> bool) {
        for piece in self.known(blocks) {
            let tables = self.tables_of(piece.segment);
            let start = piece.blocks.start.max(tables.end.min(piece.blocks.end));
            let start = if piece.blocks.start >= tables.start { start } else { piece.blocks.start };
            let rest = Piece { blocks: BlockRange { start, ..piece.blocks }, ..piece };
            for (_, run) in self.runs_of(rest).filter(|(place, _)| *place == Presence::Online) {
                if !self.takeable_of(run).all(&mut *visit) {
                    return;
                }
            }
        }
    }

    /// Allocates all memory among blocks, run by run; returns how many pages that is.
    fn take(self, leaving: &mut Leaving<'_, P>, budget: &mut Budget) -> Result<u64, HotplugError> {
        let mut pages = Ok(0);
        self.visit_memory(leaving.blocks, &mut |run| {
            // Away from memory that may be the next to go (Linux: `do_migrate_range`).
            let moving = self.moving_to(self.other_than(run.zone.id().node));
            match moving.take_range(pages_of(run.blocks), budget) {
                Ok(taken) => {
                    leaving.taken_end = run.blocks.end;
                    pages = pages.map(|pages| pages + taken.pages());
                }
                Err(error) => pages = Err(HotplugError::Range(error)),
            }
            pages.is_ok()
        });
        pages
    }

    /// Tells those that watch every free that the taken memory is gone. This comes after the
    /// removal is certain: memory that stays is freed, and they are told of that free.
    fn tell_of_taken(self, blocks: BlockRange) {
        if self.manager.pressure.epoch.wants_attention() {
            self.visit_memory(blocks, &mut |run| {
                let _ = self.manager.before_free(pages_of(run.blocks), true, Location::caller());
                true
            });
        }
    }

    /// Takes a run of at most `most_bytes` within `within` out of use. The length of the run is a
    /// multiple of `align_bytes`, a multiple of 2 MiB to which the run is aligned. The longest run
    /// that is free or offline comes first, and the highest of equally long ones. If there is none,
    /// this takes the highest run that can be vacated within the budget, which counts runs from the
    /// top, including refused ones. Reserve areas are left out: the ranges between them are
    /// searched one after another, from the top.
    ///
    /// One call gives one run; a run that had to be vacated is at most 256 MiB long, or one
    /// alignment, if that is longer. After a call that ran out of time, a call with the same range
    /// goes on where that one ended, so that memory which stays is not examined again and again.
    /// With a deadline, such a call also looks for free memory only there, part by part, and
    /// everywhere again in the next round.
    ///
    /// # Errors
    /// [`HotplugError`] if the arguments are wrong, if the range is in reserve areas, if others
    /// change memory, or if the notifier refuses and nothing was found elsewhere. Above a run that
    /// it refuses, nothing of the same part is tried.
    ///
    /// # Safety
    /// As for [`remove`](Self::remove).
    pub unsafe fn remove_some(
        self,
        within: PhysRange,
        most_bytes: u64,
        align_bytes: u64,
        budget: Budget,
    ) -> Result<Removal, HotplugError> {
        let blocks = blocks_of(within)?;
        let align = u32::try_from(align_bytes / BLOCK_BYTES).unwrap_or(0);
        if align == 0 || !align_bytes.is_multiple_of(BLOCK_BYTES) || most_bytes < align_bytes {
            return Err(HotplugError::BadPieces { most_bytes, align_bytes });
        }
        let most = u32::try_from(most_bytes / BLOCK_BYTES).unwrap_or(u32::MAX) / align * align;
        let _changing = self.begin()?;
        let at_once = most.min((BLOCKS_AT_ONCE / align * align).max(align));
        let searches = || self.manager.hotplug.searches.lock(self.manager.platform);
        let looked = searches().take(blocks, at_once);
        // A look at everything may take all the time of each call, and the search examines each
        // part anyway.
        let is_short = budget.is_timed() && looked.has_begun();
        let pieces = Pieces { most, align };
        let mut search =
            Search { pieces, looked, is_short, budget, obstacle: None, is_refused: false };
        let mut is_whole_round = looked == Looked::nothing(blocks, at_once);
        loop {
            let found = self.look_down(blocks, &mut search)?;
            match found {
                Removal::Nothing(_) if is_whole_round || search.looked.is_last => {
                    return if search.is_refused {
                        Err(HotplugError::Veto(Veto))
                    } else {
                        Ok(found)
                    };
                }
                Removal::Nothing(_) => {
                    // The memory above the point where the search began may be available by now.
                    search.looked = Looked { is_last: true, ..Looked::nothing(blocks, at_once) };
                    search.is_short = false;
                    is_whole_round = true;
                    continue;
                }
                Removal::Run(_) => search.looked.is_last = false,
                Removal::OutOfTime => {}
            }
            searches().put(search.looked);
            return Ok(found);
        }
    }

    /// Makes one round of [`remove_some`](Self::remove_some), or what is left of it.
    fn look_down(self, blocks: BlockRange, search: &mut Search) -> Result<Removal, HotplugError> {
        let mut rest = blocks;
        loop {
            let part = self.manager.moving().last_outside_areas(rest);
            if part.start == part.end {
                break;
            }
            let found = self.remove_from(part, search)?;
            if !matches!(found, Removal::Nothing(_)) {
                return Ok(found);
            }
            rest.end = part.start;
        }
        if rest.end == blocks.end {
            self.check_areas(blocks)?;
        }
        Ok(Removal::Nothing(search.obstacle))
    }

    /// Does [`look_down`](Self::look_down) for a range without areas.
    fn remove_from(self, blocks: BlockRange, search: &mut Search) -> Result<Removal, HotplugError> {
        let pieces = search.pieces;
        let align = pieces.align;
        let free = if search.is_short { None } else { self.take_free(blocks, search)? };
        if let Some(run) = free {
            return Ok(Removal::Run(run));
        }
        // From the top down, as much at a time as is wanted and can be isolated at once.
        let mut end = BlockNumber(blocks.end.min(search.looked.down_to).0 / align * align);
        while end > blocks.start {
            // Skip gaps without known blocks.
            let Some(last) = self.known(BlockRange { end, ..blocks }).last() else { break };
            end = BlockNumber(last.blocks.end.0.next_multiple_of(align)).min(end);
            let start = BlockNumber(end.0.saturating_sub(search.looked.most)).max(blocks.start);
            let start = BlockNumber(start.0.next_multiple_of(align)).min(end);
            if start == end {
                break;
            }
            // An indivisible page lies wholly in one part, unless the part would be longer than
            // wanted.
            let whole = BlockNumber(self.whole_start(start).0 / align * align);
            let fits = blocks.start <= whole && end.0 - whole.0 <= pieces.most;
            let start = if fits { whole } else { start };
            let part = BlockRange { start, end };
            // Unaccepted memory holds nothing that could be moved.
            self.withhold_unaccepted(part);
            let withheld = Withheld { hotplug: self, blocks: part };
            search.looked.down_to = end;
            let is_out_of_time = self.vacate(part, search);
            drop(withheld);
            if let Some(run) = self.take_free(part, search)? {
                return Ok(Removal::Run(run));
            }
            if is_out_of_time {
                return Ok(Removal::OutOfTime);
            }
            (search.looked.down_to, search.looked.vacated_to) = (start, BlockNumber(0));
            // Perhaps owners were asked and nothing was moved.
            let (platform, budget) = (self.manager.platform, &search.budget);
            if !budget.has_time(platform)
                || search.obstacle.is_some() && !budget.allows(platform, 0)
            {
                return Ok(Removal::OutOfTime);
            }
            end = start;
        }
        self.take_tables(blocks, search)
    }

    /// Returns the first block of the indivisible page that contains this block; else the block
    /// itself.
    fn whole_start(self, block: BlockNumber) -> BlockNumber {
        let one = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
        self.known(one).next().map_or(block, |Piece { zone, segment, .. }| {
            segment.block_of(zone.whole(self.manager.platform, segment.index_of(block)).start)
        })
    }

    /// Takes a window's tables out of use, if they are all that is left of it, together with the
    /// rest of their aligned piece.
    fn take_tables(self, within: BlockRange, search: &mut Search) -> Result<Removal, HotplugError> {
        let Pieces { most, align } = search.pieces;
        for piece in self.known(within) {
            let tables = self.tables_of(piece.segment);
            let end = BlockNumber(tables.end.0.next_multiple_of(align));
            let blocks = BlockRange { start: tables.start, end };
            let fits = tables.start < tables.end
                && blocks.start.0.is_multiple_of(align)
                && blocks.blocks() <= most
                && piece.blocks.start <= blocks.start
                && blocks.end <= piece.blocks.end;
            if !fits || piece.zone.is_gone() || !self.is_all_of_window(Piece { blocks, ..piece }) {
                continue;
            }
            match self.take_out_alone(blocks, &mut search.budget, Presence::Absent) {
                Ok(removed) => return Ok(Removal::Run(removed.range)),
                Err(HotplugError::Range(RangeError::Vacate(VacateError::Obstacles {
                    obstacles,
                    ..
                }))) => search.obstacle = Some(obstacles.first),
                Err(HotplugError::Range(RangeError::Vacate(VacateError::OutOfTime { .. }))) => {
                    return Ok(Removal::OutOfTime);
                }
                // A gap: a part of the piece was removed before.
                Err(HotplugError::Range(_) | HotplugError::Absent(_)) => {}
                Err(HotplugError::Veto(_)) => search.is_refused = true,
                Err(error) => return Err(error),
            }
        }
        Ok(Removal::Nothing(search.obstacle))
    }

    /// Moves out what can be moved of the memory that was not vacated before. Returns whether the
    /// budget was used up before all of it was tried.
    fn vacate(self, part: BlockRange, search: &mut Search) -> bool {
        let mut is_used_up = false;
        self.visit_memory(part, &mut |run| {
            is_used_up = self.vacate_run(run, search);
            !is_used_up
        });
        is_used_up
    }

    /// [`vacate`](Self::vacate) for one run.
    fn vacate_run(self, run: Piece, search: &mut Search) -> bool {
        let mut blocks = run.blocks;
        blocks.start = blocks.start.max(search.looked.vacated_to);
        while blocks.start < run.blocks.end {
            // Each attempt drains the caches of all CPUs.
            if blocks.start > run.blocks.start && !search.budget.has_time(self.manager.platform) {
                search.looked.vacated_to = blocks.start;
                return true;
            }
            // Linux's virtio-mem driver prefers the node, too (`alloc_contig_range`).
            let moving = self.moving_to(run.zone.id().node);
            match moving.vacate_some(blocks, &mut search.budget) {
                Ok(partly) => {
                    search.obstacle = partly.first.or(search.obstacle);
                    search.looked.vacated_to = partly.reached;
                    if partly.reached < blocks.end {
                        return true;
                    }
                    blocks = BlockRange { start: blocks.end, end: run.blocks.end };
                }
                Err(VacateError::Isolate(
                    error @ (IsolateError::Isolated(pfn) | IsolateError::Indivisible(pfn)),
                )) => {
                    // First the blocks before this one, and then those behind it.
                    let at = BlockNumber::containing(pfn);
                    if at > blocks.start {
                        blocks.end = at;
                        continue;
                    }
                    let index = run.segment.index_of(at);
                    let behind = run.zone.whole(self.manager.platform, index).end;
                    let behind = run.segment.block_of(behind);
                    let kind = match error {
                        IsolateError::Isolated(_) => ObstacleKind::Busy,
                        _ => ObstacleKind::Fixed,
                    };
                    let start = behind.max(BlockNumber(blocks.start.0 + 1));
                    let in_the_way = pages_of(BlockRange { start: at, end: start });
                    search.obstacle = Some(Obstacle { run: in_the_way, kind });
                    search.looked.vacated_to = start;
                    blocks = BlockRange { start, end: run.blocks.end };
                }
                Err(_) => break,
            }
        }
        false
    }

    /// Takes the longest free run, if there is one that the notifier lets go.
    fn take_free(
        self,
        mut within: BlockRange,
        search: &mut Search,
    ) -> Result<Option<PhysRange>, HotplugError> {
        let (platform, pieces) = (self.manager.platform, search.pieces);
        for _ in 0..MOST_LOOKS {
            let mut best: Option<BlockRange> = None;
            for piece in self.known(within) {
                let indices = piece.indices();
                let found = piece.zone.highest_free(platform, piece.segment, &indices, pieces);
                let Some(found) = found else { continue };
                let start = piece.segment.block_of(found.start);
                let end = BlockNumber(start.0 + (found.end - found.start));
                if best.is_none_or(|best| end.0 - start.0 >= best.blocks()) {
                    best = Some(BlockRange { start, end });
                }
            }
            let Some(best) = best else { return Ok(None) };
            match self.take_out_alone(best, &mut Budget::runs(0), Presence::Absent) {
                Ok(removed) => return Ok(Some(removed.range)),
                // Another caller took it first.
                Err(HotplugError::Range(RangeError::Vacate(_))) => {}
                Err(HotplugError::Range(_)) => return Ok(None),
                // The memory above is left to a search of the other parts.
                Err(HotplugError::Veto(_)) => {
                    (search.is_refused, within.end) = (true, best.start);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
