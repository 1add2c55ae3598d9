//! The position within one part of a job: what is already claimed, and how the next chunk is
//! claimed in one atomic operation.
//!
//! All operations on the position are Relaxed. No unit is claimed twice, because each claim is one
//! atomic read-modify-write; what chunks write reaches the caller through the end of each helper's
//! work (`raw::slot`). While the caller is alone it uses plain loads and stores on the position;
//! helpers see the last of these stores because the offer that starts them is a Release.

use crate::plan::Grid;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::const_fn;
use core::ops::Range;

/// How a job is cut into chunks.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// At every multiple of this many units. The position counts pieces.
    Grid(u64),
    /// By what is left, at multiples of the alignment. The position is a unit.
    Guided,
}

/// The end of a chunk of about `units` units that begins at `at`: the next multiple of `align`, or
/// `end`.
#[inline]
pub(super) fn border(at: u64, units: u64, align: u64, end: u64) -> u64 {
    let to = at.checked_add(units.max(1));
    // Skip `checked_next_multiple_of` if possible: its division costs as much as everything else
    // here.
    let to = if align == 1 { to } else { to.and_then(|to| to.checked_next_multiple_of(align)) };
    to.map_or(end, |to| to.min(end))
}

/// A part of a job, on a cache line of its own.
#[repr(align(64))]
pub(super) struct Track {
    position: AtomicU64,
    /// The position when helpers were first called; used only with [`Rule::Guided`].
    called_at: AtomicU64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) node: u32,
}

impl Track {
    const_fn! {
        /// A track without units.
        pub(super) fn empty() -> Self {
            let position = AtomicU64::new(0);
            let called_at = AtomicU64::new(0);
            Self { position, called_at, start: 0, end: 0, node: 0 }
        }
    }

    pub(super) fn new(range: Range<u64>, node: u32, guided: bool) -> Self {
        let position = if guided { range.start } else { 0 };
        Self::at(range, node, position)
    }

    /// A guided track of which everything before `position` is already claimed.
    pub(super) fn at(range: Range<u64>, node: u32, position: u64) -> Self {
        Self {
            position: AtomicU64::new(position),
            called_at: AtomicU64::new(position),
            start: range.start,
            end: range.end,
            node,
        }
    }

    /// Claims the next piece of the grid. `together` says whether other workers may claim at the
    /// same time.
    #[inline]
    pub(super) fn claim_piece(&self, chunk: u64, together: bool) -> Option<Range<u64>> {
        let grid = Grid::new(self.start..self.end, chunk);
        // Checked first, so that the position does not grow without bound when workers ask again at
        // the end.
        let index = self.position.load(Ordering::Relaxed);
        if index >= grid.count() {
            return None;
        }
        if together {
            return grid.piece(self.position.fetch_add(1, Ordering::Relaxed));
        }
        self.position.store(index + 1, Ordering::Relaxed);
        grid.piece(index)
    }

    /// Claims about `units(rest)` of the `rest` units that are left, up to the next multiple of
    /// `align`.
    #[inline]
    pub(super) fn claim_units(
        &self,
        align: u64,
        together: bool,
        units: impl Fn(u64) -> u64,
    ) -> Option<Range<u64>> {
        let mut at = self.position.load(Ordering::Relaxed);
        loop {
            if at >= self.end {
                return None;
            }
            let to = border(at, units(self.end - at), align, self.end);
            if !together {
                self.position.store(to, Ordering::Relaxed);
                return Some(at..to);
            }
            match self.position.compare_exchange_weak(at, to, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(at..to),
                Err(seen) => at = seen,
            }
        }
    }

    /// One past the last unit that was claimed.
    pub(super) fn claimed_end(&self, rule: Rule) -> u64 {
        let position = self.position.load(Ordering::Relaxed);
        match rule {
            Rule::Guided => position,
            Rule::Grid(chunk) => {
                let grid = Grid::new(self.start..self.end, chunk);
                let last = position.min(grid.count()).checked_sub(1);
                last.and_then(|last| grid.piece(last)).map_or(self.start, |piece| piece.end)
            }
        }
    }

    /// The number of units that are not claimed yet.
    pub(super) fn rest(&self, rule: Rule) -> u64 {
        self.end.saturating_sub(self.claimed_end(rule))
    }

    /// Notes the position for [`claimed_since_call`](Self::claimed_since_call). Called by the job's
    /// caller before its first offer.
    pub(super) fn note_call(&self) {
        self.called_at.store(self.position.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The number of units claimed since helpers were first called.
    pub(super) fn claimed_since_call(&self) -> u64 {
        self.position.load(Ordering::Relaxed).saturating_sub(self.called_at.load(Ordering::Relaxed))
    }
}
