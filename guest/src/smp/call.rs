//! One CPU has others call a function and waits: in an interrupt ([`call_on`]), or in their idle loops, with interrupts on ([`run_on`]).
//!
//! A caller has one [`Slot`] of each kind, where it says what to call; each CPU has one [`Inbox`] of each kind, a bit for each caller. To
//! call, a CPU fills its slot, sets its bit in the inboxes of its targets and interrupts those whose inbox word was empty: somebody else's
//! interrupt is on its way to the others. Whoever is interrupted takes all bits at once, calls what these callers' slots say, and counts each down.
//! There is no lock and no queue, so any number of CPUs may do it at once, to each other too: who waits has interrupts on and serves the others
//! meanwhile.
//!
//! | store | load | carries |
//! |---|---|---|
//! | bit, Release | the interrupted CPU's swap, Acquire | the slot, and what the caller wrote before |
//! | count, Release | the waiting caller, Acquire | what the function did |

use super::interrupts::send;
use super::set::bits;
use super::{CpuSet, MAX_CPUS, cpu, others, sleep_until, this};
use crate::platform::PLATFORM;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use framewright::platform::Platform;
use framewright_x86::cpu::interrupts::{CALL, are_enabled};

const WORDS: usize = MAX_CPUS.div_ceil(64);

/// Looks before a caller sleeps until the last one it waits for wakes it: more than a call takes when all run. Where CPUs are virtual and
/// share real ones, one that waits awake keeps those it waits for from running.
const LOOKS: u32 = 20_000;

/// What callers may hand over.
type Function<'a> = &'a (dyn Fn() + Sync + 'a);

/// What a CPU wants called, and by how many it has not been called yet.
pub struct Slot {
    /// Points to a [`Function`] on the caller's stack.
    function: AtomicPtr<()>,
    remaining: AtomicU32,
    busy: AtomicBool,
}

impl Slot {
    pub(super) const fn new() -> Self {
        Self {
            function: AtomicPtr::new(core::ptr::null_mut()),
            remaining: AtomicU32::new(0),
            busy: AtomicBool::new(false),
        }
    }

    /// Calls what it says and counts down. Returns whether that was the last.
    fn serve(&self) -> bool {
        let function = self.function.load(Ordering::Relaxed).cast_const().cast::<Function<'_>>();
        // SAFETY: the slot's owner set our bit after it had put a `Function` there, and stays until we have counted down (invariant 29).
        let function = unsafe { *function };
        function();
        // Release pairs with the Acquire of the waiting owner. Nothing on its stack is touched after this.
        self.remaining.fetch_sub(1, Ordering::Release) == 1
    }
}

/// Who wants something of a CPU.
pub struct Inbox([AtomicU64; WORDS]);

impl Inbox {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Sets the bit of caller `index`; returns whether an interrupt must be sent.
    fn post(&self, index: u32) -> bool {
        // Release pairs with the Acquire in `serve`.
        self.0.get(index as usize / 64).is_some_and(|word| word.fetch_or(1 << (index % 64), Ordering::AcqRel) == 0)
    }

    /// Whether nobody wants anything.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Serves all who want something, each once; `slot` picks theirs. Returns whether there was somebody.
    pub(super) fn serve(&self, slot: fn(&super::Cpu) -> &Slot) -> bool {
        let mut served = false;
        for (first, word) in (0u32..).step_by(64).zip(&self.0) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire pairs with the Release in `post`.
            for bit in bits(word.swap(0, Ordering::AcqRel)) {
                if let Some(caller) = cpu(first + bit) {
                    if slot(caller).serve() {
                        caller.wake();
                    }
                    served = true;
                }
            }
        }
        served
    }
}

/// Has all of `targets` that run, but for this CPU, call `function` in an interrupt, and waits until they have. Returns how many they are. What this
/// CPU wrote before is visible to them, and what they wrote to this CPU afterwards; each of them executes a full barrier.
///
/// `function` runs with interrupts off: it is short, takes no lock that is held with interrupts on, and calls nobody.
///
/// Panics when interrupts are off: two CPUs that wait for one another would wait for ever.
pub fn call_on(targets: CpuSet, function: Function<'_>) -> u32 {
    wait_for(
        targets,
        |cpu| &cpu.call,
        function,
        |target, caller| {
            if target.calls.post(caller) {
                send(target, CALL);
            }
        },
    )
}

/// Has all of `targets` that run, but for this CPU, call `function` in their idle loops, as soon as each has nothing else to do; `own` runs here
/// meanwhile. Waits until all have. Returns how many others they are.
///
/// Not to be called inside itself on one CPU. Panics when interrupts are off.
pub fn run_on(targets: CpuSet, function: Function<'_>, own: impl FnOnce()) -> u32 {
    let mut own = Some(own);
    wait_with(
        targets,
        |cpu| &cpu.task,
        function,
        |target, caller| {
            target.tasks.post(caller);
            target.wake();
        },
        &mut || {
            if let Some(own) = own.take() {
                own();
            }
        },
    )
}

/// A full barrier on all CPUs.
pub fn barrier() {
    fence(Ordering::SeqCst);
    // Who takes the interrupt executes one, and says so here once more.
    call_on(others(), &|| fence(Ordering::SeqCst));
    fence(Ordering::SeqCst);
}

fn wait_for(
    targets: CpuSet,
    slot: fn(&super::Cpu) -> &Slot,
    function: Function<'_>,
    post: impl Fn(&super::Cpu, u32),
) -> u32 {
    wait_with(targets, slot, function, post, &mut || {})
}

fn wait_with(
    targets: CpuSet,
    slot: fn(&super::Cpu) -> &Slot,
    function: Function<'_>,
    post: impl Fn(&super::Cpu, u32),
    meanwhile: &mut dyn FnMut(),
) -> u32 {
    let targets = targets.and(others());
    let count = targets.count();
    if count == 0 {
        meanwhile();
        return 0;
    }
    assert!(are_enabled(), "a CPU that waits for others lets interrupts in");
    let me = this();
    let slot = slot(me);
    assert!(!slot.busy.swap(true, Ordering::Relaxed), "a CPU waits for one call at a time");
    slot.function.store((&raw const function).cast_mut().cast(), Ordering::Relaxed);
    slot.remaining.store(count, Ordering::Relaxed);
    for target in targets.iter().filter_map(cpu) {
        post(target, me.index());
    }
    meanwhile();
    // Acquire pairs with the Release in `Slot::serve`.
    let all_have = || slot.remaining.load(Ordering::Acquire) == 0;
    for _ in 0..LOOKS {
        if all_have() {
            break;
        }
        PLATFORM.relax();
    }
    sleep_until(&all_have);
    slot.busy.store(false, Ordering::Relaxed);
    count
}
