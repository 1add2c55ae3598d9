//! Releasing frames that were reserved for boot.

use crate::common::{Descriptors, Fake, check, mib, settled};
use framewright::Request;
use framewright::manager::ReleaseError;
use framewright::manager::Reserves;
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::zone::MigrateType;
use framewright_testkit::{FakeMachine, Owner};

fn release(manager: &Fake, range: PfnRange) -> Result<u64, ReleaseError> {
    // SAFETY: the tests reserved it and use it no more.
    unsafe { manager.hotplug().release(range) }.map(|released| released.pages)
}

fn pages(start: u64, end: u64) -> PfnRange {
    PfnRange::new(start, end)
}

#[test]
fn a_ram_disk_is_released_once() {
    for descriptors in Descriptors::ALL {
        let initrd = PhysRange::new(0x200_3000, 0x281_5000);
        let machine = FakeMachine::builder().ram(mib(0, 512)).build();
        let manager = descriptors.bring_up_reserving(machine, &[initrd]).expect("bring-up");
        let before = settled(&manager);
        let frames = initrd.whole_frames();
        assert_eq!(release(&manager, frames), Ok(frames.pages()), "{descriptors:?}");
        check(&manager);
        let after = settled(&manager);
        assert_eq!(after.managed_pages, before.managed_pages + frames.pages());
        assert_eq!(after.reserved_pages, before.reserved_pages - frames.pages());
        assert_eq!(after.present_pages, before.present_pages);
        assert!(matches!(release(&manager, frames), Err(ReleaseError::Managed(_))));
        assert_eq!(
            release(&manager, pages(frames.start.0 + 1, frames.start.0 + 2)),
            Err(ReleaseError::Managed(frames.start.add(1)))
        );
        assert_eq!(settled(&manager), after);
        // All of it can be allocated.
        let whole = manager.allocate_at(Pfn(0x2200), Order::BLOCK, MigrateType::Movable);
        let whole = whole.expect("a block of it");
        manager.give_back(whole).expect("ours");
        let mut found = 0;
        let mut held = Vec::new();
        let all = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
        while let Ok(page) = manager.allocate(&all).map(|page| page.start) {
            found += u64::from(frames.contains(page));
            held.push(page);
        }
        // Descriptors inside blocks take eight frames of each split block.
        let most = frames.pages();
        assert!(found + 8 * 6 >= most && found <= most, "{found} of {most}");
        for page in held {
            manager.give_back_order(page, Order::PAGE).expect("ours");
        }
        check(&manager);
    }
}

/// If a block has too few free frames for its descriptors, none of its frames is managed: they stay
/// reserved like the others, whatever is released beside them.
#[test]
fn frames_that_were_given_up_are_reserved() {
    let initrd = PhysRange::new(0x200_5000, 0x280_0000);
    let machine = FakeMachine::builder().ram(mib(0, 512)).build();
    let manager = Descriptors::Inside.bring_up_reserving(machine, &[initrd]).expect("bring-up");
    let given_up = pages(0x2000, 0x2005);
    let before = settled(&manager);
    assert_eq!(release(&manager, pages(0x2100, 0x2140)), Ok(64));
    check(&manager);
    let one = |start| manager.allocate_at(Pfn(start), Order::PAGE, MigrateType::Movable).ok();
    let held: Vec<_> = (0x2120..0x2140).filter_map(one).collect();
    assert!(!held.is_empty());
    for page in 0x2000..0x2005 {
        let freed = manager.give_back_order(Pfn(page), Order::PAGE);
        assert!(freed.is_err(), "nobody was given {page:#x}");
    }
    assert_eq!(release(&manager, given_up), Ok(5));
    held.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
    check(&manager);
    let after = settled(&manager);
    assert_eq!(after.reserved_pages, before.reserved_pages - 64 - 5);
    assert_eq!(after.managed_pages, before.managed_pages + 64 + 5);
}

#[test]
fn every_page_alone_and_in_any_order() {
    for descriptors in Descriptors::ALL {
        let reserved = PhysRange::new(0x60_0000, 0xa0_1000);
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        let manager = descriptors.bring_up_reserving(machine, &[reserved]).expect("bring-up");
        let before = settled(&manager);
        let frames = reserved.whole_frames();
        let count = frames.pages();
        for step in 0..count {
            // 3 and the number of frames, 1025, have no common divisor.
            let pfn = frames.start.add(step * 3 % count);
            assert_eq!(release(&manager, pages(pfn.0, pfn.0 + 1)), Ok(1));
            if step % 64 == 0 {
                check(&manager);
            }
        }
        check(&manager);
        let after = settled(&manager);
        assert_eq!(after.managed_pages, before.managed_pages + count);
        assert_eq!(manager.hotplug().released_pages(), count);
        for pfn in [frames.start, frames.start.add(count - 1)] {
            let again = release(&manager, pages(pfn.0, pfn.0 + 1));
            assert_eq!(again, Err(ReleaseError::Managed(pfn)));
        }
    }
}

#[test]
fn what_was_released_wrongly_is_refused() {
    let reserved = PhysRange::new(0x100_0000, 0x140_0000);
    let hole = PhysRange::new(0x180_0000, 0x180_3000);
    let machine = FakeMachine::builder()
        .ram(PhysRange::new(0x1000, hole.start))
        .ram(PhysRange::new(hole.end, 64 << 20))
        .build();
    let manager = Descriptors::None.bring_up_reserving(machine, &[reserved]).expect("bring-up");
    let before = settled(&manager);
    let table = manager.zones()[0].table_memory().touched_frames();
    let cases = [
        (pages(5, 5), ReleaseError::Empty(pages(5, 5))),
        (pages(0x800, 0x801), ReleaseError::Managed(Pfn(0x800))),
        (pages(0xfff, 0x1001), ReleaseError::Managed(Pfn(0xfff))),
        (pages(0x1800, 0x1801), ReleaseError::NotMemory(Pfn(0x1800))),
        (pages(0, 1), ReleaseError::NotMemory(Pfn(0))),
        (pages(64 << 8, (64 << 8) + 1), ReleaseError::NotMemory(Pfn(64 << 8))),
        (table, ReleaseError::Manager(table.start)),
    ];
    for (range, error) in cases {
        assert_eq!(release(&manager, range), Err(error));
        assert_eq!(settled(&manager), before);
        check(&manager);
    }
    // A part of the range that ends in memory that was managed before.
    assert_eq!(release(&manager, pages(0x1300, 0x1401)), Err(ReleaseError::Managed(Pfn(0x1400))));
    assert_eq!(settled(&manager), before);
    assert_eq!(release(&manager, pages(0x1300, 0x1400)), Ok(0x100));
    check(&manager);
}

/// The first and the last block of a range lie in one zone, and the blocks between them in another.
/// The places for pieces in the first zone are counted for both blocks.
#[test]
fn places_for_pieces_are_counted_across_nodes() {
    let reserved = mib(60, 132);
    for taken in [14, 15, 16] {
        let builder = FakeMachine::builder().ram(mib(0, 256)).nodes(2);
        let builder = builder.node(mib(0, 96), 0).node(mib(96, 128), 1).node(mib(128, 256), 0);
        let machine = builder.build();
        let manager = Descriptors::None.bring_up_reserving(machine, &[reserved]).expect("bring-up");
        let first = |block: u64| pages((64 << 8) + block * 512, (64 << 8) + block * 512 + 1);
        for block in 0..taken {
            assert_eq!(release(&manager, first(block)), Ok(1), "{block}");
        }
        let before = settled(&manager);
        let range = pages((96 << 8) - 100, (128 << 8) + 100);
        let released = release(&manager, range);
        check(&manager);
        if taken == 14 {
            assert_eq!(released, Ok(range.pages()));
        } else {
            assert_eq!(released, Err(ReleaseError::TooManyPieces(Pfn(128 << 8))), "{taken}");
            assert_eq!(settled(&manager), before);
        }
    }
}

/// Partly released blocks are recorded; each zone has places for sixteen of them.
#[test]
fn places_for_pieces_end_and_come_back() {
    let reserved = mib(64, 128);
    let machine = FakeMachine::builder().ram(mib(0, 256)).build();
    let manager = Descriptors::None.bring_up_reserving(machine, &[reserved]).expect("bring-up");
    let first = |block: u64| pages((64 << 8) + block * 512, (64 << 8) + block * 512 + 1);
    for block in 0..16 {
        assert_eq!(release(&manager, first(block)), Ok(1), "{block}");
    }
    let one_more = release(&manager, first(16));
    assert_eq!(one_more, Err(ReleaseError::TooManyPieces(first(16).start)));
    check(&manager);
    let rest = pages(first(3).end.0, first(4).start.0);
    assert_eq!(release(&manager, rest), Ok(511));
    assert_eq!(release(&manager, first(16)), Ok(1));
    check(&manager);
    assert_eq!(release(&manager, first(16).end_to(first(17).start)), Ok(511));
}

trait EndTo {
    fn end_to(self, end: Pfn) -> PfnRange;
}

impl EndTo for PfnRange {
    fn end_to(self, end: Pfn) -> PfnRange {
        PfnRange { start: self.end, end }
    }
}
