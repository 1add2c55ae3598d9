//! `movable busy`: other CPUs use memory while `compact`, `contig` and `vacate` move it.
//!
//! Orders of memory: Relaxed. The numbers are read after all CPUs are done, which the host makes
//! visible; a CPU may see late that it has to end.

use crate::host::{Host, MovableMemory, SHARES};
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::Counted;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use framewright::{Platform, SpinLock};
use framewright_workload::HandleError;

/// What other CPUs did with memory while it was moved.
#[derive(Default)]
pub(super) struct Used {
    users: u32,
    runs: u64,
    waits: Option<u64>,
    failure: Option<HandleError>,
}

impl Used {
    /// Prints what the CPUs did.
    ///
    /// # Errors
    /// Fails if the CPUs found something wrong.
    pub(super) fn tell(self, io: &mut Io<'_>) -> Result<(), Failed> {
        if let Some(failure) = self.failure {
            return Err(io.fail(format_args!("while it was moved: {failure}")));
        }
        if self.users != 0 {
            let (users, runs) = (Counted(self.users.into(), "CPU"), Counted(self.runs, "run"));
            writeln!(io.out, "{users} used {runs} meanwhile{}", Waits(self.waits))?;
        }
        Ok(())
    }
}

/// How often users had to wait, if that is counted.
struct Waits(Option<u64>);

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |waits| write!(f, ", {waits} times in motion"))
    }
}

/// `movable busy on`: finds out how many CPUs can use the memory.
pub(super) fn begin<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    shell.users = count(shell);
    if shell.users == 0 {
        return Err(io.fail(format_args!("no other CPU is online to use it")));
    }
    Ok(())
}

/// The number of other CPUs that take part.
fn count<P: Platform, H: Host>(shell: &Shell<'_, P, H>) -> u32 {
    let others = AtomicU32::new(0);
    let count = |_| {
        others.fetch_add(1, Ordering::Relaxed);
    };
    shell.host.beside(&count, &mut || {});
    others.into_inner()
}

/// Runs `work` while other CPUs use the movable memory, if that was asked for.
pub(super) fn while_used<R, P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    mut work: impl FnMut() -> R,
) -> (R, Used) {
    let Some(memory) = shell.movable().filter(|_| shell.users != 0) else {
        return (work(), Used::default());
    };
    // CPUs may have been stopped or started since.
    let (platform, users) = (shell.manager.platform(), count(shell));
    if users == 0 {
        return (work(), Used::default());
    }
    let (started, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let runs = AtomicU64::new(0);
    let failure = SpinLock::new(None);
    let waits = memory.waits();
    let mut result = None;
    let user = |_| {
        let first = started.fetch_add(1, Ordering::Relaxed);
        let shares = (first..SHARES).step_by(usize::try_from(users).unwrap_or(1));
        match use_shares(memory, shares, &is_over) {
            Ok(used) => {
                runs.fetch_add(used, Ordering::Relaxed);
            }
            Err(error) => failure.with(platform, |failure| *failure = Some(error)),
        }
    };
    shell.host.beside(&user, &mut || {
        // Wait for all users, as a short command would end before the first of them begins.
        while started.load(Ordering::Relaxed) < users && !shell.host.is_interrupted() {
            platform.relax();
        }
        result = Some(work());
        is_over.store(true, Ordering::Relaxed);
    });
    let used = Used {
        users: started.into_inner(),
        runs: runs.into_inner(),
        waits: memory.waits().zip(waits).map(|(after, before)| after - before),
        failure: failure.with(platform, |failure| failure.take()),
    };
    // A host should call `own`; if it did not, nobody uses the memory.
    (result.unwrap_or_else(work), used)
}

/// Uses the shares in turn until it is time to end, but each at least once.
fn use_shares(
    memory: &dyn MovableMemory,
    shares: impl Iterator<Item = u32> + Clone,
    is_over: &AtomicBool,
) -> Result<u64, HandleError> {
    let mut used = 0;
    for share in shares.clone() {
        used += memory.use_share(share)?;
    }
    for share in shares.cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        used += memory.use_share(share)?;
    }
    Ok(used)
}
