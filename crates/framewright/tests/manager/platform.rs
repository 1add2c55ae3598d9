//! Platforms that break their contract: bring-up refuses each of them with a reason, and nothing is
//! lost.

use framewright::manager::PlatformFault;
use framewright::units::{NodeId, PAGE_SIZE, PhysRange};
use framewright::zone::{ZoneId, ZoneKind};
use framewright::{BringUp, BringUpError, IrqState, Manager, Parameters, PinnedCpu, Platform};
use framewright_testkit::{FakeMachine, memblock_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// A platform that says something wrong about its machine. It has no barrier.
struct Wrong {
    machine: &'static FakeMachine,
    cpus: u32,
    cpu: u32,
    /// How far behind its correct place memory is shown.
    offset: usize,
}

impl Wrong {
    fn new(cpus: u32, cpu: u32, offset: usize) -> &'static Self {
        let machine = FakeMachine::builder().ram(PhysRange::new(0, 32 << 20)).build();
        Box::leak(Box::new(Self { machine, cpus, cpu, offset }))
    }
}

// SAFETY: the machine keeps the promises, except those that a test breaks; no test relies on those.
unsafe impl Platform for Wrong {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        // SAFETY: memory that is shown at a wrong place is not touched; the place is inside the
        // page or right behind it.
        unsafe { self.machine.direct(pa).add(self.offset) }
    }

    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(self.cpu)
    }

    fn irq_save(&self) -> IrqState {
        self.machine.irq_save()
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        // SAFETY: passed on from the caller.
        unsafe { self.machine.irq_restore(state) };
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn can_wait(&self) -> bool {
        true
    }
}

fn bring_up(platform: &'static Wrong) -> Result<Manager<Wrong>, BringUpError> {
    let machine = platform.machine;
    let parameters = Parameters::default();
    let early = memblock_of(platform, machine.map(), machine.topology(), &[]).expect("early");
    let input = BringUp { parameters: &parameters, started_ns: None };
    Ok(Manager::bring_up(early, &input)?)
}

fn fault(platform: &'static Wrong) -> PlatformFault {
    let error = bring_up(platform).err().expect("it is refused");
    assert!(error.to_string().contains("Platform::"), "{error}");
    match error {
        BringUpError::Platform(fault) => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn a_platform_that_is_right_is_taken() {
    bring_up(Wrong::new(1, 0, 0)).expect("nothing is wrong").verify().expect("nothing is wrong");
}

#[test]
fn a_machine_has_cpus_and_their_numbers_are_below() {
    assert_eq!(fault(Wrong::new(0, 0, 0)), PlatformFault::NoCpu);
    assert_eq!(fault(Wrong::new(1, 1, 0)), PlatformFault::CpuNumber { cpu: 1, cpus: 1 });
    assert_eq!(fault(Wrong::new(4, 7, 0)), PlatformFault::CpuNumber { cpu: 7, cpus: 4 });
}

#[test]
fn pages_are_shown_at_places_of_pages() {
    for offset in [1, 8, 64, 2048] {
        let expected =
            PlatformFault::MisalignedDirectMap { address: PAGE_SIZE, offset: offset as u64 };
        assert_eq!(fault(Wrong::new(1, 0, offset)), expected);
    }
}

#[test]
fn several_cpus_without_a_barrier_are_found_at_bring_up() {
    let panic =
        catch_unwind(AssertUnwindSafe(|| bring_up(Wrong::new(2, 0, 0)))).err().expect("it is loud");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("Platform::cpu_barrier is not implemented"), "{text}");
}

#[test]
fn a_zone_is_looked_at_through_its_own_manager_only() {
    let manager = bring_up(Wrong::new(1, 0, 0)).expect("up");
    let views = manager.views().map(|zone| (zone.id(), zone.verify().expect("right").free_pages));
    assert!(views.eq(manager.zones().iter().map(|zone| (zone.id(), zone.free_pages()))));
    for node in [0, 1] {
        let id = ZoneId { node: NodeId::new(node).expect("a node"), kind: ZoneKind::Normal };
        let (view, zone) = (manager.view(id), manager.zones().iter().find(|zone| zone.id() == id));
        assert_eq!(view.map(|zone| zone.free_pages()), zone.map(|zone| zone.free_pages()));
    }
}
