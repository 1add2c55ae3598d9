//! Accepting only the memory that EFI's table names: for adopters whose own way to accept memory
//! does not know the table.

use super::unaccepted::UnacceptedTable;
use crate::platform::{AcceptError, AcceptMemory, Platform, with_interrupts_off};
use crate::sync::SpinLock;
use crate::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use core::ops::Range;

/// The most CPUs that accept at once; others wait until one is done.
const MOST_AT_ONCE: usize = 64;
/// The most partly accepted units larger than a block; once there are that many, no further unit is
/// begun.
const MOST_PARTIAL: usize = 16;

/// An [`AcceptMemory`] between the manager and `device`. It asks `device` for whole units of the
/// table, never twice for one unit whatever ranges are asked for and by whom, and clears their
/// bits, so that the next kernel finds what is not accepted yet. Only where the device failed
/// within a unit of at most 2 MiB, who asks for frames of that unit again has it ask for all of
/// them; the manager does not ask for a block again that has failed. Memory outside the table is
/// asked for as it is, because it was added later. So are whole blocks if the host
/// [`forgets`](AcceptMemory::forgets); units should then be no larger than 2 MiB, and the map
/// should call unaccepted what the table does ([`UnacceptedTable::mark`]).
///
/// A call returns when all units that its range touches are accepted, including those that another
/// CPU was accepting; so ranges may overlap only where waiting is allowed. The manager's ranges do
/// not overlap, but two of its blocks may lie in one larger unit. Such a unit is accepted with
/// interrupts off for as long as that takes, so that no handler waits for the code that it
/// interrupted; `device` must then need no other CPU (Linux:
/// `drivers/firmware/efi/unaccepted_memory.c`, `accept_memory`, for units of any size).
pub struct EfiAccept<P: Platform, D> {
    platform: &'static P,
    device: D,
    state: SpinLock<State>,
}

struct State {
    table: UnacceptedTable<'static>,
    /// Runs of units that are being accepted.
    busy: [Range<u64>; MOST_AT_ONCE],
    /// Units that failed after some of their first frames, with the number of these frames, because
    /// what is accepted must not be asked for again. Only for units larger than a block, as the
    /// manager keeps track of blocks itself.
    partial: [(u64, u64); MOST_PARTIAL],
}

impl State {
    /// Returns whether a CPU is accepting any of these units.
    fn is_busy(&self, units: &Range<u64>) -> bool {
        self.busy.iter().any(|busy| busy.start < units.end && units.start < busy.end)
    }

    /// Returns the entry that says how many of a large unit's first frames are accepted.
    fn partial(&mut self, unit: u64) -> Option<&mut (u64, u64)> {
        let known = self.partial.iter().position(|&(of, pages)| of == unit && pages != 0);
        let place = known.or_else(|| self.partial.iter().position(|&(_, pages)| pages == 0))?;
        let place = self.partial.get_mut(place)?;
        place.0 = unit;
        Some(place)
    }

    /// Decides what to do for a large unit.
    fn next_large(&mut self, unit: u64) -> NextLarge {
        let [start, end] = [unit, unit + 1].map(|unit| Pfn::containing(self.table.address(unit)));
        if self.is_busy(&(unit..unit + 1)) {
            return NextLarge::Wait;
        }
        if !self.table.is_unaccepted(unit) {
            return NextLarge::Done { accepted_end: end };
        }
        // Each unit that was begun may fail, and needs an entry to record that.
        let begun = self.busy.iter().filter(|busy| !busy.is_empty()).count();
        let known = self.partial.iter().find(|&&(of, pages)| of == unit && pages != 0);
        let places = self.partial.iter().filter(|&&(_, pages)| pages == 0).count();
        let slot = self.busy.iter().position(Range::is_empty);
        match (known, slot) {
            (Some(&(_, pages)), Some(slot)) => self.begin_large(slot, unit, start.add(pages), end),
            (None, Some(slot)) if places > begun => self.begin_large(slot, unit, start, end),
            (None, Some(_)) if begun == 0 => NextLarge::Done { accepted_end: start },
            _ => NextLarge::Wait,
        }
    }

    fn begin_large(&mut self, slot: usize, unit: u64, start: Pfn, end: Pfn) -> NextLarge {
        self.busy[slot] = unit..unit + 1;
        NextLarge::Accept { slot, rest: PfnRange { start, end } }
    }

    /// Ends the attempt to accept a large unit. `more` is the number of further frames accepted, or
    /// nothing if all were. Returns the end of what is accepted.
    fn end_large(&mut self, slot: usize, unit: u64, rest: PfnRange, more: Option<u64>) -> Pfn {
        self.busy[slot] = 0..0;
        if more.is_none() {
            self.table.clear(unit..unit + 1);
        }
        if let Some(place) = self.partial(unit) {
            place.1 = more.map_or(0, |more| place.1 + more);
        }
        more.map_or(rest.end, |more| rest.start.add(more))
    }

    /// Returns the first run among `units` that is not accepted and that no CPU is accepting.
    fn first_idle(&self, units: &Range<u64>) -> Option<Range<u64>> {
        let mut from = units.start;
        while let Some(run) = self.table.first_run(from..units.end) {
            let start = run.start;
            let first = self
                .busy
                .iter()
                .filter(|busy| busy.start < run.end && start < busy.end)
                .min_by_key(|busy| busy.start);
            match first {
                None => return Some(run),
                Some(busy) if busy.start > start => return Some(start..busy.start),
                Some(busy) => from = busy.end,
            }
        }
        None
    }
}

/// What to do for a large unit.
enum NextLarge {
    Accept { slot: usize, rest: PfnRange },
    Wait,
    Done { accepted_end: Pfn },
}

/// What to do for a range.
enum Next {
    Accept(usize, Range<u64>),
    Wait,
    Done,
}

impl<P: Platform, D: AcceptMemory> EfiAccept<P, D> {
    /// Accepts through `device` the memory that `table` calls unaccepted.
    pub fn new(platform: &'static P, table: UnacceptedTable<'static>, device: D) -> Self {
        let busy = [const { 0..0 }; MOST_AT_ONCE];
        let state = State { table, busy, partial: [(0, 0); MOST_PARTIAL] };
        Self { platform, device, state: SpinLock::new(state) }
    }

    /// Returns the device that accepts memory.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Calls `look` with the table.
    pub fn with_table<R>(&self, look: impl FnOnce(&UnacceptedTable<'static>) -> R) -> R {
        self.state.with(self.platform, |state| look(&state.table))
    }

    fn next(&self, units: &Range<u64>) -> Next {
        self.state.with(self.platform, |state| match state.first_idle(units) {
            Some(run) => match state.busy.iter().position(Range::is_empty) {
                Some(slot) => {
                    state.busy[slot] = run.clone();
                    Next::Accept(slot, run)
                }
                None => Next::Wait,
            },
            None if state.is_busy(units) => Next::Wait,
            None => Next::Done,
        })
    }
}

impl<P: Platform, D: AcceptMemory> EfiAccept<P, D> {
    /// Returns whether the table covers the frame at `start`, and the end of the part, up to `end`,
    /// for which this answer holds.
    fn part(&self, start: Pfn, end: Pfn) -> (bool, Pfn) {
        let table = self.with_table(|table| {
            PhysRange::new(table.address(0), table.address(table.units())).touched_frames()
        });
        if start < table.start {
            (false, end.min(table.start))
        } else if start < table.end {
            (true, end.min(table.end))
        } else {
            (false, end)
        }
    }

    /// Accepts whole blocks that others may have had in between and whose bits may be clear
    /// already. A block that is only partly in the table is asked for as a whole.
    fn accept_again(&self, range: PfnRange) -> Result<(), AcceptError> {
        let accepted = self.device.accept(range);
        let pages = accepted.err().map_or(range.pages(), |error| error.accepted_pages);
        let end = range.start.add(pages).min(range.end);
        let good = PhysRange::new(range.start.address(), end.address());
        self.state.with(self.platform, |state| {
            let units = state.table.units_within(good);
            state.table.clear(units);
        });
        accepted
    }

    /// Accepts frames that the table covers.
    fn accept_covered(&self, range: PfnRange) -> Result<(), AcceptError> {
        let bytes = PhysRange::new(range.start.address(), range.end.address());
        let units = self.with_table(|table| table.units_of(bytes, false));
        if self.with_table(UnacceptedTable::unit_bytes) > Order::BLOCK.pages() * PAGE_SIZE {
            return self.accept_large(range, units);
        }
        loop {
            let (slot, run) = match self.next(&units) {
                Next::Done => return Ok(()),
                Next::Wait => {
                    self.platform.relax();
                    continue;
                }
                Next::Accept(slot, run) => (slot, run),
            };
            let [start, end] =
                self.with_table(|table| [run.start, run.end].map(|unit| table.address(unit)));
            let frames = PfnRange::new(start / PAGE_SIZE, end / PAGE_SIZE);
            let accepted = self.device.accept(frames);
            let failed = accepted.err().map(|error| error.accepted_pages.min(frames.pages() - 1));
            self.state.with(self.platform, |state| {
                let good = failed.map_or(run.end, |pages| {
                    run.start + pages * PAGE_SIZE / state.table.unit_bytes()
                });
                state.table.clear(run.start..good);
                state.busy[slot] = 0..0;
            });
            if let Some(pages) = failed {
                let at = frames.start.add(pages);
                let end = self.accepted_before(units.start, at);
                return Err(AcceptError {
                    accepted_pages: end.0.saturating_sub(range.start.0).min(range.pages() - 1),
                });
            }
        }
    }

    /// Returns the end of what is accepted among the units from `first` on and before `at`, which
    /// failed. Other CPUs may be accepting some of them, which this waits for, and may have failed,
    /// too.
    fn accepted_before(&self, first: u64, at: Pfn) -> Pfn {
        loop {
            let end = self.state.with(self.platform, |state| {
                let table = &state.table;
                let before = first..(at.address() - table.address(0)) / table.unit_bytes();
                let left = || table.first_run(before.clone());
                let end = || left().map_or(at, |run| Pfn::containing(table.address(run.start)));
                (!state.is_busy(&before)).then(end)
            });
            match end {
                Some(end) => return end,
                None => self.platform.relax(),
            }
        }
    }
}

impl<P: Platform, D: AcceptMemory> EfiAccept<P, D> {
    /// Accepts frames that units larger than a block cover.
    fn accept_large(&self, range: PfnRange, units: Range<u64>) -> Result<(), AcceptError> {
        for unit in units {
            let accepted_end = loop {
                match with_interrupts_off(self.platform, || self.accept_unit(unit)) {
                    Some(accepted_end) => break accepted_end,
                    None => self.platform.relax(),
                }
            };
            let unit_end = self.with_table(|table| Pfn::containing(table.address(unit + 1)));
            if accepted_end < unit_end.min(range.end) {
                let accepted_pages = accepted_end.0.saturating_sub(range.start.0);
                return Err(AcceptError { accepted_pages });
            }
        }
        Ok(())
    }

    /// Accepts a unit, unless a CPU is already accepting it. Returns the end of what is accepted.
    fn accept_unit(&self, unit: u64) -> Option<Pfn> {
        match self.state.with(self.platform, |state| state.next_large(unit)) {
            NextLarge::Wait => None,
            NextLarge::Done { accepted_end } => Some(accepted_end),
            NextLarge::Accept { slot, rest } => {
                let failed = self.device.accept(rest).err();
                let more = failed.map(|error| error.accepted_pages.min(rest.pages() - 1));
                Some(
                    self.state.with(self.platform, |state| state.end_large(slot, unit, rest, more)),
                )
            }
        }
    }
}

fn is_whole_blocks(range: PfnRange) -> bool {
    range.start.is_aligned(Order::BLOCK) && range.end.is_aligned(Order::BLOCK)
}

// SAFETY: what the table calls accepted is accepted, unless the host takes it away, and everything
// else that is asked for goes to the device.
unsafe impl<P: Platform, D: AcceptMemory> AcceptMemory for EfiAccept<P, D> {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
        if self.forgets() && is_whole_blocks(range) {
            return self.accept_again(range);
        }
        let mut next = range.start;
        while next < range.end {
            let (is_covered, end) = self.part(next, range.end);
            let part = PfnRange { start: next, end };
            let accepted =
                if is_covered { self.accept_covered(part) } else { self.device.accept(part) };
            accepted.map_err(|error| AcceptError {
                accepted_pages: error.accepted_pages.saturating_add(next.0 - range.start.0),
            })?;
            next = end;
        }
        Ok(())
    }

    fn forgets(&self) -> bool {
        self.device.forgets()
    }

    fn reads_past_pages(&self) -> bool {
        self.device.reads_past_pages()
    }
}
