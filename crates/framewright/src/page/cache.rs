//! The frames that a CPU keeps in its own cache.
//!
//! There is a stack for each order up to 9 and [lot](Lot): the three migrate types, and what goes
//! back to the zone. Orders 0 to 3 come out of the zone by
//! the *word*: a refill takes over all free runs of one 64-frame word of a block's free map, so
//! each entry of their stacks is a word. From order 4 on an entry is a single run. To get a run is
//! to find a set bit in the top entry. Freeing a run of that word sets its bit again; freeing any
//! other run begins a new entry.
//!
//! ```text
//!                refill                    get
//!     zone ---------------> of a type -------------> caller
//!       ^  <--------------      ^ block crowded, or      |
//!       |    oldest half        | not movable            | free looks at the block
//!       +------- BACK <---------+------------------------+
//!                       block has much free
//! ```
//!
//! Refills take frames from a zone's fullest blocks, which keeps other blocks whole, but frames
//! that are reused at once would pin every block. So of movable frames only those of crowded
//! blocks, which will hardly become whole soon, are handed out again ([`Lot`]). All others gather
//! until they go back together, and are used only if the zone has nothing, or only reported memory.
//! A few runs whose size is no power of two are kept as they are ([`OddRuns`]). The stack of
//! movable whole blocks grows while blocks come or go in bulk ([`CpuCache::adapt`]).
//!
//! All accesses are Relaxed atomics, which are plain loads and stores on every processor.
//! [`Ownership`] decides who touches them (invariant 16) and also orders them with its Acquire and
//! Release. A sum over another CPU's cache is a guess.

use super::limits::{Limits, MOST, STACKS, TINY, WORD_ORDERS, order_of};
use super::near::{self, Kept, Near};
use super::odd::OddRuns;
use super::words::{Put, Runs, Stack, Word};
use crate::block::{Lot, MigrateType};
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Exclusive, Ownership};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};
use core::mem::MaybeUninit;

/// The most words that a refill brings besides the first, by order.
const MOST_MORE: [u32; WORD_ORDERS] = if TINY { [1; WORD_ORDERS] } else { [16, 8, 8, 16] };
/// The number of entries of all stacks.
const ENTRIES: usize = {
    let (mut total, mut index) = (0, 0);
    while index < STACKS {
        total += MOST[index / Lot::COUNT][index % Lot::COUNT];
        index += 1;
    }
    total
};

/// In which direction whole blocks move in bulk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Into an empty cache.
    In = 1,
    /// Out of a full cache.
    Out = 2,
}

/// See the module documentation. The fields that every get and put needs come first.
#[repr(C, align(128))]
pub(crate) struct CpuCache {
    pub(crate) ownership: Ownership,
    /// Stands for all the fields below.
    pub(super) contents: Exclusive,
    /// Whether frames that are not of the cache's own zones have come in since it was empty, or it
    /// keeps such frames (`away`).
    pub(super) strays: AtomicBool,
    /// The number of words that the next refill takes: more each time, and one after a drain.
    pub(super) batch: AtomicU32,
    /// The last [`Flow`] of whole blocks; zero after a drain.
    pub(super) flow: AtomicU32,
    /// The most movable whole blocks that the cache keeps, usually and while they come or go in
    /// bulk.
    blocks: [AtomicU32; 2],
    /// The number of the manager's zone that is asked first.
    zone: AtomicUsize,
    /// The frames that the cache keeps: those of that zone and of the other zone of its node, if
    /// there is one.
    kept: [Kept; 2],
    pub(super) stacks: [Stack; STACKS],
    pub(super) odd: OddRuns,
    /// The entries of `stacks`. No entry in use is empty.
    pub(super) entries: [Word; ENTRIES],
    /// The frames of another node that the cache keeps while its own node has no memory left
    /// (`away`).
    pub(super) away: Kept,
    /// Counts frees while the cache keeps those, modulo 2^32.
    pub(super) frees_away: AtomicU32,
    /// The managed pages of the zones whose frames the cache keeps; each CPU has its share of them.
    home_pages: AtomicU64,
    /// The number of CPUs, including this one, that keep frames of the node of the cache's first
    /// zone.
    sharers: AtomicU32,
    /// Whether the cache's CPU is offline. One CPU at a time changes it; for others it is a guess.
    offline: AtomicBool,
}

impl CpuCache {
    /// Initialises a cache in place that keeps nothing until it is [settled](Self::settle) and
    /// [resized](Self::resize). Its entries, which are most of it, are not written, because no
    /// entry is read before it was written.
    ///
    /// # Safety
    /// The memory must be of a kind that has some content even where it was never written, as a
    /// machine's memory has (invariant 4).
    #[inline(never)]
    pub(crate) unsafe fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            CpuCache at place,
            {
                ownership: Ownership::new(),
                contents: Exclusive::new(),
                strays: AtomicBool::new(false),
                batch: AtomicU32::new(1),
                flow: AtomicU32::new(0),
                blocks: Limits::NONE.blocks().map(AtomicU32::new),
                zone: AtomicUsize::new(usize::MAX),
                home_pages: AtomicU64::new(0),
                sharers: AtomicU32::new(1),
                offline: AtomicBool::new(false),
                frees_away: AtomicU32::new(0),
                kept: const { [Kept::nothing(), Kept::nothing()] },
                away: const { Kept::nothing() },
                stacks: Stack::all(MOST.as_flattened(), &Limits::NONE.entries),
                odd: OddRuns::new(0),
            },
            // SAFETY: words of two integers, for which any content is a value (invariant 4).
            { entries: |place: &mut MaybeUninit<[Word; ENTRIES]>| unsafe {
                place.assume_init_mut()
            } },
        )
    }

    /// Returns the number of the manager's zone that is asked first.
    #[inline]
    pub(crate) fn zone(&self) -> usize {
        self.zone.load(Ordering::Relaxed)
    }

    /// Returns the managed pages of the zones whose frames the cache keeps.
    pub(crate) fn home_pages(&self) -> u64 {
        self.home_pages.load(Ordering::Relaxed)
    }

    /// Makes the cache keep frames of other zones from now on: `zone` is asked first, and those
    /// zones manage `home_pages`. The caller must have the cache, and it must be empty.
    pub(crate) fn settle(&self, zone: usize, near: &[Near<'_>; 2], home_pages: u64) {
        self.contents.touch();
        self.zone.store(zone, Ordering::Relaxed);
        self.home_pages.store(home_pages, Ordering::Relaxed);
        self.kept.iter().zip(near).for_each(|(kept, near)| kept.replace(near));
        self.come_home();
    }

    /// Returns whether the cache's CPU is offline.
    pub(crate) fn is_offline(&self) -> bool {
        self.offline.load(Ordering::Relaxed)
    }

    /// Notes that the cache's CPU went offline or came online.
    pub(crate) fn set_offline(&self, offline: bool) {
        self.offline.store(offline, Ordering::Relaxed);
    }

    /// Returns the number of CPUs that keep frames of the node of the cache's first zone.
    pub(crate) fn sharers(&self) -> u32 {
        self.sharers.load(Ordering::Relaxed)
    }

    /// Makes the cache keep one CPU's share among `sharers` from now on, or nothing while its CPU
    /// is offline. The caller must have the cache, and it must be empty.
    pub(crate) fn resize(&self, sharers: u32) {
        self.contents.touch();
        let limits = if self.is_offline() {
            Limits::NONE
        } else {
            Limits::of_share(self.home_pages() / u64::from(sharers.max(1)))
        };
        self.sharers.store(sharers, Ordering::Relaxed);
        for (place, most) in self.blocks.iter().zip(limits.blocks()) {
            place.store(most, Ordering::Relaxed);
        }
        for (stack, &limit) in self.stacks.iter().zip(&limits.entries) {
            stack.set_limit(limit);
        }
        self.odd.set_limit(limits.odd_pages);
    }

    /// Returns the number of the stack for runs of `order` in `lot`; for orders above 9 it is past
    /// the last stack.
    #[inline]
    const fn number(order: Order, lot: Lot) -> usize {
        order.get() as usize * Lot::COUNT + lot.index()
    }

    #[inline]
    pub(super) fn stack(&self, order: Order, lot: Lot) -> Option<&Stack> {
        self.stacks.get(Self::number(order, lot))
    }

    #[inline]
    fn top(&self, stack: &Stack) -> Option<&Word> {
        self.entries.get(stack.top()?.1)
    }

    /// Returns the stack of movable whole blocks.
    fn blocks_stack(&self) -> Option<&Stack> {
        self.stack(Order::BLOCK, Lot::MOVABLE)
    }

    /// Returns whether runs of `order` of this type are cached.
    pub(crate) fn caches(&self, order: Order, migrate_type: MigrateType) -> bool {
        Lot::of_type(migrate_type)
            .and_then(|lot| self.stack(order, lot))
            .is_some_and(|stack| stack.limit() != 0)
    }

    /// Takes a run of `order` from the entries in use, if there is one.
    #[inline]
    pub(crate) fn get(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        let stack = self.stack(order, Lot::of_type(migrate_type)?)?;
        let (len, top) = stack.top()?;
        let (start, is_last) = self.entries.get(top)?.take();
        stack.set_len(len - u32::from(is_last));
        Some(start)
    }

    /// [`get`](Self::get) after that found nothing: takes what was set aside into use again.
    pub(crate) fn get_aside(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        self.stack(order, Lot::of_type(migrate_type)?)?.take_back();
        self.get(order, migrate_type)
    }

    /// Returns where a run that is freed belongs: nowhere if no cache keeps it, or if its block has
    /// to be looked up in the directory.
    #[inline(always)]
    pub(crate) fn lot(&self, start: Pfn, order: Order) -> Option<Lot> {
        if start.is_aligned(order) { self.lot_of_aligned(start, order) } else { None }
    }

    /// [`lot`](Self::lot) of a run that is aligned, so that it lies in one block unless it is
    /// larger than a block, in which case it has none.
    #[inline(always)]
    pub(crate) fn lot_of_aligned(&self, start: Pfn, order: Order) -> Option<Lot> {
        self.contents.touch();
        near::lot(&self.kept, start, order.pages(), order)
    }

    /// Returns whether the cache keeps all frames of a range when they are freed.
    #[inline]
    pub(crate) fn covers(&self, range: PfnRange) -> bool {
        self.contents.touch();
        // While another node's frames are kept, most are of these.
        self.away.covers(range) || self.is_own(range)
    }

    /// Returns whether all frames of a range are of the cache's own zones.
    #[inline]
    pub(super) fn is_own(&self, range: PfnRange) -> bool {
        let [home, other] = &self.kept;
        home.covers(range) || other.covers(range)
    }

    /// Returns whether a frame is known to be of one of the cache's zones. Some of their frames are
    /// known only to the directory.
    #[inline]
    pub(crate) fn is_near(&self, pfn: Pfn) -> bool {
        self.contents.touch();
        near::is_seen(&self.kept, pfn)
    }

    /// Returns the first frame of `range` that is in the cache, if one is. The result is exact for
    /// whoever has the cache. For others it may miss frames that come in at that moment, and may
    /// find frames that leave.
    pub(crate) fn find(&self, range: PfnRange) -> Option<Pfn> {
        let (first, end) = (range.start.0, range.end.0);
        if first >= end {
            return None;
        }
        let meets = |start: u64, pages: u64| start < end && first < start + pages;
        for (number, stack) in self.stacks.iter().enumerate() {
            let order = order_of(number);
            let word = if order < WORD_ORDERS { 64 } else { 1 << order };
            // Builds that search do so at each free, so an entry must cost no more than one
            // comparison. No frame's number is near the largest integer.
            let lowest = first.saturating_sub(word - 1);
            let bases = end - lowest;
            let is_near = |base: u64| base.wrapping_sub(lowest) < bases;
            let entries = self.entries.get(stack.entries()).unwrap_or(&[]);
            for runs in entries.iter().filter_map(|entry| entry.read_if(is_near)) {
                if let Some(start) = runs.starts().find(|start| meets(start.0, 1 << order)) {
                    return Some(start.max(range.start));
                }
            }
        }
        self.odd.find(range)
    }

    /// Changes which frames the cache keeps, to what `left` leaves of the frames of each of its own
    /// zones. The caller must have the cache.
    pub(crate) fn keep_only(&self, left: impl Fn(PfnRange) -> PfnRange) {
        self.contents.touch();
        for kept in &self.kept {
            kept.set(left(kept.range()));
        }
        self.come_home();
    }

    /// Caches an aligned run, in few instructions, if it is of the word that is handed out from
    /// next; returns nothing if it is of another word. Its block need not be looked at: frames of
    /// it are in use here, so the block is split and nothing keeps it from being used. If there are
    /// [strays](Self::has_strays), call it only for frames that the cache [keeps](Self::covers), or
    /// strays would be handed out for ever.
    #[inline(always)]
    pub(crate) fn put_next(&self, start: Pfn, order: Order) -> Option<Put> {
        self.contents.touch();
        debug_assert!(start.is_aligned(order), "{start:?} is not aligned to {order:?}");
        let top = self.top(self.stack(order, Lot::MOVABLE)?)?;
        top.give_one(start, order)
    }

    /// [`put`](Self::put) after [`put_next`](Self::put_next) found that the run is not of the word
    /// that is handed out from next: a movable run begins a new word.
    #[inline(always)]
    pub(crate) fn put_not_next(&self, start: Pfn, order: Order, lot: Lot) -> Put {
        self.contents.touch();
        let Some(stack) = self.stack(order, lot) else { return Put::Full };
        let runs = Runs::one(start, order);
        if lot != Lot::MOVABLE
            && let Some(top) = self.top(stack).filter(|top| top.holds(runs))
        {
            return top.give(runs);
        }
        self.begin_word(stack, runs)
    }

    #[inline(always)]
    fn begin_word(&self, stack: &Stack, runs: Runs) -> Put {
        let Some(entry) = stack.grow().and_then(|entry| self.entries.get(entry)) else {
            return Put::Full;
        };
        entry.set(runs);
        Put::Cached
    }

    /// Caches a run, if there is room.
    #[inline]
    pub(crate) fn put(&self, start: Pfn, order: Order, lot: Lot) -> Put {
        self.contents.touch();
        let Some(mut stack) = self.stack(order, lot) else { return Put::Full };
        let runs = Runs::one(start, order);
        if lot == Lot::BACK
            && let Some(next) = self.stack(order, Lot::MOVABLE)
            && self.top(next).is_some_and(|top| top.holds(runs))
        {
            // The run is of the word that is handed out from next anyway.
            stack = next;
        }
        if let Some(top) = self.top(stack).filter(|top| top.holds(runs)) {
            return top.give(runs);
        }
        self.begin_word(stack, runs)
    }

    /// [`put`](Self::put) as a single copy, for callers off the fast path.
    #[inline(never)]
    pub(crate) fn put_slowly(&self, start: Pfn, order: Order, lot: Lot) -> Put {
        self.put(start, order, lot)
    }

    /// Takes a run of exactly `pages` pages, no power of two, if one is in the cache.
    #[inline(always)]
    pub(crate) fn get_odd(&self, pages: u64, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        self.odd.get(pages, Lot::of_type(migrate_type)?)
    }

    /// The lots of [odd](Self::is_odd) runs are those of runs of this order.
    pub(crate) const ODD_ORDER: Order = OddRuns::LIKE;

    /// Returns whether a run, no power of two, is of the kind that [`put_odd`](Self::put_odd)
    /// accepts.
    #[inline(always)]
    pub(crate) fn is_odd(start: Pfn, pages: u64) -> bool {
        OddRuns::takes(start, pages)
    }

    /// Returns where the pages of an [odd](Self::is_odd) run that is freed belong: nowhere if no
    /// cache keeps them, or if their block has to be looked up elsewhere.
    #[inline(always)]
    pub(crate) fn lot_of_odd(&self, start: Pfn, pages: u64) -> Option<Lot> {
        self.contents.touch();
        near::lot(&self.kept, start, pages, Self::ODD_ORDER)
    }

    /// Caches a run whose number of pages is no power of two in a lot, if there is room.
    #[inline(always)]
    pub(crate) fn put_odd(&self, start: Pfn, pages: u64, lot: Lot) -> Put {
        self.contents.touch();
        self.odd.put(start, pages, lot)
    }

    /// [`put_odd`](Self::put_odd) as a single copy, for callers off the fast path.
    #[inline(never)]
    pub(crate) fn put_odd_slowly(&self, start: Pfn, pages: u64, lot: Lot) -> Put {
        self.put_odd(start, pages, lot)
    }

    /// Returns whether the cache may keep such a run of `pages` pages at all.
    pub(crate) fn may_keep_odd(&self, pages: u64) -> bool {
        pages <= self.odd.limit_pages()
    }

    /// Takes the oldest of these runs out of the cache.
    pub(crate) fn give_up_odd(&self) -> Option<PfnRange> {
        self.contents.touch();
        self.odd.give_up()
    }

    /// Returns how much a refill should take, in words or runs, besides what the caller wants: more
    /// at each call. It leaves room for one put afterwards.
    pub(crate) fn batch(&self, order: Order, migrate_type: MigrateType) -> usize {
        let stack = Lot::of_type(migrate_type).and_then(|lot| self.stack(order, lot));
        let Some(stack) = stack else { return 0 };
        let Some(&most) = MOST_MORE.get(usize::from(order.get())) else {
            return stack.limit() as usize / 2;
        };
        if migrate_type != MigrateType::Movable {
            return 0;
        }
        let most = most.min(stack.limit().saturating_sub(2));
        let batch = self.batch.load(Ordering::Relaxed).min(most);
        self.batch.store(batch * 2 + 1, Ordering::Relaxed);
        batch as usize
    }

    /// Called before many movable whole blocks come or go. Twice in a row in the same direction
    /// means that memory is being filled or emptied in bulk: from then on the cache keeps more
    /// blocks, so that the zone lock is taken less often. That ends with the next drain, or once
    /// `may_keep_more` is false. Returns whether there is more room now.
    pub(crate) fn adapt(&self, flow: Flow, may_keep_more: bool) -> bool {
        self.contents.touch();
        let [usual, most] = [0, 1].map(|at: usize| self.blocks[at].load(Ordering::Relaxed));
        let Some(stack) = self.blocks_stack() else { return false };
        let before = stack.limit();
        let again = self.flow.load(Ordering::Relaxed) == flow as u32;
        self.flow.store(flow as u32, Ordering::Relaxed);
        let limit = match (may_keep_more, again) {
            (false, _) => usual,
            (true, true) => most,
            (true, false) => before,
        };
        stack.set_limit(limit);
        limit > before
    }

    /// Returns the most single pages that a refill brings, and the most pages that fit in the
    /// cache.
    pub(crate) fn limits(&self) -> (u64, u64) {
        let limit = |stack: &Stack| u64::from(stack.limit());
        let pages = |(number, stack): (usize, &Stack)| match order_of(number) {
            order if order < WORD_ORDERS => limit(stack) * 64,
            order => limit(stack) << order,
        };
        let in_bulk = u64::from(self.blocks[1].load(Ordering::Relaxed))
            .saturating_sub(self.blocks_stack().map_or(0, limit));
        let most = self.stacks.iter().enumerate().map(pages).sum::<u64>()
            + (in_bulk << BLOCK_ORDER)
            + self.odd.limit_pages();
        let movable = self.stack(Order::PAGE, Lot::MOVABLE);
        let more = movable.map_or(0, |stack| limit(stack).saturating_sub(2));
        (64 * (1 + more.min(u64::from(MOST_MORE[0]))), most)
    }

    /// Takes over a word of runs of `order`, which may have no runs left. False if there is no
    /// room.
    pub(crate) fn take_over(&self, order: Order, migrate_type: MigrateType, runs: Runs) -> bool {
        self.contents.touch();
        if runs.runs == 0 {
            return true;
        }
        let stack = Lot::of_type(migrate_type).and_then(|lot| self.stack(order, lot));
        let entry = stack.and_then(Stack::grow).and_then(|entry| self.entries.get(entry));
        entry.map(|entry| entry.set(runs)).is_some()
    }

    /// Returns whether [`reuse`](Self::reuse) would find something.
    pub(crate) fn has_freed(&self, order: Order, migrate_type: MigrateType) -> bool {
        migrate_type == MigrateType::Movable && self.waiting(order, Lot::BACK) != 0
    }

    /// Turns to frames that were to go back, because the zone has nothing, or only reported memory.
    pub(crate) fn reuse(&self, order: Order, migrate_type: MigrateType) -> bool {
        self.contents.touch();
        if migrate_type != MigrateType::Movable {
            return false;
        }
        let Some(back) = self.stack(order, Lot::BACK) else { return false };
        back.take_back();
        let Some(last) = self.top(back).map(Word::read) else {
            return false;
        };
        let turned = self.take_over(order, migrate_type, last);
        back.shrink(u32::from(turned));
        turned
    }

    /// Returns the number of pages in the cache. Exact while its CPU is not inside.
    pub(crate) fn pages(&self) -> u64 {
        let count = |word: &Word| word.read().count();
        let stacks = self.stacks.iter().enumerate().map(|(number, stack)| {
            let entries = self.entries.get(stack.entries()).unwrap_or(&[]);
            entries.iter().map(count).sum::<u64>() << order_of(number)
        });
        stacks.sum::<u64>() + self.odd.pages()
    }
}

const _: () = assert!(size_of::<CpuCache>() <= 16384);
