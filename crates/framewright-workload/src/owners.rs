//! Records which owner each frame has: half a word for each frame that a manager has, including
//! frames that it gets later.
//!
//! The first table covers all zones as they were at the start, unless they are mostly holes, or too
//! far apart for a table, which is one run: it then covers nothing. Code that gets a frame that no
//! table covers adds a table for the memory around it, at the head of a list. The first page of
//! such a table says what it covers, and which table is next. No two tables cover the same frame,
//! and all of them stay until the end.
//!
//! Orders of memory: Release where a table becomes the head of the list and Acquire where the head
//! is read, so that code that finds a table sees all of it. Relaxed: the owner of a frame, a hint
//! that is compared with a slot.

use crate::stamp::word;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::units::{Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::zone::{MigrateType, Presence};
use framewright::{AllocateError, Manager, Platform, Request};

/// A later table covers whole parts of this many frames, as memory often comes in small pieces.
const PART: u64 = 64 * PAGES_PER_BLOCK;
/// A table covers at most this many frames, whole parts of them, so that the longest run holds it
/// and its first page.
const LONGEST: u64 = Order::MAX.pages() / 2 * (PAGE_SIZE / 4);
/// Words of the first page of a later table: the range that it covers, how many frames it takes,
/// and the first frame of the next table, 0 for none.
const START: u64 = 0;
const END: u64 = 1;
const PAGES: u64 = 2;
const NEXT: u64 = 3;

/// A table.
#[derive(Clone, Copy)]
struct Table {
    /// The frames that it covers.
    span: PfnRange,
    /// The frames that it takes.
    run: PfnRange,
    /// Its first frame with owners.
    owners: Pfn,
}

/// The tables; see the module documentation.
pub(crate) struct Owners<'m, P: Platform> {
    manager: &'m Manager<P>,
    first: Table,
    /// The first frame of the table that was added last, 0 for none.
    later: AtomicU64,
}

/// Returns a request for zeroed frames in the direct map, for a table of this many bytes.
pub(crate) fn request<P: Platform>(manager: &Manager<P>, bytes: u64) -> Request {
    Request {
        migrate_type: MigrateType::Unmovable,
        zeroed: true,
        max_address: manager.platform().direct_limit(),
        ..Request::pages(bytes.div_ceil(PAGE_SIZE).max(1))
    }
}

impl<'m, P: Platform> Owners<'m, P> {
    /// Makes the first table, for all memory that the manager has now unless that is far apart.
    pub(crate) fn new(manager: &'m Manager<P>) -> Result<Self, AllocateError> {
        let spans = manager.zones().iter().map(|zone| zone.span()).filter(|span| !span.is_empty());
        let join = |a: PfnRange, b: PfnRange| PfnRange {
            start: a.start.min(b.start),
            end: a.end.max(b.end),
        };
        // A table for more holes than this takes more than an eighth of the memory.
        let most = LONGEST.min(manager.totals().managed_pages.saturating_mul(PAGE_SIZE / 32));
        let whole = spans.reduce(join).filter(|span| span.pages() <= most);
        let span = whole.unwrap_or(PfnRange::new(0, 0));
        let run = manager.allocate(&request(manager, span.pages() * 4))?;
        let first = Table { span, run, owners: run.start };
        Ok(Self { manager, first, later: AtomicU64::new(0) })
    }

    /// Returns how many frames all tables take.
    pub(crate) fn pages(&self) -> u64 {
        self.tables().map(|table| table.run.pages()).sum()
    }

    fn tables(&self) -> impl Iterator<Item = Table> {
        core::iter::once(self.first).chain(self.added(self.later.load(Ordering::Acquire)))
    }

    /// Returns the added tables, from the one with the first frame `at` on.
    fn added(&self, mut at: u64) -> impl Iterator<Item = Table> {
        core::iter::from_fn(move || {
            let start = Pfn(at);
            let field = |place| word(self.manager.platform(), start, place).load(Ordering::Relaxed);
            (at != 0).then(|| {
                at = field(NEXT);
                let run = PfnRange { start, end: start.add(field(PAGES)) };
                let span = PfnRange::new(field(START), field(END));
                Table { span, run, owners: start.add(1) }
            })
        })
    }

    fn table(&self, pfn: Pfn) -> Option<Table> {
        self.tables().find(|table| table.span.contains(pfn))
    }

    /// Returns where the owner of a frame is recorded: a word, and the shift of its half.
    fn owner(&self, pfn: Pfn) -> Option<(&AtomicU64, u32)> {
        let table = self.table(pfn)?;
        let index = pfn.0 - table.span.start.0;
        let frame = table.owners.add(index / 1024);
        let shift = if index.is_multiple_of(2) { 0 } else { 32 };
        Some((word(self.manager.platform(), frame, index / 2 % 512), shift))
    }

    /// Returns what was recorded for a frame.
    pub(crate) fn get(&self, pfn: Pfn) -> Option<u32> {
        let (owner, shift) = self.owner(pfn)?;
        let half = u32::try_from(owner.load(Ordering::Relaxed) >> shift & 0xffff_ffff).ok()?;
        half.checked_sub(1)
    }

    /// Records a number, or none, for each frame of a run that there is [room](Self::make_room)
    /// for.
    pub(crate) fn set(&self, run: PfnRange, number: Option<u32>) {
        let value = number.map_or(0, |number| u64::from(number) + 1);
        for (owner, shift) in (run.start.0..run.end.0).filter_map(|pfn| self.owner(Pfn(pfn))) {
            // The other half of the word is another frame's, and another CPU may change it at any
            // time.
            let _ = owner.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(old & !(0xffff_ffff << shift) | value << shift)
            });
        }
    }

    /// Adds tables for the frames of a run that the manager handed out, where there are none yet.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn make_room(&self, run: PfnRange) -> Result<(), AllocateError> {
        let mut at = run.start;
        while at < run.end {
            match self.table(at) {
                Some(table) => at = table.span.end,
                None => self.add(at)?,
            }
        }
        Ok(())
    }

    /// Adds a table for a frame, unless another CPU does.
    fn add(&self, pfn: Pfn) -> Result<(), AllocateError> {
        let head = self.later.load(Ordering::Acquire);
        let mut span = self.around(pfn);
        for other in core::iter::once(self.first).chain(self.added(head)) {
            if other.span.contains(pfn) {
                return Ok(());
            }
            if other.span.end <= pfn {
                span.start = span.start.max(other.span.end);
            } else {
                span.end = span.end.min(other.span.start);
            }
        }
        // Fails fast: memory may be short, and this may be part of a move, which must not wait for
        // moves.
        let allocate = |span: PfnRange| {
            let bytes = PAGE_SIZE + span.pages() * 4;
            self.manager.allocate(&Request { fail_fast: true, ..request(self.manager, bytes) })
        };
        let run = match allocate(span) {
            Ok(run) => run,
            // There is no run of this size. A table for the frame's own part will do.
            Err(_) => {
                let part = pfn.0 / PART * PART;
                span = span.intersection(PfnRange::new(part, part + PART));
                allocate(span)?
            }
        };
        let fields = [(START, span.start.0), (END, span.end.0), (PAGES, run.pages()), (NEXT, head)];
        for (place, value) in fields {
            word(self.manager.platform(), run.start, place).store(value, Ordering::Relaxed);
        }
        let added =
            self.later.compare_exchange(head, run.start.0, Ordering::Release, Ordering::Relaxed);
        if added.is_err() {
            // Another table came first. It may cover this frame, so the caller looks again. SAFETY:
            // allocated just now, and nobody knows of it (invariant 42).
            let _ = unsafe { self.manager.free(run) };
        }
        Ok(())
    }

    /// Returns the memory around a frame, extended to whole parts, or as much of it as a table
    /// covers.
    fn around(&self, pfn: Pfn) -> PfnRange {
        let mut span = PfnRange { start: pfn, end: pfn.add(1) };
        self.manager.hotplug().for_each_run(&mut |range, presence, _| {
            if presence != Presence::Absent && (range.start..range.end).contains(&pfn.address()) {
                span = PfnRange::new(range.start / PAGE_SIZE, range.end / PAGE_SIZE);
            }
        });
        let piece = PfnRange::new(pfn.0 / LONGEST * LONGEST, (pfn.0 / LONGEST + 1) * LONGEST);
        PfnRange::new(span.start.0 / PART * PART, span.end.0.next_multiple_of(PART))
            .intersection(piece)
    }
}

impl<P: Platform> Drop for Owners<'_, P> {
    fn drop(&mut self) {
        for table in self.tables() {
            // SAFETY: allocated here and not used any more; the iterator has read its fields
            // already (invariant 42).
            let _ = unsafe { self.manager.free(table.run) };
        }
    }
}
