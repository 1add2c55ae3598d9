//! The frames that a CPU keeps for itself.
//!
//! For orders 0 to 3 there is, per migrate type, a *word*: the free runs of one 64-frame word of
//! some block's free map, taken over whole. Getting a run is finding a bit; freeing one that came
//! from the word sets it again. When it is used up, movable requests have further words *ready*.
//! Other frees gather in *freed* until they go back together. What comes out of the zone comes from
//! its fullest blocks, which keeps others whole, while frames that go from hand to hand pin every
//! block. So of what was freed only frames of crowded blocks, which will hardly become whole soon,
//! are handed out again ([`CpuCache::reuse_where`]); all others only when the zone has nothing, or
//! nothing but reported memory.
//!
//! For orders 4 to 9 there is a stack of runs, and for what is no power of two there are a few runs
//! of any size ([`OddRuns`]). That of order 9, whole blocks, is larger while they
//! come or go in bulk ([`CpuCache::adapt`]).
//!
//! Everything is relaxed atomics, plain loads and stores on every processor: [`Ownership`] settles
//! who touches them (invariant 16). That is also what orders them: Relaxed here, Acquire and
//! Release there. A sum over another CPU's cache is a guess.

use super::odd::OddRuns;
use super::words::{NOWHERE, Put, Runs, Stack, Word};
use crate::block::MigrateType;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Exclusive, Ownership};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};

/// Orders that have words: 0..=3.
const WORD_ORDERS: usize = 4;
/// Orders that have a stack of runs: 4..=9.
const STACK_ORDERS: usize = BLOCK_ORDER as usize + 1 - WORD_ORDERS;
/// Migrate types that are cached: the mergeable ones, which come first.
const TYPES: usize = 3;
/// The model checkers have tiny caches: what a full one does is reached in few steps, and their
/// machines are so small that a share is all of the zone's part.
const TINY: bool = cfg!(any(loom, shuttle));
/// A class of a cache (an order's words, an order's stack) keeps at most this part of what its
/// CPU's share of the zones is, or what two words hold. All of them together keep at most about a
/// quarter (Linux: an eighth, `zone_batchsize` and `zone_highsize` in `mm/page_alloc.c`).
const SHARE: u64 = if TINY { 1 } else { 64 };
/// Most words of frees, by order. Of order 0 so many that those which may be used again are still
/// there when they are wanted.
const FREED: [usize; WORD_ORDERS] = if TINY { [2; WORD_ORDERS] } else { [112, 28, 28, 28] };
/// Most words that are ready, by order.
const READY: [usize; WORD_ORDERS] = if TINY { [1; WORD_ORDERS] } else { [16, 8, 8, 16] };
/// Most runs in a stack, by order from 4.
const STACK: [usize; STACK_ORDERS] =
    if TINY { [4; STACK_ORDERS] } else { [16, 16, 16, 16, MOST_RUNS, MOST_BLOCKS_IN_BULK] };
/// Most whole blocks, as long as they neither come nor go in bulk.
const MOST_BLOCKS: usize = 64;
/// Most whole blocks when they do.
const MOST_BLOCKS_IN_BULK: usize = 96;
/// The most runs that any stack has of less than whole blocks.
pub(crate) const MOST_RUNS: usize = 32;
/// The most words of frees that go back together.
pub(crate) const MOST_FREED: usize = 56;
/// How many of the words freed last are looked at for frames that may be used again.
const LOOKED_AT: usize = 16;
/// The most blocks that go back together: three quarters of a stack, so that some stay for
/// requests.
pub(crate) const MOST_RETURNED: usize = MOST_BLOCKS_IN_BULK / 4 * 3;
const _: () = assert!(MOST_FREED <= MOST_RETURNED && MOST_RUNS <= MOST_RETURNED);

const fn sum(counts: &[usize]) -> usize {
    let (mut total, mut index) = (0, 0);
    while index < counts.len() {
        total += counts[index];
        index += 1;
    }
    total
}

/// Which way whole blocks go, many at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Into an empty cache.
    In = 1,
    /// Out of a full one.
    Out = 2,
}

/// See the module documentation. What every get and put needs comes first.
#[repr(C, align(128))]
pub(crate) struct CpuCache {
    pub(crate) ownership: Ownership,
    /// Stands for all words below.
    contents: Exclusive,
    /// Words that a refill takes: more each time, one after a drain.
    batch: AtomicU32,
    /// The [`Flow`] of whole blocks that was last; zero after a drain.
    flow: AtomicU32,
    /// Whole blocks that it keeps usually, and while they come or go in bulk.
    blocks: [u32; 2],
    /// Which of the manager's zones is asked first.
    pub(crate) zone: usize,
    /// The frames that are kept while nothing is isolated: that zone's, and those of others of its
    /// node.
    pub(crate) near: [PfnRange; 2],
    /// The frames that are kept, from the first to one past the last: those near, or a part of
    /// them.
    pfn_ranges: [[AtomicU64; 2]; 2],
    words: [Word; WORD_ORDERS * TYPES],
    freed: [Stack; WORD_ORDERS],
    ready: [Stack; WORD_ORDERS],
    stacks: [Stack; STACK_ORDERS],
    odd: OddRuns,
    /// Of `freed` and `ready`.
    entries: [Word; sum(&FREED) + sum(&READY)],
    /// Of `stacks`.
    starts: [AtomicU64; sum(&STACK)],
}

/// A run of order 0 to 3, as an index into words and their stacks.
#[inline]
const fn word_order(order: Order) -> Option<usize> {
    let order = order.get() as usize;
    if order < WORD_ORDERS { Some(order) } else { None }
}

impl CpuCache {
    /// A cache for frames of `near`, of which `share_pages` are this CPU's share.
    pub(crate) fn new(zone: usize, near: [PfnRange; 2], share_pages: u64) -> Self {
        // Even the smallest zone has a few pages.
        let share = (share_pages / SHARE).max(8);
        // Twice as much of whole blocks, which come and go under the zone's lock like single pages.
        // In bulk once more: half of what Linux allows in all.
        let blocks = |times: u64, most: usize| {
            let blocks = (share >> BLOCK_ORDER) * times;
            u32::try_from(blocks.min(STACK[STACK_ORDERS - 1].min(most) as u64)).unwrap_or(0)
        };
        let usual = blocks(2, MOST_BLOCKS);
        Self {
            ownership: Ownership::new(),
            contents: Exclusive::new(),
            batch: AtomicU32::new(1),
            flow: AtomicU32::new(0),
            blocks: [usual, blocks(4, MOST_BLOCKS_IN_BULK)],
            zone,
            near,
            pfn_ranges: near.map(|range| [range.start.0, range.end.0].map(AtomicU64::new)),
            words: core::array::from_fn(|_| Word::empty()),
            freed: Stack::all(FREED, 0, |_| (share / 64).max(2)),
            ready: Stack::all(READY, sum(&FREED), |_| share / 64),
            stacks: Stack::all(STACK, 0, |stack| {
                if stack + 1 == STACK_ORDERS {
                    u64::from(usual)
                } else {
                    share >> (stack + WORD_ORDERS)
                }
            }),
            odd: OddRuns::new(share),
            entries: core::array::from_fn(|_| Word::empty()),
            starts: core::array::from_fn(|_| AtomicU64::new(NOWHERE)),
        }
    }

    #[inline]
    fn stack(&self, order: Order) -> Option<&Stack> {
        self.stacks.get(usize::from(order.get()).wrapping_sub(WORD_ORDERS))
    }

    /// Whether runs of `order` of this type are cached.
    pub(crate) fn caches(&self, order: Order, migrate_type: MigrateType) -> bool {
        match word_order(order) {
            Some(_) => (migrate_type as usize) < TYPES,
            None => {
                migrate_type == MigrateType::Movable
                    && self.stack(order).is_some_and(|stack| stack.limit() != 0)
            }
        }
    }

    #[inline]
    fn word(&self, order: usize, migrate_type: MigrateType) -> Option<&Word> {
        let migrate_type = migrate_type as usize;
        if migrate_type < TYPES { self.words.get(order * TYPES + migrate_type) } else { None }
    }

    /// A run of `order`, if one is available.
    #[inline]
    pub(crate) fn get(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        if let Some(index) = word_order(order) {
            let taken = self.word(index, migrate_type)?.take();
            return taken.or_else(|| self.get_ready(index, migrate_type));
        }
        if migrate_type != MigrateType::Movable {
            return None;
        }
        let stack = self.stack(order)?;
        let start = self.starts.get(stack.top()?)?.load(Ordering::Relaxed);
        stack.shrink();
        Some(Pfn(start))
    }

    /// Whether frames of this run are kept here, if it is aligned: then its last frame has a
    /// number, whatever the first is.
    #[inline]
    pub(crate) fn covers(&self, start: Pfn, order: Order) -> bool {
        self.contents.touch();
        let last = start.0.wrapping_add(order.pages() - 1);
        let is_in = |[first, end]: &[AtomicU64; 2]| {
            first.load(Ordering::Relaxed) <= start.0 && last < end.load(Ordering::Relaxed)
        };
        let [home, other] = &self.pfn_ranges;
        is_in(home) || is_in(other)
    }

    /// Whether all frames of a range are kept here when they are freed.
    pub(crate) fn keeps(&self, range: PfnRange) -> bool {
        self.contents.touch();
        self.pfn_ranges.iter().any(|[first, end]| {
            first.load(Ordering::Relaxed) <= range.start.0
                && range.end.0 <= end.load(Ordering::Relaxed)
        })
    }

    /// The first frame of `range` that is in the cache, if one is. Exact for whoever has the cache;
    /// from elsewhere it may miss what comes, and find what goes, at that moment.
    pub(crate) fn find(&self, range: PfnRange) -> Option<Pfn> {
        let (first, end) = (range.start.0, range.end.0);
        // Few instructions for each entry, as builds that look do so at each free. No frame has a
        // number near the largest.
        let meets = |start: u64, pages: u64| start < end && first < start + pages;
        for order in 0..WORD_ORDERS {
            let words = &self.words[order * TYPES..(order + 1) * TYPES];
            let freed = self.entries.get(self.freed[order].entries()).unwrap_or(&[]);
            let ready = self.entries.get(self.ready[order].entries()).unwrap_or(&[]);
            for entries in [words, freed, ready] {
                // Read once: its owner may empty it meanwhile.
                for runs in entries.iter().map(Word::read).filter(|runs| meets(runs.base.0, 64)) {
                    if let Some(start) = runs.starts().find(|start| meets(start.0, 1 << order)) {
                        return Some(start.max(range.start));
                    }
                }
            }
        }
        for (stack, order) in self.stacks.iter().zip(WORD_ORDERS..) {
            for start in self.starts.get(stack.entries()).unwrap_or(&[]) {
                let start = start.load(Ordering::Relaxed);
                if meets(start, 1 << order) {
                    return Some(Pfn(start.max(first)));
                }
            }
        }
        self.odd.find(range)
    }

    /// Changes which frames are kept. For whoever has the cache.
    pub(crate) fn set_pfn_ranges(&self, pfn_ranges: [PfnRange; 2]) {
        self.contents.touch();
        for (kept, range) in self.pfn_ranges.iter().zip(pfn_ranges) {
            kept[0].store(range.start.0, Ordering::Relaxed);
            kept[1].store(range.end.0, Ordering::Relaxed);
        }
    }

    /// Keeps a run, if there is room.
    #[inline]
    pub(crate) fn put(&self, start: Pfn, order: Order) -> Put {
        self.contents.touch();
        let Some(order) = word_order(order) else { return self.put_stacked(start, order) };
        if let Some(words) = self.words.get(order * TYPES..(order + 1) * TYPES)
            && let Some(word) = words.iter().find(|word| word.holds(start))
        {
            return word.give(start);
        }
        let freed = &self.freed[order];
        if let Some(top) = freed.top().and_then(|top| self.entries.get(top))
            && top.holds(start)
        {
            return top.give(start);
        }
        let Some(entry) = freed.grow().and_then(|entry| self.entries.get(entry)) else {
            return Put::Full;
        };
        entry.set(Runs::one(start));
        Put::Cached
    }

    #[inline]
    fn put_stacked(&self, start: Pfn, order: Order) -> Put {
        let Some(stack) = self.stack(order) else { return Put::Full };
        if let Some(top) = stack.top().and_then(|top| self.starts.get(top))
            && top.load(Ordering::Relaxed) == start.0
        {
            return Put::DoubleFree;
        }
        let Some(entry) = stack.grow().and_then(|entry| self.starts.get(entry)) else {
            return Put::Full;
        };
        entry.store(start.0, Ordering::Relaxed);
        Put::Cached
    }

    /// A run of just so many pages, no power of two, if one is here.
    #[inline]
    pub(crate) fn get_odd(&self, pages: u64, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        self.odd.get(pages, migrate_type)
    }

    /// Whether a run is one that [`put_odd`](Self::put_odd) is for.
    pub(crate) fn is_odd(range: PfnRange) -> bool {
        OddRuns::takes(range)
    }

    /// Keeps a run of a number of pages that is no power of two, if there is room.
    pub(crate) fn put_odd(&self, range: PfnRange, migrate_type: MigrateType) -> Put {
        self.contents.touch();
        self.odd.put(range, migrate_type)
    }

    /// The oldest of these runs, which leaves the cache.
    pub(crate) fn give_up_odd(&self) -> Option<PfnRange> {
        self.contents.touch();
        self.odd.give_up()
    }

    /// How much a refill should take, in words or runs, besides what the caller wants: more each
    /// time it is asked.
    pub(crate) fn batch(&self, order: Order, migrate_type: MigrateType) -> usize {
        let Some(index) = word_order(order) else {
            // Half a stack, so that a put after it finds room.
            return self.stack(order).map_or(0, |stack| stack.limit() as usize / 2);
        };
        if migrate_type != MigrateType::Movable {
            return 0;
        }
        let batch = self.batch.load(Ordering::Relaxed).min(self.ready[index].limit());
        self.batch.store(batch * 2 + 1, Ordering::Relaxed);
        batch as usize
    }

    /// Told before whole blocks come or go, many at a time. Twice in a row the same way means that
    /// memory is filled or emptied in bulk: from then on the cache keeps more of them, so that the
    /// zone's lock is taken less often. That ends with the next drain, or when it may not be any
    /// more. True when there is more room now.
    pub(crate) fn adapt(&self, flow: Flow, may_keep_more: bool) -> bool {
        self.contents.touch();
        let [usual, most] = self.blocks;
        let Some(stack) = self.stack(Order::BLOCK) else { return false };
        let before = stack.limit();
        let again = self.flow.load(Ordering::Relaxed) == flow as u32;
        self.flow.store(flow as u32, Ordering::Relaxed);
        let limit = match (may_keep_more, again) {
            (false, _) => usual,
            (true, true) => most,
            (true, false) => before,
        };
        stack.limit.store(limit, Ordering::Relaxed);
        limit > before
    }

    /// How many single pages a refill brings at most, and how many pages fit in all.
    pub(crate) fn limits(&self) -> (u64, u64) {
        let limits =
            |stacks: &[Stack]| stacks.iter().map(|stack| u64::from(stack.limit())).sum::<u64>();
        let words = self.words.len() as u64 + limits(&self.freed) + limits(&self.ready);
        let stacks = self.stacks.iter().zip(WORD_ORDERS..);
        let most = |(stack, order): (&Stack, usize)| {
            u64::from(if order == usize::from(BLOCK_ORDER) {
                self.blocks[1]
            } else {
                stack.limit()
            }) << order
        };
        let most = 64 * words + stacks.map(most).sum::<u64>() + self.odd.limit_pages();
        (64 * (1 + u64::from(self.ready[0].limit())), most)
    }

    /// Takes over a word of runs of `order`: as the one that gets come from, or when that has runs,
    /// as a further one. False when there is no room.
    pub(crate) fn take_over(&self, order: Order, migrate_type: MigrateType, runs: Runs) -> bool {
        self.contents.touch();
        let Some(index) = word_order(order) else { return false };
        let Some(word) = self.word(index, migrate_type) else { return false };
        if word.runs.load(Ordering::Relaxed) == 0 {
            word.set(runs);
            return true;
        }
        let entry = self.ready[index].grow().and_then(|entry| self.entries.get(entry));
        entry.map(|entry| entry.set(runs)).is_some()
    }

    /// A run of a word that is ready, when the one before is used up.
    #[cold]
    #[inline(never)]
    fn get_ready(&self, order: usize, migrate_type: MigrateType) -> Option<Pfn> {
        let ready =
            migrate_type == MigrateType::Movable && self.turn_to(order, self.ready.get(order)?);
        if ready { self.word(order, migrate_type)?.take() } else { None }
    }

    /// Whether [`reuse`](Self::reuse) would find something.
    pub(crate) fn has_freed(&self, order: Order, migrate_type: MigrateType) -> bool {
        self.contents.touch();
        migrate_type == MigrateType::Movable
            && word_order(order).is_some_and(|index| self.freed[index].len() != 0)
    }

    /// Turns to what was freed here last, when the zone has nothing, or nothing but reported
    /// memory.
    pub(crate) fn reuse(&self, order: Order, migrate_type: MigrateType) -> bool {
        self.contents.touch();
        migrate_type == MigrateType::Movable
            && word_order(order).is_some_and(|index| self.turn_to(index, &self.freed[index]))
    }

    /// Makes ready what is worth handing out again: of the words freed here last those whose frames
    /// lie where `pays` says so. False when there is none.
    pub(crate) fn reuse_where(
        &self,
        order: Order,
        migrate_type: MigrateType,
        mut pays: impl FnMut(Pfn) -> bool,
    ) -> bool {
        self.contents.touch();
        let Some(index) = word_order(order).filter(|_| migrate_type == MigrateType::Movable) else {
            return false;
        };
        let freed = &self.freed[index];
        let entries = freed.entries();
        let first = entries.end.saturating_sub(LOOKED_AT).max(entries.start);
        let mut kept = first;
        for from in first..entries.end {
            let runs = self.entries[from].read();
            if !pays(runs.base) || !self.take_over(order, migrate_type, runs) {
                self.entries[kept].set(runs);
                kept += 1;
            }
        }
        freed.set_len(kept - entries.start);
        kept != entries.end
    }

    fn turn_to(&self, order: usize, place: &Stack) -> bool {
        let next = place.top().and_then(|top| self.entries.get(top)).map(Word::read);
        let word = self.word(order, MigrateType::Movable);
        let (Some(next), Some(word)) = (next, word) else { return false };
        place.shrink();
        word.set(next);
        true
    }

    /// Entries that wait to go back.
    pub(crate) fn waiting(&self, order: Order) -> usize {
        self.contents.touch();
        let place = match word_order(order) {
            Some(index) => Some(&self.freed[index]),
            None => self.stack(order),
        };
        place.map_or(0, |place| place.len() as usize)
    }

    /// The entries that wait to go back, oldest first, into `out`; returns how many.
    pub(crate) fn copy_waiting(&self, order: Order, out: &mut [Runs]) -> usize {
        self.contents.touch();
        match word_order(order) {
            Some(index) => copy(&self.freed[index], &self.entries, out, Word::read),
            None => {
                let Some(stack) = self.stack(order) else { return 0 };
                copy(stack, &self.starts, out, |start| Runs {
                    base: Pfn(start.load(Ordering::Relaxed)),
                    runs: 1,
                })
            }
        }
    }

    /// Forgets the oldest `count` of what waits to go back.
    pub(crate) fn forget_oldest(&self, order: Order, count: usize) {
        self.contents.touch();
        let left = |stack: &Stack| {
            let entries = stack.entries();
            stack.set_len(entries.len().saturating_sub(count));
            entries.skip(count)
        };
        match word_order(order) {
            Some(index) => {
                for from in left(&self.freed[index]) {
                    self.entries[from - count].set(self.entries[from].read());
                }
            }
            None => {
                for from in self.stack(order).map_or(0..0, |stack| stack.entries()).skip(count) {
                    self.starts[from - count]
                        .store(self.starts[from].load(Ordering::Relaxed), Ordering::Relaxed);
                }
                let _ = self.stack(order).map(left);
            }
        }
    }

    /// Takes a word out of the cache, of those that gets come from; nothing when all are used up.
    /// The next refill begins small again.
    pub(crate) fn give_up_word(&self) -> Option<(Order, Runs)> {
        self.adapt(Flow::In, false);
        self.flow.store(0, Ordering::Relaxed);
        self.batch.store(1, Ordering::Relaxed);
        let orders = || (0..WORD_ORDERS).zip((0..).map_while(Order::new));
        for (index, order) in orders() {
            for word in &self.words[index * TYPES..(index + 1) * TYPES] {
                let runs = word.read();
                word.set(Runs::NONE);
                if runs.runs != 0 {
                    return Some((order, runs));
                }
            }
            let ready = &self.ready[index];
            if let Some(word) = ready.top().and_then(|top| self.entries.get(top)) {
                ready.shrink();
                return Some((order, word.read()));
            }
        }
        None
    }

    /// Orders that are cached.
    pub(crate) fn orders() -> impl Iterator<Item = Order> {
        (0..=BLOCK_ORDER).filter_map(Order::new)
    }

    /// Pages in it. Exact when its CPU is not inside.
    pub(crate) fn pages(&self) -> u64 {
        let runs = |word: &Word| u64::from(word.runs.load(Ordering::Relaxed).count_ones());
        let mut pages = 0;
        for order in 0..WORD_ORDERS {
            let words = &self.words[order * TYPES..(order + 1) * TYPES];
            let stacks = [&self.freed[order], &self.ready[order]];
            let stacked = stacks.into_iter().flat_map(|place| &self.entries[place.entries()]);
            pages += words.iter().chain(stacked).map(runs).sum::<u64>() << order;
        }
        let stacks = self.stacks.iter().zip(WORD_ORDERS..);
        pages
            + stacks.map(|(stack, order)| u64::from(stack.len()) << order).sum::<u64>()
            + self.odd.pages()
    }
}

fn copy<T>(place: &Stack, entries: &[T], out: &mut [Runs], read: impl Fn(&T) -> Runs) -> usize {
    let entries = entries.get(place.entries()).unwrap_or(&[]);
    out.iter_mut().zip(entries).map(|(out, entry)| *out = read(entry)).count()
}

const _: () = assert!(size_of::<CpuCache>() <= 6144);
