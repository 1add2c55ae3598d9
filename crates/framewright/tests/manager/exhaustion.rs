//! Bring-up with every possible amount of memory, from none to just enough: each failure is an
//! ordinary error and gives everything back, and bring-up works as soon as there is room.

use crate::common::{check, mib, plain_with_pages};
use framewright::parameters::Pages;
use framewright::units::PhysRange;
use framewright::{BringUp, BringUpError, BringUpFailed, Manager, Parameters};
use framewright_testkit::FakeMachine;

/// Tries bring-up with all but the first `pages` pages of each of the given ranges reserved.
fn attempt(
    machine: &'static FakeMachine,
    ranges: &[PhysRange],
    pages: u64,
    parameters: &Parameters,
) -> Result<u64, BringUpError> {
    attempt_beside(machine, ranges, pages, parameters, 0)
}

/// [`attempt`] with this many more reservations, which lie beyond all memory.
fn attempt_beside(
    machine: &'static FakeMachine,
    ranges: &[PhysRange],
    pages: u64,
    parameters: &Parameters,
    more: u64,
) -> Result<u64, BringUpError> {
    let beyond = (0..more).map(|number| PhysRange::with_size((1 << 50) + (number << 13), 4096));
    let mut reserved: Vec<_> = beyond.collect();
    reserved.push(PhysRange::new(0, ranges[0].start));
    for (index, range) in ranges.iter().enumerate() {
        let next = ranges.get(index + 1).map_or(1 << 40, |next| next.start);
        reserved.push(PhysRange::new(range.start + pages * 4096, next));
    }
    let early = machine.memblock(&reserved);
    let before: Vec<_> = early.reserved().to_vec();
    let input = BringUp { parameters, started_ns: None };
    match Manager::bring_up(early, &input) {
        Ok(manager) => {
            check(&manager);
            assert!(manager.totals().managed_pages > 0);
            Ok(manager.totals().managed_pages)
        }
        Err(BringUpFailed { error, early }) => {
            assert_eq!(
                early.reserved(),
                before,
                "a failed bring-up at {pages} pages kept something"
            );
            Err(error)
        }
    }
}

#[test]
fn every_amount_of_memory_up_to_enough() {
    for kept in [Pages::None, Pages::Inside] {
        let machine = FakeMachine::builder()
            .ram(mib(0, 4096))
            .node(mib(0, 2048), 0)
            .node(mib(2048, 4096), 1)
            .build();
        let ranges = [mib(64, 1900), mib(2100, 3000)];
        let mut steps = Vec::new();
        let mut managed = 0;
        for pages in 0..64 {
            match attempt(machine, &ranges, pages, &plain_with_pages(kept)) {
                Ok(more) => {
                    assert!(more >= managed, "more memory leaves less");
                    managed = more;
                }
                Err(error) => {
                    assert_eq!(managed, 0, "bring-up worked with fewer pages: {error}");
                    if steps.last() != Some(&error) {
                        steps.push(error);
                    }
                }
            }
        }
        assert!(managed > 0, "64 pages a node are enough");
        let text: Vec<_> = steps.iter().map(ToString::to_string).collect();
        // Each allocation of bring-up failed at least once: the directory, and the tables of DMA,
        // DMA32 and the second node.
        assert!(text.iter().any(|step| step.contains("zones and directory")), "{text:?}");
        assert!(text.iter().any(|step| step.contains("block tables")), "{text:?}");
    }
}

#[test]
fn tables_that_leave_nothing_are_refused() {
    for kept in [Pages::None, Pages::Inside] {
        let machine = FakeMachine::builder().ram(mib(0, 512)).build();
        let mut seen = false;
        for pages in 0..64 {
            match attempt(machine, &[mib(64, 128)], pages, &plain_with_pages(kept)) {
                Err(BringUpError::NothingToManage) => seen = true,
                Ok(managed) => assert!(seen && managed >= 1),
                Err(_) => assert!(!seen),
            }
        }
        assert!(seen, "one amount is exactly what the tables need");
    }
}

#[test]
fn tables_go_back_where_no_more_reservations_can_be_noted() {
    let machine = FakeMachine::builder().ram(mib(0, 512)).build();
    let parameters = plain_with_pages(Pages::None);
    // A few pages are in one zone and the rest in the next, so that there are tables of two.
    let range = PhysRange::new((16 << 20) - 4 * 4096, 128 << 20);
    let mut last = 0;
    for more in 100..126 {
        for pages in 0..96 {
            let result = attempt_beside(machine, &[range], pages, &parameters, more);
            if let Err(BringUpError::NothingToManage) = result {
                last = more;
            }
        }
    }
    assert_eq!(last, 125, "one amount is exactly what the tables need");
}
