//! Control files of the machine rather than the manager: the counters of its CPUs.
//!
//! Orders of memory: Relaxed, because they are counters.

use crate::accept;
use crate::smp::{self, Counters};
use crate::virtio_mem;
use crate::vmemmap;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::procfs::{File, FileError, Table};

/// The machine.
pub struct Machine;

/// One of a CPU's counters.
type Counter = fn(&Counters) -> &AtomicU64;

/// Flush counters under Linux's names, and two that Linux does not have: flushes put off, and the
/// cycles that flushes took.
const FLUSHES: [(&str, Counter); 6] = [
    ("nr_tlb_remote_flush", |counters| &counters.flushes),
    ("nr_tlb_remote_flush_received", |counters| &counters.flushes_received),
    ("nr_tlb_local_flush_all", |counters| &counters.flushed_whole),
    ("nr_tlb_remote_flush_put_off", |counters| &counters.deferred_flushes),
    ("nr_tlb_local_flush_one", |counters| &counters.flushed_single),
    ("tlb_remote_flush_cycles", |counters| &counters.flush_cycles),
];

/// Rows of `/proc/interrupts`.
const INTERRUPTS: [(&str, &str, Counter); 5] = [
    ("LOC", "Local timer interrupts", |counters| &counters.timer),
    ("RES", "Rescheduling interrupts", |counters| &counters.wakes),
    ("CAL", "Function call interrupts", |counters| &counters.calls),
    ("IPI", "Interrupts sent to other CPUs", |counters| &counters.sent),
    ("ERR", "Errors of the local interrupt controller", |counters| &counters.errors),
];

const FILES: &[File<Machine>] = &[
    File::read_only("/proc/interrupts", |_, _, out| interrupts(out)),
    File::read_only("/proc/vmstat", |_, _, out| vmstat(out)),
    File::read_only("/sys/kernel/debug/framewright/virtio_mem", |_, _, out| {
        Ok(virtio_mem::show(out)?)
    }),
    File::read_only("/sys/kernel/debug/framewright/accept_device", |_, _, out| {
        Ok(accept::show(out)?)
    }),
];

/// The table of these files.
pub fn table() -> Table<'static, Machine> {
    Table::new(&Machine, FILES)
}

fn vmstat(out: &mut dyn Write) -> Result<(), FileError> {
    for (name, counter) in FLUSHES {
        let sum: u64 = smp::all().map(|cpu| counter(&cpu.counters).load(Ordering::Relaxed)).sum();
        writeln!(out, "{name} {sum}")?;
    }
    if let Some(vmemmap) = vmemmap::get() {
        vmemmap.counts().vmstat().try_for_each(|(name, value)| writeln!(out, "{name} {value}"))?;
    }
    Ok(())
}

/// Writes a column for each CPU, as Linux does.
fn interrupts(out: &mut dyn Write) -> Result<(), FileError> {
    write!(out, "{:11}", "")?;
    smp::all().try_for_each(|cpu| write!(out, "CPU{:<8}", cpu.index()))?;
    writeln!(out)?;
    for (name, about, counter) in INTERRUPTS {
        write!(out, "{name:>3}: ")?;
        smp::all().try_for_each(|cpu| {
            write!(out, "{:>10} ", counter(&cpu.counters).load(Ordering::Relaxed))
        })?;
        writeln!(out, "  {about}")?;
    }
    Ok(())
}
