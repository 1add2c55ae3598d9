//! A process as a confidential guest: unaccepted memory is inaccessible.

use crate::common::is_killed_by_touching;
use framewright::firmware::{MapBuilder, MapRange, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::platform::Platform;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::{AcceptError, BringUp, Manager, Parameters, Request};
use framewright_hosted::{HostedPlatform, Machine};

const MIB: u64 = 1 << 20;

/// Returns whether reading a byte at an address kills a child process.
fn touch_kills(platform: &HostedPlatform, address: u64) -> bool {
    is_killed_by_touching(platform.direct(address).as_ptr())
}

/// Provides 64 MiB of accepted and 192 MiB of unaccepted memory.
fn with_platform<R>(use_it: impl FnOnce(&'static HostedPlatform, &[MapRange]) -> R) -> R {
    let mut storage = [MapRange::EMPTY; 16];
    let mut map = MapBuilder::new(&mut storage);
    map.add(0, 64 * MIB, MemoryKind::Conventional).unwrap();
    map.add(64 * MIB, 192 * MIB, MemoryKind::Unaccepted).unwrap();
    let map = map.finish().unwrap();
    let platform = HostedPlatform::open(map, 2).unwrap().with_acceptance(map).unwrap().leak();
    use_it(platform, map.ranges())
}

fn frames(start_mib: u64, end_mib: u64) -> PfnRange {
    PfnRange::new(start_mib << 8, end_mib << 8)
}

#[test]
fn a_touch_before_memory_is_accepted_is_found() {
    with_platform(|platform, _| {
        assert!(!touch_kills(platform, 63 * MIB));
        for address in [64, 100, 255].map(|at| at * MIB) {
            assert!(touch_kills(platform, address), "{address:#x}");
        }
        let device = platform.accept_memory().expect("a device");
        device.accept(frames(100, 104)).expect("accepted");
        for (mib, is_accepted) in [(99, false), (100, true), (103, true), (104, false)] {
            assert_eq!(!touch_kills(platform, mib * MIB), is_accepted, "{mib} MiB");
        }
        platform.set_accept_failure(Some(Pfn((200 << 8) + 3)));
        let refused = device.accept(frames(198, 202));
        assert_eq!(refused, Err(AcceptError { accepted_pages: 2 * 256 + 3 }));
        assert!(!touch_kills(platform, 199 * MIB));
        assert!(touch_kills(platform, 201 * MIB));
        // SAFETY: there is no manager.
        unsafe { platform.forget_accepted() }.expect("closed");
        assert!(touch_kills(platform, 100 * MIB));
    });
}

#[test]
fn a_manager_accepts_what_it_hands_out() {
    with_platform(|platform, ranges| {
        let mut storage = vec![MapRange::EMPTY; 32];
        let mut map = MapBuilder::new(&mut storage);
        for entry in ranges {
            map.add(entry.range.start, entry.range.size(), entry.kind).unwrap();
        }
        let (mut claims, mut room) = ([], MemblockStorage::new());
        let topology = Topology::new(&mut claims);
        let map = map.finish().unwrap();
        // SAFETY: nothing else uses the machine's memory.
        let early = unsafe { Memblock::new(platform, &mut room, map, &topology) }.unwrap();
        let parameters = Parameters::default();
        let input = BringUp { parameters: &parameters, started_ns: None };
        let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error).unwrap();
        let before = manager.acceptance().unaccepted_pages();
        assert!(before > 180 << 8, "{before}");
        let mut taken = Vec::new();
        while manager.acceptance().unaccepted_pages() != 0 {
            let range = manager.allocate(&Request::new(Order::BLOCK)).expect("there is memory");
            // SAFETY: the block is ours; it faults if it is not accepted.
            unsafe { platform.direct(range.start.address()).write_bytes(0x5a, 2 << 20) };
            taken.push(range);
        }
        assert_eq!(manager.acceptance().events().accepted_pages, 192 << 8);
        manager.verify().expect("the tables are right");
    });
}

/// Returns the bytes of one kind in a machine's map.
fn bytes_of(machine: &Machine, kind: MemoryKind) -> u64 {
    let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
    let (mut map, mut topology) = (MapBuilder::new(&mut ranges), Topology::new(&mut claims));
    machine.load(&mut map, &mut topology).unwrap();
    let map = map.finish().unwrap();
    map.ranges().iter().filter(|entry| entry.kind == kind).map(|entry| entry.range.size()).sum()
}

#[test]
fn memory_that_is_named_more_than_once_counts_once() {
    let thrice = "memory 0 +1G usable\n".repeat(3) + "memory 512M +1M reserved\n";
    let mut machine = Machine::parse("thrice", &thrice).unwrap();
    machine.leave_unaccepted(50);
    let unaccepted = bytes_of(&machine, MemoryKind::Unaccepted);
    assert!(unaccepted.abs_diff(512 * MIB) < 8 * MIB, "{unaccepted}");
    let usable = bytes_of(&machine, MemoryKind::Conventional);
    // All but what a PC has in its first MiB.
    assert!((unaccepted + usable).abs_diff(1023 * MIB) < MIB, "{usable}");
}

#[test]
fn a_part_of_a_machine_is_left_unaccepted() {
    let mut machine = Machine::synthetic(8 << 30, 1, 1).unwrap();
    machine.leave_unaccepted(60);
    let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
    let (mut map, mut topology) = (MapBuilder::new(&mut ranges), Topology::new(&mut claims));
    machine.load(&mut map, &mut topology).unwrap();
    let map = map.finish().unwrap();
    let of = |kind| {
        let ranges = map.ranges().iter().filter(|entry| entry.kind == kind);
        ranges.map(|entry| entry.range.size()).sum::<u64>()
    };
    let unaccepted = of(MemoryKind::Unaccepted);
    let all = unaccepted + of(MemoryKind::Conventional);
    assert!(unaccepted.is_multiple_of(2 * MIB));
    assert!(unaccepted.abs_diff(all * 6 / 10) < 8 * MIB, "{unaccepted} of {all}");
    let lowest = map.ranges().iter().find(|entry| entry.kind == MemoryKind::Unaccepted);
    let highest = map.ranges().iter().rfind(|entry| entry.kind == MemoryKind::Conventional);
    let (lowest, highest) = (lowest.expect("some").range, highest.expect("some").range);
    assert!(highest.end <= lowest.start, "{highest:?} lies above {lowest:?}");
}
