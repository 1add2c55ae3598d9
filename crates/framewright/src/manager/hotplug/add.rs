//! Adding memory.

use super::window::Planned;
use super::{Hotplug, HotplugError, Piece, blocks_of, bytes_of};
use crate::manager::state::hotplug::{HotplugEvent, Searches};
use crate::platform::Platform;
use crate::units::{NodeId, PAGES_PER_BLOCK, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::Grade;
use crate::zone::Presence;
use core::mem::ManuallyDrop;

/// Windows that one call can make.
const MOST_PLANNED: usize = 16;

/// What came of adding memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Added {
    /// The memory.
    pub range: PhysRange,
    /// Pages that can be handed out.
    pub pages: u64,
    /// Bytes of it that hold tables.
    pub table_bytes: u64,
    /// Windows that were made for it.
    pub windows: u32,
}

/// Where memory was before it comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Was {
    /// The host may have had it.
    Away,
    /// It never left.
    Here,
}

/// What is done with all that comes before the next is.
#[derive(Clone, Copy)]
enum Step {
    LeaveOffline,
    LeaveToAccept,
    HandOut,
}

/// Windows to be made.
pub(super) struct Plan {
    planned: [Option<Planned>; MOST_PLANNED],
    len: usize,
}

/// Windows to be made unless somebody refuses, or panics: then what they obtained goes back.
struct Wanted<'m, P: Platform> {
    hotplug: Hotplug<'m, P>,
    plan: Plan,
}

impl<P: Platform> Drop for Wanted<'_, P> {
    fn drop(&mut self) {
        self.hotplug.forget_all(&self.plan);
    }
}

impl<P: Platform> Hotplug<'_, P> {
    /// Adds memory: from when this returns its pages can be had, each 2 MiB with a grade. It may
    /// lie anywhere, next to memory that is there or not, and what was removed may come back. All
    /// is checked and obtained before anything changes (Linux: `mm/memory_hotplug.c`,
    /// `add_memory_resource`, `online_pages`).
    ///
    /// Each window that is made, up to 16 in one call, takes at most 768 KiB of memory that is
    /// there for its tables: larger ones lie in the window itself, but with
    /// `memory_hotplug.memmap_on_memory` off, when all tables lie in memory that is there.
    ///
    /// Each place for memory that was not known yet is one of `hotplug_windows=`, which stays: of
    /// what comes in small steps name the device first
    /// ([`register_group`](Self::register_group)).
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    ///
    /// # Safety
    /// The range is memory that nobody uses and that is known to nobody else, and it stays memory
    /// until it is removed. Below the platform's `direct_limit` it can be reached through
    /// `direct` (invariant 15).
    pub unsafe fn add(
        self,
        range: PhysRange,
        node: NodeId,
        grade: Grade,
    ) -> Result<Added, HotplugError> {
        // SAFETY: passed on to the caller.
        unsafe { self.add_as(range, node, Some(grade), Was::Away) }
    }

    /// [`add`](Self::add) of what was removed and never left, as a device refused it. Each 2 MiB is
    /// as it was: offline, or of the grade that it had; what was accepted is so still, also where a
    /// host forgets, and what could not be is out of use. (But for the last memory of a window with
    /// tables in itself, of which nobody knows any more: that gets `grade`, and is offline without
    /// one.)
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    ///
    /// # Safety
    /// As of [`add`](Self::add); and the host has not had it since it was removed.
    pub unsafe fn put_back(
        self,
        range: PhysRange,
        node: NodeId,
        grade: Option<Grade>,
    ) -> Result<Added, HotplugError> {
        // SAFETY: passed on to the caller.
        unsafe { self.add_as(range, node, grade, Was::Here) }
    }

    /// [`add`](Self::add) of memory that nobody gets before [`online`](Self::online).
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn add_offline(self, range: PhysRange, node: NodeId) -> Result<Added, HotplugError> {
        // SAFETY: passed on to the caller.
        unsafe { self.add_as(range, node, None, Was::Away) }
    }

    /// Hands memory out that is offline, all of it.
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    pub fn online(self, range: PhysRange, grade: Grade) -> Result<Added, HotplugError> {
        let blocks = blocks_of(range)?;
        let _changing = self.begin()?;
        let node = self.known(blocks).next().map(|piece| piece.zone.id().node);
        self.check(blocks, Presence::Offline, node)?;
        let node = node.ok_or(HotplugError::Absent(blocks.start.start()))?;
        let is_first = !self.has_memory(node);
        self.ask(range, node, is_first)?;
        let pages = self.leave_all_to_accept(blocks, Presence::Offline, grade, Was::Here);
        self.hand_out_accepted(blocks, Presence::Offline, grade);
        let pages = pages - self.finish_handing_out(blocks);
        self.tell(range, node, is_first);
        Ok(Added { range, pages, table_bytes: 0, windows: 0 })
    }

    /// Handed out with a grade, or offline without.
    ///
    /// # Safety
    /// As of [`add`](Self::add).
    unsafe fn add_as(
        self,
        range: PhysRange,
        node: NodeId,
        grade: Option<Grade>,
        was: Was,
    ) -> Result<Added, HotplugError> {
        let blocks = blocks_of(range)?;
        if range.start == 0 {
            // Addresses of 0 mean that there is none.
            return Err(HotplugError::FrameZero);
        }
        if node.index() >= self.manager.nodes.len() {
            return Err(HotplugError::NoNode(node));
        }
        let _changing = self.begin()?;
        self.check(blocks, Presence::Absent, Some(node))?;
        let planned = Wanted { hotplug: self, plan: self.plan_all(blocks, node)? };
        let is_first = !self.has_memory(node);
        let (mut is_told, mut rest) = (false, blocks);
        while rest.start < rest.end {
            let (part, grade) = self.first_alike(rest, grade, was);
            is_told |= grade.is_some();
            rest.start = part.end;
        }
        if is_told {
            self.ask(range, node, is_first)?;
        }
        // Whoever may panic was asked.
        let mut planned = ManuallyDrop::new(planned);
        let plan = &mut planned.plan;
        if let Err(error) = self.accept_tables(blocks, plan, was) {
            if is_told {
                self.cancel_adding(range, node, is_first);
            }
            // SAFETY: passed on to the caller, who gives this memory (invariant 1).
            unsafe { self.give_up(plan) };
            return Err(error);
        }
        // From here on nothing fails.
        let mut windows = 0;
        for planned in plan.all() {
            // SAFETY: passed on to the caller, who gives this memory (invariant 1).
            let window = unsafe { self.make(planned) };
            debug_assert!(window.is_some(), "places were counted");
            windows += u32::from(window.is_some());
        }
        let mut table_bytes = 0;
        for piece in self.known(blocks) {
            // SAFETY: passed on to the caller, who gives this memory (invariant 1).
            table_bytes += unsafe { self.place_tables(piece) };
        }
        self.insert_node(node);
        // Only when all else is there is what is accepted handed out: what lies behind it can be
        // read from then.
        let (mut pages, from) = (0, Presence::Absent);
        for step in [Step::LeaveOffline, Step::LeaveToAccept, Step::HandOut] {
            let mut rest = blocks;
            while rest.start < rest.end {
                let (part, grade) = self.first_alike(rest, grade, was);
                match (step, grade) {
                    (Step::LeaveOffline, None) => self.leave_offline(part, was),
                    (Step::LeaveToAccept, Some(grade)) => {
                        pages += self.leave_all_to_accept(part, from, grade, was);
                    }
                    (Step::HandOut, Some(grade)) => self.hand_out_accepted(part, from, grade),
                    _ => {}
                }
                rest.start = part.end;
            }
        }
        if is_told {
            pages -= self.finish_handing_out(blocks);
            self.tell(range, node, is_first);
        }
        Ok(Added { range, pages, table_bytes, windows })
    }

    /// The first of blocks that are no memory yet: as many as are to have one grade, or to be
    /// offline. What never left is as it was, all else as is said, which is known where this is
    /// called.
    #[inline(always)]
    fn first_alike(
        self,
        rest: BlockRange,
        grade: Option<Grade>,
        was: Was,
    ) -> (BlockRange, Option<Grade>) {
        if was == Was::Here { self.first_as_it_was(rest, grade) } else { (rest, grade) }
    }

    #[inline(never)]
    fn first_as_it_was(
        self,
        rest: BlockRange,
        unknown: Option<Grade>,
    ) -> (BlockRange, Option<Grade>) {
        let Some(piece) = self.known(rest).next() else { return (rest, unknown) };
        let indices = piece.indices();
        let (grade, end) = piece.zone.past_of(self.manager.platform, &indices, unknown);
        let end = BlockNumber(piece.blocks.start.0 + (end - indices.start));
        (BlockRange { end, ..rest }, grade)
    }

    /// Makes all blocks offline that are no memory yet.
    fn leave_offline(self, blocks: BlockRange, was: Was) {
        let (is_here, forgets) = (was == Was::Here, self.has_forgotten(was));
        for piece in self.known(blocks) {
            for (_, run) in self.runs_of(piece).filter(|(place, _)| *place == Presence::Absent) {
                run.zone.put_offline(self.manager.platform, run.indices(), is_here, forgets);
            }
            self.manager.accept_border_of(piece.blocks.start.start());
        }
    }

    /// Whether all blocks that have places are what they are to be, and of a node.
    fn check(
        self,
        blocks: BlockRange,
        wanted: Presence,
        node: Option<NodeId>,
    ) -> Result<(), HotplugError> {
        let mut next = blocks.start;
        for piece in self.known(blocks) {
            let of = piece.zone.id().node;
            if node.is_some_and(|node| node != of) {
                return Err(HotplugError::OtherNode(piece.blocks.start.start(), of));
            }
            if wanted == Presence::Offline && piece.blocks.start != next {
                return Err(HotplugError::Absent(next.start()));
            }
            next = piece.blocks.end;
            for (place, run) in self.runs_of(piece) {
                let pfn = run.blocks.start.start();
                match (place, wanted) {
                    (place, wanted) if place == wanted => {}
                    (_, Presence::Absent) => return Err(HotplugError::Present(pfn)),
                    (Presence::Online, _) => return Err(HotplugError::Present(pfn)),
                    _ => return Err(HotplugError::Absent(pfn)),
                }
            }
            self.check_tables(piece)?;
        }
        if wanted == Presence::Offline && next != blocks.end {
            return Err(HotplugError::Absent(next.start()));
        }
        Ok(())
    }

    /// Blocks of a window that has its tables in itself come with these, or after them.
    fn check_tables(self, piece: Piece) -> Result<(), HotplugError> {
        let tables = self.tables_of(piece);
        let is_there = !piece.zone.is_gone();
        let comes = piece.blocks.start == tables.start && piece.blocks.end > tables.end;
        if is_there || comes { Ok(()) } else { Err(HotplugError::Tables(bytes_of(tables))) }
    }

    fn plan_all(self, blocks: BlockRange, node: NodeId) -> Result<Plan, HotplugError> {
        let mut plan = Plan { planned: [None; MOST_PLANNED], len: 0 };
        let mut next = blocks.start;
        while next < blocks.end {
            if let Some(segment) = self.manager.segment_of(next) {
                next = segment.end().min(blocks.end);
                continue;
            }
            let rest = BlockRange { start: next, end: self.unknown_until(next, blocks.end) };
            match self.plan_first(rest, node, plan.len) {
                Ok(planned) if plan.len < MOST_PLANNED => {
                    next = planned.1;
                    plan.planned[plan.len] = Some(planned.0);
                    plan.len += 1;
                }
                refused => {
                    let error = match refused {
                        Ok((planned, _)) => {
                            self.forget(&planned);
                            HotplugError::NoWindow(bytes_of(blocks))
                        }
                        Err(error) => error,
                    };
                    self.forget_all(&plan);
                    return Err(error);
                }
            }
        }
        Ok(plan)
    }

    /// A window for all of a run without a place, or for the first part of it, where tables have to
    /// lie in the memory itself; and where that ends.
    fn plan_first(
        self,
        run: BlockRange,
        node: NodeId,
        number: usize,
    ) -> Result<(Planned, BlockNumber), HotplugError> {
        let plan_to = |end| {
            let part = BlockRange { end, ..run };
            let planned = self.plan(part, node, number)?;
            // A window may be larger than what was asked for.
            Ok((planned, planned.blocks.end.max(end).min(run.end)))
        };
        let part = Self::whole_part(run);
        if Self::is_small(run) || part.is_none() {
            match (plan_to(run.end), part) {
                (Err(HotplugError::NoRoomForTables { .. }), Some(_)) => {}
                (planned, _) => return planned,
            }
        }
        plan_to(part.unwrap_or(run.end))
    }

    fn forget_all(self, plan: &Plan) {
        plan.all().for_each(|planned| self.forget(planned));
    }

    /// Asks whoever may refuse.
    fn ask(self, range: PhysRange, node: NodeId, is_first: bool) -> Result<(), HotplugError> {
        if is_first {
            self.notify(HotplugEvent::AddingFirst(node)).map_err(|veto| {
                let _ = self.notify(HotplugEvent::CancelFirst(node));
                HotplugError::Veto(veto)
            })?;
        }
        self.notify(HotplugEvent::GoingOnline(range)).map_err(|veto| {
            self.cancel_adding(range, node, is_first);
            HotplugError::Veto(veto)
        })
    }

    fn cancel_adding(self, range: PhysRange, node: NodeId, is_first: bool) {
        let _ = self.notify(HotplugEvent::CancelOnline(range));
        if is_first {
            let _ = self.notify(HotplugEvent::CancelFirst(node));
        }
    }

    fn tell(self, range: PhysRange, node: NodeId, is_first: bool) {
        if is_first {
            let _ = self.notify(HotplugEvent::AddedFirst(node));
        }
        let _ = self.notify(HotplugEvent::Online(range));
    }

    /// Leaves those of blocks that are `from` to be accepted that have to be; how many pages there
    /// are.
    fn leave_all_to_accept(
        self,
        blocks: BlockRange,
        from: Presence,
        grade: Grade,
        was: Was,
    ) -> u64 {
        let mut pages = 0;
        for piece in self.known(blocks) {
            self.track_reported(piece);
            for (_, run) in self.runs_of(piece).filter(|(place, _)| *place == from) {
                self.leave_to_accept(run, grade, was);
                pages += u64::from(run.blocks.blocks()) * PAGES_PER_BLOCK;
            }
        }
        pages
    }

    /// Makes all blocks free that are `from` still.
    fn hand_out_accepted(self, blocks: BlockRange, from: Presence, grade: Grade) {
        for piece in self.known(blocks) {
            for (_, run) in self.runs_of(piece).filter(|(place, _)| *place == from) {
                self.hand_out_run(run, grade);
            }
            // Who registered meanwhile may not have found what came.
            self.track_reported(piece);
        }
    }

    /// What follows when blocks were handed out; how many pages of them nobody gets.
    fn finish_handing_out(self, blocks: BlockRange) -> u64 {
        *self.manager.hotplug.searches.lock(self.manager.platform) = Searches::default();
        self.after_change();
        let mut lost_pages = 0;
        for piece in self.known(blocks) {
            for (_, run) in self.runs_of(piece).filter(|(place, _)| *place == Presence::Online) {
                lost_pages += self.accept_added(run.blocks);
            }
        }
        lost_pages
    }

    fn track_reported(self, piece: Piece) {
        if self.manager.reporting.is_registered() {
            piece.zone.track_reported(self.manager.platform);
        }
    }

    /// A node has memory: all others may be served from there.
    fn insert_node(self, node: NodeId) {
        let manager = self.manager;
        for from in manager.nodes {
            let _writer = manager.tunables.lock(manager.platform);
            from.fallback.insert(node, &|to| manager.rank(from, to));
        }
    }
}

impl Plan {
    pub(super) fn all(&self) -> impl Iterator<Item = &Planned> {
        self.planned.iter().take(self.len).flatten()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Planned> {
        self.planned.iter_mut().take(self.len).flatten()
    }
}
