//! What the shell needs of the machine that it runs on, beyond the manager's platform.

use core::fmt::{self, Write};
use framewright_workload::Window;

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

    /// The window of addresses in which huge pages are used, if not the direct map.
    fn window(&self) -> Option<&dyn Window> {
        None
    }
}
