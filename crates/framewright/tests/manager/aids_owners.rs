//! Page owners: every call that frees by start and size can free neighbouring runs that one source
//! line allocated, and a moved page still knows which line and CPU allocated it.

use crate::common::{Fake, bring_up_with, check, mib, order, plain_with_pages, settled};
use framewright::Frames;
use framewright::manager::Budget;
use framewright::parameters::Pages;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{FreeError, MigrateType};
use framewright_testkit::workload::{Handle, Handles};
use framewright_testkit::{FakeMachine, Owner};

fn owners(pages: Pages, size_mib: u64) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, size_mib)).cpus(3).build();
    let mut parameters = plain_with_pages(pages);
    parameters.page_owner = true;
    bring_up_with(machine, &[], &parameters).expect("bring-up")
}

/// Allocates `count` neighbouring runs of 2^`of` pages each, all from one source line.
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

/// A free that names an order means exactly one allocation.
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

/// Single pages and two-page runs, allocated on CPU 2, with every second one freed again.
fn scattered(manager: &Fake) -> Handles<'_, FakeMachine> {
    let handles = Handles::new(manager, 1 << 14).expect("memory");
    manager.platform().run_on(2, || {
        // Every fourth run has two pages.
        let take = |round| handles.allocate(order(u8::from(round % 8 > 5))).expect("memory");
        let held: Vec<Handle> = (0..6000).map(take).collect();
        held.iter().step_by(2).for_each(|&handle| handles.free(handle).expect("held"));
    });
    settled(manager);
    handles
}

/// Checks that the owner of each held run is known, wherever the run lies by now.
fn assert_known(manager: &Fake, handles: &Handles<'_, FakeMachine>, what: &str) {
    for handle in handles.held() {
        let run = handles.range(handle).expect("held");
        for pfn in (run.start.0..run.end.0).map(Pfn) {
            let history = manager.debug().page_history(pfn).expect("allocated");
            let place = history.allocated_at.expect("there are few places");
            assert!(!place.file().contains("/moving/"), "{what}: {history}");
            assert_eq!(history.allocated_on, Some(2), "{what}: {history}");
            assert_eq!(Some(history.order), Order::for_pages(run.pages()), "{what}: {history}");
            assert!(history.allocated, "{what}: {history}");
        }
    }
}

#[test]
fn what_was_moved_is_known_by_who_allocated_it() {
    for pages in [Pages::None, Pages::Inside] {
        let manager = owners(pages, 64);
        let handles = scattered(&manager);
        let moved = || manager.moving().events().moved_pages;
        let moving = manager.moving().by(&handles);
        moving.compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
        let compacted = moved();
        assert!(compacted > 100);
        assert_known(&manager, &handles, "compact");
        let middle = handles.held().nth(handles.held().count() / 2).expect("some");
        let block = BlockNumber::containing(handles.range(middle).expect("held").start);
        let range = BlockRange::new(block.0, block.0 + 1);
        moving.vacate(range, Budget::UNLIMITED).expect("there is room");
        manager.isolation().unisolate(range).expect("isolated");
        assert!(moved() > compacted);
        assert_known(&manager, &handles, "vacate");
        // Each run is still an allocation of its own.
        let all: Vec<Handle> = handles.held().collect();
        all.into_iter().for_each(|handle| handles.free(handle).expect("held"));
        check(&manager);
    }
}
