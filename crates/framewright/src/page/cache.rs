//! The frames that a CPU keeps for itself.
//!
//! For orders 0 to 3 there is, per migrate type, a *word*: the free runs of one 64-frame word of some block's free map, taken over whole.
//! Getting a run is finding a bit; freeing one that came from the word sets it again. Other frees go onto a stack, which movable requests take
//! from first hot: a free does not look up what its block is, and movable memory does no harm anywhere. Order 9 has a stack alone.
//!
//! Everything is relaxed atomics, plain loads and stores on every processor: [`Ownership`] settles who touches them (invariant 16).

use crate::block::MigrateType;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Exclusive, Ownership};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};

/// Orders that have words: 0..=3.
const WORD_ORDERS: usize = 4;
/// Migrate types that are cached: the mergeable ones, which come first.
const TYPES: usize = 3;
/// No frame has this number.
const NOWHERE: u64 = u64::MAX;

/// Runs of one order with a common 64-frame word: the word's first frame, and a bit for the first frame of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Runs {
    pub(crate) base: Pfn,
    pub(crate) runs: u64,
}

/// A stack of words of free runs. Frees that fall into the word on top join it, so that neighbours that are freed one after the other take one
/// entry and go back in one step.
pub(crate) struct Stack {
    len: AtomicU32,
    capacity: u32,
    entries: [Word; Self::LARGEST],
}

impl Stack {
    /// Entries of the stack for single frames.
    const LARGEST: usize = 40;

    fn new(capacity: u32) -> Self {
        Self { len: AtomicU32::new(0), capacity, entries: core::array::from_fn(|_| Word::empty()) }
    }

    /// Entries, each with one run at least.
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    #[inline]
    fn pop(&self) -> Option<Pfn> {
        let len = self.len();
        let top = self.entries.get(len.checked_sub(1)? as usize)?;
        let pfn = top.take()?;
        if top.runs.load(Ordering::Relaxed) == 0 {
            self.len.store(len - 1, Ordering::Relaxed);
        }
        Some(pfn)
    }

    /// Keeps a run: with the top entry, or as a new one.
    #[inline]
    fn push(&self, start: Pfn) -> Put {
        let len = self.len();
        if let Some(top) = len.checked_sub(1).and_then(|top| self.entries.get(top as usize))
            && top.holds(start)
        {
            return top.give(start);
        }
        let runs = Runs { base: Pfn(start.0 & !63), runs: 1 << (start.0 & 63) };
        if self.push_word(runs) { Put::Kept } else { Put::Full }
    }

    /// False when it is full.
    pub(crate) fn push_word(&self, runs: Runs) -> bool {
        let len = self.len();
        match self.entries.get(len as usize) {
            Some(entry) if len < self.capacity => {
                entry.set(runs);
                self.len.store(len + 1, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Moves the oldest `count` entries into `out` and returns how many; those that were freed last stay, as they are still in the caches.
    pub(crate) fn take_oldest(&self, count: u32, out: &mut Batch) -> usize {
        let len = self.len();
        let count = count.min(len);
        for (index, out) in (0..count).zip(out.iter_mut()) {
            *out = self.entries[index as usize].read();
        }
        for index in count..len {
            self.entries[(index - count) as usize].set(self.entries[index as usize].read());
        }
        self.len.store(len - count, Ordering::Relaxed);
        count as usize
    }

    fn runs(&self) -> u64 {
        let held = self.entries.iter().take(self.len() as usize);
        held.map(|entry| u64::from(entry.runs.load(Ordering::Relaxed).count_ones())).sum()
    }
}

/// Room for what [`Stack::take_oldest`] gives.
pub(crate) type Batch = [Runs; Stack::LARGEST];

/// A batch with nothing in it.
pub(crate) const EMPTY_BATCH: Batch = [Runs { base: Pfn(0), runs: 0 }; Stack::LARGEST];

/// [`Runs`] in place.
struct Word {
    base: AtomicU64,
    runs: AtomicU64,
}

impl Word {
    fn empty() -> Self {
        Self { base: AtomicU64::new(NOWHERE), runs: AtomicU64::new(0) }
    }

    #[inline]
    fn take(&self) -> Option<Pfn> {
        let runs = self.runs.load(Ordering::Relaxed);
        if runs == 0 {
            return None;
        }
        self.runs.store(runs & (runs - 1), Ordering::Relaxed);
        Some(Pfn(self.base.load(Ordering::Relaxed) + u64::from(runs.trailing_zeros())))
    }

    #[inline]
    fn holds(&self, start: Pfn) -> bool {
        self.base.load(Ordering::Relaxed) == start.0 & !63
    }

    /// Keeps a run of this word.
    #[inline]
    fn give(&self, start: Pfn) -> Put {
        let (runs, run) = (self.runs.load(Ordering::Relaxed), 1 << (start.0 & 63));
        if runs & run != 0 {
            return Put::Twice;
        }
        self.runs.store(runs | run, Ordering::Relaxed);
        Put::Kept
    }

    fn read(&self) -> Runs {
        Runs { base: Pfn(self.base.load(Ordering::Relaxed)), runs: self.runs.load(Ordering::Relaxed) }
    }

    fn set(&self, runs: Runs) {
        self.base.store(runs.base.0, Ordering::Relaxed);
        self.runs.store(runs.runs, Ordering::Relaxed);
    }
}

/// What freeing into a cache came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// It is kept.
    Kept,
    /// It is free already.
    Twice,
    /// The stack is full.
    Full,
}

/// See the module documentation.
#[repr(align(128))]
pub(crate) struct CpuCache {
    pub(crate) ownership: Ownership,
    /// Stands for all words below.
    contents: Exclusive,
    words: [[Word; TYPES]; WORD_ORDERS],
    stacks: [Stack; WORD_ORDERS],
    blocks: Stack,
    /// The frames that are kept: those of the CPU's nearest zone.
    home: PfnRange,
    /// Which of the manager's zones that is.
    pub(crate) zone: usize,
}

/// Whether runs of `order` of this type are cached.
pub(crate) fn is_cached(order: Order, migrate_type: MigrateType) -> bool {
    ((order.get() as usize) < WORD_ORDERS || order.get() == BLOCK_ORDER) && (migrate_type as usize) < TYPES
}

impl CpuCache {
    pub(crate) fn new(zone: usize, home: PfnRange) -> Self {
        Self {
            ownership: Ownership::new(),
            contents: Exclusive::new(),
            words: core::array::from_fn(|_| core::array::from_fn(|_| Word::empty())),
            stacks: [Stack::new(40), Stack::new(32), Stack::new(32), Stack::new(32)],
            blocks: Stack::new(16),
            home,
            zone,
        }
    }

    /// The stack for `order`, which must be cached.
    pub(crate) fn stack(&self, order: Order) -> &Stack {
        self.contents.touch();
        self.peek(order)
    }

    fn peek(&self, order: Order) -> &Stack {
        self.stacks.get(usize::from(order.get())).unwrap_or(&self.blocks)
    }

    /// A run of `order`, if there is one.
    #[inline]
    pub(crate) fn get(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        self.contents.touch();
        if let Some(words) = self.words.get(usize::from(order.get()))
            && let Some(pfn) = words.get(migrate_type as usize).and_then(Word::take)
        {
            return Some(pfn);
        }
        if migrate_type == MigrateType::Movable { self.stack(order).pop() } else { None }
    }

    /// Takes over a word of runs; the one before must be used up.
    pub(crate) fn set_word(&self, order: Order, migrate_type: MigrateType, runs: Runs) {
        self.contents.touch();
        if let Some(word) = self.words.get(usize::from(order.get())).and_then(|words| words.get(migrate_type as usize))
        {
            word.set(runs);
        }
    }

    /// Whether frames of `range` are kept here.
    #[inline]
    pub(crate) fn keeps(&self, start: Pfn, order: Order) -> bool {
        self.home.start <= start && start.0 + order.pages() <= self.home.end.0
    }

    /// Keeps a run, if there is room.
    #[inline]
    pub(crate) fn put(&self, start: Pfn, order: Order) -> Put {
        self.contents.touch();
        if let Some(words) = self.words.get(usize::from(order.get()))
            && let Some(word) = words.iter().find(|word| word.holds(start))
        {
            return word.give(start);
        }
        self.stack(order).push(start)
    }

    /// Empties a word; returns its runs.
    pub(crate) fn take_word(&self, order: usize, migrate_type: usize) -> Runs {
        self.contents.touch();
        let word = &self.words[order][migrate_type];
        let taken = word.read();
        word.set(Runs { base: Pfn(NOWHERE), runs: 0 });
        taken
    }

    /// Every word, as order and type.
    pub(crate) fn words() -> impl Iterator<Item = (Order, usize, usize)> {
        let orders = (0..WORD_ORDERS).zip((0..).map_while(Order::new));
        orders.flat_map(|(index, order)| (0..TYPES).map(move |migrate_type| (order, index, migrate_type)))
    }

    /// Orders that have a stack.
    pub(crate) fn orders() -> impl Iterator<Item = Order> {
        [0, 1, 2, 3, BLOCK_ORDER].into_iter().filter_map(Order::new)
    }

    /// Pages in it. Exact when its CPU is not inside.
    pub(crate) fn pages(&self) -> u64 {
        let words = self.words.iter().enumerate().map(|(order, words)| {
            let runs: u32 = words.iter().map(|word| word.runs.load(Ordering::Relaxed).count_ones()).sum();
            u64::from(runs) << order
        });
        words.sum::<u64>() + Self::orders().map(|order| self.peek(order).runs() * order.pages()).sum::<u64>()
    }
}

// A model checker's atomics are larger.
const _: () = assert!(cfg!(any(loom, shuttle)) || size_of::<CpuCache>() <= 4096);
