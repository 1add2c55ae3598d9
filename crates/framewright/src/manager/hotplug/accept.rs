//! Memory that is added to a guest which has to accept it, and unaccepted memory that is removed.

use super::add::{Plan, Was};
use super::{Hotplug, HotplugError, Piece, pages_of};
use crate::parameters::AcceptPolicy;
use crate::platform::{AcceptMemory, Platform};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::Grade;

impl<'m, P: Platform> Hotplug<'m, P> {
    /// Returns whether the host forgets that memory was accepted when the memory is removed; `None`
    /// if the guest does not accept memory.
    pub(super) fn forgets(self) -> Option<bool> {
        self.manager.platform.accept_memory().map(AcceptMemory::forgets)
    }

    /// Returns whether the host has forgotten that memory which was removed and is added again was
    /// accepted.
    pub(super) fn has_forgotten(self, was: Was) -> bool {
        was == Was::Away && self.forgets() == Some(true)
    }

    /// Has the memory accepted into which adding `blocks` puts tables. If that fails, the accepted
    /// part is recorded, so that the host is not asked again.
    pub(super) fn accept_tables(
        self,
        blocks: BlockRange,
        plan: &mut Plan,
        was: Was,
    ) -> Result<(), HotplugError> {
        if self.forgets().is_none() {
            return Ok(());
        }
        let forgets = self.has_forgotten(was);
        for piece in self.known(blocks) {
            let tables = self.tables_of(piece.segment);
            if !piece.zone.is_gone() {
                continue;
            }
            let start = piece.segment.index_of(tables.start);
            let mut rest = start..start + tables.blocks();
            while !rest.is_empty() {
                let (is_accepted, end) = piece.zone.is_accepted_while_gone(&rest);
                if forgets || !is_accepted {
                    let part = rest.start..end;
                    let (accepted, result) = self.accept(blocks_in(piece, &part));
                    piece.zone.note_accepted_while_gone(part.start..part.start + accepted);
                    result?;
                }
                rest.start = end;
            }
        }
        for planned in plan.all_mut().filter(|planned| planned.inside_blocks != 0) {
            let (accepted, result) = self.accept(planned.inside());
            planned.accepted_blocks = accepted;
            result?;
        }
        Ok(())
    }

    /// Has blocks accepted for tables; returns how many were accepted, from the first on.
    fn accept(self, blocks: BlockRange) -> (u32, Result<(), HotplugError>) {
        let result = self.manager.accept_for_tables(pages_of(blocks));
        let accepted = result.err().map_or(blocks.blocks(), |failed| {
            BlockNumber::containing(failed).0.saturating_sub(blocks.start.0)
        });
        (accepted, result.map_err(HotplugError::NotAccepted))
    }

    /// Makes those windows of a failed plan of which parts are accepted, so that a later plan for
    /// them knows of these parts; gives back what the other windows obtained.
    ///
    /// # Safety
    /// As for [`make`](Self::make).
    pub(super) unsafe fn give_up(self, plan: &Plan) {
        for planned in plan.all() {
            if planned.accepted_blocks == 0 || self.forgets() != Some(false) {
                self.forget(planned);
                continue;
            }
            // SAFETY: passed on to the caller (invariant 1).
            if let Some(window) = unsafe { self.make(planned) } {
                window.note_accepted_while_gone(0..planned.accepted_blocks);
            }
        }
    }

    /// Adds as unaccepted memory those parts of a run that are no memory yet and have to be
    /// accepted.
    pub(super) fn leave_to_accept(self, run: Piece, grade: Grade, was: Was) {
        let platform = self.manager.platform;
        if self.forgets().is_none() {
            return;
        }
        let forgets = self.has_forgotten(was);
        let mut rest = run.indices();
        while !rest.is_empty() {
            let (wants, end) = run.zone.wants_accepting(platform, &rest, forgets);
            let part = rest.start..end;
            rest.start = end;
            if wants {
                self.manager.fill_added(pages_of(blocks_in(run, &part)), false);
                let is_here = was == Was::Here;
                run.zone.bring_unaccepted(platform, part, is_here, grade.migrate_type());
            }
        }
    }

    /// Makes a run free that is no memory yet; it is accepted where that is necessary.
    pub(super) fn hand_out_run(self, run: Piece, grade: Grade, was: Was) {
        if was == Was::Here {
            // Nobody touches what has a memory error.
            self.takeable_of(run)
                .for_each(|part| self.manager.fill_added(pages_of(part.blocks), true));
        } else {
            self.manager.fill_added(pages_of(run.blocks), true);
        }
        let end = run.blocks.end.start();
        let is_readable = self.manager.accept_behind(end);
        let (platform, migrate_type) = (self.manager.platform, grade.migrate_type());
        let (is_here, mut indices) = (was == Was::Here, run.indices());
        if !is_readable && !indices.is_empty() {
            // The whole last block stays out of use, before anybody can get it; it can be removed
            // again.
            indices.end -= 1;
            run.zone.bring_lost(platform, indices.end, is_here, migrate_type);
        }
        run.zone.bring_online(platform, indices, is_here, migrate_type);
    }

    /// Accepts what has to be accepted after a run was added: all of it with
    /// `accept_memory=eager`, else the first block after each that is in use. Returns how many of
    /// its pages nobody gets.
    pub(super) fn accept_added(self, run: Piece) -> u64 {
        let frames = pages_of(run.blocks);
        if self.forgets().is_some() {
            // Borders first: a block that could not be accepted is no border between used and
            // unaccepted memory.
            self.manager.accept_borders_of(run.zone, frames);
            if self.manager.accept.policy == AcceptPolicy::Eager {
                self.manager.grow_at(run.zone, frames);
            }
        }
        let takeable = self.takeable_of(run).map(|part| pages_of(part.blocks).pages());
        frames.pages() - takeable.sum::<u64>()
    }

    /// Returns the runs of a piece that have or can have an owner.
    pub(super) fn takeable_of(self, piece: Piece) -> impl Iterator<Item = Piece> + use<'m, P> {
        let platform = self.manager.platform;
        let can_be_bad = cfg!(feature = "pools") || self.forgets().is_some();
        let mut rest = piece.indices();
        core::iter::from_fn(move || {
            while !rest.is_empty() {
                let (is_takeable, end) = if can_be_bad {
                    piece.zone.can_be_taken(platform, &rest)
                } else {
                    (true, rest.end)
                };
                let part = rest.start..end;
                rest.start = end;
                if is_takeable {
                    return Some(Piece { blocks: blocks_in(piece, &part), ..piece });
                }
            }
            None
        })
    }

    /// Hides the unaccepted memory among blocks from requests; returns how many pages that is.
    pub(super) fn withhold_unaccepted(self, blocks: BlockRange) -> u64 {
        let mut pages = 0;
        if self.forgets().is_some() {
            for piece in self.known(blocks) {
                pages += piece.zone.withhold_unaccepted(self.manager.platform, piece.indices());
            }
        }
        pages
    }

    /// Undoes [`withhold_unaccepted`](Self::withhold_unaccepted).
    pub(super) fn keep_unaccepted(self, blocks: BlockRange) {
        if self.forgets().is_some() {
            for piece in self.known(blocks) {
                piece.zone.keep_unaccepted(self.manager.platform, piece.indices());
                // If a block before it was accepted meanwhile, nobody has accepted the block behind
                // that yet.
                self.manager.accept_borders_of(piece.zone, pages_of(piece.blocks));
            }
            // Requests and changes of watermarks found the memory missing meanwhile.
            self.after_change();
        }
    }
}

/// Returns the blocks of a part of a piece's segment.
fn blocks_in(piece: Piece, part: &core::ops::Range<u32>) -> BlockRange {
    let start = piece.segment.block_of(part.start);
    BlockRange { start, end: BlockNumber(start.0 + (part.end - part.start)) }
}
