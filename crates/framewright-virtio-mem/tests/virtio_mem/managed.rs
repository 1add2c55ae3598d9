//! The manager's memory in a device's region.

use crate::common::{MIB, START, start};
use framewright::manager::{BringUp, Budget, Group};
use framewright::units::{NodeId, PhysRange};
use framewright::zone::Presence;
use framewright::{Manager, Parameters};
use framewright_testkit::FakeMachine;
use framewright_testkit::virtio_mem::FakeVirtioMem;
use framewright_virtio_mem::{ManagedMemory, PluggableMemory as _, Removal};

/// Creates a manager of 256 MiB, and 64 MiB that may be plugged.
fn manager() -> (Manager<FakeMachine>, PhysRange) {
    manager_of(64 * MIB, "")
}

/// Creates a manager of 256 MiB, and so much that may be plugged.
fn manager_of(spare_bytes: u64, line: &str) -> (Manager<FakeMachine>, PhysRange) {
    let region = PhysRange::new(START, START + spare_bytes);
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 256 * MIB)).spare(region).build();
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(machine.memblock(&[]), &input);
    (manager.map_err(|failure| failure.error).expect("bring-up"), region)
}

fn memory(manager: &Manager<FakeMachine>, region: PhysRange) -> ManagedMemory<'_, FakeMachine> {
    // SAFETY: nobody looks at descriptors by number.
    unsafe { ManagedMemory::new(manager, region, NodeId::ZERO, None, Budget::UNLIMITED) }
}

/// The region of a device with blocks of 1 MiB: a part that is no whole unit is never added.
#[test]
fn a_region_that_begins_and_ends_between_two_units_shrinks() {
    let (manager, all) = manager();
    let region = PhysRange::new(all.start + MIB, all.end - MIB);
    let mut memory = memory(&manager, region);
    // SAFETY: nobody else has it.
    assert_eq!(unsafe { memory.add(START + 2 * MIB, 60 * MIB) }, 60 * MIB);
    let (start_bytes, size_bytes) = (START + 2 * MIB, 60 * MIB);
    let removed = memory.remove(size_bytes, 2 * MIB);
    assert_eq!(removed, Removal::Run { start_bytes, size_bytes }, "{:?}", memory.take_error());
    // Nothing of a unit is in it.
    let removed = memory.remove(size_bytes, 128 * MIB);
    assert_eq!(removed, Removal::Nothing { obstacles: 0 });
    assert!(memory.take_error().is_none());
}

/// Memory that the administrator took offline is still offline after a busy device refused it.
#[test]
fn a_refusal_leaves_offline_memory_offline() {
    let (manager, region) = manager();
    let host = FakeVirtioMem::new();
    let mut device = start(&host).expect("a device that is well");
    let mut work = |now_ns| {
        for _ in 0..10 {
            let mut memory = memory(&manager, region);
            // SAFETY: there is one manager.
            unsafe { device.work(&mut memory, now_ns) }.expect("a device that is well");
        }
    };
    host.set_requested(64 * MIB);
    work(0);
    let off = PhysRange::new(START + 32 * MIB, START + 64 * MIB);
    manager.hotplug().offline(off, Budget::UNLIMITED).expect("free");
    host.set_busy(true);
    // Offline units and some online units form one run.
    host.set_requested(16 * MIB);
    work(1);
    assert_eq!(host.plugged_bytes(), 64 * MIB);
    for at in (region.start..region.end).step_by(2 << 20) {
        let is_off = off.start <= at && at < off.end;
        let presence = if is_off { Presence::Offline } else { Presence::Online };
        assert_eq!(manager.hotplug().presence_of(at), presence, "{at:#x}");
    }
    host.set_busy(false);
    work(1_000_000_000);
    assert_eq!(host.plugged_bytes(), 16 * MIB);
}

/// What the device gives in one piece gets a grade by the memory block, so that as much is movable
/// as the ratio allows: three times the 256 MiB of boot, and of each block of the kernel's.
#[test]
fn a_ratio_is_kept_within_one_request() {
    const BLOCK: u64 = 128 * MIB;
    let (manager, region) = manager_of(14 * BLOCK, "memory_hotplug.online_policy=auto-movable");
    let mut memory = memory(&manager, region);
    let group = Group { region, node: NodeId::ZERO, unit_bytes: Some(2 * MIB) };
    manager.hotplug().register_group(group).expect("room");
    // SAFETY: nobody else has it.
    assert_eq!(unsafe { memory.add(START, region.size()) }, region.size());
    let sorts: String = (region.start..region.end)
        .step_by(128 << 20)
        .map(|start| {
            let shares = manager.hotplug().shares_of(PhysRange::with_size(start, BLOCK));
            if shares.movable_pages == 0 {
                assert_eq!(shares.kernel_pages, BLOCK >> 12);
                'k'
            } else {
                assert_eq!(shares.kernel_pages, 0);
                'm'
            }
        })
        .collect();
    assert_eq!(sorts, "mmmmmmkmmmkmmm");
}

/// Each addition may take a window, of which there are few: what comes at once is added at once,
/// whatever grades it gets.
#[test]
fn grades_within_one_request_take_no_more_windows() {
    const BLOCK: u64 = 128 * MIB;
    let windows = |policy: &str| {
        let (manager, region) = manager_of(256 * BLOCK, policy);
        let mut memory = memory(&manager, region);
        let group = Group { region, node: NodeId::ZERO, unit_bytes: Some(2 * MIB) };
        manager.hotplug().register_group(group).expect("room");
        let before = manager.hotplug().windows_left();
        // SAFETY: nobody else has it.
        assert_eq!(unsafe { memory.add(START, region.size()) }, region.size());
        assert!(memory.take_error().is_none());
        manager.verify().unwrap_or_else(|fault| panic!("{fault}"));
        let mut offline_bytes = 0;
        manager.hotplug().for_each_run_in(region, &mut |run, presence, _| {
            offline_bytes += if presence == Presence::Offline { run.size() } else { 0 };
        });
        assert_eq!(offline_bytes, 0);
        before - manager.hotplug().windows_left()
    };
    assert_eq!(windows("memory_hotplug.online_policy=auto-movable"), windows(""));
}
