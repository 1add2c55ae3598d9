//! Accepting memory that EFI's table names, and only that: for adopters whose way to accept memory
//! knows nothing of the table.

use super::unaccepted::UnacceptedTable;
use crate::platform::{AcceptError, AcceptMemory, Platform};
use crate::sync::SpinLock;
use crate::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use core::ops::Range;

/// So many CPUs accept at once; others wait until one is done.
const MOST_AT_ONCE: usize = 64;

/// An [`AcceptMemory`] between the manager and `device` that asks for whole units of the table, of
/// which none is asked for twice, whatever ranges it is asked for by whom, and clears their bits,
/// so that the next kernel finds what is not accepted yet. What lies outside of the table is asked
/// for as it is: it was added later. So are whole blocks where the host
/// [`forgets`](AcceptMemory::forgets); there units are best no larger than 2 MiB, and the map calls
/// unaccepted what the table does ([`UnacceptedTable::mark`]).
///
/// A call returns when all units that its range touches are accepted, those included that another
/// CPU was at; so only where waiting is allowed may ranges overlap. The manager's do not.
pub struct EfiAccept<P: Platform, D> {
    platform: &'static P,
    device: D,
    state: SpinLock<State>,
}

struct State {
    table: UnacceptedTable<'static>,
    /// Runs that are being accepted.
    busy: [Range<u64>; MOST_AT_ONCE],
}

impl State {
    /// Whether somebody accepts a unit of these.
    fn is_busy(&self, units: &Range<u64>) -> bool {
        self.busy.iter().any(|busy| busy.start < units.end && units.start < busy.end)
    }

    /// The first run among `units` that is not accepted and that nobody is at.
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

/// What there is to do for a range.
enum Next {
    Accept(usize, Range<u64>),
    Wait,
    Done,
}

impl<P: Platform, D: AcceptMemory> EfiAccept<P, D> {
    /// Accepts through `device` what `table` says is not accepted.
    pub fn new(platform: &'static P, table: UnacceptedTable<'static>, device: D) -> Self {
        let busy = [const { 0..0 }; MOST_AT_ONCE];
        Self { platform, device, state: SpinLock::new(State { table, busy }) }
    }

    /// What accepts memory.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Looks at the table.
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
    /// Whether the table covers the frame at `start`, and up to where, `end` at most, this goes on.
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

    /// Accepts frames that the table covers.
    fn accept_covered(&self, range: PfnRange) -> Result<(), AcceptError> {
        let bytes = PhysRange::new(range.start.address(), range.end.address());
        if self.forgets() && is_whole_blocks(range) {
            // What had it meanwhile has left no bit.
            let accepted = self.device.accept(range);
            let pages = accepted.err().map_or(range.pages(), |error| error.accepted_pages);
            let good = PhysRange { end: range.start.add(pages).address().min(bytes.end), ..bytes };
            self.state.with(self.platform, |state| {
                let units = state.table.units_within(good);
                state.table.clear(units);
            });
            return accepted;
        }
        let units = self.with_table(|table| table.units_of(bytes, false));
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
                return Err(AcceptError {
                    accepted_pages: at.0.saturating_sub(range.start.0).min(range.pages() - 1),
                });
            }
        }
    }
}

fn is_whole_blocks(range: PfnRange) -> bool {
    range.start.is_aligned(Order::BLOCK) && range.end.is_aligned(Order::BLOCK)
}

// SAFETY: what the table calls accepted is, unless the host takes it away, and all else that is
// asked for goes to the device.
unsafe impl<P: Platform, D: AcceptMemory> AcceptMemory for EfiAccept<P, D> {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
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
