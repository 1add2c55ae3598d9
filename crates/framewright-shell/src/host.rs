//! What the shell needs of the machine that it runs on, beyond the manager's platform.

use core::fmt::{self, Write};
use framewright_workload::Window;

/// The defaults are those of a machine with one CPU and nobody who interrupts.
pub trait Host: Sync {
    /// Lets up to `nanoseconds` pass, or less: the shell looks at the clock and calls again.
    fn pause(&self, _nanoseconds: u64) {
        core::hint::spin_loop();
    }

    /// Whether somebody wants the command that runs to end, since
    /// [`begin_command`](Self::begin_command). Commands that take long ask again and again, on each
    /// CPU that they run on, so this is also where a host without threads does what it has to do in
    /// the background.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// A command begins: what was interrupted before is over.
    fn begin_command(&self) {}

    /// Calls `work` once on each CPU that can take part, with the CPU's number, all at the same
    /// time, and returns when all are done.
    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        work(0);
    }

    /// Writes the log since the machine began, and whether there is one.
    ///
    /// # Errors
    /// Those of `out`.
    fn log(&self, _out: &mut dyn Write) -> Result<bool, fmt::Error> {
        Ok(false)
    }

    /// Where huge pages are used, if not in the direct map.
    fn window(&self) -> Option<&dyn Window> {
        None
    }
}
