//! Memory that has to be accepted before there is a manager: the memblock allocator accepts what it
//! hands out, and bring-up accepts memory that is less than a block.

use super::unaccepted::{BLOCK, check_all, machine, take_all};
use crate::common::{bring_up_with, check, gib, mib, parameters};
use framewright::firmware::MemoryKind;
use framewright::memblock::MemblockRequest;
use framewright::units::{Pfn, PhysRange};
use framewright::{BringUp, Manager};
use framewright_testkit::FakeMachine;

#[test]
fn the_early_allocator_accepts_what_it_hands_out() {
    let unaccepted = gib(1, 2);
    let machine = machine(mib(0, 4), unaccepted).build();
    let mut early = machine.memblock(&[]);
    let small = early.allocate(&MemblockRequest::new(4096, 4096)).expect("accepted memory");
    assert!(small.end <= 4 << 20 && machine.accept().calls().is_empty());
    let request = MemblockRequest { zeroed: true, ..MemblockRequest::new(5 << 20, 4096) };
    let large = early.allocate(&request).expect("unaccepted memory");
    // The last 5 MiB: three units, behind which there is no memory.
    assert_eq!(large, PhysRange::new((2 << 30) - (5 << 20), 2 << 30));
    assert_eq!(early.accepted().accepted_pages, 3 * BLOCK);
    // The run ends inside an accepted unit.
    let next = early.allocate(&MemblockRequest::new(64 << 10, 4096)).expect("accepted memory");
    assert_eq!(early.accepted().accepted_pages, 3 * BLOCK, "{next:?}");
    // The run ends on the border of a unit, and the next unit is accepted already.
    let unit = early.allocate(&MemblockRequest::new(2 << 20, 2 << 20)).expect("memory");
    assert_eq!(early.accepted().accepted_pages, 4 * BLOCK, "{unit:?}");
    // A run lower down, where the next unit is not accepted.
    let request = MemblockRequest {
        max_address: (1 << 30) + (8 << 20),
        min_address: 1 << 30,
        ..MemblockRequest::new(2 << 20, 2 << 20)
    };
    let low = early.allocate(&request).expect("memory");
    assert_eq!(early.accepted().accepted_pages, 6 * BLOCK, "{low:?}");
    let parameters = parameters("");
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error).expect("up");
    check_all(&manager, unaccepted);
    let taken = take_all(&manager);
    assert!(taken > 1000 << 8, "{taken}");
    check_all(&manager, unaccepted);
}

#[test]
fn the_early_allocator_finds_another_place_when_one_fails() {
    let unaccepted = gib(1, 2);
    let machine = machine(mib(0, 4), unaccepted).build();
    let last = Pfn((2 << 18) - BLOCK + 3);
    machine.accept().fail_at(last);
    let mut early = machine.memblock(&[]);
    let found = early.allocate(&MemblockRequest::new(6 << 20, 4096)).expect("another place");
    // The range before the failed one must leave a page between them, because its end can be read
    // past.
    assert!(found.end < (2 << 30) - (2 << 20), "{found:?}");
    assert_eq!((early.accepted().failures, early.accepted().last_failed), (1, Some(last)));
    let parameters = parameters("");
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error).expect("up");
    check(&manager);
    take_all(&manager);
    assert!(!machine.accept().is_accepted(last));
}

#[test]
fn pieces_of_blocks_are_accepted_at_bring_up() {
    // Both ends lie inside blocks, with a hole and reservations of odd sizes in the middle.
    let machine = FakeMachine::builder()
        .ram(mib(0, 64))
        .memory(PhysRange::new(0x10_0123_4000, 0x10_4321_0000), MemoryKind::Unaccepted)
        .memory(PhysRange::new(0x10_4330_0000, 0x10_4500_0000), MemoryKind::Unaccepted)
        .accepts()
        .build();
    let reserved = [PhysRange::new(0x10_2000_3000, 0x10_2061_5123)];
    let manager = bring_up_with(machine, &reserved, &parameters("")).expect("bring-up");
    check(&manager);
    take_all(&manager);
    check(&manager);
    let device = machine.accept();
    assert!(device.is_accepted(Pfn(0x100_1234)) && device.is_accepted(Pfn(0x104_320f)));
    // Reserved memory holds data, so that whoever put it there has accepted the memory.
    assert!(!device.is_accepted(Pfn(0x102_0003)) && !device.is_accepted(Pfn(0x102_0615)));
    assert!(device.is_accepted(Pfn(0x102_0002)) && device.is_accepted(Pfn(0x102_0616)));
    assert_eq!(manager.acceptance().unaccepted_pages(), 0);
}

/// Accepting what lies behind a place may take more room for the allocator's own lists.
#[test]
fn lists_that_grow_while_a_place_is_accepted_lie_elsewhere() {
    for pieces in 120..=130_u64 {
        let machine = FakeMachine::builder().memory(mib(16, 32), MemoryKind::Unaccepted);
        // There is room for the lists.
        let mut machine = machine.ram(mib(8, 9));
        for piece in 0..pieces {
            machine = machine.ram(PhysRange::with_size((1 << 20) + piece * 8192, 4096));
        }
        let mut early = machine.accepts().build().memblock(&[]);
        let request = MemblockRequest {
            zeroed: true,
            max_address: 24 << 20,
            ..MemblockRequest::new(2 << 20, 2 << 20)
        };
        early.allocate(&request).expect("there is memory");
        let bytes: u64 = early.memory().iter().map(|region| region.range.size()).sum();
        assert_eq!(bytes, (17 << 20) + pieces * 4096, "{pieces}: its lists were cleared");
    }
}
