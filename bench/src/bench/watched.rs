//! A machine in this process that records how long interrupts are off.

use crate::bench::common::{failed, synthetic};
use crate::bench::host;
use framewright::firmware::{MapBuilder, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::platform::{IrqState, PinnedCpu, Platform};
use framewright::units::NodeId;
use framewright::{BringUp, Manager, Parameters};
use framewright_cli::error::Error;
use framewright_hosted::{CpuToken, HostedPlatform};
use std::cell::Cell;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::time::Instant;

/// Small watermarks, so that a filled machine is nearly full.
const PARAMETERS: &str = "min_free_kbytes=128 watermark_scale_factor=1 pages=none";

thread_local! {
    static CLOCK: Cell<fn() -> f64> = const { Cell::new(host::thread_cpu_seconds) };
    /// When interrupts went off, in seconds of the chosen clock.
    static OFF_SINCE: Cell<f64> = const { Cell::new(0.0) };
    static LONGEST: Cell<f64> = const { Cell::new(0.0) };
    static TOTAL: Cell<f64> = const { Cell::new(0.0) };
}

/// The platform of such a machine.
pub struct Watched(&'static HostedPlatform);

/// How long one call took, in seconds. The default clock counts the time that CPUs spent on the
/// call, not what the host did meanwhile.
#[derive(Clone, Copy, Default)]
pub struct Took {
    pub call: f64,
    /// The longest time in the call with interrupts off.
    pub hold: f64,
    /// The total time in the call with interrupts off.
    pub held: f64,
}

impl Took {
    /// The greater value of each field.
    pub fn max(self, other: Self) -> Self {
        let Self { call, hold, held } = other;
        Self { call: self.call.max(call), hold: self.hold.max(hold), held: self.held.max(held) }
    }
}

/// Runs `work` and says how long it took.
pub fn watch<T>(work: impl FnOnce() -> T) -> (T, Took) {
    LONGEST.set(0.0);
    TOTAL.set(0.0);
    let clock = CLOCK.get();
    let started = clock();
    let result = work();
    let call = clock() - started;
    (result, Took { call, hold: LONGEST.get(), held: TOTAL.get() })
}

/// Makes this thread use the wall clock, which is faster to read.
pub fn use_wall_clock() {
    fn seconds() -> f64 {
        thread_local! {
            static EPOCH: Instant = Instant::now();
        }
        EPOCH.with(Instant::elapsed).as_secs_f64()
    }
    CLOCK.set(seconds);
}

impl Watched {
    /// Brings up a machine of one node with this much memory. The machine and its manager live as
    /// long as the process.
    ///
    /// # Errors
    /// Fails if this process cannot emulate the machine.
    pub fn bring_up(memory_bytes: u64) -> Result<Manager<Self>, Error> {
        let machine = synthetic(memory_bytes, 1, 1)?;
        let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
        let (mut map, mut topology) = (MapBuilder::new(&mut ranges), Topology::new(&mut claims));
        machine.load(&mut map, &mut topology).map_err(failed)?;
        let parameters = Parameters::parse(PARAMETERS, &mut |_| {});
        parameters.apply(&mut map).map_err(failed)?;
        let map = map.finish().map_err(failed)?;
        let inner = HostedPlatform::new(map, 1).map_err(failed)?;
        let platform: &'static Self = Box::leak(Box::new(Self(inner)));
        let mut regions = MemblockStorage::new();
        // SAFETY: the machine was just made, so its memory holds nothing, and it has only this
        // manager (invariant 1).
        let early = unsafe { Memblock::new(platform, &mut regions, map, &topology) }
            .map_err(|error| failed(format!("the memblock allocator cannot start: {error}")))?;
        Manager::bring_up(early, &BringUp { parameters: &parameters, started_ns: None })
            .map_err(|error| failed(format!("memory cannot be brought up: {error}")))
    }

    /// Makes this thread the machine's CPU.
    ///
    /// # Errors
    /// Fails if another thread is the CPU.
    pub fn enter(&self) -> Result<CpuToken<'_>, Error> {
        self.0.enter_cpu(0).map_err(failed)
    }
}

// SAFETY: every call is passed on to the inner platform; in between, only a clock is read.
unsafe impl Platform for Watched {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        self.0.direct(pa)
    }

    fn pin(&self) -> PinnedCpu {
        self.0.pin()
    }

    unsafe fn unpin(&self, cpu: PinnedCpu) {
        // SAFETY: the obligation is passed on to the caller.
        unsafe { self.0.unpin(cpu) };
    }

    fn irq_save(&self) -> IrqState {
        let were_on = self.0.can_wait();
        let state = self.0.irq_save();
        if were_on {
            OFF_SINCE.set(CLOCK.get()());
        }
        state
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        let now = CLOCK.get()();
        // SAFETY: the obligation is passed on to the caller.
        unsafe { self.0.irq_restore(state) };
        if self.0.can_wait() {
            let hold = now - OFF_SINCE.get();
            LONGEST.set(LONGEST.get().max(hold));
            TOTAL.set(TOTAL.get() + hold);
        }
    }

    fn direct_limit(&self) -> u64 {
        self.0.direct_limit()
    }

    fn cpus(&self) -> u32 {
        self.0.cpus()
    }

    fn cpu_node(&self, cpu: u32) -> NodeId {
        self.0.cpu_node(cpu)
    }

    fn init_threads(&self, node: NodeId) -> u32 {
        self.0.init_threads(node)
    }

    fn can_wait(&self) -> bool {
        self.0.can_wait()
    }

    fn current_task(&self) -> Option<NonZeroU64> {
        self.0.current_task()
    }

    fn cpu_barrier(&self) {
        self.0.cpu_barrier();
    }

    fn now_ns(&self) -> Option<u64> {
        self.0.now_ns()
    }

    fn entropy(&self) -> Option<u64> {
        self.0.entropy()
    }

    fn relax(&self) {
        self.0.relax();
    }

    fn yield_now(&self) {
        self.0.yield_now();
    }
}
