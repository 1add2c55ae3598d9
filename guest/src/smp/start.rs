//! Starts the other CPUs, all at once, while CPU 0 goes on bringing up memory, and checks later
//! which CPUs have come up.
//!
//! Orders of memory: the exchange of answers is AcqRel and loads of them Acquire, so that a CPU
//! that finds an answer sees what was done before it. What a CPU needs to start is stored Relaxed
//! and published by the count (Release), which the CPU's first code reads before it. The SeqCst
//! fence is the partner of the one in `shootdown`.

use super::controller::command;
use super::list::LeftOut;
use super::stacks::Stacks;
use super::{MAX_CPUS, ONLINE, all, be, controller, count, cpu, idle, interrupts, online, stacks};
use crate::console::log;
use crate::direct_map::KernelTables;
use crate::exceptions;
use crate::platform::{EarlyMemory, PLATFORM};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use framewright::memblock::MemblockRequest;
use framewright::platform::Platform;
use framewright::units::{NodeMask, PAGE_SIZE};
use framewright_arch::paging::MapFault;
use framewright_arch::paging::{FlushRequest, LocalTlb};
use framewright_arch::x86_64::features::Features;
use framewright_arch::x86_64::interrupts::TIMER;
use framewright_arch::x86_64::local_apic::LocalApic;
use framewright_arch::x86_64::registers::{halt, page_table_root, time_stamp};

/// The trampoline runs in real mode, and so must lie below this.
const REAL_MODE_END: u64 = 1 << 20;
/// How long a CPU needs after a reset: up to 10 ms for a real one, next to nothing for a virtual
/// one.
const RESET_NS: [u64; 2] = [10_000_000, 100_000];
/// A CPU that has not come up after this long is told to start a second time.
const SECOND_CALL_NS: u64 = 20_000_000;
/// A CPU that has not come up after this long is given up.
const GIVE_UP_NS: u64 = 2_000_000_000;
/// The rate assumed for the time-stamp counter while it is unknown. No counter is faster, so waits
/// are not too short.
const MOST_COUNTS_PER_NS: u64 = 5;

// `trampoline.s` reads these under these names.
#[unsafe(no_mangle)]
static OTHER_CPU_ROOT: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static OTHER_CPU_COUNT: AtomicU32 = AtomicU32::new(0);
#[unsafe(no_mangle)]
static OTHER_CPU_IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
/// Tops of the stacks; 0 for a CPU that is not to be started.
#[unsafe(no_mangle)]
static OTHER_CPU_STACKS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
}

/// The answer for each CPU, set once: `CAME` by the CPU when it is up, or `GIVEN_UP` by CPU 0 when
/// it gives up waiting, whichever is first.
static ANSWERS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(NONE) }; MAX_CPUS];
const NONE: u32 = 0;
const CAME: u32 = 1;
const GIVEN_UP: u32 = 2;

/// Settles the answer for CPU `index` unless there is one. Returns the answer that counts.
fn settle(index: u32, answer: u32) -> u32 {
    let Some(settled) = ANSWERS.get(index as usize) else { return GIVEN_UP };
    settled
        .compare_exchange(NONE, answer, Ordering::AcqRel, Ordering::Acquire)
        .map_or_else(|before| before, |_| answer)
}

/// The CPUs that have been told to start.
pub struct Started {
    left_out: LeftOut,
    apic: Option<&'static LocalApic>,
    page: Option<u8>,
    fault: Option<MapFault>,
    stamp: u64,
    at_ns: Option<u64>,
    timer_ns: Option<u64>,
}

/// Tells all listed CPUs to start, and does not wait for them. Afterwards CPU 0 has its interrupt
/// controller, and interrupts are on.
pub fn start(tables: &KernelTables, early: &mut EarlyMemory<'_>, left_out: LeftOut) -> Started {
    let mut started = Started {
        left_out,
        apic: None,
        page: None,
        fault: None,
        stamp: time_stamp(),
        at_ns: PLATFORM.now_ns(),
        timer_ns: None,
    };
    match interrupts::begin(tables, early) {
        Ok(apic) => started.apic = Some(apic),
        Err(fault) => {
            started.fault = Some(fault);
            return started;
        }
    }
    let Some(apic) = started.apic else { return started };
    apic.count_freely(TIMER);
    started.timer_ns = PLATFORM.now_ns();
    if count() == 1 {
        return started;
    }
    started.page = place_trampoline(early);
    let Some(page) = started.page else { return started };
    OTHER_CPU_ROOT.store(page_table_root(), Ordering::Relaxed);
    for cpu in all().skip(1) {
        let slot = cpu.index() as usize;
        OTHER_CPU_IDS[slot].store(cpu.apic_id(), Ordering::Relaxed);
        if let Some(stacks) = stacks::make(tables, early, cpu.index(), cpu.node()) {
            OTHER_CPU_STACKS[slot].store(stacks.tops[0], Ordering::Relaxed);
        }
    }
    // CPU 0 is up already. Its slot must not match, because 0 may be another CPU's identifier.
    OTHER_CPU_IDS[0].store(u32::MAX, Ordering::Relaxed);
    OTHER_CPU_COUNT.store(count(), Ordering::Release);
    (started.stamp, started.at_ns) = (time_stamp(), PLATFORM.now_ns());
    for cpu in to_start() {
        // SAFETY: this CPU has run nothing but firmware, which is done.
        command(|apic| unsafe { apic.init(cpu.apic_id()) });
    }
    let reset_ns = RESET_NS[usize::from(Features::read().hypervisor)];
    while started.elapsed_ns() < reset_ns {
        PLATFORM.relax();
    }
    call(page);
    started
}

/// The CPUs, except the first, that have a stack and have not come up.
fn to_start() -> impl Iterator<Item = &'static super::Cpu> {
    all().skip(1).filter(|cpu| {
        has_stack(cpu) && ANSWERS[cpu.index() as usize].load(Ordering::Acquire) == NONE
    })
}

fn has_stack(cpu: &super::Cpu) -> bool {
    OTHER_CPU_STACKS[cpu.index() as usize].load(Ordering::Relaxed) != 0
}

fn call(page: u8) {
    for cpu in to_start() {
        // SAFETY: the trampoline is at that page.
        command(|apic| unsafe { apic.start_up(cpu.apic_id(), page) });
    }
}

/// Copies the trampoline to a page below 1 MiB, which stays allocated. Returns the number of the
/// page.
fn place_trampoline(early: &mut EarlyMemory<'_>) -> Option<u8> {
    let request = MemblockRequest {
        max_address: REAL_MODE_END,
        ..MemblockRequest::new(PAGE_SIZE, PAGE_SIZE)
    };
    let frame = early.allocate(&request).ok()?.start;
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let length = end.addr() - start.addr();
    // SAFETY: the frame is ours and larger than the trampoline, whose bytes lie between the two
    // symbols.
    unsafe { core::ptr::copy_nonoverlapping(start, PLATFORM.direct(frame).as_ptr(), length) };
    u8::try_from(frame / PAGE_SIZE).ok()
}

impl Started {
    /// Nanoseconds since the CPUs were told to start.
    fn elapsed_ns(&self) -> u64 {
        match (self.at_ns, PLATFORM.now_ns()) {
            (Some(start), Some(now)) => now.saturating_sub(start),
            _ => time_stamp().wrapping_sub(self.stamp) / MOST_COUNTS_PER_NS,
        }
    }

    /// Waits until all CPUs have come up or are given up, and logs which did not come up.
    pub fn finish(self) {
        self.left_out.log();
        if let Some(fault) = self.fault {
            log!("smp: going on without interrupts and other CPUs: {fault}");
        }
        let Some(apic) = self.apic else { return };
        let mut called_twice = false;
        // The time limit counts from here: on a busy host the other CPUs may not have run at all so
        // far.
        let began_ns = self.elapsed_ns();
        let waited_ns = || self.elapsed_ns().saturating_sub(began_ns);
        while self.page.is_some() && to_start().next().is_some() && waited_ns() < GIVE_UP_NS {
            if let Some(page) = self.page
                && !called_twice
                && self.elapsed_ns() >= SECOND_CALL_NS
            {
                called_twice = true;
                call(page);
            }
            PLATFORM.relax();
        }
        interrupts::measure_timer(apic, self.timer_ns);
        for cpu in all().skip(1) {
            let (index, id) = (cpu.index(), cpu.apic_id());
            if self.page.is_none() {
                log!(
                    "smp: CPU {index} (APIC ID {id}) left out: no memory below 1 MiB for its \
                     startup code"
                );
            } else if !has_stack(cpu) {
                log!("smp: CPU {index} (APIC ID {id}) left out: no memory for its stacks");
            } else if settle(index, GIVEN_UP) == GIVEN_UP {
                log!(
                    "smp: CPU {index} (APIC ID {id}) did not start within {} ms",
                    GIVE_UP_NS / 1_000_000
                );
            } else {
                // The CPU has answered, but is not in the set yet.
                while !cpu.is_online() {
                    PLATFORM.relax();
                }
            }
        }
        self.summary(apic);
    }

    fn summary(&self, apic: &LocalApic) {
        let others = all().skip(1).filter(|cpu| cpu.is_online());
        let last_ns = others.map(|cpu| cpu.up_ns.load(Ordering::Relaxed)).max();
        let us =
            last_ns.zip(self.at_ns).map_or(0, |(last, start)| last.saturating_sub(start) / 1000);
        let nodes = online()
            .iter()
            .filter_map(cpu)
            .fold(NodeMask::EMPTY, |nodes, cpu| nodes.with(cpu.node()))
            .len();
        let (cpus, khz) = (online().count(), interrupts::timer_khz());
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        log!("APIC: {}, timer {}.{:03} MHz", apic.mode(), khz / 1000, khz % 1000);
        log!(
            "smp: Brought up {nodes} node{}, {cpus} CPU{} in {}.{:03} ms",
            plural(nodes),
            plural(cpus as usize),
            us / 1000,
            us % 1000,
        );
    }
}

/// Entered from `trampoline.s`, on the stack of CPU `index`, with the final tables and interrupts
/// off.
#[unsafe(no_mangle)]
extern "C" fn other_cpu_main(index: u32) -> ! {
    be(index);
    let (Some(me), Some(apic)) = (cpu(index), controller::apic()) else { halt() };
    let stacks = Stacks::of(index);
    // SAFETY: CPU 0 made them before it let this CPU start. A CPU gets here only once: a second
    // start-up message has no effect on a CPU that runs.
    let segments = unsafe { stacks.segments() };
    exceptions::install_on_other_cpu(segments, stacks.interrupt_tops());
    interrupts::turn_on(apic);
    if settle(index, CAME) != CAME {
        // Too late: this CPU was given up.
        halt();
    }
    me.up_ns.store(PLATFORM.now_ns().unwrap_or(0), Ordering::Relaxed);
    // From here on other CPUs send it interrupts, which stay pending until interrupts are turned
    // on.
    ONLINE.insert(index);
    fence(Ordering::SeqCst);
    // Earlier flushes were not sent to this CPU.
    LocalTlb::flush_local(FlushRequest::Everything, true);
    interrupts::let_in();
    idle::idle()
}
