//! Examines the page tables in use (`map_space_test=` on the command line): which accesses each
//! mapping allows, and whether the vmemmap keeps its contract on a real CPU.
//!
//! Orders of memory: Relaxed: counters that are read after their writers have ended.

use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use crate::vmemmap::{self, GuestVmemmap};
use crate::{hvo_check, smp, tables};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::firmware::MemoryMap;
use framewright::platform::Platform;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{FrameSource, VmemmapSpace};
use framewright::{Manager, Request};
use framewright_arch::paging::translate;
use framewright_workload::vmemmap_space::{
    AccessFault, Translation, VmemmapSpaceFixture, Walkable, vmemmap_space_contract,
    vmemmap_space_history,
};

/// Where a second vmemmap is tested while the manager uses the first: the next TiB.
const TRIAL_BASE: u64 = vmemmap::BASE + (1 << 40);
/// The byte that frames are filled with once they are out of the vmemmap.
const JUNK: u8 = 0x5a;
/// Most CPUs that look at what a history does; each look at another CPU is an interrupt.
const MOST_CPUS: u32 = 4;
/// Random steps in a history.
const HISTORY_STEPS: u32 = 150;

/// How far the test goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmemmapSpaceTest {
    /// Everything that can be checked without a fault.
    Look,
    /// The checks of `Look`, and then a write to an absent descriptor, which must end in a report.
    Write,
}

impl VmemmapSpaceTest {
    /// The test with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "1" => Some(Self::Look),
            "write" => Some(Self::Write),
            _ => None,
        }
    }

    /// Runs the test. Returns false if something is wrong, and the log says what. A breach of the
    /// contract panics.
    pub fn run(self, manager: &Manager<GuestPlatform>, map: MemoryMap<'_>) -> bool {
        let Some(vmemmap) = vmemmap::get() else {
            log!("map_space_test: there is no vmemmap");
            return false;
        };
        match tables::inspect(map, vmemmap, manager) {
            Ok(found) => log!("map_space_test: {found}"),
            Err(fault) => {
                log!("map_space_test: {fault}");
                return false;
            }
        }
        let outstanding = AtomicU64::new(0);
        let mut frames = ManagerFrames { manager, outstanding: &outstanding };
        // SAFETY: nothing but the first vmemmap is nearby, and that has a TiB at most.
        let trial = match unsafe { vmemmap::make(TRIAL_BASE, 1 << 32, &mut frames) } {
            Ok(trial) => trial,
            Err(error) => {
                log!("map_space_test: {error}");
                return false;
            }
        };
        let mut fixture = Trial::new(trial, manager, outstanding);
        let resting = fixture.outstanding();
        vmemmap_space_contract(|| &fixture);
        log!("map_space_test: the contract holds on this CPU");
        fixture.let_others_look();
        let cpus = fixture.cpus;
        for (seed, stand) in [(1, false), (2, false), (3, true)] {
            if !fixture.let_others_stand(stand) {
                log!("map_space_test: no other CPU can be stopped");
                break;
            }
            vmemmap_space_history(&fixture, seed, HISTORY_STEPS);
            match seed {
                1 => {}
                2 => log!(
                    "map_space_test: two histories of {HISTORY_STEPS} steps agree with the model \
                     on {cpus} CPU{}",
                    if cpus == 1 { "" } else { "s" }
                ),
                _ => log!("map_space_test: so does one while all others are stopped"),
            }
        }
        fixture.let_others_stand(false);
        if fixture.outstanding() != resting {
            log!(
                "map_space_test: {} frames were lost",
                fixture.outstanding().wrapping_sub(resting)
            );
            return false;
        }
        for (name, value) in fixture.vmemmap.counts().vmstat() {
            log!("map_space_test: {name} {value}");
        }
        if !hvo_check::run(manager, map, vmemmap) {
            return false;
        }
        if self == Self::Write {
            write_zero(TRIAL_BASE);
            log!("map_space_test: an absent descriptor was written");
            return false;
        }
        true
    }
}

/// Takes frames from the manager, and counts those that are outstanding.
struct ManagerFrames<'a> {
    manager: &'a Manager<GuestPlatform>,
    outstanding: &'a AtomicU64,
}

// SAFETY: memory that the manager allocates belongs to nobody else, and all of this machine's
// memory is in the direct map.
unsafe impl FrameSource for ManagerFrames<'_> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let range = self.manager.allocate(&Request::new(order)).ok()?;
        self.outstanding.fetch_add(range.pages(), Ordering::Relaxed);
        Some(range.start)
    }

    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        give_back(self.manager, self.outstanding, PfnRange::new(start.0, start.0 + order.pages()));
    }
}

fn give_back(manager: &Manager<GuestPlatform>, outstanding: &AtomicU64, range: PfnRange) {
    // SAFETY: these are the trial's frames. `take` allocated them, and no table names them any more
    // (invariants 12 and 42).
    if let Err(error) = unsafe { manager.free(range) } {
        panic!("frames of the vmemmap cannot be freed: {error}");
    }
    outstanding.fetch_sub(range.pages(), Ordering::Relaxed);
}

/// The second vmemmap, as seen by some CPUs.
struct Trial<'a> {
    vmemmap: GuestVmemmap,
    manager: &'a Manager<GuestPlatform>,
    outstanding: AtomicU64,
    /// The CPUs that look, and how many there are.
    looking: [u32; MOST_CPUS as usize],
    cpus: u32,
    /// Whether the other looking CPUs are parked, except while they look.
    stand: bool,
}

impl<'a> Trial<'a> {
    fn new(
        vmemmap: GuestVmemmap,
        manager: &'a Manager<GuestPlatform>,
        outstanding: AtomicU64,
    ) -> Self {
        let looking = [smp::index(); MOST_CPUS as usize];
        Self { vmemmap, manager, outstanding, looking, cpus: 1, stand: false }
    }

    /// Lets a few running CPUs look from now on.
    fn let_others_look(&mut self) {
        self.cpus = 0;
        for (place, cpu) in self.looking.iter_mut().zip(smp::online().iter()) {
            *place = cpu;
            self.cpus += 1;
        }
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        self.looking.into_iter().take(self.cpus as usize).filter(|&cpu| cpu != smp::index())
    }

    /// Parks all other looking CPUs from now on except while they look, or lets them run again. A
    /// parked CPU is not told of changes. Returns false if one of them does not follow, or there is
    /// none.
    fn let_others_stand(&mut self, stand: bool) -> bool {
        if stand == self.stand {
            return true;
        }
        self.stand = stand;
        let change = if stand { smp::park } else { smp::unpark };
        self.others().all(change) && self.cpus != 1
    }

    /// A word of the vmemmap as the executing CPU sees it.
    fn word(address: usize) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut(address)
    }

    /// Lets the looking CPU number `cpu` do an access, in an interrupt unless it is this CPU.
    fn on(&self, cpu: u32, access: &(dyn Fn() + Sync)) {
        let target = self.looking.get(cpu as usize).copied().unwrap_or(0);
        if target == smp::index() {
            access();
        } else {
            assert!(!self.stand || smp::unpark(target), "CPU {target} does not resume");
            let called = smp::call_on(smp::CpuSet::EMPTY.with(target), access);
            assert_eq!(called, 1, "CPU {target} did not answer");
            assert!(!self.stand || smp::park(target), "CPU {target} does not stop");
        }
    }
}

// SAFETY: the vmemmap is the trial's own, in an address range that nobody else uses, and is
// accessed only by volatile accesses through pointers.
unsafe impl VmemmapSpaceFixture for Trial<'_> {
    fn space(&self) -> &dyn VmemmapSpace {
        &self.vmemmap
    }

    fn frames(&self) -> impl FrameSource {
        ManagerFrames { manager: self.manager, outstanding: &self.outstanding }
    }

    fn free(&self, run: PfnRange) {
        // The frame's next content must differ from what was in the vmemmap, or a stale translation
        // would go unnoticed.
        for pfn in run.start.0..run.end.0 {
            let frame = PLATFORM.direct(Pfn(pfn).address());
            // SAFETY: the frame came out of the tables and is ours until it is freed below
            // (invariant 1).
            unsafe { frame.cast::<[u8; 4096]>().write([JUNK; 4096]) };
        }
        give_back(self.manager, &self.outstanding, run);
    }

    fn outstanding(&self) -> u64 {
        self.outstanding.load(Ordering::Relaxed)
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        if Walkable::translate(self, address).is_none() {
            return Err(AccessFault::Beyond { cpu, address });
        }
        let seen = AtomicU64::new(0);
        self.on(cpu, &|| {
            // SAFETY: mapped and aligned, and only this test uses these descriptors.
            let value = unsafe { Self::word(address).read_volatile() };
            seen.store(value, Ordering::Relaxed);
        });
        Ok(seen.into_inner())
    }

    /// Does not try what the tables forbid, because that would end the guest;
    /// `map_space_test=write` does.
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        let found =
            Walkable::translate(self, address).ok_or(AccessFault::Beyond { cpu, address })?;
        if !found.write {
            return Err(AccessFault::ReadOnly {
                cpu,
                address,
                frame: Pfn::containing(found.physical),
            });
        }
        self.on(cpu, &|| {
            // SAFETY: as in `load`, and the address is writable.
            unsafe { Self::word(address).write_volatile(value) };
        });
        Ok(())
    }
}

impl Walkable for Trial<'_> {
    fn translate(&self, address: usize) -> Option<Translation> {
        let (physical, _, access) =
            translate(&tables::InUse, self.vmemmap.layout().root, address as u64)?;
        Some(Translation { physical, write: access.write, execute: access.execute })
    }

    fn zero_frame(&self) -> u64 {
        self.vmemmap.zero_frame().address()
    }

    fn tables(&self) -> u64 {
        self.vmemmap.counts().tables
    }
}

/// Written in assembly, because such an access is undefined behaviour in Rust.
fn write_zero(address: u64) {
    // SAFETY: the tables forbid this write, so an exception ends the program here. If they do not,
    // it only changes the zero frame of a test that is over.
    unsafe { asm!("mov byte ptr [{}], 0", in(reg) address, options(nostack)) };
}
