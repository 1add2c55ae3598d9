//! The frames that a CPU keeps for itself.
//!
//! For orders 0 to 3 there is, per migrate type, a *word*: the free runs of one 64-frame word of some block's free map, taken over whole.
//! Getting a run is finding a bit; freeing one that came from the word sets it again. Other frees go onto a stack, which movable requests take
//! from first hot: a free does not look up what its block is, and movable memory does no harm anywhere. Order 9 has a stack alone.
//!
//! Everything is relaxed atomics, plain loads and stores on every processor: [`Ownership`] settles who touches them (invariant 16).

use crate::block::MigrateType;
use crate::sync::Ownership;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};

/// Orders that have words: 0..=3.
const WORD_ORDERS: usize = 4;
/// Migrate types that are cached: the mergeable ones, which come first.
const TYPES: usize = 3;
/// No frame has this number.
const NOWHERE: u64 = u64::MAX;

/// A stack of frames.
pub(crate) struct Stack {
    len: AtomicU32,
    capacity: u32,
    entries: [AtomicU64; Self::LARGEST],
}

impl Stack {
    /// Entries of the stack for single frames.
    const LARGEST: usize = 80;

    fn new(capacity: u32) -> Self {
        Self { len: AtomicU32::new(0), capacity, entries: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    #[inline]
    fn pop(&self) -> Option<Pfn> {
        let last = self.len().checked_sub(1)?;
        let entry = self.entries.get(last as usize)?;
        self.len.store(last, Ordering::Relaxed);
        Some(Pfn(entry.load(Ordering::Relaxed)))
    }

    /// False when it is full.
    #[inline]
    pub(crate) fn push(&self, pfn: Pfn) -> bool {
        let len = self.len();
        if len >= self.capacity {
            return false;
        }
        let Some(entry) = self.entries.get(len as usize) else { return false };
        entry.store(pfn.0, Ordering::Relaxed);
        self.len.store(len + 1, Ordering::Relaxed);
        true
    }

    /// Moves the oldest `count` entries into `out` and returns how many; those that were freed last stay, as they are still in the caches.
    pub(crate) fn take_oldest(&self, count: u32, out: &mut [Pfn; Self::LARGEST]) -> usize {
        let len = self.len();
        let count = count.min(len);
        for index in 0..count {
            out[index as usize] = Pfn(self.entries[index as usize].load(Ordering::Relaxed));
        }
        for index in count..len {
            let entry = self.entries[index as usize].load(Ordering::Relaxed);
            self.entries[(index - count) as usize].store(entry, Ordering::Relaxed);
        }
        self.len.store(len - count, Ordering::Relaxed);
        count as usize
    }
}

/// Room for what [`Stack::take_oldest`] gives.
pub(crate) type Batch = [Pfn; Stack::LARGEST];

/// The free runs of one word of a free map.
struct Word {
    base: AtomicU64,
    runs: AtomicU64,
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
        let empty = || Word { base: AtomicU64::new(NOWHERE), runs: AtomicU64::new(0) };
        Self {
            ownership: Ownership::new(),
            words: core::array::from_fn(|_| core::array::from_fn(|_| empty())),
            stacks: [Stack::new(80), Stack::new(48), Stack::new(32), Stack::new(32)],
            blocks: Stack::new(16),
            home,
            zone,
        }
    }

    /// The stack for `order`, which must be cached.
    pub(crate) fn stack(&self, order: Order) -> &Stack {
        self.stacks.get(usize::from(order.get())).unwrap_or(&self.blocks)
    }

    /// A run of `order`, if there is one.
    #[inline]
    pub(crate) fn get(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        if let Some(words) = self.words.get(usize::from(order.get())) {
            let word = words.get(migrate_type as usize)?;
            let runs = word.runs.load(Ordering::Relaxed);
            if runs != 0 {
                word.runs.store(runs & (runs - 1), Ordering::Relaxed);
                return Some(Pfn(word.base.load(Ordering::Relaxed) + u64::from(runs.trailing_zeros())));
            }
        }
        if migrate_type == MigrateType::Movable { self.stack(order).pop() } else { None }
    }

    /// Takes over a word of runs; the one before must be used up.
    pub(crate) fn set_word(&self, order: Order, migrate_type: MigrateType, base: Pfn, runs: u64) {
        if let Some(word) = self.words.get(usize::from(order.get())).and_then(|words| words.get(migrate_type as usize))
        {
            word.base.store(base.0, Ordering::Relaxed);
            word.runs.store(runs, Ordering::Relaxed);
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
        if let Some(words) = self.words.get(usize::from(order.get())) {
            for word in words {
                if word.base.load(Ordering::Relaxed) == start.0 & !63 {
                    let (runs, run) = (word.runs.load(Ordering::Relaxed), 1 << (start.0 & 63));
                    if runs & run != 0 {
                        return Put::Twice;
                    }
                    word.runs.store(runs | run, Ordering::Relaxed);
                    return Put::Kept;
                }
            }
        }
        if self.stack(order).push(start) { Put::Kept } else { Put::Full }
    }

    /// Empties a word; returns its runs.
    pub(crate) fn take_word(&self, order: usize, migrate_type: usize) -> (Pfn, u64) {
        let word = &self.words[order][migrate_type];
        let taken = (Pfn(word.base.load(Ordering::Relaxed)), word.runs.load(Ordering::Relaxed));
        word.base.store(NOWHERE, Ordering::Relaxed);
        word.runs.store(0, Ordering::Relaxed);
        taken
    }

    /// Every word, as order and type.
    pub(crate) fn words() -> impl Iterator<Item = (usize, usize)> {
        (0..WORD_ORDERS).flat_map(|order| (0..TYPES).map(move |migrate_type| (order, migrate_type)))
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
        words.sum::<u64>() + Self::orders().map(|order| u64::from(self.stack(order).len()) * order.pages()).sum::<u64>()
    }
}

const _: () = assert!(size_of::<CpuCache>() <= 4096);
