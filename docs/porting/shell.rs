//! Control files of a kernel beside the manager's, and a shell over both (step 16 of
//! `docs/porting.md`).

use core::fmt::Write;
use framewright::procfs::{File, FileSystem, Source, Table};
use framewright::{Manager, Platform};
use framewright_jobs::NoHelpers;
use framewright_shell::{Host, Run, Shell};

/// What the kernel adds to the shell.
#[derive(Debug)]
pub struct Machine;

impl Host for Machine {} // all methods have defaults

const FILES: &[File<Machine>] =
    &[File::read_only("/proc/interrupts", |_, _, out| Ok(writeln!(out, "none yet")?))];

/// Runs commands, and returns the status of the last.
pub fn shell<P: Platform>(manager: &Manager<P>, out: &mut dyn Write, errors: &mut dyn Write) -> u8 {
    let (ours, theirs) = (Table::new(&Machine, FILES), manager.files());
    // The files of pools are a table of their own, as writing them may call helpers.
    let pools = manager.hugetlb().files(&NoHelpers);
    let pools = pools.table();
    let sources: [&dyn Source; 3] = [&theirs, &pools, &ours];
    let mut room = [Run::NOTHING; 64];
    // SAFETY: no command frees by address, and there is no window.
    let mut shell = unsafe { Shell::new(manager, FileSystem::new(&sources), &Machine, &mut room) };
    shell.run("cat /proc/buddyinfo; alloc 9 3; free all; cat /proc/interrupts", out, errors)
}
