//! Page owners: neighbours that one line allocated are freed by every call that says a start and a
//! size.

use crate::common::{Fake, bring_up_with, check, mib, order, plain_with_pages, settled};
use framewright::Frames;
use framewright::parameters::Pages;
use framewright::units::{Pfn, PfnRange};
use framewright::zone::{FreeError, MigrateType};
use framewright_testkit::{FakeMachine, Owner};

fn owners(pages: Pages, size_mib: u64) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, size_mib)).cpus(3).build();
    let mut parameters = plain_with_pages(pages);
    parameters.page_owner = true;
    bring_up_with(machine, &[], &parameters).expect("bring-up")
}

/// `count` neighbours of 2^`of` pages each, all by one line.
fn neighbours(manager: &Fake, start: u64, of: u8, count: u64) -> PfnRange {
    for number in 0..count {
        let start = Pfn(start + (number << of));
        manager.allocate_at(start, order(of), MigrateType::Movable).expect("free");
    }
    PfnRange::new(start, start + (count << of))
}

#[test]
fn every_free_of_a_start_and_a_size_takes_neighbours() {
    let manager = owners(Pages::None, 64);
    type Way = (&'static str, fn(&Fake, PfnRange) -> Result<(), FreeError>);
    let ways: [Way; 5] = [
        ("free", |manager, range| manager.give_back(range)),
        ("free_pages", |manager, range| manager.give_back_pages(range.start, range.pages())),
        ("free_bytes", |manager, range| {
            // SAFETY: all memory of the machine is the test's.
            unsafe { manager.free_bytes(range.start, range.pages() << 12) }
        }),
        ("Frames::free", |manager, range| {
            // SAFETY: as above.
            unsafe { Frames::from_range(manager, range) }.expect("not empty").free()
        }),
        ("Frames::drop", |manager, range| {
            // SAFETY: as above.
            drop(unsafe { Frames::from_range(manager, range) });
            Ok(())
        }),
    ];
    for (name, free) in ways {
        for (of, count) in [(0, 2), (0, 3), (0, 8), (2, 2), (8, 2), (9, 2), (9, 3), (10, 2)] {
            let range = neighbours(&manager, 0x2000, of, count);
            assert_eq!(free(&manager, range), Ok(()), "{name}: {count} of order {of}");
            assert_eq!(settled(&manager).allocated_pages, 0, "{name}: {count} of order {of}");
            assert!(free_order_is_strict(&manager, of, count), "{count} of order {of}");
        }
    }
    check(&manager);
}

/// Who names an order means one allocation.
fn free_order_is_strict(manager: &Fake, of: u8, count: u64) -> bool {
    let range = neighbours(manager, 0x2000, of, count);
    let Some(order) = range.as_order() else {
        manager.give_back(range).expect("neighbours");
        return true;
    };
    let refused = manager.give_back_order(range.start, order);
    manager.give_back(range).expect("neighbours");
    settled(manager);
    matches!(refused, Err(FreeError::WrongSize { .. }))
}

#[test]
fn the_last_reference_to_neighbours_frees_them() {
    let manager = owners(Pages::Inside, 64);
    let allocated = settled(&manager).allocated_pages;
    for (of, count) in [(0, 2), (0, 3), (1, 4)] {
        for put in [true, false] {
            let range = neighbours(&manager, 0x2000, of, count);
            manager.begin_references(range).expect("pages of one block");
            let freed = if put {
                manager.give_back_reference(range.start)
            } else {
                manager.freeze_references(range.start, 1).expect("ours");
                manager.give_back_frozen(range.start)
            };
            assert_eq!(freed, Ok(()), "{count} of order {of}");
            assert_eq!(settled(&manager).allocated_pages, allocated);
        }
    }
    check(&manager);
}
