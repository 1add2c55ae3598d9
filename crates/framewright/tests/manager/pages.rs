//! Page descriptors inside blocks: where they lie, that the block becomes whole again without them,
//! that freeing never fails, and that nobody gets the frames that hold them.

use crate::common::{
    Fake, bring_up, bring_up_described, bring_up_with, check, descriptor_frames_of, gib, mib,
    order, with_pages,
};
use framewright::firmware::MemoryKind;
use framewright::parameters::Pages;
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::FreeError;
use framewright::zone::{BlockState, DescriptorForm, MigrateType, State};
use framewright::{Page, PartOf, Platform, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::Ordering;

fn state(manager: &Fake, pfn: Pfn) -> BlockState {
    manager.block_state(BlockNumber::containing(pfn)).expect("a block")
}

fn one(pfn: Pfn) -> PfnRange {
    PfnRange::new(pfn.0, pfn.0 + 1)
}

/// The descriptor of a page that the test owns.
fn page(manager: &Fake, pfn: Pfn) -> Option<&Page> {
    // SAFETY: the test owns the page.
    unsafe { manager.vmemmap().page(pfn) }
}

/// Pseudo-random numbers that are the same in every run.
fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for index in (1..count).rev() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        numbers.swap(index, usize::try_from(seed % (index as u64 + 1)).expect("small"));
    }
    numbers
}

/// Checks that a free was refused because `frame` holds descriptors. With page owners the refusal
/// also tells what was there before.
#[track_caller]
fn assert_reserved(freed: Result<(), FreeError>, frame: Pfn) {
    let refused = matches!(
        freed,
        Err(FreeError::NotAllocated { pfn, state: Some(State::Reserved), .. }) if pfn == frame
    );
    assert!(refused, "{freed:?} for {frame}");
}

#[test]
fn a_descriptor_is_64_bytes_and_lies_where_it_should() {
    assert_eq!((size_of::<Page>(), align_of::<Page>()), (64, 64));
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = bring_up_described(machine);
    let block = Pfn(16 * 512);
    let taken =
        manager.allocate_at(block.add(130), Order::PAGE, MigrateType::Movable).expect("free");
    let frames = manager.vmemmap().descriptor_frames(BlockNumber(16)).expect("the block is split");
    assert_eq!(frames, std::array::from_fn(|n| block.add(504 + n as u64)));
    let page = page(&manager, taken.start).expect("it has one");
    let address = std::ptr::from_ref(page).addr();
    assert_eq!(address, machine.direct(block.add(504).address() + 130 * 64).as_ptr().addr());
    assert_eq!(std::ptr::from_ref(page.flags()).addr() - address, 8);
    assert_eq!(std::ptr::from_ref(page.owner_words()).addr() - address, 16);
    assert_eq!(page.owner_words().len(), Page::OWNER_WORDS);
    assert!(page.is_clear() && page.references() == 0 && page.part_of() == PartOf::Single);
    // What the owner writes is in memory at that place.
    page.owner_words()[5].store(0x1234_5678_9abc_def0, Ordering::Relaxed);
    assert_eq!(machine.load(block.add(504).address() + 130 * 64 + 56), 0x1234_5678_9abc_def0);
    page.clear();
    manager.give_back_to_zone(taken).expect("allocated");
    check(&manager);
}

#[test]
fn a_block_splits_into_504_pages_and_becomes_whole_again() {
    let manager = bring_up_described(FakeMachine::builder().ram(mib(0, 64)).build());
    let idle = manager.totals();
    // Block 0 has holes and another block holds tables: both are split from the start.
    assert_eq!(idle.descriptor_pages, 16);
    let block = Pfn(20 * 512);
    let mut taken: Vec<PfnRange> = Vec::new();
    // Whichever part of the block is wanted first.
    for offset in [511, 0] {
        taken.push(
            manager
                .allocate_at(block.add(offset), Order::PAGE, MigrateType::Movable)
                .expect("free"),
        );
        let first = if offset == 511 { 0 } else { 504 };
        assert_eq!(state(&manager, block).descriptors_first(), first);
        for offset in 0..512 {
            let at = manager.allocate_at(block.add(offset), Order::PAGE, MigrateType::Movable);
            taken.extend(at.ok());
        }
        assert_eq!(taken.len(), 504);
        check(&manager);
        assert_eq!(manager.totals().descriptor_pages, idle.descriptor_pages + 8);
        assert!(descriptor_frames_of(&manager).contains(&block.add(first as u64)));
        // The frames that hold descriptors cannot be freed, alone or with others.
        let own = block.add(first as u64 + 3);
        for of in [one(own), PfnRange::new(own.0, own.0 + 3)] {
            assert_reserved(manager.give_back_to_zone(of), own);
        }
        assert!(manager.give_back_to_zone(PfnRange::new(block.0, block.0 + 512)).is_err());
        for range in taken.drain(..) {
            assert!(page(&manager, range.start).is_some_and(Page::is_clear));
            manager.give_back_to_zone(range).expect("allocated");
        }
        check(&manager);
        // One complete block stays split; a request for a larger block makes it whole.
        let large = manager
            .allocate_at(Pfn(16 * 512), order(12), MigrateType::Movable)
            .expect("all of it is free");
        assert_eq!(manager.totals().descriptor_pages, idle.descriptor_pages);
        manager.give_back_to_zone(large).expect("allocated");
        check(&manager);
    }
    assert_eq!(manager.totals(), idle);
}

#[test]
fn large_runs_and_their_parts_have_descriptors_once_there_is_room() {
    let manager = bring_up_described(FakeMachine::builder().ram(mib(0, 64)).build());
    let whole = manager.allocate(&Request::new(order(10))).expect("there is memory");
    assert!(page(&manager, whole.start).is_none(), "a block that is allocated whole has none");
    let full = manager.totals();
    // The first frames that are freed could not hold descriptors and still leave any frame for use.
    for offset in 0..8 {
        manager.give_back_to_zone(one(whole.start.add(offset * 3))).expect("allocated");
        let now = state(&manager, whole.start);
        assert_eq!(
            (now.descriptor_form(), now.is_unavailable(), now.free_pages()),
            (DescriptorForm::None, true, offset + 1)
        );
        assert!(page(&manager, whole.start.add(1)).is_none());
        let again =
            manager.allocate_at(whole.start.add(offset * 3), Order::PAGE, MigrateType::Movable);
        assert!(again.is_err(), "it would have no descriptor");
        let totals = manager.totals();
        assert_eq!(totals.free_pages, full.free_pages, "nobody can have them");
        assert_eq!(totals.descriptor_pages, full.descriptor_pages + offset + 1);
        check(&manager);
    }
    manager.give_back_to_zone(one(whole.start.add(100))).expect("allocated");
    let now = state(&manager, whole.start);
    assert_eq!(
        (now.descriptor_form(), now.free_pages(), now.is_unavailable()),
        (DescriptorForm::Inside, 1, false)
    );
    assert!(now.has(BlockState::SCATTERED));
    assert_eq!(manager.totals().free_pages, full.free_pages + 1);
    assert_eq!(manager.totals().descriptor_pages, full.descriptor_pages + 8);
    check(&manager);
    assert!(
        page(&manager, whole.start.add(1)).is_some_and(Page::is_clear),
        "pages that are kept have one now"
    );
    let frames = manager
        .vmemmap()
        .descriptor_frames(BlockNumber::containing(whole.start))
        .expect("it has them");
    for frame in frames {
        assert!(page(&manager, frame).is_none());
        assert_reserved(manager.give_back_to_zone(one(frame)), frame);
    }
    // Descriptors of different pages are distinct, whichever frame they are in.
    let kept = (0..512).map(|offset| whole.start.add(offset)).filter(|pfn| !frames.contains(pfn));
    let mut places: Vec<usize> = kept
        .filter_map(|pfn| page(&manager, pfn))
        .map(|page| std::ptr::from_ref(page).addr())
        .collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 504);
    let rest = (0..1024).map(|offset| whole.start.add(offset));
    let rest: Vec<Pfn> =
        rest.filter(|pfn| !frames.contains(pfn) && pfn.0 - whole.start.0 != 100).collect();
    for pfn in rest {
        let _ = manager.give_back_to_zone(one(pfn));
    }
    check(&manager);
    assert_eq!(manager.totals().allocated_pages, 0);
    assert!(
        manager.allocate_at(whole.start, order(10), MigrateType::Movable).is_ok(),
        "both blocks are whole"
    );
}

#[test]
fn freeing_never_fails_in_any_order_and_any_pieces() {
    let manager = bring_up_described(FakeMachine::builder().ram(mib(0, 32)).build());
    let idle = manager.totals();
    for piece in [1_u64, 2, 3, 7, 8, 9, 64, 100, 511] {
        let whole = manager.allocate(&Request::new(order(10))).expect("there is memory");
        let pieces = whole.pages().div_ceil(piece);
        for (step, index) in
            shuffled(usize::try_from(pieces).expect("small")).into_iter().enumerate()
        {
            let start = whole.start.0 + index as u64 * piece;
            manager
                .give_back_to_zone(PfnRange::new(start, (start + piece).min(whole.end.0)))
                .expect("allocated");
            let waiting = state(&manager, Pfn(start));
            assert!(!waiting.is_unavailable() || waiting.free_pages() <= 8);
            if step % 16 == 0 {
                check(&manager);
            }
        }
        check(&manager);
        let now = manager.totals();
        assert_eq!(now.free_pages + now.descriptor_pages, idle.free_pages + idle.descriptor_pages);
        assert!(
            now.descriptor_pages <= idle.descriptor_pages + 8 * 2,
            "one complete block a zone stays split"
        );
    }
}

#[test]
fn all_memory_is_taken_page_by_page_and_comes_back() {
    for pages in [Pages::None, Pages::Inside] {
        let machine = FakeMachine::builder().ram(mib(0, 48)).ram(mib(1024, 1040)).build();
        let manager = bring_up_with(machine, &[mib(8, 9)], &with_pages(pages)).expect("bring-up");
        let idle = manager.totals();
        let request = Request { reserves: Reserves::All, ..Request::pages(1) };
        let mut taken = Vec::new();
        while let Ok(range) = manager.allocate(&request) {
            taken.push(range);
        }
        check(&manager);
        let full = manager.totals();
        assert_eq!((full.free_pages, full.allocated_pages), (0, taken.len() as u64));
        assert_eq!(full.allocated_pages + full.descriptor_pages, full.managed_pages);
        let split = taken.len() as u64 / 504;
        assert!(if pages == Pages::Inside {
            full.descriptor_pages >= split * 8
        } else {
            full.descriptor_pages == 0
        });
        for range in &taken {
            assert_eq!(
                page(&manager, range.start).is_some_and(Page::is_clear),
                pages == Pages::Inside
            );
        }
        for index in shuffled(taken.len()) {
            manager.give_back_to_zone(taken[index]).expect("allocated");
        }
        check(&manager);
        let back = manager.totals();
        assert_eq!(
            back.free_pages + back.descriptor_pages,
            idle.free_pages + idle.descriptor_pages
        );
        assert_eq!(back.allocated_pages, 0);
    }
}

#[test]
fn blocks_that_the_direct_map_does_not_reach_have_none() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).direct_limit(4 << 30).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::Inside)).expect("bring-up");
    let low = manager.allocate_at(Pfn(0x8_0000), Order::PAGE, MigrateType::Movable).expect("free");
    let high =
        manager.allocate_at(Pfn(0x14_0000), Order::PAGE, MigrateType::Movable).expect("free");
    assert!(page(&manager, low.start).is_some());
    assert!(page(&manager, high.start).is_none());
    let last = manager
        .allocate_at(Pfn(0x14_01ff), Order::PAGE, MigrateType::Movable)
        .expect("none of its frames is used");
    check(&manager);
    // Blocks that are split after the map has grown have descriptors; the block that was split
    // before still has none.
    machine.raise_direct_limit(8 << 30);
    let next =
        manager.allocate_at(Pfn(0x14_0200), Order::PAGE, MigrateType::Movable).expect("free");
    assert!(page(&manager, next.start).is_some() && page(&manager, high.start).is_none());
    for range in [low, high, last, next] {
        manager.give_back_to_zone(range).expect("allocated");
    }
    check(&manager);
    let again =
        manager.allocate_at(Pfn(0x14_0000), order(10), MigrateType::Movable).expect("free again");
    manager.give_back_to_zone(again).expect("allocated");
    check(&manager);
}

#[test]
fn blocks_with_holes_keep_theirs_where_there_is_room() {
    // Five frames of block 16 are memory, every other frame of block 17, and twelve frames of block
    // 18.
    let mut builder = FakeMachine::builder().ram(mib(0, 32)).ram(mib(64, 96));
    let frame = |pfn: u64| PhysRange::new(pfn << 12, (pfn + 1) << 12);
    for pfn in 0x2010..0x2015 {
        builder = builder.memory(frame(pfn), MemoryKind::Conventional);
    }
    for pfn in (0x2200..0x2240).step_by(2) {
        builder = builder.memory(frame(pfn), MemoryKind::Conventional);
    }
    builder = builder.memory(PhysRange::new(0x2420 << 12, 0x242c << 12), MemoryKind::Conventional);
    let manager =
        bring_up_with(builder.build(), &[], &with_pages(Pages::Inside)).expect("bring-up");
    let small = state(&manager, Pfn(0x2010));
    assert_eq!(
        (small.present_pages(), small.managed_pages(), small.descriptor_form()),
        (5, 0, DescriptorForm::None)
    );
    assert!(manager.allocate_at(Pfn(0x2010), Order::PAGE, MigrateType::Movable).is_err());
    assert!(manager.give_back_to_zone(one(Pfn(0x2010))).is_err());
    let sparse = state(&manager, Pfn(0x2200));
    assert_eq!(
        (sparse.managed_pages(), sparse.free_pages(), sparse.has(BlockState::SCATTERED)),
        (32, 24, true)
    );
    let run = state(&manager, Pfn(0x2420));
    assert_eq!((run.managed_pages(), run.free_pages(), run.descriptors_first()), (12, 4, 0x20));
    let taken = manager.allocate_at(Pfn(0x2200), Order::PAGE, MigrateType::Movable).expect("free");
    assert!(page(&manager, taken.start).is_some_and(Page::is_clear));
    manager.give_back_to_zone(taken).expect("allocated");
    check(&manager);
    assert_eq!(manager.totals().allocated_pages, 0);
}

#[test]
fn what_is_left_in_a_descriptor_is_found() {
    let manager = bring_up_described(FakeMachine::builder().ram(mib(0, 64)).build());
    let pages = [0x2800, 0x2801]
        .map(|pfn| manager.allocate_at(Pfn(pfn), Order::PAGE, MigrateType::Movable).expect("free"));
    page(&manager, pages[0].start).expect("described").flags().store(1, Ordering::Relaxed);
    manager.give_back_to_zone(pages[0]).expect("allocated");
    let fault = manager.verify().expect_err("the page is free and its descriptor is not zero");
    assert!(fault.to_string().contains("descriptor is not zero"), "{fault}");
    // Splitting the block again zeroes all descriptors.
    manager.give_back_to_zone(pages[1]).expect("allocated");
    let block = Pfn(pages[0].start.0 / PAGES_PER_BLOCK * PAGES_PER_BLOCK);
    let whole = manager.allocate_at(block, Order::BLOCK, MigrateType::Movable).expect("complete");
    manager.give_back_to_zone(whole).expect("allocated");
    check(&manager);
}

#[test]
fn caches_do_not_turn_frames_of_descriptors_into_free_ones() {
    let manager = bring_up_described(FakeMachine::builder().ram(mib(0, 64)).build());
    let taken = manager.allocate_at(Pfn(0x2800), Order::PAGE, MigrateType::Movable).expect("free");
    let frames = manager.vmemmap().descriptor_frames(BlockNumber(0x14)).expect("described");
    // Two frames of one word are freed together. Builds with debug assertions check at once, other
    // builds when the frames leave the cache.
    let freed = [frames[2], frames[3]].map(|frame| manager.give_back_order(frame, Order::PAGE));
    let drained = manager.drain();
    assert!(freed.iter().all(Result::is_err) || drained.is_err(), "{freed:?} {drained:?}");
    check(&manager);
    assert_eq!(manager.vmemmap().descriptor_frames(BlockNumber(0x14)), Some(frames));
    manager.give_back_to_zone(taken).expect("allocated");
    check(&manager);
}

#[test]
fn interrupt_handlers_split_blocks() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = bring_up_described(machine);
    let taken =
        machine.interrupt(|| manager.allocate(&Request::new(order(8))).expect("there is memory"));
    assert!(page(&manager, taken.start).is_some());
    machine.interrupt(|| manager.give_back_to_zone(taken)).expect("allocated");
    check(&manager);
}

#[test]
fn without_the_parameter_nothing_has_a_descriptor() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).build());
    let taken = manager.allocate(&Request::pages(1)).expect("there is memory");
    assert!(page(&manager, taken.start).is_none());
    assert!(manager.vmemmap().descriptor_frames(BlockNumber::containing(taken.start)).is_none());
    assert!(page(&manager, Pfn(1 << 50)).is_none() && page(&manager, Pfn(u64::MAX)).is_none());
    assert_eq!(manager.totals().descriptor_pages, 0);
}
