//! The built-in commands.

mod arguments;
mod cache;
mod churn;
mod cma;
mod cpu;
mod faults;
mod files;
mod grade;
mod hotplug;
mod hugetlb;
mod memory;
mod movable;
mod moving;
mod numa;
mod reporting;
mod show;
mod users;
mod workload;

use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use framewright::Platform;
use framewright::units::Order;

/// A built-in command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Builtin {
    Alloc,
    Cache,
    Cat,
    Churn,
    Cma,
    Compact,
    Contig,
    Cpu,
    Cpus,
    Dmesg,
    Echo,
    Exit,
    Fragment,
    Free,
    Grade,
    Held,
    Help,
    Hotplug,
    Hugetlb,
    Ls,
    Memhog,
    Movable,
    Numa,
    PageFault1,
    PageFault2,
    Reporting,
    Resize,
    Sleep,
    Stat,
    Stress,
    Vacate,
    Verify,
}

/// A command with its name, its arguments, and what it does.
type Entry = (Builtin, &'static str, &'static str, &'static str);

/// All commands, sorted by name.
const ALL: &[Entry] = &[
    (
        Builtin::Alloc,
        "alloc",
        "[ORDER [COUNT]] [order=N|pages=N] [count=N] [node=N] [zone=NAME] [type=NAME] \
         [at=ADDRESS] [below=ADDRESS] [align=ORDER] [zeroed]",
        "allocate and keep under a handle",
    ),
    (
        Builtin::Cache,
        "cache",
        "[read SIZE|free]",
        "keep pages until their memory is needed, like a kernel's file cache: read SIZE more, free \
         all, or show how many are cached and how many were given up",
    ),
    (Builtin::Cat, "cat", "FILE...", "show control files"),
    (
        Builtin::Churn,
        "churn",
        "SECONDS [seed N]",
        "allocate and free runs of random sizes on all CPUs, and count",
    ),
    (
        Builtin::Cma,
        "cma",
        "[alloc NAME SIZE|pages=N [align=ORDER] [within MS]|create NAME SIZE@ADDRESS|FRAME..FRAME]",
        "show reserve areas; allocate a run from one, moving lent pages away for at most MS \
         milliseconds, and keep it under a handle; create one, permanently",
    ),
    (
        Builtin::Compact,
        "compact",
        "[NODE [BLOCKS]|background SECONDS]",
        "move pages from the emptiest split blocks into the fullest until BLOCKS, or as many as \
         possible, are whole; or run another compactor for SECONDS beside the program's own, which \
         always works as compaction_proactiveness says",
    ),
    (
        Builtin::Contig,
        "contig",
        "SIZE [align=ORDER] [node=N] [zone=NAME] [below=ADDRESS] [type=NAME] [within MS]|\
         SIZE@ADDRESS [within MS]|FRAME..FRAME [within MS]",
        "allocate SIZE in one run, or the frames at a place, moving pages out of the way for at \
         most MS milliseconds, and keep it under a handle",
    ),
    (
        Builtin::Cpu,
        "cpu",
        "[offline N|online N|storm ROUNDS [seed N]]",
        "show which CPUs are online; take one offline, which then keeps no memory; bring it back; \
         do both again and again with others while the rest allocate, free and drain",
    ),
    (Builtin::Cpus, "cpus", "", "show CPUs, their nodes and their caches"),
    (Builtin::Dmesg, "dmesg", "", "show the log since the machine started"),
    (
        Builtin::Echo,
        "echo",
        "[-n] [WORD...] [> FILE]",
        "print words, or write them to a control file",
    ),
    (Builtin::Exit, "exit", "[STATUS]", "exit with STATUS, or that of the last command"),
    (
        Builtin::Fragment,
        "fragment",
        "[SIZE] [seed N]",
        "fill SIZE, or all memory, with single pages, free half at random, and show how much is \
         in whole blocks",
    ),
    (
        Builtin::Free,
        "free",
        "HANDLE...|all|ADDRESS [order=N|pages=N]",
        "free what a handle or all handles hold, or the run at an address",
    ),
    (
        Builtin::Grade,
        "grade",
        "[SIZE@ADDRESS|FRAME..FRAME [any|movable|removable]]",
        "show or set what blocks may hold: anything, or only movable memory, which takes removable \
         blocks last",
    ),
    (Builtin::Held, "held", "", "show what handles hold"),
    (Builtin::Help, "help", "[COMMAND]", "show commands"),
    (
        Builtin::Hotplug,
        "hotplug",
        "[add START SIZE [node=N] [any|movable|removable|offline]|remove START SIZE|\
         online START SIZE [any|movable|removable]|offline START SIZE]",
        "show memory; add some; move its contents elsewhere and take it out of use",
    ),
    (
        Builtin::Hugetlb,
        "hugetlb",
        "[SIZE [COUNT [SECONDS]]] [node N]",
        "reserve huge pages of a pool, allocate them, write every 4 KiB, check, free",
    ),
    (Builtin::Ls, "ls", "[-l] [FILE...]", "list control files"),
    (
        Builtin::Memhog,
        "memhog",
        "SIZE [hold SECONDS] [untouched]",
        "allocate SIZE in the largest runs there are, write to it unless untouched, free it",
    ),
    (
        Builtin::Movable,
        "movable",
        "[fill PERCENT [ORDER,...] [seed N]|check|pin COUNT|busy on|busy off|free]",
        "use movable memory: write to nearly all of memory, and free at random until PERCENT is in \
         use; check its contents; pin random runs, moving them out of movable-only memory first; \
         have other CPUs use it during compact, contig and vacate; free it",
    ),
    (
        Builtin::Numa,
        "numa",
        "[default|local|preferred NODE|bind NODES|preferred-many NODES|interleave NODES|weighted \
         NODES [weights=N,N,...]] [count=N] [order=N|pages=N] [type=NAME], or tier NODE TIER, or \
         bandwidth NODE MB/S",
        "allocate under a policy, keep under a handle, and show which nodes served; show nodes; \
         set a node's tier, so that nodes of lower tiers demote pages to it, or its bandwidth, \
         which weights follow until one is written to /sys/kernel/mm/mempolicy/weighted_interleave",
    ),
    (
        Builtin::PageFault1,
        "page_fault1",
        "SECONDS [cpus N]",
        "allocate 2 MiB runs, write to each page, free; on 1, 2, 4, ... and all CPUs, SECONDS each",
    ),
    (Builtin::PageFault2, "page_fault2", "SECONDS [cpus N]", "page_fault1 with single pages"),
    (
        Builtin::Reporting,
        "reporting",
        "[status|flush|pause|resume|pools on|pools off]",
        "show what free page reporting does, report all that is free now, pause, resume; report \
         free pages of pools, too",
    ),
    (
        Builtin::Resize,
        "resize",
        "SIZE COUNT [node N]",
        "write COUNT into the pool's nr_hugepages, and show how long that took and the result",
    ),
    (Builtin::Sleep, "sleep", "SECONDS", "wait"),
    (Builtin::Stat, "stat", "", "show zones and how their memory is used"),
    (Builtin::Stress, "stress", "SECONDS [seed N]", "random traffic on all CPUs, with checks"),
    (
        Builtin::Vacate,
        "vacate",
        "SIZE@ADDRESS|FRAME..FRAME [within MS]",
        "move everything out of whole blocks in at most MS milliseconds, and keep them under a \
         handle",
    ),
    (Builtin::Verify, "verify", "", "recount all memory from the tables"),
];

/// The command with this name.
pub(crate) fn find(name: &str) -> Option<Builtin> {
    ALL.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
}

/// Runs a command.
pub(crate) fn run<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    command: Builtin,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    match command {
        Builtin::Alloc => memory::alloc(shell, arguments, io),
        Builtin::Cache => cache::cache(shell, arguments, io),
        Builtin::Cat => files::cat(shell, arguments, io),
        Builtin::Churn => churn::churn(shell, arguments, io),
        Builtin::Cma => cma::cma(shell, arguments, io),
        Builtin::Compact => moving::compact(shell, arguments, io),
        Builtin::Contig => moving::contig(shell, arguments, io),
        Builtin::Cpu => cpu::cpu(shell, arguments, io),
        Builtin::Cpus => show::cpus(shell, arguments, io),
        Builtin::Dmesg => show::dmesg(shell, arguments, io),
        Builtin::Echo => files::echo(arguments, io),
        Builtin::Exit => exit(shell, arguments, io),
        Builtin::Fragment => churn::fragment(shell, arguments, io),
        Builtin::Free => memory::free(shell, arguments, io),
        Builtin::Grade => grade::grade(shell, arguments, io),
        Builtin::Held => memory::held(shell, arguments, io),
        Builtin::Help => help(shell, arguments, io),
        Builtin::Hotplug => hotplug::hotplug(shell, arguments, io),
        Builtin::Hugetlb => hugetlb::hugetlb(shell, arguments, io),
        Builtin::Ls => files::ls(shell, arguments, io),
        Builtin::Memhog => workload::memhog(shell, arguments, io),
        Builtin::Movable => movable::movable(shell, arguments, io),
        Builtin::Numa => numa::numa(shell, arguments, io),
        Builtin::PageFault1 => faults::page_fault(shell, Order::BLOCK, arguments, io),
        Builtin::PageFault2 => faults::page_fault(shell, Order::PAGE, arguments, io),
        Builtin::Reporting => reporting::reporting(shell, arguments, io),
        Builtin::Resize => hugetlb::resize(shell, arguments, io),
        Builtin::Sleep => workload::sleep(shell, arguments, io),
        Builtin::Stat => show::stat(shell, arguments, io),
        Builtin::Stress => workload::stress(shell, arguments, io),
        Builtin::Vacate => moving::vacate(shell, arguments, io),
        Builtin::Verify => show::verify(shell, arguments, io),
    }
}

fn exit<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let status = match arguments {
        [] => shell.status(),
        [status] => status
            .parse()
            .map_err(|_| io.wrong(format_args!("{status}: a status must be 0 to 255")))?,
        [_, ..] => return Err(io.wrong(format_args!("expected one status"))),
    };
    shell.is_over = true;
    if status == 0 { Ok(()) } else { Err(Failed(status)) }
}

fn help<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let ours = ALL.iter().map(|&(_, name, usage, about)| (name, usage, about));
    let others = shell.others.iter().map(|other| (other.name(), other.usage(), other.about()));
    let all = ours.chain(others);
    match arguments {
        [] => {
            for (name, _, about) in all {
                writeln!(io.out, "{name:<11} {about}")?;
            }
            writeln!(
                io.out,
                "\n`help COMMAND` shows how to use a command; `;` separates commands, `> FILE` \
                 writes to a control file"
            )?;
            Ok(())
        }
        names => {
            for wanted in names {
                let (name, usage, about) = all
                    .clone()
                    .find(|(name, ..)| name == wanted)
                    .ok_or_else(|| io.fail(format_args!("there is no command {wanted}")))?;
                writeln!(
                    io.out,
                    "{name}{}{usage}\n    {about}",
                    if usage.is_empty() { "" } else { " " }
                )?;
            }
            Ok(())
        }
    }
}

/// Fails if a command that takes no arguments got some.
fn none(arguments: &[&str], io: &mut Io<'_>) -> Result<(), Failed> {
    match arguments.first() {
        None => Ok(()),
        Some(first) => Err(io.wrong(format_args!("{first}: this command takes no arguments"))),
    }
}
