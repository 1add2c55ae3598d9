//! Reference counts, and readers of objects that may go away, under every interleaving that the
//! memory model allows.

use crate::model::BothWays;
use framewright::internals::{Readers, ReferenceCount};
use framewright::{IrqState, PinnedCpu, Platform};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use std::ptr::NonNull;

/// A CPU that only waits.
struct Waiter;

// SAFETY: it has no interrupts, and nothing else but `relax` is called.
unsafe impl Platform for Waiter {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        unreachable!("nobody reads address {pa:#x}")
    }

    fn pin(&self) -> PinnedCpu {
        unreachable!("nobody pins")
    }

    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }

    unsafe fn irq_restore(&self, _state: IrqState) {}

    fn relax(&self) {
        thread::yield_now();
    }
}

/// A page with a count, and a block that becomes whole once the page is free. The block's content
/// belongs to its owner; it includes the descriptors while there is no map.
struct Block {
    /// The state word: says whether there are descriptors.
    described: AtomicBool,
    readers: Readers,
    count: ReferenceCount<AtomicU32>,
    /// What the descriptor's memory is used for while there is no descriptor: loom fails the test
    /// if two threads touch it at once.
    memory: UnsafeCell<u32>,
    /// The content of the page.
    content: UnsafeCell<u32>,
    /// How often the page was freed.
    freed: AtomicU32,
}

// SAFETY: that is what is being checked.
unsafe impl Sync for Block {}
// SAFETY: numbers may move.
unsafe impl Send for Block {}

impl Block {
    fn new(references: u32) -> Arc<Self> {
        Arc::new(Self {
            described: AtomicBool::new(true),
            readers: Readers::new(),
            count: ReferenceCount(AtomicU32::new(references)),
            memory: UnsafeCell::new(0),
            content: UnsafeCell::new(0),
            freed: AtomicU32::new(0),
        })
    }

    /// Reads a descriptor as the manager does: inside a reader section, if the state word says that
    /// there is one.
    fn look<R>(&self, look: impl FnOnce(&ReferenceCount<AtomicU32>) -> R) -> Option<R> {
        let _reading = self.readers.enter(&Waiter);
        if !self.described.load(Ordering::SeqCst) {
            return None;
        }
        // SAFETY: reading is looking at the descriptor; loom says if somebody writes.
        self.memory
            .with(|memory| assert_eq!(unsafe { *memory }, 0, "these are descriptors no longer"));
        Some(look(&self.count))
    }

    fn try_get(&self) -> bool {
        self.look(ReferenceCount::try_get).unwrap_or(false)
    }

    /// Puts a reference; the last one frees the page, and with it the block becomes whole: its
    /// memory is somebody else's.
    fn put(&self) {
        if self
            .look(|count| count.put().expect("a reference is held"))
            .expect("its page is allocated")
        {
            self.free();
        }
    }

    fn free(&self) {
        assert_eq!(self.freed.fetch_add(1, Ordering::Relaxed), 0, "freed twice");
        self.described.store(false, Ordering::Release);
        self.readers.wait(&Waiter);
        // SAFETY: nobody looks at descriptors here any more; loom says if somebody does.
        self.memory.with_mut(|memory| unsafe { *memory = 7 });
        // SAFETY: nobody has a reference, so nobody uses the page.
        self.content.with_mut(|content| unsafe { *content = 7 });
    }

    /// Does what a holder of a reference does with the page.
    fn read(&self) {
        // SAFETY: a reference is held; loom says if somebody writes.
        self.content
            .with(|content| assert_eq!(unsafe { *content }, 0, "the page is somebody else's"));
    }
}

#[test]
fn the_last_of_two_puts_frees_once() {
    loom::model(|| {
        let block = Block::new(2);
        let other = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                block.read();
                block.put();
            })
        };
        block.read();
        block.put();
        other.join().unwrap();
        assert_eq!(block.freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn who_tries_to_get_never_revives_a_freed_page() {
    loom::model(|| {
        let block = Block::new(1);
        let other = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                if block.try_get() {
                    block.read();
                    block.put();
                }
            })
        };
        block.read();
        block.put();
        other.join().unwrap();
        assert_eq!(block.freed.load(Ordering::Relaxed), 1, "the last put frees, whoever does it");
        assert!(!block.try_get());
    });
}

#[test]
fn two_who_try_and_one_who_puts() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let block = Block::new(1);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let block = Arc::clone(&block);
                thread::spawn(move || {
                    if block.try_get() {
                        block.read();
                        block.put();
                    }
                })
            })
            .collect();
        block.put();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(block.freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn who_freezes_is_alone_and_what_was_prepared_is_seen() {
    static FROZEN: BothWays = BothWays::new();
    loom::model(|| {
        let block = Block::new(1);
        let other = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                if block.try_get() {
                    let seen = block.content.with(|content| {
                        // SAFETY: a reference is held, so the owner is not alone; loom says if it
                        // writes.
                        unsafe { *content }
                    });
                    block.count.put().expect("a reference is held");
                    return Some(seen);
                }
                None
            })
        };
        let frozen = block.count.freeze(1).is_ok();
        FROZEN.count(frozen);
        if frozen {
            // SAFETY: nobody else has a reference or can get one.
            block.content.with_mut(|content| unsafe { *content = 1 });
            block.count.unfreeze(1).expect("it is frozen");
        }
        let seen = other.join().unwrap();
        assert!(seen.is_none_or(|seen| frozen || seen == 0));
        assert_eq!(block.count.get(), 1);
    });
    FROZEN.assert_both();
}
