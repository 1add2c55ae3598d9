//! The reference guest. It boots on a bare x86-64 machine, brings up its memory, reports, and ends.
//! It only wires crates together.
//!
//! 1. QEMU (`q35` or `pc`, any 64-bit CPU model with the no-execute bit) loads the ELF file at 2
//!    MiB and, following its PVH note, jumps to 32-bit code.
//! 2. `boot.s` maps the first 4 GiB with 2 MiB pages, at their own addresses and at
//!    `0xffff800000000000`, and enters 64-bit mode.
//! 3. `main.rs` sets up exceptions, reads the PVH start information, and measures the clock against
//!    the HPET, the ACPI timer or the interval timer, whichever it finds running first.
//! 4. Intake: the memory map goes into `MapBuilder`, and ACPI's MADT, SRAT and SLIT into
//!    `Topology`. The log names malformed ACPI tables, and boot goes on with one node or, if only
//!    the distances (SLIT) are wrong, with all nodes at the usual distances. From here to the end
//!    of step 7's bring-up nothing is logged, so that the times do not include the serial port.
//! 5. The memblock allocator is set up, and the final page tables are built in its memory
//!    (`direct_map.rs`). They map first what the boot tables reach and then, once they are in use,
//!    the rest in steps of 64 GiB, each of which raises `direct_limit`.
//! 6. The other CPUs of the MADT are told to start, all at once. A page below 1 MiB
//!    (`smp/trampoline.s`) takes them from real mode to their stacks. CPU 0 does not wait for them.
//! 7. `Manager::bring_up` runs. Then the guest checks which CPUs came up, reports, and recounts all
//!    tables.
#![no_std]
#![no_main]

mod accept;
mod balloon;
mod console;
mod cpu_check;
mod direct_map;
mod exceptions;
mod exit;
mod faults;
mod files;
mod firmware;
mod hvo_check;
mod image;
mod mapping;
mod options;
mod platform;
mod release;
mod shell;
mod smp;
mod storage;
mod storm;
mod stress;
mod tables;
mod timekeeping;
mod typed;
mod virtio;
mod virtio_mem;
mod vmemmap;
mod vmemmap_check;
mod watch;
mod window;

use console::{Console, Log, log, plain_line};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use exceptions::Turn;
use exit::{Ending, exit};
use firmware::{
    AFFINITY_CAPACITY, AcpiTables, COPIES_BYTES, MAP_CAPACITY, RESERVED_CAPACITY, Reserved,
    as_used, copy_raw_map, divide, memory_map, physical, read_nodes,
};
use framewright::firmware::{MapError, MapRange, MemoryAffinity, Topology};
use framewright::memblock::{MemblockError, MemblockStorage};
use framewright::platform::Platform;
use framewright::{BringUp, BringUpError, Manager, Parameters, bootlog};
use framewright_arch::acpi::Tables;
use framewright_arch::paging::MapFault;
use framewright_arch::x86_64::pvh::{PvhError, StartInfo};
use framewright_freestanding as _;
use options::Options;
use platform::{EarlyMemory, GuestPlatform, PLATFORM};
use storage::Once;

// One assembly block, because the second file uses a macro of the first.
core::arch::global_asm!(
    concat!(include_str!("boot.s"), include_str!("smp/trampoline.s")),
    options(att_syntax)
);

// Statics in `.bss.init` and `.init.data` are released after boot, so no reference to them may
// remain (`release`).
#[unsafe(link_section = ".bss.init")]
static COPIES: Once<[u8; COPIES_BYTES]> = Once::new([0; COPIES_BYTES]);
/// The command line as it came. Words refer to it for as long as the guest runs.
static WHOLE_LINE: Once<[u8; options::CAPACITY]> = Once::new([0; options::CAPACITY]);
static COMMAND_LINE: Once<[u8; options::CAPACITY]> = Once::new([0; options::CAPACITY]);
#[unsafe(link_section = ".init.data")]
static RAW_MAP: Once<[MapRange; MAP_CAPACITY]> = Once::new([MapRange::EMPTY; MAP_CAPACITY]);
static MAP: Once<[MapRange; MAP_CAPACITY]> = Once::new([MapRange::EMPTY; MAP_CAPACITY]);
static AFFINITIES: Once<[MemoryAffinity; AFFINITY_CAPACITY]> =
    Once::new([MemoryAffinity::EMPTY; AFFINITY_CAPACITY]);
/// Distances between 128 nodes, the most that QEMU can have.
static DISTANCES: Once<[u8; 128 * 128]> = Once::new([0; 128 * 128]);
#[unsafe(link_section = ".bss.init")]
static RESERVED: Once<Reserved> = Once::new(Reserved::new());
static EARLY: Once<MemblockStorage> = Once::new(MemblockStorage::new());

/// Why memory cannot be brought up.
enum BootError {
    Words(u32),
    Start(PvhError),
    Map(MapError),
    TooManyReserved,
    Early(MemblockError),
    DirectMap(MapFault),
    BringUp(BringUpError),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(count) => {
                let are = if *count == 1 { "is" } else { "are" };
                write!(
                    f,
                    "{count} of the guest's parameters {are} wrong, see above (`framewright boot \
                     --help` lists all)"
                )
            }
            Self::Start(error) => error.fmt(f),
            Self::Map(error) => error.fmt(f),
            Self::TooManyReserved => {
                write!(
                    f,
                    "the boot loader and ACPI left more than {RESERVED_CAPACITY} ranges in memory"
                )
            }
            Self::Early(error) => error.fmt(f),
            Self::DirectMap(error) => error.fmt(f),
            Self::BringUp(error) => error.fmt(f),
        }
    }
}

/// Entered from `boot.s` with paging on, interrupts off, and `start_info` as the boot loader gave
/// it.
#[unsafe(no_mangle)]
extern "C" fn guest_main(start_info: u64) -> ! {
    smp::begin();
    console::begin();
    PLATFORM.start_time();
    PLATFORM.choose_wait();
    log!("Framewright {} on x86-64, started through PVH", env!("CARGO_PKG_VERSION"));
    exceptions::install();
    match boot(start_info) {
        Ok(ending) => exit(ending),
        Err(error) => {
            log!("Framewright: cannot bring up memory: {error}");
            exit(Ending::Refused)
        }
    }
}

/// Brings up memory and reports. Nothing is logged between the beginning of the intake and the end
/// of bring-up, so that the times do not include the serial port.
fn boot(start_info: u64) -> Result<Ending, BootError> {
    let (start_copies, acpi_copies) = divide(COPIES.take());
    let start_info =
        StartInfo::read(&physical, start_info, start_copies).map_err(BootError::Start)?;
    let tables = open_acpi(&start_info, acpi_copies);
    timekeeping::start(&start_info, tables.as_ref());
    // Without the line, memory that it reserves would be used, and tests that it asks for would
    // seem to pass.
    let line = start_info.command_line().map_err(BootError::Start)?;
    let line = options::keep(line, WHOLE_LINE.take());
    log!("Command line: {line}");
    let rest = COMMAND_LINE.take();
    let mut refused_words = 0;
    let (options, line) = options::split(line, rest, &mut |problem| {
        log!("\"{}\": {}", problem.word, problem.reason.unwrap_or("unknown"));
        refused_words += 1;
    });
    let parameters = Parameters::parse(line, &mut |problem| match options::meant(problem.word) {
        // If this were ignored, a misspelt test would seem to have passed.
        Some(name) if problem.reason.is_none() => {
            let word = problem.word;
            if word == name {
                log!("\"{word}\": its value is missing: {name}=...");
            } else {
                log!("\"{word}\": unknown; did you mean {name}?");
            }
            refused_words += 1;
        }
        // Other unknown words are allowed: boot lines carry words for others, as Linux's do.
        _ => bootlog::parameter_problem(&mut Log, problem),
    });
    if refused_words > 0 {
        return Err(BootError::Words(refused_words));
    }
    for (word, missing) in options.without_effect() {
        log!("{word} has no effect without {missing}");
    }
    let raw_map = RAW_MAP.take();
    bootlog::firmware_map(&mut Log, copy_raw_map(&start_info, raw_map));

    let started_ns = PLATFORM.now_ns();
    let map_end = direct_map::end();
    let found = memory_map(&start_info, &parameters, map_end, raw_map);
    let (found, lost_bytes) = found.map_err(BootError::Map)?;
    let mut topology = Topology::new(AFFINITIES.take()).with_distances(DISTANCES.take());
    let nodes = read_nodes(tables.as_ref(), &parameters, &mut topology);
    let left_out = smp::list(tables.as_ref(), &topology, options.ghost_cpu);
    let reserved = RESERVED.take();
    let collected = reserved.collect(&start_info, tables.as_ref(), found);
    collected.map_err(|_| BootError::TooManyReserved)?;
    let unaccepted = options.unaccepted();
    let map = as_used(found, unaccepted.as_ref(), reserved.ranges(), MAP.take());
    let map = map.map_err(BootError::Map)?;
    accept::begin(map, unaccepted.as_ref());
    let mut early = EarlyMemory::empty(&PLATFORM, EARLY.take(), &topology);
    early.set_movable_node(parameters.movable_node);
    // SAFETY: nobody uses memory that the boot loader calls usable and `Reserved` does not name,
    // and this runs once (invariant 1).
    unsafe { early.start(map, reserved.ranges()) }.map_err(BootError::Early)?;
    let intake_ns = PLATFORM.now_ns();
    let (kernel_tables, mapped) =
        direct_map::build(&mut early, map, accept::attach).map_err(BootError::DirectMap)?;
    let mapped_ns = PLATFORM.now_ns();
    let vmemmap = vmemmap::build(&mut early, map);
    smp::on_timer(storm::strike);
    platform::set_barrier(smp::barrier);
    let started = smp::start(&kernel_tables, &mut early, left_out);
    let called_ns = PLATFORM.now_ns();
    let manager = Manager::bring_up(early, &BringUp { parameters: &parameters, started_ns })
        .map_err(|failed| BootError::BringUp(failed.error))?;
    manager.vmemmap().initialise_deferred(&smp::GuestHelpers);
    let up_ns = PLATFORM.now_ns();
    let pools = manager.hugetlb().fill(&parameters, &smp::GuestHelpers);

    if lost_bytes > 0 {
        log!(
            "{} KiB of memory lie at {map_end:#x} or above, beyond the reach of the CPU or the \
             direct map: not used",
            lost_bytes.div_ceil(1024)
        );
    }
    if let Err(error) = nodes {
        let without = if topology.node_count() > 1 {
            "without distances between nodes"
        } else {
            "with one node"
        };
        log!("{error}; going on {without}");
    }
    bootlog::topology(&mut Log, &topology);
    started.finish();
    // CPUs that did not start must not keep memory from the others.
    for absent in smp::all().filter(|cpu| !cpu.is_online()) {
        let _ = manager.cpus().offline(absent.index());
    }
    let since = |start: Option<u64>, end: Option<u64>| {
        start.zip(end).map_or(0, |(start, end)| (end - start) / 1000)
    };
    log!(
        "Direct map at {:#x}: {} pages of 1 GiB, {} of 2 MiB, {} of 4 KiB in {} tables",
        platform::DIRECT_MAP,
        mapped.large,
        mapped.medium,
        mapped.small,
        mapped.tables,
    );
    log!(
        "Framewright: intake {} us, direct map {} us, calling CPUs {} us, bring-up {} us",
        since(started_ns, intake_ns),
        since(intake_ns, mapped_ns),
        since(mapped_ns, called_ns),
        since(called_ns, up_ns),
    );
    vmemmap::report(&vmemmap);
    let intake = bootlog::Intake { map, topology: &topology, parameters: &parameters };
    bootlog::bring_up(&mut Log, &intake, &manager);
    bootlog::deferred(&mut Log, &manager);
    bootlog::huge_pages(&mut Log, &pools);
    // SAFETY: what firmware and the boot loader left was copied, and nobody uses modules. From here
    // on nobody has a reference to the copies, to the map as it came, or to `reserved`: the command
    // line is kept, and `parameters`, `topology` and `map` have memory of their own.
    unsafe { release::boot_memory(&manager, reserved) };
    // SAFETY: as for `boot_memory`, which was the last to read `reserved`.
    unsafe { release::image(&manager, &kernel_tables) };
    // With a shell, its `verify` command does this; checking millions of descriptors takes long.
    if options.shell.is_none() {
        match manager.verify() {
            Ok(counts) => log!(
                "Framewright: verified, {} of {} pages free",
                counts.free_pages,
                counts.present_pages
            ),
            Err(fault) => {
                log!("Framewright: the tables are wrong: {fault}");
                return Ok(Ending::Crash);
            }
        }
    }
    if let Some(wait) = options.balloon_test
        && !balloon::test(&manager, &parameters, map, wait)
    {
        return Ok(Ending::Crash);
    }
    if let Some(wait) = options.virtio_mem_test
        && !virtio_mem::test(&manager, &topology, map, wait)
    {
        return Ok(Ending::Crash);
    }
    if let Some(test) = options.map_space_test
        && !test.run(&manager, map)
    {
        return Ok(Ending::Crash);
    }
    if options.check_cpus && !cpu_check::run() {
        return Ok(Ending::Crash);
    }
    if options.check_release && !release::check(&manager, map) {
        return Ok(Ending::Crash);
    }
    if options.storm_hz.is_some() && !smp::has_timer() {
        log!("Framewright: interrupt_storm= needs a timer of known rate");
    }
    if let Some(stress) = options.stress()
        && !stress.run(&manager)
    {
        return Ok(Ending::Crash);
    }
    if let Some(fault) = options.fault {
        let cpu = options.fault_cpu.unwrap_or_default();
        if cpu == 0 {
            fault.raise(&manager);
        } else if smp::run_on(smp::CpuSet::EMPTY.with(cpu), &|| fault.raise(&manager), || {}) == 0 {
            log!("Framewright: CPU {cpu} does not run");
            return Ok(Ending::Crash);
        }
        log!("Framewright: the requested fault did not occur");
        return Ok(Ending::Crash);
    }
    let with_memory = |memory: Option<&mut virtio_mem::Driver<'_>>| {
        if options.balloon_test.is_some() {
            // The test has used the balloon already, and it can be used only once.
            finish(&options, &manager, None, memory);
        } else {
            balloon::with_reports(&manager, &parameters, map, |driver| {
                finish(&options, &manager, driver, memory)
            });
        }
    };
    if options.virtio_mem_test.is_some() {
        // The test has used this device already, too.
        with_memory(None);
    } else {
        virtio_mem::with(&manager, &topology, map, with_memory);
    }
    plain_line(format_args!("@end"));
    Ok(Ending::Success)
}

/// Does what comes last: reports, and the shell.
fn finish(
    options: &Options<'_>,
    manager: &Manager<GuestPlatform>,
    mut driver: Option<&mut balloon::Driver<'_>>,
    memory: Option<&mut virtio_mem::Driver<'_>>,
) {
    if let Some(seconds) = options.reporting {
        match &mut driver {
            Some(driver) if driver.reports() => driver.wait(seconds),
            _ => log!("Framewright: reporting= needs a balloon that takes reports"),
        }
    }
    if options.json {
        // The serial port cannot fail.
        let _ = Console.write_str("@json ");
        let _ = bootlog::json(&mut Console, "qemu", manager);
        let _ = Console.write_str("\n");
    }
    shell::run(options, manager, driver, memory);
}

/// Opens the ACPI tables. Without them, or if they cannot be read, the guest goes on with one node.
fn open_acpi(start_info: &StartInfo<'_>, copies: &'static mut [u8]) -> Option<AcpiTables> {
    let Some(rsdp) = start_info.rsdp else {
        log!("ACPI: the boot loader names no tables; going on with one node");
        return None;
    };
    match Tables::open(&physical, rsdp, copies) {
        Ok(tables) => Some(tables),
        Err(error) => {
            log!("{error}; going on with one node");
            None
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    if matches!(exceptions::fail(), Turn::First) {
        let cpu = smp::index();
        match info.location() {
            Some(place) => log!("Panic on CPU {cpu} at {place}: {}", info.message()),
            None => log!("Panic on CPU {cpu}: {}", info.message()),
        }
    }
    exit(Ending::Crash)
}
