//! `framewright-bench compare linux`: runs Linux and the guest in turn on one virtual machine.
//!
//! A `Lab` boots either kernel on a machine of some `Shape`; sections choose what both do there,
//! and make rows from what they said (parsed by `linux` and `ours`). The kernel is the user's or
//! Debian's (`fetch`, `kernel`); its initial RAM disk (`cpio`) holds one program of our own, the
//! package `linux-init`, and its script.

mod cpio;
mod fetch;
mod kernel;
mod lab;
mod linux;
mod ours;
mod plan;
mod pool;
mod results;
mod rows;
mod sections;
mod table;
mod version;

use crate::args::CompareLinux;
use crate::bench::common::failed;
use framewright_cli::error::Error;
use framewright_cli::file::{self, Kind};
use framewright_cli::output::Output;
use lab::Lab;
use plan::Plan;
use serde_json::Value;

/// A section: its name, what it measures, and its function.
type Section = (&'static str, &'static str, fn(&Lab, &Plan) -> Result<Vec<Value>, Error>);

/// All sections, in the order in which they run.
const SECTIONS: [Section; 6] = [
    (
        "boot",
        "from the start of QEMU to the first line on the serial port, and to the shell's prompt; \
         in Linux to the first line of its first program, which is in the initial RAM disk and is \
         all \
         that there is. Both log in full; `Linux quiet` is Linux told to be silent, while ours \
         still is not",
        sections::boot::run,
    ),
    (
        "memory",
        "memory map: what Linux says that the rest of its memory map took on the slower node \
         (deferred pages initialised), beside the same line of ours; on-demand, where ours has no \
         such step, beside all that it does \
         to bring the node up; Linux's clock goes in ticks there (4 ms at its 250 a second); then \
         Linux's number beside our whole bring-up from the first look at the memory map to all \
         memory. boot total: from the start of QEMU to the shell, or to Linux's first program. \
         memory: MemTotal beside \
         what our log calls available, and MemFree of both once booted. page metadata: Linux's \
         count of pages that describe pages beside all of our tables. pools: writing nr_hugepages \
         at run time, by the clock of each \
         machine; ours restores lazily. page_fault1 and page_fault2: iterations are 4 KiB written \
         to, in pages of 2 MiB and of 4 KiB, 128 MiB at a time. They are not the same path: Linux \
         takes a page fault for each page, clears it \
         and enters it into page tables; ours allocates, writes and frees, and takes no faults",
        sections::memory::run,
    ),
    (
        "reporting",
        "a guest whose memory comes as it is touched writes to half of it and frees all at once; \
         the host's Rss of the guest's memory (smaps of QEMU) falls. Linux has one pace; both of \
         ours are beside it, in turn, five times if time allows; the course is that of the first \
         run",
        sections::reporting::run,
    ),
    (
        "pools at boot",
        "filling pools requested by boot parameters: in Linux from the call of hugetlb_init to its \
         first line about pools, by time stamps of its log (pages of 1 GiB are taken a little \
         before); ours by its own clock",
        sections::pools::run,
    ),
    (
        "compaction",
        "memory is filled to 97 % with single movable pages, and pages are freed at random until \
         80 % is in use, three times over; then compact_memory is written, and the most pages of 2 \
         MiB asked for by nr_hugepages, which compacts in Linux, too; compaction in the background \
         is off, and Linux's min_free_kbytes what it is without transparent huge pages, as ours \
         is. a moved page: of those that compact_memory moved. not got: of what was free before. \
         Both are mapped, Linux's in a process that sleeps, ours in the guest's own tables",
        sections::compaction::run,
    ),
    (
        "virtio-mem",
        "the host requests 2 GiB more in a machine of 1 GiB, then none of it; from the request \
         until the machine says that it has the memory (in Linux MemTotal, looked at each \
         millisecond) or has it no longer, and the device says the same. Nothing is in use. \
         Requests are those that QEMU traces; Linux brings the memory online for what can be moved",
        sections::virtio_mem::run,
    ),
];

/// Compares both, writes the file, and prints a table.
///
/// # Errors
/// Fails on impossible options, a missing kernel or QEMU, or a signal; or, after everything else
/// was printed, with what failed in the comparison.
pub fn run(options: &CompareLinux) -> Result<(), Error> {
    let plan = Plan::new(options)?;
    let names = SECTIONS.map(|section| section.0);
    if let Some(only) = options.only.as_ref().filter(|only| !names.contains(&only.as_str())) {
        let names = names.join(", ");
        return Err(Error::Usage(format!("--only {only}: the sections are {names}")));
    }
    if let Some(file) = &options.json {
        file::check("--json", file)?;
        file::claim("--json", file, Kind::Results)?;
    }
    let kernel = match &options.kernel {
        Some(path) => kernel::open(path)?,
        None => {
            plan.tell(
                "looking for a kernel to compare with; if there is none, Debian's is fetched",
            );
            kernel::open(&fetch::provide()?)?
        }
    };
    let lab = Lab::new(kernel, options.accel)?;
    plan.tell(&format!(
        "Linux {}, QEMU {}, {}",
        lab.kernel().version,
        lab.qemu(),
        lab.accelerator().name()
    ));
    let mut results = results::Results::new(&lab, options);
    let mut failures = Vec::new();
    let mut stopped = None;
    for (name, timed, measure) in SECTIONS {
        if options.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        match results.section(name, timed, || measure(&lab, &plan)) {
            Ok(()) => {}
            Err(Error::Failed(why)) => {
                plan.tell(&format!("{name}: {why}"));
                failures.push(format!("{name}: {}", why.lines().next().unwrap_or_default()));
            }
            // Keep what was measured so far.
            Err(error) => {
                stopped = Some(error);
                break;
            }
        }
    }
    if lab.deaths() > 0 {
        results.remark(format!(
            "Linux died in the emulator and was started again, times: {}; those runs do not count",
            lab.deaths()
        ));
    }
    let mut shown = Ok(());
    if !results.is_empty() {
        // Write the file first, as the reader of the table may be gone.
        if let Some(file) = &options.json {
            results.write(file)?;
        }
        shown = table::show(&results, &mut Output::new());
    }
    match stopped {
        Some(error) => Err(error),
        None if failures.is_empty() => shown,
        None => Err(failed(format!("not everything could be compared: {}", failures.join("; ")))),
    }
}
