//! Allocates from interrupt handlers (`interrupt_storm=HZ`). On every CPU the timer's handler
//! allocates and frees pages while ordinary code does so, too, and checks that nobody else writes
//! to its pages.
//!
//! Orders of memory: the manager is stored with Release and loaded with Acquire. The pause flag is
//! SeqCst and followed by a barrier on all CPUs. What a CPU's handler holds is Relaxed, because
//! others read it only after that barrier.

use crate::platform::{GuestPlatform, PLATFORM};
use crate::smp::{Cpu, MAX_CPUS, barrier, start_timer, stop_timer};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use framewright::platform::Platform;
use framewright::units::{Order, Pfn};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Manager};

/// Most blocks that one CPU's handler holds.
const SLOTS: usize = 8;
/// A slot without a block.
const NOTHING: u64 = u64::MAX;
/// The orders that are allocated in turn: mostly single pages, and some that need a zone's lock.
const ORDERS: [u8; 7] = [0, 0, 0, 1, 0, 3, 0];
/// What a frame's first word holds, combined with its number.
const STAMP: u64 = 0x5707_a11e_0000_0000;

/// What one CPU's handler holds and did. Only that handler writes it.
struct Held {
    /// Number of the first frame, with the order in the lowest byte.
    blocks: [AtomicU64; SLOTS],
    strikes: AtomicU64,
    allocations: AtomicU64,
    refusals: AtomicU64,
    pages: AtomicU64,
    faults: AtomicU64,
}

static HELD: [Held; MAX_CPUS] = [const {
    Held {
        blocks: [const { AtomicU64::new(NOTHING) }; SLOTS],
        strikes: AtomicU64::new(0),
        allocations: AtomicU64::new(0),
        refusals: AtomicU64::new(0),
        pages: AtomicU64::new(0),
        faults: AtomicU64::new(0),
    }
}; MAX_CPUS];
/// The manager; null if there is no storm.
static MANAGER: AtomicPtr<Manager<GuestPlatform>> = AtomicPtr::new(core::ptr::null_mut());
/// While this is set, handlers do nothing.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// The sums over all handlers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Timer interrupts in which a handler did something.
    pub strikes: u64,
    /// Allocations that were served.
    pub allocations: u64,
    /// Allocations that failed for lack of memory.
    pub refusals: u64,
    /// Allocations and frees that were wrongly refused, and frames whose first word was changed.
    pub faults: u64,
}

/// A storm. It must be begun and ended where waiting is allowed.
pub struct Storm<'a>(&'a Manager<GuestPlatform>);

impl<'a> Storm<'a> {
    /// Lets handlers use `manager` from now on. A CPU takes part once it calls
    /// [`join`](Self::join).
    pub fn begin(manager: &'a Manager<GuestPlatform>) -> Self {
        MANAGER.store((&raw const *manager).cast_mut(), Ordering::Release);
        Self(manager)
    }

    /// Interrupts this CPU `hz` times a second.
    pub fn join(&self, hz: u64) {
        start_timer(hz);
    }

    /// Ends the timer interrupts on this CPU.
    pub fn leave(&self) {
        stop_timer();
    }

    /// Keeps handlers out of the manager while `body` runs. `body` gets the number of pages that
    /// they hold.
    pub fn paused<R>(&self, body: impl FnOnce(u64) -> R) -> R {
        PAUSED.store(true, Ordering::SeqCst);
        // A handler that did not see the flag ends before its CPU takes the barrier's interrupt. On
        // this CPU it has ended already.
        barrier();
        let result = body(HELD.iter().map(|held| held.pages.load(Ordering::Relaxed)).sum());
        PAUSED.store(false, Ordering::SeqCst);
        result
    }

    /// Ends the storm, frees what handlers hold, and returns what they did. All CPUs must have
    /// left.
    pub fn end(self) -> Tally {
        PAUSED.store(true, Ordering::SeqCst);
        barrier();
        MANAGER.store(core::ptr::null_mut(), Ordering::Release);
        let mut tally = Tally::default();
        for held in &HELD {
            for slot in &held.blocks {
                let block = slot.swap(NOTHING, Ordering::Relaxed);
                if block != NOTHING {
                    held.free(self.0, block);
                }
            }
            tally.strikes += held.strikes.swap(0, Ordering::Relaxed);
            tally.allocations += held.allocations.swap(0, Ordering::Relaxed);
            tally.refusals += held.refusals.swap(0, Ordering::Relaxed);
            tally.faults += held.faults.swap(0, Ordering::Relaxed);
        }
        PAUSED.store(false, Ordering::SeqCst);
        tally
    }
}

/// The timer's handler on `cpu`, the CPU that runs this. It does one allocation or one free.
pub fn strike(cpu: &Cpu) {
    let manager = MANAGER.load(Ordering::Acquire);
    let Some(held) = HELD.get(cpu.index() as usize) else { return };
    if manager.is_null() || PAUSED.load(Ordering::SeqCst) {
        return;
    }
    // SAFETY: a `Storm` borrows the manager, and its end waits for all handlers that saw this
    // pointer (invariant 30).
    let manager = unsafe { &*manager };
    let strikes = held.strikes.load(Ordering::Relaxed);
    held.strikes.store(strikes + 1, Ordering::Relaxed);
    let turn = usize::try_from(strikes).unwrap_or(0);
    let slot = &held.blocks[turn % SLOTS];
    match slot.load(Ordering::Relaxed) {
        NOTHING => {
            slot.store(held.allocate(manager, ORDERS[turn % ORDERS.len()]), Ordering::Relaxed)
        }
        block => {
            slot.store(NOTHING, Ordering::Relaxed);
            held.free(manager, block);
        }
    }
}

/// Returns the address of a frame's first word.
fn stamp_of(pfn: Pfn) -> core::ptr::NonNull<u64> {
    PLATFORM.direct(pfn.address()).cast()
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Held {
    fn allocate(&self, manager: &Manager<GuestPlatform>, order: u8) -> u64 {
        let order = Order::new(order).unwrap_or(Order::PAGE);
        match manager.allocate_order(order, MigrateType::Unmovable) {
            Ok(start) => {
                bump(&self.allocations, 1);
                bump(&self.pages, order.pages());
                // SAFETY: the frames were just allocated and belong to this handler.
                unsafe { stamp_of(start).write_volatile(STAMP ^ start.0) };
                start.0 << 8 | u64::from(order.get())
            }
            Err(AllocateError::OutOfMemory { .. }) => {
                bump(&self.refusals, 1);
                NOTHING
            }
            Err(_) => {
                bump(&self.faults, 1);
                NOTHING
            }
        }
    }

    fn free(&self, manager: &Manager<GuestPlatform>, block: u64) {
        let (start, order) =
            (Pfn(block >> 8), Order::new(block.to_le_bytes()[0]).unwrap_or(Order::PAGE));
        // SAFETY: the frames belong to this handler until they are freed below.
        let stamp = unsafe { stamp_of(start).read_volatile() };
        // SAFETY: this handler allocated the block and took it out of its slot, the only one that
        // named it (invariant 42).
        let freed = unsafe { manager.free_order(start, order) };
        if stamp != STAMP ^ start.0 || freed.is_err() {
            bump(&self.faults, 1);
        }
        bump(&self.pages, order.pages().wrapping_neg());
    }
}
