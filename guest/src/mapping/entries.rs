//! The page tables of the mapping: a level 1 entry for each of its pages, and which run owns each
//! frame.
//!
//! ```text
//!   0 ──reserve──> RESERVED ──map──> present ──begin, free──> not present ──unmap──> 0
//!                                       ^                          │
//!                                       └── map, at any frame ─────┘
//! ```
//!
//! An entry that is not present, not 0 and not RESERVED still has its frame's address: the page is
//! in motion. Bits that the CPU ignores say whether a page is the first of a run, of which order
//! the run is, and whether it is pinned. A CPU that makes the first entry of a run not present owns
//! the whole run until it maps the run again, and nobody else changes any of its entries.
//!
//! Orders of memory: an entry is set with Release and taken with Acquire, so that the CPU that
//! takes it, and the page walk of every CPU, sees what was written into the frame before; AcqRel
//! where a change is both. The owner of a frame is a hint, Relaxed, which is compared with the
//! entry.

use crate::platform::{GuestPlatform, PLATFORM};
use crate::virtio_mem;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::platform::Platform;
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Manager, Request};
use framewright_arch::paging::{Access, Entry, PageSize, VirtualRange, index_of};
use framewright_arch::x86_64::registers::page_table_root;
use framewright_shell::SHARES;

/// Where the mapping begins. The guest maps nothing else in this entry of the root table.
pub const BASE: u64 = 0xffff_d800_0000_0000;
/// Bits of the root's address in CR3; the others are flags.
const ROOT: u64 = (1 << 52) - PAGE_SIZE;
/// Entries of a table.
const ENTRIES: u64 = 512;
/// Most pages: one entry of the root covers 512 GiB, and the tables are one run.
const MOST_PAGES: u64 = 1 << 26;
/// Owners are tracked for memory that may come later if it is at most this many times the present
/// memory.
const MOST_LATER: u64 = 32;

/// The address of a page is reserved but has no frame yet. Nobody else may claim it.
const RESERVED: u64 = 1 << 9;
const ORDER_SHIFT: u32 = 52;
const PINNED: u64 = 1 << 57;
/// The first page of a run.
const FIRST: u64 = 1 << 58;
const PRESENT: u64 = 1;

/// The content of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// Returns the entry that maps the first page of a run.
    fn first(run: PfnRange, order: Order, pinned: bool) -> Self {
        let bits = FIRST | u64::from(order.get()) << ORDER_SHIFT | if pinned { PINNED } else { 0 };
        Self(Self::inner(run.start).0 | bits)
    }

    /// Returns the entry that maps another page of a run.
    fn inner(frame: Pfn) -> Self {
        // Never global, so that a CPU that slept flushes it by reloading its root.
        let access = Access { global: false, ..Access::DATA };
        Self(Entry::page(frame.address(), PageSize::Small, access).0)
    }

    /// Whether the page belongs to nobody.
    pub const fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// Whether CPUs can access the page.
    pub const fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether the page's run must stay where it is.
    pub const fn is_pinned(self) -> bool {
        self.0 & PINNED != 0
    }

    /// The order of the run that begins with this page.
    pub fn order(self) -> Option<Order> {
        let order = u8::try_from(self.0 >> ORDER_SHIFT & 0x1f).ok().and_then(Order::new)?;
        (self.0 & FIRST != 0).then_some(order)
    }

    /// The frames of the run that begins with this page.
    pub fn run(self) -> Option<PfnRange> {
        let start = Pfn::containing(Entry(self.0).address());
        self.order().map(|order| PfnRange { start, end: start.add(order.pages()) })
    }
}

/// The tables. A copy names the same tables.
#[derive(Clone, Copy)]
pub struct Entries {
    /// The table of level 3, then those of level 2, then those of level 1.
    tables: PfnRange,
    /// The first table of level 1.
    leaves: Pfn,
    /// How many pages the mapping has.
    pub count: u32,
    /// Half a word for each frame of `span`: the number of the first page of the run that owns it,
    /// plus one, or 0.
    owners: PfnRange,
    span: PfnRange,
}

/// Returns a word of a frame that belongs to the tables.
fn word(frame: Pfn, index: u64) -> &'static AtomicU64 {
    let address = PLATFORM.direct(frame.address() + index % ENTRIES * 8);
    // SAFETY: this is a word of the root or of a run that `Entries::build` allocated, which is
    // accessed only as atomics until `free` (invariants 1, 4 and 39). No caller keeps the reference
    // longer.
    unsafe { AtomicU64::from_ptr(address.as_ptr().cast()) }
}

fn root() -> &'static AtomicU64 {
    let index = u64::try_from(index_of(BASE, 4)).unwrap_or(0);
    word(Pfn::containing(page_table_root() & ROOT), index)
}

impl Entries {
    /// Makes tables for twice as many pages as the manager has, so that runs of all orders find
    /// aligned addresses, and puts them into the root that all CPUs use.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn build(manager: &Manager<GuestPlatform>) -> Result<Self, AllocateError> {
        let pages = (manager.totals().managed_pages * 2).clamp(1, MOST_PAGES);
        let leaves = pages.div_ceil(ENTRIES);
        let directories = leaves.div_ceil(ENTRIES);
        let spans = manager.zones().iter().map(|zone| zone.span()).filter(|span| !span.is_empty());
        let join = |a: PfnRange, b: PfnRange| PfnRange {
            start: a.start.min(b.start),
            end: a.end.max(b.end),
        };
        let span = spans.reduce(join).unwrap_or(PfnRange::new(0, 0));
        // Includes memory that may come later, unless tracking its owners would take much of what
        // there is.
        let later = virtio_mem::region();
        let is_small = later.pages() <= manager.totals().managed_pages * MOST_LATER;
        let span = if later.is_empty() || !is_small { span } else { join(span, later) };
        let take = |pages: u64| {
            manager.allocate(&Request {
                migrate_type: MigrateType::Unmovable,
                max_address: PLATFORM.direct_limit(),
                zeroed: true,
                ..Request::pages(pages)
            })
        };
        let tables = take(1 + directories + leaves)?;
        let owners = take((span.pages() * 4).div_ceil(PAGE_SIZE)).inspect_err(|_| {
            // SAFETY: allocated just now, and nobody uses it yet (invariant 42).
            let _ = unsafe { manager.free(tables) };
        })?;
        let first_directory = tables.start.add(1);
        let first_leaf = first_directory.add(directories);
        let lead = |from: Pfn, to: Pfn, count: u64| {
            for index in 0..count {
                let entry = Entry::table(to.add(index).address());
                word(from.add(index / ENTRIES), index).store(entry.0, Ordering::Relaxed);
            }
        };
        lead(first_directory, first_leaf, leaves);
        lead(tables.start, first_directory, directories);
        root().store(Entry::table(tables.start.address()).0, Ordering::Release);
        let count = u32::try_from(leaves * ENTRIES).unwrap_or(u32::MAX);
        Ok(Self { tables, leaves: first_leaf, count, owners, span })
    }

    /// Removes the tables from the root, calls `flush` to make all CPUs forget them, and frees
    /// them.
    ///
    /// # Safety
    /// Nobody uses the mapping or a copy of this any more.
    pub unsafe fn free(self, manager: &Manager<GuestPlatform>, flush: impl FnOnce()) {
        root().store(0, Ordering::Release);
        flush();
        for run in [self.tables, self.owners] {
            // SAFETY: allocated in `build`, and no CPU has it cached any more (invariants 12 and
            // 42).
            let _ = unsafe { manager.free(run) };
        }
    }

    /// How many frames the tables take.
    pub const fn pages(&self) -> u64 {
        self.tables.pages() + self.owners.pages()
    }

    /// The end of the frames whose owners can be tracked. No page of the mapping lies beyond it.
    pub const fn end(&self) -> Pfn {
        self.span.end
    }

    /// The first table of level 1.
    pub const fn leaves(&self) -> Pfn {
        self.leaves
    }

    fn entry(&self, page: u32) -> &'static AtomicU64 {
        entry_of(self.leaves, page)
    }

    /// Reads a page's entry.
    pub fn get(&self, page: u32) -> Word {
        Word(self.entry(page % self.count).load(Ordering::Acquire))
    }

    /// The addresses of `pages` pages from page `first` on.
    pub fn addresses(&self, first: u32, pages: u64) -> VirtualRange {
        let start = BASE + u64::from(first) * PAGE_SIZE;
        VirtualRange { start, end: start + pages * PAGE_SIZE }
    }

    /// Returns which share a run belongs to. Neighbouring runs are in different shares, so that
    /// each user meets all moves. The distances between runs of a share differ, so that a few of
    /// them fit into a TLB together.
    pub const fn share_of(first: u32, order: Order) -> u32 {
        (first >> order.get()).wrapping_mul(0x9e37_79b1) >> 16 & (SHARES - 1)
    }

    /// Returns the runs that begin in a range of pages, in ascending order.
    pub fn runs(self, range: Range<u32>) -> impl Iterator<Item = (u32, Order)> {
        let mut from = range.start;
        core::iter::from_fn(move || {
            let mut pages = from..range.end;
            let found = pages.find_map(|page| self.get(page).order().map(|order| (page, order)));
            let pages = found.map_or(1, |(_, order)| order.pages());
            let next = found.map_or(range.end, |(first, _)| first);
            from = next.saturating_add(u32::try_from(pages).unwrap_or(u32::MAX));
            found
        })
    }

    /// Reserves addresses for a run. Searches from page `from` on, and then from the beginning.
    pub fn reserve(&self, from: u32, order: Order) -> Option<u32> {
        let pages = u32::try_from(order.pages()).ok()?;
        let from = from.checked_next_multiple_of(pages)?.min(self.count);
        let step = usize::try_from(pages).ok()?;
        let mut places = (from..self.count).step_by(step).chain((0..from).step_by(step));
        places.find(|&first| {
            let end = first.saturating_add(pages);
            let claim = |page: u32| {
                self.entry(page)
                    .compare_exchange(0, RESERVED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            };
            end <= self.count
                && match (first..end).find(|&page| !claim(page)) {
                    None => true,
                    Some(taken) => {
                        (first..taken)
                            .for_each(|page| self.entry(page).store(0, Ordering::Release));
                        false
                    }
                }
        })
    }

    /// Maps a run that the caller owns at addresses that the caller has reserved or taken.
    pub fn map(&self, first: u32, run: PfnRange, pinned: bool) {
        self.set_owner(run, Some(first));
        let Some(order) = Order::for_pages(run.pages()) else { return };
        for (page, pfn) in (first..).zip(run.start.0..run.end.0).skip(1) {
            self.entry(page).store(Word::inner(Pfn(pfn)).0, Ordering::Release);
        }
        // The first entry is last, because from then on the run can be taken.
        self.entry(first).store(Word::first(run, order, pinned).0, Ordering::Release);
    }

    /// Makes a run not present and takes it if its entry still equals `seen`. The caller flushes.
    pub fn take(&self, first: u32, seen: Word) -> bool {
        let Some(order) = seen.order().filter(|_| seen.is_present()) else { return false };
        let absent = seen.0 & !PRESENT;
        let taken = self.entry(first).compare_exchange(
            seen.0,
            absent,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if taken.is_ok() {
            for page in (first..).zip(1..order.pages()).map(|(page, _)| page + 1) {
                self.entry(page).fetch_and(!PRESENT, Ordering::AcqRel);
            }
        }
        taken.is_ok()
    }

    /// Releases the addresses of a run that the caller has reserved or taken.
    pub fn forget(&self, first: u32, order: Order) {
        // The first entry is last, so that nobody finds a part of a run.
        for page in (first..).zip(0..order.pages()).map(|(page, _)| page).skip(1) {
            self.entry(page).store(0, Ordering::Release);
        }
        self.entry(first).store(0, Ordering::Release);
    }

    /// Pins or unpins a run if its entry still equals `seen`.
    pub fn pin(&self, first: u32, seen: Word, pinned: bool) -> bool {
        let new = if pinned { seen.0 | PINNED } else { seen.0 & !PINNED };
        self.entry(first).compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn owner(&self, pfn: Pfn) -> Option<(&'static AtomicU64, u32)> {
        let index = self.span.contains(pfn).then(|| pfn.0 - self.span.start.0)?;
        let shift = if index.is_multiple_of(2) { 0 } else { 32 };
        Some((word(self.owners.start.add(index / (2 * ENTRIES)), index / 2), shift))
    }

    /// Returns the first page of the run that is recorded as the frame's owner.
    pub fn owned_by(&self, pfn: Pfn) -> Option<u32> {
        let (owner, shift) = self.owner(pfn)?;
        let half = u32::try_from(owner.load(Ordering::Relaxed) >> shift & 0xffff_ffff).ok()?;
        half.checked_sub(1).filter(|&first| first < self.count)
    }

    /// Records which run owns the frames of `run`.
    pub fn set_owner(&self, run: PfnRange, first: Option<u32>) {
        let value = first.map_or(0, |first| u64::from(first) + 1);
        for pfn in (run.start.0..run.end.0).map(Pfn) {
            let Some((owner, shift)) = self.owner(pfn) else { return };
            // The other half of the word is another frame's, and another CPU may change it at any
            // time.
            let _ = owner.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(old & !(0xffff_ffff << shift) | value << shift)
            });
        }
    }
}

/// Returns the entry of a page in the level 1 tables that begin at `leaves`.
fn entry_of(leaves: Pfn, page: u32) -> &'static AtomicU64 {
    let page = u64::from(page);
    word(leaves.add(page / ENTRIES), page)
}

/// Reads the entry of an address in the level 1 tables that begin at `leaves`.
pub fn look(leaves: Pfn, address: u64) -> Word {
    let page = u32::try_from((address - BASE) / PAGE_SIZE).unwrap_or(0);
    Word(entry_of(leaves, page).load(Ordering::Acquire))
}
