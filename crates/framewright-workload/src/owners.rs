//! Whose each frame is: half a word for each frame that a manager has, also of what it gets later.
//!
//! The first table is for all zones as they were. Who gets a frame that none is for adds one for
//! the memory around it, at the head of a list: its first page says what it is for, and which is
//! the next. No two are for one frame, and all of them stay until the end.
//!
//! Orders of memory: Release where a table becomes the head of the list, Acquire where that is
//! read: whoever finds a table sees all of it. Relaxed: whose a frame is, a hint that is compared
//! with a slot.

use crate::stamp::word;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::units::{PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::zone::{MigrateType, Presence};
use framewright::{AllocateError, Manager, Platform, Request};

/// A later table is for whole parts of this many frames, as memory often comes in small pieces.
const PART: u64 = 64 * PAGES_PER_BLOCK;
/// Words of the first page of a later table: what it is for, its own frames, and the first frame of
/// the next, 0 for none.
const START: u64 = 0;
const END: u64 = 1;
const PAGES: u64 = 2;
const NEXT: u64 = 3;

/// A table.
#[derive(Clone, Copy)]
struct Table {
    /// What it is for.
    span: PfnRange,
    /// Its frames.
    run: PfnRange,
    /// The first that has owners.
    owners: Pfn,
}

/// See the module documentation.
pub(crate) struct Owners<'m, P: Platform> {
    manager: &'m Manager<P>,
    first: Table,
    /// The first frame of the last one that was added, 0 for none.
    later: AtomicU64,
}

/// Zeroed frames that the direct map reaches, for a table of so many bytes.
pub(crate) fn request<P: Platform>(manager: &Manager<P>, bytes: u64) -> Request {
    Request {
        migrate_type: MigrateType::Unmovable,
        zeroed: true,
        max_address: manager.platform().direct_limit(),
        ..Request::pages(bytes.div_ceil(PAGE_SIZE).max(1))
    }
}

impl<'m, P: Platform> Owners<'m, P> {
    /// For all that the manager has.
    pub(crate) fn new(manager: &'m Manager<P>) -> Result<Self, AllocateError> {
        let spans = manager.zones().iter().map(|zone| zone.span()).filter(|span| !span.is_empty());
        let join = |a: PfnRange, b: PfnRange| PfnRange {
            start: a.start.min(b.start),
            end: a.end.max(b.end),
        };
        let span = spans.reduce(join).unwrap_or(PfnRange::new(0, 0));
        let run = manager.allocate(&request(manager, span.pages() * 4))?;
        let first = Table { span, run, owners: run.start };
        Ok(Self { manager, first, later: AtomicU64::new(0) })
    }

    /// Frames of all tables.
    pub(crate) fn pages(&self) -> u64 {
        self.tables().map(|table| table.run.pages()).sum()
    }

    fn tables(&self) -> impl Iterator<Item = Table> {
        core::iter::once(self.first).chain(self.added(self.later.load(Ordering::Acquire)))
    }

    /// Those that were added, from the one with this first frame on.
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

    /// Whose frame it is: a half of a word.
    fn owner(&self, pfn: Pfn) -> Option<(&AtomicU64, u32)> {
        let table = self.table(pfn)?;
        let index = pfn.0 - table.span.start.0;
        let frame = table.owners.add(index / 1024);
        let shift = if index.is_multiple_of(2) { 0 } else { 32 };
        Some((word(self.manager.platform(), frame, index / 2 % 512), shift))
    }

    /// What was noted of a frame.
    pub(crate) fn get(&self, pfn: Pfn) -> Option<u32> {
        let (owner, shift) = self.owner(pfn)?;
        let half = u32::try_from(owner.load(Ordering::Relaxed) >> shift & 0xffff_ffff).ok()?;
        half.checked_sub(1)
    }

    /// Notes something of each frame of a run that there is [room](Self::make_room) for.
    pub(crate) fn set(&self, run: PfnRange, number: Option<u32>) {
        let value = number.map_or(0, |number| u64::from(number) + 1);
        for (owner, shift) in (run.start.0..run.end.0).filter_map(|pfn| self.owner(Pfn(pfn))) {
            // The other half is somebody else's, who may change it at this moment.
            let _ = owner.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(old & !(0xffff_ffff << shift) | value << shift)
            });
        }
    }

    /// Adds tables, where there are none yet, for the frames of a run that the manager handed out.
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

    /// Adds a table for a frame, unless somebody else does.
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
        // Memory may be short, and be moved just now: who waited would wait for himself.
        let allocate = |span: PfnRange| {
            let bytes = PAGE_SIZE + span.pages() * 4;
            self.manager.allocate(&Request { fail_fast: true, ..request(self.manager, bytes) })
        };
        let run = match allocate(span) {
            Ok(run) => run,
            // No run is as large: a table for what is near will do.
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
            // Another came first, and may be for this frame: the caller looks again.
            // SAFETY: just allocated, and known to nobody (invariant 42).
            let _ = unsafe { self.manager.free(run) };
        }
        Ok(())
    }

    /// The memory around a frame, in whole parts.
    fn around(&self, pfn: Pfn) -> PfnRange {
        let mut span = PfnRange { start: pfn, end: pfn.add(1) };
        self.manager.hotplug().for_each_run(&mut |range, presence, _| {
            if presence != Presence::Absent && (range.start..range.end).contains(&pfn.address()) {
                span = PfnRange::new(range.start / PAGE_SIZE, range.end / PAGE_SIZE);
            }
        });
        PfnRange::new(span.start.0 / PART * PART, span.end.0.next_multiple_of(PART))
    }
}

impl<P: Platform> Drop for Owners<'_, P> {
    fn drop(&mut self) {
        for table in self.tables() {
            // SAFETY: allocated here, and used no more: what it says was read (invariant 42).
            let _ = unsafe { self.manager.free(table.run) };
        }
    }
}
