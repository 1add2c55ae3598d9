//! Adding memory.
//!
//! Orders of memory: SeqCst: a device for reports that registers and memory that is added must not
//! miss each other.

use super::window::Planned;
use super::{Hotplug, HotplugError, Piece, blocks_of, bytes_of};
use crate::manager::state::hotplug::{HotplugEvent, Searches};
use crate::platform::Platform;
use crate::sync::table_atomic::{Ordering, fence};
use crate::units::{NodeId, PAGES_PER_BLOCK, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::Grade;
use crate::zone::Presence;
use core::mem::ManuallyDrop;

/// The most windows that one call can make.
const MOST_PLANNED: usize = 16;

/// The result of adding memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Added {
    /// The memory.
    pub range: PhysRange,
    /// Pages that can be handed out.
    pub pages: u64,
    /// Bytes of the memory that hold tables.
    pub table_bytes: u64,
    /// Windows that were made for it.
    pub windows: u32,
}

/// Where memory was before it is added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Was {
    /// The host may have had it.
    Away,
    /// It never left.
    Here,
}

/// A step of adding memory, which is completed for all blocks before the next step begins.
#[derive(Clone, Copy)]
enum Step {
    LeaveOffline,
    LeaveToAccept,
    HandOut,
}

/// Windows to make.
pub(super) struct Plan {
    planned: [Option<Planned>; MOST_PLANNED],
    len: usize,
}

/// Windows to make. If a notifier refuses or panics, what they obtained is given back.
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
    /// Adds memory: when this returns, its pages are available, each 2 MiB with a grade. The range
    /// may lie anywhere, next to existing memory or not, and removed memory may be added again.
    /// Everything is checked and obtained before anything changes (Linux: `mm/memory_hotplug.c`,
    /// `add_memory_resource`, `online_pages`).
    ///
    /// Each window that is made, up to 16 in one call, takes at most 768 KiB of existing memory for
    /// its tables: larger tables lie in the window itself. But with
    /// `memory_hotplug.memmap_on_memory` off, all tables lie in existing memory.
    ///
    /// Each window for a place that was not known yet uses up one of `hotplug_windows=` for good.
    /// If a device adds memory in small steps, name it first
    /// ([`register_group`](Self::register_group)).
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    ///
    /// # Safety
    /// The range is memory that nobody else uses or knows of, and it stays memory until it is
    /// removed. Below the platform's `direct_limit` it can be reached through `direct` (invariant
    /// 15).
    pub unsafe fn add(
        self,
        range: PhysRange,
        node: NodeId,
        grade: Grade,
    ) -> Result<Added, HotplugError> {
        // SAFETY: passed on to the caller.
        unsafe { self.add_as(range, node, Some(grade), Was::Away) }
    }

    /// Does [`add`](Self::add) for memory that was removed but never left, because a device refused
    /// it. Each 2 MiB becomes what it was: offline, or of its old grade. Accepted memory is still
    /// accepted, even if the host forgets acceptance, and memory that could not be accepted or has
    /// an error stays out of use. There is one exception: nothing is known any more of the last
    /// memory of a window with tables in itself, not even its errors, so this gets `grade`, and is
    /// offline without one.
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    ///
    /// # Safety
    /// As for [`add`](Self::add); and the host has not had the memory since it was removed.
    pub unsafe fn put_back(
        self,
        range: PhysRange,
        node: NodeId,
        grade: Option<Grade>,
    ) -> Result<Added, HotplugError> {
        // SAFETY: passed on to the caller.
        unsafe { self.add_as(range, node, grade, Was::Here) }
    }

    /// Does [`add`](Self::add) for memory that nobody gets before [`online`](Self::online).
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    ///
    /// # Safety
    /// As for [`add`](Self::add).
    pub unsafe fn add_offline(self, range: PhysRange, node: NodeId) -> Result<Added, HotplugError> {
        // SAFETY: passed on to the caller.
        unsafe { self.add_as(range, node, None, Was::Away) }
    }

    /// Makes offline memory available, all of it.
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
        self.hand_out_accepted(blocks, Presence::Offline, grade, Was::Here);
        let pages = pages - self.finish_handing_out(blocks);
        self.tell(range, node, is_first);
        Ok(Added { range, pages, table_bytes: 0, windows: 0 })
    }

    /// Adds memory: available if there is a grade, else offline.
    ///
    /// # Safety
    /// As for [`add`](Self::add).
    unsafe fn add_as(
        self,
        range: PhysRange,
        node: NodeId,
        grade: Option<Grade>,
        was: Was,
    ) -> Result<Added, HotplugError> {
        let blocks = blocks_of(range)?;
        if range.start == 0 {
            // An address of 0 means that there is none.
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
        // The notifier, which may panic, has been asked.
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
        // Accepted memory is handed out last, when everything else is in place: from then on, the
        // memory behind it can be read.
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
                    (Step::HandOut, Some(grade)) => self.hand_out_accepted(part, from, grade, was),
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

    /// Returns the first of the blocks that are no memory yet: as many as get one grade, or as are
    /// to be offline. Memory that never left becomes what it was; all other memory becomes what
    /// `grade` says.
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

    /// Checks that all known blocks have the wanted presence and belong to the node.
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

    /// Checks that blocks of a window with tables in itself come together with these tables or
    /// after them.
    fn check_tables(self, piece: Piece) -> Result<(), HotplugError> {
        let tables = self.tables_of(piece.segment);
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

    /// Plans a window for all of a run without a place or, if tables have to lie in the memory
    /// itself, for the first part of the run; also returns where that part ends.
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

    /// Asks the notifier, which may refuse.
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

    /// Adds as unaccepted memory those of the blocks with presence `from` that have to be accepted.
    /// Returns how many pages all blocks with that presence have.
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

    /// Makes all blocks free that still have presence `from`.
    fn hand_out_accepted(self, blocks: BlockRange, from: Presence, grade: Grade, was: Was) {
        for piece in self.known(blocks) {
            for (_, run) in self.runs_of(piece).filter(|(place, _)| *place == from) {
                self.hand_out_run(run, grade, was);
            }
            // A reporter that registered meanwhile may not have found the new blocks.
            self.track_reported(piece);
        }
    }

    /// Completes handing out blocks; returns how many of their pages nobody gets.
    fn finish_handing_out(self, blocks: BlockRange) -> u64 {
        *self.manager.hotplug.searches.lock(self.manager.platform) = Searches::default();
        self.after_change();
        let mut lost_pages = 0;
        for piece in self.known(blocks) {
            for (_, run) in self.runs_of(piece).filter(|(place, _)| *place == Presence::Online) {
                lost_pages += self.accept_added(run);
            }
        }
        lost_pages
    }

    fn track_reported(self, piece: Piece) {
        // See `Reporting::register`: either this sees a device that is registering, or that device
        // sees the memory that was just added.
        fence(Ordering::SeqCst);
        if self.manager.reporting.is_registered() {
            piece.zone.track_reported(self.manager.platform);
        }
    }

    /// Inserts a node, which now has memory, into the fallback lists of all nodes.
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
