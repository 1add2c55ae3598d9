//! The list of what the shell has allocated: handles, each with a number of runs.

use crate::owned::{Owned, give_back};
use framewright::manager::AreaError;
use framewright::units::{MAX_NODES, Pfn, PfnRange};
use framewright::{Manager, Platform};

/// An entry of the list: contiguous runs of one size that were allocated one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    handle: u32,
    /// The reserve area from which all of these runs came, if any.
    area: Option<u8>,
    start: Pfn,
    /// The pages of each run.
    pages: u64,
    runs: u64,
}

impl Run {
    /// An empty entry.
    pub const NOTHING: Self = Self { handle: 0, area: None, start: Pfn(0), pages: 0, runs: 0 };

    fn range(&self) -> PfnRange {
        PfnRange { start: self.start, end: self.start.add(self.pages * self.runs) }
    }

    /// The run with this number.
    fn at(&self, number: u64) -> Owned {
        let start = self.start.add(number * self.pages);
        Owned { range: PfnRange { start, end: start.add(self.pages) }, area: self.area }
    }
}

/// The list of everything that the shell holds.
pub(crate) struct Held<'a> {
    room: &'a mut [Run],
    used: usize,
    next: u32,
}

/// The list is full.
pub(crate) struct Full;

impl<'a> Held<'a> {
    pub fn new(room: &'a mut [Run]) -> Self {
        Self { room, used: 0, next: 1 }
    }

    fn used(&self) -> &[Run] {
        self.room.get(..self.used).unwrap_or(&[])
    }

    /// An unused handle.
    pub fn open(&mut self) -> u32 {
        while self.used().iter().any(|run| run.handle == self.next) || self.next == 0 {
            self.next = self.next.wrapping_add(1);
        }
        self.next
    }

    /// Adds a run to a handle.
    pub fn add(&mut self, handle: u32, run: impl Into<Owned>) -> Result<(), Full> {
        let Owned { range, area } = run.into();
        let pages = range.pages();
        let continues = |run: &&mut Run| {
            let is_alike = (run.handle, run.area, run.pages) == (handle, area, pages);
            is_alike && run.range().end == range.start
        };
        // Allocations may alternate between nodes, so look at one recent entry for each node.
        let last = self.room.get_mut(self.used.saturating_sub(MAX_NODES)..self.used);
        if let Some(run) = last.and_then(|last| last.iter_mut().rev().find(continues)) {
            run.runs += 1;
            return Ok(());
        }
        *self.room.get_mut(self.used).ok_or(Full)? =
            Run { handle, area, start: range.start, pages, runs: 1 };
        self.used += 1;
        Ok(())
    }

    /// How many runs and pages a handle, or all handles, hold.
    pub fn count(&self, handle: Option<u32>) -> (u64, u64) {
        let runs =
            self.used().iter().filter(|run| handle.is_none_or(|handle| run.handle == handle));
        runs.fold((0, 0), |(runs, pages), run| (runs + run.runs, pages + run.runs * run.pages))
    }

    /// All handles, ascending, each once.
    pub fn handles(&self) -> impl Iterator<Item = u32> + '_ {
        let after = |last: u32| {
            self.used().iter().map(|run| run.handle).filter(move |&handle| handle > last).min()
        };
        core::iter::successors(after(0), move |&last| after(last))
    }

    /// The lowest frame of a handle.
    pub fn first(&self, handle: u32) -> Option<Pfn> {
        self.used().iter().filter(|run| run.handle == handle).map(|run| run.start).min()
    }

    /// Frees what a handle, or all handles, hold. Returns how many pages were freed.
    ///
    /// # Errors
    /// The first error; runs that could not be freed stay in the list.
    pub fn free<P: Platform>(
        &mut self,
        manager: &Manager<P>,
        handle: Option<u32>,
    ) -> Result<u64, AreaError> {
        let (mut freed, mut kept, mut result) = (0, 0, Ok(()));
        for index in 0..self.used {
            let Some(&run) = self.room.get(index) else { break };
            let mut done = 0;
            if handle.is_none_or(|handle| run.handle == handle) {
                for owned in (0..run.runs).map(|number| run.at(number)) {
                    match give_back(manager, owned) {
                        Ok(()) => done += 1,
                        Err(error) => {
                            result = result.and(Err(error));
                            break;
                        }
                    }
                }
                freed += done * run.pages;
            }
            if done < run.runs
                && let Some(place) = self.room.get_mut(kept)
            {
                *place =
                    Run { start: run.start.add(done * run.pages), runs: run.runs - done, ..run };
                kept += 1;
            }
        }
        self.used = kept;
        result.map(|()| freed)
    }

    /// The run that holds a frame, and its handle.
    pub fn find(&self, pfn: Pfn) -> Option<(u32, Owned)> {
        let run = self.used().iter().find(|run| run.range().contains(pfn))?;
        Some((run.handle, run.at((pfn.0 - run.start.0).checked_div(run.pages)?)))
    }

    /// Whether any frame of a range is held.
    pub fn touches(&self, range: PfnRange) -> bool {
        self.used().iter().any(|run| !run.range().intersection(range).is_empty())
    }

    /// Removes the run at `start` from the list after it was freed. Fails without a change if there
    /// is no room for the entries that remain on both its sides.
    pub fn forget(&mut self, start: Pfn) -> Result<(), Full> {
        let Some(index) = self.used().iter().position(|run| run.range().contains(start)) else {
            return Ok(());
        };
        let Some(run) = self.room.get(index).copied() else { return Ok(()) };
        let before = (start.0 - run.start.0).checked_div(run.pages).unwrap_or(0);
        let behind = run.runs - before - 1;
        let rest = Run { start: start.add(run.pages), runs: behind, ..run };
        let first = if before == 0 { rest } else { Run { runs: before, ..run } };
        if before != 0 && behind != 0 {
            *self.room.get_mut(self.used).ok_or(Full)? = rest;
            self.used += 1;
        }
        if let Some(place) = self.room.get_mut(index) {
            *place = first;
        }
        if before == 0 && behind == 0 {
            self.room.copy_within(index + 1..self.used, index);
            self.used -= 1;
        }
        Ok(())
    }

    /// Whether [`forget`](Self::forget) has room in any case.
    pub fn can_forget(&self) -> bool {
        self.used < self.room.len()
    }
}
