//! The frames that a CPU keeps for itself.
//!
//! For each order up to 9 and migrate type there is a stack. Orders 0 to 3 come out of the zone by
//! the *word*: the free runs of one 64-frame word of some block's free map, taken over whole, so
//! that their stacks have a word in each entry; from order 4 on an entry is a run. Getting a run is
//! finding a bit of the entry on top; freeing one of the same word sets it again, and any other
//! begins an entry.
//!
//! ```text
//!                refill                    get
//!     zone ---------------> For(type) -------------> caller
//!       ^  <--------------      ^ block crowded, or      |
//!       |    oldest half        | not movable            | free looks at the block
//!       +------- Back <---------+------------------------+
//!                       block has much free
//! ```
//!
//! What comes out of the zone comes from its fullest blocks, which keeps others whole, while frames
//! that go from hand to hand pin every block. So of movable frames only those of crowded blocks,
//! which will hardly become whole soon, are handed out again ([`Lot`]); all others gather until
//! they go back together, and are used only when the zone has nothing, or nothing but reported
//! memory. For what is no power of two there are a few runs of any size ([`OddRuns`]). The stack of
//! movable whole blocks is larger while they come or go in bulk ([`CpuCache::adapt`]).
//!
//! Everything is relaxed atomics, plain loads and stores on every processor: [`Ownership`] settles
//! who touches them (invariant 16). That is also what orders them: Relaxed here, Acquire and
//! Release there. A sum over another CPU's cache is a guess.

use super::limits::{Limits, MOST, STACKS, TINY, WORD_ORDERS, order_of};
use super::near::{self, Bounds, Kept, LOTS, Lot, Near};
use super::odd::OddRuns;
use super::words::{Put, Runs, Stack, Word};
use crate::block::MigrateType;
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Exclusive, Ownership};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};
use core::mem::MaybeUninit;

/// Most words that a refill brings besides the first, by order.
const MOST_MORE: [u32; WORD_ORDERS] = if TINY { [1; WORD_ORDERS] } else { [16, 8, 8, 16] };
/// Of all stacks.
const ENTRIES: usize = {
    let (mut total, mut index) = (0, 0);
    while index < STACKS {
        total += MOST[index / LOTS][index % LOTS];
        index += 1;
    }
    total
};

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
    pub(super) contents: Exclusive,
    /// Frames that are not of its own zones have come in since it was empty (`away`).
    pub(super) strays: AtomicBool,
    /// Words that a refill takes: more each time, one after a drain.
    batch: AtomicU32,
    /// The [`Flow`] of whole blocks that was last; zero after a drain.
    flow: AtomicU32,
    /// Movable whole blocks that it keeps usually, and while they come or go in bulk.
    blocks: [AtomicU32; 2],
    /// Which of the manager's zones is asked first.
    zone: AtomicUsize,
    /// The frames that are kept: that zone's, and those of its node's other one, if there is one.
    kept: [Kept; 2],
    /// While that node has no memory left, frames of another (`away`).
    pub(super) away: Bounds,
    stacks: [Stack; STACKS],
    odd: OddRuns,
    /// Of `stacks`. None is empty that is in use.
    entries: [Word; ENTRIES],
    /// What the zones manage that it keeps frames of, of which each CPU has its share.
    home_pages: AtomicU64,
    /// So many CPUs keep frames of its first zone's node, this one included.
    sharers: AtomicU32,
    /// Its CPU is not there. Changed by one at a time; a guess to others.
    offline: AtomicBool,
}

impl CpuCache {
    /// A cache that keeps nothing, in place, until it is [settled](Self::settle) and
    /// [resized](Self::resize). Its entries, which are most of it, stay as they are: none is read
    /// that was not written before.
    ///
    /// # Safety
    /// The memory is of a kind that has some content wherever nobody wrote, as a machine's has
    /// (invariant 4).
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
                kept: const { [Kept::nothing(), Kept::nothing()] },
                away: Bounds::none(),
                stacks: Stack::all(MOST.as_flattened(), &Limits::NONE.entries),
                odd: OddRuns::new(0),
            },
            // SAFETY: words of two integers, which any content is a value of (invariant 4).
            { entries: |place: &mut MaybeUninit<[Word; ENTRIES]>| unsafe {
                place.assume_init_mut()
            } },
        )
    }

    /// Which of the manager's zones is asked first.
    #[inline]
    pub(crate) fn zone(&self) -> usize {
        self.zone.load(Ordering::Relaxed)
    }

    /// What the zones manage that it keeps frames of.
    pub(crate) fn home_pages(&self) -> u64 {
        self.home_pages.load(Ordering::Relaxed)
    }

    /// Keeps frames of other zones from now on: `zone` is asked first, and
    /// `home_pages` are all that may be kept of. For whoever has the
    /// cache, while nothing is in it.
    pub(crate) fn settle(&self, zone: usize, near: &[Near<'_>; 2], home_pages: u64) {
        self.contents.touch();
        self.zone.store(zone, Ordering::Relaxed);
        self.home_pages.store(home_pages, Ordering::Relaxed);
        self.kept.iter().zip(near).for_each(|(kept, near)| kept.replace(near));
        self.come_home();
    }

    /// Whether its CPU is not there.
    pub(crate) fn is_offline(&self) -> bool {
        self.offline.load(Ordering::Relaxed)
    }

    /// Says that its CPU has gone or come.
    pub(crate) fn set_offline(&self, offline: bool) {
        self.offline.store(offline, Ordering::Relaxed);
    }

    /// How many CPUs keep frames of its first zone's node.
    pub(crate) fn sharers(&self) -> u32 {
        self.sharers.load(Ordering::Relaxed)
    }

    /// Keeps the share of one of so many CPUs from now on, or nothing while its CPU is not there.
    /// For whoever has the cache, while nothing is in it.
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

    /// Which of the stacks has runs of `order` in `lot`; past the last for orders above 9.
    #[inline]
    const fn number(order: Order, lot: Lot) -> usize {
        order.get() as usize * LOTS + lot.index()
    }

    #[inline]
    fn stack(&self, order: Order, lot: Lot) -> Option<&Stack> {
        self.stacks.get(Self::number(order, lot))
    }

    #[inline]
    fn top(&self, stack: &Stack) -> Option<&Word> {
        self.entries.get(stack.top()?.1)
    }

    /// Movable whole blocks.
    fn blocks_stack(&self) -> Option<&Stack> {
        self.stack(Order::BLOCK, Lot::MOVABLE)
    }

    /// Whether runs of `order` of this type are cached.
    pub(crate) fn caches(&self, order: Order, migrate_type: MigrateType) -> bool {
        Lot::of_type(migrate_type)
            .and_then(|lot| self.stack(order, lot))
            .is_some_and(|stack| stack.limit() != 0)
    }

    /// A run of `order`, if one is available.
    #[inline]
    pub(crate) fn get(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        let stack = self.stack(order, Lot::of_type(migrate_type)?)?;
        let (len, top) = stack.top()?;
        let (start, is_last) = self.entries.get(top)?.take();
        stack.set_len(len - u32::from(is_last));
        Some(start)
    }

    /// [`get`](Self::get) where that found nothing, out of what lies aside.
    pub(crate) fn get_aside(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        self.stack(order, Lot::of_type(migrate_type)?)?.take_back();
        self.get(order, migrate_type)
    }

    /// Where a run belongs that is freed: nowhere when no cache keeps it, or the directory must be
    /// asked for its block.
    #[inline(always)]
    pub(crate) fn lot(&self, start: Pfn, order: Order) -> Option<Lot> {
        self.contents.touch();
        if !start.is_aligned(order) || order > Order::BLOCK {
            return None;
        }
        // An aligned run lies in one block.
        Lot::of(near::state(&self.kept, start, order)?, order)
    }

    /// Whether all frames of a range are kept here when they are freed.
    #[inline]
    pub(crate) fn covers(&self, range: PfnRange) -> bool {
        self.contents.touch();
        self.is_own(range) || self.away.covers(range)
    }

    /// Whether all frames of a range are of its own zones.
    #[inline]
    pub(super) fn is_own(&self, range: PfnRange) -> bool {
        let [home, other] = &self.kept;
        home.covers(range) || other.covers(range)
    }

    /// Whether a frame is known to be of one of its zones. Not all that are known to the directory
    /// are.
    #[inline]
    pub(crate) fn is_near(&self, pfn: Pfn) -> bool {
        self.contents.touch();
        near::is_seen(&self.kept, pfn)
    }

    /// The first frame of `range` that is in the cache, if one is. Exact for whoever has the cache;
    /// from elsewhere it may miss what comes, and find what goes, at that moment.
    pub(crate) fn find(&self, range: PfnRange) -> Option<Pfn> {
        let (first, end) = (range.start.0, range.end.0);
        if first >= end {
            return None;
        }
        let meets = |start: u64, pages: u64| start < end && first < start + pages;
        for (number, stack) in self.stacks.iter().enumerate() {
            let order = order_of(number);
            let word = if order < WORD_ORDERS { 64 } else { 1 << order };
            // Builds that look do so at each free: an entry costs one comparison. No frame has a
            // number near the largest.
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

    /// Changes which frames are kept: what is left of those of each zone of its own node. For
    /// whoever has the cache.
    pub(crate) fn keep_only(&self, left: impl Fn(PfnRange) -> PfnRange) {
        self.contents.touch();
        for kept in &self.kept {
            kept.set(left(kept.range()));
        }
        self.come_home();
    }

    /// Keeps a run of the word that is handed out from next, in few instructions; nothing when it
    /// is of another. Its block need not be looked at: frames of it are here, so it is split, and
    /// nothing keeps it from being used. Where there are [strays](Self::has_strays), which would
    /// be handed out for ever, only if its frames are [kept](Self::covers).
    #[inline(always)]
    pub(crate) fn put_next(&self, start: Pfn, order: Order) -> Option<Put> {
        self.contents.touch();
        if !start.is_aligned(order) {
            return None;
        }
        let top = self.top(self.stack(order, Lot::MOVABLE)?)?;
        top.give_one(start, order)
    }

    /// [`put`](Self::put) where [`put_next`](Self::put_next) has just found that the run is not of
    /// the word that is handed out from next: a movable one begins a word.
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

    /// Keeps a run, if there is room.
    #[inline]
    pub(crate) fn put(&self, start: Pfn, order: Order, lot: Lot) -> Put {
        self.contents.touch();
        let Some(mut stack) = self.stack(order, lot) else { return Put::Full };
        let runs = Runs::one(start, order);
        if lot == Lot::BACK
            && let Some(next) = self.stack(order, Lot::MOVABLE)
            && self.top(next).is_some_and(|top| top.holds(runs))
        {
            // What is handed out next is of this word anyway.
            stack = next;
        }
        if let Some(top) = self.top(stack).filter(|top| top.holds(runs)) {
            return top.give(runs);
        }
        self.begin_word(stack, runs)
    }

    /// [`put`](Self::put) for those who are not in a hurry: in one copy for all of them.
    #[inline(never)]
    pub(crate) fn put_slowly(&self, start: Pfn, order: Order, lot: Lot) -> Put {
        self.put(start, order, lot)
    }

    /// A run of just so many pages, no power of two, if one is here.
    #[inline]
    pub(crate) fn get_odd(&self, pages: u64, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        self.odd.get(pages, migrate_type)
    }

    /// Whether a run is one that [`put_odd`](Self::put_odd) is for.
    #[inline]
    pub(crate) fn is_odd(range: PfnRange) -> bool {
        OddRuns::takes(range)
    }

    /// Keeps a run of a number of pages that is no power of two, if there is room.
    #[inline]
    pub(crate) fn put_odd(&self, range: PfnRange, migrate_type: MigrateType) -> Put {
        self.contents.touch();
        self.odd.put(range, migrate_type)
    }

    /// Whether it may keep such a run of so many pages at all.
    pub(crate) fn may_keep_odd(&self, pages: u64) -> bool {
        pages <= self.odd.limit_pages()
    }

    /// The oldest of these runs, which leaves the cache.
    pub(crate) fn give_up_odd(&self) -> Option<PfnRange> {
        self.contents.touch();
        self.odd.give_up()
    }

    /// How much a refill should take, in words or runs, besides what the caller wants: more each
    /// time it is asked. Room is left for a put after it.
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

    /// Told before movable whole blocks come or go, many at a time. Twice in a row the same way
    /// means that memory is filled or emptied in bulk: from then on the cache keeps more of them,
    /// so that the zone's lock is taken less often. That ends with the next drain, or when it may
    /// not be any more. True when there is more room now.
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

    /// How many single pages a refill brings at most, and how many pages fit in all.
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

    /// Takes over a word of runs of `order`, which may have none left. False when there is no room.
    pub(crate) fn take_over(&self, order: Order, migrate_type: MigrateType, runs: Runs) -> bool {
        self.contents.touch();
        if runs.runs == 0 {
            return true;
        }
        let stack = Lot::of_type(migrate_type).and_then(|lot| self.stack(order, lot));
        let entry = stack.and_then(Stack::grow).and_then(|entry| self.entries.get(entry));
        entry.map(|entry| entry.set(runs)).is_some()
    }

    /// Whether [`reuse`](Self::reuse) would find something.
    pub(crate) fn has_freed(&self, order: Order, migrate_type: MigrateType) -> bool {
        migrate_type == MigrateType::Movable && self.waiting(order, Lot::BACK) != 0
    }

    /// Turns to what was to go back, when the zone has nothing, or nothing but reported memory.
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

    /// Entries of a stack.
    pub(crate) fn waiting(&self, order: Order, lot: Lot) -> usize {
        self.contents.touch();
        self.stack(order, lot).map_or(0, |stack| stack.len() as usize)
    }

    /// The entries of a stack, oldest first, but for `skip`, into `out`; returns how many.
    pub(crate) fn copy_oldest(
        &self,
        order: Order,
        lot: Lot,
        skip: usize,
        out: &mut [Runs],
    ) -> usize {
        self.contents.touch();
        let Some(stack) = self.stack(order, lot) else { return 0 };
        let entries = self.entries.get(stack.entries()).unwrap_or(&[]);
        let entries = entries.iter().skip(skip);
        out.iter_mut().zip(entries).map(|(out, entry)| *out = entry.read()).count()
    }

    /// Forgets the oldest `count` entries of a stack.
    pub(crate) fn forget_oldest(&self, order: Order, lot: Lot, count: usize) {
        self.contents.touch();
        let Some(stack) = self.stack(order, lot) else { return };
        let all = stack.entries();
        let count = count.min(all.len());
        for from in all.skip(count) {
            self.entries[from - count].set(self.entries[from].read());
        }
        stack.forget(u32::try_from(count).unwrap_or(0));
    }

    /// The next stack of which something lies aside since [`set_aside`](Self::set_aside): its order
    /// and lot, and how many entries. All come in turn; nothing after the last.
    pub(crate) fn next_aside(&self, turn: &mut usize) -> Option<(Order, Lot, usize)> {
        self.next_stack(turn, Stack::aside)
    }

    /// [`next_aside`](Self::next_aside) of the stacks that have any entries, from an order's
    /// [first](Self::first_turn) on.
    pub(crate) fn next_waiting(&self, turn: &mut usize) -> Option<(Order, Lot, usize)> {
        self.next_stack(turn, Stack::len)
    }

    /// Whose turn it is when an order's stacks begin.
    pub(crate) const fn first_turn(order: Order) -> usize {
        order.get() as usize * LOTS
    }

    #[inline(never)]
    fn next_stack(
        &self,
        turn: &mut usize,
        entries: fn(&Stack) -> u32,
    ) -> Option<(Order, Lot, usize)> {
        self.contents.touch();
        loop {
            let number = *turn;
            let some = entries(self.stacks.get(number)?);
            *turn += 1;
            if some != 0 {
                let order = u8::try_from(order_of(number)).ok().and_then(Order::new)?;
                let lot = Lot::all().nth(number % LOTS)?;
                return Some((order, lot, some as usize));
            }
        }
    }

    /// Lays half of what each stack has aside, where nothing does so yet: what is still there when
    /// this is called again was not wanted meanwhile.
    pub(crate) fn set_aside(&self) {
        self.contents.touch();
        self.stacks.iter().filter(|stack| stack.aside() == 0).for_each(Stack::set_aside);
    }

    /// The oldest run that is no power of two, if it was here already when this was last asked.
    pub(crate) fn give_up_old_odd(&self) -> Option<PfnRange> {
        self.contents.touch();
        self.odd.give_up_old()
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.stacks.iter().all(|stack| stack.len() == 0) && self.odd.pages() == 0
    }

    /// Told before it is emptied: the next refill begins small again, and at its own node.
    pub(crate) fn begin_small(&self) {
        self.come_home();
        self.adapt(Flow::In, false);
        self.flow.store(0, Ordering::Relaxed);
        self.batch.store(1, Ordering::Relaxed);
    }

    /// Pages in it. Exact when its CPU is not inside.
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
