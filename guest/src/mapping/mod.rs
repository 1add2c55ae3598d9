//! Memory that is mapped and moves while it is used: the shell's `movable` in this guest.
//!
//! Each page of a run of frames is mapped at an address of its own for as long as the run is held.
//! Users know only the address. A move makes the run's entries not present on all CPUs, copies the
//! frames through the direct map, and maps the new frames. A CPU that touches a page meanwhile
//! takes a page fault and waits.
//!
//! | file | what |
//! |---|---|
//! | `entries.rs` | the page tables; states of a page |
//! | `mover.rs` | moves: the manager's [`Mover`](framewright::Mover) |
//! | `fault.rs` | page faults of CPUs that have to wait |
//!
//! Each word that is written is a stamp of its page and of the round in which its share of the
//! pages was last used. The round is kept here, not in the page: if a write goes to an old frame
//! because a CPU used a stale translation, the page is found a round behind.
//!
//! Orders of memory: Relaxed. A round is changed only by the one user of its share, and users
//! follow one another through jobs, which order everything; where to look for free addresses is a
//! hint.

mod entries;
mod fault;
mod mover;

pub use fault::{is_mapping, page_fault_entry};

use crate::platform::{GuestPlatform, PLATFORM};
use crate::smp::TlbShootdown;
use core::sync::atomic::{AtomicU32, Ordering};
use entries::{Entries, Word};
use framewright::SpinLock;
use framewright::platform::Platform;
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::{Manager, Request};
use framewright_arch::paging::{FlushRequest, FlushTlb, VirtualRange};
use framewright_shell::{MovableMemory, SHARES};
use framewright_workload::{Handle, HandleError};

/// Translations are never global.
const TLB: TlbShootdown = TlbShootdown { global: false };
/// Larger runs are flushed by flushing everything.
const MOST_SINGLE: u64 = 32;
/// The words of a page that are stamped.
const STAMPED: [u64; 4] = [0, 170, 341, 511];

/// `AT_ONCE`: how many pages a user works on before it goes on to the next, few enough for a TLB.
/// `TURNS`: how often it uses them.
const AT_ONCE: usize = 64;
const TURNS: u32 = 16;

/// The mapping; empty and without tables at first.
pub struct GuestMapping<'a> {
    manager: &'a Manager<GuestPlatform>,
    entries: SpinLock<Option<Entries>>,
    /// Where the next search for free addresses begins.
    next: AtomicU32,
    /// How often each share was used.
    rounds: [AtomicU32; SHARES as usize],
}

/// A run that its holder has taken: only the holder changes its entries.
#[derive(Clone, Copy)]
struct Taken {
    entries: Entries,
    first: u32,
    run: PfnRange,
    order: Order,
    pinned: bool,
}

impl Taken {
    /// Takes a run if its entry still equals `seen`, and returns `None` otherwise. CPUs may still
    /// have its translations cached.
    fn take(entries: Entries, first: u32, seen: Word) -> Option<Self> {
        let (run, order) = seen.run().zip(seen.order())?;
        let pinned = seen.is_pinned();
        entries.take(first, seen).then_some(Self { entries, first, run, order, pinned })
    }

    /// Takes a run like [`take`](Self::take), and makes all CPUs forget its translations.
    fn take_and_flush(entries: Entries, first: u32, seen: Word) -> Option<Self> {
        let taken = Self::take(entries, first, seen)?;
        flush(&[entries.addresses(first, taken.run.pages())]);
        Some(taken)
    }

    /// Maps the run again, where it was or at other frames with the same content.
    fn give_back(self, run: PfnRange) {
        self.entries.map(self.first, run, self.pinned);
    }
}

/// Makes all CPUs forget the translations of these pages. No table is freed, so a sleeping CPU may
/// flush when it wakes (invariant 12).
fn flush(pages: &[VirtualRange]) {
    let single = pages.iter().map(|pages| pages.pages()).sum::<u64>() <= MOST_SINGLE;
    TLB.flush_pages(if single { FlushRequest::Ranges(pages) } else { FlushRequest::Everything });
}

/// A word of a page of the mapping.
fn word(page: u32, place: u64) -> *mut u64 {
    let address = entries::BASE + u64::from(page) * PAGE_SIZE + place * 8;
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// What a word of a page holds after a round.
fn stamp(page: u32, place: u64, round: u32) -> u64 {
    let value = (u64::from(page) << 32 | u64::from(round)).wrapping_add(place << 20);
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

impl<'a> GuestMapping<'a> {
    /// Returns an empty mapping.
    pub fn new(manager: &'a Manager<GuestPlatform>) -> Self {
        let rounds = [const { AtomicU32::new(0) }; SHARES as usize];
        Self { manager, entries: SpinLock::new(None), next: AtomicU32::new(0), rounds }
    }

    fn entries(&self) -> Option<Entries> {
        self.entries.with(&PLATFORM, |entries| *entries)
    }

    /// How often the share that a run belongs to was used.
    fn round(&self, first: u32, order: Order) -> u32 {
        let share = self.rounds.get(Entries::share_of(first, order) as usize);
        share.map_or(0, |round| round.load(Ordering::Relaxed))
    }

    /// Returns the entry of a run, and the tables.
    fn find(&self, handle: Handle) -> Result<(Entries, Word), HandleError> {
        let entries = self.entries().filter(|entries| handle.0 < entries.count);
        let entries = entries.ok_or(HandleError::NotHeld(handle))?;
        let found = entries.get(handle.0);
        found.order().map(|_| (entries, found)).ok_or(HandleError::NotHeld(handle))
    }

    /// Checks, through the mapping, that a run holds what was written into it in a round.
    fn look(entries: &Entries, first: u32, order: Order, round: u32) -> Result<(), HandleError> {
        for (page, at) in (first..).zip(0..order.pages()) {
            for place in STAMPED {
                // SAFETY: the page is mapped as long as the run is held or is in motion, in which
                // case this waits in a page fault. Nobody else uses the memory, and interrupts are
                // on.
                let found = unsafe { word(page, place).read_volatile() };
                if found != stamp(page, place, round) {
                    let run = entries.get(first).run();
                    let pfn = run.map_or(Pfn(0), |run| run.start.add(at));
                    return Err(HandleError::Damaged { handle: Handle(first), pfn });
                }
            }
        }
        Ok(())
    }

    fn write(first: u32, order: Order, round: u32) {
        for (page, _) in (first..).zip(0..order.pages()) {
            for place in STAMPED {
                // SAFETY: as in `look`.
                unsafe { word(page, place).write_volatile(stamp(page, place, round)) };
            }
        }
    }
}

impl MovableMemory for GuestMapping<'_> {
    fn open(&self) -> Result<(), HandleError> {
        if self.is_open() {
            return Ok(());
        }
        let entries = Entries::build(self.manager).map_err(HandleError::Memory)?;
        fault::serve(Some(&entries));
        self.entries.with(&PLATFORM, |place| *place = Some(entries));
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.entries().is_some()
    }

    fn close(&self) {
        let Some(entries) = self.entries.with(&PLATFORM, Option::take) else { return };
        fault::serve(None);
        let free_runs = || {
            TLB.flush(FlushRequest::Everything);
            for (first, _) in entries.runs(0..entries.count) {
                let Some(run) = entries.get(first).run() else { continue };
                // SAFETY: allocated for this mapping, and no CPU has its translations cached
                // (invariants 12 and 42). A run that cannot be freed was not ours.
                let _ = unsafe { self.manager.free(run) };
            }
        };
        // SAFETY: the code that runs the shell's commands is the only user, and no other command is
        // under way. The tables were just taken from `self`.
        unsafe { entries.free(self.manager, free_runs) };
    }

    fn allocate(&self, order: Order) -> Result<Handle, HandleError> {
        let entries = self.entries().ok_or(HandleError::NoHandle)?;
        let first = entries.reserve(self.next.load(Ordering::Relaxed), order);
        let first = first.ok_or(HandleError::NoHandle)?;
        let end = first.saturating_add(u32::try_from(order.pages()).unwrap_or(u32::MAX));
        // Frames beyond this could never be moved, as their owner cannot be tracked.
        let max_address = PLATFORM.direct_limit().min(entries.end().address());
        let request = Request { max_address, ..Request::new(order) };
        let run = self.manager.allocate(&request).map_err(|error| {
            entries.forget(first, order);
            HandleError::Memory(error)
        })?;
        self.next.store(end, Ordering::Relaxed);
        entries.map(first, run, false);
        Self::write(first, order, self.round(first, order));
        Ok(Handle(first))
    }

    fn next(&self, from: u32) -> Option<Handle> {
        let entries = self.entries()?;
        entries.runs(from..entries.count).next().map(|(first, _)| Handle(first))
    }

    fn range(&self, handle: Handle) -> Option<PfnRange> {
        self.find(handle).ok().and_then(|(_, found)| found.run())
    }

    fn is_pinned(&self, handle: Handle) -> bool {
        self.find(handle).is_ok_and(|(_, found)| found.is_pinned())
    }

    fn pin(&self, handle: Handle, pinned: bool) -> Result<(), HandleError> {
        loop {
            let (entries, found) = self.find(handle)?;
            if found.is_present() && entries.pin(handle.0, found, pinned) {
                return Ok(());
            }
            PLATFORM.relax();
        }
    }

    fn check(&self, handle: Handle) -> Result<(), HandleError> {
        let (entries, found) = self.find(handle)?;
        let order = found.order().ok_or(HandleError::NotHeld(handle))?;
        Self::look(&entries, handle.0, order, self.round(handle.0, order))
    }

    fn free(&self, handle: Handle) -> Result<(), HandleError> {
        self.check(handle)?;
        let taken = loop {
            let (entries, found) = self.find(handle)?;
            if found.is_pinned() {
                return Err(HandleError::Busy(handle));
            }
            match Taken::take_and_flush(entries, handle.0, found) {
                Some(taken) => break taken,
                // A move is under way.
                None => PLATFORM.relax(),
            }
        };
        taken.entries.set_owner(taken.run, None);
        // SAFETY: allocated for this run, which we have taken and all CPUs have forgotten
        // (invariants 12 and 42).
        if let Err(error) = unsafe { self.manager.free(taken.run) } {
            taken.give_back(taken.run);
            return Err(HandleError::Free(error));
        }
        taken.entries.forget(taken.first, taken.order);
        Ok(())
    }

    fn table_pages(&self) -> u64 {
        self.entries().map_or(0, |entries| entries.pages())
    }

    /// Checks what was written in the last round and writes anew, through the mapping. It uses a
    /// few pages many times and then the next few, so that this CPU has their translations cached
    /// when they move.
    fn use_share(&self, share: u32) -> Result<u64, HandleError> {
        let Some((entries, round)) = self.entries().zip(self.rounds.get(share as usize)) else {
            return Ok(0);
        };
        let last = round.load(Ordering::Relaxed);
        let mut runs = entries
            .runs(0..entries.count)
            .filter(|&(first, order)| Entries::share_of(first, order) == share)
            .peekable();
        let mut used = 0;
        while runs.peek().is_some() {
            let mut few = [None; AT_ONCE];
            let mut pages = 0;
            for place in &mut few {
                *place = runs.next_if(|_| pages < AT_ONCE as u64);
                pages += place.map_or(0, |(_, order)| order.pages());
            }
            for turn in 0..TURNS {
                for (first, order) in few.into_iter().flatten() {
                    Self::look(&entries, first, order, last.wrapping_add(turn))?;
                    Self::write(first, order, last.wrapping_add(turn + 1));
                    used += 1;
                }
            }
        }
        round.store(last.wrapping_add(TURNS), Ordering::Relaxed);
        Ok(used)
    }

    fn waits(&self) -> Option<u64> {
        Some(fault::waits())
    }
}
