//! A machine and its passes: memory that this process has reserved becomes a manager and back
//! again.

use crate::error::Error;
use crate::log::Silent;
use framewright::bootlog::{self, BootLog};
use framewright::firmware::{
    MapBuilder, MapRange, MemoryAffinity, MemoryKind, MemoryMap, Topology,
};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::platform::Platform;
use framewright::stores::Line;
use framewright::units::PhysRange;
use framewright::{BringUp, Manager, Parameters};
use framewright_hosted::{HostNodes, HostedHelpers, HostedPlatform, Machine};
use framewright_jobs::{Helpers, NoHelpers};
use serde_json::Value;
use std::ptr::NonNull;
use std::time::Duration;

/// Room in the map for what boot parameters add, beyond what the machine itself needs.
const ROOM_FOR_PARAMETERS: usize = 160;

/// If the machine has a memory map and is larger than this, memory beyond `mem=` is not mapped.
const MOST_SPARE_BYTES: u64 = 64 << 30;

/// Returns the CPU time that this process has used, in seconds.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the argument is a live value of the type that the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A machine whose memory this process has reserved and nobody manages. It becomes a [`Pass`] and
/// then a session again, so there is at most one manager at a time.
pub struct Session<'a> {
    machine: &'a Machine,
    command_line: &'a str,
    platform: &'static HostedPlatform,
    /// How the memory of its nodes was placed on the host; `None` if it has one node.
    placed: Option<HostNodes>,
    /// Why the machine has no vmemmap although it should have one.
    no_array: Option<String>,
    /// The initial value of descriptors in the array, if it is not zero.
    template: Option<[u64; 7]>,
}

impl<'a> Session<'a> {
    /// Reserves the machine's memory without touching it.
    ///
    /// # Errors
    /// The memory map describes no usable machine, or this process has no room for it.
    pub fn open(machine: &'a Machine, command_line: &'a str) -> Result<Self, Error> {
        let mut storage = Storage::of(machine);
        let intake = Intake::take(machine, command_line, &mut storage, &mut Silent, true)?;
        let open = if intake.parameters.careful.is_some() {
            HostedPlatform::open_askew
        } else {
            HostedPlatform::open
        };
        let platform = open(intake.map, machine.cpu_count()).map_err(|error| {
            Error::Failed(format!("this process cannot simulate the machine: {error}"))
        })?;
        let several = intake.topology.node_count() > 1;
        let placed = several.then(|| platform.place_nodes(intake.map, &intake.topology));
        let mut platform = platform;
        if intake.map.ranges().iter().any(|entry| entry.kind == MemoryKind::Unaccepted) {
            platform = platform
                .with_acceptance(intake.map)
                .map_err(|error| Error::Failed(error.to_string()))?;
        }
        let cpu_nodes = if intake.parameters.numa { machine.cpu_nodes() } else { Vec::new() };
        let mut platform = platform.with_cpu_nodes(&cpu_nodes);
        let mut no_array = None;
        if intake.parameters.pages.are_wanted(true) {
            no_array = too_much(platform.vmemmap_bytes());
            if no_array.is_none() {
                platform = platform
                    .with_vmemmap(false, intake.parameters.careful.is_some())
                    .map_err(|error| Error::Failed(error.to_string()))?;
            }
        }
        Ok(Self {
            machine,
            command_line,
            platform: platform.leak(),
            no_array,
            placed,
            template: None,
        })
    }

    /// Returns this machine with other boot parameters from now on.
    pub fn with_command_line(self, command_line: &'a str) -> Self {
        Self { command_line, ..self }
    }

    /// Sets how long accepting 2 MiB of memory takes from now on.
    pub fn with_accept_delay(self, of_a_block: Duration) -> Self {
        self.platform.set_accept_delay(of_a_block);
        self
    }

    /// Returns this machine with another initial value of descriptors.
    pub fn with_template(self, template: Option<[u64; 7]>) -> Self {
        Self { template, ..self }
    }

    /// Drops the memory behind the vmemmap, so that the next bring-up touches it first.
    ///
    /// # Errors
    /// The system refuses to drop it.
    pub fn forget_page_array(&self) -> Result<(), Error> {
        // SAFETY: a session without a pass has no manager.
        unsafe { self.platform.discard_vmemmap() }
            .map_err(|error| Error::Failed(format!("the vmemmap cannot be dropped: {error}")))
    }

    /// Returns the parts of the vmemmap's memory that describe present memory.
    pub fn vmemmap_parts(&self) -> Vec<(NonNull<u8>, usize)> {
        self.platform.vmemmap_parts().collect()
    }

    /// Fills the vmemmap with 0xa5, so that the system backs it and it is full of old data.
    pub fn dirty_page_array(&self) {
        // SAFETY: a session without a pass has no manager.
        unsafe { self.platform.prefault_vmemmap(0xa5) };
    }

    /// Whether the machine has a vmemmap.
    pub fn has_page_array(&self) -> bool {
        self.platform.vmemmap_space().is_some()
    }

    /// Returns the name of the store that writes the vmemmap if descriptors begin as a template, or
    /// as zero.
    pub fn store_name(&self, template: bool) -> Option<&'static str> {
        let line = Line([0, u64::from(template), 0, 0, 0, 0, 0, 0]);
        Some(self.platform.vmemmap_space()?.store(&line).name())
    }

    /// Brings the machine up from nothing: from intake to the first allocation and on to the last
    /// frame, including deferred memory.
    ///
    /// # Errors
    /// The memory map describes no usable machine, or one too small to be brought up.
    pub fn bring_up(self, log: &mut dyn BootLog) -> Result<Pass<'a>, Error> {
        self.bring_up_to(log, Some(HostedHelpers::shared()))
    }

    /// Like [`bring_up`](Self::bring_up), but without helpers for deferred memory.
    ///
    /// # Errors
    /// As for [`bring_up`](Self::bring_up).
    pub fn bring_up_alone(self, log: &mut dyn BootLog) -> Result<Pass<'a>, Error> {
        self.bring_up_to(log, Some(&NoHelpers))
    }

    /// Like [`bring_up`](Self::bring_up), but without a log, and deferred memory stays withheld
    /// until it is needed.
    ///
    /// # Errors
    /// As for [`bring_up`](Self::bring_up).
    pub fn bring_up_withheld(self) -> Result<Pass<'a>, Error> {
        self.bring_up_to(&mut Silent, None)
    }

    fn bring_up_to(
        self,
        log: &mut dyn BootLog,
        helpers: Option<&dyn Helpers>,
    ) -> Result<Pass<'a>, Error> {
        // Intake runs once for the log and once for the clock, because writing lines takes longer
        // than the work that they report.
        Intake::take(self.machine, self.command_line, &mut Storage::of(self.machine), log, false)?;
        let mut storage = Storage::of(self.machine);
        let before_cpu_seconds = cpu_seconds();
        let started_ns = self.platform.now_ns();
        let mut intake =
            Intake::take(self.machine, self.command_line, &mut storage, &mut Silent, false)?;
        intake.parameters.page_template = self.template;
        let Intake { map, topology, parameters, .. } = &intake;
        let mut regions = MemblockStorage::new();
        // SAFETY: a session without a pass has no manager.
        unsafe { self.platform.forget_accepted() }
            .map_err(|error| Error::Failed(error.to_string()))?;
        // SAFETY: the session's memory holds nothing, and a session has one manager at a time
        // (invariant 1).
        let early = unsafe { Memblock::new(self.platform, &mut regions, *map, topology) };
        let early = early.and_then(|mut early| {
            let mut ranges = self.machine.mirrored.iter();
            ranges.try_for_each(|&range| early.mark_mirrored(range)).map(|()| early)
        });
        let early = early.map_err(|error| {
            Error::Failed(format!("the memblock allocator cannot start: {error}"))
        })?;
        let manager = Manager::bring_up(early, &BringUp { parameters, started_ns })
            .map_err(|error| Error::Failed(format!("memory cannot be brought up: {error}")))?;
        if let Some(helpers) = helpers {
            manager.vmemmap().initialise_deferred(helpers);
        }
        let cpu_seconds = cpu_seconds() - before_cpu_seconds;
        let pools = manager.hugetlb().fill(parameters, HostedHelpers::shared());
        if let Some(placed) = &self.placed {
            log.line(format_args!("Host memory: {placed}"));
        }
        if let Some(reason) = &self.no_array {
            log.line(format_args!("{reason}"));
        }
        bootlog::bring_up(log, &bootlog::Intake { map: *map, topology, parameters }, &manager);
        bootlog::deferred(log, &manager);
        bootlog::huge_pages(log, &pools);
        let mut text = String::new();
        bootlog::json(&mut text, "hosted", &manager)
            .map_err(|_| Error::Failed("the report cannot be written".into()))?;
        let report = serde_json::from_str(&text)
            .map_err(|error| Error::Failed(format!("the library's report is not JSON: {error}")))?;
        Ok(Pass { session: self, manager, report, cpu_seconds })
    }
}

/// A machine that has been brought up.
pub struct Pass<'a> {
    session: Session<'a>,
    manager: Manager<HostedPlatform>,
    /// The library's report.
    pub report: Value,
    /// The CPU time from the beginning of intake until nothing was deferred any more.
    pub cpu_seconds: f64,
}

impl<'a> Pass<'a> {
    /// The manager of the machine's memory.
    pub fn manager(&self) -> &Manager<HostedPlatform> {
        &self.manager
    }

    /// Recounts all memory from the tables.
    ///
    /// # Errors
    /// The tables contradict each other or the counters.
    pub fn verify(&self) -> Result<(), Error> {
        let wrong = |fault| Error::Failed(format!("internal error, please report it: {fault}"));
        self.manager.verify().map(drop).map_err(wrong)
    }

    /// Ends the manager and fills the memory of its tables and of the vmemmap with 0xa5. The next
    /// bring-up then finds memory as on a machine that has been in use: backed by the system and
    /// full of old data.
    ///
    /// # Errors
    /// The tables do not belong to this machine.
    pub fn end_dirty(self) -> Result<Session<'a>, Error> {
        let Self { session, manager, .. } = self;
        let tables = manager.zones().iter().map(framewright::zone::Zone::table_memory);
        let tables: Vec<PhysRange> = tables.filter(|range| !range.is_empty()).collect();
        for range in tables {
            // SAFETY: the manager that had these tables ends here, and a session has one manager at
            // a time.
            unsafe { session.platform.prefault(range, 0xa5) }.map_err(|error| {
                Error::Failed(format!("the tables cannot be overwritten: {error}"))
            })?;
        }
        if manager.vmemmap().bytes() != 0 {
            session.dirty_page_array();
        }
        Ok(session)
    }
}

/// Returns how many bytes this host has available, if it says so.
pub fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns why this host should not be asked for a vmemmap of this many bytes, or `None` if it can
/// be.
fn too_much(bytes: u64) -> Option<String> {
    let available = available_bytes()?;
    (bytes > available / 2).then(|| {
        let (bytes, available) = (bytes >> 20, available >> 20);
        format!(
            "Memory map: an array of {bytes} MiB is more than half of the {available} MiB that \
             this host has available"
        )
    })
}

/// Storage for intake.
struct Storage {
    ranges: Vec<MapRange>,
    claims: Vec<MemoryAffinity>,
    distances: Vec<u8>,
}

impl Storage {
    fn of(machine: &Machine) -> Self {
        let mut ranges = machine.map_storage();
        ranges.resize(ranges.len() + ROOM_FOR_PARAMETERS, MapRange::EMPTY);
        Self { ranges, claims: machine.topology_storage(), distances: machine.distance_storage() }
    }
}

/// What firmware and the command line say, after checks.
struct Intake<'a> {
    map: MemoryMap<'a>,
    topology: Topology<'a>,
    parameters: Parameters,
}

impl<'a> Intake<'a> {
    fn take(
        machine: &Machine,
        command_line: &str,
        storage: &'a mut Storage,
        log: &mut dyn BootLog,
        all: bool,
    ) -> Result<Self, Error> {
        let refused = |error: &dyn std::fmt::Display| Error::Usage(error.to_string());
        let mut map = MapBuilder::new(&mut storage.ranges);
        let mut topology =
            Topology::new(&mut storage.claims).with_distances(&mut storage.distances);
        machine.load(&mut map, &mut topology).map_err(|error| refused(&error))?;
        log.line(format_args!("Framewright {}: {}", env!("CARGO_PKG_VERSION"), machine.name));
        machine.notes.iter().for_each(|note| log.line(format_args!("Machine: {note}")));
        log.line(format_args!("Command line: {command_line}"));
        bootlog::firmware_map(log, &machine.ranges);
        let (mirrored_bytes, all_bytes) = machine.mirrored_bytes();
        bootlog::mirrored(log, mirrored_bytes, all_bytes);
        let parameters = Parameters::parse(command_line, &mut |problem| {
            bootlog::parameter_problem(&mut *log, problem)
        });
        if !parameters.numa {
            topology.flatten();
        }
        let mut applied = parameters.clone();
        // Memory that `mem=` leaves out exists nevertheless, and can be added later.
        let bytes: u64 = machine.ranges.iter().map(|entry| entry.range.size()).sum();
        if all && (bytes <= MOST_SPARE_BYTES || !parameters.pages.are_wanted(true)) {
            applied.memory_limit = None;
        }
        applied.apply(&mut map).map_err(|error| refused(&error))?;
        bootlog::topology(log, &topology);
        let map = map.finish().map_err(|error| refused(&error))?;
        Ok(Self { map, topology, parameters })
    }
}
