//! The adapter for the crate `x86_64`: every size, exhaustion, runs taken apart frame by frame,
//! refusals, and a mapper that really maps.
//!
//! Runs with `cargo test -p framewright --all-features`.

use crate::common::{Fake, bring_up, check, gib, in_use, mib, settled};
use framewright::Platform;
use framewright::units::PfnRange;
use framewright_testkit::{FakeMachine, Owner};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use x86_64::structures::paging::mapper::{OffsetPageTable, Translate};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, Page, PageSize, PageTable, PageTableFlags, PhysFrame,
    Size1GiB, Size2MiB, Size4KiB,
};
use x86_64::{PhysAddr, VirtAddr};

fn take<S: PageSize>(mut manager: &Fake) -> Option<PhysFrame<S>> {
    manager.allocate_frame()
}

fn give<S: PageSize>(mut manager: &Fake, frame: PhysFrame<S>) {
    // SAFETY: the tests never touch the memory of a frame that they gave back.
    unsafe { manager.deallocate_frame(frame) };
}

/// Takes frames until there are none, checks that they are whole, disjoint and counted, and gives
/// them back.
fn takes_all<S: PageSize>(manager: &Fake) -> usize {
    let before = settled(manager);
    let mut starts = BTreeSet::new();
    while let Some(frame) = take::<S>(manager) {
        let start = frame.start_address().as_u64();
        assert!(start.is_multiple_of(S::SIZE), "{frame:?} is not aligned");
        let last = start + S::SIZE - 4096;
        assert!(
            manager.platform().is_usable(start) && manager.platform().is_usable(last),
            "{frame:?} is not RAM"
        );
        assert!(starts.insert(start), "{frame:?} was handed out twice");
        let pages = starts.len() as u64 * (S::SIZE / 4096);
        assert_eq!(in_use(manager), pages);
    }
    check(manager);
    assert!(take::<S>(manager).is_none(), "exhaustion lasts");
    for &start in &starts {
        give(
            manager,
            PhysFrame::<S>::from_start_address(PhysAddr::new(start)).expect("it is aligned"),
        );
    }
    check(manager);
    assert_eq!(settled(manager), before);
    starts.len()
}

#[test]
fn pages_come_until_the_reserve_and_go_back() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 33)).build());
    let taken = takes_all::<Size4KiB>(&manager);
    assert!(taken > 6_000, "{taken} pages of 32 MiB");
}

#[test]
fn huge_pages_come_and_go() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 257)).build());
    let taken = takes_all::<Size2MiB>(&manager);
    assert!((110..=128).contains(&taken), "{taken} huge pages of 256 MiB");
}

#[test]
fn gigantic_pages_come_and_go() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 3)).ram(gib(4, 9)).build());
    let taken = takes_all::<Size1GiB>(&manager);
    assert!((4..=7).contains(&taken), "{taken} gigantic pages of 8 GiB");
}

#[test]
fn sizes_live_side_by_side() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let before = settled(&manager);
    let small = take::<Size4KiB>(&manager).expect("a page");
    let huge = take::<Size2MiB>(&manager).expect("a huge page");
    let gigantic = take::<Size1GiB>(&manager).expect("a gigantic page");
    let inside = |start: PhysAddr| {
        (gigantic.start_address()..gigantic.start_address() + Size1GiB::SIZE).contains(&start)
    };
    assert!(!inside(small.start_address()) && !inside(huge.start_address()));
    assert_eq!(in_use(&manager), 1 + 512 + (1 << 18));
    check(&manager);
    give(&manager, gigantic);
    give(&manager, small);
    give(&manager, huge);
    check(&manager);
    assert_eq!(settled(&manager), before);
}

#[test]
fn a_large_frame_comes_back_in_pieces() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let before = settled(&manager);
    let gigantic = take::<Size1GiB>(&manager).expect("a gigantic page");
    let pieces = (0..512).map(|index| gigantic.start_address() + index * Size2MiB::SIZE);
    for (index, start) in pieces.enumerate() {
        if index % 2 == 0 {
            give(&manager, PhysFrame::<Size2MiB>::containing_address(start));
        } else {
            for page in 0..512 {
                give(
                    &manager,
                    PhysFrame::<Size4KiB>::containing_address(start + page * Size4KiB::SIZE),
                );
            }
        }
    }
    check(&manager);
    assert_eq!(settled(&manager), before);
}

#[test]
fn a_frame_that_is_not_in_use_is_refused_and_stays() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 257)).build());
    let frame = take::<Size2MiB>(&manager).expect("a huge page");
    give(&manager, frame);
    let beyond = PhysFrame::<Size2MiB>::containing_address(PhysAddr::new(1 << 40));
    let before = settled(&manager);
    for refused in [frame, beyond] {
        let outcome = catch_unwind(AssertUnwindSafe(|| give(&manager, refused)));
        assert_eq!(outcome.is_err(), cfg!(debug_assertions), "{refused:?}");
        check(&manager);
        assert_eq!(settled(&manager), before);
    }
}

#[test]
fn a_mapper_builds_its_tables_from_the_manager() {
    let machine = FakeMachine::builder().ram(mib(1, 257)).build();
    let manager = bring_up(machine);
    let before = settled(&manager);
    let mut frames = &manager;
    let show =
        |frame: PhysFrame| machine.direct(frame.start_address().as_u64()).cast::<PageTable>();

    let root: PhysFrame = frames.allocate_frame().expect("a page");
    // SAFETY: the frame is ours, and an empty table is a value.
    unsafe { show(root).write(PageTable::new()) };
    let offset = VirtAddr::from_ptr(show(root).as_ptr()) - root.start_address().as_u64();
    // SAFETY: the table was written above and is ours alone.
    let root_table = unsafe { show(root).as_mut() };
    // SAFETY: memory of this machine is one range, which it shows at one offset.
    let mut tables = unsafe { OffsetPageTable::new(root_table, offset) };

    let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE;
    let (page, huge) = (VirtAddr::new(0x4444_4444_0000), VirtAddr::new(0x5555_5540_0000));
    let small_frame: PhysFrame<Size4KiB> = frames.allocate_frame().expect("a page");
    let huge_frame: PhysFrame<Size2MiB> = frames.allocate_frame().expect("a huge page");
    let small_page = Page::<Size4KiB>::containing_address(page);
    let huge_page = Page::<Size2MiB>::containing_address(huge);
    // SAFETY: nobody runs on these tables.
    let mapped = unsafe { tables.map_to(small_page, small_frame, flags, &mut frames) };
    mapped.expect("there is memory for tables").ignore();
    // SAFETY: the same.
    let mapped = unsafe { tables.map_to(huge_page, huge_frame, flags, &mut frames) };
    mapped.expect("there is memory for tables").ignore();
    assert_eq!(tables.translate_addr(page + 0x123), Some(small_frame.start_address() + 0x123));
    assert_eq!(tables.translate_addr(huge + 0x1_2345), Some(huge_frame.start_address() + 0x1_2345));

    // The root, three tables for the page, two for the huge page.
    assert_eq!(in_use(&manager), 6 + 1 + 512);
    check(&manager);

    let (unmapped, flush) = tables.unmap(small_page).expect("it is mapped");
    flush.ignore();
    give(&manager, unmapped);
    let (unmapped, flush) = tables.unmap(huge_page).expect("it is mapped");
    flush.ignore();
    give(&manager, unmapped);
    // SAFETY: all tables below the root came from the manager, and nothing is mapped any more.
    unsafe { x86_64::structures::paging::mapper::CleanUp::clean_up(&mut tables, &mut frames) };
    give(&manager, root);
    check(&manager);
    assert_eq!(settled(&manager), before);
}

#[test]
fn what_the_direct_map_does_not_show_yet_is_left_alone() {
    let machine = FakeMachine::builder().ram(gib(0, 2)).direct_limit(64 << 20).build();
    let manager = bring_up(machine);
    let mut pages = 0;
    while let Some(frame) = take::<Size4KiB>(&manager) {
        let end = frame.start_address() + Size4KiB::SIZE;
        assert!(end.as_u64() <= 64 << 20, "a mapper could not reach {frame:?}");
        pages += 1;
    }
    assert!(pages > 12_000, "{pages} pages below 64 MiB");
    assert!(take::<Size2MiB>(&manager).is_none());
    check(&manager);
    machine.raise_direct_limit(2 << 30);
    assert!(
        take::<Size2MiB>(&manager).is_some_and(|frame| frame.start_address().as_u64() >= 64 << 20)
    );
    assert_eq!(in_use(&manager), pages + 512);
    check(&manager);
}

#[test]
fn tables_are_unmovable() {
    use framewright::units::Pfn;
    use framewright::vmemmap_space::BlockNumber;
    use framewright::zone::MigrateType;
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 257)).build());
    let frame = take::<Size2MiB>(&manager).expect("a huge page");
    let start = Pfn::containing(frame.start_address().as_u64());
    let state = manager.block_state(BlockNumber::containing(start)).expect("a block");
    assert_eq!(state.migrate_type(), MigrateType::Unmovable);
    manager
        .give_back(PfnRange::new(start.0, start.0 + 512))
        .expect("who wants an error calls the manager");
    check(&manager);
}
