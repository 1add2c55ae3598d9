//! What the shell needs from its machine beyond the manager's platform.

use core::fmt::{self, Write};
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::{Mover, Reclaim};
use framewright_workload::{Handle, HandleError, Relay, Window};

/// The machine behind the shell. The defaults suit a machine with one CPU and no interrupts.
pub trait Host: Sync {
    /// Waits for up to `nanoseconds`. It may return early, as the shell reads the clock and calls
    /// it again.
    fn pause(&self, _nanoseconds: u64) {
        core::hint::spin_loop();
    }

    /// Whether the running command has been interrupted since
    /// [`begin_command`](Self::begin_command). Long commands call this again and again, on each CPU
    /// that they run on, so a host without threads may do its background work here.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Called when a command begins; forgets earlier interrupts.
    fn begin_command(&self) {}

    /// Calls `work` once on each CPU that can take part, on all of them in parallel, with the CPU's
    /// number. Returns when all calls are done.
    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        work(0);
    }

    /// How many bytes of free memory can be written to while `used_bytes` are in use, if that may
    /// be fewer than are free: the memory of a machine in a process is backed where it is touched.
    fn backing(&self, _used_bytes: u64) -> Option<u64> {
        None
    }

    /// Writes the log since boot. Returns whether there is one.
    ///
    /// # Errors
    /// The errors of `out`.
    fn log(&self, _out: &mut dyn Write) -> Result<bool, fmt::Error> {
        Ok(false)
    }

    /// Calls `others` once on each other CPU that can take part, with the CPU's number, and `own`
    /// meanwhile on this CPU. Returns when all calls are done.
    fn beside(&self, _others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        own();
    }

    /// Stops another CPU, which takes part in nothing from then on, and returns once it has
    /// stopped. A CPU stops when it has nothing to do, or when a command calls
    /// [`is_interrupted`](Self::is_interrupted) on it. Returns false if the CPU does not run. The
    /// default stops nothing, for hosts that do not control their CPUs.
    fn stop_cpu(&self, _cpu: u32) -> bool {
        true
    }

    /// Lets a CPU that [`stop_cpu`](Self::stop_cpu) stopped go on, and returns once it runs.
    /// Returns false if it cannot.
    fn start_cpu(&self, _cpu: u32) -> bool {
        true
    }

    /// The window of addresses through which huge pages are used, if not through the direct map.
    fn window(&self) -> Option<&dyn Window> {
        None
    }

    /// Memory that can be added while the machine runs.
    fn spare_memory(&self) -> Option<&dyn SpareMemory> {
        None
    }

    /// Movable memory that its users have mapped. If there is none, `movable` uses a table of
    /// handles ([`Handles`](framewright_workload::Handles)).
    fn mapping(&self) -> Option<&dyn MovableMemory> {
        None
    }

    /// Calls `work`, which counts memory in use, while nothing that the host does in the background
    /// uses memory: background work that was under way has ended. The default is for hosts that do
    /// nothing in the background, or only in [`is_interrupted`](Self::is_interrupted).
    fn undisturbed(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// The relay to register as the manager's mover while `movable` has memory, so that the manager
    /// also moves that memory on its own. `None` if the machine registers a mover of its own, or
    /// wants none. Each manager needs its own relay.
    fn relay(&self) -> Option<&'static Relay> {
        None
    }

    /// The relay to register as the manager's reclaim hook while `cache` has pages. `None` if the
    /// machine has a hook of its own. Each manager needs its own relay.
    fn reclaim_relay(&self) -> Option<&'static Relay<dyn Reclaim>> {
        None
    }
}

/// Memory that a machine has besides the memory that its manager was told of at bring-up.
///
/// # Safety
/// Memory for which [`has`](Self::has) returns true is used by nobody but the manager, once the
/// manager has it, and stays memory that the platform's direct map reaches.
pub unsafe trait SpareMemory {
    /// Whether all of a range is memory.
    fn has(&self, range: PhysRange) -> bool;
}

/// The number of shares of [`MovableMemory`], each of which has at most one user at a time.
pub const SHARES: u32 = 64;

/// Memory that is used while it is moved: numbered runs, whichever way their users find them.
pub trait MovableMemory: Mover {
    /// Allocates memory for the tables, unless that has been done.
    ///
    /// # Errors
    /// [`HandleError::Memory`] if there is none.
    fn open(&self) -> Result<(), HandleError> {
        Ok(())
    }

    /// Whether the tables exist.
    fn is_open(&self) -> bool {
        true
    }

    /// Frees all runs, including damaged and pinned ones, and the tables.
    fn close(&self) {}

    /// Allocates a run, and writes to each of its frames.
    ///
    /// # Errors
    /// [`HandleError::Memory`], [`HandleError::NoHandle`].
    fn allocate(&self, order: Order) -> Result<Handle, HandleError>;

    /// The first run whose number is at least `from`.
    fn next(&self, from: u32) -> Option<Handle>;

    /// Where a run is at this moment.
    fn range(&self, handle: Handle) -> Option<PfnRange>;

    /// Whether a run must not be moved at this moment.
    fn is_pinned(&self, handle: Handle) -> bool;

    /// Pins a run where it is, or unpins it.
    ///
    /// # Errors
    /// [`HandleError::NotHeld`].
    fn pin(&self, handle: Handle, pinned: bool) -> Result<(), HandleError>;

    /// Checks that a run still holds what was written to it.
    ///
    /// # Errors
    /// [`HandleError`].
    fn check(&self, handle: Handle) -> Result<(), HandleError>;

    /// Checks a run and frees it.
    ///
    /// # Errors
    /// [`HandleError`]; the run is then held as before.
    fn free(&self, handle: Handle) -> Result<(), HandleError>;

    /// The number of frames of the tables.
    fn table_pages(&self) -> u64;

    /// Uses every run of one of the [`SHARES`], wherever the run is at that moment, and returns the
    /// number of runs. Each share has one user at a time.
    ///
    /// # Errors
    /// [`HandleError::Damaged`] if something that this user wrote was lost.
    fn use_share(&self, share: u32) -> Result<u64, HandleError>;

    /// How often a user has had to wait for a move, if that is counted.
    fn waits(&self) -> Option<u64> {
        None
    }
}
