//! All CPUs: their data ([`cpu`], [`this`]), how they are started, how one makes others do
//! something, and what they do when they are idle.
//!
//! ```text
//! not numbered -> numbered -> told to start -> online <-> parked (`park`)
//!                 (`list`)     (`start`)  \-> given up
//! ```
//!
//! CPU 0 is the one that the firmware started. The others are numbered in the order of the MADT.
//! Numbers are final: a CPU that does not start leaves a gap, which CPUs that send interrupts skip.
//!
//! | file | what |
//! |---|---|
//! | `list.rs`, `start.rs`, `trampoline.s` | which CPUs there are, how they start |
//! | `stacks.rs` | their stacks, each above a page that is not mapped |
//! | `controller.rs` | the local controllers, through which CPUs interrupt each other |
//! | `interrupts.rs` | what a CPU does in an interrupt: timer, calls, waking |
//! | `call.rs` | others call a function, in an interrupt (`call_on`) or idle (`run_on`) |
//! | `shootdown.rs` | `TlbShootdown`: flushes on all CPUs; counts flushes, interrupts, cycles |
//! | `sleep.rs`, `idle.rs`, `helpers.rs` | idle CPUs sleep, are woken, help with jobs |
//! | `park.rs` | a CPU is stopped, and goes on later |
//!
//! Exceptions and interrupts run on stacks of their own, because precompiled Rust code keeps values
//! below the stack pointer (the red zone). Handlers run with interrupts off throughout.
//!
//! Orders of memory: Relaxed, because a CPU's data is written before the CPU runs, and only the CPU
//! itself counts its turns.

mod call;
mod controller;
mod helpers;
mod idle;
mod interrupts;
mod list;
mod park;
mod set;
mod shootdown;
mod sleep;
mod stacks;
mod start;

pub use call::{barrier, call_on, run_on};
pub use helpers::GuestHelpers;
pub use interrupts::{
    has_timer, on_timer, registers, start_timer, stop_others_for_good, stop_timer,
};
pub use list::list;
pub use park::{park, park_if_asked, unpark};
pub use set::{CpuSet, MAX_CPUS};
pub use shootdown::TlbShootdown;
pub use sleep::{sleep_until, wake_all};
pub use stacks::{is_on_stack, overflowed};
pub use start::start;

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use framewright::units::NodeId;
use framewright_arch::paging::LazyFlush;
use framewright_arch::x86_64::msr;
use set::AtomicCpuSet;

/// A CPU. It has cache lines of its own, and its `gs` segment begins here.
#[repr(C, align(128))]
pub struct Cpu {
    /// Its number. The first field, because [`index`] reads it through `gs`.
    index: AtomicU32,
    apic_id: AtomicU32,
    node: AtomicU32,
    /// Whether it may be asleep, so that a CPU that gives it work must interrupt it.
    asleep: AtomicBool,
    /// Flushes that are deferred while it sleeps.
    lazy_flush: LazyFlush,
    /// Counts turns of busy waits.
    turns: AtomicU32,
    /// Whether it is to stop, is parked, or is to go on (`park`).
    parking: AtomicU32,
    /// When it came up, on the guest's clock.
    up_ns: AtomicU64,
    /// Its counters.
    pub counters: Counters,
}

/// The counters of one CPU. Only the CPU itself writes them, except for `deferred_flushes`.
pub struct Counters {
    /// Timer interrupts.
    pub timer: AtomicU64,
    /// Interrupts for calls from other CPUs.
    pub calls: AtomicU64,
    /// Wake-up interrupts.
    pub wakes: AtomicU64,
    /// Errors of its interrupt controller.
    pub errors: AtomicU64,
    /// Interrupts that it sent to other CPUs.
    pub sent: AtomicU64,
    /// Flushes on all CPUs that this CPU requested.
    pub flushes: AtomicU64,
    /// Flushes that other CPUs requested from this one.
    pub flushes_received: AtomicU64,
    /// Flushes that other CPUs deferred because this one slept.
    pub deferred_flushes: AtomicU64,
    /// Translations that it flushed one by one.
    pub flushed_single: AtomicU64,
    /// How often it flushed all translations.
    pub flushed_whole: AtomicU64,
    /// Time-stamp counts that its flushes on all CPUs took.
    pub flush_cycles: AtomicU64,
}

impl Counters {
    const fn new() -> Self {
        Self {
            timer: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            flushes_received: AtomicU64::new(0),
            deferred_flushes: AtomicU64::new(0),
            flushed_single: AtomicU64::new(0),
            flushed_whole: AtomicU64::new(0),
            flush_cycles: AtomicU64::new(0),
        }
    }
}

impl Cpu {
    const fn new() -> Self {
        Self {
            index: AtomicU32::new(0),
            apic_id: AtomicU32::new(0),
            node: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            lazy_flush: LazyFlush::new(),
            turns: AtomicU32::new(0),
            parking: AtomicU32::new(park::RUNS),
            up_ns: AtomicU64::new(0),
            counters: Counters::new(),
        }
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// The identifier of its interrupt controller.
    pub fn apic_id(&self) -> u32 {
        self.apic_id.load(Ordering::Relaxed)
    }

    /// The node that it is on.
    pub fn node(&self) -> NodeId {
        NodeId::new(self.node.load(Ordering::Relaxed) as usize).unwrap_or(NodeId::ZERO)
    }

    /// Counts a turn of this CPU's busy waits. Returns true once every `turns` turns; `turns` is a
    /// power of two. A turn in an interrupt handler may get lost.
    pub fn counts_to(&self, turns: u32) -> bool {
        let turn = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.turns.store(turn, Ordering::Relaxed);
        turn & (turns - 1) == 0
    }

    /// Whether it runs.
    pub fn is_online(&self) -> bool {
        ONLINE.contains(self.index())
    }

    /// Whether it has started running, even if it is parked now.
    fn has_started(&self) -> bool {
        self.is_online() || self.parking.load(Ordering::Relaxed) != park::RUNS
    }
}

static CPUS: [Cpu; MAX_CPUS] = [const { Cpu::new() }; MAX_CPUS];
/// How many CPUs have a number.
static COUNT: AtomicU32 = AtomicU32::new(1);
/// The CPUs that run.
static ONLINE: AtomicCpuSet = AtomicCpuSet::new();

/// Makes this CPU number 0. To be called before any code asks for the number.
pub fn begin() {
    be(0);
    ONLINE.insert(0);
}

/// Makes this CPU number `index` from now on.
fn be(index: u32) {
    if let Some(cpu) = cpu(index) {
        // SAFETY: only `index` uses `gs`, and it expects what is written here. The data is static.
        unsafe { msr::write(msr::GS_BASE, (&raw const *cpu).addr() as u64) };
    }
}

/// The number of this CPU.
pub fn index() -> u32 {
    let index;
    // SAFETY: since `begin` and `other_cpu_main`, before which nobody asks for the number, `gs`
    // begins at a `Cpu`, whose first field is its number.
    unsafe {
        asm!("mov {:e}, gs:[0]", out(reg) index, options(nostack, preserves_flags, readonly))
    };
    index
}

/// This CPU.
pub fn this() -> &'static Cpu {
    // Every number is below the length of the table.
    CPUS.get(index() as usize).unwrap_or(&CPUS[0])
}

/// CPU `index`, whether it runs or not; `None` if there is no such number.
pub fn cpu(index: u32) -> Option<&'static Cpu> {
    CPUS.get(index as usize).filter(|_| index < count())
}

/// How many CPUs have numbers. Settled before the manager is brought up.
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// The CPUs that run.
pub fn online() -> CpuSet {
    ONLINE.read()
}

/// The CPUs that run, except the calling one.
pub fn others() -> CpuSet {
    online().without(index())
}

/// All CPUs that have a number.
pub fn all() -> impl Iterator<Item = &'static Cpu> {
    CPUS.iter().take(count() as usize)
}
