//! Memory that a confidential guest accepts on several CPUs, how much at a time, and with nobody to
//! accept it.

use super::unaccepted::{check_all, give_back, machine, take, take_all, up};
use crate::common::{gib, mib, order};
use framewright::Request;
use framewright::firmware::MemoryKind;
use framewright::units::PfnRange;
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::pages_to_accept;
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap};
use std::sync::Barrier;
use std::time::Duration;

const BLOCK: u64 = 512;

#[test]
fn several_cpus_accept_different_blocks() {
    let unaccepted = gib(4, 6);
    for line in ["", "memmap_init=deferred", "zone_parts=4"] {
        let machine = machine(mib(0, 512), unaccepted).cpus(7).build();
        if line.starts_with("memmap") {
            FakeVmemmap::install(machine);
        }
        machine.accept().set_delay(Duration::from_micros(20));
        let manager = up(machine, line);
        let (start, manager) = (Barrier::new(6), &manager);
        let all: Vec<PfnRange> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6_u8)
                .map(|number| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let wanted = Request::new(order(if number < 3 { 0 } else { 9 }));
                        let mut taken: Vec<PfnRange> = Vec::new();
                        for round in 0..200 {
                            taken.push(take(manager, &wanted));
                            if number == 5 && round % 50 == 0 {
                                let block = BlockNumber(4 * 512 + 700 + round);
                                let range =
                                    BlockRange { start: block, end: BlockNumber(block.0 + 3) };
                                if manager.isolation().isolate(range).is_ok() {
                                    manager.isolation().unisolate(range).expect("isolated");
                                }
                            }
                        }
                        taken
                    })
                })
                .collect();
            let taken = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            taken.flatten().collect()
        });
        check_all(manager, unaccepted);
        all.into_iter().for_each(|range| give_back(manager, range));
        manager.vmemmap().initialise_deferred(&NoHelpers);
        check_all(manager, unaccepted);
    }
}

#[test]
fn linuxs_rule_for_how_much_to_accept() {
    // 26 blocks of 4 MiB.
    assert_eq!(pages_to_accept(30_000, 40_000, 35_840).div_ceil(1024), 26);
    assert_eq!(pages_to_accept(0, 40_000, 35_840), BLOCK, "one where there are no marks");
    assert_eq!(pages_to_accept(30_000, 70_000, 35_840), 0);
    assert_eq!(pages_to_accept(30_000, 100, 100), 100, "no more than there is");
    assert_eq!(pages_to_accept(30_000, 100, 0), 0);
}

#[test]
fn without_a_device_it_stays_reserved() {
    let machine =
        FakeMachine::builder().ram(mib(0, 256)).memory(gib(1, 2), MemoryKind::Unaccepted).build();
    let manager = up(machine, "accept_memory=eager");
    assert_eq!(manager.acceptance().unaccepted_pages(), 0);
    assert!(manager.totals().reserved_pages >= 1 << 18);
    assert!(take_all(&manager) < 256 << 8);
    let range = BlockRange { start: BlockNumber(600), end: BlockNumber(700) };
    let pages = manager.isolation().isolate(range).expect("nothing is free there");
    assert_eq!(pages.reserved_pages, 100 * BLOCK);
    manager.isolation().unisolate(range).expect("nothing was isolated");
}
