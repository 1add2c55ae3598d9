//! What the shell needs of the machine that it runs on, beyond the manager's platform.

use core::fmt::{self, Write};
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::{Mover, Reclaim};
use framewright_workload::{Handle, HandleError, Relay, Window};

/// The machine behind the shell. The defaults suit a machine with one CPU and no interrupts.
pub trait Host: Sync {
    /// Waits for up to `nanoseconds`. It may return early: the shell reads the clock and calls
    /// again.
    fn pause(&self, _nanoseconds: u64) {
        core::hint::spin_loop();
    }

    /// Whether the running command has been interrupted since
    /// [`begin_command`](Self::begin_command). Long commands call this again and again, on each CPU
    /// that they run on, so a host without threads may do its background work here.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// A command begins: forgets earlier interrupts.
    fn begin_command(&self) {}

    /// Calls `work` with the CPU's number once on each CPU that can take part, on all in parallel,
    /// and returns when all are done.
    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        work(0);
    }

    /// Writes the log since boot. Returns whether there is one.
    ///
    /// # Errors
    /// Those of `out`.
    fn log(&self, _out: &mut dyn Write) -> Result<bool, fmt::Error> {
        Ok(false)
    }

    /// Calls `others` once on each other CPU that can take part, with the CPU's number, and `own`
    /// once on this one meanwhile; returns when all are done.
    fn beside(&self, _others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        own();
    }

    /// Stops another CPU, which takes part in nothing from then on, and returns when it stands: it
    /// stops where it has nothing to do, or where a command asks
    /// [`is_interrupted`](Self::is_interrupted). False when it does not run. The default has
    /// nothing to stop: CPUs are somebody else's.
    fn stop_cpu(&self, _cpu: u32) -> bool {
        true
    }

    /// Lets a CPU go on that [`stop_cpu`](Self::stop_cpu) stopped, and returns when it runs. False
    /// when it cannot.
    fn start_cpu(&self, _cpu: u32) -> bool {
        true
    }

    /// The window of addresses in which huge pages are used, if not the direct map.
    fn window(&self) -> Option<&dyn Window> {
        None
    }

    /// Memory that can be added while the machine runs.
    fn spare_memory(&self) -> Option<&dyn SpareMemory> {
        None
    }

    /// Memory whose users have it mapped and can be moved. Where there is none, `movable` uses a
    /// table of handles ([`Handles`](framewright_workload::Handles)).
    fn mapping(&self) -> Option<&dyn MovableMemory> {
        None
    }

    /// Calls `work` while nothing that the host does in the background uses memory: what is under
    /// way has ended. `work` counts what is in use. The default is for hosts that do nothing in the
    /// background, or do it in [`is_interrupted`](Self::is_interrupted) alone.
    fn undisturbed(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// What is registered with the manager as its mover while there is memory of `movable`, so that
    /// the manager moves that on its own, too. `None` where a mover of the machine's is registered,
    /// or none is to be. One for each manager.
    fn relay(&self) -> Option<&'static Relay> {
        None
    }

    /// What is registered with the manager as its reclaim hook while there are pages of `cache`.
    /// `None` where the machine has a hook of its own. One for each manager.
    fn reclaim_relay(&self) -> Option<&'static Relay<dyn Reclaim>> {
        None
    }
}

/// Memory that a machine has beside what its manager was told of at bring-up.
///
/// # Safety
/// What [`has`](Self::has) says is memory is used by nobody but the manager, if that has it, and
/// stays memory that the platform's direct map reaches.
pub unsafe trait SpareMemory {
    /// Whether all of a range is memory.
    fn has(&self, range: PhysRange) -> bool;
}

/// Parts of [`MovableMemory`], each of which has one user at a time.
pub const SHARES: u32 = 64;

/// Memory that is used while it moves: numbered runs, however their users find them.
pub trait MovableMemory: Mover {
    /// Takes memory for the tables, unless it has been taken.
    ///
    /// # Errors
    /// [`HandleError::Memory`] when there is none.
    fn open(&self) -> Result<(), HandleError> {
        Ok(())
    }

    /// Whether there are tables.
    fn is_open(&self) -> bool {
        true
    }

    /// Frees all runs, also what is damaged or pinned, and the tables.
    fn close(&self) {}

    /// Allocates a run, and writes to each of its frames.
    ///
    /// # Errors
    /// [`HandleError::Memory`], [`HandleError::NoHandle`].
    fn allocate(&self, order: Order) -> Result<Handle, HandleError>;

    /// The first run from this number on.
    fn next(&self, from: u32) -> Option<Handle>;

    /// Where a run is at this moment.
    fn range(&self, handle: Handle) -> Option<PfnRange>;

    /// Whether its place must not change at this moment.
    fn is_pinned(&self, handle: Handle) -> bool;

    /// Keeps a run where it is, or lets it go.
    ///
    /// # Errors
    /// [`HandleError::NotHeld`].
    fn pin(&self, handle: Handle, pinned: bool) -> Result<(), HandleError>;

    /// Whether a run holds what was written there.
    ///
    /// # Errors
    /// [`HandleError`].
    fn check(&self, handle: Handle) -> Result<(), HandleError>;

    /// Frees a run, after looking at it.
    ///
    /// # Errors
    /// [`HandleError`]; the run is held as before.
    fn free(&self, handle: Handle) -> Result<(), HandleError>;

    /// Frames of the tables.
    fn table_pages(&self) -> u64;

    /// Uses every run of one of the [`SHARES`], wherever it is at that moment, and returns how many
    /// that were. One user at a time for each share.
    ///
    /// # Errors
    /// [`HandleError::Damaged`] when something that this user wrote got lost.
    fn use_share(&self, share: u32) -> Result<u64, HandleError>;

    /// How often a user has had to wait for a move, if that is counted.
    fn waits(&self) -> Option<u64> {
        None
    }
}
